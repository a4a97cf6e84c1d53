"""
The rules for lists of episodes and names, which replies and manifests share.

Collections are copied when they are taken, so that a caller who changes its own afterwards changes
nothing here, and checked for type and meaning with the place of the fault in the message. Nothing
here knows instances or operations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from typing import Any, TypeVar, cast

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.values import plain
from gymckpt.wording import sample, show

__all__ = [
    "copied",
    "copied_rows",
    "is_unicode",
    "plain_keys",
    "require_episodes",
    "require_mapping",
    "require_names",
    "require_rollouts_once",
    "require_texts",
    "require_unique",
]

_Item = TypeVar("_Item")
_Key = TypeVar("_Key")


def copied(value: Iterable[_Item]) -> tuple[_Item, ...]:
    """
    Copy a list, tuple or set, each text as a plain one; the check refuses anything else.

    Args:
        value: What a caller passed for a collection. A set is sorted, since it has no order of
            its own and summaries are compared and printed.
    """
    given: Any = value
    if isinstance(given, list | tuple):
        return tuple(map(plain, value))
    if isinstance(given, Set):
        return tuple(map(plain, _sorted(cast("Set[_Item]", given))))
    return cast("tuple[_Item, ...]", given)


def _sorted(items: Set[_Item]) -> tuple[_Item, ...]:
    try:
        return tuple(sorted(cast("Set[Any]", items)))
    except TypeError:  # of several types: the check will name the one that is wrong
        return tuple(items)


def copied_rows(value: Mapping[_Key, Iterable[_Item]]) -> dict[_Key, tuple[_Item, ...]]:
    """
    Copy a mapping and the collections in it; anything else is returned as it is.

    Args:
        value: What a caller passed for a mapping of collections.

    Raises:
        ValueError: Two keys are the same text.
    """
    given: Any = value
    if not isinstance(given, Mapping):
        return cast("dict[_Key, tuple[_Item, ...]]", given)
    return {key: copied(items) for key, items in plain_keys(value, "a mapping").items()}


def plain_keys(value: Mapping[_Key, _Item], what: str) -> dict[_Key, _Item]:
    """
    Copy a mapping, each key that is a text as a plain one.

    Args:
        value: A mapping of a caller.
        what: Where it is, for the error.

    Raises:
        ValueError: Two keys are the same text.
    """
    keys = [plain(key) for key in value]
    require_unique(keys, what)
    return dict(zip(keys, value.values(), strict=True))


def require_unique(items: Collection[object], what: str) -> None:
    """
    Refuse a collection that names something twice.

    Args:
        items: Hashable things.
        what: Where they are, for the error.

    Raises:
        ValueError: An item occurs twice.
    """
    if len(set(items)) != len(items):
        raise ValueError(f"{what} must not name anything twice: {sample(_repeated(items))}")


def require_rollouts_once(episodes: Iterable[EnvironmentEpisode], what: str) -> None:
    """
    Refuse a list in which a rollout occurs twice, be it with two attempts.

    A deployment never runs two attempts of one rollout, and which of the two a restore should
    continue could not be said.

    Args:
        episodes: What one list names.
        what: Where they are, for the error.

    Raises:
        ValueError: A rollout occurs twice.
    """
    rollouts = [episode.rollout_id for episode in episodes]
    if len(set(rollouts)) != len(rollouts):
        raise ValueError(
            f"{what} must not name a rollout twice, with whatever attempt: "
            f"{sample(_repeated(rollouts))}"
        )


def _repeated(items: Iterable[object]) -> dict[object, None]:
    seen: set[object] = set()
    repeated: dict[object, None] = {}
    for item in items:
        if item in seen:
            repeated[item] = None
        seen.add(item)
    return repeated


def require_episodes(value: object, what: str) -> tuple[EnvironmentEpisode, ...]:
    """
    Return `value` if it is a tuple of episodes.

    Args:
        value: What `copied` gave.
        what: Where it is, for the error.

    Raises:
        TypeError: It is something else, or holds something else.
    """
    return _require_items(value, EnvironmentEpisode, what)


def require_texts(value: object, what: str) -> tuple[str, ...]:
    """
    Return `value` if it is a tuple of strings; a bare string is none, though it can be iterated.

    Args:
        value: What `copied` gave.
        what: Where it is, for the error.

    Raises:
        TypeError: It is something else, or holds something else.
    """
    return _require_items(value, str, what)


def require_names(value: object, what: str) -> tuple[str, ...]:
    """
    Return `value` if it is a tuple of unique names that every file can hold.

    Args:
        value: What `copied` gave.
        what: Where it is, for the error.

    Raises:
        TypeError: It is something else, or holds something else.
        ValueError: A name is empty, occurs twice, or cannot be written as UTF-8.
    """
    names = require_texts(value, what)
    for index, name in enumerate(names):
        if not name:
            raise ValueError(f"{what}[{index}] must not be empty")
        if not is_unicode(name):
            raise ValueError(f"{what}[{index}] must not hold half a character pair: {show(name)}")
    require_unique(names, what)
    return names


def is_unicode(text: str) -> bool:
    """Whether a text can be stored: it holds no half of a character pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_mapping(value: object, kind: type[_Key], what: str) -> Iterator[tuple[_Key, object]]:
    """
    Yield the pairs of `value`, each after its key was checked.

    Args:
        value: What `copied_rows` gave.
        kind: What the keys must be.
        what: Where it is, for the error.

    Raises:
        TypeError: It is no mapping, or a key is something else.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} must be a mapping, not {show(value)}")
    for key, items in cast("Mapping[object, object]", value).items():
        if not isinstance(key, kind):
            raise TypeError(f"a key of {what} must be a {kind.__name__}, not {show(key)}")
        yield key, items


def _require_items(value: object, kind: type[_Item], what: str) -> tuple[_Item, ...]:
    if not isinstance(value, tuple):
        raise TypeError(
            f"{what} must be a list, tuple or set of {kind.__name__}, not {show(value)}"
        )
    for index, item in enumerate(cast("tuple[object, ...]", value)):
        if not isinstance(item, kind):
            raise TypeError(f"{what}[{index}] must be a {kind.__name__}, not {show(item)}")
    return cast("tuple[_Item, ...]", value)
