"""
The disks of a run: journals and files that fail, tear, fill up, hang, or lose their answers.

Every process has a disk of its own kind of trouble. Blocking jobs are run by the loop at a moment
of its choosing; a file operation that is to fail fails inside of the product's own code, which has
its `os` replaced for the time of a run. A torn write is one in whose middle the process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import uuid
from collections.abc import Callable, Iterator
from random import Random
from types import ModuleType
from typing import Any, NoReturn, TypeVar

import attrs

import gymckpt.files
import gymckpt.participant.store
import gymckpt.visibility
from gymckpt.runtime.wire import Again
from gymckpt.testing.simulation.loop import Killed, Process, SimulatedLoop, running_process
from gymckpt.testing.simulation.memory_disk import BELOW, MemoryDisk
from gymckpt.testing.simulation.stepped import SteppedJob, pass_turn

__all__ = ["Disk", "io_of", "replaced_system"]

T = TypeVar("T")

JOURNAL = "gymckpt-journal"

_ROOTS_OWN = re.compile(rf"{BELOW}(?={os.sep}|$)")


@attrs.define(eq=False)
class Disk:
    """
    What is wrong with the disk of one process.

    Attributes:
        files: What the next file operation comes to; None for nothing wrong.
        skip: How many file operations go well before that.
        hangs_until_s: Until when no file job begins; infinite for never.
        slow_s: How long each file operation takes, until `slow_until_s`.
        slow_until_s: Until when file jobs that begin are slow.
        journal: What the next call of the journal comes to: `fail`, `lost` or `hang`.
        journal_count: How many calls of the journal that concerns.
        apart: Whether the instances' directories are its own, where others see nothing of them.
    """

    files: str | None = None
    skip: int = 0
    hangs_until_s: float = 0.0
    slow_s: float = 0.0
    slow_until_s: float = 0.0
    journal: str | None = None
    journal_count: int = 0
    apart: bool = False

    def share(self) -> None:
        """Show the instances' directories that all others see."""
        self.apart = False

    def heal(self) -> None:
        """Have nothing wrong any more."""
        self.share()
        self.files, self.journal = None, None
        self.hangs_until_s = self.slow_until_s = 0.0


DiskOf = Callable[[Process], Disk]


def io_of(
    loop: SimulatedLoop,
    disk_of: DiskOf,
    point: Callable[[str], None],
    acted: Callable[[str], None],
    slow: Callable[[SteppedJob], None],
) -> Callable[[str, Callable[[], Any]], asyncio.Future[Any]]:
    """
    Return what begins blocking jobs on a loop.

    Args:
        loop: The loop.
        disk_of: Process to its disk.
        point: Passed before and after each file job of a controller.
        acted: Told of each file job that did more than look, and wants to look again.
        slow: Told of each job that is slow.
    """

    def start(name: str, job: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = loop.create_future()
        process = running_process()
        disk = Disk() if process is None else disk_of(process)
        if name == JOURNAL:
            _start_journal(loop, disk, job, future)
            return future
        is_file = name != "gymckpt-files"

        def run() -> None:
            if disk.hangs_until_s > loop.time():
                loop.call_later(min(disk.hangs_until_s - loop.time(), 1e6), run)
                return
            if not is_file and disk.slow_until_s > loop.time():
                slow(_slow(loop, disk, job, future))
                return
            if not is_file:
                _settle(future, job)
                return
            point(f"{name}.before")
            result: T | None = None
            try:
                result = _settle(future, job)
            finally:
                if not isinstance(result, Again):
                    acted(name)
            point(f"{name}.after")

        loop.call_soon(run)
        return future

    return start


def _slow(
    loop: SimulatedLoop, disk: Disk, job: Callable[[], T], future: asyncio.Future[T]
) -> SteppedJob:
    """Carry a file job out step by step, and settle its future at its end."""
    come: list[Callable[[], T]] = []

    def run() -> None:
        try:
            result = job()
        except Exception as error:
            failed = error
            come.append(lambda: _raised(failed))
        else:
            come.append(lambda: result)

    def settle() -> None:
        if come:
            _settle(future, come[0])

    return SteppedJob(loop, run, pause_s=disk.slow_s, after=settle)


def _raised(error: Exception) -> NoReturn:
    raise error


def _start_journal(
    loop: SimulatedLoop, disk: Disk, job: Callable[[], T], future: asyncio.Future[T]
) -> None:
    if disk.journal == "hang" and disk.journal_count:
        disk.journal_count -= 1
        if disk.skip % 2:  # half of those that hang are carried out, and never answered
            loop.call_soon(_settle, loop.create_future(), job)
        return
    loop.call_soon(_settle, future, job)


def _settle(future: asyncio.Future[T], job: Callable[[], T]) -> T | None:
    """Run a job and put what comes of it into a future that somebody may have given up."""
    try:
        result = job()
    except Exception as error:
        if not future.done():
            future.set_exception(error)
            future.exception()
        return None
    if not future.done():
        future.set_result(result)
    return result


# --- files --------------------------------------------------------------------------------------


class _System:
    """`os` for a module that writes files, with the trouble of the process that runs."""

    def __init__(self, real: Any, disk_of: DiskOf) -> None:
        self._real = real
        self._disk_of = disk_of

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        setattr(self, name, found)  # it is looked up thousands of times in a run
        return found

    def _trouble(self, descriptor: int | None = None) -> None:
        pass_turn()
        process = running_process()
        if process is None:
            return
        if process.dead:
            raise Killed
        disk = self._disk_of(process)
        if disk.files is None:
            return
        if disk.skip > 0:
            disk.skip -= 1
            return
        kind, disk.files = disk.files, None
        if kind == "torn":
            if descriptor is not None:
                size = self._real.fstat(descriptor).st_size
                self._real.ftruncate(descriptor, size // 2)
            process.kill()
            raise Killed
        if kind == "full":
            raise OSError(errno.ENOSPC, "no space left on device, says the simulation")
        raise OSError(errno.EIO, "input/output error, says the simulation")

    def open(self, *args: Any, **kwargs: Any) -> int:
        """Open a file, unless the disk is in trouble."""
        self._trouble()
        descriptor: int = self._real.open(*args, **kwargs)
        return descriptor

    def fsync(self, descriptor: int) -> None:
        """Take what was written for durable, unless the disk is in trouble."""
        self._trouble(descriptor)

    def replace(self, *args: Any, **kwargs: Any) -> None:
        """Move a file, unless the disk is in trouble."""
        self._trouble()
        self._real.replace(*args, **kwargs)


class _Mounted:
    """A disk whose instances' directories are elsewhere for a process that does not share them."""

    def __init__(self, disk: Any, disk_of: DiskOf) -> None:
        self._disk = disk
        self._disk_of = disk_of

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._disk, name)
        if name == "path":
            found = _Mounted(found, self._disk_of)
        elif callable(found):
            found = self._with_paths(found)
        setattr(self, name, found)
        return found

    def _with_paths(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            process = running_process()
            if process is not None and self._disk_of(process).apart:
                own = f"{BELOW} of {process.name}"
                args = tuple(
                    _ROOTS_OWN.sub(own, one) if isinstance(one, str) else one for one in args
                )
            return call(*args, **kwargs)

        return called


class _RecordsSystem(_System):
    """`os` for the records of instances, whose files are in memory."""

    def __init__(self, disk_of: DiskOf, published: Callable[[Process, bytes], None]) -> None:
        super().__init__(_Mounted(MemoryDisk(), disk_of), disk_of)
        self._published = published

    def link(self, source: str, target: str) -> None:
        """Make a hard link, which publishes records, unless the disk is in trouble."""
        self._trouble()
        process = running_process()
        if process is not None:
            self._published(process, self._real.read(source))
        self._real.link(source, target)


@contextlib.contextmanager
def replaced_system(
    disk_of: DiskOf, rng: Random, published: Callable[[Process, bytes], None]
) -> Iterator[None]:
    """
    Let files and unique names be the simulation's own until the context exits.

    Args:
        disk_of: Process to its disk.
        rng: Draws the unique names.
        published: Told of the manifest of records that appears next, and in which process.
    """
    real = uuid.uuid4
    records = _RecordsSystem(disk_of, published)
    systems: dict[ModuleType, _System] = {
        gymckpt.files: _System(os, disk_of),
        gymckpt.participant.store: records,
        gymckpt.visibility: records,
    }
    uuid.uuid4 = lambda: uuid.UUID(int=rng.getrandbits(128), version=4)
    for module, system in systems.items():
        module.os = system  # type: ignore[attr-defined]
    try:
        yield
    finally:
        uuid.uuid4 = real
        for module in systems:
            module.os = os  # type: ignore[attr-defined]
