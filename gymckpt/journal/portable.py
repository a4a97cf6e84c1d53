"""
One operation as a file: JSON Lines that say how many they are and prove that none was changed.

The first line is the header, then comes one line per entry, and last the footer with the count
and the SHA-256 of every byte before it. Each line ends in a line break, and no proper beginning
of a line is JSON. So a file that was cut off anywhere is told from one that was changed: the
first is read as far as it goes, the second is refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import attrs
import orjson

from gymckpt.core.entry import Entry
from gymckpt.episodes import require_operation_id
from gymckpt.errors import JournalCorrupt, JournalError, JournalUnavailable, text_of
from gymckpt.files import flush_directory, write_beside
from gymckpt.journal.base import Journal, Opening, OperationRow
from gymckpt.journal.entry import decode_object, encode_object, require_count, require_name
from gymckpt.journal.records import IMPORTED, checked_field
from gymckpt.journal.rules import break_after, operation_from, unknown_operation
from gymckpt.journal.sound import require_sound
from gymckpt.strict_json import parse_json

__all__ = [
    "FORMAT",
    "FORMAT_VERSION",
    "Export",
    "ExportHeader",
    "export_operation",
    "import_operation",
    "read_export",
    "row_of",
    "write_export",
]

FORMAT = "gymckpt-operation"
"""What the first line of every export says that it is."""

FORMAT_VERSION = 1
"""The version of header and footer; entries carry their own."""


@attrs.frozen(kw_only=True)
class ExportHeader:
    """
    What the first line says about the operation, as its journal had it.

    Raises:
        TypeError: An id is no string, or `settled` no bool.
        ValueError: A field breaks its rule.
    """

    gymckpt: str = checked_field(require_name)
    """The release that wrote the export."""
    run: str = checked_field(require_operation_id)
    operation_id: str = checked_field(require_operation_id)
    chart: str = checked_field(require_name)
    chart_version: int = checked_field(require_count)
    epoch: int = checked_field(require_count)
    """Which epoch drove the operation when it was exported."""
    owner: str = checked_field(require_name)
    settled: bool = attrs.field(validator=attrs.validators.instance_of(bool))
    """Whether the operation had reached a final state."""
    last_seq: int = checked_field(require_count)
    """How many entries the export has."""


_HEADER_TAGS = {
    "gymckpt": "gymckpt",
    "run": "run",
    "op": "operation_id",
    "chart": "chart",
    "chart_version": "chart_version",
    "ep": "epoch",
    "owner": "owner",
    "settled": "settled",
    "last_seq": "last_seq",
}
"""Stored name to attribute; `format` and `version` stand before them."""


@attrs.frozen(kw_only=True)
class Export:
    """What a file holds of an operation."""

    header: ExportHeader
    entries: tuple[Entry, ...]
    """All entries, or the longest beginning of them that the file has."""
    complete: bool
    """Whether everything that was exported is here and unchanged."""
    problem: str
    """What is missing, in words; empty where the file is complete."""

    @property
    def settled(self) -> bool:
        """Whether the entries that are here bring the operation to a final state."""
        return self.header.settled and len(self.entries) == self.header.last_seq


# --- writing ------------------------------------------------------------------------------------


def export_operation(journal: Journal, run: str, operation_id: str) -> Iterator[bytes]:
    """
    Return an operation as lines, as it is at this moment; it may go on meanwhile.

    Args:
        journal: Where it is.
        run: Its run.
        operation_id: Its id.

    Raises:
        JournalError: There is no such operation, or the journal cannot be read.
    """
    operation = journal.operation(run, operation_id)
    if operation is None:
        raise unknown_operation(run, operation_id)
    entries = journal.read(run, operation_id)[: operation.last_seq]
    return _lines(operation, entries)


def _lines(operation: OperationRow, entries: Sequence[Entry]) -> Iterator[bytes]:
    from importlib.metadata import version  # noqa: PLC0415 - slow to import, and for this alone

    fields = attrs.asdict(operation) | {
        "gymckpt": version("gymckpt"),
        "owner": operation.owner.removeprefix(IMPORTED),
    }
    header = {"format": FORMAT, "version": FORMAT_VERSION}
    header |= {tag: fields[attribute] for tag, attribute in _HEADER_TAGS.items()}
    digest = hashlib.sha256()
    line = orjson.dumps(header) + b"\n"
    digest.update(line)
    yield line
    for entry in entries:
        line = encode_object(entry) + b"\n"
        digest.update(line)
        yield line
    footer = {"end": FORMAT, "count": len(entries), "sha256": digest.hexdigest()}
    yield orjson.dumps(footer) + b"\n"


def write_export(
    journal: Journal, run: str, operation_id: str, path: str | os.PathLike[str]
) -> None:
    """
    Write an operation to a file, which appears whole or not at all.

    Args:
        journal: Where it is.
        run: Its run.
        operation_id: Its id.
        path: The file; one that is there is replaced.

    Raises:
        JournalError: There is no such operation, or the journal cannot be read.
        JournalUnavailable: The file cannot be written; one that was there is as it was.
    """
    target = Path(path)
    lines = export_operation(journal, run, operation_id)
    try:
        temporary = write_beside(target, b"".join(lines), prefix=".gymckpt-")
        try:
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        flush_directory(target.parent)
    except OSError as error:
        raise JournalUnavailable(
            f"cannot write the export {target}: {error.strerror or text_of(error)}"
        ) from error


# --- reading ------------------------------------------------------------------------------------


def read_export(source: str | os.PathLike[str] | bytes | Iterable[bytes]) -> Export:
    """
    Read an export, as far as it goes.

    Args:
        source: The path of a file, or its bytes, at once or in pieces.

    Raises:
        JournalCorrupt: The header is broken or cut off, a line is no legal line of an export, or
            something was changed.
        JournalUnavailable: The file cannot be read.
        JournalError: A newer release wrote it.
    """
    data = _bytes_of(source)
    *whole, tail = data.split(b"\n")
    _require_unchanged(data, whole[-1] if whole and not tail else b"")
    header = _header(whole[0] if whole else tail)
    if not whole:
        return _cut(header, (), "; the line break after line 1 is missing")
    entries: list[Entry] = []
    for number, line in enumerate(whole[1:], 2):
        fields = _object(line, number)
        if "end" in fields:
            if number < len(whole) or tail:
                raise JournalCorrupt(f"export, line {number}: something follows the footer")
            _check_footer(fields, header, len(entries))
            return Export(header=header, entries=tuple(entries), complete=True, problem="")
        _take(entries, line, number, header)
    return _cut(header, entries, _take_tail(entries, tail, len(whole) + 1, header))


def _bytes_of(source: str | os.PathLike[str] | bytes | Iterable[bytes]) -> bytes:
    if isinstance(source, bytes):
        return source
    if not isinstance(source, str | os.PathLike):
        return b"".join(source)
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise JournalUnavailable(
            f"cannot read the export {text_of(source)}: {error.strerror or text_of(error)}"
        ) from error


def _require_unchanged(data: bytes, last: bytes) -> None:
    """
    Raise if the file ends in a footer whose digest is not that of what stands before it.

    This comes first and asks nothing else of the file: one changed byte can make an entry look
    like one of a newer release.
    """
    try:
        footer = orjson.loads(last)
    except orjson.JSONDecodeError:
        return
    if not isinstance(footer, dict) or "end" not in footer:
        return
    said = cast("dict[str, Any]", footer).get("sha256")
    if said is not None and said != hashlib.sha256(data[: -len(last) - 1]).hexdigest():
        raise JournalCorrupt("export: it was changed, its digest does not fit; take another copy")


def _object(line: bytes, number: int) -> dict[str, Any]:
    try:
        found = orjson.loads(line)
        parse_json(line)  # which refuses a key that occurs twice, of which orjson takes the last
    except ValueError as error:
        raise JournalCorrupt(f"export, line {number}: it is cut off or no JSON: {error}") from error
    if not isinstance(found, dict):
        raise JournalCorrupt(f"export, line {number}: it is no object")
    return cast("dict[str, Any]", found)


def _header(line: bytes) -> ExportHeader:
    """Return what the first line says, or raise: nothing can be read without it."""
    fields = _object(line, 1)
    if fields.get("format") != FORMAT:
        raise JournalCorrupt(f"export, line 1: it is no header of format {FORMAT!r}")
    version = fields.get("version")
    if type(version) is int and version > FORMAT_VERSION:
        raise JournalError(
            f"the export has format version {version}, this gymckpt reads up to {FORMAT_VERSION}: "
            "a newer release wrote it, read it with that one"
        )
    known = {"format", "version", *_HEADER_TAGS}
    if version != FORMAT_VERSION or fields.keys() != known:
        odd = sorted(fields.keys() ^ known) or ["version"]
        raise JournalCorrupt(f"export, line 1: field {odd[0]!r:.80} is wrong, missing or unknown")
    try:
        return ExportHeader(**{attribute: fields[tag] for tag, attribute in _HEADER_TAGS.items()})
    except (TypeError, ValueError) as error:
        raise JournalCorrupt(f"export, line 1: {text_of(error)[:300]}") from error


def _take(entries: list[Entry], line: bytes, number: int, header: ExportHeader) -> None:
    """Add the entry of a line, or raise: a line that is whole must be legal."""
    try:
        entry = decode_object(line)
    except JournalCorrupt as error:
        raise JournalCorrupt(f"export, line {number}: {error}") from error
    broken = break_after(entries[-1] if entries else None, entry)
    if not broken and (entry.run, entry.operation_id) != (header.run, header.operation_id):
        broken = f"entry {entry.seq} is of another operation than the header"
    if not broken and (entry.epoch > header.epoch or entry.seq > header.last_seq):
        broken = f"entry {entry.seq} of epoch {entry.epoch} is beyond what the header says"
    if broken:
        raise JournalCorrupt(f"export, line {number}: {broken}")
    entries.append(entry)


def _take_tail(entries: list[Entry], tail: bytes, number: int, header: ExportHeader) -> str:
    """Take what stands after the last line break, if it is whole, and say what it is."""
    if not tail:
        return ""
    try:
        orjson.loads(tail)
    except orjson.JSONDecodeError:
        return f"; line {number} is cut off"
    if "end" not in _object(tail, number):
        _take(entries, tail, number, header)
    return f"; the line break after line {number} is missing"


def _check_footer(fields: dict[str, Any], header: ExportHeader, count: int) -> None:
    """Raise unless the footer agrees with everything before it; its digest was checked before."""
    right = {"end": FORMAT, "count": count, "sha256": fields.get("sha256")}
    if fields != right or not fields["sha256"] or count != header.last_seq:
        raise JournalCorrupt(
            f"export of operation {header.operation_id!r}: it was changed, {count} of "
            f"{header.last_seq} entries are here and the footer does not fit; take another copy"
        )


def _cut(header: ExportHeader, entries: Sequence[Entry], detail: str) -> Export:
    """Return what a file holds that does not end in a footer."""
    here, total = len(entries), header.last_seq
    missing = f"what follows entry {here}" if here < total else "a whole footer"
    problem = (
        f"the export of operation {header.operation_id!r} is cut off: it has {here} of {total} "
        f"entries and lacks {missing}{detail}"
    )
    return Export(header=header, entries=tuple(entries), complete=False, problem=problem)


def import_operation(
    journal: Journal, export: Export, *, allow_incomplete: bool = False
) -> OperationRow:
    """
    Record an exported operation in another journal, in one transaction, for reading.

    It is marked as imported: no recovery, claim or intervention ever drives it, in whatever state.
    Nothing is taken that this release could not have written.

    Args:
        journal: Where it is to be recorded.
        export: What was read.
        allow_incomplete: Take what is there of an export that was cut off.

    Returns:
        The operation as it was recorded.

    Raises:
        ValueError: The export is incomplete and that was not allowed, or has no entry.
        JournalCorrupt: Its history does not follow its chart, or a fact in it is not a legal one.
        OperationIdUsed: The journal has an operation of this id.
        JournalError: The journal cannot be written.
    """
    if not export.complete and not allow_incomplete:
        raise ValueError(f"{export.problem}; allow an incomplete import to take what is there")
    row = row_of(export)
    require_sound(row, export.entries)
    owner = f"{IMPORTED}{export.header.owner.removeprefix(IMPORTED)}"
    operation = attrs.evolve(row, owner=owner)
    journal.insert_operation(operation, export.entries)
    return operation


def row_of(export: Export) -> OperationRow:
    """
    Return the row of an exported operation as its own journal had it.

    Args:
        export: What was read.

    Raises:
        ValueError: It has no entry.
    """
    header = export.header
    return operation_from(
        Opening(
            run=header.run,
            operation_id=header.operation_id,
            chart=header.chart,
            chart_version=header.chart_version,
        ),
        export.entries,
        epoch=header.epoch,
        owner=header.owner,
        settled=export.settled,
    )
