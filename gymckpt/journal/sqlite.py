"""
SQLite under a journal: WAL, `synchronous=FULL`, and no silent loss.

Every write is one IMMEDIATE transaction, so that what it has read is still true when it commits.
Waiting for the lock is done here, in short steps: SQLite's own waiting backs off so far that two
busy processes can starve each other. A transaction begins with a look at the schema version and
ends with a look at the files, so that neither a newer release nor a deleted file goes unnoticed.
What SQLite reports is translated in one place, by its error code.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, QueuePool

from gymckpt.errors import JournalCorrupt, JournalError, JournalUnavailable, text_of
from gymckpt.journal import place
from gymckpt.journal.entry import Row
from gymckpt.journal.gate import Gate
from gymckpt.journal.schema import MIGRATIONS, Migration, entries, migrate
from gymckpt.journal.sql import SqlStore

__all__ = ["SqliteStore"]

T = TypeVar("T")

APPLICATION_ID = 0x67796D63
"""Marks a file as a journal in its header: the letters `gymc`."""

POLL_S = 0.001
POLL_MAX_S = 0.005
"""How long to sleep between two tries to get a lock: first, and at most."""

_UNAVAILABLE = {
    sqlite3.SQLITE_FULL: "its disk is full; make room and try again",
    sqlite3.SQLITE_BUSY: "it stayed locked by another process past the timeout",
    sqlite3.SQLITE_LOCKED: "it stayed locked by another connection past the timeout",
    sqlite3.SQLITE_PROTOCOL: "its locks stayed contended past the timeout",
    sqlite3.SQLITE_READONLY: "it cannot be written; check permissions and mount options",
    sqlite3.SQLITE_PERM: "access is denied; check permissions",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that it and its directory exist and may "
    "be written",
    sqlite3.SQLITE_IOERR: "its disk failed to read or write",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_NOLFS: "its file system does not support large files",
}
_CORRUPT = {
    sqlite3.SQLITE_CORRUPT: "the file is damaged or truncated; move it away, and restore a copy "
    "or start a new journal",
    sqlite3.SQLITE_NOTADB: "this is no SQLite file, so it is no journal; name another file",
    sqlite3.SQLITE_CONSTRAINT: "its tables contradict each other; move it away, and restore a "
    "copy or start a new journal",
}
_WAITABLE = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}

_NO_SHARED_MEMORY = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
"""What reading comes to where SQLite may not make the files that it shares with writers."""

_UNKNOWN = "whether the transaction was stored is unknown: repeat it"


class _Connection(sqlite3.Connection):
    """A connection that knows which files it has opened."""

    opened: place.Files = ()


def _primary(error: BaseException) -> int | None:
    """Return SQLite's primary result code; None for an error of the Python module itself."""
    code: object = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


def _translated(error: Exception, path: Path, *, committing: bool = False) -> JournalError:
    """Return what an error of SQLite or of its Python module means for a journal."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    code = _primary(cause)
    said = f"({getattr(cause, 'sqlite_errorname', type(cause).__name__)}: {text_of(cause)[:200]})"
    if code in _UNAVAILABLE:
        lost = committing and code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM)
        tail = f"; {_UNKNOWN}" if lost else ""
        return JournalUnavailable(f"journal {path}: {_UNAVAILABLE[code]} {said}{tail}")
    if code in _CORRUPT:
        return JournalCorrupt(f"journal {path}: {_CORRUPT[code]} {said}")
    # Text that is not UTF-8 has no code, be it a stored value or a part of SQLite's own message.
    if code is None and isinstance(cause, sqlite3.OperationalError | UnicodeDecodeError):
        return JournalCorrupt(f"journal {path}: a stored value is damaged {said}")
    return JournalError(f"journal {path}: SQLite refused a statement {said}")


class SqliteStore(SqlStore):
    """One journal file; safe for several threads and for several processes on one host."""

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        busy_timeout_s: float = 5.0,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> None:
        """
        Open a journal file, and make it where it is missing.

        Args:
            path: The file.
            read_only: Never write, and make nothing.
            busy_timeout_s: How long to wait for others' locks.
            migrations: The steps to the present schema.

        Raises:
            JournalUnavailable: It cannot be opened or made.
            JournalCorrupt: It is no journal, or damaged; it was left as it is.
            JournalError: Its schema is of a newer release, or of an older one and cannot be
                raised because it is opened to be read only.
        """
        self.path = Path(os.path.abspath(path))
        self.url = f"sqlite://{quote(str(self.path))}"
        self.read_only = read_only
        self._busy_timeout_s = busy_timeout_s
        self._migrations = migrations
        self._write_lock = threading.Lock()
        self._file: tuple[int, int] | None = None  # the first connection to write finds it out
        place.warn_of_network(self.path)
        if not place.is_there(self.path):
            if read_only:
                raise JournalUnavailable(f"journal {self.path}: there is no such file to read")
            with self._translating():
                place.create(self.path, self._build)
        version = self._look_at()
        self._engine = self._new_engine()
        self._insert = str(insert(entries).compile(dialect=self._engine.dialect))
        self._gate = Gate(
            os.path.realpath(self.path), let_go=self._engine.dispose, patience_s=busy_timeout_s
        )
        try:
            if version < len(migrations) and not read_only:
                self._migrate()
            with self.reading():
                pass
        except BaseException:
            self.close()
            raise

    # --- transactions ---------------------------------------------------------------------------

    def write(self, job: Callable[[Connection, bool], T]) -> T:
        """Run a job in one transaction; waiting for its lock is all that is ever tried again."""
        with self.writing() as connection:
            return job(connection, False)

    def read(self, job: Callable[[Connection], T]) -> T:
        """Run a job that only reads."""
        with self.reading() as connection:
            return job(connection)

    @contextlib.contextmanager
    def writing(self) -> Generator[Connection, None, None]:
        """Return a transaction that is committed when its body ends well."""
        if self.read_only:
            raise JournalUnavailable(f"journal {self.path}: it was opened to be read only")
        deadline_s = time.monotonic() + self._busy_timeout_s
        with (
            self._translating(),
            self._gate.entered(),
            self._only_writer(deadline_s),
            self._engine.connect() as connection,
        ):
            raw = _raw(connection)
            transaction = connection.begin()
            self._begin(raw, "BEGIN IMMEDIATE", deadline_s)
            place.require_same(self.path, raw.opened)
            yield connection
            try:
                transaction.commit()
            except DBAPIError as error:
                raise _translated(error, self.path, committing=True) from error
            place.require_same(self.path, raw.opened)

    @contextlib.contextmanager
    def reading(self) -> Generator[Connection, None, None]:
        """Return a transaction whose statements all see the same moment."""
        deadline_s = time.monotonic() + self._busy_timeout_s
        with self._translating(), self._gate.entered(), self._engine.connect() as connection:
            connection.begin()
            self._begin(_raw(connection), "BEGIN", deadline_s)
            yield connection

    def now_ts(self, connection: Connection) -> float:
        """Return the host's time."""
        return time.time()

    def insert_rows(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Insert entries in bulk, straight through the driver, inside `writing`."""
        _raw(connection).executemany(self._insert, rows)

    def close(self) -> None:
        """Let go of every connection, and leave one file behind where no other process reads."""
        if not self._gate.shut(f"journal {self.path} is closed; open it again"):
            return
        if self._file is not None:
            # Every entry is durable in the -wal file already, and the next to open the journal
            # takes it from there: a checkpoint that cannot be made now is no loss.
            with contextlib.suppress(DBAPIError, sqlite3.Error, JournalError):
                self._checkpoint()
        self._engine.dispose()

    def _checkpoint(self) -> None:
        with self._engine.connect() as connection:
            raw = _raw(connection)
            place.require_same(self.path, raw.opened)
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextlib.contextmanager
    def _translating(self) -> Generator[None, None, None]:
        """Turn what SQLite reports into the journal's own errors."""
        try:
            yield
        except (DBAPIError, sqlite3.Error, UnicodeDecodeError) as error:
            raise _translated(error, self.path) from error

    @contextlib.contextmanager
    def _only_writer(self, deadline_s: float) -> Generator[None, None, None]:
        """Keep this process's other writers out, in the order of their coming as far as may be."""
        if not self._write_lock.acquire(timeout=max(deadline_s - time.monotonic(), 0)):
            raise JournalUnavailable(
                f"journal {self.path}: other threads kept it locked past the timeout of "
                f"{self._busy_timeout_s:g} s"
            )
        try:
            yield
        finally:
            self._write_lock.release()

    def _begin(self, raw: _Connection, statement: str, deadline_s: float) -> None:
        """Begin a transaction that has its locks, waiting for them until the deadline."""
        pause_s = POLL_S
        while True:
            try:
                raw.execute(statement)
                version = _version(raw)
                break
            except sqlite3.OperationalError as error:
                raw.rollback()
                if _primary(error) not in _WAITABLE or time.monotonic() >= deadline_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_MAX_S)
        if version != len(self._migrations):
            raise self._wrong_version(version)

    # --- opening --------------------------------------------------------------------------------

    def _new_engine(self) -> Engine:
        """Return an engine whose connections are opened by `_connect`."""
        if self.read_only:  # a fresh connection each time: how to open depends on the moment
            return create_engine("sqlite://", creator=self._connect, poolclass=NullPool)
        return create_engine(
            "sqlite://", creator=self._connect, poolclass=QueuePool, pool_size=4, max_overflow=-1
        )

    def _connect(self) -> _Connection:
        """Open a connection for the engine's pool."""
        if self.read_only:
            return self._connect_to_read()
        raw = self._open("mode=rw")
        try:
            _set_up(raw, self.path)
            _version(raw)
            raw.opened = place.files_of(self.path)
            if self._file is not None:
                place.require_same(self.path, (self._file, *raw.opened[1:]))
            self._file = raw.opened[0]
            raw.execute("PRAGMA busy_timeout = 0")
        except BaseException:
            raw.close()
            raise
        return raw

    def _connect_to_read(self) -> _Connection:
        """
        Open a connection that writes no entry.

        Beside a journal in a directory that cannot be written, SQLite cannot keep its shared
        memory. If no writer has it open either, the file does not change and is read as it is.
        """
        raw = self._open("mode=ro")
        try:
            raw.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            raw.close()
            if _primary(error) not in _NO_SHARED_MEMORY or not place.is_at_rest(self.path):
                raise
            return self._open("mode=ro&immutable=1")
        except BaseException:
            raw.close()
            raise
        return raw

    def _open(self, options: str, path: Path | None = None) -> _Connection:
        return sqlite3.connect(
            f"file:{quote(str(path or self.path))}?{options}",
            uri=True,
            timeout=self._busy_timeout_s,
            isolation_level=None,  # transactions are begun in `_begin`, never behind its back
            check_same_thread=False,  # the pool hands a connection to one thread at a time
            factory=_Connection,
        )

    def _build(self, path: Path) -> None:
        """Fill a new file, which nobody else knows yet."""
        engine = create_engine(
            "sqlite://", creator=lambda: self._open("mode=rw", path), poolclass=NullPool
        )
        with engine.connect() as connection:
            raw = _raw(connection)
            _set_up(raw, self.path)
            with connection.begin():
                raw.execute("BEGIN IMMEDIATE")
                raw.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                migrate(connection, 0, self._migrations)

    def _look_at(self) -> int:
        """Return the schema version of a file that may be anything, and change nothing of it."""
        with self._translating(), contextlib.closing(self._connect_to_read()) as raw:
            if raw.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
                raise JournalCorrupt(
                    f"journal {self.path}: the file does not bear the mark of a journal; it was "
                    "left as it is, name another file"
                )
            return _version(raw)

    def _migrate(self) -> None:
        """Raise an older schema, unless another process does so first."""
        with self._translating(), self._engine.connect() as connection:
            raw = _raw(connection)
            with connection.begin():
                raw.execute(f"PRAGMA busy_timeout = {int(self._busy_timeout_s * 1000)}")
                raw.execute("BEGIN IMMEDIATE")
                migrate(connection, _version(raw), self._migrations)
            raw.execute("PRAGMA busy_timeout = 0")

    def _wrong_version(self, version: int) -> JournalError:
        known = len(self._migrations)
        if version > known:
            return JournalError(
                f"journal {self.path}: it has schema version {version}, this gymckpt knows up to "
                f"{known}: a newer release wrote it; upgrade gymckpt, or use another journal"
            )
        return JournalError(
            f"journal {self.path}: it has schema version {version}, this gymckpt reads {known}; "
            "open it once for writing with this release, which raises it, or read it with the "
            "release that wrote it"
        )


def _set_up(raw: _Connection, path: Path) -> None:
    """Make a connection as durable as the journal promises."""
    (mode,) = raw.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise JournalUnavailable(
            f"journal {path}: its file system does not support SQLite's WAL mode (it stays in "
            f"{mode!r}); take a local disk"
        )
    raw.execute("PRAGMA synchronous = FULL")
    raw.execute("PRAGMA foreign_keys = ON")


def _version(raw: _Connection) -> int:
    """Return the schema version; reading it takes the transaction's snapshot as well."""
    found: object = raw.execute("SELECT schema_version FROM meta").fetchall()
    match found:
        case [(int(version),)]:
            return version
        case _:
            raise JournalCorrupt(f"a journal's schema version is damaged: {text_of(found)[:100]}")


def _raw(connection: Connection) -> _Connection:
    """Return the driver's own connection."""
    return cast("_Connection", connection.connection.dbapi_connection)
