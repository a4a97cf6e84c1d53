"""
The rules of single fields of an entry: what may be stored in them.

They are checked before a field is written and again after it was read. Every rule returns the
value as it is to be stored, or raises `ValueError` or `TypeError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gymckpt.values import plain

__all__ = [
    "INT_MAX",
    "remembering",
    "require_count",
    "require_name",
    "require_seconds",
    "require_source",
]

NAME_LENGTH_MAX = 256
"""Triggers, states, charts and owners are short words."""

INT_MAX = 2**63 - 1
"""The largest whole number that every store can hold."""

_REMEMBERED_MAX = 4_096
"""How many legal texts one rule remembers; ids and words come back in every entry."""


def require_count(value: object) -> int:
    """
    Return `value` if it is an int from 1 that every store can hold.

    Raises:
        ValueError: It is anything else; `True` is no count.
    """
    if type(value) is not int or not 1 <= value <= INT_MAX:
        raise ValueError(f"must be an int from 1 to 2**63-1, not {value!r:.100}")
    return value


def require_seconds(value: object) -> float:
    """
    Return `value` as a float if it is a finite number of seconds.

    Raises:
        ValueError: It is NaN, infinite, or no plain int or float.
    """
    if type(value) is int and abs(value) <= INT_MAX:
        return float(value)
    if type(value) is not float or not math.isfinite(value):
        raise ValueError(f"must be a finite number of seconds, not {value!r:.100}")
    return value


def require_name(value: object) -> str:
    """
    Return `value` if it is a short printable word or token.

    Raises:
        ValueError: It is empty, too long, or holds a line break or another control character.
    """
    name = plain(value)
    if type(name) is not str or not 0 < len(name) <= NAME_LENGTH_MAX or not name.isprintable():
        raise ValueError(
            f"must be a str of 1 to {NAME_LENGTH_MAX} printable characters, not {value!r:.100}"
        )
    return name


def require_source(value: object) -> str:
    """
    Return `value` if it is a state, or empty as before the first one.

    Raises:
        ValueError: It is neither.
    """
    return "" if value == "" else require_name(value)


def remembering(require: Callable[[object], Any]) -> Callable[[object], Any]:
    """
    Return a rule for texts that does not look twice at one that it has found legal.

    Args:
        require: Returns a value that is legal, else raises.
    """
    legal: set[object] = set()

    def remembered(value: object) -> Any:
        if type(value) is str and value in legal:
            return value
        checked = require(value)
        if type(value) is str and checked is value:
            if len(legal) >= _REMEMBERED_MAX:
                legal.clear()
            legal.add(value)
        return checked

    return remembered
