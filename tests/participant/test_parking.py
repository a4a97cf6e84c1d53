"""How a deployment parks, waits, reopens and lets its lease run out."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.participant import episodes, hosting
from gymckpt.participant.control import ControlPlane
from gymckpt.participant.deployment import Deployment
from gymckpt.participant.servers import Server, Servers
from gymckpt.replies import GymCheckpointPrepareSummary
from gymckpt.transience import is_transient_failure
from tests.participant.conftest import Make
from tests.participant.support import (
    E0,
    E1,
    CountingDeployment,
    ManualTime,
    idle,
    start,
    until,
)


async def inside_a_turn(deployment: CountingDeployment, rollout_id: str = "r0") -> asyncio.Task:
    """Return a running episode that is inside its first turn."""
    known = set(deployment.bodies)
    task = start(deployment.run(rollout_id))
    await until(lambda: any(b.entered for e, b in deployment.bodies.items() if e not in known))
    return task


# --- parking ------------------------------------------------------------------------------------


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


# --- restarts -----------------------------------------------------------------------------------


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


async def test_an_unbegun_episode_is_never_a_restart(make: Make, time: ManualTime) -> None:
    """A dispatch that waits at the gate has no state anywhere, so it can be captured."""
    deployment = make(restart_only=True)
    assert (await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts())).restarts == ()
    start(deployment.run("r0", restart_only=True))
    await idle()
    assert deployment.bodies[E0].entered == 0
    await deployment.checkpoint_resume("c1", deadline_ts=0)
    await until(lambda: deployment.entered(E0) == 1)


# --- resume and fencing -------------------------------------------------------------------------


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


# --- leases -------------------------------------------------------------------------------------


async def test_a_lease_that_runs_out_reopens_by_itself(make: Make, time: ManualTime) -> None:
    """Nobody calls: the timer reopens the gate at deadline plus grace, and fences the id."""
    deployment = make(grace_s=20.0)
    await inside_a_turn(deployment)
    deployment.bodies[E0].allow(3)
    prepared = await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5)
    assert prepared.prepared
    await deployment.checkpoint_renew("c1", deadline_ts=time.now_ts() + 10)
    time.advance(29.9)
    await idle()
    assert deployment.bodies[E0].turns == 1
    time.advance(0.1)
    await until(lambda: deployment.bodies[E0].turns == 3)
    with pytest.raises(GymCheckpointUnavailable, match="stale_checkpoint"):
        await deployment.checkpoint_renew("c1", deadline_ts=time.now_ts() + 10)


async def test_a_lease_wakes_a_waiting_prepare(make: Make, time: ManualTime) -> None:
    """A prepare with a deadline in the past of its grace is overtaken by the lease."""
    deployment = make(grace_s=1.0)
    await inside_a_turn(deployment)
    await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts())
    time.step_clock(30.0)
    summary = await deployment.checkpoint_prepare("c2", deadline_ts=time.now_ts())
    assert summary.blockers == {"environment": ("r0",)}
    waiting = start(deployment.checkpoint_prepare("c2", deadline_ts=time.now_ts() + 5))
    await idle()
    time.step_clock(60.0)
    deployment.changed()
    assert await waiting == GymCheckpointPrepareSummary(False, {})
    assert deployment.phases == ["idle"] * 4


async def test_a_clock_that_is_set_back_only_prolongs_the_lease(
    make: Make, time: ManualTime
) -> None:
    """The timer looks at the clock again, so a lease never ends before its time by that clock."""
    deployment = make(grace_s=20.0)
    await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5)
    time.step_clock(-10.0)
    time.advance(25.0)
    assert deployment.phases == ["prepared"] * 4
    time.advance(10.0)
    assert deployment.phases == ["idle"] * 4


# --- clocks that differ (B42) -------------------------------------------------------------------


async def test_a_clock_ahead_refuses_late_work_and_still_resumes(
    make: Make, tmp_path: Path
) -> None:
    """B42: with the host 60 s ahead, work is refused with its reason, and resume works."""
    host = ManualTime(skew_s=60.0)
    deployment = make(host)
    deadline_ts = host.ours_ts + 30
    prepared = await deployment.checkpoint_prepare("c1", deadline_ts=deadline_ts)
    assert prepared.prepared
    calls = (
        deployment.checkpoint_commit("c1", str(tmp_path), [], deadline_ts=deadline_ts),
        deployment.checkpoint_retire("c2", [E0], deadline_ts=deadline_ts),
        deployment.checkpoint_restore(
            "r1", str(tmp_path), [], source_checkpoint_id="c1",
            participants=deployment._servers.names, deadline_ts=deadline_ts,
        ),
    )  # fmt: skip
    commit, retire, restore = calls
    with pytest.raises(GymCheckpointUnavailable, match=r"deadline_exceeded .* 30\.000 s") as caught:
        await commit
    assert is_transient_failure(caught.value)
    await deployment.checkpoint_resume("c1", deadline_ts=deadline_ts)
    assert deployment.phases == ["idle"] * 4
    for call in (retire, restore):
        with pytest.raises(GymCheckpointUnavailable, match="deadline_exceeded"):
            await call
    assert deployment.phases == ["idle"] * 4


async def test_a_clock_behind_keeps_the_lease_and_never_shortens_it(make: Make) -> None:
    """B42: with the host 60 s behind, the lease lasts longer, and an early deadline keeps it."""
    host = ManualTime(skew_s=-60.0)
    deployment = make(host, grace_s=20.0)
    await deployment.checkpoint_prepare("c1", deadline_ts=host.ours_ts + 30)
    await deployment.checkpoint_renew("c1", deadline_ts=host.ours_ts + 1)
    host.advance(109.9)
    assert deployment.phases == ["prepared"] * 4
    host.advance(0.2)
    assert deployment.phases == ["idle"] * 4


# --- dispatch -----------------------------------------------------------------------------------


async def test_a_dispatch_waits_at_the_gate(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """A run that comes while parked begins when the deployment is resumed."""
    await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5)
    run = start(deployment.run("r0", turns_max=1))
    await idle()
    assert deployment.bodies[E0].entered == 0
    await deployment.checkpoint_resume("c1", deadline_ts=0)
    deployment.bodies[E0].allow()
    assert await run == ("r0", 1)


async def test_a_dispatch_waits_within_bounds(make: Make, time: ManualTime) -> None:
    """A run that finds the gate shut for too long is refused, and may come again."""
    deployment = make(admission_timeout_s=10.0)
    await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5)
    run = start(deployment.run("r0", turns_max=1))
    await idle()
    time.advance(9.9)
    await idle()
    assert not run.done()
    time.advance(0.1)
    with pytest.raises(Exception, match="admission_closed"):
        await run


async def test_one_attempt_is_dispatched_once(deployment: CountingDeployment) -> None:
    """The same attempt again is refused, running or ended; attach gives its reply."""
    run = start(deployment.run("r0", turns_max=1))
    await until(lambda: deployment.entered(E0) == 1)
    first = deployment.bodies[E0]
    with pytest.raises(ValueError, match="attach to it"):
        await deployment.run("r0")
    deployment.bodies[E0].closed = 1
    deployment.bodies[E0] = first
    attached = start(deployment.attach("r0", 0))
    await idle()
    first.allow()
    assert await run == await attached == ("r0", 1)
    assert await deployment.attach("r0", 0) == ("r0", 1)
    with pytest.raises(ValueError, match="no attempt 4 of rollout 'r0'"):
        await deployment.attach("r0", 4)


async def test_a_caller_that_goes_away_stops_nothing(deployment: CountingDeployment) -> None:
    """Cancelling whoever waits for a reply leaves the episode running for the next to attach."""
    run = await inside_a_turn(deployment)
    run.cancel()
    await idle()
    assert run.cancelled()
    deployment.bodies[E0].allow(3)
    assert await deployment.attach("r0", 0) == ("r0", 3)


async def test_a_later_attempt_stops_the_earlier_one(deployment: CountingDeployment) -> None:
    """Attempt 1 takes over: attempt 0 ends with stale_attempt and can never come back."""
    run = await inside_a_turn(deployment)
    start(deployment.run("r0", 1))
    with pytest.raises(Exception, match="stale_attempt"):
        await run
    with pytest.raises(Exception, match="attempt 1 has taken over; start the rollout over as"):
        await deployment.run("r0", 0)


async def test_an_episode_that_fails_gives_its_error(deployment: CountingDeployment) -> None:
    """An error inside a turn ends the episode, reaches its caller, and blocks no prepare."""
    run = await inside_a_turn(deployment)
    deployment.bodies[E0].fails = RuntimeError("the tool broke")
    deployment.bodies[E0].allow()
    with pytest.raises(RuntimeError, match="the tool broke"):
        await run


async def test_a_body_that_cancels_itself_is_an_error(deployment: CountingDeployment) -> None:
    """A cancellation that no retire caused reaches the caller as an error, not as its own."""
    run = await inside_a_turn(deployment)
    deployment.bodies[E0].fails = asyncio.CancelledError()
    deployment.bodies[E0].allow()
    with pytest.raises(RuntimeError, match="r0 was cancelled, but not retired"):
        await run


async def test_an_episode_that_cannot_be_closed_still_gives_its_reply(
    deployment: CountingDeployment, caplog: pytest.LogCaptureFixture
) -> None:
    """An error while closing is logged with the episode's name and changes no outcome."""
    run = start(deployment.run("r0", turns_max=1))
    await idle()
    deployment.bodies[E0].close_fails = True
    deployment.bodies[E0].allow()
    assert await run == ("r0", 1)
    assert "episode r0 could not be closed" in caplog.text


async def test_replies_are_kept_for_the_latest_episodes_only(
    deployment: CountingDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest reply is dropped first, and asking for it is an error that says so."""
    monkeypatch.setattr(episodes, "REPLIES_KEPT", 2)
    for number in range(3):
        run = start(deployment.run(f"k{number}", turns_max=1))
        await idle()
        deployment.bodies[EnvironmentEpisode(f"k{number}", 0)].allow()
        await run
    assert await deployment.attach("k1", 0) == ("k1", 1)
    with pytest.raises(ValueError, match="no reply of it is kept"):
        await deployment.attach("k0", 0)


# --- the end ------------------------------------------------------------------------------------


async def test_closing_ends_everything(make: Make, time: ManualTime) -> None:
    """Episodes, waiting calls and timers end with the deployment, each with a clear refusal."""
    deployment = make()
    run = await inside_a_turn(deployment)
    prepare = start(deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5))
    await idle()
    await deployment.close()
    with pytest.raises(Exception, match="was closed"):
        await run
    with pytest.raises(GymCheckpointUnavailable, match="is closed"):
        await prepare
    with pytest.raises(GymCheckpointUnavailable, match="checkpoint_coordinator_unavailable"):
        await deployment.checkpoint_resume("c1", deadline_ts=0)
    await deployment.close()
    assert time.armed == 0


async def test_the_status_says_how_every_server_stands(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """A blocked prepare shows in the status with its phases, its lease and its count."""
    await inside_a_turn(deployment)
    deadline_ts = time.now_ts()
    await deployment.checkpoint_prepare("c1", deadline_ts=deadline_ts)
    status = await deployment.checkpoint_status()
    first = status["servers"][0]
    assert (first["phase"], first["blockers"], first["checkpoint_id"]) == ("preparing", 1, "c1")
    assert first["lease_expires_ts"] == deadline_ts + 600
    assert [server["phase"] for server in status["servers"][1:]] == ["idle"] * 3
    assert status["live_episodes"] == 1


async def test_closing_leaves_a_hung_disk_behind(
    make: Make, time: ManualTime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that never ends does not keep a deployment from being closed."""
    monkeypatch.setattr(hosting, "CLOSE_S", 0.01)
    deployment = make()
    release, reached = threading.Event(), threading.Event()

    def hang() -> None:
        reached.set()
        release.wait(10)

    deployment.before_record = hang
    await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts())
    commit = start(
        deployment.checkpoint_commit("c1", str(tmp_path), [], deadline_ts=time.now_ts() + 5)
    )
    await until(reached.is_set)
    await deployment.close()
    with pytest.raises(GymCheckpointUnavailable, match="stale_checkpoint"):
        await commit
    assert not [task for task in asyncio.all_tasks() if "_write" in repr(task)]
    release.set()
    await until(lambda: not [t for t in threading.enumerate() if "gymckpt-files" in t.name])


def test_a_deployment_has_servers_with_names_of_their_own() -> None:
    """No server at all, and two of one name, are refused."""
    with pytest.raises(ValueError, match="at least one server"):
        Servers([])
    two = [Server(kind="agent", name="a", control=ControlPlane("a")) for _ in range(2)]
    with pytest.raises(ValueError, match="names of their own"):
        Servers(two)


async def test_a_deployment_may_lack_some_kinds(time: ManualTime) -> None:
    """Two environment servers and no agent park in one stage, and block by their own names."""

    class Few(CountingDeployment):
        def __init__(self) -> None:
            servers = [
                Server(kind="environment", name=name, control=ControlPlane(name))
                for name in ("env-a", "env-b")
            ]
            Deployment.__init__(
                self, "tools/replica-1", servers, now_ts=time.now_ts, call_later=time.call_later
            )
            self.bodies, self.extra_blockers, self.parking_error = {}, {}, None

    async with Few() as deployment:
        await inside_a_turn(deployment)
        summary = await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts())
        assert summary.blockers == {"env-a": ("r0",), "env-b": ("r0",)}
        prepare = start(deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5))
        await idle()
        deployment.bodies[E0].allow()
        assert (await prepare).prepared
        assert deployment.phases == ["prepared"] * 2
