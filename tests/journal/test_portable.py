"""Exports of one operation: whole, cut off anywhere, changed anywhere, imported elsewhere."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.core.entry import Entry
from gymckpt.errors import JournalCorrupt, JournalError, JournalUnavailable
from gymckpt.journal import Journal, MemoryJournal
from gymckpt.journal.portable import (
    export_operation,
    read_export,
    row_of,
    write_export,
)
from gymckpt.journal.rules import operation_from
from tests.journal.samples import OPERATION, RUN, begun, call_entry, entry, opening
from tests.journal.strategies import histories


def holding(history: list[Entry], *, epoch: int = 0, settled: bool = False) -> Journal:
    """Return a journal in memory that holds one operation."""
    journal = MemoryJournal()
    row = operation_from(
        opening(),
        history,
        epoch=max(epoch, history[-1].epoch),
        owner="host-a:1",
        settled=settled,
    )
    journal.insert_operation(row, history)
    return journal


HISTORY = [
    entry(1),
    entry(2, dest="preparing", facts={"text": "ä\n\u2028}{"}),
    call_entry(3),
    call_entry(4, epoch=2, facts={}),
    entry(5, epoch=2, dest="discarded"),
]
EXPORT = b"".join(export_operation(holding(HISTORY, epoch=3, settled=True), RUN, OPERATION))
LINES = EXPORT.splitlines(keepends=True)


def signed(lines: list[bytes]) -> bytes:
    """Return lines with a footer that fits them, as somebody who edits a file might make."""
    body = b"".join(lines)
    footer = {
        "end": "gymckpt-operation",
        "count": len(lines) - 1,
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    return body + orjson.dumps(footer) + b"\n"


def edited(line: bytes, **changes: Any) -> bytes:
    """Return a line of JSON with other fields; None takes one away."""
    fields = orjson.loads(line) | changes
    return orjson.dumps({key: value for key, value in fields.items() if value is not None}) + b"\n"


# --- whole --------------------------------------------------------------------------------------


def test_an_export_has_a_line_for_each_entry_between_header_and_footer() -> None:
    """The format is that of release 0.1: header, entries, footer with count and digest."""
    assert len(LINES) == len(HISTORY) + 2
    assert orjson.loads(LINES[0]) == {
        "format": "gymckpt-operation",
        "version": 1,
        "gymckpt": importlib.metadata.version("gymckpt"),
        "run": RUN,
        "op": OPERATION,
        "chart": "checkpoint",
        "chart_version": 1,
        "ep": 3,
        "owner": "host-a:1",
        "settled": True,
        "last_seq": 5,
    }
    assert orjson.loads(LINES[-1]) == {
        "end": "gymckpt-operation",
        "count": 5,
        "sha256": hashlib.sha256(b"".join(LINES[:-1])).hexdigest(),
    }
    assert signed(LINES[:-1]) == EXPORT


@given(histories(), st.booleans(), st.integers(0, 9))
def test_any_operation_comes_back_as_it_was(
    history: list[Entry], settled: bool, epoch: int
) -> None:
    """Exporting, reading and importing give another journal the same row and entries."""
    journal, other = holding(history, epoch=epoch, settled=settled), MemoryJournal()
    export = read_export(export_operation(journal, RUN, OPERATION))
    assert (export.complete, export.problem, export.settled) == (True, "", settled)
    other.insert_operation(row_of(export), export.entries)
    assert other.operations() == journal.operations()
    assert other.read(RUN, OPERATION) == journal.read(RUN, OPERATION)


def test_every_store_exports_the_same(journal: Journal) -> None:
    """An import into any store, exported again, is the same file byte by byte."""
    export = read_export(EXPORT)
    journal.insert_operation(row_of(export), export.entries)
    assert b"".join(export_operation(journal, RUN, OPERATION)) == EXPORT


def test_an_export_is_of_one_moment() -> None:
    """Entries that are appended while an export is being written do not break it."""
    journal = MemoryJournal()
    begun(journal, 3)
    lines = export_operation(journal, RUN, OPERATION)
    header = next(lines)
    journal.append([entry(4)], expected_seq=3, epoch=1)
    export = read_export([header, *lines])
    assert export.complete
    assert len(export.entries) == 3


def test_an_export_begun_before_an_append_is_whole() -> None:
    """An operation that goes on between its row and its entries is exported as its row says."""

    class Moving(MemoryJournal):
        def read(self, run: str, operation_id: str, **bounds: Any) -> Any:
            self.append([entry(4)], expected_seq=3, epoch=1)
            return super().read(run, operation_id, **bounds)

    journal = Moving()
    begun(journal, 3)
    export = read_export(list(export_operation(journal, RUN, OPERATION)))
    assert export.complete
    assert len(export.entries) == 3


def test_an_unknown_operation_is_refused_at_once() -> None:
    """The error comes from the call, not from the first line."""
    with pytest.raises(JournalError, match="holds no operation"):
        export_operation(MemoryJournal(), RUN, OPERATION)


@pytest.mark.parametrize("pieces", [1, 7, 10_000])
def test_an_export_can_be_read_in_any_pieces(tmp_path: Path, pieces: int) -> None:
    """A path, its bytes and its bytes in pieces of any size are the same export."""
    path = tmp_path / "export.jsonl"
    path.write_bytes(EXPORT)
    cut = [EXPORT[at : at + pieces] for at in range(0, len(EXPORT), pieces)]
    assert read_export(path) == read_export(str(path)) == read_export(EXPORT) == read_export(cut)
    assert read_export(EXPORT).entries == tuple(HISTORY)


# --- cut off ------------------------------------------------------------------------------------


def test_a_file_cut_off_anywhere_gives_its_longest_beginning() -> None:
    """At every byte the entries whose lines are whole are given, and the rest is named."""
    ends = [0]
    for line in LINES:
        ends.append(ends[-1] + len(line))
    for length in range(len(EXPORT)):
        if length < ends[1] - 1:
            with pytest.raises(JournalCorrupt, match="line 1"):
                read_export(EXPORT[:length])
            continue
        export = read_export(EXPORT[:length])
        whole = sum(1 for end in ends[2:-1] if length >= end - 1)
        assert not export.complete
        assert export.entries == tuple(HISTORY[:whole])
        assert f"it has {whole} of 5 entries" in export.problem
        assert export.settled == (whole == 5)
    assert read_export(EXPORT).complete


@given(histories(), st.data())
def test_any_export_cut_off_anywhere_is_a_legal_history(
    history: list[Entry], data: st.DataObject
) -> None:
    """Whatever the operation, a cut gives a beginning of it or says that the header is broken."""
    whole = b"".join(export_operation(holding(history), RUN, OPERATION))
    cut = data.draw(st.integers(0, len(whole) - 1))
    if b"\n" in whole[: cut + 1]:
        export = read_export(whole[:cut])
        assert export.entries == tuple(history[: len(export.entries)])
        assert not export.complete
    else:
        with pytest.raises(JournalCorrupt):
            read_export(whole[:cut])


# --- changed ------------------------------------------------------------------------------------


def test_a_changed_byte_anywhere_is_never_accepted() -> None:
    """No single changed byte gives a complete export; before the last line break it is corrupt."""
    for offset in range(len(EXPORT)):
        for flip in (0x01, 0x20, 0xFF, EXPORT[offset] ^ 0x0A):
            if not flip:
                continue
            changed = bytearray(EXPORT)
            changed[offset] ^= flip
            try:
                export = read_export(bytes(changed))
            except JournalCorrupt:
                continue
            assert offset == len(EXPORT) - 1
            assert not export.complete


@given(st.data())
def test_missing_doubled_and_swapped_lines_are_corrupt(data: st.DataObject) -> None:
    """A file whose lines were moved about is refused, also with a footer made to fit."""
    lines = list(LINES[:-1])
    at = data.draw(st.integers(1, len(lines) - 1))
    act = data.draw(st.sampled_from(["drop", "double", "swap"]))
    if act == "drop":
        del lines[at]
    elif act == "double":
        lines.insert(at, lines[at])
    else:
        lines[at], lines[at - 1] = lines[at - 1], lines[at]
    with pytest.raises(JournalCorrupt):
        read_export(signed(lines))


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        (0, {"format": "other"}),
        (0, {"version": 0}),
        (0, {"version": "1"}),
        (0, {"extra": 1}),
        (0, {"owner": None}),
        (0, {"ep": 0}),
        (0, {"settled": 1}),
        (0, {"run": "../x"}),
        (0, {"last_seq": 4}),
        (0, {"last_seq": 6}),
        (0, {"ep": 1}),
        (0, {"op": "op-2"}),
        (1, {"src": "open"}),
        (1, {"op": "op-2"}),
        (2, {"extra": 1}),
        (2, {"ep": 3}),
        (3, {"seq": 9}),
        (5, {"trig": None}),
    ],
)
def test_a_line_that_does_not_fit_is_corrupt(line: int, changes: dict[str, Any]) -> None:
    """What header, entries and footer say about each other must agree, whatever the digest."""
    lines = list(LINES[:-1])
    lines[line] = edited(lines[line], **changes)
    with pytest.raises(JournalCorrupt, match="export"):
        read_export(signed(lines))


@pytest.mark.parametrize("line", range(len(LINES)))
@pytest.mark.parametrize("place", ["first", "last", "inside"])
def test_a_key_that_occurs_twice_is_corrupt(line: int, place: str) -> None:
    """Two readers would read such a line differently, so that no line may be one."""
    lines = list(LINES)
    one = lines[line].rstrip()
    key, value = next(iter(orjson.loads(one).items()))
    pair = orjson.dumps({key: value})[1:-1]
    twice = {
        "first": one.replace(b"{", b"{" + pair + b",", 1),
        "last": one[:-1] + b"," + pair + b"}",
        "inside": one[:-1] + b',"x":{"a":1,"a":1}}',
    }
    lines[line] = twice[place] + b"\n"
    whole = b"".join(lines) if line == len(LINES) - 1 else signed(lines[:-1])
    with pytest.raises(JournalCorrupt, match=r"export.*twice"):
        read_export(whole)


@pytest.mark.parametrize(
    "changes", [{"count": 4}, {"sha256": "0" * 64}, {"end": "other"}, {"extra": 1}, {"count": None}]
)
def test_a_footer_that_does_not_fit_is_corrupt(changes: dict[str, Any]) -> None:
    """A footer is believed only if all of it is right."""
    with pytest.raises(JournalCorrupt, match="was changed"):
        read_export(b"".join(LINES[:-1]) + edited(LINES[-1], **changes))


@pytest.mark.parametrize("after", [b"\n", b"x", LINES[-1], LINES[1], b" \n"])
def test_nothing_may_follow_the_footer(after: bytes) -> None:
    """Bytes after the footer are no part of any export."""
    with pytest.raises(JournalCorrupt, match=r"follows the footer|digest"):
        read_export(EXPORT + after)


@pytest.mark.parametrize("tail", [b"5", b"null", b'{"v":1}', LINES[1][:-1]])
def test_a_last_line_that_no_cut_can_leave_is_corrupt(tail: bytes) -> None:
    """A file without a footer that ends in something illegal was changed, not cut off."""
    with pytest.raises(JournalCorrupt):
        read_export(b"".join(LINES[:3]) + tail)


@pytest.mark.parametrize("content", [b"", b"\n", b"{}\n", b"[]\n", b"\xff\n", b"null"])
def test_a_file_without_a_header_is_corrupt(content: bytes) -> None:
    """Nothing is read from a file that does not say what it is."""
    with pytest.raises(JournalCorrupt, match="line 1"):
        read_export(content)


@pytest.mark.parametrize(("line", "tag"), [(0, "version"), (2, "v")])
def test_an_export_of_a_newer_release_is_refused_with_the_way_out(line: int, tag: str) -> None:
    """A newer format or a newer entry is no damage: the error says which release can read it."""
    lines = list(LINES[:-1])
    lines[line] = edited(lines[line], **{tag: 2})
    with pytest.raises(JournalError, match="newer release") as caught:
        read_export(signed(lines))
    assert not isinstance(caught.value, JournalCorrupt)


# --- files --------------------------------------------------------------------------------------


def test_a_written_export_is_whole(tmp_path: Path) -> None:
    """Writing gives exactly the exported bytes, over an older file too, and leaves nothing else."""
    path = tmp_path / "export.jsonl"
    journal = holding(HISTORY, epoch=3, settled=True)
    for _ in range(2):
        write_export(journal, RUN, OPERATION, path)
        assert path.read_bytes() == EXPORT
    assert os.listdir(tmp_path) == ["export.jsonl"]


def test_a_failed_export_leaves_the_older_file(tmp_path: Path) -> None:
    """Where an export cannot be written or moved into place, nothing changes."""
    journal = holding(HISTORY)
    target = tmp_path / "directory"
    target.mkdir()
    (target / "older").write_bytes(b"older")
    for path in (target, tmp_path / "missing" / "export.jsonl", target / "older" / "x"):
        with pytest.raises(JournalUnavailable, match="cannot write the export"):
            write_export(journal, RUN, OPERATION, path)
    with pytest.raises(JournalError, match="holds no operation"):
        write_export(journal, RUN, "op-2", target / "older")
    assert [found.name for found in tmp_path.rglob("*")] == ["directory", "older"]
    assert (target / "older").read_bytes() == b"older"


def test_a_file_that_cannot_be_read_is_unavailable(tmp_path: Path) -> None:
    """A missing file or a directory is JournalUnavailable, with its path."""
    for path in (tmp_path, tmp_path / "missing.jsonl"):
        with pytest.raises(JournalUnavailable, match=str(path)):
            read_export(path)
