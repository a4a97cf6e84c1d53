"""
Hypothesis strategies for what goes over the wire: ids, episodes, inventories, answers, manifests.

Everything that they make is legal, the odd cases included: rollout ids that look like capture
keys of attempt 0, many attempts, empty inventories, rows that belong to several episodes.
"""

from __future__ import annotations

import re

from hypothesis import strategies as st

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.manifest import GYM_CHECKPOINT_SCHEMA_VERSION, GymCheckpointManifest
from gymckpt.replies import GymCheckpointCommitSummary, GymCheckpointPrepareSummary

__all__ = [
    "commit_summaries",
    "episodes",
    "instance_ids",
    "inventories",
    "manifests",
    "operation_ids",
    "prepare_summaries",
    "rollout_ids",
]

ATTEMPTS_MAX = 10**9 - 1

_NAMED_ATTEMPT = re.compile(r".*-a[1-9][0-9]*")
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def _is_rollout_id(value: str) -> bool:
    return not _NAMED_ATTEMPT.fullmatch(value)


def operation_ids() -> st.SearchStrategy[str]:
    """Return ids of checkpoints, restores and sweeps."""
    return st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)


def rollout_ids() -> st.SearchStrategy[str]:
    """Return rollout ids, those included that end almost like the key of an attempt."""
    plain = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
    odd = st.from_regex(r"r(-a0?[0-9]{0,3}){0,4}", fullmatch=True)
    return (plain | odd).filter(_is_rollout_id)


def instance_ids() -> st.SearchStrategy[str]:
    """Return ids of instances, `<shard>/replica-<index>`."""
    shards = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
    return st.builds("{}/replica-{}".format, shards, st.integers(0, 99))


def episodes() -> st.SearchStrategy[EnvironmentEpisode]:
    """Return episodes of any attempt."""
    attempts = st.integers(0, 12) | st.integers(0, ATTEMPTS_MAX)
    return st.builds(EnvironmentEpisode, rollout_ids(), attempts)


def inventories(*, max_size: int = 6) -> st.SearchStrategy[list[EnvironmentEpisode]]:
    """
    Return what one instance may hold: episodes, each rollout once.

    Args:
        max_size: How many at most.
    """
    return st.lists(episodes(), unique_by=lambda one: one.rollout_id, max_size=max_size)


@st.composite
def prepare_summaries(draw: st.DrawFn) -> GymCheckpointPrepareSummary:
    """Return answers to prepare, parked or not."""
    prepared = draw(st.booleans())
    blocking = st.dictionaries(_TEXTS, st.lists(_TEXTS, max_size=4).map(tuple), max_size=3)
    blockers: dict[str, tuple[str, ...]] = {} if prepared else draw(blocking)
    return GymCheckpointPrepareSummary(prepared, blockers, tuple(draw(inventories())))


@st.composite
def commit_summaries(
    draw: st.DrawFn, offered: tuple[EnvironmentEpisode, ...] | None = None
) -> GymCheckpointCommitSummary:
    """
    Return answers to commit.

    Args:
        draw: Given by Hypothesis.
        offered: The episodes that the commit named, of which some are exported; None for any.
    """
    named = tuple(draw(inventories())) if offered is None else offered
    exported = tuple(one for one in named if draw(st.booleans()))
    keys = st.lists(_TEXTS, unique=True, max_size=4).map(tuple)
    rows: dict[EnvironmentEpisode, tuple[str, ...]] = {one: draw(keys) for one in named}
    staged = tuple(sorted({key for found in rows.values() for key in found}))
    participants = draw(st.lists(_TEXTS, unique=True, min_size=1, max_size=4))
    left = [one for one in named if one not in exported]
    lost = draw(st.dictionaries(st.sampled_from(left), _TEXTS, max_size=2)) if left else {}
    return GymCheckpointCommitSummary(exported, staged, tuple(participants), rows, unsavable=lost)


@st.composite
def manifests(draw: st.DrawFn) -> GymCheckpointManifest:
    """Return manifests of up to four instances; each rollout is on one, continued or restarted."""
    names = draw(st.lists(instance_ids(), unique=True, min_size=1, max_size=4))
    continued: dict[str, list[EnvironmentEpisode]] = {name: [] for name in names}
    restarted: dict[str, list[EnvironmentEpisode]] = {name: [] for name in names}
    for episode in draw(inventories(max_size=8)):
        place = continued if draw(st.booleans()) else restarted
        place[draw(st.sampled_from(names))].append(episode)
    rows = {name: draw(st.lists(_TEXTS, unique=True, max_size=3)) for name in names}
    servers = {name: draw(st.lists(_TEXTS, unique=True, min_size=1, max_size=3)) for name in names}
    return GymCheckpointManifest(
        GYM_CHECKPOINT_SCHEMA_VERSION, draw(operation_ids()), continued, rows, restarted, servers
    )
