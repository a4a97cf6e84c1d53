"""How a lease runs out, and what clocks that differ between hosts do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.participant.timing import Pulse, Timers
from gymckpt.replies import GymCheckpointPrepareSummary
from gymckpt.transience import is_transient_failure
from tests.participant.support import E0, Make, ManualTime, idle, inside_a_turn, start, until

# --- leases ---------------------------------------------------------------------------------------


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


# --- clocks that differ (B42) ---------------------------------------------------------------------


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


# --- waiting ------------------------------------------------------------------------------------


async def test_a_pulse_remembers_nobody_who_has_gone(time: ManualTime) -> None:
    """Whoever was woken by a beat or by time, or was cancelled, leaves neither entry nor timer."""
    pulse = Pulse(Timers(time.now_ts, time.call_later))
    waiters = [start(pulse.wait(time.now_ts() + 5 * number)) for number in (1, 2, 3)]
    await idle()
    time.advance(5.0)
    waiters[1].cancel()
    await idle()
    assert [waiter.done() for waiter in waiters] == [True, True, False]
    assert len(pulse._waiting) == time.armed == 1
    pulse.beat()
    await waiters[2]
    assert len(pulse._waiting) == time.armed == 0
