"""Manifests that are raced for or half written: one stands, whole, or none does."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from gymckpt.coordinator import (
    GYM_CHECKPOINT_MANIFEST_FILENAME,
    GymCheckpointManifest,
    GymCheckpointOperationError,
    is_transient_gym_checkpoint_failure,
    load_gym_checkpoint_manifest,
    write_gym_checkpoint_manifest,
)
from gymckpt.errors import Fenced
from gymckpt.journal import Journal
from tests.fakes import HANG
from tests.faults.conftest import NewWorld
from tests.faults.world import SHORT, episode, until

MANIFEST = GYM_CHECKPOINT_MANIFEST_FILENAME
ONE = "tools/replica-0"


# --- B14: one directory, two checkpoints ---------------------------------------------------------


def manifest_of(checkpoint_id: str, rollouts: int = 200) -> GymCheckpointManifest:
    """Return a manifest of some size."""
    episodes = tuple(episode(f"{checkpoint_id}-{index}") for index in range(rollouts))
    nothing: dict[str, tuple[str, ...]] = {ONE: ()}
    return GymCheckpointManifest(
        2, checkpoint_id, {ONE: episodes}, nothing, {ONE: ()}, {ONE: ("a",)}
    )


def test_b14_another_checkpoint_is_refused(tmp_path: Path) -> None:
    """B14: the same manifest again is fine, another one is refused and the first one stands."""
    first, second = manifest_of("m1"), manifest_of("m2")
    write_gym_checkpoint_manifest(tmp_path, first)
    write_gym_checkpoint_manifest(tmp_path, first)
    with pytest.raises(ValueError, match="m1"):
        write_gym_checkpoint_manifest(tmp_path, second)
    assert load_gym_checkpoint_manifest(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


@pytest.mark.parametrize("racers", [2, 8])
def test_b14_racing_writers(tmp_path: Path, racers: int) -> None:
    """B14: of threads that race for a directory one wins; the file is whole, nothing is left."""
    outcomes: list[Any] = []
    for attempt in range(5):
        root = tmp_path / str(attempt)
        manifests = [manifest_of(f"m{number}") for number in range(racers)]
        outcomes[:] = [None] * racers
        barrier = threading.Barrier(racers)

        def race(number: int, root: Path, manifest: GymCheckpointManifest, start: Any) -> None:
            start.wait()
            try:
                write_gym_checkpoint_manifest(root, manifest)
            except ValueError as error:
                outcomes[number] = error

        threads = [
            threading.Thread(target=race, args=(number, root, manifest, barrier))
            for number, manifest in enumerate(manifests)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [number for number in range(racers) if outcomes[number] is None]
        assert len(winners) == 1
        assert load_gym_checkpoint_manifest(root) == manifests[winners[0]]
        assert [path.name for path in root.iterdir()] == [MANIFEST]


async def test_b14_a_second_checkpoint_into_the_same_directory(
    new_world: NewWorld, tmp_path: Path, journal: Journal
) -> None:
    """B14: a checkpoint into a directory that holds another is discarded, the other stands."""
    world = new_world(2, journal=journal)
    async with world.committed("first", world.root()):
        pass
    whole = (world.root() / MANIFEST).read_bytes()
    with pytest.raises(ValueError, match="first") as caught:
        async with world.committed("second", world.root()):
            pytest.fail("the commit succeeded")
    assert not is_transient_gym_checkpoint_failure(caught.value)
    assert (world.root() / MANIFEST).read_bytes() == whole
    assert world.operation("second").state == "discarded"


# --- B43: a disk or a process that fails while writing ------------------------------------------


class Failing:
    """Makes one call of the operating system fail, once, and counts the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, error: OSError) -> None:
        self.calls: list[str] = []
        self.left = 1
        real = getattr(os, name)
        thread = "gymckpt-checkpoint-root" if name == "mkdir" else "gymckpt-sealed"

        def replacement(*args: Any, **kwargs: Any) -> Any:
            if self.left and threading.current_thread().name.startswith(thread):
                self.left -= 1
                raise error
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, replacement)


SYSTEM_CALLS = {
    "replace": OSError(errno.EIO, "says the test"),
    "fsync": OSError(errno.ENOSPC, "says the test"),
    "open": OSError(errno.EMFILE, "says the test"),
    "mkdir": OSError(errno.EACCES, "says the test"),
}


@pytest.mark.parametrize("name", sorted(SYSTEM_CALLS))
async def test_b43_writing_fails(
    new_world: NewWorld,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    journal: Journal,
) -> None:
    """B43: whichever call of the system fails, that error leaves, and nothing is left behind."""
    world = new_world(2, journal=journal)
    root = tmp_path / "deep" / "snapshot"
    Failing(monkeypatch, name, SYSTEM_CALLS[name])
    with pytest.raises(OSError, match="says the test") as caught:
        async with world.committed("b43", root):
            pytest.fail("the commit succeeded")
    assert caught.value is SYSTEM_CALLS[name]
    assert not is_transient_gym_checkpoint_failure(caught.value)
    assert not root.exists() or list(root.iterdir()) == []
    sent = ["prepare", "resume"] if name == "mkdir" else ["prepare", "commit", "resume"]
    assert [actor.ops for actor in world.actors] == [sent] * 2
    async with world.committed("again", root):
        pass


def test_b43_order_of_flushing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B43: the file is flushed before it gets its name, and the directory afterwards."""
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def flushing(descriptor: int) -> None:
        is_directory = os.path.isdir(f"/proc/self/fd/{descriptor}")
        order.append("directory" if is_directory else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", flushing)
    monkeypatch.setattr(os, "replace", lambda *args: (order.append("replace"), replace(*args)))
    write_gym_checkpoint_manifest(tmp_path, manifest_of("m1"))
    assert order == ["file", "replace", "directory"]


@pytest.fixture(params=["file", "directory", "both"])
def crashed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A snapshot directory in which an earlier process died while it was writing."""
    root = tmp_path / "snapshot"
    root.mkdir()
    if request.param in ("file", "both"):
        (root / f"{MANIFEST}.tmp").write_text('{"schema_version": 2')
    if request.param in ("directory", "both"):
        (root / f".{MANIFEST}.crashed.0.tmp").mkdir()
    return root


async def test_b43_stale_temporary_files(new_world: NewWorld, crashed: Path) -> None:
    """B43: what a crashed run left is not loaded and does not keep the next one from writing."""
    world = new_world(1)
    with pytest.raises(FileNotFoundError):
        load_gym_checkpoint_manifest(crashed)
    async with world.committed("next", crashed):
        pass
    assert load_gym_checkpoint_manifest(crashed).checkpoint_id == "next"


@pytest.mark.parametrize("state", ["parked", "committing"])
async def test_no_recovery_makes_a_directory(
    new_world: NewWorld, tmp_path: Path, journal: Journal, state: str
) -> None:
    """Where the root of a checkpoint is not there, giving it up leaves the disk as it is."""
    world, root = new_world(2, journal=journal, **SHORT), tmp_path / "deep" / "snapshot"
    other = world.new_coordinator()
    world.fenced_off.add("lost")
    await world.coordinator.prepare("lost")
    if state != "parked":
        world.actors[1].scripts["commit"] = [HANG]
        committing = asyncio.ensure_future(
            world.coordinator.commit("lost", root, world.offer(), restarts={})
        )
        await until(lambda: world.actors[1].of("commit"))
        root.rmdir()
        root.parent.rmdir()
    await other.recover(force=True)
    if state != "parked":
        with pytest.raises((Fenced, GymCheckpointOperationError)):
            await committing
    assert world.operation("lost").state == "discarded"
    assert "deep" not in os.listdir(tmp_path)
