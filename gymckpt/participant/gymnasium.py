"""
A deployment that runs real Gymnasium environments as multi-turn episodes.

Its four servers share one process: the environment server keeps how each environment came to where
it is, the policy model the policies' state, the agent the turns and rows, and a resources server
stands for tools; in mode `restart-only` it makes episodes that cannot be captured. Each turn is one
action and one step, and counts when its row has been stored.

A step runs in the event loop and holds it for as long as it takes; environments whose steps take
long are run with `blocking_steps`, in threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.participant.boundary import answers
from gymckpt.participant.control import GRACE_S, ControlPlane
from gymckpt.participant.deployment import Deployment
from gymckpt.participant.episodes import EpisodeBody, LiveEpisode
from gymckpt.participant.hosting import ADMISSION_TIMEOUT_S, Unsavable
from gymckpt.participant.policies import POLICIES, PolicyFactory
from gymckpt.participant.rollouts import EpisodeReply, GymnasiumEpisode, Plan, RowSink, plan_of
from gymckpt.participant.servers import KINDS, Kind, Server
from gymckpt.participant.store import Record
from gymckpt.participant.timing import CallLater

__all__ = ["GymnasiumDeployment", "ResourcesMode"]

ResourcesMode = Literal["stateless", "restart-only"]

SERVER_NAMES: Mapping[Kind, str] = {
    "environment": "environment",
    "model": "policy_model",
    "agent": "agent",
    "resources": "resources",
}

EPISODE_KINDS: tuple[Kind, ...] = ("environment", "model", "agent")
"""The servers that keep something of every episode; resources that are exported keep nothing."""

ACTOR_OPTIONS: Mapping[str, Any] = {
    "max_restarts": 0,
    "max_task_retries": 0,
    "max_concurrency": 1_000,
    "num_cpus": 0,
}
"""A dead actor stays dead and no call is repeated behind the controller's back. Each `run` that is
under way counts against `max_concurrency`, and a control call needs a place too: set it well above
the number of episodes."""


async def _no_sink(_key: str, _row: dict[str, Any]) -> None:
    """Store nothing."""


class GymnasiumDeployment(Deployment):
    """One deployment of Gymnasium environments, in this process or as a Ray actor."""

    def __init__(
        self,
        instance_id: str,
        *,
        row_sink: RowSink = _no_sink,
        policies: Mapping[str, PolicyFactory] = POLICIES,
        resources_mode: ResourcesMode = "stateless",
        restart_only_env_ids: Collection[str] | None = None,
        server_names: Mapping[Kind, str] = SERVER_NAMES,
        blocking_steps: bool = False,
        turn_pause_s: float = 0.0,
        grace_s: float = GRACE_S,
        admission_timeout_s: float = ADMISSION_TIMEOUT_S,
        unsavable: Unsavable = "restart",
        now_ts: Callable[[], float] = time.time,
        call_later: CallLater | None = None,
    ) -> None:
        """
        Make an open deployment.

        Args:
            instance_id: Its own id, `<shard>/replica-<index>`.
            row_sink: Given every turn's row, and awaited before the turn counts.
            policies: Name to policy.
            resources_mode: Whether the resources server holds state that nobody can capture.
            restart_only_env_ids: Whose episodes use it then; None for all.
            server_names: What the four servers are called.
            blocking_steps: Whether environments run in threads.
            turn_pause_s: How long every episode pauses between two turns.
            grace_s: How long a lease lasts beyond the deadline that set it.
            admission_timeout_s: How long a dispatch waits for a checkpoint to end.
            unsavable: As for any deployment: what becomes of a state that cannot be saved.
            now_ts: The wall clock of this host, epoch seconds.
            call_later: How timers are armed; by default by the event loop.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: The id is none, names are missing or collide, or a time is out of range.
        """
        if resources_mode not in ("stateless", "restart-only"):
            raise ValueError(f"resources_mode {resources_mode!r} is not stateless or restart-only")
        if set(server_names) != set(KINDS):
            raise ValueError(f"server_names must name exactly {', '.join(KINDS)}")
        restarting = resources_mode == "restart-only"
        super().__init__(
            instance_id,
            [
                Server(
                    kind=kind,
                    name=server_names[kind],
                    control=ControlPlane(server_names[kind], grace_s=grace_s),
                    restart_only=restarting and kind == "resources",
                )
                for kind in KINDS
            ],
            turn_pause_s=turn_pause_s,
            admission_timeout_s=admission_timeout_s,
            unsavable=unsavable,
            now_ts=now_ts,
            call_later=call_later,
        )
        self._row_sink = row_sink
        self._policies = dict(policies)
        self._restarting = restarting
        chosen = restart_only_env_ids
        self._restart_only_env_ids = None if chosen is None else frozenset(chosen)
        self._blocking_steps = blocking_steps

    @classmethod
    def remote_class(cls, **options: Any) -> Any:
        """
        Return this class as a Ray actor class, to be made with `.remote(instance_id, …)`.

        Args:
            **options: For Ray, over `ACTOR_OPTIONS`.
        """
        import ray  # noqa: PLC0415 - whoever runs in one process needs no Ray

        make = cast("Any", ray).remote(**{**ACTOR_OPTIONS, **options})
        return make(cls)

    @classmethod
    def as_actor(cls, instance_id: str, **settings: Any) -> Any:
        """
        Start a deployment as a Ray actor and return its handle.

        Args:
            instance_id: Its own id.
            **settings: What else the constructor takes; all of it must be picklable.
        """
        return cls.remote_class().remote(instance_id, **settings)

    @answers("run")
    async def run(
        self,
        rollout_id: str,
        attempt: int = 0,
        *,
        env_id: str,
        env_kwargs: Mapping[str, Any] | None = None,
        seed: int,
        policy: str = "random",
        max_turns: int = 1_000,
    ) -> EpisodeReply:
        """
        Run one attempt of a rollout to its end.

        A caller that goes away does not stop it: `attach` waits for it again, and a retire stops
        it. While a checkpoint holds the deployment, the attempt waits to begin.

        Args:
            rollout_id: The rollout.
            attempt: 0 for a new rollout; later ones start it over from its first turn.
            env_id: The environment's registered name.
            env_kwargs: Its arguments, JSON data.
            seed: For the environment and the policy.
            policy: A name among the deployment's policies.
            max_turns: When to end it if the environment does not.

        Raises:
            GymCheckpointUnavailable: Admission stayed closed, or the attempt was retired or
                overtaken.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range, or the attempt was dispatched before.
        """
        episode = EnvironmentEpisode(rollout_id, attempt)
        plan = Plan(
            env_id=env_id,
            env_kwargs=dict(env_kwargs or {}),
            seed=seed,
            policy=policy,
            max_turns=max_turns,
            restart_only=self._restarts(env_id),
        )
        return cast("EpisodeReply", await self.begin(episode, self._body(episode, plan)))

    # --- what the base class asks -----------------------------------------------------------

    def records_of(self, server: Server, episodes: Sequence[LiveEpisode]) -> Iterable[Record]:
        """Return one server's part of parked episodes; resources keep nothing that is saved."""
        if server.kind not in EPISODE_KINDS:
            return []
        bodies = [cast("GymnasiumEpisode", live.body) for live in episodes]
        return [body.to_record(server.kind) for body in bodies]

    def rebuild(
        self,
        records: Mapping[str, list[Record]],
        episodes: Sequence[EnvironmentEpisode],
        require_wanted: Callable[[], None],
    ) -> list[EpisodeBody]:
        """Play every saved episode back to where it stood."""
        kinds: dict[str, Kind] = {server.name: server.kind for server in self._servers.all}
        found: dict[EnvironmentEpisode, dict[Kind, Record]] = {}
        for name, kept in records.items():
            for record in kept:
                episode = EnvironmentEpisode.from_mapping(
                    {key: record.get(key) for key in ("rollout_id", "attempt")}
                )
                if found.setdefault(episode, {}).setdefault(kinds[name], record) is not record:
                    raise ValueError(f"{name} saved two records of {episode.capture_key}")
        bodies: list[GymnasiumEpisode] = []
        try:
            for episode in episodes:
                parts = found.get(episode, {})
                if missing := [kind for kind in EPISODE_KINDS if kind not in parts]:
                    raise ValueError(
                        f"the checkpoint holds no {', '.join(missing)} record of "
                        f"{episode.capture_key}"
                    )
                body = self._body(
                    episode.next_attempt(), plan_of(parts, restart_only=self._restarts)
                )
                bodies.append(body)
                body.play_back(parts, require_wanted)
        except BaseException:
            for body in bodies:
                body.close()
            raise
        return list(bodies)

    def _restarts(self, env_id: str) -> bool:
        chosen = self._restart_only_env_ids
        return self._restarting and (chosen is None or env_id in chosen)

    def _body(self, episode: EnvironmentEpisode, plan: Plan) -> GymnasiumEpisode:
        return GymnasiumEpisode(
            episode,
            plan,
            policies=self._policies,
            row_sink=self._row_sink,
            blocking_steps=self._blocking_steps,
        )
