"""
JSON as a participant's files are read back: strictly, and with the place in every error.

What is no object, has another field or another type than it must have is damage, whoever did it.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, cast

from gymckpt.errors import show, text_of

__all__ = ["Record", "parse", "require_fields", "require_object"]

Record = dict[str, Any]
"""One JSON object: str, int, finite float, bool, None, lists and string-keyed objects."""


def require_fields(raw: object, types: dict[str, type], where: str) -> dict[str, Any]:
    """
    Return `raw` if it is an object with exactly these fields, each of exactly its type.

    Args:
        raw: What was parsed.
        types: Field to type; `True` is no int and `1` is no float.
        where: What to call the object in the error, beginning with its file.

    Raises:
        ValueError: It is no object, a field is missing, unknown, or of another type.
    """
    fields = require_object(raw, where)
    missing, unknown = sorted(types.keys() - fields.keys()), sorted(fields.keys() - types.keys())
    if missing or unknown:
        raise ValueError(
            f"{where}: fields missing: {', '.join(missing) or 'none'}; "
            f"unknown: {text_of(', '.join(unknown))[:200] or 'none'}"
        )
    for name, expected in types.items():
        if type(fields[name]) is not expected:
            raise ValueError(
                f"{where}: {name} must be of type {expected.__name__}, not {show(fields[name])}"
            )
    return fields


def require_object(raw: object, where: str) -> Record:
    """
    Return `raw` if it is a JSON object.

    Args:
        raw: What was parsed.
        where: What to call it in the error.

    Raises:
        ValueError: It is none.
    """
    if type(raw) is dict:
        return cast("Record", raw)
    raise ValueError(f"{where}: is not a JSON object but {show(raw)}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def parse(raw: bytes, where: str) -> object:
    """
    Return the JSON value that some bytes are.

    Args:
        raw: The bytes.
        where: What to call them in the error.

    Raises:
        ValueError: They are none: no UTF-8, no JSON, or a constant that only Python takes for it.
    """
    try:
        return _DECODER.decode(raw.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: is not JSON: {text_of(error)}") from error
