"""
Two journals, one life: whatever is done to both, both answer the same.

A Hypothesis machine does the same to a journal in memory and to one in a database, right and wrong
things alike, closing and opening both as it goes. A machine whose rules never fire would prove
nothing, so the test also asserts that every kind of outcome has occurred.
"""

from __future__ import annotations

import abc
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from gymckpt.core.entry import Entry
from gymckpt.errors import Fenced, JournalConflict, JournalError
from gymckpt.journal import Journal, MemoryJournal, MemoryStore, Selection, open_journal
from gymckpt.journal.steps import steps_of
from gymckpt.testing.counted_rules import run_again
from tests.journal.conftest import PostgresqlHome
from tests.journal.samples import opening
from tests.journal.strategies import any_entry

RUNS = ("run-1", "run-2")
KINDS = {
    "opened",
    "id used",
    "appended",
    "appended and settled",
    "landed before",
    "landed in part",
    "conflict",
    "fenced",
    "unknown",
    "malformed",
    "claimed",
    "read",
    "read unknown",
    "reopened",
    "listed",
    "selected",
    "removed",
    "not removed",
    "closed",
    "held",
    "released",
}
OUTCOMES: Counter[str] = Counter()
"""What has occurred, over all runs of the machine."""


@attrs.define
class Known:
    """What the machine knows of one operation, to be able to do right and wrong things to it."""

    run: str
    operation_id: str
    entries: list[Entry]
    epochs: dict[str, int]
    """Run to the epoch with which it is held."""

    @property
    def epoch(self) -> int:
        """With which its run is held."""
        return self.epochs.get(self.run, 1)


class Database(abc.ABC):
    """Where the journals of one life are, which is empty at its begin."""

    @abc.abstractmethod
    def open(self) -> Journal:
        """Open the journal of this life."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Remove all of it; its journals are closed."""


class File(Database):
    """A file in SQLite."""

    def __init__(self) -> None:
        shared = Path("/dev/shm")
        self._directory = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))

    def open(self) -> Journal:
        return open_journal(self._directory / "journal.sqlite3")

    def clear(self) -> None:
        shutil.rmtree(self._directory)


class Schema(Database):
    """A schema in PostgreSQL, whose tables last and are emptied after each life."""

    def __init__(self, home: PostgresqlHome) -> None:
        self._home = home

    def open(self) -> Journal:
        return open_journal(self._home.url)

    def clear(self) -> None:
        self._home.execute("TRUNCATE entries, operations, runs, heartbeats, removed")


class Agreement(RuleBasedStateMachine):
    """Does the same to both journals and compares what comes of it."""

    operations = Bundle("operations")
    new_database: Callable[[], Database] = File

    def __init__(self) -> None:
        super().__init__()
        self.database = type(self).new_database()
        self.store = MemoryStore()
        self.known: list[Known] = []
        self.epochs: dict[str, int] = {}
        self.removed: set[tuple[str, str]] = set()

    @initialize(target=operations, drawn=st.lists(any_entry, min_size=2, max_size=3))
    def begin(self, drawn: list[Entry]) -> Any:
        """Open both journals for the first time, and an operation in them."""
        self._open()
        return self._begin(Known(RUNS[0], "a", [], self.epochs), drawn)

    def teardown(self) -> None:
        """Close both and remove what is left."""
        for journal in self.journals:
            journal.close()
        self.database.clear()

    def _open(self) -> None:
        stored = self.database.open()
        self.journals: tuple[Journal, Journal] = (MemoryJournal(self.store), stored)

    def both(self, act: Callable[[Journal], Any]) -> Any:
        """Do one thing to both, and return what both have answered."""
        first, second = (_outcome(act, journal) for journal in self.journals)
        assert first == second
        return first

    # --- rules ----------------------------------------------------------------------------------

    @rule(
        target=operations,
        run=st.sampled_from(RUNS),
        name=st.sampled_from("abc"),
        drawn=st.lists(any_entry, min_size=1, max_size=3),
    )
    def open_operation(self, run: str, name: str, drawn: list[Entry]) -> Any:
        """Open an operation, under an id that may have been used."""
        return self._begin(Known(run, name, [], self.epochs), drawn)

    def _begin(self, new: Known, drawn: list[Entry]) -> Any:
        if new.run not in self.epochs:
            self._claim(new.run, "x")
        first = _continued(new, drawn)
        about = opening(new.operation_id, new.run)
        answer = self.both(lambda journal: journal.open_operation(about, first))
        ids = {(one.run, one.operation_id) for one in self.known} | self.removed
        if (new.run, new.operation_id) in ids:
            assert answer[0] == "OperationIdUsed"
            OUTCOMES["id used"] += 1
            return multiple()
        assert answer is None
        OUTCOMES["opened"] += 1
        new.entries.extend(first)
        self.known.append(new)
        return new

    @rule(target=operations, known=consumes(operations), last=st.none() | any_entry)
    def remove(self, known: Known, last: Entry | None) -> Any:
        """Remove an operation, perhaps settled just now: only one that has settled lets it be."""
        if last is not None:
            self.append(known, [last], settled=True)
        row = self.both(lambda journal: journal.operation(known.run, known.operation_id))
        answer = self.both(lambda journal: journal.remove(known.run, known.operation_id))
        if not row.settled:
            assert answer[0] == "JournalError"
            OUTCOMES["not removed"] += 1
            return known
        assert answer is None
        OUTCOMES["removed"] += 1
        self.known.remove(known)
        self.removed.add((known.run, known.operation_id))
        assert self.both(lambda journal: journal.operation(known.run, known.operation_id)) is None
        return multiple()

    @rule(
        latest=st.integers(1, 3),
        run=st.none() | st.sampled_from(RUNS),
        states=st.lists(st.sampled_from(["open", "discarded", "\0"]), max_size=2),
    )
    def select(self, latest: int, run: str | None, states: list[str]) -> None:
        """Select the latest operations, and read what they did."""
        selection = Selection(run=run, latest=latest, states=tuple(states))
        self.both(lambda journal: journal.select(selection))
        self.both(lambda journal: steps_of(journal, run))
        OUTCOMES["selected"] += 1

    @rule(
        known=operations,
        drawn=st.lists(any_entry, min_size=1, max_size=4),
        settled=st.booleans(),
    )
    def append(self, known: Known, drawn: list[Entry], settled: bool) -> None:
        """Append what belongs there."""
        batch = _continued(known, drawn)
        assert self._append(known, batch, len(known.entries), settled=settled) is None
        known.entries.extend(batch)
        OUTCOMES["appended and settled" if settled else "appended"] += 1

    @rule(known=operations, one=any_entry, more=st.lists(any_entry, max_size=2), data=st.data())
    def repeat(self, known: Known, one: Entry, more: list[Entry], data: st.DataObject) -> None:
        """Append again what has landed in this epoch, perhaps with more behind it."""
        mine = [done.seq for done in known.entries[1:] if done.epoch == known.epoch]
        if not mine:
            self.append(known, [one], settled=False)
            mine = [len(known.entries)]
        at = data.draw(st.sampled_from(mine)) - 1
        for new in ([], _continued(known, more)):
            assert self._append(known, [*known.entries[at:], *new], at) is None
            known.entries.extend(new)
            OUTCOMES["landed in part" if new else "landed before"] += 1

    @rule(known=operations, one=any_entry, shift=st.sampled_from([-2, -1, 1, 2]))
    def append_elsewhere(self, known: Known, one: Entry, shift: int) -> None:
        """Append an entry of the right epoch after another entry than the last."""
        at = len(known.entries) + shift
        if at < 1:
            return
        other = "a trigger that no other rule draws"
        batch = [attrs.evolve(_continued(known, [one])[0], seq=at + 1, trigger=other)]
        answer = self._append(known, batch, at)
        assert answer[0] == "JournalConflict"
        OUTCOMES["conflict"] += 1

    @rule(known=operations, one=any_entry, epoch=st.integers(1, 4))
    def append_fenced(self, known: Known, one: Entry, epoch: int) -> None:
        """Append as a controller of another epoch."""
        if epoch == known.epoch:
            return
        batch = [attrs.evolve(_continued(known, [one])[0], epoch=epoch)]
        answer = self._append(known, batch, len(known.entries), epoch=epoch)
        assert answer[0] == "Fenced"
        OUTCOMES["fenced"] += 1

    @rule(known=operations, one=any_entry, fault=st.sampled_from(["gap", "facts", "empty", "run"]))
    def append_malformed(self, known: Known, one: Entry, fault: str) -> None:
        """Append what is no batch."""
        good = _continued(known, [one, one])
        batch: Sequence[Entry] = {
            "gap": [good[0], attrs.evolve(good[1], seq=good[1].seq + 1)],
            "facts": [good[0], attrs.evolve(good[1], facts={"a": {1}})],
            "empty": [],
            "run": [good[0], attrs.evolve(good[1], run="run-3")],
        }[fault]
        answer = self._append(known, batch, len(known.entries))
        assert answer[0] == "ValueError"
        OUTCOMES["malformed"] += 1

    @rule(one=any_entry)
    def append_unknown(self, one: Entry) -> None:
        """Append to, and read, an operation that is not there."""
        nobody = Known("run-3", "nobody", [one], self.epochs)
        answer = self._append(nobody, _continued(nobody, [one]), 1)
        assert answer[0] == "JournalError"
        OUTCOMES["unknown"] += 1
        answer = self.both(lambda journal: journal.read("run-3", "nobody"))
        assert answer[0] == "JournalError"
        OUTCOMES["read unknown"] += 1

    @rule(run=st.sampled_from(RUNS), holder=st.sampled_from(["y", "z"]))
    def take_over(self, run: str, holder: str) -> None:
        """Claim a run, whoever holds it."""
        if self._claim(run, holder) == self.epochs[run]:
            OUTCOMES["claimed"] += 1

    def _claim(self, run: str, holder: str) -> int:
        before = self.both(lambda journal: _who(journal, run))
        epoch: int = self.both(lambda journal: journal.claim(run, holder=holder, force=True))
        same = before is not None and before[1] == holder
        assert epoch == (before[0] if before else 0) + (not same)
        self.epochs[run] = epoch
        return epoch

    @rule(run=st.sampled_from(RUNS), holder=st.sampled_from(["y", "z"]), late=st.booleans())
    def ask_for(self, run: str, holder: str, late: bool) -> None:
        """Claim a run without force, having seen it before or after its last heartbeat."""
        seen = [journal.held(run) for journal in self.journals]
        if late and seen[0] is not None and seen[0].holder:
            self.both(lambda journal: journal.heartbeat(run, epoch=self.epochs[run]))
        unmoved = dict(zip(self.journals, seen, strict=True))
        answer = self.both(
            lambda journal: journal.claim(run, holder=holder, unmoved=unmoved[journal])
        )
        if isinstance(answer, int):
            self.epochs[run] = answer
            OUTCOMES["claimed"] += 1
        else:
            assert answer[0] == "RunHeld"
            OUTCOMES["held"] += 1

    @rule(run=st.sampled_from(RUNS), epoch=st.integers(1, 4))
    def release(self, run: str, epoch: int) -> None:
        """Give a run back, or try to with another epoch, and claim it again."""
        self.both(lambda journal: journal.release(run, epoch=epoch))
        if self.epochs.get(run) == epoch:
            answer = self.both(lambda journal: journal.heartbeat(run, epoch=epoch))
            assert answer[0] == "Fenced"
            OUTCOMES["released"] += 1
            self._claim(run, "x")

    @rule(known=operations, after_seq=st.integers(0, 9))
    def read(self, known: Known, after_seq: int) -> None:
        """Read an operation from somewhere."""
        answer = self.both(
            lambda journal: journal.read(known.run, known.operation_id, after_seq=after_seq)
        )
        assert answer == tuple(known.entries[after_seq:])
        OUTCOMES["read"] += 1

    @rule(run=st.none() | st.sampled_from(RUNS), unfinished=st.booleans())
    def list_operations(self, run: str | None, unfinished: bool) -> None:
        """List the operations, or some of them."""
        answer = self.both(lambda journal: journal.operations(run, unfinished=unfinished))
        assert len(answer) <= len(self.known)
        OUTCOMES["listed"] += 1

    @rule()
    def reopen(self) -> None:
        """Close both journals, try them, and open them again."""
        for journal in self.journals:
            journal.close()
        closed = {_outcome(lambda journal: journal.operations(), one)[0] for one in self.journals}
        assert closed == {"JournalUnavailable"}
        OUTCOMES["closed"] += 1
        self._open()
        OUTCOMES["reopened"] += 1

    @invariant()
    def both_hold_what_was_put_in(self) -> None:
        """Compare everything that both journals hold with what the machine knows."""
        rows = self.both(lambda journal: journal.operations())
        assert {(row.run, row.operation_id): (row.last_seq, row.epoch) for row in rows} == {
            (one.run, one.operation_id): (len(one.entries), one.entries[-1].epoch)
            for one in self.known
        }
        held = self.both(lambda journal: [_who(journal, run) for run in RUNS])
        assert [one and one[0] for one in held] == [self.epochs.get(run) for run in RUNS]

    def _append(
        self,
        known: Known,
        batch: Sequence[Entry],
        at: int,
        *,
        epoch: int | None = None,
        settled: bool = False,
    ) -> Any:
        return self.both(
            lambda journal: journal.append(
                batch, expected_seq=at, epoch=epoch or known.epoch, settled=settled
            )
        )


def _continued(known: Known, drawn: Sequence[Entry]) -> list[Entry]:
    """Return drawn entries as the next ones of an operation."""
    at = len(known.entries)
    made = [
        attrs.evolve(
            one, run=known.run, operation_id=known.operation_id, seq=seq, epoch=known.epoch
        )
        for seq, one in enumerate(drawn, at + 1)
    ]
    if made and not at:
        made[0] = attrs.evolve(made[0], instance=None, source="")
    return made


def _who(journal: Journal, run: str) -> tuple[int, str, int] | None:
    """Return who holds a run, but for the times, which two stores take at two moments."""
    row = journal.held(run)
    return None if row is None else row.mark


def _outcome(act: Callable[[Journal], Any], journal: Journal) -> Any:
    """Return what a call answered, or the facts of what it raised, without the journal's place."""
    try:
        return act(journal)
    except (Fenced, JournalConflict) as error:
        return type(error).__name__, vars(error)
    except (JournalError, ValueError) as error:
        return type(error).__name__, str(error).replace(str(journal.url), "")[:20]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_database_agrees_with_memory(kind: str, request: pytest.FixtureRequest) -> None:
    """Both journals answer every call alike, and every kind of answer was given."""
    OUTCOMES.clear()
    machine: type[Agreement] = Agreement
    if kind == "postgresql":
        schema = Schema(request.getfixturevalue("pg_home"))
        machine = type("InPostgresql", (Agreement,), {"new_database": lambda: schema})
    for number in range(
        8
    ):  # each run leaves some rules out in many lives, so that one may be unlucky
        run_again(machine, number, settings(max_examples=12, stateful_step_count=30, deadline=None))
        if set(OUTCOMES) == KINDS:
            break
    assert set(OUTCOMES) == KINDS
