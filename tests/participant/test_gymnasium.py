"""Real environments: whatever a checkpoint does in between, the trajectory is the same."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymckpt.episodes import EnvironmentEpisode, instance_directory
from gymckpt.errors import GymCheckpointUnavailable, RemoteFailure
from gymckpt.participant.gymnasium import GymnasiumDeployment
from gymckpt.participant.policies import POLICIES
from gymckpt.participant.rollouts import EpisodeReply, GymnasiumEpisode, Plan
from gymckpt.participant.store import RecordsStore
from tests.participant.support import INSTANCE, idle, start, until

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


# --- the same trajectory ------------------------------------------------------------------------


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


# --- rows ---------------------------------------------------------------------------------------


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


# --- restart-only -------------------------------------------------------------------------------


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


# --- what cannot be continued -------------------------------------------------------------------


class Drifting(gymnasium.Wrapper):
    """An environment whose rewards depend on how many were made in this process."""

    made = 0

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        Drifting.made += 1
        self._number = Drifting.made

    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        return observation, reward + self._number, *rest


async def test_an_environment_that_does_not_play_back_is_refused(tmp_path: Path) -> None:
    """Other rewards for the same actions are an error that says so, and nothing is installed."""
    name = "gymckpt-drifting-v0"
    if name not in gymnasium.registry:
        gymnasium.register(name, lambda **_: Drifting(gymnasium.make("CartPole-v1")))
    summary = await saved_in_turn(tmp_path, Rows(), 2, name)
    async with GymnasiumDeployment(INSTANCE) as deployment:
        with pytest.raises(ValueError, match="did not play back its 3 saved action") as caught:
            await deployment.checkpoint_restore(
                "x1", str(tmp_path), [E0], source_checkpoint_id="c1",
                participants=summary.participants, deadline_ts=FAR_TS,
            )  # fmt: skip
        assert type(caught.value) is ValueError
        assert not list(deployment._table)


def rewrite(
    root: Path, kind: str, change: Callable[[dict[str, Any]], None], copies: int = 1
) -> None:
    """Change the one record of a server, with a digest and manifest to match."""
    [path] = instance_directory(root, INSTANCE).glob(f"gym/{kind}/*/records-*.jsonl")
    record = json.loads(path.read_text())
    change(record)
    server = path.parent.name
    for file in path.parent.iterdir():
        file.unlink()
    store = RecordsStore(root, INSTANCE, kind, server)
    store.write("c1", [record] * copies, stop=lambda: False)


@pytest.mark.parametrize(
    ("kind", "changes", "rule"),
    [
        ("environment", {"actions": [1, 1, 1]}, "did not play back"),
        ("environment", {"actions": [0, 0, 5]}, "could not play back saved action 5 of turn 2"),
        ("environment", {"actions": [None]}, "could not play back saved action None of turn 0"),
        ("environment", {"actions": [1]}, "did not play back"),
        ("environment", {"seed": 8}, "did not play back"),
        ("environment", {"seed": "7"}, "seed must be of type int"),
        ("environment", {"extra": 1}, "unknown: extra"),
        ("environment", {"env_kwargs": None}, "env_kwargs must be of type dict"),
        ("environment", {"rollout_id": "other"}, "holds no environment record of r0"),
        ("environment", {"outcome_sha256": ""}, "did not play back"),
        ("agent", {"turn": 4}, "the agent saved 4 turn"),
        ("agent", {"row_keys": ["r0/t00000"]}, "1 row"),
        ("agent", {"reward_sum": 2.5}, "rewards of 2.5"),
        ("agent", {"reward_sum": 3}, "reward_sum must be of type float"),
        ("agent", {"max_turns": 0}, "max_turns is 0"),
        ("agent", {"attempt": 1}, "holds no agent record of r0"),
        ("model", {"policy": "unheard-of"}, "policy 'unheard-of' is not one of"),
        ("model", {"state": {"generator": 5}}, "no saved state of a random generator"),
        ("model", {"state": {}}, "no saved state of a random generator"),
        ("model", {"state": None}, "state must be of type dict"),
    ],
)
async def test_records_that_contradict_each_other_are_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any], rule: str
) -> None:
    """Whatever a record says wrongly is a ValueError that names it, and reopens the deployment."""
    summary = await saved_in_turn(tmp_path, Rows(), 2, "CartPole-v1")
    rewrite(tmp_path, kind, lambda record: record.update(changes))
    async with GymnasiumDeployment(INSTANCE) as deployment:
        with pytest.raises(ValueError, match=rule):
            await deployment.checkpoint_restore(
                "x1", str(tmp_path), [E0], source_checkpoint_id="c1",
                participants=summary.participants, deadline_ts=FAR_TS,
            )  # fmt: skip
        assert deployment._servers.is_open


async def test_two_records_of_one_episode_are_refused(tmp_path: Path) -> None:
    """A server that saved an episode twice saved nothing that can be trusted."""
    summary = await saved_in_turn(tmp_path, Rows(), 2, "CartPole-v1")
    rewrite(tmp_path, "agent", lambda _record: None, copies=2)
    with pytest.raises(ValueError, match="agent saved two records of r0"):
        await continued(tmp_path, summary)


async def test_a_restore_needs_the_policy_that_played(tmp_path: Path) -> None:
    """A deployment with a policy of its own saves it by name; another one cannot continue it."""

    class Always:
        def __init__(self, *, action_space: Any, seed: int, state: Any) -> None:
            self.seen = 0 if state is None else state["seen"]

        def act(self, observation: Any) -> Any:
            self.seen += 1
            return self.seen % 2

        def to_state(self) -> dict[str, Any]:
            return {"seen": self.seen}

    policies = {**POLICIES, "always": Always}
    rows = Rows()
    rows.hold_at = "r0/t00002"
    async with GymnasiumDeployment(INSTANCE, row_sink=rows, policies=policies) as deployment:
        task = run(deployment, "CartPole-v1", policy="always")
        await rows.reached.wait()
        prepare = start(deployment.checkpoint_prepare("c1", deadline_ts=FAR_TS))
        await idle()
        rows.go_on.set()
        await prepare
        summary = await deployment.checkpoint_commit("c1", str(tmp_path), [E0], deadline_ts=FAR_TS)
        await deployment.checkpoint_resume("c1", deadline_ts=FAR_TS)
        whole = await task
    same_rollout(await continued(tmp_path, summary, policies=policies), whole)
    with pytest.raises(ValueError, match="policy 'always' is not one of"):
        await continued(tmp_path, summary)


# --- arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"rollout_id": "r0-a1"}, ValueError),
        ({"rollout_id": ""}, ValueError),
        ({"attempt": -1}, ValueError),
        ({"attempt": True}, TypeError),
        ({"seed": -1}, ValueError),
        ({"seed": 1.0}, TypeError),
        ({"seed": None}, TypeError),
        ({"policy": "unheard-of"}, ValueError),
        ({"max_turns": 0}, ValueError),
        ({"env_id": 5}, TypeError),
        ({"env_kwargs": {"render_mode": object()}}, ValueError),
        ({"env_kwargs": {"x": float("nan")}}, ValueError),
        ({"env_kwargs": {"x": (1, 2)}}, ValueError),
    ],
)
async def test_bad_arguments_start_nothing(changes: dict[str, Any], error: type) -> None:
    """A dispatch that could not be saved or named is refused, and leaves no episode."""
    async with GymnasiumDeployment(INSTANCE) as deployment:
        with pytest.raises(error):
            await run(deployment, **{"env_id": "CartPole-v1", **changes})
        assert not list(deployment._table)


async def test_errors_of_environments_leave_as_text() -> None:
    """Gymnasium's own exceptions do not travel; their name and words do."""
    async with GymnasiumDeployment(INSTANCE) as deployment:
        with pytest.raises(RemoteFailure, match="NameNotFound") as caught:
            await run(deployment, "NoSuchEnvironment-v0")
        assert caught.value.type_name == "NameNotFound"


@pytest.mark.parametrize(
    "settings",
    [
        {"resources_mode": "exported"},
        {"turn_pause_s": -1},
        {"turn_pause_s": float("nan")},
        {"admission_timeout_s": -1},
        {"grace_s": 0},
        {"server_names": {"environment": "env"}},
        {"server_names": dict.fromkeys(("environment", "model", "agent", "resources"), "same")},
        {"server_names": {"environment": "../e", "model": "m", "agent": "a", "resources": "r"}},
        {"instance_id": "../replica-0"},
        {"instance_id": "tools"},
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    """A deployment that could not be run or named is not made."""
    with pytest.raises(ValueError, match=r"."):
        GymnasiumDeployment(settings.pop("instance_id", INSTANCE), **settings)


async def test_a_body_that_is_stopped_in_a_thread_closes_its_environment_afterwards() -> None:
    """An environment is closed once, and never while a thread still steps it."""
    door, events = threading.Event(), []

    class Slow(gymnasium.Wrapper):
        def step(self, action: Any) -> Any:
            events.append("step")
            door.wait(10)
            events.append("stepped")
            return self.env.step(action)

        def close(self) -> None:
            events.append("close")
            self.env.close()

    name = "gymckpt-slow-v0"
    gymnasium.registry.pop(name, None)
    gymnasium.register(name, lambda **_: Slow(gymnasium.make("CartPole-v1")))
    async with GymnasiumDeployment(INSTANCE, blocking_steps=True) as deployment:
        task = run(deployment, name)
        await until(lambda: "step" in events)
        await deployment.checkpoint_retire("s1", [E0], deadline_ts=FAR_TS)
        with pytest.raises(GymCheckpointUnavailable, match="stale_attempt"):
            await task
        assert events == ["step"]
        door.set()
        await until(lambda: "close" in events)
    assert events == ["step", "stepped", "close"]


def test_a_plan_is_the_same_for_all_attempts() -> None:
    """Plans compare by value, and a body of an unknown policy is never made."""
    plan = Plan(env_id="Taxi-v4", env_kwargs={}, seed=1, policy="nobody", max_turns=5)
    with pytest.raises(ValueError, match="policy 'nobody' is not one of"):
        GymnasiumEpisode(E0, plan, policies=POLICIES, row_sink=Rows())
