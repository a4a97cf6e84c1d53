"""
What a participant saves, as strict JSON from which exactly the same value is read back.

The order of keys is kept at every depth, since it is content: an agent's prompt is made from it.
`-0.0` is a JSON number. NaN and the infinities are none, so each is written as an object of one
field, `{"$float": "NaN"}`. An object of a user that looks like such a tag gets one more `$` before
its key, which is taken away when it is read: `{"$$float": 1}` is the user's `{"$float": 1}`.
"""

from __future__ import annotations

import json
import math
import re
import struct
from typing import Any, cast

from gymckpt.errors import show, text_of
from gymckpt.strict_json import located, parse_json, require_object

__all__ = [
    "RECORD_BYTES_MAX",
    "Record",
    "decode",
    "encode",
    "encode_loosely",
    "encode_record",
]

Record = dict[str, Any]
"""One JSON object: str, int, float, bool, None, lists and string-keyed objects."""

RECORD_BYTES_MAX = 64 * 1024 * 1024
"""One record at most; it bounds what a damaged file without line ends can make us hold."""

_TAG = "$float"
_TAGGED = re.compile(r"\$+float")
_NEEDS_TAGS = re.compile(r'NaN|Infinity|\$float"')
"""Occurs in what the plain encoder makes of a value wherever a tag is needed, and seldom else."""

_NAMED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAN_BITS = re.compile(r"[0-9a-f]{16}")
"""How a NaN is written that is not Python's own: by its bits."""

_ENCODER = json.JSONEncoder(separators=(",", ":"))


def encode(value: object, what: str) -> bytes:
    """
    Return the JSON text of a value.

    Args:
        value: The value.
        what: What to call it in the error.

    Raises:
        ValueError: It would not be read back as it is: it is no JSON data, or nested too deeply.
    """
    try:
        text = _ENCODER.encode(value)
        if _NEEDS_TAGS.search(text):
            value = _tagged(value)
            text = _ENCODER.encode(value)
        read_back = parse_json(text.encode())
        kept = read_back == value and _ENCODER.encode(read_back) == text
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON data: {text_of(error)}: {show(value)}") from error
    if not kept:
        raise ValueError(f"{what} would not be read back as it is: {show(value)}")
    return text.encode()


def encode_record(record: Record) -> bytes:
    """
    Return one record as a line.

    Raises:
        ValueError: It is no JSON object, would not be read back as it is, or is too long.
    """
    line = encode(require_object(record, "a record"), "a record") + b"\n"
    if len(line) > RECORD_BYTES_MAX:
        raise ValueError(f"a record has {len(line)} bytes, at most {RECORD_BYTES_MAX} are allowed")
    return line


def encode_loosely(value: object) -> bytes:
    """Return a text that differs where values do, to be compared or digested, never read."""
    return _ENCODER.encode(value).encode()


def decode(data: bytes, where: str) -> object:
    """
    Return the value that `encode` was given.

    Args:
        data: The text.
        where: Its place, for the error.

    Raises:
        ValueError: It is no strict JSON, or holds a tag that `encode` does not write.
    """
    with located(where):
        return parse_json(data, unfold=_untagged)


def _tagged(value: object) -> object:
    if isinstance(value, dict):
        fields = {key: _tagged(item) for key, item in cast("dict[object, object]", value).items()}
        if len(fields) == 1:
            [(key, item)] = fields.items()
            if isinstance(key, str) and _TAGGED.fullmatch(key):
                return {f"${key}": item}
        return fields
    if isinstance(value, list):
        return [_tagged(item) for item in cast("list[object]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {_TAG: _name_of(value)}
    return value


def _untagged(fields: dict[str, Any]) -> object:
    if len(fields) != 1:
        return fields
    [(key, item)] = fields.items()
    if key == _TAG:
        return _float_of(item)
    return {key[1:]: item} if _TAGGED.fullmatch(key) else fields


def _name_of(number: float) -> str:
    bits = struct.pack(">d", number)
    named = (name for name, known in _NAMED.items() if struct.pack(">d", known) == bits)
    return next(named, bits.hex())


def _float_of(name: object) -> float:
    if isinstance(name, str) and name in _NAMED:
        return _NAMED[name]
    if isinstance(name, str) and _NAN_BITS.fullmatch(name):
        number: float = struct.unpack(">d", bytes.fromhex(name))[0]
        if math.isnan(number) and _name_of(number) == name:
            return number
    raise ValueError(f"{show(name)} is no tagged number")
