"""One write for one checkpoint, however often it is asked for, and what stops it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.participant.parking import STOPPED_WRITE_S
from tests.participant.support import (
    E0,
    E1,
    CountingDeployment,
    Door,
    ManualTime,
    commit,
    files_below,
    idle,
    manifests,
    prepared,
    start,
    until,
)

# --- the same commit again ------------------------------------------------------------------------


async def test_a_commit_is_idempotent(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """The same commit again, late and in another order, repeats the answer and touches no file."""
    await prepared(deployment, time, "r0", "r1")
    first = await commit(deployment, time, tmp_path, E0, E1)
    stamps = [path.stat().st_mtime_ns for path in manifests(tmp_path)]
    again = await commit(deployment, time, tmp_path, E1, E0, in_s=-5)
    assert again is first
    assert [path.stat().st_mtime_ns for path in manifests(tmp_path)] == stamps


async def test_one_id_commits_one_thing(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """The same id with another scope or another root is a conflict."""
    await prepared(deployment, time, "r0", "r1")
    await commit(deployment, time, tmp_path, E0, E1)
    for root, scope in ((tmp_path, (E0,)), (tmp_path / "other", (E0, E1))):
        with pytest.raises(GymCheckpointUnavailable, match="checkpoint_conflict"):
            await commit(deployment, time, root, *scope)
    assert not (tmp_path / "other").exists()


async def test_a_second_commit_waits_for_the_same_write(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """While the first write runs, the same commit joins it: one write, one answer."""
    door = Door()
    deployment.before_record = door
    await prepared(deployment, time)
    first = start(commit(deployment, time, tmp_path, E0))
    await until(door.reached.is_set)
    door.reached.clear()
    second = start(commit(deployment, time, tmp_path, E0))
    await idle()
    assert not first.done()
    assert not second.done()
    door.open.set()
    assert await first is await second
    assert not door.reached.is_set()


async def test_a_commit_past_its_deadline_goes_on_under_its_id(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """The caller is refused at the deadline; the same commit later waits for the same write."""
    door = Door()
    deployment.before_record = door
    await prepared(deployment, time)
    first = start(commit(deployment, time, tmp_path, E0))
    await until(door.reached.is_set)
    time.advance(5.0)
    with pytest.raises(GymCheckpointUnavailable, match="deadline_exceeded"):
        await first
    second = start(commit(deployment, time, tmp_path, E0))
    await idle()
    door.open.set()
    assert (await second).exported_episodes == (E0,)


async def test_a_caller_that_goes_away_does_not_stop_the_write(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """A cancelled commit call leaves the write to be joined by the same call."""
    door = Door()
    deployment.before_record = door
    await prepared(deployment, time)
    first = start(commit(deployment, time, tmp_path, E0))
    await until(door.reached.is_set)
    first.cancel()
    await idle()
    door.open.set()
    assert (await commit(deployment, time, tmp_path, E0)).exported_episodes == (E0,)


async def test_a_write_that_failed_may_be_tried_again(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """An error of the disk reaches the caller as it is, and the same commit writes anew."""

    def full() -> None:
        raise OSError(28, "No space left on device")

    deployment.before_record = full
    await prepared(deployment, time)
    with pytest.raises(OSError, match="No space left"):
        await commit(deployment, time, tmp_path, E0)
    deployment.before_record = lambda: None
    assert (await commit(deployment, time, tmp_path, E0)).exported_episodes == (E0,)


# --- what stops a write ---------------------------------------------------------------------------


async def stopped_by_resume(deployment: CountingDeployment, time: ManualTime) -> None:
    await deployment.checkpoint_resume("c1", deadline_ts=0)


async def stopped_by_lease(deployment: CountingDeployment, time: ManualTime) -> None:
    time.advance(700.0)
    await idle()


@pytest.mark.parametrize("stopper", [stopped_by_resume, stopped_by_lease])
async def test_a_stopped_write_publishes_nothing(
    deployment: CountingDeployment,
    time: ManualTime,
    tmp_path: Path,
    stopper: Callable[[CountingDeployment, ManualTime], Any],
) -> None:
    """B13: after a resume or a lost lease no server's manifest appears, however late."""
    door = Door()
    deployment.before_record = door
    await prepared(deployment, time)
    late = start(commit(deployment, time, tmp_path, E0, in_s=5_000))
    await until(door.reached.is_set)
    time.advance(4_999.0 if stopper is stopped_by_lease else 0.0)
    stopping = start(stopper(deployment, time))
    await idle()
    assert deployment.phases == ["idle"] * 4
    with pytest.raises(GymCheckpointUnavailable, match="stale_checkpoint"):
        await late
    await until(lambda: deployment.entered(E0) == 3)
    door.open.set()
    await stopping
    await deployment._workshop.quiet(10)
    assert files_below(tmp_path) == []


async def test_a_resume_waits_for_the_write_that_it_stopped(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """Episodes go on at once, but the resume is answered when the writer has given up."""
    door = Door()
    deployment.before_record = door
    await prepared(deployment, time)
    start(commit(deployment, time, tmp_path, E0))
    await until(door.reached.is_set)
    foreign = start(deployment.checkpoint_resume("c2", deadline_ts=0))
    await idle()
    assert foreign.done(), "the resume of another id has nothing to wait for"
    resume = start(deployment.checkpoint_resume("c1", deadline_ts=0))
    await idle()
    assert deployment.phases == ["idle"] * 4
    assert not resume.done()
    assert STOPPED_WRITE_S <= 5.0
    door.open.set()
    await resume


async def test_a_checkpoint_after_a_stopped_write_is_its_own(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """While an old write still hangs, a new checkpoint under a new id and root succeeds."""
    door = Door()
    deployment.before_record = door
    await prepared(deployment, time)
    start(commit(deployment, time, tmp_path / "one", E0))
    await until(door.reached.is_set)
    start(deployment.checkpoint_resume("c1", deadline_ts=0))
    await idle()
    deployment.before_record = lambda: None
    prepare = start(deployment.checkpoint_prepare("c2", deadline_ts=time.now_ts() + 5))
    await idle()
    deployment.bodies[E0].allow(1)
    await prepare
    summary = await commit(deployment, time, tmp_path / "two", checkpoint_id="c2")
    assert summary.exported_episodes == ()
    assert len(manifests(tmp_path / "two")) == 4
    door.open.set()


async def test_renewals_are_answered_while_a_write_hangs(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """L1: a hung filesystem stops neither the event loop nor the renewals."""
    door = Door()
    deployment.before_record = door
    await prepared(deployment, time)
    late = start(commit(deployment, time, tmp_path, E0, in_s=5_000))
    await until(door.reached.is_set)
    for _ in range(3):
        time.advance(500.0)
        await deployment.checkpoint_renew("c1", deadline_ts=time.now_ts() + 30)
    door.open.set()
    assert (await late).exported_episodes == (E0,)


async def test_a_commit_that_is_resumed_at_once_exports_nothing(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """A resume between a commit and its work finds no episode being read while it moves on."""
    await prepared(deployment, time)
    results = await asyncio.gather(
        commit(deployment, time, tmp_path, E0),
        deployment.checkpoint_resume("c1", deadline_ts=0),
        return_exceptions=True,
    )
    assert "stale_checkpoint" in str(results[0])
    assert deployment.exports == 0
    assert files_below(tmp_path) == []
