"""What the one reader of JSON files refuses, and that it is the only one."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.strict_json import parse_json
from tests.participant.stores import JSON
from tests.repo.house import package_sources

READERS = {
    "gymckpt/strict_json.py": "the reader of files",
    "gymckpt/journal/entry.py": "rows of a journal, which it has written itself",
    "gymckpt/journal/portable.py": "lines of an export, which carries a digest",
}
"""Modules that parse JSON, with what; tests of the package's own kit are left out."""


@given(JSON)
def test_it_reads_what_was_written(value: object) -> None:
    """What the standard library writes is read as the same value, keys in the same order."""
    text = json.dumps(value)
    assert json.dumps(parse_json(text.encode())) == text


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"a": 1, "a": 1}', "names a key twice: 'a'"),
        ('{"a": {"b": [{}, {"c": 1, "d": 2, "c": 3}]}}', "a[\"b\"][1]: names a key twice: 'c'"),
        ('[[{"a": 1, "\\u0061": 2}]]', "[0][0]: names a key twice: 'a'"),
        ('{"a": {"x": 1, "x": 2}, "a": 1}', "names a key twice: 'a'"),
    ],
)
def test_a_key_that_occurs_twice_is_refused_at_every_depth(text: str, place: str) -> None:
    """The error names the object, also where the key is written in two ways."""
    with pytest.raises(ValueError, match=re.escape(place)):
        parse_json(text.encode())


@given(value=JSON, depth=st.integers(0, 3), data=st.data())
def test_no_repeated_key_gets_through(value: object, depth: int, data: st.DataObject) -> None:
    """Wherever in a text an object repeats a key, the text is refused."""
    text = f'{{"k": {json.dumps(value)}, "k": {json.dumps(value)}}}'
    for _ in range(depth):
        text = data.draw(st.sampled_from([f"[1, {text}]", f'{{"x": {text}, "y": 0}}']))
    with pytest.raises(ValueError, match="names a key twice: 'k'"):
        parse_json(text.encode())


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999", "-1e999", "1" * 400 + ".0"])
def test_a_number_that_is_none_is_refused(text: str) -> None:
    """Neither a constant that only some readers know nor an overflow becomes an infinity."""
    with pytest.raises(ValueError, match="is not JSON"):
        parse_json(f'{{"a": [{text}]}}'.encode())


def test_there_is_one_reader_of_json_files() -> None:
    """No other module of the package parses JSON than those that are listed with a reason."""
    calls = re.compile(r"\bjson\.loads?\(|\borjson\.loads\(|\bJSONDecoder\b")
    found = {
        source.path
        for source in package_sources()
        if calls.search(source.text) and not source.path.startswith("gymckpt/testing/")
    }
    assert found == set(READERS)
