"""Real environments: whatever a checkpoint does in between, the trajectory is the same."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.participant.gymnasium import GymnasiumDeployment
from gymckpt.participant.policies import POLICIES
from tests.participant.rollouts import (
    E0,
    ENVIRONMENTS,
    FAR_TS,
    Rows,
    continued,
    run,
    same_rollout,
    saved_in_turn,
    uninterrupted,
)
from tests.participant.support import INSTANCE, idle, start, until

# --- the same trajectory --------------------------------------------------------------------------


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("env_id", sorted(ENVIRONMENTS))
async def test_a_continued_episode_is_the_uninterrupted_one(
    tmp_path: Path, env_id: str, policy: str
) -> None:
    """Step for step, saved in any turn, floats and all, for every kind of environment."""
    seed = 11 if env_id == "Blackjack-v1" else 7
    whole = await uninterrupted(env_id, policy=policy, seed=seed)
    last = len(whole.steps) - 1
    for turn in {0, last // 2, last - 1} - {-1, last}:
        rows = Rows()
        root = tmp_path / str(turn)
        summary = await saved_in_turn(root, rows, turn, env_id, policy=policy, seed=seed)
        reply = await continued(root, summary, rows)
        same_rollout(reply, whole)
        before = [f"r0/t{number:05d}" for number in range(turn + 1)]
        after = [f"r0-a1/t{number:05d}" for number in range(turn + 1, last + 1)]
        assert list(reply.row_keys) == before + after == list(rows.stored)
        assert summary.staging_keys_by_episode == {E0: tuple(before)}
        assert [rows.stored[key]["reward"] for key in reply.row_keys] == [
            step["reward"] for step in whole.steps
        ]


async def test_an_episode_that_has_not_begun_is_continued_from_its_start(tmp_path: Path) -> None:
    """A dispatch captured at the gate plays as attempt 1 what attempt 0 would have played."""
    async with GymnasiumDeployment(INSTANCE) as deployment:
        await deployment.checkpoint_prepare("c1", deadline_ts=FAR_TS)
        run(deployment, "CartPole-v1")
        await idle()
        summary = await deployment.checkpoint_commit("c1", str(tmp_path), [E0], deadline_ts=FAR_TS)
    assert summary.staging_keys == ()
    same_rollout(await continued(tmp_path, summary), await uninterrupted("CartPole-v1"))


@settings(max_examples=12)
@given(cuts=st.lists(st.integers(0, 3), min_size=1, max_size=4), seed=st.integers(0, 2**32))
def test_any_chain_of_checkpoints_is_the_uninterrupted_episode(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], seed: int
) -> None:
    """Saved and restored again and again, after any number of turns each, nothing changes."""

    async def chain() -> None:
        settings = {"seed": seed, "policy": "running-statistics", "max_turns": 20}
        whole = await uninterrupted("CartPole-v1", **settings)
        root, rows, turn = tmp_path_factory.mktemp("chain"), Rows(), -1
        for attempt, more in enumerate([*cuts, len(whole.steps)]):
            async with GymnasiumDeployment(INSTANCE, row_sink=rows) as deployment:
                if attempt:
                    await deployment.checkpoint_restore(
                        f"x{attempt}", str(root / str(attempt - 1)),
                        [EnvironmentEpisode("r0", attempt - 1)],
                        source_checkpoint_id=f"c{attempt - 1}",
                        participants=deployment._servers.names, deadline_ts=FAR_TS,
                    )  # fmt: skip
                episode = EnvironmentEpisode("r0", attempt)
                turn += more + 1
                held = turn < len(whole.steps) - 1
                rows.reached.clear()
                rows.go_on.clear()
                rows.hold_at = f"{episode.capture_key}/t{turn:05d}" if held else None
                if attempt:
                    reply = start(deployment.attach("r0", attempt))
                    await deployment.checkpoint_resume(f"x{attempt}", deadline_ts=FAR_TS)
                else:
                    reply = run(deployment, "CartPole-v1", **settings)
                if not held:
                    same_rollout(await reply, whole)
                    assert len(rows.stored) == len(whole.steps)
                    return
                await rows.reached.wait()
                prepare = start(deployment.checkpoint_prepare(f"c{attempt}", deadline_ts=FAR_TS))
                await idle()
                rows.go_on.set()
                assert (await prepare).prepared
                await deployment.checkpoint_commit(
                    f"c{attempt}", str(root / str(attempt)), [episode], deadline_ts=FAR_TS
                )

    asyncio.run(chain())


async def test_a_checkpoint_in_between_changes_nothing_where_it_was_taken(tmp_path: Path) -> None:
    """The original attempt goes on after resume as if nobody had asked."""
    rows = Rows()
    rows.hold_at = "r0/t00003"
    async with GymnasiumDeployment(INSTANCE, row_sink=rows) as deployment:
        task = run(deployment, "Taxi-v4")
        await rows.reached.wait()
        prepare = start(deployment.checkpoint_prepare("c1", deadline_ts=FAR_TS))
        await idle()
        rows.go_on.set()
        await prepare
        await deployment.checkpoint_commit("c1", str(tmp_path), [E0], deadline_ts=FAR_TS)
        await deployment.checkpoint_resume("c1", deadline_ts=FAR_TS)
        same_rollout(await task, await uninterrupted("Taxi-v4"))


async def test_steps_in_threads_are_the_same_steps(tmp_path: Path) -> None:
    """`blocking_steps` changes where an environment runs, not what it does."""
    async with GymnasiumDeployment(INSTANCE, blocking_steps=True) as deployment:
        same_rollout(await run(deployment, "CartPole-v1"), await uninterrupted("CartPole-v1"))


async def test_a_trajectory_is_plain_json() -> None:
    """Steps and observations of every environment survive JSON unchanged."""
    for env_id in ENVIRONMENTS:
        reply = await uninterrupted(env_id)
        for part in (reply.steps, reply.final_observation):
            assert json.loads(json.dumps(part, allow_nan=False)) == part
        assert reply.steps[0].keys() == {
            "turn", "observation", "action", "reward", "terminated", "truncated",
        }  # fmt: skip


async def test_an_episode_ends_for_one_of_three_reasons() -> None:
    """The environment's end, its time limit and our own bound are told apart."""
    assert (await uninterrupted("CartPole-v1", max_turns=3)).ended_by == "max_turns"
    assert (await uninterrupted("CartPole-v1", max_turns=500)).ended_by == "terminated"
    cliff = {"env_kwargs": {"max_episode_steps": 5}, "max_turns": 500}
    assert (await uninterrupted("Taxi-v4", **cliff)).ended_by == "truncated"


# --- rows -----------------------------------------------------------------------------------------


async def test_a_turn_counts_when_its_row_is_stored() -> None:
    """While the sink has not returned, the turn is not over and the episode not parked."""
    rows = Rows()
    rows.hold_at = "r0/t00000"
    async with GymnasiumDeployment(INSTANCE, row_sink=rows) as deployment:
        run(deployment, "CartPole-v1")
        await rows.reached.wait()
        summary = await deployment.checkpoint_prepare("c1", deadline_ts=0)
        assert summary.blockers == {"environment": ("r0",)}
        assert rows.stored == {}


async def test_a_sink_that_fails_fails_the_episode() -> None:
    """A row that could not be stored is an error of the run, never a turn without a row."""
    rows = Rows()
    rows.error = ConnectionError("the row store is away")
    async with GymnasiumDeployment(INSTANCE, row_sink=rows) as deployment:
        with pytest.raises(ConnectionError, match="row store is away"):
            await run(deployment, "CartPole-v1")


# --- restart-only ---------------------------------------------------------------------------------


async def test_restart_only_environments_start_over(tmp_path: Path) -> None:
    """Episodes of the chosen environments are restarts, refused in a commit; others are saved."""
    rows = Rows()
    rows.hold_at = "r0/t00001"
    async with GymnasiumDeployment(
        INSTANCE,
        row_sink=rows,
        resources_mode="restart-only",
        restart_only_env_ids=["Taxi-v4"],
        turn_pause_s=3_600,
    ) as deployment:
        assert await deployment.checkpoint_restart_only_servers() == ["resources"]
        run(deployment, "Taxi-v4", rollout_id="tool")
        run(deployment, "CartPole-v1")
        await until(lambda: len(rows.stored) == 2)
        summary = await deployment.checkpoint_prepare("c1", deadline_ts=FAR_TS)
        tool = EnvironmentEpisode("tool", 0)
        assert summary.restarts == (tool,)
        with pytest.raises(GymCheckpointUnavailable, match="restart_in_scope"):
            await deployment.checkpoint_commit("c1", str(tmp_path), [E0, tool], deadline_ts=FAR_TS)
        committed = await deployment.checkpoint_commit(
            "c1", str(tmp_path), [E0], deadline_ts=FAR_TS
        )
        assert committed.exported_episodes == (E0,)


async def test_stateless_resources_restart_nothing() -> None:
    """By default no server is restart-only."""
    async with GymnasiumDeployment(INSTANCE) as deployment:
        assert await deployment.checkpoint_restart_only_servers() == []


async def test_a_restored_episode_is_a_restart_once_it_has_begun(tmp_path: Path) -> None:
    """Captured at the gate and restored, it cannot be captured again after its first turn."""
    settings: dict[str, Any] = {"resources_mode": "restart-only", "turn_pause_s": 3_600}
    async with GymnasiumDeployment(INSTANCE, **settings) as deployment:
        await deployment.checkpoint_prepare("c1", deadline_ts=FAR_TS)
        run(deployment, "CartPole-v1")
        await idle()
        saved = await deployment.checkpoint_commit("c1", str(tmp_path), [E0], deadline_ts=FAR_TS)
    rows = Rows()
    async with GymnasiumDeployment(INSTANCE, row_sink=rows, **settings) as deployment:
        await deployment.checkpoint_restore(
            "x1", str(tmp_path), [E0], source_checkpoint_id="c1",
            participants=saved.participants, deadline_ts=FAR_TS,
        )  # fmt: skip
        await deployment.checkpoint_resume("x1", deadline_ts=FAR_TS)
        await until(lambda: len(rows.stored) == 1)
        summary = await deployment.checkpoint_prepare("c2", deadline_ts=FAR_TS)
        assert summary.restarts == (E0.next_attempt(),)
