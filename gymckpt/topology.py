"""
Inventories: which episodes of which instance a verb names, checked before anything is sent.

A rollout is in one instance, with one attempt, either continued or restarted (DESIGN, 9.4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import sample, show

__all__ = ["Inventory", "require_disjoint", "require_inventory", "require_topology", "to_facts"]

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
    given: Mapping[Any, Any] = raw
    require_topology(list(given), live if whole else set(live) & set(given), what)
    inventory = {
        instance: _episodes(given[instance], f"{what}[{instance!r}]")
        for instance in live
        if instance in given
    }
    for instance, episodes in inventory.items():
        twice = [key for key, count in Counter(episodes).items() if count > 1]
        if twice and not repeats:
            raise ValueError(f"{what}[{instance!r}] names {len(twice)} episode(s) twice: {sample(twice)}")
    return inventory


def _episodes(raw: object, what: str) -> tuple[EnvironmentEpisode, ...]:
    if isinstance(raw, str | bytes | Mapping) or not isinstance(raw, Iterable):
        raise TypeError(f"{what} is a collection of episodes; got {show(raw)}")
    episodes = tuple(raw)
    for episode in episodes:
        if not isinstance(episode, EnvironmentEpisode):
            raise TypeError(f"{what} holds EnvironmentEpisode objects; got {show(episode)}")
    return episodes


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
