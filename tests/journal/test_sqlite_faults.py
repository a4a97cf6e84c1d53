"""SQLite under real faults: locks, full disks, lost files."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gymckpt.errors import JournalError, JournalUnavailable
from gymckpt.journal import Journal, open_journal
from gymckpt.journal.sql import SqlJournal
from tests.journal.conftest import SqliteHome
from tests.journal.processes import locking, working
from tests.journal.samples import OPERATION, RUN, begun, entry, opening

BIG = {"text": "x" * 50_000}


def raw(journal: Journal, statement: str) -> None:
    """Run a statement on the connection that the journal uses next."""
    assert isinstance(journal, SqlJournal)
    with journal._store._engine.connect() as connection:  # type: ignore[attr-defined]
        connection.exec_driver_sql(statement)


# --- locks --------------------------------------------------------------------------------------


def test_a_lock_that_outlasts_the_timeout_is_unavailable(tmp_path: Path) -> None:
    """Every write of a locked journal is refused within the timeout and stores nothing."""
    path = tmp_path / "journal.sqlite3"
    with ExitStack() as stack:
        journal = stack.enter_context(open_journal(path, busy_timeout_s=0.2))
        begun(journal)
        locker = stack.enter_context(locking(path))
        writes: list[Callable[[], object]] = [
            lambda: journal.append([entry(2)], expected_seq=1, epoch=1),
            lambda: journal.claim(RUN, holder="x", force=True),
            lambda: begun(journal, operation_id="op-2"),
        ]
        for write in writes:
            begin_s = time.monotonic()
            with pytest.raises(JournalUnavailable, match="locked by another process"):
                write()
            assert 0.2 <= time.monotonic() - begin_s < 2
        assert journal.read(RUN, OPERATION) == (entry(1),)
        locker.tell()
        assert locker.hear() == "let go"
        journal.append([entry(2)], expected_seq=1, epoch=1)
        assert [row.last_seq for row in journal.operations()] == [2]


def test_a_lock_that_is_let_go_in_time_is_waited_for(sqlite_home: SqliteHome) -> None:
    """An append that meets a lock lands as soon as the lock is gone."""
    journal = sqlite_home.open()
    begun(journal)
    with locking(sqlite_home.path) as locker:
        append = threading.Thread(
            target=journal.append, args=([entry(2)],), kwargs={"expected_seq": 1, "epoch": 1}
        )
        append.start()
        append.join(0.05)
        assert append.is_alive()
        locker.tell()
        append.join(4)
        assert not append.is_alive()
    assert len(journal.read(RUN, OPERATION)) == 2


def test_other_threads_that_hold_the_journal_are_waited_for_no_longer(tmp_path: Path) -> None:
    """A writer that waits behind this process's own writers gives up after the timeout too."""
    path = tmp_path / "journal.sqlite3"
    with open_journal(path, busy_timeout_s=0.1) as journal:
        begun(journal)
        assert isinstance(journal, SqlJournal)
        with journal._store.writing():
            with pytest.raises(JournalUnavailable, match="other threads"):
                journal.append([entry(2)], expected_seq=1, epoch=1)
            assert len(journal.read(RUN, OPERATION)) == 1
        journal.append([entry(2)], expected_seq=1, epoch=1)


# --- full disks ---------------------------------------------------------------------------------


def append_until_refused(journal: Journal) -> tuple[int, JournalUnavailable]:
    """Append large entries after the first; return the last one that landed, and the refusal."""
    for seq in range(2, 100):
        try:
            journal.append([entry(seq, facts=BIG)], expected_seq=seq - 1, epoch=1)
        except JournalUnavailable as error:
            return seq - 1, error
    raise AssertionError("the disk never filled up")


def test_a_full_database_refuses_and_goes_on_when_there_is_room(sqlite_home: SqliteHome) -> None:
    """SQLITE_FULL is JournalUnavailable, stores nothing, and passes with its cause."""
    journal = sqlite_home.open()
    begun(journal)
    raw(journal, "PRAGMA max_page_count = 40")
    seq, error = append_until_refused(journal)
    assert "disk is full" in str(error)
    with pytest.raises(JournalUnavailable, match="disk is full"):
        begun(journal, 3, operation_id="op-2", facts=BIG)
    assert [row.last_seq for row in journal.operations()] == [seq]
    raw(journal, "PRAGMA max_page_count = 4000")
    journal.append([entry(seq + 1, facts=BIG)], expected_seq=seq, epoch=1)
    assert len(sqlite_home.open().read(RUN, OPERATION)) == seq + 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path, None, None]:
    """Give a real file system of one megabyte, where the tests may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_refuses_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    """ENOSPC from the disk itself is JournalUnavailable; what was acknowledged stays."""
    filler = small_disk / "filler"
    with open_journal(small_disk / "journal.sqlite3") as journal:
        begun(journal)
        filler.write_bytes(b"x" * 500_000)
        seq, error = append_until_refused(journal)
        assert "disk" in str(error)
        assert len(journal.read(RUN, OPERATION)) == seq
        filler.unlink()
        journal.append([entry(seq + 1, facts=BIG)], expected_seq=seq, epoch=1)
        assert len(journal.read(RUN, OPERATION)) == seq + 1


def test_a_full_disk_makes_no_journal(small_disk: Path) -> None:
    """A journal that cannot be made whole is not made at all, and leaves nothing behind."""
    with contextlib.suppress(OSError):
        (small_disk / "filler").write_bytes(b"x" * 2_000_000)
    with pytest.raises(JournalUnavailable):
        open_journal(small_disk / "journal.sqlite3")
    assert os.listdir(small_disk) == ["filler"]


def test_a_disk_that_refuses_a_write_loses_nothing(tmp_path: Path) -> None:
    """An operating system error in the middle of writing refuses the append and no other."""
    with working("limited", tmp_path / "journal.sqlite3", 200_000) as worker:
        refused, held, after = worker.hear(), worker.hear(), worker.hear()
    assert refused.startswith("JournalUnavailable after ")
    assert "whether the transaction was stored is unknown: repeat it" in refused
    seq = int(refused.split(":")[0].rsplit(" ", 1)[1])
    assert seq > 1
    assert (int(held), int(after)) == (seq, seq + 1)


# --- lost files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_a_deleted_file_stops_writing(sqlite_home: SqliteHome, suffix: str) -> None:
    """Nothing is written once one of the journal's files is gone, and none is made anew."""
    journal = sqlite_home.open()
    begun(journal)
    lost = Path(f"{sqlite_home.path}{suffix}")
    lost.unlink()
    writes: list[Callable[[], object]] = [
        lambda: journal.append([entry(2)], expected_seq=1, epoch=1),
        lambda: journal.claim(RUN, holder="x", force=True),
        lambda: begun(journal, operation_id="op-2"),
    ]
    for write in writes:
        with pytest.raises(JournalUnavailable, match=f"journal.sqlite3{suffix} was deleted"):
            write()
    assert journal.read(RUN, OPERATION) == (entry(1),)
    journal.close()
    assert not lost.exists()


def test_a_replaced_file_stops_writing(sqlite_home: SqliteHome, tmp_path: Path) -> None:
    """A journal that another was moved over is not written any more, nor is the other."""
    journal = sqlite_home.open()
    begun(journal)
    with open_journal(tmp_path / "other.sqlite3") as other:
        begun(other, 2)
    os.replace(tmp_path / "other.sqlite3", sqlite_home.path)
    with pytest.raises(JournalUnavailable, match="was replaced"):
        journal.append([entry(2)], expected_seq=1, epoch=1)
    journal.close()
    for left in ("-wal", "-shm"):
        Path(f"{sqlite_home.path}{left}").unlink(missing_ok=True)
    assert len(sqlite_home.open().read(RUN, OPERATION)) == 2


def test_a_file_that_is_lost_while_an_append_commits_is_noticed(sqlite_home: SqliteHome) -> None:
    """An append that went into a file which nobody can find is not reported as done."""
    journal = sqlite_home.open()
    begun(journal)
    assert isinstance(journal, SqlJournal)
    with pytest.raises(JournalUnavailable, match="was deleted"), journal._store.writing():
        sqlite_home.path.unlink()


def test_a_journal_that_lost_its_directory_says_so(tmp_path: Path) -> None:
    """Removing the whole directory is noticed by the next write, and not repaired."""
    place = tmp_path / "state"
    journal = open_journal(place / "journal.sqlite3")
    begun(journal)
    shutil.rmtree(place)
    with pytest.raises(JournalUnavailable, match="was deleted"):
        journal.append([entry(2)], expected_seq=1, epoch=1)
    journal.close()
    assert not place.exists()


# --- closing ------------------------------------------------------------------------------------


def test_closing_leaves_one_file(sqlite_home: SqliteHome) -> None:
    """After the last close everything is in the journal's own file."""
    with sqlite_home.open() as journal:
        begun(journal, 5)
    assert os.listdir(sqlite_home.path.parent) == ["journal.sqlite3"]
    connection = sqlite3.connect(f"file:{sqlite_home.path}?immutable=1", uri=True)
    assert connection.execute("SELECT count(*) FROM entries").fetchone() == (5,)
    connection.close()


def test_closing_waits_for_a_call_that_is_under_way(sqlite_home: SqliteHome) -> None:
    """A close from another thread lets a write end first, and refuses the next."""
    journal = sqlite_home.open()
    begun(journal)
    assert isinstance(journal, SqlJournal)
    closing = threading.Thread(target=journal.close)
    with journal._store.writing() as connection:
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        connection.exec_driver_sql("UPDATE operations SET owner = 'late'")
    closing.join(30)
    with pytest.raises(JournalUnavailable, match="closed"):
        journal.operations()
    assert [row.owner for row in sqlite_home.open().operations()] == ["late"]


def test_an_interrupted_write_stores_nothing(sqlite_home: SqliteHome) -> None:
    """A KeyboardInterrupt inside a transaction leaves as itself and rolls everything back."""
    journal = sqlite_home.open()
    begun(journal)
    assert isinstance(journal, SqlJournal)

    def interrupted() -> None:
        with journal._store.writing() as connection:
            connection.exec_driver_sql("UPDATE operations SET owner = 'lost'")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [row.owner for row in journal.operations()] == ["host-a:1"]


def test_every_refusal_of_sqlite_is_a_journal_error(sqlite_home: SqliteHome) -> None:
    """A statement that SQLite refuses for no known reason is still a JournalError."""
    journal = sqlite_home.open()
    begun(journal)
    assert isinstance(journal, SqlJournal)
    statements: dict[str, Any] = {
        "no such table": "SELECT * FROM missing",
        "contradict": "INSERT INTO entries SELECT * FROM entries",
    }
    for text, statement in statements.items():
        with pytest.raises(JournalError, match=text), journal._store.writing() as connection:
            connection.exec_driver_sql(statement)
    assert opening().operation_id == journal.operations()[0].operation_id
