"""How a deployment parks, waits for what is inside a turn, and reopens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.replies import GymCheckpointPrepareSummary
from gymckpt.transience import is_transient_failure
from tests.participant.support import (
    E0,
    E1,
    CountingDeployment,
    Make,
    ManualTime,
    idle,
    inside_a_turn,
    start,
    until,
)

# --- parking --------------------------------------------------------------------------------------


async def test_nothing_to_park_is_parked_at_once(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """A deployment without episodes is parked without waiting."""
    summary = await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5)
    assert summary == GymCheckpointPrepareSummary(True, {}, ())
    assert deployment.phases == ["prepared"] * 4


async def test_an_episode_inside_a_turn_parks_at_its_end(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """Prepare waits for the turn, then nothing moves, though the episode would go on."""
    await inside_a_turn(deployment)
    prepare = start(deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5))
    await idle()
    assert not prepare.done()
    deployment.bodies[E0].allow(2)
    assert (await prepare).prepared
    await idle()
    assert deployment.bodies[E0].turns == 1
    await deployment.checkpoint_resume("c1", deadline_ts=0)
    await until(lambda: deployment.bodies[E0].turns == 2)


async def test_an_episode_between_turns_parks_there(make: Make, time: ManualTime) -> None:
    """A pause between turns, however long, does not keep a prepare waiting."""
    deployment = make(turn_pause_s=3_600.0)
    await inside_a_turn(deployment)
    deployment.bodies[E0].allow(5)
    await until(lambda: deployment.bodies[E0].turns == 1)
    await idle()
    summary = await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5)
    assert summary.prepared
    assert deployment.bodies[E0].entered == 1


async def test_a_gate_that_opens_for_a_moment_lets_nobody_through(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """A prepare right behind a resume, before any episode could run, finds all of them parked."""
    await inside_a_turn(deployment)
    deployment.bodies[E0].allow()
    await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5)
    await idle()
    await deployment.checkpoint_resume("c1", deadline_ts=0)
    assert (await deployment.checkpoint_prepare("c2", deadline_ts=time.now_ts())).prepared
    await idle()
    assert deployment.entered(E0) == 1


async def test_an_episode_that_ends_with_its_turn_blocks_nobody(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """A last turn that is still running is waited for, and its reply goes out."""
    run = start(deployment.run("r0", turns_max=1))
    await until(lambda: deployment.entered(E0) == 1)
    prepare = start(deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5))
    await idle()
    deployment.bodies[E0].allow()
    assert (await prepare).prepared
    assert await run == ("r0", 1)


async def test_blockers_are_named_at_the_deadline(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """A turn that outlasts the deadline makes the answer; admission stays closed until resume."""
    await inside_a_turn(deployment)
    await inside_a_turn(deployment, "r1")
    prepare = start(deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5))
    await idle()
    time.advance(4.99)
    await idle()
    assert not prepare.done()
    time.advance(0.01)
    summary = await prepare
    assert summary == GymCheckpointPrepareSummary(False, {"environment": ("r0", "r1")})
    assert deployment.phases == ["preparing", "idle", "idle", "idle"]
    held = start(deployment.run("r2"))
    await idle()
    assert deployment.bodies[E0].turns == 0
    assert not held.done()
    await deployment.checkpoint_resume("c1", deadline_ts=0)
    assert deployment.phases == ["idle"] * 4


async def test_a_second_prepare_waits_on(deployment: CountingDeployment, time: ManualTime) -> None:
    """The same prepare again, with a later deadline, goes on waiting where the first gave up."""
    await inside_a_turn(deployment)
    first = await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() - 1)
    assert not first.prepared
    second = start(deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5))
    third = start(deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5))
    await idle()
    deployment.bodies[E0].allow()
    assert (await second).prepared
    assert await third is await second
    assert await deployment.checkpoint_prepare("c1", deadline_ts=0) is await second


async def test_blockers_are_texts_that_nobody_parses(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """B16: a server that lost a worker names no episode; later stages are not touched."""
    deployment.extra_blockers["agent"] = ("agent-worker-lost", "agent-workers-unreported:1")
    summary = await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts())
    assert summary.blockers == {"agent": ("agent-worker-lost", "agent-workers-unreported:1")}
    assert deployment.phases == ["prepared", "prepared", "preparing", "idle"]
    waiting = start(deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5))
    await idle()
    deployment.extra_blockers.clear()
    deployment.changed()
    assert (await waiting).prepared
    assert deployment.phases == ["prepared"] * 4


async def test_thousands_of_blockers_are_capped_and_restarts_are_not(
    make: Make, time: ManualTime
) -> None:
    """B17: 100 entries of which the last counts the rest; every restart is named."""
    deployment = make(restart_only=True)
    runs = [start(deployment.run(f"k{n}", restart_only=True)) for n in range(300)]
    await until(lambda: sum(body.entered for body in deployment.bodies.values()) == 300)
    deployment.extra_blockers["environment"] = tuple(f"b{n}" for n in range(10_000))
    summary = await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts())
    [entries] = summary.blockers.values()
    assert len(entries) == 100
    assert entries[-1] == "and 9901 more"
    deployment.extra_blockers.clear()
    summary = await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts())
    assert len(summary.restarts) == len(runs)


async def test_a_prepare_that_raises_reopens_its_stage(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """An error while parking reaches the caller, and the server admits episodes again."""
    deployment.parking_error = OSError("the worker table is gone")
    with pytest.raises(OSError, match="worker table"):
        await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5)
    assert deployment.phases == ["idle"] * 4
    deployment.parking_error = None
    assert (await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5)).prepared


# --- restarts -------------------------------------------------------------------------------------


async def test_restarts_keep_running_and_are_reported(make: Make, time: ManualTime) -> None:
    """An episode on a restart-only server blocks nothing, is named, and goes on while parked."""
    deployment = make(restart_only=True)
    assert await deployment.checkpoint_restart_only_servers() == ["resources"]
    run = start(deployment.run("r0", restart_only=True))
    other = start(deployment.run("r1"))
    await until(lambda: len([b for b in deployment.bodies.values() if b.entered]) == 2)
    prepare = start(deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5))
    await idle()
    deployment.bodies[E1].allow(3)
    assert (await prepare).restarts == (E0,)
    deployment.bodies[E0].allow(3)
    assert await run == ("r0", 3)
    await idle()
    assert deployment.bodies[E1].turns == 1
    assert not other.done()


async def test_a_restart_that_ends_in_the_same_moment_is_not_named(
    make: Make, time: ManualTime
) -> None:
    """An episode whose reply is going out is a reply on the wire and not also a restart."""
    deployment = make(restart_only=True)
    run = start(deployment.run("r0", restart_only=True, turns_max=1))
    start(deployment.run("r1"))
    await until(lambda: deployment.entered(E0) + deployment.entered(E1) == 2)
    prepare = start(deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5))
    await idle()
    deployment.bodies[E1].allow()
    deployment.bodies[E0].allow()
    assert await prepare == GymCheckpointPrepareSummary(True, {}, ())
    assert await run == ("r0", 1)


async def test_an_unbegun_episode_is_never_a_restart(
    make: Make, time: ManualTime, tmp_path: Path
) -> None:
    """A dispatch that waits at the gate has no state anywhere, so it can be captured."""
    deployment = make(restart_only=True)
    assert (await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts())).restarts == ()
    start(deployment.run("r0", restart_only=True))
    await idle()
    summary = await deployment.checkpoint_commit(
        "c1", str(tmp_path), [E0], deadline_ts=time.now_ts() + 5
    )
    assert summary.exported_episodes == (E0,)
    assert deployment.bodies[E0].entered == 0
    await deployment.checkpoint_resume("c1", deadline_ts=0)
    await until(lambda: deployment.entered(E0) == 1)


# --- resume and fencing ---------------------------------------------------------------------------


async def test_a_resume_overtakes_a_waiting_prepare(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """The waiting prepare answers not parked and no blockers; nothing is closed afterwards."""
    await inside_a_turn(deployment)
    prepare = start(deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5))
    await idle()
    await deployment.checkpoint_resume("c1", deadline_ts=0)
    assert await prepare == GymCheckpointPrepareSummary(False, {})
    assert deployment.phases == ["idle"] * 4


async def test_a_late_prepare_is_refused(deployment: CountingDeployment, time: ManualTime) -> None:
    """B10: a prepare that runs after the resume of its id closes nothing, on no server."""
    await deployment.checkpoint_resume("c1", deadline_ts=0)
    with pytest.raises(GymCheckpointUnavailable, match="prepare on tools/replica-0: stale_check"):
        await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5)
    assert deployment.phases == ["idle"] * 4


async def test_a_burst_of_queued_calls_after_a_block_is_refused(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """B30: calls that queued up while nobody looked and ran after their resume do nothing."""
    for number in range(20):
        await deployment.checkpoint_resume(f"c{number}", deadline_ts=0)
    calls = [
        deployment.checkpoint_prepare(f"c{number}", deadline_ts=time.now_ts() + 5)
        for number in range(20)
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, GymCheckpointUnavailable) for result in results)
    assert deployment.phases == ["idle"] * 4


async def test_two_controllers(deployment: CountingDeployment, time: ManualTime) -> None:
    """B45: the second is refused while the first holds it, and its cleanup reopens nothing."""
    await inside_a_turn(deployment)
    deployment.bodies[E0].allow(1)
    await deployment.checkpoint_prepare("a", deadline_ts=time.now_ts() + 5)
    with pytest.raises(GymCheckpointUnavailable, match="checkpoint_conflict") as caught:
        await deployment.checkpoint_prepare("b", deadline_ts=time.now_ts() + 5)
    assert is_transient_failure(caught.value)
    await deployment.checkpoint_resume("b", deadline_ts=0)
    assert deployment.phases == ["prepared"] * 4
    deployment.bodies[E0].allow(1)
    await idle()
    assert deployment.bodies[E0].turns == 1
    await deployment.checkpoint_renew("a", deadline_ts=time.now_ts() + 5)
    await deployment.checkpoint_resume("a", deadline_ts=0)
    assert (await deployment.checkpoint_prepare("b2", deadline_ts=time.now_ts() + 5)).prepared


async def test_a_renewal_needs_every_server(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """A deployment that is parked in part is not renewed in part."""
    await inside_a_turn(deployment)
    await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts())
    leases = [s.control.state.lease_expires_ts for s in deployment._servers.all]
    with pytest.raises(GymCheckpointUnavailable, match="invalid_phase"):
        await deployment.checkpoint_renew("c1", deadline_ts=time.now_ts() + 50)
    assert [s.control.state.lease_expires_ts for s in deployment._servers.all] == leases
