"""What a participant saves comes back exactly: order, NaN, infinities, what looks like a tag."""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gymckpt.participant.exact_json import decode, encode

FLOATS = st.floats(allow_subnormal=True) | st.sampled_from([-0.0, math.nan, math.inf, -math.inf])
BITS = st.integers(0, 2**52 - 1).map(
    lambda low: struct.unpack(">d", struct.pack(">Q", 0x7FF << 52 | low))[0]
)
KEYS = st.text(max_size=4) | st.sampled_from(["$float", "$$float", "$$$float", "float", "NaN"])
LEAVES = (
    st.none() | st.booleans() | st.integers() | FLOATS | BITS | st.text(max_size=6)
    | st.sampled_from(["NaN", "-Infinity", "$float", "7ff8000000000001"])
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def atoms(value: object) -> Iterator[object]:
    """Tell two values apart whatever differs: a type, a bit of a float, the order of keys."""
    yield type(value)
    if isinstance(value, dict):
        yield list(value)
        for item in value.values():
            yield from atoms(item)
    elif isinstance(value, list):
        yield len(value)
        for item in value:
            yield from atoms(item)
    else:
        yield struct.pack(">d", value) if isinstance(value, float) else value


def no_constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} is not JSON")


@given(VALUES)
@example({"$float": "NaN"})
@example({"$$float": {"$float": math.nan}})
@example([{"$float": math.inf, "other": 1}, {"b": -0.0, "a": {"d": 1, "c": math.nan}}])
def test_every_value_comes_back_exactly_and_in_order(value: object) -> None:
    """The text is strict JSON, and from it the same value is read, bit by bit and key by key."""
    text = encode(value, "it")
    json.loads(text, parse_constant=no_constant)
    assert list(atoms(decode(text, "it"))) == list(atoms(value))


@given(VALUES, VALUES)
def test_two_values_have_two_texts(one: object, other: object) -> None:
    """Texts, and so digests of them, are equal exactly where the values are the same."""
    same = list(atoms(one)) == list(atoms(other))
    assert (encode(one, "it") == encode(other, "it")) is same


@given(st.permutations(["a", "b", "c", "d"]), st.permutations(["a", "b", "c", "d"]))
def test_order_is_content(one: list[str], other: list[str]) -> None:
    """Two objects with the same fields in two orders are two values, at every depth."""
    texts = [encode({"x": [dict.fromkeys(keys, 0)]}, "it") for keys in (one, other)]
    assert (texts[0] == texts[1]) is (one == other)


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    "value",
    [
        (1, 2),
        {1: "key"},
        {"a": {math.nan: 1}},
        {1: "a", "1": "b"},
        [(math.nan,)],
        {1, 2},
        b"bytes",
        object(),
        10**5_000,
        ["\ud83d\ude00"],
        CIRCLE,
    ],
    ids=itertools.count(),
)
def test_what_json_cannot_hold_is_refused(value: object) -> None:
    """Nothing is written that would be read back as something else."""
    with pytest.raises(ValueError, match=r"^its state (is not|would not be)"):
        encode(value, "its state")


@pytest.mark.parametrize(
    "tag",
    ['"nan"', '"1.5"', "1.5", "null", '"7ff8000000000000"', '"7ff0000000000000"', '"3ff0"', "[]"],
)
def test_a_tag_that_is_never_written_is_damage(tag: str) -> None:
    """Only what `encode` writes is read, so that a value has one text."""
    with pytest.raises(ValueError, match=r"line 1: is not JSON: .* is no tagged number"):
        decode(f'{{"a": {{"$float": {tag}}}}}'.encode(), "line 1")
