"""
What an error of PostgreSQL means for a journal: whether it may pass, and in which words.

Errors are told apart by their SQLSTATE. Only where a server turns a connection away at the door the
driver does not give it, so those few are known by their English text; in another language they
are found out later, at the timeout. No text of the driver's is shown unredacted.
"""

from __future__ import annotations

from typing import Any

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from gymckpt.errors import JournalCorrupt, JournalError, JournalUnavailable, text_of

__all__ = ["CONTRADICTION", "may_pass", "said", "state_of", "translated", "was_undone"]

CONTRADICTION = "23505"
"""A key that is there already: by another controller's doing at the same time, or by damage."""

_UNDEFINED = frozenset({"42P01", "3F000"})
"""No such table, no such schema."""

_PASSING_CLASSES = frozenset({"08", "40", "53", "57", "58"})
"""SQLSTATE classes: connection, rollback, resources, operator intervention, the system."""

_LOCK_TIMEOUT = "55P03"

_FINAL = {
    "53100": "its disk is full; make room and try again",
    "25006": "it cannot be written: the server or the session is read only",
    "42501": "access is denied; grant this role its rights on the schema and its tables",
    "3F000": "there is no such schema; create it first, or correct the search_path",
}
"""SQLSTATE to what it means, where waiting does not help."""

_AT_THE_DOOR = {
    "password authentication failed": "the password was refused",
    "no password supplied": "the server asks for a password; put it into ~/.pgpass, $PGPASSWORD or "
    "the URL",
    "authentication failed": "the role was refused",
    "pg_hba.conf": "the server lets this role not in from this host; see its pg_hba.conf",
    "is not permitted to log in": "the role was refused",
    "permission denied for database": "this role has no right to connect to the database",
    'role "': "there is no such role; create it first",
    'database "': "there is no such database; create it first",
    "invalid sslmode value": "the URL names no sslmode that there is",
}
"""A part of what is said to a connection that is turned away, in order, to what it means."""

_GONE = " does not exist"


def _cause(error: BaseException) -> BaseException:
    """Return the driver's own error."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def state_of(error: BaseException) -> str:
    """Return the SQLSTATE of an error; empty for one of the client itself."""
    return str(getattr(_cause(error), "sqlstate", None) or "")


def _ends_connection(error: BaseException) -> bool:
    """Whether the server closed the connection with this error, and perhaps more than that."""
    diagnosis: Any = getattr(_cause(error), "diag", None)
    return getattr(diagnosis, "severity_nonlocalized", None) in ("FATAL", "PANIC")


def was_undone(error: BaseException) -> bool:
    """
    Whether a commit that ended in this error certainly stored nothing.

    A server that answers a commit with an error of the statement has rolled it back. One that ends
    the connection instead, or falls silent, may have stored it before.
    """
    return bool(state_of(error)) and not _ends_connection(error)


def may_pass(error: BaseException) -> bool:
    """Whether the same call may succeed a little later."""
    if isinstance(error, PoolTimeoutError):
        return True
    state = state_of(error)
    if state in _FINAL:
        return False
    if not state:  # the connection was refused, or broke before the server said anything
        cause = _cause(error)
        known = isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError)
        return known and not _refusal_at_the_door(cause)
    if state[:2] in _PASSING_CLASSES or state in (CONTRADICTION, _LOCK_TIMEOUT):
        return True
    return _ends_connection(error)


def _refusal_at_the_door(error: BaseException) -> str:
    """Return why a connection was turned away for good; empty where it was not."""
    text = str(error)
    for part, meaning in _AT_THE_DOOR.items():
        if part in text and (not part.endswith('"') or _GONE in text):
            return meaning
    return ""


def translated(error: BaseException, journal: str, *, opened: bool) -> JournalError:
    """
    Return what an error that will not pass means for a journal.

    Args:
        error: The error.
        journal: How to name the journal.
        opened: Whether the journal was found to be one before.
    """
    state = state_of(error)
    meaning = _FINAL.get(state) or ("" if state else _refusal_at_the_door(_cause(error)))
    if meaning:
        return JournalUnavailable(f"{journal}: {meaning} ({said(error)})")
    if opened and state in _UNDEFINED:
        return JournalUnavailable(
            f"{journal}: a table of it is gone, though it was there when the journal was opened; "
            f"restore it, or name another journal ({said(error)})"
        )
    if not opened and state.startswith("42"):
        return JournalCorrupt(
            f"{journal}: the schema has tables of these names which are no journal's; they were "
            "left as they are, name a schema of its own with ?options=-csearch_path%3DNAME "
            f"({said(error)})"
        )
    if state.startswith(("23", "42")):
        return JournalCorrupt(
            f"{journal}: its tables contradict each other or are not those of a journal; restore "
            f"a copy, or name another journal ({said(error)})"
        )
    if state in ("XX001", "XX002"):
        return JournalCorrupt(
            f"{journal}: the server found its files damaged; restore a copy ({said(error)})"
        )
    return JournalError(f"{journal}: the server refused a statement ({said(error)})")


def said(error: BaseException) -> str:
    """Return what was said, in one short line."""
    if isinstance(error, PoolTimeoutError):
        return "all connections of this process stayed in use by other threads"
    cause, state = _cause(error), state_of(error)
    text = " ".join(text_of(cause)[:300].split())
    return f"{type(cause).__name__} {state}: {text}" if state else f"{type(cause).__name__}: {text}"
