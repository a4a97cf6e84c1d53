"""
One life of a controller, as a process of its own, that may die or stop at any point.

The test build of the scheduler's edge is made here: after each append, after each effect, and
before, inside and after each file job, `Edge.reach` counts one point. The moment before an effect
is the one after the effect before it, or after the append that caused both: nothing lies between.
At the chosen point the process sends itself a signal, so that nothing depends on the clock: SIGKILL
to die there, SIGSTOP to be paused there until another process continues it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs

from gymckpt import coordinator as coordinator_module
from gymckpt.coordinator import GymCheckpointCoordinator, load_gym_checkpoint_manifest
from gymckpt.core.effects import Effect, SendCall, StartTimer, StopTimer, Tell
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.manifest import ManifestPublication
from gymckpt.runtime import file_jobs
from gymckpt.runtime.scheduler import Scheduler
from gymckpt.runtime.worker import Recorder
from tests.recovery.deployments import IDS, offered, packed, received

CONTROL_TIMEOUT_S = 10.0
WIRE_ID = "op-1"


@attrs.frozen(kw_only=True)
class Order:
    """What one controller is to do."""

    scenario: str
    run: str
    journal: str
    socket: str
    root: str
    """Where a checkpoint is written."""
    source: str
    """The snapshot that a restore reads."""
    report: str
    """Where it writes which points it reached, and what came of it."""
    point: int | str = 0
    """Which point to stop at, by its number or its name; 0 is none."""
    signal: int = int(signal.SIGKILL)
    owner_timeout_s: float = 3_600.0
    control_timeout_s: float = CONTROL_TIMEOUT_S


class Deliberate(Exception):
    """What a body fails with on purpose."""


class Edge:
    """Counts the points that are reached, and sends the signal at the chosen one."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._report = open(order.report, "a", buffering=1)  # noqa: SIM115 - for the whole life
        self._lock = threading.Lock()
        self._count = 0
        self._has_hit = False

    def reach(self, name: str) -> None:
        """Reach a point, from the loop or from the thread of a file job."""
        with self._lock:
            self._count += 1
            hit = self._order.point in (self._count, name) and not self._has_hit
            self._has_hit = self._has_hit or hit
            self._report.write(f"{'hit' if hit else 'point'} {name}\n")
        if hit:
            # To this very thread, which goes no step further; any thread may take it otherwise.
            signal.pthread_kill(threading.get_ident(), self._order.signal)

    def say(self, outcome: str) -> None:
        """Say what came of it all."""
        self._report.write(f"outcome {outcome}\n")


def name_of(effect: Effect) -> str:
    """Return an effect in few words."""
    kind = type(effect).__name__
    if isinstance(effect, SendCall):
        return f"{kind} {effect.call}"
    if isinstance(effect, StartTimer | StopTimer):
        return f"{kind} {effect.timer}"
    if isinstance(effect, Tell):
        return f"{kind} {effect.state}"
    return kind


def install(edge: Edge) -> None:
    """Make the test build of the scheduler's edge."""
    opening, appending, performing = Recorder.open, Recorder.append, Scheduler._perform
    effects_module: Any = file_jobs
    detaching = effects_module.run_detached
    flushing = ManifestPublication._flush_or_remove

    async def open_(self: Recorder, operation: Any, entries: Any) -> None:
        await opening(self, operation, entries)
        edge.reach(f"appended {operation.chart} open")

    async def append(self: Recorder, entries: Any, **about: Any) -> None:
        await appending(self, entries, **about)
        moves = [entry.dest for entry in entries if entry.instance is None]
        edge.reach(f"appended {moves[-1] if moves else 'replies'}")

    def perform(self: Scheduler, effect: Effect) -> None:
        performing(self, effect)
        edge.reach(f"after {name_of(effect)}")

    def flush(self: ManifestPublication) -> None:
        edge.reach("inside job gymckpt-sealed")  # the manifest stands, and the directory is held
        flushing(self)

    def detach(job: Callable[[], Any], name: str, then: Any) -> None:
        def reaching() -> Any:
            edge.reach(f"before job {name}")
            result = job()
            edge.reach(f"after job {name}")
            return result

        detaching(reaching, name, then)

    Recorder.open, Recorder.append, Scheduler._perform = open_, append, perform  # type: ignore[method-assign]
    effects_module.run_detached = detach
    ManifestPublication._flush_or_remove = flush  # type: ignore[method-assign]


# --- handles that send at once ------------------------------------------------------------------


class RemoteHandle:
    """A handle whose call has left this process when `.remote` returns, as one of Ray's has."""

    def __init__(self, path: str, instance: str) -> None:
        self._path = path
        self._instance = instance

    def __getattr__(self, method: str) -> Any:
        if not method.startswith("checkpoint_"):
            raise AttributeError(method)

        def remote(*args: Any, **kwargs: Any) -> Any:
            link = socket.socket(socket.AF_UNIX)
            link.connect(self._path)
            link.sendall(packed((self._instance, method, args, kwargs)))
            return _answer(link)

        return SimpleNamespace(remote=remote)


async def _answer(link: socket.socket) -> Any:
    reader, writer = await asyncio.open_unix_connection(sock=link)
    try:
        well, answer = await received(reader)
    finally:
        writer.close()
    if well:
        return answer
    raise answer


class Handles:
    """The handles of a job."""

    def __init__(self, path: str) -> None:
        self.checkpoint_handles = {instance: RemoteHandle(path, instance) for instance in IDS}


# --- what a controller does ---------------------------------------------------------------------


async def checkpoint(coordinator: GymCheckpointCoordinator, order: Order) -> None:
    """Save everything."""
    async with coordinator.prepared(WIRE_ID):
        await coordinator.commit(WIRE_ID, order.root, dispatched(), restarts={})


async def checkpoint_and_fail(coordinator: GymCheckpointCoordinator, order: Order) -> None:
    """Save everything, and give it up when it is durable."""
    async with coordinator.prepared(WIRE_ID):
        await coordinator.commit(WIRE_ID, order.root, dispatched(), restarts={})
        raise Deliberate


async def park_and_fail(coordinator: GymCheckpointCoordinator, order: Order) -> None:
    """Park everything, and save nothing."""
    async with coordinator.prepared(WIRE_ID):
        raise Deliberate


async def restore(coordinator: GymCheckpointCoordinator, order: Order) -> None:
    """Go back to a snapshot."""
    manifest = load_gym_checkpoint_manifest(order.source)
    async with coordinator.restored(WIRE_ID, order.source, manifest):
        pass


async def restore_and_fail(coordinator: GymCheckpointCoordinator, order: Order) -> None:
    """Go back to a snapshot, and give it up when all is installed."""
    manifest = load_gym_checkpoint_manifest(order.source)
    async with coordinator.restored(WIRE_ID, order.source, manifest):
        raise Deliberate


async def retire(coordinator: GymCheckpointCoordinator, order: Order) -> None:
    """Stop everything."""
    await coordinator.retire(WIRE_ID, dispatched())


async def wait_in_checkpoint(coordinator: GymCheckpointCoordinator, order: Order) -> None:
    """Save everything, and stay in the body until told otherwise."""
    async with coordinator.prepared(WIRE_ID):
        await coordinator.commit(WIRE_ID, order.root, dispatched(), restarts={})
        Path(order.report).with_suffix(".inside").touch()
        await asyncio.Event().wait()


async def wait_in_restore(coordinator: GymCheckpointCoordinator, order: Order) -> None:
    """Go back to a snapshot, and stay in the body until told otherwise."""
    manifest = load_gym_checkpoint_manifest(order.source)
    async with coordinator.restored(WIRE_ID, order.source, manifest):
        Path(order.report).with_suffix(".inside").touch()
        await asyncio.Event().wait()


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        checkpoint,
        checkpoint_and_fail,
        park_and_fail,
        restore,
        restore_and_fail,
        retire,
        wait_in_checkpoint,
        wait_in_restore,
    )
}


def dispatched() -> dict[str, tuple[EnvironmentEpisode, ...]]:
    """Return what runs at first."""
    return {instance: offered(instance) for instance in IDS}


def live(order: Order) -> None:
    """Live one life; called in a process of its own."""
    coordinator_module._RESUME_RETRY_PAUSE_S = 0.01
    logging.getLogger("gymckpt").addHandler(logging.NullHandler())
    edge = Edge(order)
    install(edge)

    async def main() -> None:
        coordinator = GymCheckpointCoordinator(
            Handles(order.socket),
            control_timeout_s=order.control_timeout_s,
            prepare_timeout_s=order.control_timeout_s,
            journal=order.journal,
            run=order.run,
            owner_timeout_s=order.owner_timeout_s,
        )
        await SCENARIOS[order.scenario](coordinator, order)

    try:
        asyncio.run(main())
    except Deliberate:
        edge.say("Deliberate")
    except BaseException as error:
        edge.say(f"{type(error).__name__}: {error}")
    else:
        edge.say("well")
    with contextlib.suppress(Exception):
        os._exit(0)
