"""
Where the journal is: URLs, paths, the environment's variables and the default.

`GYMCKPT_JOURNAL` names the journal and `GYMCKPT_RUN` the training run, where the caller does not.
The databases are imported only when one is opened.
"""

from __future__ import annotations

import datetime
import logging
import os
import uuid
from pathlib import Path
from urllib.parse import unquote, urlsplit

from platformdirs import user_state_path

from gymckpt.episodes import require_operation_id
from gymckpt.errors import text_of
from gymckpt.journal.base import Journal
from gymckpt.journal.memory import MemoryJournal

__all__ = ["default_run", "open_journal", "warn_of_generated"]

logger = logging.getLogger("gymckpt.journal")

JOURNAL_VARIABLE = "GYMCKPT_JOURNAL"
RUN_VARIABLE = "GYMCKPT_RUN"

_KNOWN = (
    "memory://, sqlite:///absolute/path, postgresql+psycopg://user@host/database, or the path of "
    "a file"
)
_POSTGRESQL = ("postgresql://", "postgresql+psycopg://")


def open_journal(
    url: str | os.PathLike[str] | Journal | None = None,
    *,
    read_only: bool = False,
    busy_timeout_s: float = 5.0,
) -> Journal:
    """
    Open a journal, and make it where it is missing.

    Args:
        url: `memory://` for a new one in memory, `sqlite:///absolute/path` (with %-escapes), or a
            path, taken as it is but for a leading `~`, or
            `postgresql+psycopg://user@host:port/database`. A journal is returned as it is. None:
            `$GYMCKPT_JOURNAL`, else `journal.sqlite3` in the user's state directory.
        read_only: Make nothing and write nothing; works beside a controller that writes, and for
            a journal at rest also in a directory that cannot be written.
        busy_timeout_s: How long one call waits for others' locks.

    Raises:
        ValueError: No journal can be at this URL.
        TypeError: A journal of your own gives no `url` or no `blocks`.
        JournalUnavailable: It cannot be opened or made.
        JournalCorrupt: What is there is no journal, or damaged; it was left as it is.
        JournalError: A release with another schema wrote it.
    """
    if isinstance(url, Journal):
        if read_only:
            raise ValueError("a journal that is open already cannot be opened to be read only")
        _require_told(url)
        return url
    place = os.fspath(_default_place() if url is None else url)
    if place == "memory://" and not isinstance(url, os.PathLike):
        if read_only:
            raise ValueError("memory:// opens an empty journal, in which there is nothing to read")
        return MemoryJournal()
    if isinstance(url, str | None) and place.startswith(_POSTGRESQL):
        return _on_postgresql(place, read_only=read_only, busy_timeout_s=busy_timeout_s)
    path = Path(place) if isinstance(url, os.PathLike) else _path_from(place)
    from gymckpt.journal.sql import SqlJournal  # noqa: PLC0415 - a database is imported on demand
    from gymckpt.journal.sqlite import SqliteStore  # noqa: PLC0415 - likewise

    return SqlJournal(SqliteStore(path, read_only=read_only, busy_timeout_s=busy_timeout_s))


def _require_told(journal: Journal) -> None:
    """Raise TypeError where a journal does not say what every user of it has to know."""
    for name, kind in (("url", str), ("blocks", bool)):
        if not isinstance(getattr(journal, name, None), kind):
            raise TypeError(
                f"{type(journal).__name__} has to give `{name}`, a {kind.__name__}; "
                "gymckpt.journal.Journal says what it is for"
            )


def _on_postgresql(url: str, *, read_only: bool, busy_timeout_s: float) -> Journal:
    from gymckpt.journal.sql import SqlJournal  # noqa: PLC0415 - a database is imported on demand

    try:
        from gymckpt.journal.postgresql import PostgresqlStore  # noqa: PLC0415 - likewise
    except ImportError as error:
        raise ValueError(
            "a journal on PostgreSQL needs psycopg: pip install 'gymckpt[postgresql]'"
        ) from error
    return SqlJournal(PostgresqlStore(url, read_only=read_only, busy_timeout_s=busy_timeout_s))


def default_run() -> str:
    """
    Return the name of this training run: `$GYMCKPT_RUN`, else a new one.

    Raises:
        ValueError: The variable holds no name that the journal accepts.
    """
    named = os.environ.get(RUN_VARIABLE)
    if named:
        return require_operation_id(named, f"the run in ${RUN_VARIABLE}")
    today = datetime.datetime.now(datetime.UTC).date()
    return require_operation_id(f"run-{today.isoformat()}-{uuid.uuid4().hex[:12]}")


def warn_of_generated(run: str) -> None:
    """
    Say in the log, where nobody has named a run, what that name does not protect from.

    Args:
        run: The name that was generated.
    """
    if os.environ.get(RUN_VARIABLE):
        return
    logger.warning(
        "nobody has named this run, so it is %r: another process, or the same trainer started "
        "again, gets another name and is not kept from driving the same actors; give run=, or set "
        "$GYMCKPT_RUN",
        run,
    )


def _default_place() -> str | Path:
    return os.environ.get(JOURNAL_VARIABLE) or user_state_path("gymckpt") / "journal.sqlite3"


def _path_from(place: str) -> Path:
    """Return the file that a URL or a path names, or raise ValueError."""
    shown = text_of(place)[:200]
    if not place or "\0" in place or place == ":memory:":
        raise ValueError(f"{shown!r} names no journal; give {_KNOWN}")
    if "://" not in place:
        return Path(place).expanduser()
    scheme = place.partition("://")[0]
    if scheme != "sqlite":  # what follows is not shown: a part of it may be a password
        raise ValueError(f"journal URL: scheme {scheme!r:.40} is not known; give {_KNOWN}")
    parts = urlsplit(place)
    path = unquote(parts.path)
    if parts.netloc or parts.query or parts.fragment or not path.strip("/") or "\0" in path:
        raise ValueError(
            f"journal URL {shown!r}: after sqlite:// comes the absolute path of a file and nothing "
            "else; write '?' as %3F and '#' as %23, or give the plain path"
        )
    return Path("/" + path.lstrip("/"))
