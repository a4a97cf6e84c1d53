"""The stores under test: what opens one journal again and again, each kind in its own place."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymckpt.journal import Journal, MemoryJournal, MemoryStore, open_journal
from tests.postgresql import Server
from tests.racing import WAIT_S


class Home(abc.ABC):
    """A place where one journal lives; every `open` leads to the same entries."""

    def __init__(self) -> None:
        self._opened: list[Journal] = []

    def open(self) -> Journal:
        """Open the journal; it is closed at the end of the test."""
        journal = self._open()
        self._opened.append(journal)
        return journal

    def close(self) -> None:
        """Close whatever the test left open."""
        for journal in self._opened:
            journal.close()

    @abc.abstractmethod
    def _open(self) -> Journal: ...


class MemoryHome(Home):
    """A journal in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._store = MemoryStore()

    def _open(self) -> Journal:
        return MemoryJournal(self._store)


class SqliteHome(Home):
    """A journal in a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def _open(self) -> Journal:
        return open_journal(self.path)


class PostgresqlHome(Home):
    """A journal in a schema of its own."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server = server
        self.schema = server.new_schema()
        self.url = server.url(self.schema)

    def _open(self) -> Journal:
        return open_journal(self.url, busy_timeout_s=WAIT_S)

    def open_with(
        self, *, busy_timeout_s: float = WAIT_S, port: int | None = None, **settings: object
    ) -> Journal:
        """Open it with settings of the session; it is closed at the end of the test."""
        url = self.server.url(self.schema, port=port, **settings)
        self._opened.append(open_journal(url, busy_timeout_s=busy_timeout_s))
        return self._opened[-1]

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run one statement in the schema, behind the journal's back."""
        with self.server.connect() as connection:
            connection.execute(f"SET search_path = {self.schema}".encode())
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


HOMES: dict[str, Callable[[Path, Callable[[str], Any]], Home]] = {
    "memory": lambda _directory, _fixture: MemoryHome(),
    "postgresql": lambda _directory, fixture: PostgresqlHome(fixture("postgresql")),
    "sqlite": lambda directory, _fixture: SqliteHome(directory / "journal.sqlite3"),
}
"""Every store that must keep the contract; a new one joins with one line."""


@pytest.fixture(params=sorted(HOMES))
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """Give each store in turn."""
    place = HOMES[request.param](tmp_path, request.getfixturevalue)
    yield place
    place.close()


@pytest.fixture
def journal(home: Home) -> Journal:
    """Give an empty journal of each store in turn."""
    return home.open()


@pytest.fixture
def sqlite_home(tmp_path: Path) -> Iterator[SqliteHome]:
    """Give a journal in a file."""
    place = SqliteHome(tmp_path / "journal.sqlite3")
    yield place
    place.close()


@pytest.fixture
def pg_home(postgresql: Server) -> Iterator[PostgresqlHome]:
    """Give a journal in a schema of its own of a real server."""
    place = PostgresqlHome(postgresql)
    yield place
    place.close()
