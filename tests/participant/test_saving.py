"""How a deployment writes its episodes, and what may interrupt it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.participant.parking import STOPPED_WRITE_S
from gymckpt.replies import GymCheckpointCommitSummary
from tests.participant.conftest import Make
from tests.participant.support import (
    E0,
    E1,
    CountingDeployment,
    ManualTime,
    idle,
    manifests,
    start,
    until,
)


def files_below(root: Path) -> list[str]:
    return [path.name for path in root.rglob("*") if not path.is_dir()]


class Door:
    """Holds a thread until a test opens it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.open.wait(10), "the test never opened the door"


async def prepared(deployment: CountingDeployment, time: ManualTime, *rollouts: str) -> None:
    """Let some rollouts play two turns each, and park at the end of the second."""
    for rollout_id in rollouts or ("r0",):
        start(deployment.run(rollout_id, turns_max=5))
        await idle()
        deployment.bodies[EnvironmentEpisode(rollout_id, 0)].allow(1)
    await idle()
    prepare = start(deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5))
    await idle()
    for body in deployment.bodies.values():
        body.allow(1)
    assert (await prepare).prepared


def commit(
    deployment: CountingDeployment, time: ManualTime, root: Path, *episodes: EnvironmentEpisode,
    checkpoint_id: str = "c1", in_s: float = 5.0,
) -> Any:  # fmt: skip
    return deployment.checkpoint_commit(
        checkpoint_id, str(root), episodes, deadline_ts=time.now_ts() + in_s
    )


async def test_a_commit_answers_when_everything_is_on_the_disk(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """The summary names episodes, rows by episode and servers; every server has a manifest."""
    await prepared(deployment, time, "r0", "r1")
    summary = await commit(deployment, time, tmp_path, E0, E1)
    rows = {E0: ("r0/t00000", "r0/t00001"), E1: ("r1/t00000", "r1/t00001")}
    assert summary == GymCheckpointCommitSummary(
        exported_episodes=(E0, E1),
        staging_keys=tuple(sorted(rows[E0] + rows[E1])),
        participants=("agent", "environment", "model", "resources"),
        staging_keys_by_episode=rows,
        unowned_live_episodes=(),
    )
    assert len(manifests(tmp_path)) == 4
    assert deployment.phases == ["committed"] * 4


async def test_only_the_scope_is_exported(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """A parked episode that the controller does not name is neither exported nor an error."""
    await prepared(deployment, time, "r0", "r1")
    summary = await commit(deployment, time, tmp_path, E1)
    assert summary.exported_episodes == (E1,)
    assert set(summary.staging_keys_by_episode) == {E1}


async def test_nothing_to_save_is_saved(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """An empty scope makes an empty checkpoint with all its participants."""
    await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts())
    summary = await commit(deployment, time, tmp_path)
    assert summary.exported_episodes == summary.staging_keys == ()
    assert len(manifests(tmp_path)) == 4


async def test_a_reply_on_the_wire_is_not_exported(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """An episode whose run ended before it was parked is left out without an error."""
    run = start(deployment.run("r0", turns_max=1))
    await idle()
    deployment.bodies[E0].allow()
    await run
    await prepared(deployment, time, "r1")
    summary = await commit(deployment, time, tmp_path, E0, E1)
    assert summary.exported_episodes == (E1,)


async def test_a_dispatch_that_waits_at_the_gate_can_be_saved(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """A run that came while parked is captured before its first turn, and goes on at resume."""
    await prepared(deployment, time, "r0")
    start(deployment.run("r1"))
    await idle()
    summary = await commit(deployment, time, tmp_path, E0, E1)
    assert summary.exported_episodes == (E0, E1)
    assert summary.staging_keys_by_episode[E1] == ()
    await deployment.checkpoint_resume("c1", deadline_ts=0)
    await until(lambda: deployment.entered(E1) == 1)


# --- refusals -----------------------------------------------------------------------------------


async def test_a_scope_must_exist(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """An episode that was never here refuses the commit, writes nothing, and it may be retried."""
    await prepared(deployment, time)
    stranger = EnvironmentEpisode("r9", 0)
    with pytest.raises(GymCheckpointUnavailable, match="checkpoint_error no such episode here: r9"):
        await commit(deployment, time, tmp_path, E0, stranger)
    assert deployment.phases == ["prepared"] * 4
    assert files_below(tmp_path) == []
    assert (await commit(deployment, time, tmp_path, E0)).exported_episodes == (E0,)


async def test_a_restart_in_the_scope_is_refused(
    make: Make, time: ManualTime, tmp_path: Path
) -> None:
    """B15: an episode that prepare reported as a restart cannot be in the commit."""
    deployment = make(restart_only=True)
    start(deployment.run("r1", restart_only=True))
    await until(lambda: deployment.entered(E1) == 1)
    summary = await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5)
    assert summary.restarts == (E1,)
    with pytest.raises(GymCheckpointUnavailable, match=r"restart_in_scope .* r1; leave it out"):
        await commit(deployment, time, tmp_path, E1)
    assert deployment.phases == ["prepared"] * 4
    assert (await commit(deployment, time, tmp_path)).exported_episodes == ()


async def test_a_retired_attempt_in_the_scope_is_refused(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """What was retired may not come back through a checkpoint."""
    await deployment.checkpoint_retire("s1", [E0], deadline_ts=time.now_ts() + 5)
    await deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts())
    with pytest.raises(GymCheckpointUnavailable, match="stale_attempt"):
        await commit(deployment, time, tmp_path, E0)


@pytest.mark.parametrize(
    ("episodes", "error"),
    [
        ([E0, E0], ValueError),
        ([E0, EnvironmentEpisode("r0", 1)], ValueError),
        (["r0"], TypeError),
        ([{"rollout_id": "r0", "attempt": 0}], TypeError),
        (None, TypeError),
    ],
)
async def test_a_scope_is_episodes_with_each_rollout_once(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path, episodes: Any, error: type
) -> None:
    """Anything else is a mistake of the caller, refused before the phase moves."""
    await prepared(deployment, time)
    with pytest.raises(error):
        await deployment.checkpoint_commit(
            "c1", str(tmp_path), episodes, deadline_ts=time.now_ts() + 5
        )
    assert deployment.phases == ["prepared"] * 4


async def test_a_directory_that_holds_another_checkpoint_is_refused(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """A second checkpoint into the same root is a conflict, and the first one stays readable."""
    await prepared(deployment, time)
    await commit(deployment, time, tmp_path, E0)
    before = [path.read_bytes() for path in manifests(tmp_path)]
    await deployment.checkpoint_resume("c1", deadline_ts=0)
    await deployment.checkpoint_prepare("c2", deadline_ts=time.now_ts())
    with pytest.raises(GymCheckpointUnavailable, match="checkpoint_conflict"):
        await commit(deployment, time, tmp_path, checkpoint_id="c2")
    assert [path.read_bytes() for path in manifests(tmp_path)] == before


async def test_a_state_that_is_not_json_fails_the_commit(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """What cannot be written as data is an error that no retry mends, not a pickle."""
    await prepared(deployment, time)
    deployment.bodies[E0].row_keys.append(float("nan"))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await commit(deployment, time, tmp_path, E0)
    deployment.bodies[E0].row_keys.pop()
    deployment.bodies[E0].turns = float("nan")  # type: ignore[assignment]
    with pytest.raises(ValueError, match="a record is not JSON data"):
        await commit(deployment, time, tmp_path, E0)


# --- the same commit again ----------------------------------------------------------------------


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


# --- what stops a write -------------------------------------------------------------------------


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
    """B13: after a resume or a lost lease no manifest of the slow server appears, however late."""
    door = Door()
    deployment.before_record = door
    await prepared(deployment, time)
    late = start(commit(deployment, time, tmp_path, E0, in_s=5_000))
    await until(door.reached.is_set)
    await until(lambda: len(manifests(tmp_path)) == 3)
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
    servers = [path.parent.name for path in manifests(tmp_path)]
    assert servers == ["agent", "model", "resources"]
    assert [name for name in files_below(tmp_path) if name.startswith(".")] == []


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
