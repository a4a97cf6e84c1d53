"""The shipped journals keep the journal contract, and journals with mistakes do not."""

from __future__ import annotations

import contextlib
import inspect
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from gymckpt.core.entry import Entry
from gymckpt.errors import JournalError
from gymckpt.journal import (
    Journal,
    MemoryJournal,
    MemoryStore,
    OperationRow,
    RunRow,
    Selection,
    open_journal,
)
from gymckpt.journal.entry import Row
from gymckpt.journal.rules import check_epoch
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
        held = self.held(run) if self.operation(run, name) else None
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

    def claim(self, run: str, *, holder: str, **_given: Any) -> int:
        return super().claim(run, holder=holder, force=True)

    def silent_s(self, run: str) -> float | None:
        return None


class Keeping(MemoryJournal):
    """Lets no run go that was given back."""

    def _release(self, run: str, epoch: int) -> None:
        """Do nothing."""


class Raising(MemoryJournal):
    """Gives its own holder a new epoch with every claim."""

    def _claim(self, run: str, *args: Any) -> int:
        held = self.store.runs.get(run)
        if held is not None:
            self.store.runs[run] = attrs.evolve(held, holder="somebody")
        return super()._claim(run, args[0], None, True)


class Forgetting(MemoryJournal):
    """Begins at the same epoch again and again, whatever is recorded."""

    def _claim(self, run: str, *args: Any) -> int:
        super()._claim(run, *args)
        self.store.runs[run] = attrs.evolve(self.store.runs[run], epoch=1)
        return 1


class Together(MemoryJournal):
    """Raises the epoch of every run with each claim."""

    def _claim(self, run: str, *args: Any) -> int:
        epoch = super()._claim(run, *args)
        for name, row in self.store.runs.items():
            self.store.runs[name] = attrs.evolve(row, epoch=row.epoch + 1)
        return epoch + 1


class Unmoved(MemoryJournal):
    """Does not look whether the holder has moved since."""

    def _claim(self, run: str, holder: str, unmoved: Any, force: bool) -> int:
        return super()._claim(run, holder, unmoved, force or unmoved is not None)


class Opening(MemoryJournal):
    """Lets everybody open."""

    def _insert(self, *args: Any, driven: bool) -> None:
        super()._insert(*args, driven=False)


class Mixed(MemoryJournal):
    """Keeps the runs in one place, and rows that do not follow their entries."""

    def operation(self, run: str, operation_id: str) -> Any:
        found = super().operation("run-1", operation_id)
        return found and attrs.evolve(found, updated_ts=0.0, state="open")


class Reticent(MemoryJournal):
    """Says neither what opens it again nor whether its calls may wait."""

    url: Any = None
    blocks: Any = None


class Lifeless(MemoryJournal):
    """Stores no heartbeat but the first."""

    def _heartbeat(self, run: str, epoch: int) -> None:
        check_epoch(self.store.runs.get(run), run, epoch)

    def _claim(self, run: str, *args: Any) -> int:
        held = self.store.runs.get(run)
        epoch = super()._claim(run, *args)
        if held is not None:
            self._beats_as(run, held)
        return epoch

    def _beats_as(self, run: str, held: RunRow) -> None:
        now = self.store.runs[run]
        self.store.runs[run] = attrs.evolve(now, beats=held.beats, beat_ts=held.beat_ts)


class Private(MemoryJournal):
    """Keeps heartbeats in the object, where no other controller sees them."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._beats_ts: dict[str, float] = {}

    def _heartbeat(self, run: str, epoch: int) -> None:
        check_epoch(self.store.runs.get(run), run, epoch)
        self._beats_ts[run] = self.store.now_s()

    def _silent_s(self, run: str) -> float | None:
        beat_ts = self._beats_ts.get(run)
        return super()._silent_s(run) if beat_ts is None else self.store.now_s() - beat_ts


class Immortal(MemoryJournal):
    """Never says that anybody is silent."""

    def _silent_s(self, run: str) -> float | None:
        return 0.0 if run in self.store.runs else None


class OwnLock(MemoryJournal):
    """Makes threads wait for each other, but not whoever else has it open."""

    _meeting = threading.Barrier(2)

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._own = threading.Lock()

    def _append(self, batch: Any) -> None:
        self._on_what_was_read((batch.run, batch.operation_id), super()._append, batch)

    def _claim(self, *args: Any) -> Any:
        return self._on_what_was_read((args[0], ""), super()._claim, *args)

    def _on_what_was_read(self, key: Any, write: Callable[..., Any], *args: Any) -> Any:
        with self._own:
            held, rows = self.store.operations.get(key), list(self.store.rows.get(key, []))
            run = self.store.runs.get(key[0])
            with contextlib.suppress(threading.BrokenBarrierError):
                self._meeting.wait(0.01)
            self._meeting.reset()
            if held is not None:
                self.store.operations[key], self.store.rows[key] = held, rows
            if run is not None:
                self.store.runs[key[0]] = run
            return write(*args)


class Stepless(MemoryJournal):
    """Knows no steps."""

    def step_rows(self, run: str | None) -> Sequence[Row]:
        return []


class StepsOfAll(MemoryJournal):
    """Gives the steps of all runs, whichever is asked for."""

    def step_rows(self, run: str | None) -> Sequence[Row]:
        return super().step_rows(None)


class StepsTwice(MemoryJournal):
    """Gives every step twice."""

    def step_rows(self, run: str | None) -> Sequence[Row]:
        return [*super().step_rows(run)] * 2


class StepsWithAll(MemoryJournal):
    """Takes every entry for a step."""

    def step_rows(self, run: str | None) -> Sequence[Row]:
        kept = self.store.rows.items()
        return [row for key, rows in kept if run in (None, key[0]) for row in rows]


class Unpaged(MemoryJournal):
    """Reads to the end, however much was asked for."""

    def _read(self, run: str, operation_id: str, after_seq: int, last_seq: int) -> Any:
        return super()._read(run, operation_id, after_seq, 2**63 - 1)


class SelectingAll(MemoryJournal):
    """Lists the operations of a run, whatever else was chosen."""

    def _select(self, selection: Selection) -> Sequence[OperationRow]:
        return super()._select(Selection(run=selection.run, unfinished=selection.unfinished))


class OldestFirst(MemoryJournal):
    """Takes the first for the latest."""

    def _select(self, selection: Selection) -> Sequence[OperationRow]:
        rows = super()._select(attrs.evolve(selection, latest=None))
        return rows[::-1][: selection.latest]


class Rounding(MemoryJournal):
    """Keeps moments to the millisecond."""

    def append(self, entries: Sequence[Entry], **given: Any) -> None:
        super().append([attrs.evolve(one, ts=round(one.ts, 3)) for one in entries], **given)


class Lowering(MemoryJournal):
    """Keeps facts in small letters, as a column that knows no case would."""

    def append(self, entries: Sequence[Entry], **given: Any) -> None:
        low = [
            attrs.evolve(one, facts=json.loads(json.dumps(one.facts).lower())) for one in entries
        ]
        super().append(low, **given)


CASES = [
    (name, case)
    for name, test in inspect.getmembers(JournalContract, inspect.isfunction)
    if name.startswith("test_")
    for case in next((mark.args[1] for mark in getattr(test, "pytestmark", [])), [None])
]

HEARTBEAT_IS_SEEN = "test_a_heartbeat_ends_the_silence_for_everybody"
CLAIM_IS_SEEN = "test_a_claim_ends_the_silence_for_everybody"
SELECTIONS = "test_a_selection_is_what_is_listed"
STEPS = "test_the_steps_are_what_operations_did_themselves"

FOUND_BY: list[tuple[type[MemoryJournal], str]] = [
    (Reticent, "test_it_says_where_it_is"),
    (Reticent, "test_it_says_whether_calls_may_wait"),
    (Lifeless, HEARTBEAT_IS_SEEN),
    (Lifeless, CLAIM_IS_SEEN),
    (Lifeless, "test_every_heartbeat_moves_the_row"),
    (Private, HEARTBEAT_IS_SEEN),
    (Takeover, "test_the_living_keep_their_run"),
    (Keeping, "test_a_run_that_was_given_back_is_claimed_at_once"),
    (Raising, "test_the_holder_is_given_its_own_epoch"),
    (Forgetting, "test_claims_count_up"),
    (Forgetting, "test_a_claim_goes_on_after_what_is_recorded"),
    (Together, "test_runs_are_claimed_apart"),
    (Unmoved, "test_the_living_keep_their_run"),
    (Unmoved, "test_of_racing_claims_one_finds_the_holder_unmoved"),
    (Opening, "test_nothing_is_opened_without_the_run"),
    (Immortal, HEARTBEAT_IS_SEEN),
    (OwnLock, "test_of_racing_writers_one_lands"),
    (OwnLock, "test_claims_are_all_different"),
    (Stepless, STEPS),
    (StepsOfAll, STEPS),
    (StepsTwice, STEPS),
    (StepsWithAll, STEPS),
    (Unpaged, "test_entries_come_back_in_pages"),
    (SelectingAll, SELECTIONS),
    (OldestFirst, SELECTIONS),
    (Rounding, "test_entries_come_back_in_order"),
    (Lowering, "test_facts_come_back_as_they_were"),
]
"""Journals with one mistake each, and the test that is there to find it."""

MISTAKEN: list[type[MemoryJournal]] = [
    Fresh, Unfenced, Overwriting, Unrepeatable, Unsettling, Unordered, Forgetful, Reusing, Takeover,
    Mixed, *dict(FOUND_BY),
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


@pytest.mark.parametrize(("kind", "name"), FOUND_BY)
def test_the_test_that_is_meant_finds_it(kind: type[MemoryJournal], name: str) -> None:
    """A mistake is found by the test whose name says what is wrong."""
    assert not all(keeps(kind, *one) for one in CASES if one[0] == name)


@pytest.mark.parametrize("kind", MISTAKEN)
def test_each_mistake_is_found(kind: type[MemoryJournal]) -> None:
    """A journal with a mistake fails at least one test."""
    assert not all(keeps(kind, name, case) for name, case in CASES)
