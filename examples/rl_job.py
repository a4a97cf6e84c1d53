"""
The job that the example's controllers work on, and the store of its rows.

Both are the same for every controller: what is to be done follows from a few numbers, and the rows
outlive each controller in an actor of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from gymckpt import ShardSet

ENVIRONMENTS: tuple[dict[str, Any], ...] = (
    {"env_id": "FrozenLake-v1", "env_kwargs": {"map_name": "8x8", "is_slippery": True}},
    {"env_id": "Blackjack-v1", "env_kwargs": {}},
    {"env_id": "CartPole-v1", "env_kwargs": {}},
    {"env_id": "Taxi-v4", "env_kwargs": {}},
)
"""Stochastic transitions, a card game, float observations, a long toy-text game."""

MAX_TURNS = 60


@attrs.frozen(kw_only=True)
class Job:
    """What is to be done, the same for every controller that works on it."""

    name: str
    """Names the run in the journal."""
    instances: int
    in_flight: int
    """Episodes that run at once on each instance."""
    waves: int
    """How many times in_flight rollouts each instance is to finish."""
    seed: int

    @property
    def instance_ids(self) -> tuple[str, ...]:
        """Two shards, replicas dealt out in turn."""
        shards = ("east", "west")
        return tuple(f"{shards[i % 2]}/replica-{i // 2}" for i in range(self.instances))

    @property
    def rollouts(self) -> dict[str, dict[str, Any]]:
        """Rollout id to its instance and its arguments."""
        return {
            f"r{wave:02d}-{index}-{slot:02d}": {
                "instance": instance,
                "seed": self.seed * 100_000 + wave * 1_000 + index * 100 + slot,
                "policy": ("random", "running-statistics")[slot % 2],
                "max_turns": MAX_TURNS,
                **ENVIRONMENTS[index % len(ENVIRONMENTS)],
            }
            for wave in range(self.waves)
            for index, instance in enumerate(self.instance_ids)
            for slot in range(self.in_flight)
        }

    def shard_set(self, handles: Mapping[str, Any]) -> ShardSet:
        """Return handles by shard, as a coordinator takes them."""
        shards: dict[str, list[Any]] = {}
        for instance in sorted(self.instance_ids):
            shards.setdefault(instance.split("/")[0], []).append(handles[instance])
        return ShardSet(handles=shards)


class RowStore:
    """Every turn of every rollout, one row each; run as a Ray actor."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.log: list[tuple[int, str]] = []
        self.session = 0

    def put(self, key: str, row: dict[str, Any]) -> None:
        """Store a row, and note for the proof when it came."""
        self.rows[key] = row
        self.log.append((self.session, key))

    def reset(self, rows: dict[str, dict[str, Any]]) -> None:
        """Begin a new session with the rows that a snapshot kept."""
        self.rows = dict(rows)
        self.session += 1

    def dump(self) -> dict[str, dict[str, Any]]:
        """Return all rows."""
        return dict(self.rows)

    def history(self) -> list[tuple[int, str]]:
        """Return (session, key) of every row that ever came."""
        return list(self.log)


def actor_name(job: Job, instance: str, incarnation: int) -> str:
    """Return the name under which a controller finds an actor."""
    return f"{job.name}:{instance}:{incarnation}"
