"""
The stored form of an entry: tags, rules for every field, schema version, upcasting.

This module owns the names under which an entry is kept, and they last for ever: `_FIELDS` is the
only place where they are written. The flat row (a database) and the JSON object (an export) are
both derived from it, so they cannot drift apart. The rules of a field are checked before it is
written and again after it was read.

A row is a tuple in the order of `TAGS`, with the facts as JSON text; an object leaves out what is
None. Whatever an older release wrote is first raised, version by version, to the present object
by an upcaster, and only then checked. This module knows no store and no chart.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import attrs
import orjson

from gymckpt.core.entry import Entry
from gymckpt.episodes import require_instance_id, require_operation_id
from gymckpt.errors import JournalCorrupt, JournalError, text_of
from gymckpt.journal.fields import (
    INT_MAX,
    remembering,
    require_count,
    require_name,
    require_seconds,
    require_source,
)

__all__ = [
    "SCHEMA_VERSION",
    "TAGS",
    "UPCASTERS",
    "Row",
    "Upcaster",
    "decode_object",
    "decode_outline",
    "decode_row",
    "encode_object",
    "encode_row",
    "require_count",
    "require_name",
    "require_seconds",
]

SCHEMA_VERSION = 1
"""The version of the object that this release writes."""

Row = tuple[Any, ...]
"""One entry as a database keeps it, in the order of `TAGS`."""

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
"""Raises an object, facts included, by one version; the version tag itself is raised for it."""

UPCASTERS: Mapping[int, Upcaster] = {}
"""Version to what raises an object of that version by one; empty while there is only one."""

FACTS_DEPTH_MAX = 64
"""How deep facts may nest; deeper ones are a defect or a cycle."""

_INT_MIN = -(2**63)


# --- the fields --------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class _Field:
    """One field of an entry as it is stored."""

    tag: str
    """The stored name; never changed, never used again for something else."""
    attribute: str
    """The name in `Entry`, which may change."""
    require: Callable[[object], Any]
    """Returns the value if it is legal, else raises ValueError or TypeError."""
    optional: bool = False


_OPERATION_ID = remembering(require_operation_id)
_NAME = remembering(require_name)

_FIELDS = (
    _Field(tag="run", attribute="run", require=_OPERATION_ID),
    _Field(tag="op", attribute="operation_id", require=_OPERATION_ID),
    _Field(tag="seq", attribute="seq", require=require_count),
    _Field(tag="ep", attribute="epoch", require=require_count),
    _Field(tag="ts", attribute="ts", require=require_seconds),
    _Field(tag="at", attribute="at_s", require=require_seconds),
    _Field(
        tag="inst", attribute="instance", require=remembering(require_instance_id), optional=True
    ),
    _Field(tag="call", attribute="call", require=_NAME, optional=True),
    _Field(tag="ask", attribute="ask", require=require_count, optional=True),
    _Field(tag="trig", attribute="trigger", require=_NAME),
    _Field(tag="src", attribute="source", require=remembering(require_source)),
    _Field(tag="dst", attribute="dest", require=_NAME),
)
"""Every field but the facts, which are no plain column and come last."""

_VERSION_TAG = "v"
_FACTS_TAG = "facts"


def _unique(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the tags in order; two fields under one name would lose one of them silently."""
    listed = tuple(tags)
    if len(set(listed)) != len(listed):
        raise ValueError(f"a stored tag is used twice in {listed}")
    return listed


TAGS = _unique([_VERSION_TAG, *(field.tag for field in _FIELDS), _FACTS_TAG])
"""The stored names in the order of a row; also the columns of the table of entries."""

_KNOWN = frozenset(TAGS)
_ATTRIBUTES = tuple(field.attribute for field in _FIELDS)
_VALUES = operator.attrgetter(*_ATTRIBUTES)
_INSTANCE_COLUMN = TAGS.index("inst")


# --- facts --------------------------------------------------------------------------------------


class _NotPlain(Exception):
    """Some value is not plain JSON; the path to it is gathered on the way out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []

    def __str__(self) -> str:
        return f"facts{''.join(reversed(self.steps))[:200]}: {self.reason}"


def _plain(value: object, depth: int = 0) -> Any:
    """Return a copy of `value` made of plain JSON types, or raise _NotPlain."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        if not _INT_MIN <= cast("int", value) <= INT_MAX:
            raise _NotPlain(f"{value!r:.60} does not fit into 64 bits")
        return value
    if kind is float:
        if not math.isfinite(cast("float", value)):
            raise _NotPlain(f"{value!r} is not JSON")
        return value
    if depth > FACTS_DEPTH_MAX:
        raise _NotPlain(f"nested deeper than {FACTS_DEPTH_MAX} levels")
    if isinstance(value, Mapping):
        return _plain_object(cast("Mapping[object, object]", value), depth)
    if kind is list or kind is tuple:
        return _plain_list(cast("list[object]", value), depth)
    raise _NotPlain(f"a {kind.__name__} is not plain JSON: {text_of(value)[:80]!r}")


def _plain_object(value: Mapping[object, object], depth: int) -> dict[str, Any]:
    copy: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str:
            raise _NotPlain(f"the key {text_of(key)[:80]!r} is a {type(key).__name__}, not a str")
        try:
            copy[key] = _plain(item, depth + 1)
        except _NotPlain as fault:
            fault.steps.append(f".{key:.60}")
            raise
    return copy


def _plain_list(value: Iterable[object], depth: int) -> list[Any]:
    copy: list[Any] = []
    for index, item in enumerate(value):
        try:
            copy.append(_plain(item, depth + 1))
        except _NotPlain as fault:
            fault.steps.append(f"[{index}]")
            raise
    return copy


def _facts_text(facts: object) -> str:
    """Return the facts as JSON text, or raise an error with the path to what is not plain."""
    if not isinstance(facts, Mapping):
        raise TypeError(f"facts: must be an object, not a {type(facts).__name__}")
    try:
        return orjson.dumps(_plain_object(cast("Mapping[object, object]", facts), 0)).decode()
    except _NotPlain as fault:
        raise ValueError(str(fault)) from None
    except orjson.JSONEncodeError as error:  # what is left: text that is not Unicode
        raise ValueError(f"facts: {text_of(error)}") from error


# --- writing ------------------------------------------------------------------------------------


def encode_row(entry: Entry) -> Row:
    """
    Return the entry as a flat row, in the order of `TAGS`.

    Args:
        entry: Any entry; tuples in its facts become lists.

    Raises:
        ValueError: A field breaks its rule, or the facts are not plain JSON; the message names the
            field or the path into the facts.
    """
    values: list[Any] = [SCHEMA_VERSION]
    for field, value in zip(_FIELDS, _VALUES(entry), strict=True):
        if value is None and field.optional:
            values.append(None)
            continue
        try:
            values.append(field.require(value))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{_named(entry)}, field {field.attribute}: {error}") from error
    try:
        values.append(_facts_text(entry.facts))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{_named(entry)}, {error}") from error.__cause__
    return tuple(values)


def encode_object(entry: Entry) -> bytes:
    """
    Return the entry as one line of JSON, without the line break.

    Args:
        entry: Any entry; tuples in its facts become lists.

    Raises:
        ValueError: As for `encode_row`.
    """
    row = encode_row(entry)
    fields = {tag: value for tag, value in zip(TAGS, row, strict=True) if value is not None}
    fields[_FACTS_TAG] = orjson.Fragment(row[-1])
    return orjson.dumps(fields)


def _named(entry: Entry) -> str:
    return f"entry {entry.seq!r:.40} of operation {entry.operation_id!r:.150}"


# --- reading ------------------------------------------------------------------------------------


def decode_outline(row: Row) -> Entry:
    """
    Return a row's entry quickly: one of a call is not checked and comes without its facts.

    Args:
        row: The values in the order of `TAGS`.

    Raises:
        JournalCorrupt: It is damaged beyond recognition.
    """
    if len(row) != len(TAGS) or row[0] != SCHEMA_VERSION or row[_INSTANCE_COLUMN] is None:
        return decode_row(row)
    return Entry(**dict(zip(_ATTRIBUTES, row[1:-1], strict=True)))


def decode_row(row: Row, *, upcasters: Mapping[int, Upcaster] = UPCASTERS) -> Entry:
    """
    Return the entry that a flat row holds.

    Args:
        row: The values in the order of `TAGS`.
        upcasters: Version to what raises an object of that version by one.

    Raises:
        JournalCorrupt: No release wrote this; the message names operation, seq and field.
        JournalError: A newer release wrote it.
    """
    if len(row) != len(TAGS):
        raise JournalCorrupt(f"a stored entry has {len(row)} columns, not {len(TAGS)}")
    fields = {tag: value for tag, value in zip(TAGS, row, strict=True) if value is not None}
    text = fields.get(_FACTS_TAG)
    try:
        fields[_FACTS_TAG] = orjson.loads(text if isinstance(text, str) else b"")
    except orjson.JSONDecodeError as error:
        raise _corrupt(fields, _FACTS_TAG, f"not JSON text: {error}") from error
    return _entry(fields, upcasters)


def decode_object(line: bytes, *, upcasters: Mapping[int, Upcaster] = UPCASTERS) -> Entry:
    """
    Return the entry that one line of JSON holds.

    Args:
        line: The line; a trailing line break does not matter.
        upcasters: Version to what raises an object of that version by one.

    Raises:
        JournalCorrupt: No release wrote this; the message names operation, seq and field.
        JournalError: A newer release wrote it.
    """
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise JournalCorrupt(f"a stored entry is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise JournalCorrupt(f"a stored entry is not an object: {text_of(fields)[:100]!r}")
    return _entry(cast("dict[str, Any]", fields), upcasters)


def _entry(fields: dict[str, Any], upcasters: Mapping[int, Upcaster]) -> Entry:
    """Raise the object to the present version, check every field, and build the entry."""
    fields = _upcast(fields, upcasters)
    if not fields.keys() <= _KNOWN:
        raise _corrupt(fields, min(fields.keys() - _KNOWN), "is no field of an entry")
    values: dict[str, Any] = {}
    for field in _FIELDS:
        if field.tag not in fields and field.optional:
            continue
        try:
            values[field.attribute] = field.require(fields[field.tag])
        except KeyError:
            raise _corrupt(fields, field.tag, "is missing") from None
        except (TypeError, ValueError) as error:
            raise _corrupt(fields, field.tag, str(error)) from error
    facts = fields.get(_FACTS_TAG)
    if not isinstance(facts, dict):
        raise _corrupt(fields, _FACTS_TAG, f"must be an object, not {text_of(facts)[:80]!r}")
    return Entry(**values, facts=cast("dict[str, Any]", facts))


def _upcast(fields: dict[str, Any], upcasters: Mapping[int, Upcaster]) -> dict[str, Any]:
    version = fields.get(_VERSION_TAG)
    if type(version) is not int:
        raise _corrupt(fields, _VERSION_TAG, f"must be an int, not {text_of(version)[:80]!r}")
    if version == SCHEMA_VERSION:
        return fields
    if version > SCHEMA_VERSION:
        raise JournalError(
            f"{_where(fields)} has schema version {version}, this gymckpt reads up to "
            f"{SCHEMA_VERSION}: it was written by a newer release, read it with that one"
        )
    while version < SCHEMA_VERSION:
        upcaster = upcasters.get(version)
        if upcaster is None:
            raise _corrupt(fields, _VERSION_TAG, f"no release wrote schema version {version}")
        try:
            fields = upcaster(dict(fields))
        except (KeyError, TypeError, ValueError) as error:
            raise _corrupt(
                fields, _VERSION_TAG, f"cannot be raised from version {version}: {error!r:.200}"
            ) from error
        version += 1
    return {**fields, _VERSION_TAG: version}


def _where(fields: Mapping[str, Any]) -> str:
    operation, seq = text_of(fields.get("op"))[:150], text_of(fields.get("seq"))[:40]
    return f"operation {operation!r}, entry {seq}"


def _corrupt(fields: Mapping[str, Any], tag: str, reason: str) -> JournalCorrupt:
    return JournalCorrupt(f"{_where(fields)}, field {text_of(tag)[:80]!r}: {text_of(reason)[:300]}")
