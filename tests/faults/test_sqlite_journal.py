"""Journals in real files: missing, damaged, locked, deleted, replaced or on a full disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gymckpt.coordinator import GYM_CHECKPOINT_MANIFEST_FILENAME
from gymckpt.coordinator import is_transient_gym_checkpoint_failure as is_transient
from gymckpt.errors import JournalCorrupt, JournalError, JournalUnavailable
from gymckpt.journal import Journal, open_journal
from tests.fakes import HANG
from tests.faults.conftest import NewWorld
from tests.faults.disks import SmallDisk, small_disk
from tests.faults.world import World, new_id, until

VERBS = ("checkpoint", "restore", "retire", "forget", "resume")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep every other writer out of a journal, as a hung process would."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.rollback()
        other.close()


def bad_places(base: Path) -> dict[str, tuple[str, type[Exception]]]:
    """Return places where no journal can be opened, with the error that says so."""
    (base / "file").write_text("no directory")
    (base / "text.sqlite3").write_text("this is no database, but it is long enough for one" * 9)
    foreign = sqlite3.connect(base / "foreign.sqlite3")
    foreign.execute("CREATE TABLE other (x)")
    foreign.commit()
    foreign.close()
    return {
        "below a file": (str(base / "file" / "journal.sqlite3"), JournalUnavailable),
        "a directory": (str(base), JournalError),
        "no database": (str(base / "text.sqlite3"), JournalCorrupt),
        "no journal": (str(base / "foreign.sqlite3"), JournalCorrupt),
        "unknown scheme": ("mysql://host/db", ValueError),
        "no place": (":memory:", ValueError),
    }


async def test_nothing_begins_without_a_journal(new_world: NewWorld, tmp_path: Path) -> None:
    """A journal that cannot be opened stops every verb before anything is sent, each time."""
    world = new_world(2, control_timeout_s=5.0)
    for place, (url, expected) in bad_places(tmp_path).items():
        coordinator = world.new_coordinator(journal=url)
        for verb in (*VERBS, "checkpoint"):
            world._coordinator = coordinator
            with pytest.raises(expected) as caught:
                await world.operate(verb, new_id())
            assert not is_transient(caught.value), place
    assert world.story() == []


async def test_locked_at_the_start(
    new_world: NewWorld, tmp_path: Path, journals: list[Journal]
) -> None:
    """A journal that stays locked is a clear error, nothing is sent, and the next try succeeds."""
    path = tmp_path / "journal.sqlite3"
    journals.append(open_journal(path, busy_timeout_s=0.05))
    world = new_world(1, journal=journals[0], control_timeout_s=5.0)
    with locked(path), pytest.raises(JournalUnavailable, match="locked"):
        await world.coordinator.prepare("early")
    assert world.story() == []
    async with world.committed("later", world.root()):
        pass


async def test_opening_a_locked_journal_does_not_stop_the_loop(
    new_world: NewWorld, tmp_path: Path
) -> None:
    """L1: while a journal file is opened that another process has locked, the loop goes on."""
    path = tmp_path / "journal.sqlite3"
    open_journal(path).close()
    world = new_world(1, control_timeout_s=5.0)
    exclusive = sqlite3.connect(path, isolation_level=None)
    exclusive.execute("PRAGMA locking_mode = EXCLUSIVE")
    exclusive.execute("BEGIN EXCLUSIVE")
    coordinator = world.new_coordinator(journal=path, journal_timeout_s=0.3)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    began_s = time.monotonic()
    with pytest.raises(JournalUnavailable):
        await coordinator.prepare("early")
    assert time.monotonic() - began_s < 2
    assert ticks >= 5
    ticking.cancel()
    exclusive.rollback()
    exclusive.close()


@pytest.mark.parametrize("kind", ["checkpoint", "restore"])
@pytest.mark.parametrize("hangs", [False, True])
async def test_locked_in_the_middle(
    new_world: NewWorld, tmp_path: Path, journals: list[Journal], kind: str, hangs: bool
) -> None:
    """A journal locked while the body runs: all are reopened, and it is recorded afterwards."""
    path = tmp_path / "journal.sqlite3"
    journal = open_journal(path, busy_timeout_s=0.02)
    journals.append(journal)
    world = new_world(2, journal=journal, sweep_interval_s=0.1, control_timeout_s=0.2)
    if hangs:
        world.actors[1].always["resume"] = HANG
    opened = (
        world.coordinator.prepared("mid")
        if kind == "checkpoint"
        else world.coordinator.restored("mid", "/nowhere", world.manifest())
    )
    with contextlib.ExitStack() as lock:
        with pytest.raises(JournalUnavailable, match="locked"):
            async with opened:
                lock.enter_context(locked(path))
                await asyncio.sleep(10)  # the next renewal cannot be recorded
        assert [actor.calls[-1].op for actor in world.actors] == ["resume", "resume"]
    world.actors[1].always.clear()
    await until(lambda: world.journal.operations(world.run)[0].settled)
    assert world.operation("mid").state == "discarded"


async def test_deleted_in_the_middle(
    new_world: NewWorld, tmp_path: Path, journals: list[Journal]
) -> None:
    """A journal file that is deleted while the body runs: all are reopened, the error says why."""
    path = tmp_path / "journal.sqlite3"
    journals.append(open_journal(path))
    world = new_world(2, control_timeout_s=0.1)
    coordinator = world.new_coordinator(journal=journals[0])
    with pytest.raises(JournalUnavailable, match=r"journal\.sqlite3"):
        async with coordinator.prepared("gone"):
            for name in os.listdir(tmp_path):
                if name.startswith("journal.sqlite3"):
                    (tmp_path / name).unlink()
            await asyncio.sleep(10)
    assert [actor.ops for actor in world.actors] == [["prepare", "resume"]] * 2
    before = world.story()
    with pytest.raises(JournalError):
        await coordinator.prepare("next")
    assert world.story() == before


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of one megabyte."""
    with small_disk(tmp_path / "disk", kilobytes=1_024) as mounted:
        yield mounted


async def test_journal_on_a_full_disk(disk: SmallDisk, tmp_path: Path) -> None:
    """A disk that fills up in the body: all are reopened; with room again it is recorded."""
    with open_journal(disk.path / "journal.sqlite3") as journal:
        settings = {"control_timeout_s": 0.2, "sweep_interval_s": 0.1}
        world = World(2, journal=journal, root=tmp_path, **settings)
        with pytest.raises(JournalUnavailable, match="full"):
            async with world.coordinator.prepared("full"):
                disk.fill()
                await asyncio.sleep(10)
        assert [actor.ops for actor in world.actors] == [["prepare", "resume"]] * 2
        with pytest.raises(JournalUnavailable, match="full"):
            await world.coordinator.prepare("still")
        assert [actor.ops for actor in world.actors] == [["prepare", "resume"]] * 2
        disk.free()
        await until(lambda: journal.operations(world.run)[0].settled)
        async with world.committed("later", world.root()):
            pass
        await world.examine()


async def test_b43_snapshot_on_a_full_disk(disk: SmallDisk, new_world: NewWorld) -> None:
    """B43: a manifest that has no room: the OSError itself, no transient one, and nothing left."""
    world = new_world(2, root=disk.path)
    root = disk.path / "snapshot"
    root.mkdir()
    disk.fill()
    with pytest.raises(OSError, match="No space left") as caught:
        async with world.committed("b43", root):
            pytest.fail("the commit succeeded")
    assert caught.value.errno == errno.ENOSPC
    assert not is_transient(caught.value)
    assert list(root.iterdir()) == []
    disk.free()
    async with world.committed("again", root):
        pass
    assert [path.name for path in root.iterdir()] == [GYM_CHECKPOINT_MANIFEST_FILENAME]


async def test_default_journal(
    new_world: NewWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a journal of its own a coordinator writes to the one that the environment names."""
    path = tmp_path / "named" / "journal.sqlite3"
    monkeypatch.setenv("GYMCKPT_JOURNAL", str(path))
    monkeypatch.setenv("GYMCKPT_RUN", "named-run")
    world = new_world(1, control_timeout_s=5.0)
    coordinator = world.new_coordinator(journal=None, run=None)
    assert coordinator.run == "named-run"
    assert not path.exists()
    await coordinator.prepare("first")
    await coordinator.resume("first")
    with open_journal(path, read_only=True) as journal:
        assert [row.state for row in journal.operations("named-run")] == ["discarded"]
