"""How a value becomes the one that is kept: a new frozen one from an old, plain text from any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

__all__ = ["plain", "plain_text", "replaced"]

T = TypeVar("T")


def plain(value: T) -> T:
    """
    Return the text that a subclass of `str` holds, as a plain `str`; anything else as it is.

    A member of `class P(str, Enum)` or a `numpy.str_` is equal to its text, but may hash, print and
    format otherwise, so that no id keeps such a type once it is inside.

    Args:
        value: Any object.
    """
    if isinstance(value, str) and type(value) is not str:
        return cast("T", str.__str__(value))
    return value


def plain_text(value: str) -> str:
    """Return a text as `plain` does; as the converter of a field it tells checkers its type."""
    return plain(value)


def replaced(value: T, changes: Mapping[str, Any]) -> T:
    """
    Return a frozen attrs value with some fields replaced; `attrs.evolve` takes far longer.

    Args:
        value: Of a class without slots, validators and converters, since none of them is asked.
        changes: Field to its new value.
    """
    new = object.__new__(type(value))
    vars(new).update(vars(value), **changes)
    return new
