"""Real environments, a row store, and episodes saved in any turn."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.participant.gymnasium import GymnasiumDeployment
from gymckpt.participant.rollouts import EpisodeReply
from tests.participant.support import INSTANCE, idle, start

FAR_TS = 4e12
"""A deadline that no clock of the tests reaches."""

ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "FrozenLake-v1": {"is_slippery": True},
    "Blackjack-v1": {"sab": True},
    "Taxi-v4": {},
    "CartPole-v1": {},
}
MAX_TURNS = 12
E0 = EnvironmentEpisode("r0", 0)


class Rows:
    """A row store that can hold an episode inside a turn."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, Any]] = {}
        self.hold_at: str | None = None
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, key: str, row: dict[str, Any]) -> None:
        if key == self.hold_at:
            self.reached.set()
            await self.go_on.wait()
        if self.error is not None:
            raise self.error
        assert key not in self.stored
        self.stored[key] = json.loads(json.dumps(row))


def run(deployment: GymnasiumDeployment, env_id: str, **changes: Any) -> asyncio.Task:
    arguments = {
        "env_id": env_id,
        "env_kwargs": ENVIRONMENTS.get(env_id, {}),
        "seed": 7,
        "policy": "random",
        "max_turns": MAX_TURNS,
        **changes,
    }
    rollout_id, attempt = arguments.pop("rollout_id", "r0"), arguments.pop("attempt", 0)
    return start(deployment.run(rollout_id, attempt, **arguments))


async def uninterrupted(env_id: str, **changes: Any) -> EpisodeReply:
    async with GymnasiumDeployment(INSTANCE) as deployment:
        return await run(deployment, env_id, **changes)


async def saved_in_turn(root: Path, rows: Rows, turn: int, env_id: str, **changes: Any) -> Any:
    """Save an episode that was inside `turn` when it was asked to park; return the summary."""
    async with GymnasiumDeployment(INSTANCE, row_sink=rows) as deployment:
        rows.hold_at = f"r0/t{turn:05d}"
        run(deployment, env_id, **changes)
        await rows.reached.wait()
        prepare = start(deployment.checkpoint_prepare("c1", deadline_ts=FAR_TS))
        await idle()
        assert not prepare.done()
        rows.go_on.set()
        await prepare
        return await deployment.checkpoint_commit("c1", str(root), [E0], deadline_ts=FAR_TS)


async def continued(
    root: Path, summary: Any, rows: Rows | None = None, **settings: Any
) -> EpisodeReply:
    """Restore everything of a summary elsewhere, and return the reply of r0."""
    async with GymnasiumDeployment(INSTANCE, row_sink=rows or Rows(), **settings) as deployment:
        await deployment.checkpoint_restore(
            "x1", str(root), summary.exported_episodes, source_checkpoint_id="c1",
            participants=summary.participants, deadline_ts=FAR_TS,
        )  # fmt: skip
        reply = start(deployment.attach("r0", 1))
        await idle()
        assert not reply.done()
        await deployment.checkpoint_resume("x1", deadline_ts=FAR_TS)
        return await reply


def same_rollout(one: EpisodeReply, other: EpisodeReply) -> None:
    assert one.steps == other.steps
    assert one.final_observation == other.final_observation
    assert (one.reward_sum, one.ended_by) == (other.reward_sum, other.ended_by)
