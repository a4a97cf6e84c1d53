"""
PostgreSQL under a journal: several controllers on several hosts, through psycopg.

Every write locks the operation's row and is one transaction at READ COMMITTED; reads see one
moment by REPEATABLE READ. A lost connection, a restarted server, a serialization failure or an
exhausted pool is tried again until the timeout; a commit whose answer was lost is repeated too,
since every job recognises what it has already stored. What the server reports is translated in one
place, by its SQLSTATE. The clock of signs of life is the server's.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import psycopg
from sqlalchemy import Connection, Engine, create_engine, inspect, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from gymckpt.errors import (
    JournalCorrupt,
    JournalError,
    JournalOutcomeUnknown,
    JournalUnavailable,
    text_of,
)
from gymckpt.journal.entry import TAGS, Row
from gymckpt.journal.gate import Gate
from gymckpt.journal.schema import MIGRATIONS, Migration, meta, migrate
from gymckpt.journal.sql import SqlStore

__all__ = ["PostgresqlStore"]

T = TypeVar("T")

MIGRATION_LOCK = 0x67796D63
"""The advisory lock under which a journal's tables are made: the letters `gymc`."""

POOL_SIZE = 4
PAUSE_S = 0.05
PAUSE_MAX_S = 0.5
"""How long to rest between two tries: first, and at most."""

_TRANSIENT_CLASSES = frozenset({"08", "40", "53", "57"})
"""SQLSTATE classes: connection, rollback, resources, operator intervention."""

_TRANSIENT_STATES = frozenset({"55P03", "23505"})
"""A lock that was not to be had in time; two controllers that open the same operation at once."""

_FINAL_STATES = {
    "53100": "its disk is full; make room and try again",
    "25006": "it cannot be written: the server or the session is read only",
    "42501": "access is denied; grant rights on the schema to this role",
    "28P01": "the password was refused",
    "28000": "the role was refused",
    "3D000": "there is no such database; create it first",
}
_COPY = f"COPY entries ({', '.join(TAGS)}) FROM STDIN"


class _Lost(Exception):
    """A commit whose answer was lost: it may be stored."""


class PostgresqlStore(SqlStore):
    """One journal in the tables of one database schema; safe for many controllers."""

    def __init__(
        self,
        url: str,
        *,
        read_only: bool = False,
        busy_timeout_s: float = 5.0,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> None:
        """
        Open a journal, and make its tables where they are missing.

        Args:
            url: `postgresql+psycopg://user:password@host:port/database`; `postgresql://` is the
                same. What libpq knows beside (`PGPASSWORD`, a service file) is used as well;
                `?options=-csearch_path%3Dname` puts the tables into a schema of that name.
            read_only: Never write, and make nothing.
            busy_timeout_s: How long one call goes on trying.
            migrations: The steps to the present schema.

        Raises:
            ValueError: The URL is malformed.
            JournalUnavailable: The server cannot be reached within the timeout, or refuses.
            JournalError: The schema is of a newer release, or of an older one and cannot be raised
                because it is opened to be read only.
        """
        self._target = _target(url)
        self.url = self._target.render_as_string(hide_password=True)
        self.read_only = read_only
        self._timeout_s = busy_timeout_s
        self._migrations = migrations
        self._engine = self._new_engine()
        self._gate = Gate(self.url, let_go=self._engine.dispose, patience_s=busy_timeout_s)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    # --- transactions ---------------------------------------------------------------------------

    def write(self, job: Callable[[Connection, bool], T]) -> T:
        """Run a job in one transaction, again until it lands or the timeout has passed."""
        again = False

        def attempt() -> T:
            nonlocal again
            with self._gate.entered(), self._engine.connect() as connection:
                transaction = connection.begin()
                result = job(connection, again)
                try:
                    transaction.commit()
                except DBAPIError as error:
                    again = True
                    raise _Lost from error
            return result

        return self._until(attempt)

    def read(self, job: Callable[[Connection], T]) -> T:
        """Run a job that only reads, again until it succeeds or the timeout has passed."""

        def attempt() -> T:
            with self.reading() as connection:
                return job(connection)

        return self._until(attempt)

    @contextlib.contextmanager
    def writing(self) -> Generator[Connection, None, None]:
        """Return a transaction that is committed when its body ends well; tried once."""
        with self._gate.entered(), self._engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Generator[Connection, None, None]:
        """Return a transaction whose statements all see the same moment; tried once."""
        with self._gate.entered(), self._engine.connect() as connection:
            repeatable = connection.execution_options(isolation_level="REPEATABLE READ")
            with repeatable.begin():
                yield repeatable

    def now_ts(self, connection: Connection) -> float:
        """Return the server's time, which all controllers share."""
        return float(
            connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one()
        )

    def insert_rows(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Insert entries in bulk by COPY, inside `writing`."""
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy(_COPY) as copy:
            for row in rows:
                copy.write_row(row)

    def close(self) -> None:
        """Let go of every connection."""
        if self._gate.shut(f"journal {self.url} is closed; open it again"):
            self._engine.dispose()

    # --- trying again ---------------------------------------------------------------------------

    def _until(self, attempt: Callable[[], T]) -> T:
        """Try until it succeeds, fails for good, or the timeout has passed."""
        ends_s = time.monotonic() + self._timeout_s
        pause_s, lost = PAUSE_S, False
        while True:
            try:
                return attempt()
            except _Lost as error:
                lost, failure = True, error.__cause__ or error
            except (DBAPIError, PoolTimeoutError, psycopg.Error) as error:
                if not _may_pass(error):
                    raise self._translated(error) from error
                failure = error
            if time.monotonic() + pause_s >= ends_s:
                raise self._given_up(failure, lost=lost) from failure
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _given_up(self, error: BaseException, *, lost: bool) -> JournalError:
        said = f"{self.url}: not within {self._timeout_s:g} s ({_said(error)})"
        if lost:
            return JournalOutcomeUnknown(
                f"journal {said}; whether the transaction was stored is unknown: repeat it"
            )
        return JournalUnavailable(f"journal {said}; check the server and try again")

    def _translated(self, error: BaseException) -> JournalError:
        """Return what an error that will not pass means for a journal."""
        state = _state(error)
        if state in _FINAL_STATES:
            return JournalUnavailable(
                f"journal {self.url}: {_FINAL_STATES[state]} ({_said(error)})"
            )
        if state[:2] in ("XX", "22", "23", "42"):
            return JournalCorrupt(
                f"journal {self.url}: its tables are damaged or not a journal's ({_said(error)})"
            )
        return JournalUnavailable(f"journal {self.url}: {_said(error)}")

    # --- opening --------------------------------------------------------------------------------

    def _new_engine(self) -> Engine:
        milliseconds = max(1, int(self._timeout_s * 1_000))
        given = self._target.query.get("options", "")
        options = " ".join([given] if isinstance(given, str) else given)
        options += f" -c lock_timeout={milliseconds} -c statement_timeout={milliseconds}"
        if self.read_only:
            options += " -c default_transaction_read_only=on"
        return create_engine(
            self._target.difference_update_query(["options"]),
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_timeout=self._timeout_s,
            pool_pre_ping=True,
            connect_args={
                "application_name": f"gymckpt-{os.getpid()}",
                "connect_timeout": max(2, int(self._timeout_s)),
                "options": options,
            },
        )

    def _prepare(self) -> None:
        """See that the schema is the present one, raising it where that is allowed."""
        known = len(self._migrations)
        version = self.read(self._version) if self.read_only else self.write(self._raised)
        if version == known:
            return
        if version > known:
            raise JournalError(
                f"journal {self.url}: its schema has version {version}, this release of gymckpt "
                f"knows {known}; upgrade gymckpt, or name another journal"
            )
        raise JournalError(
            f"journal {self.url}: its schema has version {version}, older than {known}; open it "
            "once for writing, which raises it"
        )

    def _raised(self, connection: Connection, _again: bool) -> int:
        """Make or raise the tables, one controller at a time; return the version then."""
        connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
        version = self._version(connection)
        if version < len(self._migrations):
            migrate(connection, version, self._migrations)
            return len(self._migrations)
        return version

    def _version(self, connection: Connection) -> int:
        if not inspect(connection).has_table(meta.name):
            return 0
        found = connection.execute(select(meta.c.schema_version)).scalars().all()
        if len(found) != 1:
            raise JournalCorrupt(
                f"journal {self.url}: its meta table has {len(found)} rows, not one; it is no "
                "journal, or damaged"
            )
        return int(found[0])


def _target(url: str) -> URL:
    """Return the URL with the driver that is used."""
    try:
        target = make_url(url)
    except ArgumentError as error:
        raise ValueError(f"journal URL {text_of(url)[:200]!r} is malformed") from error
    if not target.database:
        raise ValueError(
            f"journal URL {target.render_as_string(hide_password=True)!r} names no database; "
            "give postgresql+psycopg://user@host:port/database"
        )
    return target.set(drivername="postgresql+psycopg")


def _state(error: BaseException) -> str:
    """Return the SQLSTATE of an error; empty for one of the client itself."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return str(getattr(cause, "sqlstate", None) or "")


def _may_pass(error: BaseException) -> bool:
    """Whether a try may succeed where this one failed."""
    if isinstance(error, PoolTimeoutError):
        return True
    state = _state(error)
    if state in _FINAL_STATES:
        return False
    if not state:  # the connection was refused or broke before the server said anything
        cause = error.orig if isinstance(error, DBAPIError) else error
        return isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError)
    return state[:2] in _TRANSIENT_CLASSES or state in _TRANSIENT_STATES


def _said(error: BaseException) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return f"{type(cause).__name__} {_state(error)}: {text_of(cause)[:200]}".replace("\n", " ")
