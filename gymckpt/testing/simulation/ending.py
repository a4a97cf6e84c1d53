"""
The second part of a run: faults end, a last controller recovers, and everything comes to rest.

What is required then: every operation settles (L2), every instance is open (S3), no attempt of a
discarded restore goes on (S5), a manifest exists exactly where its checkpoint stands, and what it
names can be read (S2), a fresh checkpoint works, and every journal replays to what was lived (S6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from gymckpt.core.replay import replay
from gymckpt.errors import InvariantViolated, JournalError, ReplayDiverged
from gymckpt.manifest import load_gym_checkpoint_manifest
from gymckpt.participant.store import RecordsStore
from gymckpt.testing.account import Broken
from gymckpt.testing.simulation.controllers import Controller
from gymckpt.testing.simulation.hosts import GRACE_S, CountingEpisode
from gymckpt.testing.simulation.plan import Verb
from gymckpt.testing.simulation.stage import EPOCH_TS, RUN, STARTUP_BOUND_S
from gymckpt.testing.simulation.watch import STANDING, KnownOperation
from gymckpt.testing.simulation.world import World

__all__ = ["hold_end"]

REST_BOUND_S = 200.0
"""Within which everything is at rest: a lease and its grace, a recovery, and the sweeps after it.
Clocks that stepped may make leases longer, by twice as much at the most."""

LOOK_S = 7.0

LAST = Verb(kind="snapshot", body_s=0.0, choice=1)


async def hold_end(world: World) -> None:
    """
    End the faults, and hold what must be so afterwards.

    Args:
        world: The run, its first part done.
    """
    healed_s = world.loop.time()
    heal(world)
    last = world.new_controller()
    await _rest(world, last)
    if world.problems:
        return
    _hold_s5(world, healed_s)
    await _hold_fresh(world, last)
    _hold_histories(world)


def heal(world: World) -> None:
    """End every fault, and those controllers that the plan wants to be gone."""
    world.timeline.note("world", "the faults end")
    world.faults_over = True
    world.network.faults = {}
    world.network.cut_off.clear()
    for disk in world.disks.values():
        disk.heal()
    keep = world.plan.seed % 2 == 0
    for controller in world.controllers.values():
        controller.armed = []
        controller.clock.step_wall(EPOCH_TS + world.loop.time() - controller.clock.wall_ts())
        if not keep:
            controller.process.kill()
        world.loop.go_on(controller.process)
    for instance in world.instances:
        instance.clock.step_wall(EPOCH_TS + world.loop.time() - instance.clock.wall_ts())
        if instance.dead:
            world.renew(instance)
        world.loop.go_on(instance.process)
        instance.deployment.block(())
    world.ledger.reopened()


async def _rest(world: World, last: Controller) -> None:
    """Let a last controller recover until everything is at rest, or say what is not."""
    steps_s = (one.seconds for one in world.mishaps.happened if one.kind.startswith("clock"))
    ends_s = world.loop.time() + REST_BOUND_S + 2 * sum(steps_s)
    await _in(last, "recovery", last.started(force=world.plan.forced))
    while True:
        unsettled = _unsettled(world)
        closed = [one.instance_id for one in world.instances if not one.deployment.is_open]
        working = [one for one in world.lives if _works(world, one)]
        late = world.network.on_the_way > 0  # one that arrives yet may close its instance again
        if not unsettled and not closed and not working and not late:
            return
        if world.loop.time() > ends_s:
            for name, state in unsettled.items():
                world.broken(Broken("L2", f"{name} stays in {state}"))
            for name in closed:
                world.broken(Broken("S3", f"{name} stays closed"))
            for one in working:
                world.broken(Broken("L1", f"{one.process.name} does not end"))
            return
        await asyncio.sleep(LOOK_S)
        if unsettled and not working:
            await _in(last, "recovery", last.started())


def _works(world: World, controller: Controller) -> bool:
    busy = controller.beside_under_way > 0 or not world.lives[controller].done()
    return busy and not controller.process.dead


async def _in(controller: Controller, name: str, doing: object) -> bool:
    """Do something in a controller's process, within bounds."""
    task = controller.process.start(controller.bounded(name, doing, STARTUP_BOUND_S))
    await asyncio.wait({task})
    return task.result()


def _unsettled(world: World) -> Mapping[str, str]:
    rows = world.journal(world.reader).operations(RUN, unfinished=True)
    return {row.operation_id: row.state for row in rows}


async def _hold_fresh(world: World, last: Controller) -> None:
    """Hold that a fresh checkpoint works, whatever has been."""
    world.ledger.reopened()
    await asyncio.sleep(world.plan.turn_s)
    await _in(last, "taking the run", last.coordinator.recover(force=True))
    before = len(world.stage.published)
    if not await _in(last, "the last snapshot", last.perform(LAST, "last")):
        world.broken(Broken("L2", "a fresh snapshot does not work after all faults have ended"))
    elif len(world.stage.published) == before:
        world.broken(Broken("L2", "a fresh snapshot has nothing to save"))


def _hold_s5(world: World, healed_s: float) -> None:
    """Hold that no attempt of a discarded restore goes on, unless its horizon had passed."""
    kept = {
        (instance, found["rollout_id"], found["attempt"])
        for known in world.watch.operations.values()
        if known.chart == "restore" and known.state == "resumed"
        for instance, listed in known.opening["inventory"].items()
        for found in listed
    }
    for known in world.watch.operations.values():
        if known.chart != "restore" or known.state != "discarded":
            continue
        if healed_s >= known.opened_s + GRACE_S:
            continue
        for instance in world.instances:
            for found in known.opening["inventory"].get(instance.instance_id, ()):
                key = (instance.instance_id, found["rollout_id"], found["attempt"])
                for episode, live in instance.deployment.live.items():
                    body = live.body
                    same = (episode.rollout_id, episode.attempt) == (key[1], key[2] + 1)
                    restored = isinstance(body, CountingEpisode) and body.restored
                    if same and restored and key not in kept:
                        what = f"{episode.capture_key} of {known.wire_id} goes on there"
                        world.broken(Broken("S5", f"{instance.instance_id}: {what}"))


def _hold_histories(world: World) -> None:
    """Hold S2 and S6 against everything that was ever recorded."""
    journal = world.journal(world.reader)
    for row in journal.operations(RUN):
        try:
            operation = replay(journal.read(RUN, row.operation_id))
        except (ReplayDiverged, InvariantViolated, JournalError) as error:
            world.broken(Broken("S6", f"{row.operation_id} does not replay: {error}"))
            continue
        if (operation.state, operation.settled) != (row.state, row.settled):
            what = f"its row says {row.state}, its replay {operation.state}"
            world.broken(Broken("S6", f"{row.operation_id}: {what}"))
        known = world.watch.operations[row.operation_id]
        if known.chart == "checkpoint":
            _hold_manifest(world, known)


def _hold_manifest(world: World, known: KnownOperation) -> None:
    """Hold that a manifest exists exactly where a checkpoint stands, and that it can be read."""
    root = None if known.root is None else Path(known.root)
    try:
        manifest = None if root is None else load_gym_checkpoint_manifest(root)
    except FileNotFoundError:
        manifest = None
    except (OSError, ValueError) as error:
        world.broken(Broken("S2", f"the manifest of {known.wire_id} is unreadable: {error}"))
        return
    exists = manifest is not None and manifest.checkpoint_id == known.wire_id
    if exists != (known.state in STANDING):
        what = f"{known.wire_id} is {known.state}, its manifest exists: {exists}"
        world.broken(Broken("S2", what))
    if root is None or manifest is None or not exists:
        return
    for instance, episodes in manifest.instances.items():
        try:
            store = RecordsStore(root, instance, "environment", "environment")
            records = store.read(known.wire_id)
        except (OSError, ValueError) as error:
            world.broken(Broken("S2", f"{known.wire_id} stands, but {error}"))
            continue
        saved = sorted((one["rollout_id"], one["attempt"]) for one in records)
        if saved != sorted((one.rollout_id, one.attempt) for one in episodes):
            what = f"{known.wire_id} names {len(episodes)} episodes of {instance}, not {saved}"
            world.broken(Broken("S2", what))
