"""
Every error that gymckpt raises, and the rule for which of them a caller may simply try again.

Two families. *You misused us*: an argument, an id, a chart or a call at the wrong time; these are
`ValueError`, `TypeError` or `IllegalTransition`, are raised before anything is sent and change
nothing. *The world failed*: an instance, the journal, a file; these carry what happened per
instance as fields, not only as text.

This module knows nothing of asyncio, Ray or files. What instances end with is declared in
`failures`; how failures are put into words, stood in for and classified is in `wording`, `standins`
and `transience`. All their public names are offered here.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from gymckpt.failures import (
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    GymCheckpointUnavailable,
    RecordsNotVisible,
)
from gymckpt.standins import Legible, Portable, RemoteFailure, marks_of, tame
from gymckpt.transience import is_actor_dead, is_transient_failure
from gymckpt.wording import did_you_mean, redacted, sample, show, text_of

if TYPE_CHECKING:
    from gymckpt.episodes import EnvironmentEpisode

__all__ = [
    "ChartError",
    "CutMismatch",
    "Fenced",
    "GymCheckpointNotReady",
    "GymCheckpointOperationError",
    "GymCheckpointUnavailable",
    "IllegalTransition",
    "InvariantViolated",
    "JournalConflict",
    "JournalCorrupt",
    "JournalError",
    "JournalOutcomeUnknown",
    "JournalUnavailable",
    "ManifestWithdrawn",
    "MissingHandle",
    "OperationDiscarded",
    "OperationIdUsed",
    "OperationOpen",
    "ParticipantRefused",
    "RecordsNotVisible",
    "RemoteFailure",
    "ReplayDiverged",
    "RestartOnlyDeployment",
    "RunHeld",
    "TransitionRefused",
    "UnownedEpisodes",
    "did_you_mean",
    "is_actor_dead",
    "is_transient_failure",
    "is_transient_gym_checkpoint_failure",
    "redacted",
    "sample",
    "show",
    "tame",
    "text_of",
]

# --- the world failed ---------------------------------------------------------------------------


class ParticipantRefused(Portable, RuntimeError):
    """
    One participant's control plane refused a call; nothing that it holds has changed.

    It stays inside a deployment, which turns it into `GymCheckpointUnavailable` with the same
    code, and the detail as text, for whoever called from outside.

    Attributes:
        code: A stable word for programs, such as `stale_checkpoint` (protocol facts, 12).
        detail: What was refused, by which rule, and the way out.
    """

    _fields = ("code", "detail")

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code} {detail}")
        self.code = code
        self.detail = detail


class OperationDiscarded(Portable, RuntimeError):
    """
    The operation was given up while a verb waited for it, by someone other than its caller.

    Attributes:
        operation_id: The operation.
        reason: Why, in words.
    """

    _fields = ("operation_id", "reason")

    def __init__(self, operation_id: str, reason: str) -> None:
        super().__init__(f"operation {operation_id!r} was given up: {reason}")
        self.operation_id = operation_id
        self.reason = reason


class JournalError(Legible, RuntimeError):
    """The journal could not do what was asked; its subclasses say why."""


class JournalUnavailable(JournalError):
    """The journal is full, locked past its timeout, or gone; nothing was appended."""


class JournalOutcomeUnknown(JournalUnavailable):
    """The journal did not answer: what it was asked to store may be stored, now or later."""


class JournalCorrupt(JournalError):
    """What the journal or an exported file holds is not what any release wrote."""


class JournalConflict(Portable, JournalError):
    """
    The journal does not end where the writer believes, although its epoch is the right one.

    Two writers share one epoch, or one of them replayed only a part: a defect, never an operating
    condition. Nothing was stored.

    Attributes:
        operation_id: The operation.
        expected_seq: After which entry the writer wanted to append.
        last_seq: The last entry that is stored.
    """

    _fields = ("operation_id", "expected_seq", "last_seq")

    def __init__(self, operation_id: str, expected_seq: int, last_seq: int) -> None:
        super().__init__(
            f"operation {operation_id!r}: cannot append after entry {expected_seq}, its journal "
            f"ends with entry {last_seq} and does not hold this batch; read the operation again"
        )
        self.operation_id = operation_id
        self.expected_seq = expected_seq
        self.last_seq = last_seq


class Fenced(Portable, JournalError):
    """
    The run was claimed by another process, or given back: this epoch may neither append nor act.

    Attributes:
        run: The run.
        epoch: The epoch that tried to append.
        current_epoch: The epoch of the run now; 0 where nobody has claimed it yet.
        owner: Who holds the run now; empty where nobody does.
    """

    _fields = ("run", "epoch", "current_epoch", "owner")

    def __init__(self, run: str, epoch: int, current_epoch: int, owner: str) -> None:
        holds = f"{owner} holds it" if owner else "nobody holds it"
        super().__init__(
            f"run {run!r}: epoch {epoch} is fenced, it is at epoch {current_epoch} and {holds} "
            "now; this process may not act for the run any more: end it, or claim the run again "
            "with a new coordinator"
        )
        self.run = run
        self.epoch = epoch
        self.current_epoch = current_epoch
        self.owner = owner


class RunHeld(Portable, JournalError):
    """
    Another process holds the run and is alive, so it is not taken over; nothing was sent.

    Attributes:
        run: The run.
        holder: Which process holds it, and where: host, process id, and what tells it apart.
        since_ts: Since when it holds the run, epoch seconds by the journal's clock.
        age_s: How old its last heartbeat is.
    """

    _fields = ("run", "holder", "since_ts", "age_s")

    def __init__(self, run: str, holder: str, since_ts: float, age_s: float) -> None:
        super().__init__(
            f"run {run!r} is held by {holder} since {_moment(since_ts)}, whose last heartbeat is "
            f"{age_s:.1f} s old; stop that process or let it end first, or force the takeover"
        )
        self.run = run
        self.holder = holder
        self.since_ts = since_ts
        self.age_s = age_s


def _moment(ts: float) -> str:
    """Return an instant as text, in UTC."""
    try:
        moment = datetime.datetime.fromtimestamp(ts, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{ts:.0f}"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


class UnownedEpisodes(Portable, RuntimeError):
    """
    An instance holds live episodes that nobody can restore and that cannot finish while parked.

    Attributes:
        episodes: Instance id to those episodes, complete.
    """

    _fields = ("episodes",)

    def __init__(self, episodes: Mapping[str, Collection[EnvironmentEpisode]]) -> None:
        self.episodes = {instance: tuple(found) for instance, found in episodes.items()}
        named = [
            f"{episode.capture_key} in {instance}"
            for instance, found in sorted(self.episodes.items())
            for episode in found
        ]
        super().__init__(
            f"{len(named)} live episode(s) are owned by no environment server, so no restore "
            f"could continue them: {sample(named)}; retire them, then take the snapshot again"
        )


class RestartOnlyDeployment(Portable, RuntimeError):
    """
    Some servers cannot be captured: rollouts that use them start over after a crash.

    Attributes:
        servers: Instance id to the names of those servers, complete.
    """

    _fields = ("servers",)

    def __init__(self, servers: Mapping[str, Collection[str]]) -> None:
        self.servers = {instance: tuple(names) for instance, names in servers.items()}
        named = [
            f"{name} of {instance}" for instance, names in self.servers.items() for name in names
        ]
        super().__init__(
            f"{len(named)} server(s) are restart-only: {sample(named)}; rollouts that use them "
            "start over from their tasks after a crash"
        )


class CutMismatch(Legible, RuntimeError):
    """What the environment saved and RL's ledger under its cut do not agree, or the cut is dead."""


# --- you misused us -----------------------------------------------------------------------------


class OperationIdUsed(Legible, ValueError):
    """The operation id was used before in this run; ids are used once and never again."""


class OperationOpen(Portable, RuntimeError):
    """
    This coordinator already has an open operation; it may succeed once that one has ended.

    Attributes:
        operation_id: The open operation.
        state: The state that it is in.
    """

    _fields = ("wanted", "operation_id", "state")

    def __init__(self, wanted: str, operation_id: str, state: str) -> None:
        super().__init__(
            f"cannot {wanted}: operation {operation_id!r} is open in state {state!r}; "
            "end it first, or try again when it has ended"
        )
        self.wanted = wanted
        self.operation_id = operation_id
        self.state = state


class IllegalTransition(Portable, RuntimeError):
    """
    A trigger that its chart does not allow in the present state.

    Attributes:
        chart: The chart's name.
        version: The chart's version.
        state: The state in which the trigger came.
        trigger: The trigger.
        legal: The triggers that are legal there.
    """

    _fields = ("chart", "version", "state", "trigger", "legal", "subject")

    def __init__(  # noqa: PLR0917 - facts of one event, in the order of the message
        self,
        chart: str,
        version: int,
        state: str,
        trigger: str,
        legal: tuple[str, ...],
        subject: str = "",
    ) -> None:
        what = f"{chart} {subject!r}" if subject else f"chart {chart}"
        options = ", ".join(legal) if legal else "nothing, it is final"
        super().__init__(
            f"{what} cannot take {trigger!r} in state {state!r} "
            f"(chart {chart} v{version}); legal here: {options}"
        )
        self.chart = chart
        self.version = version
        self.state = state
        self.trigger = trigger
        self.legal = legal
        self.subject = subject


class ManifestWithdrawn(Portable, RuntimeError):
    """
    The manifest of a checkpoint that was given up must not appear any more.

    Attributes:
        checkpoint_id: The checkpoint.
        path: Where its manifest was to be published.
    """

    _fields = ("checkpoint_id", "path")

    def __init__(self, checkpoint_id: str, path: str) -> None:
        super().__init__(
            f"{path}: the manifest of checkpoint {checkpoint_id!r} was withdrawn and is not "
            "published; save again under a new id, in a new directory"
        )
        self.checkpoint_id = checkpoint_id
        self.path = path


class MissingHandle(Legible, LookupError):
    """A call is due to an instance for which no handle was given."""


class TransitionRefused(Legible, RuntimeError):
    """A trigger that the chart allows, refused by its guard; nothing changed."""


class ChartError(Legible, ValueError):
    """A chart file is wrong; the message gives the path into the file and the way out."""


class ReplayDiverged(Portable, RuntimeError):
    """
    A history is not one that the charts could have lived.

    Attributes:
        seq: The first entry that differs.
        expected: What the chart gives.
        found: What the history has.
    """

    _fields = ("seq", "expected", "found")

    def __init__(self, seq: int, expected: str, found: str) -> None:
        super().__init__(f"entry {seq}: the chart gives {expected}, the journal has {found}")
        self.seq = seq
        self.expected = expected
        self.found = found


class InvariantViolated(Portable, RuntimeError):
    """
    A promise of the design does not hold in a state: a defect, never an operating condition.

    Attributes:
        invariant: The name of the check.
    """

    _fields = ("invariant", "what")

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"invariant {invariant}: {what}")
        self.invariant = invariant
        self.what = what


# --- what is transient --------------------------------------------------------------------------


def is_transient_gym_checkpoint_failure(error: BaseException) -> bool:
    """
    Whether a failed Gym checkpoint may succeed if it is simply tried again.

    Args:
        error: What a verb of the coordinator or a context manager of it raised.

    True for participants that could not park in time, for a coordinator that is busy with another
    operation, and for an operation error with at least one failure whose failures are all
    transient. Everything else is a broken invariant that a retry would only hide, also a bare
    timeout and a full disk; and so is whatever left a restore that had begun to install attempts,
    since these are refused from then on.
    """
    if marks_of(error):
        return False
    if isinstance(error, GymCheckpointNotReady | OperationOpen):
        return True
    if isinstance(error, GymCheckpointOperationError):
        failures = error.failures.values()
        return bool(failures) and all(is_transient_failure(failure) for failure in failures)
    return False
