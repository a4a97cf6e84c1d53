"""`recover`: what it takes over, what it leaves alone, and what it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

import gymckpt
from gymckpt import EnvironmentEpisode, GymCheckpointCoordinator, Recovered
from gymckpt.core.entry import Entry
from gymckpt.core.replay import replay
from gymckpt.errors import GymCheckpointOperationError, JournalError, JournalUnavailable
from gymckpt.journal import Journal, open_journal
from gymckpt.journal.memory import MemoryJournal, MemoryStore
from gymckpt.journal.rules import Opening
from gymckpt.recovery import recover
from gymckpt.runtime.holding import as_process
from tests.fakes import HANG, FakeActor
from tests.faults.virtual import LoopClock, running_loop, simulate
from tests.faults.world import World, until

WIRE_ID = "op-1"
SAVED = "/var/snapshots/step-1"


class Deliberate(Exception):
    """What a body fails with on purpose."""


# --- every history, cut off anywhere --------------------------------------------------------------

ENDS = {
    "open": "discarded",
    "preparing": "discarded",
    "confirming": "discarded",
    "parked": "discarded",
    "committing": "discarded",
    "sealing": "discarded",
    "committed": "resumed",
    "resuming": "resumed",
    "discarding": "discarded",
    "restoring": "discarded",
    "restored": "discarded",
    "keeping": "discarded",
    "retiring": "discarded",
}
"""State in which an operation is found to the state in which it ends (DESIGN, 12)."""


def lived(scenario: str, root: Path) -> tuple[Entry, ...]:
    """Return the whole history of an operation that nobody disturbed."""

    async def main() -> tuple[Entry, ...]:
        world = World(3, root=root, clock=LoopClock())
        try:
            if "restore" in scenario:
                await _restore(world, fail="fails" in scenario)
            else:
                await _checkpoint(world, fail="fails" in scenario)
        except Deliberate:
            pass
        return world.journal.read(world.run, WIRE_ID)

    return simulate(main)


async def _checkpoint(world: World, *, fail: bool) -> None:
    async with world.committed(WIRE_ID, world.root()):
        if fail:
            raise Deliberate


async def _restore(world: World, *, fail: bool) -> None:
    async with world.coordinator.restored(WIRE_ID, world.root(), world.manifest()):
        if fail:
            raise Deliberate


def holding(*histories: tuple[Entry, ...]) -> MemoryJournal:
    """Return a journal in which these operations are as far as their entries say."""
    journal = MemoryJournal()
    for entries in histories:
        hold(journal, entries)
    return journal


def hold(journal: MemoryJournal, entries: Sequence[Entry]) -> None:
    """Put an operation into a journal as far as its entries say; its controller is dead."""
    first = entries[0]
    opening = Opening(
        run=first.run,
        operation_id=first.operation_id,
        chart=first.facts["chart"],
        chart_version=first.facts["chart_version"],
    )
    if journal.held(first.run) is None:
        journal.claim(first.run, holder="the-dead")
    journal.open_operation(opening, entries[:1])
    if entries[1:]:
        journal.append(entries[1:], expected_seq=1, epoch=1)


@pytest.mark.parametrize("scenario", ["checkpoint", "checkpoint fails", "restore", "restore fails"])
def test_history_that_was_cut_off_anywhere(tmp_path: Path, scenario: str) -> None:
    """Whatever a history ends with, recovery leads it where the design says, and no further."""
    entries = lived(scenario, tmp_path)
    found_in = set()
    for count in range(1, len(entries) + 1):
        before = replay(entries[:count])
        if before.settled:
            continue
        found_in.add(before.state)
        actors, outcome = _recovered_from(holding(entries[:count]), before.instances)
        assert (outcome.found_in, outcome.outcome) == (before.state, "settled")
        assert outcome.state == ENDS[before.state]
        assert (outcome.missing, outcome.unconfirmed, outcome.reason) == ((), (), "")
        for instance, actor in actors.items():
            assert set(actor.ops) <= {"retire", "resume"}
            assert all(call.wire_id == WIRE_ID for call in actor.calls)
            _require_reopened(before, instance, actor, outcome.state)
    assert found_in >= {"open", "resuming" if " " not in scenario else "discarding"}


def _require_reopened(before: Any, instance: str, actor: FakeActor, state: str) -> None:
    """Whoever may be closed is reopened, after what a discarded restore installed is retired."""
    if before.state == "open" or before.call_state("resume", instance).state == "answered":
        assert actor.ops == []
        return
    assert actor.ops[-1] == "resume"
    discards = before.chart == "restore" and state == "discarded"
    if discards and before.call_state("retire", instance).state != "answered":
        assert actor.ops == ["retire", "resume"]
        saved = before.opening["inventory"][instance]
        due = tuple(EnvironmentEpisode(one["rollout_id"], one["attempt"] + 1) for one in saved)
        assert actor.calls[0].args[1] == due


def _recovered_from(
    journal: MemoryJournal, instances: tuple[str, ...]
) -> tuple[Mapping[str, FakeActor], Recovered]:
    async def main() -> tuple[Mapping[str, FakeActor], Recovered]:
        actors = {instance: FakeActor() for instance in instances}
        row = journal.operations()[0]
        [outcome] = await recover(journal, actors, run=row.run, force=True)
        operation = replay(journal.read(row.run, WIRE_ID))
        assert operation.settled
        assert operation.epoch == 2
        return actors, outcome

    return asyncio.run(main())


# --- what is missing, unreachable or unreadable ---------------------------------------------------


@pytest.fixture
def cut(tmp_path: Path) -> tuple[Entry, ...]:
    """A checkpoint whose controller died when all were parked."""
    entries = lived("checkpoint", tmp_path)
    return entries[: next(n for n, one in enumerate(entries, 1) if one.dest == "parked")]


def ids_of(entries: tuple[Entry, ...]) -> tuple[str, ...]:
    """Return the instances of a history."""
    return replay(entries).instances


def run_of(entries: tuple[Entry, ...]) -> str:
    """Return the run of a history."""
    return entries[0].run


async def test_missing_handles(cut: tuple[Entry, ...], caplog: pytest.LogCaptureFixture) -> None:
    """Instances without a handle are named; the others are reopened; the next time ends it."""
    journal, (first, *others) = holding(cut), ids_of(cut)
    actors = {instance: FakeActor() for instance in others}
    [found] = await recover(journal, actors, run=run_of(cut), force=True)
    assert (found.outcome, found.state) == ("unconfirmed", "discarding")
    assert found.missing == found.unconfirmed == (first,)
    assert not found.ended
    assert first in caplog.text
    assert all(actor.ops == ["resume"] for actor in actors.values())
    actors[first] = FakeActor()
    [found] = await recover(journal, actors, run=run_of(cut), force=True)
    assert (found.ended, found.found_in) == (True, "discarding")
    assert actors[first].ops == ["resume"]
    assert all(actors[instance].ops == ["resume"] for instance in others)


async def test_handles_that_are_not_needed(cut: tuple[Entry, ...]) -> None:
    """Where nothing was closed, no handle is needed at all."""
    [found] = await recover(holding(cut[:1]), {}, run=run_of(cut), force=True)
    assert (found.ended, found.state) == (True, "discarded")


def test_instance_that_comes_back(cut: tuple[Entry, ...]) -> None:
    """An instance that cannot be reached is tried again in the background until it answers."""

    async def main() -> None:
        journal, ids = holding(cut), ids_of(cut)
        actors = {instance: FakeActor() for instance in ids}
        actors[ids[0]].always["resume"] = ConnectionError("no route")
        world = World(3, journal=journal, clock=LoopClock())
        world.shards.checkpoint_handles = actors
        coordinator = world.new_coordinator(run=run_of(cut))
        [found] = await coordinator.recover(force=True)
        assert (found.outcome, found.unconfirmed) == ("unconfirmed", (ids[0],))
        await asyncio.sleep(100.0)
        assert len(actors[ids[0]].of("resume")) > 3
        assert not _settled(journal, cut)
        actors[ids[0]].always.clear()
        await asyncio.sleep(31.0)
        assert _settled(journal, cut)
        tries = len(actors[ids[0]].of("resume"))
        await asyncio.sleep(100.0)
        assert len(actors[ids[0]].of("resume")) == tries

    simulate(main)


def _settled(journal: Journal, entries: tuple[Entry, ...]) -> bool:
    row = journal.operation(run_of(entries), entries[0].operation_id)
    return row is not None and row.settled


def test_lease_horizon(cut: tuple[Entry, ...]) -> None:
    """What cannot be reached is given up once every lease has run out, and not a moment before."""

    async def main() -> None:
        journal, ids = holding(cut), ids_of(cut)
        before = replay(cut)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        handles: dict[str, FakeActor] = {}
        world = World(3, journal=journal, clock=LoopClock())
        world.shards.checkpoint_handles = {instance: object() for instance in ids}
        coordinator = world.new_coordinator(run=run_of(cut))
        coordinator._handles.clear()
        await coordinator.recover(force=True)
        left_s = before.lease_horizon_at_s - before.at_s
        await asyncio.sleep(left_s - 1.0 - (loop.time() - began_s))
        assert not _settled(journal, cut)
        await asyncio.sleep(2.0 + before.settings.sweep_interval_s)
        assert _settled(journal, cut)
        after = replay(journal.read(run_of(cut), WIRE_ID))
        assert after.calls["resume"].count("lapsed") == len(ids)
        assert after.state == "discarded"
        assert handles == {}

    simulate(main)


def test_recovered_long_after(cut: tuple[Entry, ...]) -> None:
    """An operation that is found long after its leases ended is tried once and then let go."""

    async def main() -> None:
        journal, ids = holding(cut), ids_of(cut)
        world = World(3, journal=journal, clock=LoopClock())
        await asyncio.sleep(100_000.0)
        world.shards.checkpoint_handles = {instance: FakeActor() for instance in ids}
        actors = world.shards.checkpoint_handles
        actors[ids[0]].always["resume"] = ConnectionError("no route")
        coordinator = world.new_coordinator(run=run_of(cut))
        await coordinator.recover(force=True)
        await asyncio.sleep(31.0)
        assert _settled(journal, cut)
        assert [len(actors[instance].of("resume")) for instance in ids] == [2, 1, 1]

    simulate(main)


@attrs.frozen
class Damage:
    """What is wrong with a log, and what is said about it."""

    entry: dict[str, Any]
    """What its last entry is made to say."""
    words: str


DAMAGES = {
    "no such transition": Damage({"dest": "resumed"}, "the chart gives"),
    "no such trigger": Damage({"trigger": "bribe"}, "bribe"),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_unreadable_log(
    cut: tuple[Entry, ...], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A log that no release wrote is named and fenced, and the others are settled."""
    broken = (*cut[:-1], attrs.evolve(cut[-1], **DAMAGES[damage].entry))
    whole = tuple(attrs.evolve(one, operation_id="op-2") for one in cut)
    journal = holding(broken, whole)
    actors = {instance: FakeActor() for instance in ids_of(cut)}
    bad, good = await recover(journal, actors, run=run_of(cut), force=True)
    assert (bad.operation_id, bad.outcome, bad.ended) == (WIRE_ID, "unreadable", False)
    assert DAMAGES[damage].words in bad.reason
    assert "cannot be recovered" in caplog.text
    assert (good.operation_id, good.outcome) == ("op-2", "settled")
    assert journal.read(run_of(cut), WIRE_ID) == broken
    assert bad.fenced == ids_of(cut)
    for actor in actors.values():
        assert {call.op for call in actor.calls if call.wire_id == WIRE_ID} == {"resume"}


async def test_log_of_a_newer_release(
    cut: tuple[Entry, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that only a newer release can read keeps nobody from settling the rest."""
    whole = tuple(attrs.evolve(one, operation_id="op-2") for one in cut)
    journal = holding(cut, whole)
    reading = MemoryJournal.read

    def read(self: MemoryJournal, run: str, operation_id: str, **more: Any) -> Any:
        if operation_id == WIRE_ID:
            raise JournalError("entry 3 was written by schema 9; this release reads up to 1")
        return reading(self, run, operation_id, **more)

    monkeypatch.setattr(MemoryJournal, "read", read)
    actors = {instance: FakeActor() for instance in ids_of(cut)}
    bad, good = await recover(journal, actors, run=run_of(cut), force=True)
    assert (bad.outcome, good.outcome) == ("unreadable", "settled")
    assert "schema 9" in bad.reason


async def test_journal_that_cannot_be_read(
    cut: tuple[Entry, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that is away is an error, and no reason to take a log for unreadable."""

    def read(*_: Any, **__: Any) -> Any:
        raise JournalUnavailable("locked")

    monkeypatch.setattr(MemoryJournal, "read", read)
    with pytest.raises(JournalUnavailable):
        await recover(holding(cut), {}, run=run_of(cut), force=True)


# --- the public function ----------------------------------------------------------------------


async def test_recover_by_url(cut: tuple[Entry, ...], tmp_path: Path) -> None:
    """`gymckpt.recover` takes a URL or a path, and leaves nothing of the journal open behind."""
    path = tmp_path / "journal.sqlite3"
    for number, place in enumerate((f"sqlite:///{path}", path), 1):
        operation_id = f"op-{number}"
        history = tuple(attrs.evolve(one, operation_id=operation_id) for one in cut)
        with open_journal(path) as journal:
            source = holding(history)
            [row] = source.operations()
            journal.insert_operation(row, history)
        actors = {instance: FakeActor() for instance in ids_of(cut)}
        [found] = await gymckpt.recover(place, actors, run=run_of(cut), force=True)
        assert (found.operation_id, found.outcome) == (operation_id, "settled")
    with open_journal(path) as journal:
        assert not journal.operations(unfinished=True)


async def test_recover_another_run(cut: tuple[Entry, ...]) -> None:
    """Operations of other runs are none of its business."""
    journal = holding(cut)
    assert await recover(journal, {}, run="another", force=True) == ()
    assert journal.read(run_of(cut), WIRE_ID) == cut


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"run": "no/run"}, ValueError),
        ({"owner_timeout_s": 0}, ValueError),
        ({"owner_timeout_s": "30"}, TypeError),
        ({"journal_timeout_s": float("inf")}, ValueError),
    ],
)
async def test_arguments(arguments: dict[str, Any], error: type[Exception]) -> None:
    """Arguments that make no sense are refused before the journal is opened."""
    with pytest.raises(error):
        await recover(MemoryJournal(), {}, **{"run": "job", **arguments})


async def test_operation_that_recovery_keeps_is_held(cut: tuple[Entry, ...]) -> None:
    """A recovery that goes on in the background gives heartbeats as often as it must."""
    journal = holding(cut)
    first = ids_of(cut)[0]
    actors = {instance: FakeActor() for instance in ids_of(cut) if instance != first}
    await recover(journal, actors, run=run_of(cut), force=True, owner_timeout_s=0.6)
    for _ in range(4):
        await asyncio.sleep(0.3)
        with as_process("another"):
            [found] = await recover(journal, {}, run=run_of(cut), owner_timeout_s=0.6)
        assert found.outcome == "held"


async def test_coordinator_recovers_its_own_run_only(tmp_path: Path) -> None:
    """A coordinator's own open operation is not touched by its recovery."""
    world = World(2, root=tmp_path, fenced=True)
    async with world.committed("mine", world.root()):
        assert await world.coordinator.recover(force=True) == ()
        assert world.operation("mine").epoch == 1
    await until(lambda: world.operation("mine").settled)
    await world.examine()
    assert isinstance(world.coordinator, GymCheckpointCoordinator)


@pytest.mark.parametrize("force", [False, True])
async def test_coordinator_goes_on_with_what_is_unconfirmed(tmp_path: Path, force: bool) -> None:
    """What a coordinator still reopens itself is neither held nor fenced by its own recovery."""
    world = World(2, root=tmp_path, control_timeout_s=0.1, owner_timeout_s=30.0)
    await world.coordinator.prepare("mine")
    world.actors[1].always["resume"] = HANG
    with pytest.raises(GymCheckpointOperationError):
        await world.coordinator.resume("mine")
    [found] = await world.coordinator.recover(force=force)
    assert (found.operation_id, found.outcome) == ("mine", "unconfirmed")
    assert world.operation("mine").epoch == 1
    world.actors[1].always.clear()
    await world.coordinator.recover(force=force)
    await until(lambda: world.operation("mine").settled)
    assert world.operation("mine").epoch == 1
    await world.examine()


def test_startup_waits_for_a_dead_holder(tmp_path: Path) -> None:
    """Operations of one dead controller are all settled once it has been silent for its time."""
    entries = lived("checkpoint", tmp_path)[:9]

    async def main() -> None:
        journal = MemoryJournal(MemoryStore(now_s=running_loop().time))
        world = World(3, journal=journal, clock=LoopClock())
        for name in ("one", "two", "three"):
            hold(journal, [attrs.evolve(one, operation_id=name, run=world.run) for one in entries])
            await asyncio.sleep(4.0)
        found = await world.coordinator.recover()
        assert {one.operation_id: one.outcome for one in found} == dict.fromkeys(
            ("one", "two", "three"), "settled"
        )
        assert running_loop().time() <= 12.0 + 30.0

    simulate(main)
