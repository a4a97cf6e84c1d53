"""The same deployment as a real Ray actor."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.participant.gymnasium import GymnasiumDeployment
from gymckpt.participant.rollouts import EpisodeReply
from gymckpt.transience import is_transient_failure

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

INSTANCE = "tools/replica-0"
E0 = EnvironmentEpisode("r0", 0)
ARGUMENTS: dict[str, Any] = {"env_id": "CartPole-v1", "seed": 7, "max_turns": 40}


def soon_ts() -> float:
    return time.time() + 30


async def test_an_episode_moves_from_one_actor_to_another(tmp_path: Path) -> None:
    """Saved in one actor, continued in a second one: the trajectory is the uninterrupted one."""
    async with GymnasiumDeployment(INSTANCE) as local:
        whole = await local.run("r0", policy="running-statistics", **ARGUMENTS)
    arguments = {"policy": "running-statistics", **ARGUMENTS}
    first = GymnasiumDeployment.as_actor(INSTANCE, turn_pause_s=0.05)
    run = first.run.remote("r0", **arguments)
    summary = await first.checkpoint_prepare.remote("c1", deadline_ts=soon_ts())
    assert summary.prepared
    committed = await first.checkpoint_commit.remote(
        "c1", str(tmp_path), [E0], deadline_ts=soon_ts()
    )
    assert committed.exported_episodes == (E0,)
    second = GymnasiumDeployment.as_actor(INSTANCE)
    await second.checkpoint_restore.remote(
        "x1", str(tmp_path), [E0], source_checkpoint_id="c1",
        participants=committed.participants, deadline_ts=soon_ts(),
    )  # fmt: skip
    reply = second.attach.remote("r0", 1)
    await second.checkpoint_resume.remote("x1", deadline_ts=soon_ts())
    continued: EpisodeReply = await reply
    assert continued.steps == whole.steps
    await first.close.remote()
    with pytest.raises(GymCheckpointUnavailable, match="was closed"):
        await run


async def test_refusals_arrive_as_what_they_are(tmp_path: Path) -> None:
    """Codes in the text, transient where RL may try again, plain errors where it may not."""
    actor = GymnasiumDeployment.as_actor(INSTANCE)
    await actor.checkpoint_resume.remote("c1", deadline_ts=0)
    with pytest.raises(GymCheckpointUnavailable, match="stale_checkpoint") as caught:
        await actor.checkpoint_prepare.remote("c1", deadline_ts=soon_ts())
    assert is_transient_failure(caught.value)
    with pytest.raises(ValueError, match="is missing") as damaged:
        await actor.checkpoint_restore.remote(
            "x1", str(tmp_path), [E0], source_checkpoint_id="c1",
            participants=["agent", "environment", "policy_model", "resources"],
            deadline_ts=soon_ts(),
        )  # fmt: skip
    assert not is_transient_failure(damaged.value)
    assert await actor.checkpoint_restart_only_servers.remote() == []


async def test_control_calls_are_answered_while_many_episodes_run() -> None:
    """Runs wait as coroutines: a hundred of them do not keep a prepare or renewal waiting."""
    actor = GymnasiumDeployment.as_actor(INSTANCE, turn_pause_s=0.5)
    runs = [actor.run.remote(f"k{number}", **ARGUMENTS) for number in range(100)]
    summary = await asyncio.wait_for(
        actor.checkpoint_prepare.remote("c1", deadline_ts=soon_ts()), timeout=20
    )
    assert summary.prepared
    await asyncio.wait_for(actor.checkpoint_renew.remote("c1", deadline_ts=soon_ts()), timeout=20)
    await actor.close.remote()
    results = await asyncio.gather(*runs, return_exceptions=True)
    assert all(isinstance(result, GymCheckpointUnavailable) for result in results)
