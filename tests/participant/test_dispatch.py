"""How attempts come in, how their replies go out, and how a deployment ends."""

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
from tests.participant.support import (
    E0,
    CountingDeployment,
    Make,
    ManualTime,
    idle,
    inside_a_turn,
    start,
    until,
)

# --- dispatch -------------------------------------------------------------------------------------


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
    del deployment.bodies[E0]
    again = start(deployment.run("r0", turns_max=1))
    await idle()
    await deployment.checkpoint_resume("c1", deadline_ts=0)
    deployment.bodies[E0].allow()
    assert await again == ("r0", 1)


async def test_a_dispatch_that_was_refused_is_a_reply_on_the_wire(
    make: Make, time: ManualTime, tmp_path: Path
) -> None:
    """Its refusal is travelling while the controller commits, so naming it is no error."""
    deployment = make(admission_timeout_s=1.0)
    await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts())
    run = start(deployment.run("r0"))
    await idle()
    time.advance(1.0)
    with pytest.raises(Exception, match="admission_closed"):
        await run
    summary = await deployment.checkpoint_commit(
        "c1", str(tmp_path), [E0], deadline_ts=time.now_ts() + 5
    )
    assert summary.exported_episodes == ()


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
    with pytest.raises(
        Exception, match=r"attempt 1 has taken over.*start the rollout over as attempt 2"
    ):
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


# --- the end --------------------------------------------------------------------------------------


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
