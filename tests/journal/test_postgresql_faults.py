"""Connections to PostgreSQL and answers from it that are lost, at every point of a transaction."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection

from gymckpt.errors import JournalOutcomeUnknown, OperationIdUsed
from gymckpt.journal import Journal, open_journal, postgresql
from tests.journal.conftest import PostgresqlHome
from tests.journal.proxy import Fate, Proxy, proxied
from tests.journal.samples import OPERATION, RUN, begun, entries, entry, held_by, opening
from tests.journal.servers import (
    at_commit,
    backend,
    before_each_insert,
    impatient,
    running,
    stands,
    store_of,
    terminate,
    unavailable,
    waiting_one,
)
from tests.racing import WAIT_S, in_threads

# --- lost connections ---------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
def test_a_connection_lost_between_statements_is_opened_again(
    pg_home: PostgresqlHome, times: int
) -> None:
    """An opening and an append whose server process dies in the middle land, each exactly once."""
    journal = pg_home.open()
    killed: list[int] = []

    def kill(connection: Connection) -> None:
        if len(killed) % (times + 1) < times:
            terminate(pg_home, backend(connection))
        killed.append(backend(connection))

    before_each_insert(journal, kill)
    begun(journal)
    journal.append(entries(2, 9), expected_seq=1, epoch=1)
    assert len(killed) == 2 * (times + 1)
    stands(journal, 9)


def test_idle_connections_that_were_lost_are_no_error(pg_home: PostgresqlHome) -> None:
    """After every pooled connection has died, the next call of each thread just works."""
    journal = pg_home.open()
    begun(journal)
    barrier = threading.Barrier(postgresql.POOL_SIZE)

    def hold(connection: Connection) -> int:
        barrier.wait(WAIT_S)
        return backend(connection)

    pids = in_threads(*[lambda: store_of(journal).read(hold)] * postgresql.POOL_SIZE)
    assert len(set(pids)) == postgresql.POOL_SIZE
    for pid in pids:
        terminate(pg_home, pid)
    begun(journal, operation_id="op-2")
    assert in_threads(*[lambda: len(journal.operations())] * 6) == [2] * 6


@pytest.mark.parametrize("fatal", [True, False])
def test_a_connection_lost_within_the_insert_is_opened_again(
    pg_home: PostgresqlHome, fatal: bool
) -> None:
    """An append whose process is ended, or cancelled, while entries go in lands exactly once."""
    journal = pg_home.open()
    begun(journal)
    with pg_home.server.connect() as blocker:
        blocker.execute(f"BEGIN; LOCK TABLE {pg_home.schema}.entries".encode())
        with running(lambda: journal.append(entries(2, 50), expected_seq=1, epoch=1)) as outcome:
            pid = waiting_one(pg_home)
            if fatal:
                terminate(pg_home, pid)
            else:
                pg_home.execute(f"SELECT pg_cancel_backend({pid})")
            blocker.execute("ROLLBACK")
    assert outcome == [None]
    stands(journal, 50)


@pytest.mark.parametrize("gone", [False, True])
def test_a_commit_that_is_struck_down_is_repeated(pg_home: PostgresqlHome, gone: bool) -> None:
    """An append whose process dies within the commit lands once, or is of unknown outcome."""
    pg_home.open()
    with proxied(pg_home.server.port) as proxy, pg_home.server.connect() as blocker:
        journal = pg_home.open_with(port=proxy.port)
        begun(journal)
        at_commit(pg_home, "BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END")
        blocker.execute("BEGIN")
        blocker.execute("SELECT pg_advisory_xact_lock(7)")
        with (
            impatient(journal, 4.0) if gone else contextlib.nullcontext(),
            running(lambda: journal.append(entries(2, 5), expected_seq=1, epoch=1)) as outcome,
        ):
            pid = waiting_one(pg_home)
            assert pg_home.execute(f"SELECT query FROM pg_stat_activity WHERE pid = {pid}") == [
                ("COMMIT",)
            ]
            proxy.refuses = gone
            terminate(pg_home, pid)
            blocker.execute("ROLLBACK")
        assert [type(found) for found in outcome] == [JournalOutcomeUnknown if gone else type(None)]
        proxy.refuses = False
        journal.append(entries(2, 5), expected_seq=1, epoch=1)
        stands(journal, 5)


# --- lost answers -------------------------------------------------------------------------------


@pytest.fixture
def proxy(pg_home: PostgresqlHome) -> Iterator[Proxy]:
    """Give a wire to the server that cuts commits."""
    with proxied(pg_home.server.port) as made:
        yield made


@pytest.fixture
def wired(pg_home: PostgresqlHome, proxy: Proxy) -> Iterator[Journal]:
    """Give a journal at the end of that wire."""
    with pg_home.open_with(port=proxy.port) as journal:
        yield journal


CALLS: dict[str, Callable[[Journal], Any]] = {
    "open": lambda journal: begun(journal, 3, operation_id="op-2"),
    "append": lambda journal: journal.append(entries(2, 4), expected_seq=1, epoch=1, settled=True),
    "claim": lambda journal: journal.claim(RUN, holder="host-b:2", force=True),
    "heartbeat": lambda journal: journal.heartbeat(RUN, epoch=1),
    "release": lambda journal: journal.release(RUN, epoch=1),
    "remove": lambda journal: journal.remove(RUN, "op-0"),
}


@pytest.mark.parametrize("fates", [["cut after"], ["cut before"], ["cut after", "cut before"]])
@pytest.mark.parametrize("name", CALLS)
def test_a_commit_whose_answer_is_lost_lands_once(
    pg_home: PostgresqlHome, wired: Journal, proxy: Proxy, name: str, fates: list[Any]
) -> None:
    """Whatever a call was to store is there once when it returns, though commits were cut off."""
    journal = wired
    begun(journal)
    begun(journal, operation_id="op-0")
    journal.append([entry(2, operation_id="op-0")], expected_seq=1, epoch=1, settled=True)
    at = proxy.seen
    proxy.next(*fates)
    answer = CALLS[name](journal)
    assert proxy.seen >= at + len(fates)
    with open_journal(pg_home.url) as found:
        if name == "open":
            assert found.read(RUN, "op-2") == tuple(entries(1, 3, operation_id="op-2"))
            with pytest.raises(OperationIdUsed):
                CALLS[name](journal)
        elif name == "append":
            stands(found, 4)
        elif name == "claim":
            assert answer == 2
            assert (held_by(found).epoch, held_by(found).holder) == (2, "host-b:2")
        elif name == "release":
            assert held_by(found).holder == ""
        elif name == "remove":
            assert found.operation(RUN, "op-0") is None


def test_an_opening_is_not_taken_for_another_controllers(wired: Journal, proxy: Proxy) -> None:
    """An id that was used before stays refused, however the commits of the second go."""
    begun(wired)
    proxy.next("cut after", "cut before")
    with pytest.raises(OperationIdUsed):
        wired.open_operation(opening(), [entry(1)])
    begun(wired, operation_id="op-2")
    assert [found.owner for found in wired.operations()] == ["host-a:1", "host-a:1"]


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(("fate", "last"), [("cut after", 3), ("cut before", 1), ("freeze", None)])
def test_a_commit_that_cannot_be_repeated_is_of_unknown_outcome(
    pg_home: PostgresqlHome, proxy: Proxy, fate: Fate, last: int | None, closed: bool
) -> None:
    """Where the server stays away after a lost commit, the error says so, and a repeat mends it."""
    with pg_home.open_with(port=proxy.port) as journal:
        begun(journal)
        proxy.next(fate)
        proxy.refuses = True
        if closed:
            store_of(journal)._closing.wait = lambda _pause_s: journal.close()
        with (
            impatient(journal),
            unavailable("is unknown: repeat it", JournalOutcomeUnknown),
        ):
            journal.append(entries(2, 3), expected_seq=1, epoch=1)
    proxy.refuses = False
    with pg_home.open_with(port=proxy.port) as journal:
        held = journal.operation(RUN, OPERATION)
        assert held is not None
        assert held.last_seq in ((1, 3) if last is None else (last,))
        journal.append(entries(2, 3), expected_seq=1, epoch=1)
        stands(journal, 3)


def test_a_final_error_after_a_lost_commit_keeps_the_outcome_unknown(
    pg_home: PostgresqlHome, wired: Journal, proxy: Proxy
) -> None:
    """A disk that is found full after a commit was lost does not mean that nothing was stored."""
    begun(wired)
    pg_home.execute("CREATE SEQUENCE tries")
    pg_home.execute(
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('tries') = "
        "2 THEN RAISE 'full' USING ERRCODE = '53100'; END IF; RETURN NEW; END $$"
    )
    pg_home.execute(
        "CREATE TRIGGER filling BEFORE INSERT ON entries FOR EACH STATEMENT EXECUTE FUNCTION fill()"
    )
    proxy.next("cut before")
    with unavailable("whether the transaction was stored is unknown", JournalOutcomeUnknown):
        wired.append([entry(2)], expected_seq=1, epoch=1)
    wired.append([entry(2)], expected_seq=1, epoch=1)
    stands(wired, 2)
