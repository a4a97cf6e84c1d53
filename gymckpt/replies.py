"""
What an instance answers to `prepare` and to `commit`, and the judgement of such answers.

The summaries are data that an actor builds and Ray carries. They check themselves where they are
made, so that a reply which contradicts itself fails inside the actor that knows why; the
coordinator checks what only it can know: that the reply is a summary at all, and that it exports
nothing that was not offered. Staging keys and blockers are opaque: compared and listed, never
parsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from gymckpt.checks import (
    copied,
    copied_rows,
    require_episodes,
    require_mapping,
    require_names,
    require_rollouts_once,
    require_texts,
    require_unique,
)
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.wording import sample, show

__all__ = [
    "GymCheckpointCommitSummary",
    "GymCheckpointPrepareSummary",
    "require_commit_summary",
    "require_prepare_summary",
    "staging_keys_of",
]


# --- what the fields are copied and checked with -------------------------------------------------


def _episodes(value: Iterable[EnvironmentEpisode]) -> tuple[EnvironmentEpisode, ...]:
    return copied(value)


def _texts(value: Iterable[str]) -> tuple[str, ...]:
    return copied(value)


def _texts_by_server(value: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    return copied_rows(value)


def _rows_by_episode(
    value: Mapping[EnvironmentEpisode, Iterable[str]],
) -> dict[EnvironmentEpisode, tuple[str, ...]]:
    return copied_rows(value)


def _check_flag(_summary: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if type(value) is not bool:
        raise TypeError(f"{attribute.name} must be a bool, not {show(value)}")


def _check_blockers(summary: GymCheckpointPrepareSummary, _attribute: object, value: Any) -> None:
    blocking = [
        server
        for server, names in require_mapping(value, str, "blockers")
        if require_texts(names, f"blockers[{show(server)}]")
    ]
    if summary.prepared and blocking:
        raise ValueError(
            f"the instance says that it is parked and that {sample(blocking)} still blocks it; "
            "it is parked only when nothing blocks it any more"
        )


def _check_inventory(_summary: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    require_rollouts_once(require_episodes(value, attribute.name), attribute.name)


def _check_episodes(_summary: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    require_unique(require_episodes(value, attribute.name), attribute.name)


def _check_names(_summary: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    require_names(value, attribute.name)


def _check_participants(_summary: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not require_names(value, attribute.name):
        raise ValueError("participants must not be empty: a deployment has at least one server")


def _reasons(value: Mapping[EnvironmentEpisode, str]) -> dict[EnvironmentEpisode, str]:
    given: Any = value
    return dict(value) if isinstance(given, Mapping) else given


def _check_reasons(_summary: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    reasons = dict(require_mapping(value, EnvironmentEpisode, attribute.name))
    for episode, reason in reasons.items():
        if not isinstance(reason, str) or not reason:
            raise TypeError(
                f"{attribute.name}[{episode.capture_key}] must say why, not {show(reason)}"
            )
    require_rollouts_once(reasons, attribute.name)


def _check_rows(_summary: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    for episode, keys in require_mapping(value, EnvironmentEpisode, attribute.name):
        require_names(keys, f"{attribute.name}[{episode.capture_key}]")


# --- the summaries -------------------------------------------------------------------------------


@attrs.frozen
class GymCheckpointPrepareSummary:
    """
    What one instance answers when it has been asked to park.

    Raises:
        TypeError: A field has the wrong type; a bare string is no collection of names.
        ValueError: A parked instance names a blocker, or a rollout restarts twice.
    """

    prepared: bool = attrs.field(validator=_check_flag)
    """Whether the instance is parked."""

    blockers: dict[str, tuple[str, ...]] = attrs.field(
        converter=_texts_by_server, validator=_check_blockers
    )
    """Server to what it says is in the way: usually capture keys, but any text. May be empty
    though the instance is not parked, when a resume overtook the waiting prepare."""

    restarts: tuple[EnvironmentEpisode, ...] = attrs.field(
        default=(), converter=_episodes, validator=_check_inventory
    )
    """The episodes that cannot be captured: a commit leaves them out and records them, and after a
    crash they start over from their tasks. Never capped."""


@attrs.frozen
class GymCheckpointCommitSummary:
    """
    What one instance answers when its state is durable.

    Raises:
        TypeError: A field has the wrong type; a bare string is no collection of names.
        ValueError: Something occurs twice, a name is empty, an exported episode is without an
            owner or cannot be saved, or the rows of the episodes are not exactly the staging keys.
    """

    exported_episodes: tuple[EnvironmentEpisode, ...] = attrs.field(
        converter=_episodes, validator=_check_inventory
    )
    """The episodes whose state was written. One that was offered may be missing: its reply was on
    the wire already."""

    staging_keys: tuple[str, ...] = attrs.field(converter=_texts, validator=_check_names)
    """The stored rows that any of the instance's episodes still needs."""

    participants: tuple[str, ...] = attrs.field(converter=_texts, validator=_check_participants)
    """The servers that took part; a restore demands exactly these."""

    staging_keys_by_episode: dict[EnvironmentEpisode, tuple[str, ...]] = attrs.field(
        converter=_rows_by_episode, validator=_check_rows
    )
    """Episode to the rows that its records hold; also of episodes that were not exported. A row
    may belong to several."""

    unowned_live_episodes: tuple[EnvironmentEpisode, ...] = attrs.field(
        default=(), converter=_episodes, validator=_check_episodes
    )
    """Parked sessions that no server owns: nobody can restore them, and they cannot finish."""

    unsavable: dict[EnvironmentEpisode, str] = attrs.field(
        factory=dict, converter=_reasons, validator=_check_reasons
    )
    """Episode that was offered and whose state cannot be saved to the reason: it is recorded as a
    restart, and starts over from its task after a crash."""

    written_below_root: bool = attrs.field(default=False, kw_only=True, validator=_check_flag)
    """Whether the state lies below the root and a file there says so: in the instance's directory
    `gym/<kind>/<server>/manifest.json` of a participant, or `manifest.json`, a JSON object whose
    `checkpoint_id` is the checkpoint's. The controller writes no outer manifest before it has seen
    that file."""

    def __attrs_post_init__(self) -> None:
        owned = {key for keys in self.staging_keys_by_episode.values() for key in keys}
        staged = set(self.staging_keys)
        if owned != staged:
            ownerless, unstaged = sorted(staged - owned), sorted(owned - staged)
            raise ValueError(
                "the rows of staging_keys_by_episode must be exactly staging_keys: "
                f"{len(ownerless)} of no episode ({sample(ownerless)}), "
                f"{len(unstaged)} not staged ({sample(unstaged)})"
            )
        self._require_apart(self.unowned_live_episodes, "have no owner; only an owner exports one")
        self._require_apart(self.unsavable, "cannot be saved; what is exported was saved")

    def _require_apart(self, others: Iterable[EnvironmentEpisode], what: str) -> None:
        both = sorted(set(self.exported_episodes).intersection(others))
        if both:
            named = sample(episode.capture_key for episode in both)
            raise ValueError(f"{len(both)} episode(s) ({named}) are exported and {what}")


# --- what the coordinator asks of them -----------------------------------------------------------


def staging_keys_of(
    summary: GymCheckpointCommitSummary, episodes: Iterable[EnvironmentEpisode]
) -> tuple[str, ...]:
    """
    Return the stored rows of some episodes, the only rows that a restore of these continues.

    Args:
        summary: What the instance answered to `commit`.
        episodes: Which episodes are kept; one that the summary does not know has no rows.

    Returns:
        The rows, sorted, each once. A row that two attempts share stays while either is kept.
    """
    rows = summary.staging_keys_by_episode
    return tuple(sorted({key for episode in episodes for key in rows.get(episode, ())}))


def require_prepare_summary(reply: object) -> GymCheckpointPrepareSummary:
    """
    Return what an instance answered to `prepare` if it is a summary.

    Args:
        reply: What came back from the actor: anything.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(reply, GymCheckpointPrepareSummary):
        raise TypeError(_not_a_summary("prepare", "GymCheckpointPrepareSummary", reply))
    return reply


def require_commit_summary(
    reply: object, offered: Iterable[EnvironmentEpisode]
) -> GymCheckpointCommitSummary:
    """
    Return what an instance answered to `commit` if it is a summary of what was offered.

    Args:
        reply: What came back from the actor: anything.
        offered: The episodes that the commit named for this instance.

    Raises:
        TypeError: It is something else.
        RuntimeError: It exports an episode that was not offered, or says that it cannot be saved.
    """
    if not isinstance(reply, GymCheckpointCommitSummary):
        raise TypeError(_not_a_summary("commit", "GymCheckpointCommitSummary", reply))
    named = frozenset(offered)
    for what, episodes in (
        ("exported", reply.exported_episodes),
        ("cannot save", reply.unsavable),
    ):
        if foreign := sorted(set(episodes) - named):
            raise RuntimeError(
                f"the instance {what} {len(foreign)} episode(s) that the commit did not name: "
                f"{sample(episode.capture_key for episode in foreign)}"
            )
    return reply


def _not_a_summary(call: str, wanted: str, reply: object) -> str:
    return f"the answer to {call} must be a {wanted}, not a {type(reply).__name__}: {show(reply)}"
