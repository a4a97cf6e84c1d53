"""How attempts are stopped and refused, and how a rollout is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointUnavailable
from tests.participant.support import (
    E0,
    E1,
    N0,
    N1,
    CountingDeployment,
    ManualTime,
    Saved,
    commit,
    discarded,
    idle,
    prepared,
    restore,
    start,
    until,
)


async def test_retire_after_a_restore_stops_what_it_installed(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """With the restore's own id the parked attempts are stopped, and never move after resume."""
    await restore(deployment, time, saved)
    reply = start(deployment.attach("r0", 1))
    await idle()
    await deployment.checkpoint_retire("x1", [N0, N1], deadline_ts=time.now_ts() + 5)
    with pytest.raises(GymCheckpointUnavailable, match="stale_attempt"):
        await reply
    await deployment.checkpoint_resume("x1", deadline_ts=0)
    await discarded(deployment, time)


async def test_retire_and_forget_are_refused_while_a_checkpoint_is_open(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """B11: inside a checkpoint they are refused at once, never a deadlock; after it they work."""
    await prepared(deployment, time)
    for step in ("prepared", "committed"):
        if step == "committed":
            await commit(deployment, time, tmp_path, E0)
        for checkpoint_id, code in (("c1", "invalid_phase"), ("s1", "checkpoint_conflict")):
            with pytest.raises(GymCheckpointUnavailable, match=code):
                await deployment.checkpoint_retire(
                    checkpoint_id, [E0], deadline_ts=time.now_ts() + 5
                )
            with pytest.raises(GymCheckpointUnavailable, match=code):
                await deployment.checkpoint_forget(
                    checkpoint_id, ["r9"], deadline_ts=time.now_ts() + 5
                )
    assert [live.episode for live in deployment._table] == [E0]
    await deployment.checkpoint_resume("c1", deadline_ts=0)
    await deployment.checkpoint_retire("s1", [E0], deadline_ts=time.now_ts() + 5)
    assert not list(deployment._table)


async def test_retire_stops_earlier_attempts_too_and_leaves_later_ones(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """Attempts up to the named one stop and stay refused; a higher one is untouched."""
    run = start(deployment.run("r0", 2))
    await until(lambda: deployment.entered(EnvironmentEpisode("r0", 2)) == 1)
    await deployment.checkpoint_retire("s1", [N0], deadline_ts=time.now_ts() + 5)
    assert not run.done()
    await deployment.checkpoint_retire(
        "s2", [EnvironmentEpisode("r0", 3)], deadline_ts=time.now_ts() + 5
    )
    with pytest.raises(Exception, match="was retired by 's2'"):
        await run
    with pytest.raises(GymCheckpointUnavailable, match="stale_attempt"):
        await deployment.attach("r0", 2)


async def test_a_retire_that_cannot_stop_in_time_keeps_its_mark(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """The refusal stands from the first moment; asking again waits for the same attempt."""
    start(deployment.run("r0"))
    await until(lambda: deployment.entered(E0) == 1)
    body = deployment.bodies[E0]
    body.stubborn = True
    call = start(deployment.checkpoint_retire("s1", [E0], deadline_ts=time.now_ts() + 5))
    await idle()
    time.advance(5.0)
    with pytest.raises(GymCheckpointUnavailable, match="deadline_exceeded refused from now on"):
        await call
    with pytest.raises(Exception, match="stale_attempt"):
        await deployment.run("r0")
    deployment.bodies[E0] = body
    again = start(deployment.checkpoint_retire("s1", [E0], deadline_ts=time.now_ts() + 5))
    await idle()
    assert not again.done()
    body.allow(2)
    await again
    assert body.turns == 1, "a stopped episode begins no further turn"


async def test_a_retire_stops_a_dispatch_that_waits_at_the_gate(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """What has not begun can be retired as well, before its task ever ran."""
    await restore(deployment, time, saved, E1)
    run = start(deployment.run("r0"))
    await idle()
    await deployment.checkpoint_retire("x1", [E0], deadline_ts=time.now_ts() + 5)
    with pytest.raises(Exception, match="stale_attempt"):
        await run
    assert deployment.entered(E0) == 0


async def test_forget_lets_a_rollout_begin_anew(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """After forget attempt 0 may run again; while an attempt runs, forget is refused."""
    run = start(deployment.run("r0"))
    await until(lambda: deployment.entered(E0) == 1)
    with pytest.raises(GymCheckpointUnavailable, match="attempts of r0 are live here"):
        await deployment.checkpoint_forget("s1", ["r0"], deadline_ts=time.now_ts() + 5)
    deployment.bodies[E0].allow(3)
    await run
    await deployment.checkpoint_retire("s1", [N0], deadline_ts=time.now_ts() + 5)
    await deployment.checkpoint_forget("s2", ["r0", "r0"], deadline_ts=time.now_ts() + 5)
    start(deployment.run("r0"))
    await until(lambda: deployment.entered(E0) == 1)


async def test_nothing_to_retire_or_forget_is_no_call(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """An instance that has nothing of a sweep answers at once, whatever state it is in."""
    await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts())
    await deployment.checkpoint_retire("s1", [], deadline_ts=0)
    await deployment.checkpoint_forget("s1", [], deadline_ts=0)
    assert deployment.phases == ["prepared"] * 4
