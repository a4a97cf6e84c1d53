"""A PostgreSQL with conflicts, without room, silent or gone: what a journal does, and how long."""

from __future__ import annotations

import contextlib
import time
from collections import Counter

import pytest
from sqlalchemy import Connection

from gymckpt.errors import Fenced, JournalCorrupt
from gymckpt.journal import open_journal, postgresql
from gymckpt.journal.rules import operation_from
from tests.faults.disks import small_disk
from tests.journal.conftest import PostgresqlHome
from tests.journal.proxy import proxied
from tests.journal.samples import HOLDER, OPERATION, RUN, begun, entries, entry, held_by, opening
from tests.journal.servers import (
    TIMEOUT_S,
    at_commit,
    backend,
    impatient,
    running,
    stands,
    store_of,
    unavailable,
    waiting,
)
from tests.racing import WAIT_S, in_threads, wait_until

# --- conflicts in the server --------------------------------------------------------------------


def test_a_deadlock_is_tried_again(pg_home: PostgresqlHome) -> None:
    """A heartbeat that the server sacrifices to end a deadlock is given after all."""
    journal = pg_home.open_with(deadlock_timeout="20ms")
    begun(journal)
    pg_home.execute("UPDATE heartbeats SET beat_ts = 0")
    before = pg_home.server.log.count("deadlock detected")
    with pg_home.server.connect() as other:
        other.execute(f"SET search_path = {pg_home.schema}".encode())
        other.execute("BEGIN")
        other.execute("SELECT * FROM heartbeats FOR UPDATE")
        with running(lambda: journal.heartbeat(RUN, epoch=1)) as outcome:
            wait_until(lambda: waiting(pg_home))
            other.execute("SELECT * FROM runs FOR UPDATE")
            other.execute("COMMIT")
    assert outcome == [None]
    assert pg_home.server.log.count("deadlock detected") == before + 1
    silent_s = journal.silent_s(RUN)
    assert silent_s is not None
    assert silent_s < WAIT_S


def test_serialization_failures_are_tried_again(
    pg_home: PostgresqlHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if transactions were serializable, no claim would be lost, and none granted twice."""
    states: Counter[str] = Counter()
    real_may_pass = postgresql.may_pass

    def may_pass(error: BaseException) -> bool:
        states[postgresql.state_of(error)] += 1
        return real_may_pass(error)

    monkeypatch.setattr(postgresql, "WRITING", "SERIALIZABLE")
    monkeypatch.setattr(postgresql, "may_pass", may_pass)
    journal = pg_home.open()
    begun(journal)

    def work(name: str) -> None:
        for number in range(12):
            journal.claim(RUN, holder=f"{name}-{number}", force=True)
            with contextlib.suppress(Fenced):
                journal.heartbeat(RUN, epoch=number)

    assert in_threads(*[lambda name=name: work(name) for name in "abcd"]) == [None] * 4
    assert held_by(journal).epoch == 1 + 4 * 12
    assert states["40001"] > 0


def test_an_error_at_the_commit_is_no_lost_answer(pg_home: PostgresqlHome) -> None:
    """What the server itself undoes at the commit is tried again, then certainly not stored."""
    journal = pg_home.open()
    begun(journal)
    at_commit(pg_home, "BEGIN RAISE 'no' USING ERRCODE = '40001'; END")
    with impatient(journal), unavailable("not within 0.6 s.*40001"):
        journal.append([entry(2)], expected_seq=1, epoch=1)
    pg_home.execute("DROP TRIGGER acting ON operations")
    stands(journal, 1)


def test_rows_without_their_operation_are_damage(pg_home: PostgresqlHome) -> None:
    """Entries that are there against the operation's row are reported, not tried for ever."""
    journal = pg_home.open()
    begun(journal, 5)
    pg_home.execute("UPDATE operations SET last_seq = 3")
    with unavailable("contradict each other", JournalCorrupt):
        journal.append([entry(4, trigger="other")], expected_seq=3, epoch=1)


# --- full, busy, silent, gone -------------------------------------------------------------------


def test_a_full_disk_is_named_and_passes(pg_home: PostgresqlHome) -> None:
    """On a full disk an append is refused at once and whole; with room again it lands."""
    with small_disk(pg_home.server.directory / "disk", kilobytes=2_048) as disk:
        pg_home.server.give(disk.path)
        space = f"small_{pg_home.schema}"
        pg_home.execute(f"CREATE TABLESPACE {space} LOCATION '{disk.path}'")
        try:
            journal = pg_home.open_with(default_tablespace=space)
            begun(journal)
            disk.fill()
            large = [entry(2, facts={"text": "x" * 7_000, "more": list(range(9_000))})]
            with unavailable("disk is full; make room"):
                for _ in range(2):
                    journal.append(large, expected_seq=1, epoch=1)
            stands(journal, 1)
            disk.free()
            journal.append(large, expected_seq=1, epoch=1)
            assert journal.read(RUN, OPERATION) == (entry(1), *large)
            journal.close()
        finally:
            pg_home.execute(f"DROP SCHEMA {pg_home.schema} CASCADE")
            pg_home.execute("CHECKPOINT")
            pg_home.execute(f"DROP TABLESPACE {space}")


def test_an_exhausted_pool_is_waited_for_and_then_named(pg_home: PostgresqlHome) -> None:
    """A call that finds all connections in use waits for one, and gives up at the timeout."""
    journal = pg_home.open()
    begun(journal)
    held = [store_of(journal)._engine.connect() for _ in range(postgresql.POOL_SIZE)]
    with impatient(journal), unavailable("in use by other threads"):
        journal.append([entry(2)], expected_seq=1, epoch=1)
    with running(lambda: journal.append([entry(2)], expected_seq=1, epoch=1)) as outcome:
        for connection in held:
            connection.close()
    assert outcome == [None]
    stands(journal, 2)


def test_a_server_without_room_for_connections_is_waited_for(pg_home: PostgresqlHome) -> None:
    """A role that has used up its connections is told so at the timeout, and gets one when free."""
    pg_home.open().close()
    pg_home.execute("DROP ROLE IF EXISTS few")
    pg_home.execute("CREATE ROLE few LOGIN CONNECTION LIMIT 1")
    pg_home.execute(f"GRANT USAGE ON SCHEMA {pg_home.schema} TO few")
    pg_home.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {pg_home.schema} TO few")
    url = pg_home.server.url(pg_home.schema, user="few")
    first = open_journal(url)
    with unavailable("too many connections"):
        open_journal(url, busy_timeout_s=TIMEOUT_S)
    with running(lambda: open_journal(url).close()) as outcome:
        first.close()
    assert outcome == [None]


def test_a_locked_operation_is_waited_for_and_then_named(pg_home: PostgresqlHome) -> None:
    """An append gives up a lock that somebody keeps, at the timeout; reading is not held up."""
    journal = pg_home.open()
    begun(journal)
    with pg_home.server.connect() as other:
        other.execute("BEGIN")
        other.execute(f"SELECT * FROM {pg_home.schema}.operations FOR UPDATE".encode())
        with impatient(journal), unavailable("not within 0.6 s; check the server"):
            journal.append([entry(2)], expected_seq=1, epoch=1)
        stands(journal, 1)
    journal.append([entry(2)], expected_seq=1, epoch=1)
    stands(journal, 2)


def test_a_server_that_is_gone_is_named_in_time(pg_home: PostgresqlHome) -> None:
    """While the server is down each call ends in time with a clear error; then all goes on."""
    journal = pg_home.open()
    begun(journal)
    with pg_home.server.stopped():
        for call in (
            lambda: journal.append([entry(2)], expected_seq=1, epoch=1),
            lambda: journal.read(RUN, OPERATION),
            lambda: journal.silent_s(RUN),
            lambda: open_journal(pg_home.url, busy_timeout_s=TIMEOUT_S),
        ):
            with impatient(journal), unavailable("not within 0.6 s; check the server"):
                call()
    journal.append([entry(2)], expected_seq=1, epoch=1)
    stands(journal, 2)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restarted_server_is_waited_for(pg_home: PostgresqlHome, mode: str) -> None:
    """A call that begins while the server is down lands when that is back within the timeout."""
    journal = pg_home.open()
    begun(journal)
    pg_home.server.stop(mode)
    with running(lambda: journal.append(entries(2, 9), expected_seq=1, epoch=1)) as outcome:
        pg_home.server.start()
    assert outcome == [None]
    stands(journal, 9)


def test_a_crash_loses_nothing_that_was_acknowledged(pg_home: PostgresqlHome) -> None:
    """Entries of a session whose commits the server would answer early are durable all the same."""
    with pg_home.server.setting("wal_writer_delay", "10s"):
        journal = pg_home.open_with(synchronous_commit="off")
        begun(journal)
        for seq in range(2, 12):
            journal.append([entry(seq)], expected_seq=seq - 1, epoch=1)
        with pg_home.server.stopped("immediate"):
            pass
        stands(journal, 11)


@pytest.mark.parametrize("mark", [b"BEGIN", b"FOR UPDATE", b"INSERT INTO entries"])
def test_a_silent_server_is_not_waited_for_for_ever(pg_home: PostgresqlHome, mark: bytes) -> None:
    """A server that falls silent at any point of an append ends the call, and only that one."""
    with proxied(pg_home.server.port, mark) as proxy:
        pg_home.open()
        with pg_home.open_with(port=proxy.port) as journal:
            begun(journal)
            at = proxy.seen
            proxy.next("freeze")
            with impatient(journal), unavailable("gave no answer in time"):
                journal.append([entry(2)], expected_seq=1, epoch=1)
            assert proxy.seen == at + 1
            journal.append([entry(2)], expected_seq=1, epoch=1)
            stands(journal, 2)


# --- large, but not silent ----------------------------------------------------------------------


def test_an_answer_that_keeps_coming_is_not_cut_off(pg_home: PostgresqlHome) -> None:
    """Reading a large operation over a slow wire may take longer than the timeout."""
    large = [entry(seq, facts={"text": "x" * 9_000}) for seq in range(1, 41)]
    with proxied(pg_home.server.port) as proxy:
        journal = pg_home.open_with(port=proxy.port)
        journal.claim(RUN, holder=HOLDER)
        journal.open_operation(opening(), large)
        proxy.pause_s = 0.1
        began_s = time.monotonic()
        with impatient(journal):
            assert journal.read(RUN, OPERATION) == tuple(large)
        assert time.monotonic() - began_s > TIMEOUT_S + postgresql.GRACE_S


def test_taking_a_long_answer_apart_is_not_interrupted(
    pg_home: PostgresqlHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader may stand idle in its transaction for longer than a writer may."""
    monkeypatch.setattr(postgresql, "IDLE_S_MAX", 0.05)
    journal = pg_home.open()
    reads: list[int] = []

    def slow(connection: Connection) -> None:
        reads.append(backend(connection))
        time.sleep(0.3)
        assert pg_home.execute(f"SELECT 1 FROM pg_stat_activity WHERE pid = {reads[0]}")

    store_of(journal).read(slow)
    assert len(reads) == 1


def test_a_large_import_takes_the_time_that_it_needs(
    pg_home: PostgresqlHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operation of many entries is imported in one transaction, however long that takes."""
    monkeypatch.setattr(postgresql, "CHUNK_ROWS", 2)
    journal = pg_home.open()
    pg_home.execute(
        "CREATE FUNCTION rest() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(0.25); RETURN NULL; END $$"
    )
    pg_home.execute(
        "CREATE TRIGGER resting AFTER INSERT ON entries FOR EACH STATEMENT EXECUTE FUNCTION rest()"
    )
    history = entries(1, 21)
    operation = operation_from(opening(), history, epoch=1, owner="x", settled=True)
    began_s = time.monotonic()
    with impatient(journal):
        journal.insert_operation(operation, history)
    assert time.monotonic() - began_s > TIMEOUT_S + postgresql.GRACE_S
    stands(journal, 21)
