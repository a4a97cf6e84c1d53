"""How a deployment writes its episodes, and which it refuses to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.replies import GymCheckpointCommitSummary
from tests.participant.support import (
    E0,
    E1,
    CountingDeployment,
    Make,
    ManualTime,
    commit,
    files_below,
    idle,
    manifests,
    prepared,
    start,
    until,
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
        written_below_root=True,
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


# --- refusals -------------------------------------------------------------------------------------


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
    """A second checkpoint into the same root is refused, and the first one stays readable."""
    await prepared(deployment, time)
    await commit(deployment, time, tmp_path, E0)
    before = [path.read_bytes() for path in manifests(tmp_path)]
    await deployment.checkpoint_resume("c1", deadline_ts=0)
    await deployment.checkpoint_prepare("c2", deadline_ts=time.now_ts())
    with pytest.raises(GymCheckpointUnavailable, match="checkpoint_exists"):
        await commit(deployment, time, tmp_path, checkpoint_id="c2")
    assert [path.read_bytes() for path in manifests(tmp_path)] == before
