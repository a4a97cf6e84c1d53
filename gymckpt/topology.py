"""
Inventories: which episodes of which instance a verb names, checked before anything is sent.

A rollout is in one instance, with one attempt, either continued or restarted (DESIGN, 9.4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from gymckpt.checks import plain_keys
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import sample, show

__all__ = [
    "Inventory",
    "from_facts",
    "require_disjoint",
    "require_inventory",
    "require_no_restart",
    "require_topology",
    "to_facts",
]

Inventory = Mapping[str, tuple[EnvironmentEpisode, ...]]
"""Instance id to its episodes, in the order in which they were given."""


def require_topology(named: Collection[str], live: Collection[str], what: str) -> None:
    """
    Require that exactly the live instances are named.

    Args:
        named: The instance ids that were given.
        live: The instance ids that this coordinator drives.
        what: What names them, for the error.

    Raises:
        ValueError: An instance is missing or unknown; the message names both lists.
    """
    missing = sorted(set(live) - set(named))
    unknown = sorted(set(named) - set(live), key=str)
    if missing or unknown:
        raise ValueError(
            f"{what} does not match the live actor topology of {len(live)} instance(s): "
            f"missing [{sample(missing)}], unknown [{sample(unknown)}]; name exactly the live ones"
        )


def require_inventory(
    raw: object, live: Collection[str], what: str, *, whole: bool, repeats: bool = False
) -> dict[str, tuple[EnvironmentEpisode, ...]]:
    """
    Copy and check an inventory.

    Args:
        raw: A mapping of instance id to episodes.
        live: The instance ids that this coordinator drives.
        what: What it is, for the error.
        whole: Whether every live instance must be named; unknown ones are always refused.
        repeats: Whether an episode may be named more than once.

    Raises:
        TypeError: It is no mapping, or holds something that is no episode.
        ValueError: It does not fit the topology, or names an episode twice.
    """
    if not isinstance(raw, Mapping):
        raise TypeError(f"{what} maps instance ids to episodes; got {type(raw).__name__}")
    given = plain_keys(cast("Mapping[str, object]", raw), what)
    require_topology(list(given), live if whole else set(live) & set(given), what)
    inventory = {
        instance: _episodes(given[instance], f"{what}[{instance!r}]")
        for instance in live
        if instance in given
    }
    for instance, episodes in inventory.items():
        twice = [key for key, count in Counter(episodes).items() if count > 1]
        if twice and not repeats:
            raise ValueError(
                f"{what}[{instance!r}] names {len(twice)} episode(s) twice: {sample(twice)}"
            )
    return inventory


def _episodes(raw: object, what: str) -> tuple[EnvironmentEpisode, ...]:
    kind = type(raw)
    if not issubclass(kind, Iterable) or issubclass(kind, str | bytes | Mapping):
        raise TypeError(f"{what} is a collection of episodes; got {show(raw)}")
    items = tuple(cast("Iterable[object]", raw))
    for item in items:
        if not isinstance(item, EnvironmentEpisode):
            raise TypeError(f"{what} holds EnvironmentEpisode objects; got {show(item)}")
    return cast("tuple[EnvironmentEpisode, ...]", items)


def require_disjoint(continued: Inventory, restarts: Inventory) -> None:
    """
    Require that every rollout is named once over both inventories and all instances.

    Args:
        continued: What is to be saved.
        restarts: What is to start over.

    Raises:
        ValueError: A rollout is named twice; the message names a sample.
    """
    seen: dict[str, str] = {}
    clashes: list[str] = []
    for kind, inventory in (("continued", continued), ("restart", restarts)):
        for instance, episodes in inventory.items():
            for episode in episodes:
                place = f"{kind} {episode.capture_key} in {instance}"
                if episode.rollout_id in seen:
                    clashes.append(f"{seen[episode.rollout_id]} and {place}")
                seen.setdefault(episode.rollout_id, place)
    if clashes:
        raise ValueError(
            f"{len(clashes)} rollout(s) are named twice: {sample(clashes)}; a rollout is in one "
            "instance, with one attempt, either continued or restarted"
        )


def to_facts(inventory: Inventory) -> dict[str, list[dict[str, Any]]]:
    """Return the form in which the journal keeps an inventory, so that recovery can name it."""
    return {
        instance: [episode.to_dict() for episode in episodes]
        for instance, episodes in inventory.items()
    }


def from_facts(facts: Mapping[str, Sequence[object]]) -> dict[str, tuple[EnvironmentEpisode, ...]]:
    """
    Read what `to_facts` wrote.

    Raises:
        ValueError: An episode is malformed.
    """
    return {
        instance: tuple(EnvironmentEpisode.from_mapping(raw) for raw in episodes)
        for instance, episodes in facts.items()
    }


def require_no_restart(
    offered: Inventory, restarts: Mapping[str, Collection[EnvironmentEpisode]]
) -> None:
    """
    Refuse to save an episode that its instance cannot capture.

    Args:
        offered: What is to be saved.
        restarts: Instance to the episodes that it reported as starting over.

    Raises:
        ValueError: Some are in both; the message names a sample.
    """
    clashes = [
        f"{episode.capture_key} in {instance}"
        for instance, reported in restarts.items()
        for episode in offered[instance]
        if episode in reported
    ]
    if clashes:
        raise ValueError(
            f"{len(clashes)} episode(s) were reported as restarts and cannot be saved: "
            f"{sample(clashes)}; leave them out and pass them as restarts"
        )
