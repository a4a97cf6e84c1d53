"""The stored form of entries: what is kept, what is refused, what older releases wrote."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.core.entry import Entry
from gymckpt.errors import JournalCorrupt, JournalError
from gymckpt.journal import entry as stored
from gymckpt.journal.entry import (
    SCHEMA_VERSION,
    TAGS,
    decode_object,
    decode_row,
    encode_object,
    encode_row,
)
from tests.journal.samples import call_entry, entry
from tests.journal.strategies import any_entry


@given(any_entry)
def test_an_entry_comes_back_from_a_row_as_it_was(one: Entry) -> None:
    """Encoding an entry as a row and decoding it gives an equal entry."""
    assert decode_row(encode_row(one)) == one


@given(any_entry)
def test_an_entry_comes_back_from_an_object_as_it_was(one: Entry) -> None:
    """Encoding an entry as one line of JSON and decoding it gives an equal entry."""
    line = encode_object(one)
    assert b"\n" not in line
    assert decode_object(line) == one


@given(any_entry)
def test_row_and_object_have_the_same_names_and_values(one: Entry) -> None:
    """The object is the row under its tags, without what is None and with the facts unfolded."""
    row = dict(zip(TAGS, encode_row(one), strict=True))
    row["facts"] = orjson.loads(row["facts"])
    assert orjson.loads(encode_object(one)) == {
        tag: value for tag, value in row.items() if value is not None
    }


@given(any_entry, st.data())
def test_no_beginning_of_an_object_can_be_decoded(one: Entry, data: st.DataObject) -> None:
    """A line that was cut off is never taken for another entry."""
    line = encode_object(one)
    cut = data.draw(st.integers(0, len(line) - 1))
    with pytest.raises(JournalCorrupt):
        decode_object(line[:cut])


def test_the_stored_names_are_these() -> None:
    """The tags are exactly those of release 0.1; changing one orphans every stored entry."""
    assert " ".join(TAGS) == "v run op seq ep ts at inst call ask trig src dst facts"
    assert SCHEMA_VERSION == 1
    assert encode_object(entry(1)) == (
        b'{"v":1,"run":"run-1","op":"op-1","seq":1,"ep":1,"ts":1700000001.25,"at":0.125,'
        b'"trig":"prepare","src":"","dst":"open",'
        b'"facts":{"deadline_ts":1.5,"blockers":["a","b"],"note":null}}'
    )


def test_every_field_of_an_entry_is_stored() -> None:
    """A field that is added to Entry without a tag is noticed here."""
    attributes = {field.attribute for field in stored._FIELDS} | {"facts"}
    assert attributes == {field.name for field in attrs.fields(Entry)}


def test_a_tag_used_twice_is_refused() -> None:
    """Two fields cannot share one stored name."""
    with pytest.raises(ValueError, match="twice"):
        stored._unique(["op", "seq", "op"])


# --- what is refused ----------------------------------------------------------------------------


class Colour(enum.StrEnum):
    """A str that is not plain."""

    RED = "red"


def _cycle() -> dict[str, Any]:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    return loop


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"a": math.nan}, "facts.a: nan"),
        ({"a": [1, {"b": math.inf}]}, r"facts.a\[1\].b: inf"),
        ({"a": b"x"}, "facts.a: a bytes"),
        ({"a": {1: "x"}}, "facts.a: the key '1' is a int"),
        ({Colour.RED: 1}, "the key 'red' is a Colour"),
        ({"a": Colour.RED}, "facts.a: a Colour"),
        ({"a": {1, 2}}, "facts.a: a set"),
        ({"a": object()}, "facts.a: a object"),
        ({"a": 2**63}, "facts.a: .* 64 bits"),
        ({"a": "\ud800"}, "facts: .*"),
        ({"\ud800": 1}, "facts: .*"),
        (_cycle(), "facts.again.*nested deeper"),
        ([], "facts: must be an object"),
        (None, "facts: must be an object"),
    ],
)
def test_facts_that_are_not_plain_json_are_refused_by_path(facts: object, named: str) -> None:
    """What JSON cannot hold is refused with the path to it, and names entry and operation."""
    with pytest.raises(ValueError, match=named) as caught:
        encode_row(entry(3, facts=facts))
    assert "entry 3 of operation 'op-1'" in str(caught.value)
    assert len(str(caught.value)) < 1_000


def test_tuples_and_mappings_become_lists_and_objects() -> None:
    """Facts are stored as plain JSON whatever read-only containers they came in."""
    facts = MappingProxyType({"a": (1, MappingProxyType({"b": ()}))})
    assert decode_row(encode_row(entry(1, facts=facts))).facts == {"a": [1, {"b": []}]}


_ILLEGAL: Mapping[str, tuple[object, ...]] = {
    "run": ("", "a b", 7, None, "x" * 129),
    "operation_id": ("", "../x", "a\n", None),
    "seq": (0, -1, True, 1.0, "1", 2**63, None),
    "epoch": (0, True, 2**63, None),
    "ts": (math.nan, math.inf, -math.inf, "1", True, None, 2**80),
    "at_s": (math.nan, math.inf, None),
    "instance": ("", "replica-0", "a/b/replica-0", 5),
    "call": ("", "a\nb", 5, "x" * 257),
    "ask": (0, True, 1.5),
    "trigger": ("", None, "a\0b"),
    "source": (None, "a\0b", 0),
    "dest": ("", None, "\ud800"),
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in _ILLEGAL.items() for value in values]
)
def test_an_illegal_field_is_refused_by_name(field: str, value: object) -> None:
    """A value that breaks its field's rule is refused before it is stored."""
    with pytest.raises(ValueError, match=f"field {field}:"):
        encode_row(attrs.evolve(entry(2), **{field: value}))


def test_a_whole_number_of_seconds_is_stored_as_a_float() -> None:
    """Times given as ints are stored and come back as floats."""
    row = encode_row(entry(1, ts=5, at_s=0))
    assert [type(row[TAGS.index(tag)]) for tag in ("ts", "at")] == [float, float]


# --- what is damaged ----------------------------------------------------------------------------


@pytest.mark.parametrize("tag", [tag for tag in TAGS if tag not in {"inst", "call", "ask"}])
def test_a_missing_field_is_corrupt(tag: str) -> None:
    """An object that lacks a field is refused with operation, seq and field."""
    fields = orjson.loads(encode_object(call_entry(4)))
    del fields[tag]
    with pytest.raises(JournalCorrupt, match=f"field '{tag}'"):
        decode_object(orjson.dumps(fields))


@pytest.mark.parametrize("tag", TAGS)
def test_a_field_of_another_type_is_corrupt(tag: str) -> None:
    """A damaged column is named together with the operation and the entry."""
    row = list(encode_row(call_entry(4)))
    row[TAGS.index(tag)] = b"\xff" if tag == "op" else [1]
    with pytest.raises(JournalCorrupt, match=f"field '{tag}'") as caught:
        decode_row(tuple(row))
    assert tag in {"op", "seq"} or "operation 'op-1', entry 4" in str(caught.value)


@pytest.mark.parametrize("extra", ["note", "operation_id", "V"])
def test_an_unknown_field_is_corrupt(extra: str) -> None:
    """No field is passed over in silence."""
    fields = orjson.loads(encode_object(entry(4))) | {extra: 1}
    with pytest.raises(JournalCorrupt, match=f"operation 'op-1', entry 4, field '{extra}'"):
        decode_object(orjson.dumps(fields))


@pytest.mark.parametrize("line", [b"", b"null", b"[]", b"5", b'"x"', b"{", b"\xff", b"{}"])
def test_a_line_that_is_no_entry_is_corrupt(line: bytes) -> None:
    """Whatever stands in the place of an entry is refused as JournalCorrupt."""
    with pytest.raises(JournalCorrupt):
        decode_object(line)


def test_a_row_of_another_width_is_corrupt() -> None:
    """A row with a column too few is refused."""
    with pytest.raises(JournalCorrupt, match="columns"):
        decode_row(encode_row(entry(1))[:-1])


@pytest.mark.parametrize("facts", ["", "{", "[]", "null", None, b"{}", "nan"])
def test_facts_that_are_no_json_object_are_corrupt(facts: object) -> None:
    """Damaged facts text is refused by field."""
    with pytest.raises(JournalCorrupt, match="field 'facts'"):
        decode_row((*encode_row(entry(1))[:-1], facts))


# --- versions -----------------------------------------------------------------------------------


def _object_of_version(version: int) -> dict[str, Any]:
    """Return an object as two releases before the first would have written it."""
    fields = orjson.loads(encode_object(entry(4)))
    if version < 0:
        fields["trigger"] = fields.pop("trig")
    if version < 1:
        fields["facts"]["deadline"] = fields["facts"].pop("deadline_ts")
    return fields | {"v": version}


def _from_minus_1(fields: dict[str, Any]) -> dict[str, Any]:
    fields["trig"] = fields.pop("trigger")
    return fields


def _from_0(fields: dict[str, Any]) -> dict[str, Any]:
    facts = dict(fields["facts"])
    facts["deadline_ts"] = facts.pop("deadline")
    return fields | {"facts": facts}


_SYNTHETIC = {-1: _from_minus_1, 0: _from_0}


@pytest.mark.parametrize("version", [-1, 0, 1])
def test_an_older_object_is_raised_version_by_version(version: int) -> None:
    """An entry of any older version comes back as the present one, through each upcaster once."""
    line = orjson.dumps(_object_of_version(version))
    assert decode_object(line, upcasters=_SYNTHETIC) == entry(4)


def test_an_older_row_is_raised_too() -> None:
    """Rows of a database and lines of an export are raised by the same upcasters."""
    fields = _object_of_version(0)
    fields["facts"] = orjson.dumps(fields["facts"]).decode()
    row = tuple(fields.get(tag) for tag in TAGS)
    assert decode_row(row, upcasters=_SYNTHETIC) == entry(4)


def test_a_version_that_no_release_wrote_is_corrupt() -> None:
    """An older version without an upcaster is refused, not guessed at."""
    with pytest.raises(JournalCorrupt, match="no release wrote schema version 0"):
        decode_object(orjson.dumps(_object_of_version(0)))


def test_an_object_that_its_upcaster_cannot_take_is_corrupt() -> None:
    """A damaged old object is reported by place, not as the upcaster's KeyError."""
    fields = _object_of_version(0) | {"facts": {}}
    with pytest.raises(JournalCorrupt, match=r"operation 'op-1', entry 4, field 'v': .*deadline"):
        decode_object(orjson.dumps(fields), upcasters=_SYNTHETIC)


def test_an_entry_of_a_newer_release_is_refused_with_the_way_out() -> None:
    """A newer schema version is no damage: the error says which release can read it."""
    with pytest.raises(JournalError, match="newer release") as caught:
        decode_object(orjson.dumps(_object_of_version(1) | {"v": SCHEMA_VERSION + 1}))
    assert not isinstance(caught.value, JournalCorrupt)
