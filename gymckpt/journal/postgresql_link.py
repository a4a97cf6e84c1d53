"""
The way to a PostgreSQL server: what a URL says, and a connection that never waits without a bound.

A password is read from the URL and never shown: not in the URL that the journal calls itself, nor
in an error about it. A server that is frozen, or whose host is gone, sends nothing at all, not even
an error, so a connection keeps the time itself.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Generator, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from gymckpt.errors import JournalError, text_of

__all__ = ["BoundedConnection", "connect", "parse", "shown"]

T = TypeVar("T")

DRIVER = "postgresql+psycopg"
_EXAMPLE = f"{DRIVER}://user@host:port/database"

CONNECT_S_MIN = 2
"""The driver waits no shorter than this for one host to answer."""

KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 5, "keepalives_count": 3}
"""How an unused connection is kept from being forgotten on the way, or is found to be lost."""

_ENCODINGS = ("UTF8", "SQL_ASCII")
"""What a database must hold text in, to hold every entry: these keep the bytes of UTF-8."""


def parse(url: str) -> URL:
    """
    Return the URL with the driver that is used.

    Raises:
        ValueError: It is malformed. As nobody knows which part of a malformed URL is the password,
            none of it is shown.
    """
    try:
        target = make_url(url)
    except (ArgumentError, ValueError):
        raise _malformed("it cannot be taken apart; the port must be a number") from None
    if "@" in (target.host or "") or "@" in (target.database or ""):
        raise _malformed("an '@' in the user or the password is written %40, a '/' %2F")
    if not target.database:
        raise _malformed("it names no database")
    target = target.set(drivername=DRIVER)
    try:
        arguments = target.get_dialect()().create_connect_args(target)[1]
        arguments.pop("context", None)  # for the driver, not for the server
        make_conninfo("", **arguments)
    except (psycopg.Error, ArgumentError, ValueError, TypeError) as error:
        raise _malformed(text_of(error)[:200]) from None
    return target


def _malformed(why: str) -> ValueError:
    return ValueError(f"the journal's PostgreSQL URL is malformed: {why}; give {_EXAMPLE}")


def shown(target: URL) -> str:
    """Return the URL without any secret: it opens the same journal where libpq knows that."""
    secret = [key for key in target.query if "password" in key or "secret" in key]
    bare = URL.create(
        target.drivername,
        username=target.username,
        host=target.host,
        port=target.port,
        database=target.database,
        query=target.difference_update_query(secret).query,
    )
    return bare.render_as_string()


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that gives up, and is closed then, when the server stays silent too long."""

    gives_up_s: float = math.inf
    """Until when an answer is waited for, by the monotonic clock."""
    silence_s: float = 0.0
    """How long each part of an answer lets that be later; 0 where it does not."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """Wait for an exchange with the server, as the driver does but with a bound."""
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, exchange: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Relay an exchange until its time is over; the driver asks ten times a second."""
        try:
            wanted = next(exchange)
            while True:
                ready = yield wanted
                wanted = exchange.send(ready)
                now_s = time.monotonic()
                if ready and self.silence_s:
                    self.gives_up_s = max(self.gives_up_s, now_s + self.silence_s)
                if now_s >= self.gives_up_s:
                    self.pgconn.finish()
                    raise psycopg.OperationalError("the server gave no answer in time")
        except StopIteration as end:
            answer: T = end.value
            return answer


def connect(arguments: Mapping[str, Any], *, wait_s: float, silence_s: float) -> BoundedConnection:
    """
    Open a connection on which transactions are begun by hand, never behind one's back.

    Args:
        arguments: What the URL says, in the driver's words; it wins where that does no harm.
        wait_s: How long to wait for each host that the URL names.
        silence_s: How long a host may leave unanswered what it was sent, before it counts as gone.

    Raises:
        psycopg.Error: The server cannot be reached, or refuses.
        JournalError: The database cannot hold every text.
    """
    settings: dict[str, Any] = {
        "application_name": f"gymckpt-{os.getpid()}",
        "tcp_user_timeout": int(silence_s * 1_000),
        **KEEPALIVE,
        **arguments,
        "connect_timeout": max(CONNECT_S_MIN, math.ceil(wait_s)),
        "client_encoding": "UTF8",
    }
    connection = BoundedConnection.connect(**settings, autocommit=True)
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in _ENCODINGS:
        name = connection.info.dbname
        connection.close()
        raise JournalError(
            f"the database {name!r:.100} holds text in {encoding}, which cannot hold every entry; "
            "create one with ENCODING 'UTF8'"
        )
    return connection
