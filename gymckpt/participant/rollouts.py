"""
One episode of one Gymnasium environment, as something that can be saved as data.

What is saved is how to play it again: the environment's name and arguments, the seed of its reset,
every action so far, and the policy's own state. An environment is never pickled. Playing the
actions again must give the very same observations and rewards; a running digest of them is saved
beside the actions, and an environment that plays back differently is refused, since continuing it
would splice two different rollouts together.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import attrs
import gymnasium

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import show, text_of
from gymckpt.participant.exact_json import Record, encode, encode_loosely
from gymckpt.participant.policies import Policy, PolicyFactory, json_of, native_action
from gymckpt.participant.servers import Kind
from gymckpt.strict_json import require_object, require_types

__all__ = ["EpisodeReply", "GymnasiumEpisode", "Plan", "RowSink", "plan_of", "row_key"]

RowSink = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Store one row under its key; the turn counts when it returns. It may be given a row twice."""


def row_key(episode: EnvironmentEpisode, turn: int) -> str:
    """Return the staging key of the row of one turn, counted from 0 over all attempts."""
    return f"{episode.capture_key}/t{turn:05d}"


def _check_env_kwargs(_plan: object, _attribute: object, value: Any) -> None:
    encode(require_object(value, "env_kwargs"), "env_kwargs")


def _check_count(_plan: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    least = 1 if attribute.name == "max_turns" else 0
    if type(value) is not int:
        raise TypeError(f"{attribute.name} is an int, not {show(value)}")
    if value < least:
        raise ValueError(f"{attribute.name} is {value}, the least is {least}")


@attrs.frozen(kw_only=True)
class Plan:
    """
    What an episode is to do: the same for all attempts of a rollout.

    Raises:
        TypeError: A field has the wrong type.
        ValueError: `max_turns` is not positive, or `env_kwargs` is not JSON data.
    """

    env_id: str = attrs.field(validator=attrs.validators.instance_of(str))
    env_kwargs: Mapping[str, Any] = attrs.field(validator=_check_env_kwargs)
    """Arguments for the environment."""
    seed: int = attrs.field(validator=_check_count)
    """For the environment's one reset, and for the policy."""
    policy: str = attrs.field(validator=attrs.validators.instance_of(str))
    """A name among the deployment's policies."""
    max_turns: int = attrs.field(validator=_check_count)
    restart_only: bool = False
    """Whether a server of the deployment keeps a part of it that nobody can capture."""


@attrs.frozen(kw_only=True)
class EpisodeReply:
    """What a finished episode came to; all plain JSON but the outer object."""

    rollout_id: str
    attempt: int
    """The attempt that finished it; earlier ones may have played a part of the steps."""
    env_id: str
    seed: int
    steps: list[dict[str, Any]]
    """Turn, observation that was acted on, action, reward, terminated and truncated, from the
    first turn on."""
    final_observation: Any
    reward_sum: float
    ended_by: str
    """`terminated`, `truncated` or `max_turns`."""
    row_keys: tuple[str, ...]
    """The rows of all turns, under the keys of the attempts that stored them."""


class GymnasiumEpisode:
    """
    A body for the episode table that plays one environment with one policy.

    Attributes:
        episode: Its name.
        plan: What it is to do.
    """

    def __init__(
        self,
        episode: EnvironmentEpisode,
        plan: Plan,
        *,
        policies: Mapping[str, PolicyFactory],
        row_sink: RowSink,
        blocking_steps: bool = False,
    ) -> None:
        if plan.policy not in policies:
            raise ValueError(
                f"policy {show(plan.policy)} is not one of {', '.join(sorted(policies))}"
            )
        self.episode = episode
        self.plan = plan
        self._make_policy = policies[plan.policy]
        self._row_sink = row_sink
        self._blocking_steps = blocking_steps
        self._env: gymnasium.Env[Any, Any] | None = None
        self._policy: Policy | None = None
        self._observation: Any = None
        self._outcome_sha256 = ""
        self._steps: list[dict[str, Any]] = []
        self._row_keys: list[str] = []
        self._reward_sum = 0.0
        self._ended_by = ""
        self._in_thread: asyncio.Future[Any] | None = None

    # --- what the table asks ----------------------------------------------------------------

    @property
    def restart_only(self) -> bool:
        """Whether nobody could capture it once it has begun."""
        return self.plan.restart_only

    @property
    def row_keys(self) -> Sequence[str]:
        """The rows that it still needs."""
        return self._row_keys

    async def turn(self) -> bool:
        """Act, step, store the row; return whether the episode has ended."""
        if self._policy is None:
            await self._call(lambda: self._begin(None))
        policy = cast("Policy", self._policy)
        action = policy.act(self._observation)
        acted_on = self._observation
        step = await self._call(lambda: self._step(acted_on, action))
        key = row_key(self.episode, step["turn"])
        row = {**self.episode.to_dict(), "capture_key": self.episode.capture_key, **step}
        await self._row_sink(key, row)
        self._row_keys.append(key)
        if step["terminated"] or step["truncated"]:
            self._ended_by = "terminated" if step["terminated"] else "truncated"
        elif len(self._steps) >= self.plan.max_turns:
            self._ended_by = "max_turns"
        return bool(self._ended_by)

    def reply(self) -> EpisodeReply:
        """Return what the episode came to."""
        return EpisodeReply(
            rollout_id=self.episode.rollout_id,
            attempt=self.episode.attempt,
            env_id=self.plan.env_id,
            seed=self.plan.seed,
            steps=self._steps,
            final_observation=self._observation,
            reward_sum=self._reward_sum,
            ended_by=self._ended_by,
            row_keys=tuple(self._row_keys),
        )

    def close(self) -> None:
        """Close the environment, after a step that still runs in a thread."""
        env, self._env = self._env, None
        if env is None:
            return
        if self._in_thread is not None and not self._in_thread.done():
            self._in_thread.add_done_callback(lambda _: env.close())
        else:
            env.close()

    # --- the environment --------------------------------------------------------------------

    async def _call(self, function: Callable[[], Any]) -> Any:
        if not self._blocking_steps:
            return function()
        loop = asyncio.get_running_loop()
        self._in_thread = loop.run_in_executor(None, function)
        return await asyncio.shield(self._in_thread)

    def _begin(self, policy_state: Mapping[str, Any] | None) -> None:
        env: gymnasium.Env[Any, Any] = gymnasium.make(
            self.plan.env_id, disable_env_checker=True, **self.plan.env_kwargs
        )
        self._env = env
        observation, _info = env.reset(seed=self.plan.seed)
        self._policy = self._make_policy(
            action_space=env.action_space, seed=self.plan.seed, state=policy_state
        )
        self._observation = json_of(observation)
        self._outcome_sha256 = _chained("", self._observation)

    def _step(self, acted_on: Any, action: Any) -> dict[str, Any]:
        env = cast("gymnasium.Env[Any, Any]", self._env)
        observation, reward, terminated, truncated, _info = env.step(
            native_action(env.action_space, action)
        )
        self._observation = json_of(observation)
        step = {
            "turn": len(self._steps),
            "observation": acted_on,
            "action": action,
            "reward": float(reward),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
        }
        self._steps.append(step)
        self._reward_sum += step["reward"]
        self._outcome_sha256 = _chained(self._outcome_sha256, [step, self._observation])
        return step

    # --- as data ----------------------------------------------------------------------------

    def to_record(self, kind: Kind) -> Record:
        """Return what a server of one kind keeps of the episode, to be called between turns."""
        name = self.episode.to_dict()
        if kind == "environment":
            return {
                **name,
                "env_id": self.plan.env_id,
                "env_kwargs": dict(self.plan.env_kwargs),
                "seed": self.plan.seed,
                "actions": [step["action"] for step in self._steps],
                "outcome_sha256": self._outcome_sha256,
            }
        if kind == "model":
            state = {} if self._policy is None else self._policy.to_state()
            return {**name, "policy": self.plan.policy, "state": state}
        return {
            **name,
            "turn": len(self._steps),
            "max_turns": self.plan.max_turns,
            "reward_sum": self._reward_sum,
            "row_keys": list(self._row_keys),
        }

    def play_back(self, records: Mapping[Kind, Record], require_wanted: Callable[[], None]) -> None:
        """
        Bring a new body to where a saved episode stood.

        Args:
            records: What `to_record` returned for each kind, checked by `plan_of`.
            require_wanted: Called before each step; raises when nobody wants the result.

        Raises:
            ValueError: The environment does not play back as it was, or the records contradict
                each other.
        """
        environment, agent = records["environment"], records["agent"]
        actions, row_keys = environment["actions"], agent["row_keys"]
        if environment["outcome_sha256"] or actions:
            self._begin(records["model"]["state"])
        for action in actions:
            require_wanted()
            self._step_again(action)
        if self._outcome_sha256 != environment["outcome_sha256"]:
            raise ValueError(
                f"{self.episode.capture_key}: {self.plan.env_id} with seed {self.plan.seed} did "
                f"not play back its {len(actions)} saved action(s) with the same observations "
                "and rewards; it is not deterministic, or is another version than it was"
            )
        counted = (len(actions), len(actions), self._reward_sum)
        saved = (agent["turn"], len(row_keys), agent["reward_sum"])
        if encode_loosely(saved) != encode_loosely(counted):  # NaN is equal to no NaN
            raise ValueError(
                f"{self.episode.capture_key}: the agent saved {agent['turn']} turn(s), "
                f"{len(row_keys)} row(s) and rewards of {agent['reward_sum']}, the environment "
                f"{len(actions)} action(s) and rewards of {self._reward_sum}"
            )
        self._row_keys = list(row_keys)

    def _step_again(self, action: Any) -> None:
        try:
            self._step(self._observation, action)
        except Exception as error:  # what an environment raises at a wrong action is up to it
            raise ValueError(
                f"{self.episode.capture_key}: {self.plan.env_id} could not play back saved action "
                f"{show(action)} of turn {len(self._steps)}: {text_of(error)}"
            ) from error


_FIELDS: Mapping[Kind, dict[str, type]] = {
    "environment": {
        "env_id": str,
        "env_kwargs": dict,
        "seed": int,
        "actions": list,
        "outcome_sha256": str,
    },
    "model": {"policy": str, "state": dict},
    "agent": {"turn": int, "max_turns": int, "reward_sum": float, "row_keys": list},
}


def plan_of(records: Mapping[Kind, Record], *, restart_only: Callable[[str], bool]) -> Plan:
    """
    Return the plan that saved records carry, after checking what they are made of.

    Args:
        records: What `GymnasiumEpisode.to_record` returned for each kind.
        restart_only: Whether episodes of an environment cannot be captured on this deployment.

    Raises:
        ValueError: A record lacks a field, has an unknown one, or one of another type.
    """
    for kind, types in _FIELDS.items():
        where = f"the {kind} record of {show(records[kind].get('rollout_id'))}"
        require_types(records[kind], where, {"rollout_id": str, "attempt": int, **types})
    environment = records["environment"]
    return Plan(
        env_id=environment["env_id"],
        env_kwargs=environment["env_kwargs"],
        seed=environment["seed"],
        policy=records["model"]["policy"],
        max_turns=records["agent"]["max_turns"],
        restart_only=restart_only(environment["env_id"]),
    )


def _chained(digest: str, value: Any) -> str:
    """Return a digest over `value` and all that `digest` stands for."""
    return hashlib.sha256(f"{digest}\n".encode() + encode_loosely(value)).hexdigest()
