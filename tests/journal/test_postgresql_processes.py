"""Several processes on one journal in PostgreSQL: racing, restarted under, stopped, forked."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from itertools import pairwise

import pytest
from sqlalchemy import Connection

from gymckpt.errors import JournalUnavailable, OperationIdUsed
from gymckpt.journal import Journal, open_journal, postgresql
from gymckpt.journal.postgresql import PostgresqlStore
from gymckpt.journal.schema import MIGRATIONS
from tests.journal.conftest import PostgresqlHome
from tests.journal.processes import in_fork, require_fork, together, working
from tests.journal.samples import (
    FOUGHT_FOR,
    OPERATION,
    RUN,
    begun,
    entries,
    entry,
    held_by,
    opening,
)
from tests.journal.servers import before_each_insert, running, store_of, waiting
from tests.racing import WAIT_S, in_threads, wait_until


def is_whole(journal: Journal, names: str, count: int) -> None:
    """Check what workers `own` leave behind: their own entries, and each mark once."""
    for name in names:
        found = journal.read(RUN, name)
        assert found == tuple(entries(1, 2 * count + 1, operation_id=name))
    marks = Counter(one.facts.get("mark") for one in journal.read(RUN, OPERATION)[1:])
    expected = {f"{name}-{number}" for name in names for number in range(1, count + 1)}
    assert marks == Counter(dict.fromkeys(expected, 1))


# --- racing -------------------------------------------------------------------------------------


def test_processes_make_one_journal_together(pg_home: PostgresqlHome) -> None:
    """Four processes that open a journal in an empty schema at once make it once, and share it."""
    with together(*[("create", pg_home.url, name) for name in "abcd"]):
        pass
    assert pg_home.execute("SELECT * FROM meta") == [(len(MIGRATIONS),)]
    assert [row.operation_id for row in pg_home.open().operations()] == list("abcd")


def test_threads_make_one_journal_together(pg_home: PostgresqlHome) -> None:
    """Threads that open a journal in an empty schema at once all succeed."""
    assert in_threads(*[lambda: open_journal(pg_home.url).close()] * 6) == [None] * 6
    assert pg_home.execute("SELECT * FROM meta") == [(len(MIGRATIONS),)]


def test_a_schema_is_raised_by_one_controller_while_others_wait(
    pg_home: PostgresqlHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two controllers of a newer release that come at once run its new step once."""
    pg_home.open().close()
    monkeypatch.setattr(postgresql, "IDLE_S_MAX", WAIT_S)
    inside, leave = threading.Event(), threading.Event()

    def step(connection: Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE operations ADD COLUMN note TEXT")
        inside.set()
        leave.wait(WAIT_S)

    def raised() -> None:
        PostgresqlStore(pg_home.url, migrations=(*MIGRATIONS, step)).close()

    with running(raised) as first, running(raised) as second:
        inside.wait(WAIT_S)
        wait_until(lambda: waiting(pg_home))
        leave.set()
    assert (first, second) == ([None], [None])
    assert pg_home.execute("SELECT * FROM meta") == [(len(MIGRATIONS) + 1,)]


def test_an_operation_is_opened_by_one_of_two_that_come_at_once(
    pg_home: PostgresqlHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two controllers that open one id at the same moment, the later is told it is used."""
    monkeypatch.setattr(postgresql, "IDLE_S_MAX", WAIT_S)
    first, second = (pg_home.open() for _ in range(2))
    inside = threading.Event()

    def wait_for_the_other(_connection: Connection) -> None:
        inside.set()
        wait_until(lambda: waiting(pg_home))

    before_each_insert(first, wait_for_the_other)
    with running(lambda: begun(first, 2)) as winner:
        inside.wait(WAIT_S)
        with pytest.raises(OperationIdUsed):
            second.open_operation(opening(), [entry(1)])
    assert winner == [entries(1, 2)]
    assert first.read(RUN, OPERATION) == tuple(entries(1, 2))


def test_processes_lose_and_double_nothing_while_others_fight(pg_home: PostgresqlHome) -> None:
    """Beside operations of a run that is left alone, processes take another run from each other."""
    count = 20
    journal = pg_home.open()
    begun(journal, run=FOUGHT_FOR)
    begun(journal, operation_id="alone")
    with together(*[("fight", pg_home.url, name, count) for name in "abc"]):
        for number in range(2, 2 * count):
            pair = entries(number, number, operation_id="alone")
            journal.append(pair, expected_seq=number - 1, epoch=1)
    found = journal.read(FOUGHT_FOR, OPERATION)[1:]
    owners = {one.epoch: one.facts["owner"] for one in found}
    assert [one.seq for one in found] == list(range(2, len(found) + 2))
    assert all(one.facts["owner"] == owners[one.epoch] for one in found)
    assert all(one.epoch <= after.epoch for one, after in pairwise(found))
    assert held_by(journal, FOUGHT_FOR).epoch == 1 + 3 * count
    assert 1 <= len(owners) <= 3 * count  # whose epoch was the last has written in any case
    assert max(Counter(one.epoch for one in found).values()) == 2


# --- restarted under ----------------------------------------------------------------------------


@pytest.mark.parametrize("modes", [["fast", "immediate"], ["immediate", "immediate", "fast"]])
def test_a_server_restarted_amid_appends_loses_and_doubles_nothing(
    pg_home: PostgresqlHome, modes: list[str]
) -> None:
    """Two processes and two threads go on over crashes and restarts as if there were none."""
    count = 60
    journal = pg_home.open()
    begun(journal)
    begun(journal, operation_id="thread")
    progress: Counter[str] = Counter()

    def append(name: str) -> None:
        with open_journal(pg_home.url, busy_timeout_s=WAIT_S) as mine:
            begun(mine, operation_id=name)
            for seq in range(2, 2 * count):
                mine.append([entry(seq, operation_id=name)], expected_seq=seq - 1, epoch=1)
                progress[name] += 1

    with (
        together(*[("own", pg_home.url, name, count) for name in "ab"]),
        running(lambda: append("c")) as first,
        running(lambda: append("d")) as second,
    ):
        for number, mode in enumerate(modes, 1):
            wait_until(lambda number=number: progress["c"] >= 12 * number)
            with pg_home.server.stopped(mode):
                pass
    assert (first, second) == ([None], [None])
    is_whole(journal, "ab", count)
    for name in "cd":
        assert journal.read(RUN, name) == tuple(entries(1, 2 * count - 1, operation_id=name))


# --- stopped and killed -------------------------------------------------------------------------


def test_a_controller_that_is_stopped_in_a_transaction_lets_others_take_over(
    pg_home: PostgresqlHome,
) -> None:
    """A row that a stopped process has locked is free in time; when it goes on it is fenced."""
    journal = pg_home.open()
    begun(journal)
    with working("stand_still", pg_home.url) as worker:
        assert worker.hear() == "inside"
        worker.process.send_signal(signal.SIGSTOP)
        began_s = time.monotonic()
        assert journal.claim(RUN, holder="host-b:2", force=True) == 2
        assert time.monotonic() - began_s < 5.0
        worker.process.send_signal(signal.SIGCONT)
        worker.tell()
        assert worker.hear() == "Fenced"
    assert journal.read(RUN, OPERATION) == (entry(1),)


def test_a_controller_that_is_killed_in_a_transaction_leaves_nothing_of_it(
    pg_home: PostgresqlHome,
) -> None:
    """What a killed process had not committed is not there, and its lock is gone at once."""
    journal = pg_home.open()
    begun(journal)
    with working("stand_still", pg_home.url) as worker:
        assert worker.hear() == "inside"
        worker.process.kill()
        journal.append([entry(2, trigger="other")], expected_seq=1, epoch=1)
    assert journal.read(RUN, OPERATION) == (entry(1), entry(2, trigger="other"))


def test_a_killed_process_leaves_a_gapless_beginning(pg_home: PostgresqlHome) -> None:
    """After kill -9 every acknowledged batch is there, and at most one more, each of them whole."""
    with working("append_for_ever", pg_home.url) as worker:
        for _ in range(20):
            acknowledged = int(worker.hear())
        worker.process.kill()
        for line in iter(worker.hear, ""):
            acknowledged = int(line)
    found = pg_home.open().read(RUN, OPERATION)
    assert found == tuple(entries(1, len(found)))
    assert len(found) in {acknowledged, acknowledged + 3}


# --- forked -------------------------------------------------------------------------------------


def test_a_forked_child_uses_the_journal_as_its_own(pg_home: PostgresqlHome) -> None:
    """Parent and child go on with one journal, neither on the other's connection."""
    require_fork()
    journal = pg_home.open()
    begun(journal)

    def pid() -> int:
        raw = store_of(journal).read(lambda connection: connection.connection.driver_connection)
        return int(raw.info.backend_pid)

    def child() -> str:
        journal.append([entry(2)], expected_seq=1, epoch=1)
        mine = pid()
        with open_journal(pg_home.url) as again:
            again.append([entry(3)], expected_seq=2, epoch=1)
        journal.close()
        return str(mine)

    before = pid()
    theirs = int(in_fork(child))
    journal.append([entry(4)], expected_seq=3, epoch=1)
    assert theirs not in (before, pid())
    assert journal.read(RUN, OPERATION) == tuple(entries(1, 4))


def test_forks_beside_a_busy_thread_break_nothing(pg_home: PostgresqlHome) -> None:
    """Forking between the appends of a busy thread breaks neither the parent nor the children."""
    require_fork()
    journal = pg_home.open()
    begun(journal)
    stop = threading.Event()

    def write() -> int:
        seq = 1
        while not stop.is_set():
            journal.append([entry(seq + 1)], expected_seq=seq, epoch=1)
            seq += 1
        return seq

    def child(number: int) -> str:
        begun(journal, 2, operation_id=f"child-{number}")
        return str(len(journal.read(RUN, f"child-{number}")))

    with running(write) as outcome:
        answers = [in_fork(lambda number=number: child(number)) for number in range(4)]  # type: ignore[misc]
        stop.set()
    assert answers == ["2"] * 4
    assert outcome == [len(journal.read(RUN, OPERATION))]


def test_a_child_that_was_forked_amid_a_transaction_is_refused(pg_home: PostgresqlHome) -> None:
    """Where the parent is inside a transaction for too long, the child is told so; it goes on."""
    require_fork()
    journal = pg_home.open()
    begun(journal)
    store_of(journal)._gate._patience_s = 0.1

    def child() -> str:
        try:
            journal.append([entry(2)], expected_seq=1, epoch=1)
        except JournalUnavailable as error:
            return str(error)
        return "appended"

    inside, leave = threading.Event(), threading.Event()

    def hold(_connection: Connection) -> None:
        inside.set()
        leave.wait(WAIT_S)

    with running(lambda: store_of(journal).read(hold)):
        inside.wait(WAIT_S)
        said = in_fork(child)
        leave.set()
    assert "was forked while its parent used the journal" in said
    journal.append([entry(2)], expected_seq=1, epoch=1)
    assert len(journal.read(RUN, OPERATION)) == 2
