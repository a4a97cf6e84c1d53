"""The shipped journals keep the journal contract, and journals with mistakes do not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from gymckpt.core.entry import Entry
from gymckpt.errors import JournalError
from gymckpt.journal import Journal, MemoryJournal, MemoryStore, open_journal
from gymckpt.testing.journal_contract import JournalContract
from tests.postgresql import Server


class TestMemory(JournalContract):
    """In memory."""

    def opener(self, tmp_path: Path) -> Callable[[], Journal]:
        store = MemoryStore()
        return lambda: MemoryJournal(store)


class TestSqlite(JournalContract):
    """In a file."""

    def opener(self, tmp_path: Path) -> Callable[[], Journal]:
        return lambda: open_journal(tmp_path / "journal.sqlite3")


class TestPostgresql(JournalContract):
    """In a schema of a real server; the contract's opener gets the server from a fixture."""

    server: Server

    @pytest.fixture(autouse=True)
    def _take_server(self, postgresql: Server) -> None:
        self.server = postgresql

    def opener(self, tmp_path: Path) -> Callable[[], Journal]:
        url = self.server.url(self.server.new_schema())
        return lambda: open_journal(url)


# --- journals with mistakes -----------------------------------------------------------------------


class Fresh(MemoryJournal):
    """Opens another store each time."""

    def __init__(self, _store: MemoryStore) -> None:
        super().__init__(MemoryStore())


class Unfenced(MemoryJournal):
    """Lets every epoch append."""

    def append(self, entries: Sequence[Entry], **given: Any) -> None:
        run, name = (entries[0].run, entries[0].operation_id) if entries else ("", "")
        held = self.operation(run, name)
        epoch = held.epoch if held else 1
        own = [attrs.evolve(one, epoch=epoch) for one in entries]
        super().append(own, **{**given, "epoch": epoch})


class Overwriting(MemoryJournal):
    """Takes what does not fit for a repetition."""

    def append(self, entries: Sequence[Entry], **given: Any) -> None:
        try:
            super().append(entries, **given)
        except (JournalError, ValueError):
            return


class Unrepeatable(MemoryJournal):
    """Refuses entries that it has."""

    def append(self, entries: Sequence[Entry], *, expected_seq: int, **given: Any) -> None:
        held = self.operation(entries[0].run, entries[0].operation_id) if entries else None
        if held is not None and held.last_seq > expected_seq:
            raise JournalError("the entries are stored already")
        super().append(entries, expected_seq=expected_seq, **given)


class Unsettling(MemoryJournal):
    """Loses that an operation has settled, and its order."""

    def append(self, entries: Sequence[Entry], **given: Any) -> None:
        super().append(entries, **{**given, "settled": False})


class Unordered(MemoryJournal):
    """Lists and reads backwards."""

    def operations(self, *args: Any, **given: Any) -> Any:
        return super().operations(*args, **given)[::-1]

    def read(self, *args: Any, **given: Any) -> Any:
        return super().read(*args, **given)[::-1]


class Forgetful(MemoryJournal):
    """Stores no facts."""

    def append(self, entries: Sequence[Entry], **given: Any) -> None:
        super().append([attrs.evolve(one, facts={}) for one in entries], **given)


class Reusing(MemoryJournal):
    """Opens what is there already as if it were new, and is never closed."""

    def open_operation(self, *args: Any, **given: Any) -> None:
        try:
            super().open_operation(*args, **given)
        except JournalError:
            raise
        except ValueError:
            return

    def close(self) -> None:
        """Stay open."""


class Takeover(MemoryJournal):
    """Takes over from the living too, and says nothing of their silence."""

    def claim(self, *args: Any, owner: str, stale_s: float | None = None) -> int:
        return super().claim(*args, owner="somebody") and 2

    def silent_s(self, run: str, operation_id: str) -> float | None:
        return None


class Mixed(MemoryJournal):
    """Keeps the runs in one place, and rows that do not follow their entries."""

    def operation(self, run: str, operation_id: str) -> Any:
        found = super().operation("run-1", operation_id)
        return found and attrs.evolve(found, updated_ts=0.0, state="open")


CASES = [
    (name, case)
    for name, test in inspect.getmembers(JournalContract, inspect.isfunction)
    if name.startswith("test_")
    for case in next((mark.args[1] for mark in getattr(test, "pytestmark", [])), [None])
]

MISTAKEN = [
    Fresh, Unfenced, Overwriting, Unrepeatable, Unsettling, Unordered, Forgetful, Reusing, Takeover,
    Mixed,
]  # fmt: skip


def keeps(kind: type[MemoryJournal], name: str, case: Any) -> bool:
    """Say whether a journal passes one test of the contract."""
    store = MemoryStore()
    test = getattr(JournalContract(), name)
    wanted = list(inspect.signature(test).parameters)
    given: list[Any] = [lambda: kind(store)] if wanted[0] == "reopen" else [kind(store)]
    if len(wanted) > 1:
        given += case if len(wanted) > 2 else [case]
    try:
        test(*given)
    except (Exception, pytest.fail.Exception):
        return False
    return True


@pytest.mark.parametrize(("name", "case"), CASES)
def test_each_test_can_fail(name: str, case: Any) -> None:
    """For each test of the contract there is a journal with a mistake that does not pass it."""
    assert keeps(MemoryJournal, name, case)
    assert not all(keeps(kind, name, case) for kind in MISTAKEN)


@pytest.mark.parametrize("kind", MISTAKEN)
def test_each_mistake_is_found(kind: type[MemoryJournal]) -> None:
    """A journal with a mistake fails at least one test."""
    assert not all(keeps(kind, name, case) for name, case in CASES)
