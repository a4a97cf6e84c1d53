"""An operation whose opening was recorded, but not known to be, does not stay open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gymckpt.core.entry import Entry
from gymckpt.core.replay import replay
from gymckpt.errors import (
    Fenced,
    JournalError,
    JournalOutcomeUnknown,
    JournalUnavailable,
    TransitionRefused,
)
from gymckpt.journal import MemoryJournal, Opening, open_journal
from gymckpt.moves import By, discard, sweep
from gymckpt.recovery import recover
from tests.faults.world import World, until


class Losing(MemoryJournal):
    """A journal that loses the answers to some openings, and refuses some appends."""

    def __init__(self, *, stores: bool = True) -> None:
        super().__init__()
        self.stores = stores
        self.loses = 0
        self.refuses = 0

    def open_operation(self, opening: Opening, entries: Sequence[Entry]) -> None:
        """Open an operation."""
        if not self.loses or self.stores:
            super().open_operation(opening, entries)
        if self.loses:
            self.loses -= 1
            raise JournalOutcomeUnknown("the answer to the commit was lost")

    def append(self, entries: Sequence[Entry], **about: Any) -> None:
        """Append entries."""
        if self.refuses:
            self.refuses -= 1
            raise JournalUnavailable("its disk is full")
        super().append(entries, **about)


async def lost(kind: str, journal: Losing) -> World:
    """Return a world in which the opening of an operation was lost, by its caller's knowledge."""
    world = World(2, journal=journal)
    journal.loses = 1
    coordinator, listed = world.coordinator, world.offer()
    forgets = kind == "forget"
    opening = coordinator.forget("lost", listed) if forgets else coordinator.prepare("lost")
    with pytest.raises(JournalOutcomeUnknown):
        await opening
    assert not any(actor.calls for actor in world.actors)
    return world


def unfinished(world: World) -> list[str]:
    """Return the ids of the operations that have not ended."""
    return [row.operation_id for row in world.journal.operations(world.run, unfinished=True)]


@pytest.mark.parametrize("kind", ["prepare", "forget"])
async def test_the_next_operation_gives_it_up(kind: str) -> None:
    """With the next opening that is recorded it is ended, and nobody was asked anything for it."""
    world = await lost(kind, Losing())
    assert unfinished(world) == ["lost"]
    await world.coordinator.prepare("next")
    assert unfinished(world) == ["next"]
    operation = world.operation("lost")
    assert (operation.settled, operation.epoch) == (True, 1)
    assert operation.cause is None or "was lost" in str(operation.cause.facts)
    await world.coordinator.resume("next")
    assert all(call.wire_id == "next" for actor in world.actors for call in actor.calls)
    await world.examine()


async def test_a_recovery_gives_it_up() -> None:
    """A recovery of the same coordinator ends it, and does not call it held by itself."""
    world = await lost("prepare", Losing())
    assert await world.coordinator.recover() == ()
    assert unfinished(world) == []


async def test_it_is_given_up_when_the_journal_can_take_it() -> None:
    """An append that fails is tried again, and stands in the way of no other operation."""
    journal = Losing()
    world = await lost("prepare", journal)
    journal.refuses = 1
    await world.coordinator.prepare("next-1")
    assert unfinished(world) == ["lost", "next-1"]
    await world.coordinator.resume("next-1")
    await world.coordinator.prepare("next-2")
    assert unfinished(world) == ["next-2"]
    await world.coordinator.resume("next-2")


async def test_an_opening_that_was_not_recorded() -> None:
    """What was never recorded is not waited for, and its id is free."""
    world = await lost("prepare", Losing(stores=False))
    await world.coordinator.prepare("lost")
    await world.coordinator.resume("lost")
    assert unfinished(world) == []
    assert world.operation("lost").state == "discarded"


async def test_an_opening_that_another_has_settled() -> None:
    """Where a later controller has settled it, that stands, and the first one is fenced."""
    world = await lost("prepare", Losing())
    later = world.new_coordinator()
    await later.recover(force=True)
    settled = world.journal.read(world.run, "lost")
    assert replay(settled).settled
    with pytest.raises(Fenced):
        await world.coordinator.prepare("next")
    await later.prepare("next")
    assert world.journal.read(world.run, "lost") == settled
    await later.resume("next")


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("turns", range(6))
async def test_a_recovery_beside_an_opening(turns: int, force: bool, tmp_path: Path) -> None:
    """S7: what a coordinator begins while it recovers is its own, whenever that comes."""
    with open_journal(tmp_path / "journal.sqlite3") as journal:
        world = World(2, journal=journal)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal, "open_operation", _lost(journal.open_operation))
            with pytest.raises(JournalOutcomeUnknown):
                await world.coordinator.prepare("lost")
        recovering = asyncio.ensure_future(world.coordinator.recover(force=force))
        for _ in range(turns):
            await asyncio.sleep(0)
        await world.coordinator.prepare("begun")
        assert await recovering == ()
        await world.coordinator.resume("begun")
        assert world.operation("begun").epoch == 1
        assert unfinished(world) == []
        await world.examine()


def _lost(opens: Callable[..., None]) -> Callable[..., None]:
    def lost(*given: Any, **named: Any) -> None:
        opens(*given, **named)
        raise JournalOutcomeUnknown("the answer to the commit was lost")

    return lost


def test_an_opening_that_a_loop_leaves_behind(tmp_path: Path) -> None:
    """L2: what was being opened as an event loop ended is given up with the next operation."""
    with open_journal(tmp_path / "journal.sqlite3") as journal:
        world = World(2, journal=journal)
        opens, under_way, go_on = journal.open_operation, threading.Event(), threading.Event()

        def slow(*given: Any, **named: Any) -> None:
            under_way.set()
            assert go_on.wait(10.0)
            opens(*given, **named)

        async def first() -> None:
            opening = asyncio.ensure_future(world.coordinator.prepare("one"))
            await until(under_way.is_set)
            for _ in range(2):
                opening.cancel()
                await asyncio.sleep(0.01)
            assert opening.cancelled()

        async def second() -> None:
            async with world.coordinator.prepared("two"):
                pass
            assert unfinished(world) == []
            assert world.operation("one").state == "discarded"

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal, "open_operation", slow)
            asyncio.run(first())
            go_on.set()
        asyncio.run(second())


async def test_no_thread_is_left_of_what_has_ended(tmp_path: Path) -> None:
    """Recoveries and moves through a journal of the caller's own leave nothing of theirs behind."""
    with open_journal(tmp_path / "journal.sqlite3") as journal:
        world = World(1, journal=journal)
        await world.coordinator.prepare("mine")
        await world.coordinator.resume("mine")
        before = set(threading.enumerate())
        by = By(operator="ana@ops", reason="says the test")
        async with world.committed("kept", tmp_path / "kept"):
            for _ in range(3):
                with pytest.raises(TransitionRefused, match="nothing is being reopened"):
                    await sweep(journal, world.run, "kept", by=by)
        for _ in range(3):
            await recover(journal, world.shards.checkpoint_handles, run=world.run)
            with pytest.raises(TransitionRefused):
                await discard(journal, world.run, "mine", by=by)
            with pytest.raises(JournalError):
                await discard(journal, world.run, "unknown", by=by)
        await until(lambda: set(threading.enumerate()) <= before)
