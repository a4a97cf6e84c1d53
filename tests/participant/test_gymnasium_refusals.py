"""What a deployment of real environments refuses to continue or to start."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from gymckpt.episodes import instance_directory
from gymckpt.errors import GymCheckpointUnavailable, RemoteFailure
from gymckpt.participant.gymnasium import GymnasiumDeployment
from gymckpt.participant.policies import POLICIES
from gymckpt.participant.rollouts import GymnasiumEpisode, Plan
from gymckpt.participant.store import RecordsStore
from tests.participant.rollouts import (
    E0,
    FAR_TS,
    Rows,
    continued,
    run,
    same_rollout,
    saved_in_turn,
    uninterrupted,
)
from tests.participant.support import INSTANCE, idle, start, until

# --- what cannot be continued ---------------------------------------------------------------------


class Drifting(gymnasium.Wrapper):
    """An environment whose rewards depend on how many were made in this process."""

    made = 0
    rewards: tuple[int, ...] = ()
    """By how many times its number the reward of a turn is higher; of later turns by none."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        Drifting.made += 1
        self._number = Drifting.made
        self._turns = 0

    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        more = self.rewards[self._turns] if self._turns < len(self.rewards) else 0
        self._turns += 1
        return observation, reward + more * self._number, *rest


@pytest.mark.parametrize("rewards", [(0, 0, 1), (1, -1, 0)])
async def test_an_environment_that_does_not_play_back_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewards: tuple[int, ...]
) -> None:
    """Other rewards for the same actions are an error that says so, and nothing is installed."""
    monkeypatch.setattr(Drifting, "rewards", rewards)
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


class Strange(gymnasium.Env[dict[str, Any], int]):
    """An environment whose observations and rewards are no numbers, in an order of its own."""

    turned_since = 10_000
    """From which environment on the same fields are observed in another order."""
    made = 0

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.action_space = gymnasium.spaces.Discrete(3)
        self.observation_space = gymnasium.spaces.Dict()
        Strange.made += 1
        self._turned = Strange.made >= self.turned_since

    def _observed(self) -> dict[str, Any]:
        fields = {"z": math.nan, "a": {"y": [-0.0, self.limit], "b": -math.inf}}
        return dict(reversed(fields.items())) if self._turned else fields

    def reset(self, **_settings: Any) -> Any:
        return self._observed(), {}

    def step(self, action: int) -> Any:
        return self._observed(), math.nan, False, False, {}


STRANGE = "gymckpt-strange-v0"
if STRANGE not in gymnasium.registry:
    gymnasium.register(STRANGE, Strange, disable_env_checker=True)
LIMIT: dict[str, Any] = {"env_kwargs": {"limit": math.inf}}


async def test_what_is_no_number_is_continued_exactly(tmp_path: Path) -> None:
    """NaN and infinities in arguments, observations and rewards play back as they were."""
    whole = await uninterrupted(STRANGE, **LIMIT)
    reply = await continued(tmp_path, await saved_in_turn(tmp_path, Rows(), 2, STRANGE, **LIMIT))
    assert repr(reply.steps) == repr(whole.steps)
    assert repr(reply.final_observation) == repr(whole.final_observation)
    assert "'z': nan, 'a': {'y': [-0.0, inf], 'b': -inf}" in repr(reply.steps[-1])


async def test_another_order_of_an_observation_is_another_observation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment that plays back the same fields in another order is refused."""
    summary = await saved_in_turn(tmp_path, Rows(), 2, STRANGE, **LIMIT)
    monkeypatch.setattr(Strange, "turned_since", Strange.made + 1)
    with pytest.raises(ValueError, match="did not play back its 3 saved action"):
        await continued(tmp_path, summary)


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
        ("environment", {"extra": 1}, "has no field .extra."),
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


# --- arguments ------------------------------------------------------------------------------------


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
        ({"env_kwargs": {"x": (float("nan"),)}}, ValueError),
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
