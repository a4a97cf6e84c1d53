"""What may be found where a journal is to be: nothing, a journal, an older one, rubbish."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gymckpt.errors import JournalCorrupt, JournalError, JournalUnavailable
from gymckpt.journal import Journal, open_journal
from gymckpt.journal import place as places
from gymckpt.journal.entry import TAGS
from gymckpt.journal.sql import SqlJournal
from tests.journal.conftest import SqliteHome
from tests.journal.files import digest, edit, filled
from tests.journal.samples import OPERATION, RUN, begun


@pytest.fixture
def closed(sqlite_home: SqliteHome) -> Path:
    """Give the file of a closed journal with one operation of six entries."""
    return filled(sqlite_home)


# --- making one ---------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_a_new_journal_is_private(tmp_path: Path, umask: int) -> None:
    """The files of a journal can be read by its user only, whatever the umask."""
    path = tmp_path / "journal.sqlite3"
    before = os.umask(umask)
    try:
        with open_journal(path) as journal:
            begun(journal)
            modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in
                     os.listdir(tmp_path)}  # fmt: skip
    finally:
        os.umask(before)
    assert modes == {f"journal.sqlite3{suffix}": 0o600 for suffix in ("", "-wal", "-shm")}


def test_the_name_of_a_new_journal_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: no power cut takes the file away once an entry in it counts."""
    flushed: list[tuple[int, bool]] = []
    path = tmp_path / "journal.sqlite3"

    def fsync(descriptor: int, real: Callable[[int], None] = os.fsync) -> None:
        flushed.append((os.fstat(descriptor).st_ino, path.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    open_journal(path).close()
    assert (tmp_path.stat().st_ino, True) in flushed


def test_missing_parents_are_made(tmp_path: Path) -> None:
    """A journal can be named in a directory that is not there yet, which is private too."""
    path = tmp_path / "a" / "b" / "journal.sqlite3"
    open_journal(path).close()
    assert path.is_file()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_odd_names_are_taken_as_they_are(tmp_path: Path) -> None:
    """Characters that mean something in URLs or to SQLite mean nothing in a path."""
    for name in ("a b", "a?mode=ro", "a#b", "a%20b", "ä", "x" * 240, "'"):
        with open_journal(tmp_path / name) as journal:
            begun(journal)
        assert (tmp_path / name).is_file()
        with open_journal(journal.url) as again:
            assert len(again.operations()) == 1
    assert len(os.listdir(tmp_path)) == 7


def test_a_connection_is_as_durable_as_promised(sqlite_home: SqliteHome) -> None:
    """Every connection of the pool runs in WAL mode, fully synchronous, with foreign keys."""
    journal = sqlite_home.open()
    assert isinstance(journal, SqlJournal)
    with journal._store.writing() as first, journal._store.reading() as second:
        for connection in (first, second):
            found = [
                connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
                for name in ("journal_mode", "synchronous", "foreign_keys")
            ]
            assert found == ["wal", 2, 1]


def test_a_file_system_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file cannot be given its name without replacing another, none is made."""

    def link(*_arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(JournalUnavailable, match="hard links"):
        open_journal(tmp_path / "journal.sqlite3")
    assert os.listdir(tmp_path) == []


def test_the_tables_of_version_4_are_these(closed: Path) -> None:
    """The migrations make exactly what release 0.1 made; a change needs a new one."""
    connection = sqlite3.connect(closed)
    found = {
        name: " ".join(sql.split())
        for name, sql in connection.execute("SELECT name, sql FROM sqlite_master WHERE sql <> ''")
    }
    connection.close()
    assert found == {
        "operations_by_opening": (
            "CREATE INDEX operations_by_opening "
            "ON operations (opened_ts, run, op, updated_ts, state)"
        ),
        "operations_by_run": "CREATE INDEX operations_by_run ON operations (run, opened_ts, op)",
        "operations_by_id": "CREATE INDEX operations_by_id ON operations (op)",
        "operations_by_settled": "CREATE INDEX operations_by_settled ON operations (settled)",
        "heartbeats": (
            "CREATE TABLE heartbeats ( run TEXT NOT NULL, beats BIGINT NOT NULL, "
            "beat_ts DOUBLE NOT NULL, PRIMARY KEY (run) )"
        ),
        "runs": (
            "CREATE TABLE runs ( run TEXT NOT NULL, ep BIGINT NOT NULL, holder TEXT NOT NULL, "
            "since_ts DOUBLE NOT NULL, PRIMARY KEY (run) )"
        ),
        "meta": "CREATE TABLE meta ( schema_version INTEGER NOT NULL )",
        "removed": (
            "CREATE TABLE removed ( run TEXT NOT NULL, op TEXT NOT NULL, PRIMARY KEY (run, op) )"
        ),
        "operations": (
            "CREATE TABLE operations ( run TEXT NOT NULL, op TEXT NOT NULL, chart TEXT NOT NULL, "
            "chart_version BIGINT NOT NULL, state TEXT NOT NULL, settled BOOLEAN NOT NULL, "
            "ep BIGINT NOT NULL, owner TEXT NOT NULL, last_seq BIGINT NOT NULL, "
            "opened_ts DOUBLE NOT NULL, updated_ts DOUBLE NOT NULL, PRIMARY KEY (run, op) )"
        ),
        "entries": (
            "CREATE TABLE entries ( v INTEGER NOT NULL, run TEXT NOT NULL, op TEXT NOT NULL, "
            "seq BIGINT NOT NULL, ep BIGINT NOT NULL, ts DOUBLE NOT NULL, at DOUBLE NOT NULL, "
            "inst TEXT, call TEXT, ask BIGINT, trig TEXT NOT NULL, src TEXT NOT NULL, "
            "dst TEXT NOT NULL, facts TEXT NOT NULL, PRIMARY KEY (run, op, seq), "
            "FOREIGN KEY(run, op) REFERENCES operations (run, op) )"
        ),
    }


# --- finding something else ---------------------------------------------------------------------


def test_a_directory_is_no_journal(tmp_path: Path) -> None:
    """A directory is refused with the file that could be meant."""
    with pytest.raises(JournalUnavailable, match=r"a directory.*journal\.sqlite3"):
        open_journal(tmp_path)


def test_a_pipe_is_no_journal(tmp_path: Path) -> None:
    """A named pipe is refused without waiting for anyone to write into it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(JournalUnavailable, match="no regular file"):
        open_journal(tmp_path / "pipe")


def test_a_path_below_a_file_is_refused(closed: Path) -> None:
    """A journal below something that is no directory is refused, and that thing is left alone."""
    before = digest(closed)
    with pytest.raises(JournalUnavailable, match=r"Not a directory|File exists"):
        open_journal(closed / "journal.sqlite3")
    assert digest(closed) == before


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "is empty"),
        (b"x", "whole number of pages"),
        (b"not a database!\n" * 512, "no SQLite file"),
        (b"SQLite format 3\0", "whole number of pages"),
        (b"SQLite format 3\0" + bytes(5000), "journal"),
        (bytes(8192), "no SQLite file"),
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_of_something_else_is_left_as_it_is(
    tmp_path: Path, content: bytes, named: str, read_only: bool
) -> None:
    """What is no SQLite file is refused, and not a byte of it is changed."""
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(JournalCorrupt, match=rf"notes\.txt: .*{named}"):
        open_journal(path, read_only=read_only)
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_of_something_else_is_left_as_it_is(
    tmp_path: Path, mode: str, read_only: bool
) -> None:
    """An SQLite file without the journal's mark is refused, and not a byte of it is changed."""
    path = tmp_path / "other.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode = {mode}")
    connection.execute("CREATE TABLE meta (schema_version INTEGER)")
    connection.execute("INSERT INTO meta VALUES (1)")
    connection.commit()
    connection.close()
    before = digest(path)
    with pytest.raises(JournalCorrupt, match="mark of a journal"):
        open_journal(path, read_only=read_only)
    assert digest(path) == before


def _all_of(journal: Journal) -> object:
    rows = journal.operations()
    keys = [(row.run, row.operation_id) for row in rows]
    return rows, journal.runs(), [journal.read(*key) for key in keys]


def test_a_truncated_journal_is_never_read_as_a_shorter_one(closed: Path, tmp_path: Path) -> None:
    """Cut off anywhere, a journal is refused as a JournalError, and is left as it is."""
    whole = closed.read_bytes()
    step = len(whole) // 61
    for length in sorted({*range(0, len(whole), step), 1, 99, 100, 4095, 4096, len(whole) - 1}):
        path = tmp_path / f"cut-{length}"
        path.write_bytes(whole[:length])
        with pytest.raises(JournalError), open_journal(path) as journal:
            _all_of(journal)
        assert path.read_bytes() == whole[:length]
        path.unlink()


def test_a_damaged_journal_gives_legal_entries_or_a_journal_error(
    closed: Path, tmp_path: Path
) -> None:
    """A changed byte anywhere ends in entries that are legal and gapless, or in a JournalError."""
    whole = bytearray(closed.read_bytes())
    path, refused, step = tmp_path / "damaged", 0, len(whole) // 101
    for offset in [*range(0, 100, 2), *range(100, len(whole), step)]:
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0xFF]) + whole[offset + 1 :])
        try:
            with open_journal(path) as journal:
                _all_of(journal)
        except JournalError:
            refused += 1
        for suffix in places.SUFFIXES:
            Path(f"{path}{suffix}").unlink(missing_ok=True)
    assert refused > 10


_DAMAGE = {
    "v": "NULLIF(0, 0)", "run": "'a b'", "op": "'a b'", "seq": "'x'", "ep": "0", "ts": "'x'",
    "at": "9e999", "inst": "'nowhere'", "call": "''", "ask": "-1", "trig": "x'00'",
    "src": "x'00'", "dst": "''", "facts": "'{'",
}  # fmt: skip


@pytest.mark.parametrize("tag", TAGS[3:])
def test_a_damaged_column_is_named(closed: Path, tag: str) -> None:
    """A stored value that no release wrote is reported by operation, entry and field."""
    edit(closed, f"UPDATE entries SET {tag} = {_DAMAGE[tag]} WHERE seq = 3")
    with open_journal(closed) as journal, pytest.raises(JournalCorrupt) as caught:
        journal.read(RUN, OPERATION)
    assert f"field '{tag}'" in str(caught.value)
    assert "operation 'op-1'" in str(caught.value)
    with open_journal(closed) as journal, pytest.raises(JournalCorrupt):
        _read_in_pages(journal)


def _read_in_pages(journal: Journal) -> None:
    for after_seq in (0, 2, 4, 6):
        journal.read(RUN, OPERATION, after_seq=after_seq, at_most=2)


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("DELETE FROM entries WHERE seq = 3", "5 entries are stored after entry 0, not 6"),
        ("DELETE FROM entries WHERE seq = 6", "5 entries"),
        ("DELETE FROM entries", "0 entries"),
        ("UPDATE entries SET seq = 9 WHERE seq = 3", "entry 4 follows entry 2"),
        ("UPDATE entries SET seq = 0 WHERE seq = 1", "5 entries"),
        ("UPDATE entries SET ep = 2 WHERE seq = 3", "epoch 1, the one before it 2"),
        ("UPDATE entries SET ep = 2 WHERE seq >= 3", "epoch 2 > 1"),
        ("UPDATE entries SET inst = 'a/replica-0' WHERE seq = 1", "does not open it"),
        ("UPDATE entries SET trig = CAST(x'ff' AS TEXT) WHERE seq = 3", "value is damaged"),
        ("UPDATE operations SET last_seq = 5", "6 entries"),
        ("UPDATE operations SET last_seq = 'x'", "field last_seq"),
        ("UPDATE operations SET state = ''", "field state"),
        ("UPDATE operations SET ep = 0", "field epoch"),
        ("UPDATE operations SET updated_ts = 1.5", "last entry"),
        ("UPDATE entries SET v = 0 WHERE seq = 3", "no release wrote schema version 0"),
    ],
)
def test_a_damaged_history_is_refused(closed: Path, statement: str, named: str) -> None:
    """Entries that are missing, too many or out of order are never returned, nor all the pages."""
    edit(closed, "PRAGMA foreign_keys = OFF", statement)
    with open_journal(closed) as journal, pytest.raises(JournalCorrupt, match=named):
        journal.read(RUN, OPERATION)
    with open_journal(closed) as journal, pytest.raises(JournalCorrupt):
        _read_in_pages(journal)


def test_entries_without_their_operation_are_refused(closed: Path) -> None:
    """Rows that were left behind by someone stop a new operation of that id."""
    edit(closed, "PRAGMA foreign_keys = OFF", "DELETE FROM operations")
    with open_journal(closed) as journal:
        with pytest.raises(JournalCorrupt, match="contradict"):
            begun(journal)
        assert journal.operations() == ()
