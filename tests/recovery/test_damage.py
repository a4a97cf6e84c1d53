"""
Recovery of a run of which one operation is damaged: it is named, and the others are settled.

Every fact of every entry of small histories is renamed, removed and given another type, and bits of
the stored rows are flipped. Nothing of that may keep a healthy operation of the same run from its
end, whatever comes of the damaged one.
"""

from __future__ import annotations

import asyncio
import functools
import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from gymckpt.core.entry import Entry
from gymckpt.core.replay import replay
from gymckpt.errors import InvariantViolated, ReplayDiverged
from gymckpt.journal import Journal, MemoryJournal, Opening, open_journal
from gymckpt.journal.rules import operation_from
from gymckpt.recovery import Recovered, recover, recover_all
from gymckpt.runtime.worker import open_recorder
from tests.fakes import FakeActor
from tests.recovery.test_recovery import WIRE_ID, holding, ids_of, lived, run_of

HEALTHY = "healthy"
SCENARIOS = ("checkpoint", "checkpoint fails", "restore", "restore fails")

Change = Callable[[dict[str, Any], str], None]


def _rename(facts: dict[str, Any], name: str) -> None:
    facts[f"{name}x"] = facts.pop(name)


def _remove(facts: dict[str, Any], name: str) -> None:
    del facts[name]


def _retype(value: Any) -> Change:
    def change(facts: dict[str, Any], name: str) -> None:
        facts[name] = value

    return change


CHANGES: dict[str, Change] = {
    "rename": _rename,
    "remove": _remove,
    "null": _retype(None),
    "number": _retype(7),
    "text": _retype("soon"),
    "list": _retype([None, {}]),
    "mapping": _retype({"a": [1]}),
}


@functools.cache
def histories(scenario: str, base: Path) -> tuple[tuple[Entry, ...], ...]:
    """Return what a scenario has recorded, cut off in each of its states."""
    entries = lived(scenario, base / scenario.replace(" ", "-"))
    found: dict[str, tuple[Entry, ...]] = {}
    for count in range(1, len(entries) + 1):
        operation = replay(entries[:count])
        if not operation.settled:
            found[operation.state] = entries[:count]
    return tuple(found.values())


def damaged(entries: tuple[Entry, ...], change: Change) -> Iterator[tuple[Entry, ...]]:
    """Yield a history with each of its facts changed, one at a time."""
    for place, entry in enumerate(entries):
        for name in entry.facts:
            facts = json.loads(json.dumps(entry.facts))
            change(facts, name)
            changed = attrs.evolve(entry, facts=facts)
            yield (*entries[:place], changed, *entries[place + 1 :])


def recovered(journal: Journal, run: str, instances: tuple[str, ...]) -> dict[str, Recovered]:
    """Recover a run, and return what came of each operation."""
    actors = {name: FakeActor() for name in instances}

    async def main() -> dict[str, Recovered]:
        found = await recover(journal, actors, run=run, force=True, command=True)
        return {one.operation_id: one for one in found}

    return asyncio.run(main())


def as_stored(broken: tuple[Entry, ...], whole: tuple[Entry, ...]) -> MemoryJournal:
    """Return a journal with a damaged history, whose row is not damaged, and a healthy one."""
    healthy = tuple(attrs.evolve(one, operation_id=HEALTHY) for one in whole)
    journal, facts = holding(healthy), whole[0].facts
    opening = Opening(
        run=run_of(whole),
        operation_id=WIRE_ID,
        chart=facts["chart"],
        chart_version=facts["chart_version"],
    )
    row = operation_from(opening, broken, epoch=1, owner="the-dead", settled=False)
    journal.insert_operation(row, broken)
    return journal


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_damaged_fact_stops_nothing_else(
    scenario: str, change: str, thorough: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whichever fact is renamed, removed or of another type, the healthy operation is settled."""
    base = tmp_path_factory.getbasetemp() / "lived"
    named = 0
    cuts = histories(scenario, base)
    for entries in cuts if thorough else cuts[list(CHANGES).index(change) % 4 :: 4]:
        for broken in damaged(entries, CHANGES[change]):
            found = recovered(as_stored(broken, entries), run_of(entries), ids_of(entries))
            assert found[HEALTHY].outcome == "settled"
            bad = found[WIRE_ID]
            try:
                replay(broken)
            except (ReplayDiverged, InvariantViolated):
                assert bad.outcome == "unreadable", "what cannot be replayed is not settled"
            if bad.outcome == "unreadable":
                assert bad.reason
                named += 1
            else:
                assert bad.ended
    assert named > 0


def test_an_unreadable_checkpoint_is_fenced_and_reopened(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Where its opening is readable, every instance is sent a resume of its id."""
    base = tmp_path_factory.getbasetemp() / "lived"
    for entries in histories("checkpoint", base)[1:]:
        bad = attrs.evolve(entries[-1], dest="nowhere")
        journal, ids = as_stored((*entries[:-1], bad), entries), ids_of(entries)
        before = journal.read(run_of(entries), WIRE_ID)
        found = recovered(journal, run_of(entries), ids)[WIRE_ID]
        assert (found.outcome, found.fenced, found.unconfirmed) == ("unreadable", ids, ())
        assert journal.read(run_of(entries), WIRE_ID) == before
        fewer = as_stored((*entries[:-1], bad), entries)
        missing = recovered(fewer, run_of(entries), ids[1:])[WIRE_ID]
        assert (missing.fenced, missing.missing) == (ids[1:], ids[:1])


def test_an_unreadable_restore_is_left_to_an_operator(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A resume would say that its attempts stand: nothing is sent, and that is said."""
    base = tmp_path_factory.getbasetemp() / "lived"
    entries = histories("restore", base)[-1]
    bad = attrs.evolve(entries[-1], dest="nowhere")
    journal, ids = as_stored((*entries[:-1], bad), entries), ids_of(entries)
    actors = {name: FakeActor() for name in ids}
    found = asyncio.run(recover(journal, actors, run=run_of(entries), force=True, command=True))
    [one] = [one for one in found if one.operation_id == WIRE_ID]
    assert (one.outcome, one.fenced, one.unconfirmed) == ("unreadable", (), ids)
    assert "for an operator to say" in one.reason
    assert not any(call.wire_id == WIRE_ID for actor in actors.values() for call in actor.calls)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_flipped_bit_stops_nothing_else(
    scenario: str, thorough: bool, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whichever bit of a stored row flips, the healthy operation is settled."""
    base = tmp_path_factory.getbasetemp() / "lived"
    chance = random.Random(scenario)
    for number, entries in enumerate(histories(scenario, base)):
        whole = tmp_path / f"{number}.sqlite3"
        source = as_stored(entries, entries)
        with open_journal(whole) as journal:
            for row in source.operations():
                journal.insert_operation(row, source.read(row.run, row.operation_id))
        image = whole.read_bytes()
        for turn in range(20 if thorough else 2):
            path = tmp_path / f"{number}-{turn}.sqlite3"
            path.write_bytes(image)
            if not _flip(path, chance):
                continue
            with open_journal(path) as journal:
                found = recovered(journal, run_of(entries), ids_of(entries))
            assert found[HEALTHY].outcome == "settled"
            assert all(one.ended or one.reason for one in found.values())


def _flip(path: Path, chance: random.Random) -> bool:
    """Flip one bit of a text in a row of the damaged operation; False where that is no text."""
    with sqlite3.connect(path) as raw:
        table = chance.choice(["entries", "entries", "operations"])
        columns = {"entries": ("trig", "src", "dst", "facts"), "operations": ("chart", "state")}
        column = chance.choice(columns[table])
        rows = raw.execute(f"SELECT rowid, {column} FROM {table} WHERE op = ?", (WIRE_ID,))
        rowid, text = chance.choice(rows.fetchall())
        if not text:
            return False
        stored = bytearray(text.encode())
        stored[chance.randrange(len(stored))] ^= 1 << chance.randrange(7)
        try:
            new = stored.decode()
        except UnicodeDecodeError:
            return False
        raw.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (new, rowid))
    raw.close()
    return True


def test_no_epoch_is_raised_where_nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A run of which everything has settled is not claimed, so that its holder keeps it."""
    base = tmp_path_factory.getbasetemp() / "lived"
    entries = histories("checkpoint", base)[-1]
    journal = holding(entries)
    recovered(journal, run_of(entries), ids_of(entries))
    held = journal.held(run_of(entries))
    assert recovered(journal, run_of(entries), ids_of(entries)) == {}
    assert journal.held(run_of(entries)) == held


def test_what_has_settled_is_not_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    """However many operations of a run have settled, recovery reads the unfinished ones alone."""
    base = tmp_path_factory.getbasetemp() / "lived"
    ended = lived("restore fails", base / "ended")
    assert replay(ended).settled
    entries = histories("restore fails", base)[-1]
    read: list[str] = []

    class Counting(MemoryJournal):
        """Notes what is read."""

        def _read(self, run: str, operation_id: str, after_seq: int, last_seq: int) -> Any:
            read.append(operation_id)
            return super()._read(run, operation_id, after_seq, last_seq)

    journal = Counting(holding(entries).store)
    [whole] = holding(ended).operations()
    for number in range(1_000):
        name = f"discarded-{number}"
        history = [attrs.evolve(one, operation_id=name, run=run_of(entries)) for one in ended]
        row = attrs.evolve(
            whole, operation_id=name, run=run_of(entries), state="discarded", settled=True
        )
        journal.insert_operation(row, history)
    read.clear()

    async def main() -> None:

        recorder = await open_recorder(journal, owner="host:1", timeout_s=10.0)
        actors = {name: FakeActor() for name in ids_of(entries)}
        [found] = await recover_all(recorder, actors, run=run_of(entries), force=True)
        assert found.outcome == "settled"
        await recorder.give_back()

    asyncio.run(main())
    assert set(read) == {WIRE_ID}
