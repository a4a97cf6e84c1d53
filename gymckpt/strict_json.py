"""
JSON read strictly: what was torn, edited or written by somebody else is a `ValueError`.

The standard parser lets pass what two readers would read differently (a key that occurs twice,
NaN, a byte order mark in some encodings) and fails on deep nesting with an error of another family.
Here every fault is a `ValueError`, and whoever takes the parsed value apart names the place of the
fault as a path, such as `instances["a/replica-0"][3].attempt`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, cast

from gymckpt.wording import did_you_mean, sample, show, text_of, visible

__all__ = ["key_path", "located", "parse_json", "require_fields", "require_list", "require_object"]


class _Object(dict[str, object]):
    """A parsed object that remembers which of its keys occurred twice."""

    __slots__ = ("repeated",)

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        self.repeated: tuple[str, ...] = ()
        if len(self) != len(pairs):
            counts = Counter(key for key, _value in pairs)
            self.repeated = tuple(key for key, count in counts.items() if count > 1)


def parse_json(data: bytes) -> object:
    """
    Parse one JSON text.

    Args:
        data: What a file holds.

    Returns:
        Plain data; that no object names a key twice is checked by `require_object`, which knows
        the path.

    Raises:
        ValueError: It is not UTF-8, not JSON, has a byte order mark, holds NaN or an infinity, or
            is nested too deeply.
    """
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_Object, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: byte {error.start} is {error.reason}") from error
    except RecursionError as error:
        raise ValueError("is not JSON that can be read: it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"is not JSON: {text_of(error)}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def key_path(path: str, key: str) -> str:
    """Return the path of one entry of a mapping, such as `instances["a/replica-0"]`."""
    return f"{path}[{json.dumps(text_of(key, 300))}]"


@contextmanager
def located(path: str) -> Generator[None]:
    """
    Turn a check's complaint into a `ValueError` that says where the fault is.

    Args:
        path: The place in the file.

    Raises:
        ValueError: The check raised `TypeError` or `ValueError`.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(f"{visible(path)}: {error}") from error


def require_object(value: object, path: str) -> Mapping[str, Any]:
    """
    Return `value` if it is an object, each of whose keys occurs once.

    Args:
        value: A part of what was parsed.
        path: Its place, for the error.

    Raises:
        ValueError: It is something else, or names a key twice.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}: must be an object, not {show(value)}")  # noqa: TRY004 - a file
    if isinstance(value, _Object) and value.repeated:
        raise ValueError(f"{path}: names a key twice: {sample(map(show, value.repeated))}")
    fields = cast("Mapping[object, Any]", value)
    for key in fields:
        if not isinstance(key, str):
            raise ValueError(f"{path}: the key {show(key)} must be a string")  # noqa: TRY004 - a file
    return cast("Mapping[str, Any]", fields)


def require_fields(value: object, path: str, names: Collection[str]) -> Mapping[str, Any]:
    """
    Return `value` if it is an object with exactly these fields.

    Args:
        value: A part of what was parsed.
        path: Its place, for the error.
        names: The fields, all of which it must have.

    Raises:
        ValueError: It is something else, lacks a field or has another one.
    """
    fields = require_object(value, path)
    missing = [name for name in names if name not in fields]
    if missing:
        raise ValueError(f"{path}: lacks {sample(missing)}")
    if len(fields) != len(names):
        unknown = next(name for name in fields if name not in names)
        raise ValueError(f"{path}: has no field {show(unknown)}{did_you_mean(unknown, names)}")
    return fields


def require_list(value: object, path: str) -> list[Any]:
    """
    Return `value` if it is a list.

    Args:
        value: A part of what was parsed.
        path: Its place, for the error.

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(value, list):
        raise ValueError(f"{path}: must be a list, not {show(value)}")  # noqa: TRY004 - a file
    return cast("list[Any]", cast("object", value))
