"""What the facts of an entry must hold: the call, the instances and the attempts that it names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gymckpt.chart import AT_OPENING, Chart
from gymckpt.core.settings import SWEEP_CALLS
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import sample

__all__ = [
    "AT_OPENING",
    "attempts",
    "joined",
    "require_named",
    "required_instances",
    "required_text",
]


def require_named(declared: Chart, facts: Mapping[str, Any]) -> None:
    """Require that an operation says what its chart leaves open."""
    if any(AT_OPENING in (state.call, state.also) for state in declared.states.values()):
        call = facts.get("call")
        if call not in SWEEP_CALLS:
            raise ValueError(
                f"chart {declared.name!r} sends one of {', '.join(sorted(SWEEP_CALLS))}, "
                f"not {call!r:.100}"
            )


def required_instances(listed: Iterable[object]) -> tuple[str, ...]:
    """Return the ids of the instances that an operation concerns."""
    found = tuple(listed)
    ids = tuple(instance for instance in found if isinstance(instance, str) and instance)
    if isinstance(listed, str) or len(ids) != len(found):
        raise TypeError(f"the instances are a list of ids, not {listed!r:.100}")
    if not ids:
        raise ValueError("an operation without instances has nothing to do; name at least one")
    if len(set(ids)) != len(ids):
        twice = sorted(name for name, times in Counter(ids).items() if times > 1)
        raise ValueError(f"an operation names each instance once; twice: {sample(twice)}")
    return ids


def required_text(value: object, name: str) -> str:
    """Return a fact that must be text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a text, not {value!r:.100}")
    return value


def attempts(listed: Iterable[object]) -> tuple[EnvironmentEpisode, ...]:
    """Return the attempts that a list of facts names."""
    return tuple(EnvironmentEpisode.from_mapping(raw) for raw in listed)


def joined(
    known: Mapping[str, frozenset[EnvironmentEpisode]], named: Mapping[str, Iterable[object]]
) -> dict[str, frozenset[EnvironmentEpisode]]:
    """Return the attempts of each instance that are known, with those that facts name besides."""
    added = {
        name: known.get(name, frozenset()).union(attempts(listed)) for name, listed in named.items()
    }
    return {**known, **added}
