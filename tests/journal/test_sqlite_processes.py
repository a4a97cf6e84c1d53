"""Several processes on one journal in SQLite: racing, dying, forked."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from gymckpt.errors import JournalUnavailable
from gymckpt.journal import open_journal
from gymckpt.journal.sql import SqlJournal
from tests.journal.conftest import SqliteHome
from tests.journal.processes import in_fork, require_fork, together, working
from tests.journal.samples import OPERATION, RUN, begun, entries, entry

# --- several processes --------------------------------------------------------------------------


def test_two_processes_lose_and_double_nothing(sqlite_home: SqliteHome) -> None:
    """Two processes on one journal keep their own operations whole and share one without loss."""
    count = 40
    journal = sqlite_home.open()
    begun(journal)
    with together(("own", sqlite_home.path, "a", count), ("own", sqlite_home.path, "b", count)):
        pass
    for name in ("a", "b"):
        assert journal.read(RUN, name) == tuple(entries(1, 2 * count + 1, operation_id=name))
    marks = [one.facts["mark"] for one in journal.read(RUN, OPERATION, after_seq=1)]
    assert sorted(marks) == sorted(f"{name}-{n + 1}" for name in ("a", "b") for n in range(count))


def test_processes_that_race_to_make_a_journal_share_it(tmp_path: Path) -> None:
    """Whoever makes the file first, everyone's operations are in it and no rubbish is left."""
    path = tmp_path / "journal.sqlite3"
    with together(*(("create", path, f"op-{n}") for n in range(3))):
        pass
    with open_journal(path) as journal:
        assert {row.operation_id: row.last_seq for row in journal.operations()} == {
            f"op-{n}": 2 for n in range(3)
        }
    assert os.listdir(tmp_path) == ["journal.sqlite3"]


def test_a_killed_process_leaves_a_gapless_beginning(sqlite_home: SqliteHome) -> None:
    """After kill -9 every acknowledged batch is there, and at most one more, each of them whole."""
    for kill_after in (1, 25):
        with working("append_for_ever", sqlite_home.path) as worker:
            for _ in range(kill_after):
                acknowledged = int(worker.hear())
            os.kill(worker.process.pid, signal.SIGKILL)
            for line in iter(worker.hear, ""):
                acknowledged = int(line)
        with open_journal(sqlite_home.path) as journal:
            found = journal.read(RUN, OPERATION)
        assert found == tuple(entries(1, len(found)))
        assert len(found) in {acknowledged, acknowledged + 3}
        sqlite_home.path.unlink()


# --- forks --------------------------------------------------------------------------------------


def test_a_forked_child_uses_the_journal_as_its_own(sqlite_home: SqliteHome) -> None:
    """
    A child may go on with the inherited journal or open it again, and what it appends stays.

    The parent closes its side in between, which would remove files from under a child that
    relied on inherited locks.
    """
    require_fork()
    journal = sqlite_home.open()
    begun(journal)
    go, gone = os.pipe(), os.pipe()

    def child() -> str:
        journal.append([entry(2)], expected_seq=1, epoch=1)
        with open_journal(sqlite_home.path) as again:
            os.write(gone[1], b"x")
            os.read(go[0], 1)
            again.append([entry(3)], expected_seq=2, epoch=1)
        journal.append([entry(4)], expected_seq=3, epoch=1)
        journal.close()
        return "done"

    answers: list[str] = []
    forking = threading.Thread(target=lambda: answers.append(in_fork(child)))
    forking.start()
    os.read(gone[0], 1)
    assert len(journal.read(RUN, OPERATION)) == 2
    journal.close()
    os.write(go[1], b"x")
    forking.join(30)
    assert answers == ["done"]
    assert sqlite_home.open().read(RUN, OPERATION) == tuple(entries(1, 4))


def test_a_fork_waits_for_a_write_and_lets_writers_go_on(sqlite_home: SqliteHome) -> None:
    """Forking between the appends of a busy thread breaks neither the parent nor the children."""
    require_fork()
    journal = sqlite_home.open()
    begun(journal)
    stop = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        seq = 1
        try:
            while not stop.is_set():
                journal.append([entry(seq + 1)], expected_seq=seq, epoch=1)
                seq += 1
        except BaseException as error:
            failures.append(error)

    def child(number: int) -> str:
        name = f"child-{number}"
        begun(journal, 2, operation_id=name)
        return str(len(journal.read(RUN, name)))

    writer = threading.Thread(target=write)
    writer.start()
    answers = [in_fork(lambda number=number: child(number)) for number in range(5)]  # type: ignore[misc]
    stop.set()
    writer.join(30)
    assert (answers, failures) == (["2"] * 5, [])
    rows = {row.operation_id: row.last_seq for row in journal.operations()}
    assert rows.pop(OPERATION) == len(journal.read(RUN, OPERATION))
    assert rows == {f"child-{number}": 2 for number in range(5)}


def test_a_child_that_was_forked_amid_a_write_is_refused(tmp_path: Path) -> None:
    """Where the parent cannot let go in time, the child is told so, however it opens the file."""
    require_fork()
    path = tmp_path / "journal.sqlite3"
    with open_journal(path, busy_timeout_s=0.1) as journal:
        begun(journal)
        assert isinstance(journal, SqlJournal)

        def child() -> str:
            refused = 0
            for attempt in (
                lambda: journal.append([entry(2)], expected_seq=1, epoch=1),
                lambda: journal.read(RUN, OPERATION),
                lambda: open_journal(path),
            ):
                try:
                    attempt()
                except JournalUnavailable as error:
                    refused += "was forked while its parent used the journal" in str(error)
            return str(refused)

        inside, leave = threading.Event(), threading.Event()

        def hold() -> None:
            with journal._store.writing():  # type: ignore[attr-defined]
                inside.set()
                leave.wait(30)

        holder = threading.Thread(target=hold)
        holder.start()
        inside.wait(30)
        assert in_fork(child) == "3"
        leave.set()
        holder.join(30)
        journal.append([entry(2)], expected_seq=1, epoch=1)
