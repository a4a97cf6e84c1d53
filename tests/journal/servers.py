"""What the tests do to a PostgreSQL server and to a journal on it, and how they judge that."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection

from gymckpt.errors import JournalError, JournalUnavailable
from gymckpt.journal import Journal
from gymckpt.journal.sql import SqlJournal
from tests.journal.conftest import PostgresqlHome
from tests.journal.samples import OPERATION, RUN, entries
from tests.racing import WAIT_S, wait_until

TIMEOUT_S = 0.6
"""The timeout of a journal that is to give up."""

SLACK_S = 4.0
"""What a timeout may be passed by: the grace, the wait for a host, and a busy machine."""


def store_of(journal: Journal) -> Any:
    """Return the store under a journal."""
    assert isinstance(journal, SqlJournal)
    return journal._store


def before_each_insert(journal: Journal, act: Callable[[Connection], None]) -> None:
    """Do something in every transaction that stores entries, before it does."""
    store = store_of(journal)
    insert = store.insert_rows

    def insert_rows(connection: Connection, rows: Sequence[Any]) -> None:
        act(connection)
        insert(connection, rows)

    store.insert_rows = insert_rows


def backend(connection: Connection) -> int:
    """Return the server's process behind a connection."""
    raw: Any = connection.connection.driver_connection
    return int(raw.info.backend_pid)


def terminate(home: PostgresqlHome, pid: int) -> None:
    """End a process of the server, and wait until it is gone."""
    home.execute(f"SELECT pg_terminate_backend({pid})")
    wait_until(lambda: not home.execute(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"))


def stands(journal: Journal, last: int) -> None:
    """Check that an operation has each entry up to the last one, once."""
    assert journal.read(RUN, OPERATION) == tuple(entries(1, last))


@contextlib.contextmanager
def impatient(journal: Journal, timeout_s: float = TIMEOUT_S) -> Iterator[None]:
    """Let a journal give up early in the body; before and after, it waits for a busy machine."""
    store = store_of(journal)
    pool = store._engine.pool
    store._timeout_s, patience_s = timeout_s, store._timeout_s
    pool._timeout = timeout_s
    try:
        yield
    finally:
        store._timeout_s = pool._timeout = patience_s


@contextlib.contextmanager
def unavailable(match: str, kind: type[JournalError] = JournalUnavailable) -> Iterator[None]:
    """Check that the body is refused with one clear line, within the bound."""
    began_s = time.monotonic()
    with pytest.raises(kind, match=match) as caught:
        yield
    assert time.monotonic() - began_s < TIMEOUT_S + SLACK_S
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 800


@contextlib.contextmanager
def running(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run something in a thread beside the body; what it returned or raised is given at the end."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield outcome
    thread.join(WAIT_S)
    assert not thread.is_alive()


def waiting(home: PostgresqlHome) -> list[tuple[Any, ...]]:
    """Return the processes of the server that wait for a lock in this schema's tables."""
    return home.execute(
        "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND query !~ 'pg_stat_activity' AND application_name LIKE 'gymckpt-%'"
    )


def waiting_one(home: PostgresqlHome) -> int:
    """Wait until one process of the server waits for a lock, and return which."""
    found: list[tuple[Any, ...]] = []

    def one_waits() -> bool:
        found[:] = waiting(home)
        return len(found) == 1

    wait_until(one_waits)
    return int(found[0][0])


def at_commit(home: PostgresqlHome, body: str, table: str = "operations") -> None:
    """Have the server do something at the end of each transaction that moves an operation."""
    home.execute(f"CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
    home.execute(
        f"CREATE CONSTRAINT TRIGGER acting AFTER UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION act()"
    )
