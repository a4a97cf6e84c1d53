"""
JSON read strictly: what was torn, edited or written by somebody else is a `ValueError`.

The standard parser lets pass what two readers would read differently (a key that occurs twice,
NaN, a number that is too large, a byte order mark in some encodings) and fails on deep nesting with
an error of another family. Here every fault is a `ValueError` that names its place as a path, such
as `instances["a/replica-0"][3].attempt`. This is the one reader of JSON files in the package.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, cast

from gymckpt.wording import did_you_mean, sample, show, text_of, visible

__all__ = [
    "key_path",
    "located",
    "parse_json",
    "require_fields",
    "require_list",
    "require_object",
    "require_types",
]


def parse_json(
    data: bytes, *, unfold: Callable[[dict[str, Any]], object] = lambda fields: fields
) -> object:
    """
    Parse one JSON text.

    Args:
        data: What a file holds.
        unfold: Given each object, the innermost first; returns what stands in its place.

    Returns:
        Plain data; the keys of each object are in the order of the text.

    Raises:
        ValueError: It is not UTF-8, not JSON, has a byte order mark, holds NaN, an infinity or a
            number that is too large, names a key of an object twice, or is nested too deeply.
    """
    repeated: list[tuple[object, list[str]]] = []

    def made(pairs: list[tuple[str, object]]) -> object:
        fields: dict[str, Any] = dict(pairs)
        if len(fields) == len(pairs):
            return unfold(fields)
        counts = Counter(key for key, _value in pairs)
        repeated.append((fields, [key for key, count in counts.items() if count > 1]))
        return fields

    try:
        value: object = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=made,
            parse_float=_finite,
            parse_constant=_refuse_constant,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: byte {error.start} is {error.reason}") from error
    except RecursionError as error:
        raise ValueError("is not JSON that can be read: it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"is not JSON: {text_of(error)}") from error
    for fields, keys in reversed(repeated):
        place = _path_to(fields, value)
        raise ValueError(f"{f'{place}: ' if place else ''}names a key twice: {_shown(keys)}")
    return value


def _shown(keys: list[str]) -> str:
    return sample(map(show, keys))


def _path_to(wanted: object, value: object) -> str:
    """Return the path of one object in a parsed value; empty for the outermost."""
    left = [("", value)]
    while left:
        path, found = left.pop()
        if found is wanted:
            return path
        if isinstance(found, dict):
            fields = cast("dict[str, object]", found)
            left += [(key_path(path, key) if path else key, fields[key]) for key in fields]
        elif isinstance(found, list):
            items = cast("list[object]", found)
            left += [(f"{path}[{index}]", item) for index, item in enumerate(items)]
    return ""


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{show(text)} is a number that no float can hold")
    return number


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
    Return `value` if it is an object.

    Args:
        value: A part of what was parsed.
        path: Its place, for the error.

    Raises:
        ValueError: It is something else, or a key is no string.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}: must be an object, not {show(value)}")  # noqa: TRY004 - a file
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


def require_types(value: object, path: str, types: Mapping[str, type]) -> dict[str, Any]:
    """
    Return `value` if it is an object with exactly these fields, each of exactly its type.

    Args:
        value: A part of what was parsed.
        path: Its place, for the error.
        types: Field to type; `True` is no int and `1` is no float.

    Raises:
        ValueError: It is something else, or a field is missing, unknown or of another type.
    """
    fields = dict(require_fields(value, path, types))
    for name, expected in types.items():
        if type(fields[name]) is not expected:
            raise ValueError(
                f"{path}: {name} must be of type {expected.__name__}, not {show(fields[name])}"
            )
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
