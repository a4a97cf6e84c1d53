"""
PostgreSQL under a journal: several controllers on several hosts, through psycopg.

Every write locks the operation's row and is one transaction at READ COMMITTED; reads see one moment
by REPEATABLE READ. A transaction begins with one message that looks at the schema version and says
for how long the server may let it wait, run or stand idle. The latter frees the row of a controller
that was stopped in the middle, so that another can take over; for the same reason entries are sent
within their one statement, and not by COPY, which the server would wait for without a bound.

What may pass (a lost connection, a restarted server, a serialization failure, an exhausted pool) is
tried again until the timeout. A commit whose answer was lost is tried again too, since every job
recognises what it has stored already; where that is not possible any more, the error says that the
outcome is unknown. The clock of signs of life is the server's.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar, cast

import orjson
import psycopg
from sqlalchemy import Connection, Dialect, create_engine, event, inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from gymckpt.errors import JournalCorrupt, JournalError, JournalOutcomeUnknown, JournalUnavailable
from gymckpt.journal.entry import TAGS, Row
from gymckpt.journal.gate import Gate
from gymckpt.journal.postgresql_errors import (
    CONTRADICTION,
    may_pass,
    said,
    state_of,
    translated,
    was_undone,
)
from gymckpt.journal.postgresql_link import BoundedConnection, connect, parse, shown
from gymckpt.journal.schema import MIGRATIONS, Migration, entries, meta, migrate, tables_of
from gymckpt.journal.sql import SqlStore

__all__ = ["PostgresqlStore"]

T = TypeVar("T")

MIGRATION_LOCK = 0x67796D63
"""The advisory lock under which a journal's tables are made: the letters `gymc`."""

POOL_SIZE = 4

PAUSE_S = 0.05
PAUSE_MAX_S = 0.5
"""How long to rest between two tries: first, and at most."""

TRY_S_MIN = 0.1
"""How long the server has for the last try, however late that begins."""

GRACE_S = 1.0
"""How much longer than the server is told a silent server is waited for."""

IDLE_S_MAX = 1.0
"""How long a writer may stand idle: for so long one that was stopped holds up others."""

READER_IDLE_S = 300.0
"""How long a reader may stand idle: it holds up nobody, and has a long answer to take apart."""

CHUNK_ROWS = 5_000
"""How many entries one statement inserts, so that a large import is no long statement."""

WRITING = "READ COMMITTED"
READING = "REPEATABLE READ, READ ONLY"

_BEGIN = """
BEGIN ISOLATION LEVEL {level};
SET LOCAL lock_timeout = {bound_ms};
SET LOCAL statement_timeout = {statement_ms};
SET LOCAL idle_in_transaction_session_timeout = {idle_ms};
SET LOCAL extra_float_digits = 3;
SELECT set_config('synchronous_commit', 'on', true)
 WHERE current_setting('synchronous_commit') = 'off'
"""
"""Begins a transaction that is bounded, gives floats as they were stored, and is durable."""

_VERSION = "; SELECT schema_version FROM meta"


def _insert_statement(dialect: Dialect) -> str:
    """Return the statement that inserts all rows of a JSON array."""
    columns = [f"{column.name} {column.type.compile(dialect)}" for column in entries.columns]
    return (
        f"INSERT INTO {entries.name} ({', '.join(TAGS)}) SELECT {', '.join(TAGS)} "  # noqa: S608
        f"FROM json_to_recordset(%s::json) AS given({', '.join(columns)})"
    )


def _raw(connection: Connection) -> BoundedConnection:
    """Return the driver's own connection."""
    return cast("BoundedConnection", connection.connection.driver_connection)


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
            busy_timeout_s: How long one call goes on trying; a server that is silent, or a host
                that does not answer, may add two seconds.
            migrations: The steps to the present schema.

        Raises:
            ValueError: The URL is malformed.
            JournalUnavailable: The server cannot be reached within the timeout, or refuses.
            JournalCorrupt: The schema has tables of these names that are no journal's.
            JournalError: The schema is of a newer release, or of an older one and cannot be raised
                because it is opened to be read only.
        """
        target = parse(url)
        self.url = shown(target)
        self.read_only = read_only
        self._name = f"journal {self.url}"
        self._timeout_s = busy_timeout_s
        self._migrations = migrations
        self._opened = False
        self._closing = threading.Event()
        self._call = threading.local()
        self._engine = create_engine(
            target,
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_timeout=busy_timeout_s,
            hide_parameters=True,
            use_native_hstore=False,
        )
        self._insert = _insert_statement(self._engine.dialect)
        event.listen(self._engine, "do_connect", self._connect)
        self._gate = Gate(self.url, let_go=self._engine.dispose, patience_s=busy_timeout_s)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    # --- transactions ---------------------------------------------------------------------------

    def write(self, job: Callable[[Connection, bool], T]) -> T:
        """Run a job in one transaction, again until it lands or the timeout has passed."""
        if self.read_only:
            raise JournalUnavailable(f"{self._name}: it was opened to be read only")
        return self._written(job)

    def read(self, job: Callable[[Connection], T]) -> T:
        """Run a job that only reads, again until it succeeds or the timeout has passed."""
        return self._until(lambda: self._read_once(job))

    def now_ts(self, connection: Connection) -> float:
        """Return the server's time, which all controllers share."""
        return float(
            connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one()
        )

    def insert_rows(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Insert entries in bulk, by a statement for some thousands of them, inside `write`."""
        for start in range(0, len(rows), CHUNK_ROWS):
            if start:  # the call makes progress, so it is given time for the next step
                _raw(connection).gives_up_s = time.monotonic() + self._timeout_s + GRACE_S
            chunk = rows[start : start + CHUNK_ROWS]
            given = orjson.dumps([dict(zip(TAGS, row, strict=True)) for row in chunk])
            connection.exec_driver_sql(self._insert, (given.decode(),))

    def close(self) -> None:
        """Let go of every connection."""
        self._closing.set()
        if self._gate.shut(f"{self._name} is closed; open it again"):
            self._engine.dispose()

    def _written(self, job: Callable[[Connection, bool], T], *, checked: bool = True) -> T:
        again = False

        def attempt() -> T:
            nonlocal again
            with self._begun(checked=checked) as connection:
                result = job(connection, again)
                try:
                    connection.commit()
                except DBAPIError as error:
                    if was_undone(error):
                        raise
                    again = True
                    raise _Lost from error
            return result

        return self._until(attempt)

    def _read_once(self, job: Callable[[Connection], T], *, checked: bool = True) -> T:
        with self._begun(checked=checked, reading=True) as connection:
            return job(connection)

    @contextlib.contextmanager
    def _begun(self, *, checked: bool, reading: bool = False) -> Generator[Connection, None, None]:
        """
        Give a connection inside a transaction that ends with the body, undone if not committed.

        Args:
            checked: Whether to refuse another schema version than the present one.
            reading: Whether nothing is written. Then an answer may take as long as it is coming in.
        """
        with self._gate.entered(), self._engine.connect() as connection:
            connection.begin()
            raw = _raw(connection)
            left_s = max(self._left_s(), TRY_S_MIN)
            raw.gives_up_s = time.monotonic() + left_s + GRACE_S
            raw.silence_s = self._timeout_s + GRACE_S if reading else 0.0
            bound_ms = int(left_s * 1_000)
            begin = _BEGIN.format(
                level=READING if reading else WRITING,
                bound_ms=bound_ms,
                statement_ms=0 if reading else bound_ms,
                idle_ms=int((READER_IDLE_S if reading else min(left_s, IDLE_S_MAX)) * 1_000),
            )
            if checked:
                begin += _VERSION
            try:
                cursor = raw.execute(begin.encode(), prepare=False)
                while cursor.nextset():
                    pass
                found: list[Any] = cursor.fetchall()
            except psycopg.Error as error:
                if raw.closed:
                    connection.invalidate(error)
                    self._engine.dispose()  # the others were lost with it, more likely than not
                raise
            if checked:
                self._require_version(self._only(found))
            yield connection

    # --- trying again ---------------------------------------------------------------------------

    def _left_s(self) -> float:
        """Return how much of this thread's present call is left."""
        ends_s: float = self._call.ends_s
        return ends_s - time.monotonic()

    def _connect(
        self, _dialect: object, _record: object, _positional: object, arguments: dict[str, Any]
    ) -> BoundedConnection:
        """Open a connection for the engine's pool, in the thread that needs it."""
        left_s = max(self._left_s(), TRY_S_MIN)
        connection = connect(arguments, wait_s=left_s, silence_s=max(self._timeout_s, 1.0))
        connection.gives_up_s = time.monotonic() + left_s + GRACE_S
        return connection

    def _until(self, attempt: Callable[[], T]) -> T:
        """Try until it succeeds, fails for good, or the timeout has passed."""
        self._call.ends_s = time.monotonic() + self._timeout_s
        pause_s, lost, contradicted = PAUSE_S, False, False
        while True:
            failure: BaseException
            try:
                return attempt()
            except _Lost as error:
                lost, failure = True, error.__cause__ or error
            except (DBAPIError, PoolTimeoutError, psycopg.Error) as error:
                failure = error
                contradicts = state_of(error) == CONTRADICTION
                if not may_pass(error) or (contradicts and contradicted):
                    refusal = translated(error, self._name, opened=self._opened)
                    raise (self._unknown(said(error)) if lost else refusal) from error
                contradicted |= contradicts
            except JournalUnavailable as error:  # closed meanwhile
                raise (self._unknown(str(error)) if lost else error) from None
            if self._left_s() <= pause_s:
                raise self._given_up(failure, lost=lost) from failure
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _given_up(self, error: BaseException, *, lost: bool) -> JournalError:
        if lost:
            return self._unknown(said(error))
        return JournalUnavailable(
            f"{self._name}: not within {self._timeout_s:g} s; check the server and try again "
            f"({said(error)})"
        )

    def _unknown(self, why: str) -> JournalOutcomeUnknown:
        return JournalOutcomeUnknown(
            f"{self._name}: the answer to a commit was lost, and then: {why}; whether the "
            "transaction was stored is unknown: repeat it"
        )

    # --- opening --------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """See that this is a journal with the present schema, raising it where that is allowed."""
        version = self._until(lambda: self._read_once(self._look, checked=False))
        if version < len(self._migrations) and not self.read_only:
            version = self._written(self._raised, checked=False)
        self._require_version(version)
        self._opened = True

    def _raised(self, connection: Connection, _again: bool) -> int:
        """Make or raise the tables, one controller at a time; return the version then."""
        connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
        version = self._look(connection)
        if version < len(self._migrations):
            migrate(connection, version, self._migrations)
        return max(version, len(self._migrations))

    def _look(self, connection: Connection) -> int:
        """Return the schema version of what may be anything; 0 where there is nothing."""
        if not inspect(connection).has_table(meta.name):
            return 0
        version = self._only(connection.execute(select(meta.c.schema_version)).all())
        for table in tables_of(version) if version <= len(self._migrations) else ():
            connection.execute(select(table).limit(0))
        return version

    def _only(self, found: Sequence[Any]) -> int:
        """Return the schema version that the table of it holds."""
        match [tuple(row) for row in found]:
            case [(int(version),)] if version > 0:
                return version
            case rows:
                raise JournalCorrupt(
                    f"{self._name}: its table {meta.name!r} holds no schema version but "
                    f"{rows!r:.100}; it is no journal, or damaged"
                )

    def _require_version(self, version: int) -> None:
        known = len(self._migrations)
        if not version:
            raise JournalUnavailable(f"{self._name}: there is no journal to read in this schema")
        if version > known:
            raise JournalError(
                f"{self._name}: it has schema version {version}, this gymckpt knows up to {known}: "
                "a newer release wrote it; upgrade gymckpt, or use another journal"
            )
        if version < known:
            raise JournalError(
                f"{self._name}: it has schema version {version}, this gymckpt reads {known}; open "
                "it once for writing with this release, which raises it, or read it with the "
                "release that wrote it"
            )
