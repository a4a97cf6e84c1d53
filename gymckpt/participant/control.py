"""
The control plane of one participant: what it may be asked, by whom, and until when.

It owns the phase, the lease, the memory of resumed ids, the recorded answers and the marks of
retired attempts. It does nothing: it neither parks nor writes, knows no clock, no loop and no
file. Time comes in as an argument, by the wall clock of the participant's own host, and every
refusal leaves the state as it was. What may follow what is declared in
`statecharts/participant.toml`; its guards are in `guards.py`.

Four rules are worth knowing by heart. An id that was resumed, or whose lease ran out, is stale for
good, so that a call of a checkpoint that was given up can never close the participant again. A
resume with an id that does not hold the participant only makes that id stale. A lease is never
shortened. A mark is raised before anything is stopped and lowered by nothing but a forget.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs
from rpds import HashTrieMap

from gymckpt.chart import Facts, Fired, Machine, Refused, load_chart, machine_for
from gymckpt.episodes import EnvironmentEpisode, require_operation_id, require_rollout_id
from gymckpt.errors import IllegalTransition, ParticipantRefused
from gymckpt.participant.guards import GUARDS, why_illegal
from gymckpt.participant.timing import require_seconds
from gymckpt.values import replaced

__all__ = ["GRACE_S", "STALE_IDS_MAX", "ControlPlane", "ControlState", "RecordedCall"]

GRACE_S = 600.0
"""How long after the last deadline that it heard of a participant reopens by itself."""

STALE_IDS_MAX = 64
"""How many resumed ids are remembered; older ones are far past every deadline."""

RecordedCall = Literal["prepare", "commit", "restore"]
"""A call whose answer is kept until resume, and repeated to whoever asks the same again."""


_OUTLASTING = ("stale_ids", "marks", "newest")
"""What a participant remembers when it reopens."""


def _nothing() -> HashTrieMap[str, Any]:
    return HashTrieMap()


@attrs.frozen(kw_only=True, slots=False)
class ControlState:
    """All that one control plane remembers."""

    phase: str
    checkpoint_id: str | None = None
    """The checkpoint or restore that holds the participant; None while it is open."""
    lease_expires_ts: float | None = None
    """When the participant reopens by itself; None while it is open."""
    stale_ids: tuple[str, ...] = ()
    """The ids that were resumed or whose lease ran out, the oldest first."""
    requests: HashTrieMap[str, Any] = attrs.field(factory=_nothing)
    """What `commit` or `restore` of the holder asked for; the same id may not ask for else."""
    answers: HashTrieMap[str, Any] = attrs.field(factory=_nothing)
    """What the holder's calls were answered."""
    marks: HashTrieMap[str, int] = attrs.field(factory=_nothing)
    """Rollout to the highest attempt that was retired; it and all before it are refused."""
    newest: HashTrieMap[str, int] = attrs.field(factory=_nothing)
    """Rollout to the highest attempt that was admitted or restored; all before it are refused."""


@functools.cache
def _machine() -> Machine:
    """Return the one machine of this process; it keeps no state of its own."""
    return machine_for(load_chart("participant"), GUARDS)


class ControlPlane:
    """
    One participant's phases, lease, fenced ids, recorded answers and marks.

    Every call takes the participant's wall clock as `now_ts` and first lets a lease that has run
    out expire. A call that is refused raises `ParticipantRefused` and changes nothing.

    Attributes:
        server: The participant's name, for messages.
        grace_s: How long a lease lasts beyond the deadline that set it.
    """

    def __init__(self, server: str, *, grace_s: float = GRACE_S) -> None:
        """
        Open a participant that has never heard of any checkpoint.

        Raises:
            ValueError: The grace is not positive.
        """
        if require_seconds(grace_s, "grace_s") <= 0:
            raise ValueError(f"grace_s is {grace_s}, it must be positive")
        self.server = server
        self.grace_s = float(grace_s)
        self._state = ControlState(phase=_machine().chart.initial)

    @property
    def state(self) -> ControlState:
        """Everything that it remembers, as one value."""
        return self._state

    @property
    def is_open(self) -> bool:
        """Whether episodes run and new ones are admitted."""
        return self._state.phase == _machine().chart.initial

    def holds(self, checkpoint_id: str) -> bool:
        """Whether this checkpoint or restore holds the participant."""
        return self._state.checkpoint_id == checkpoint_id

    def recorded(self, call: RecordedCall) -> Any:
        """Return what the holder's `call` was answered, or None."""
        return self._state.answers.get(call)

    def rewind(self, state: ControlState) -> None:
        """
        Take back a call that another participant of the same deployment refused.

        Args:
            state: What `state` was immediately before; nothing may have acted on the call.
        """
        self._state = state

    # --- checkpoints ------------------------------------------------------------------------

    def prepare(self, checkpoint_id: str, *, deadline_ts: float, now_ts: float) -> Any:
        """
        Close admission for one checkpoint; a deadline in the past closes as well.

        Returns:
            The recorded answer, or None while it is still to be parked.
        """
        self._call("prepare", checkpoint_id, deadline_ts, now_ts, {})
        return self.recorded("prepare")

    def ready(self, checkpoint_id: str) -> None:
        """Note that everything of the participant is parked."""
        self._require_holder(checkpoint_id)
        self._move("ready", checkpoint_id, {})

    def prepare_failed(self, checkpoint_id: str) -> None:
        """Reopen after an error while parking; the id stays good for another try."""
        self._require_holder(checkpoint_id)
        self._move("prepare_failed", checkpoint_id, {})

    def renew(self, checkpoint_id: str, *, deadline_ts: float, now_ts: float) -> None:
        """Extend the lease of the holder."""
        self._call("renew", checkpoint_id, deadline_ts, now_ts, {})

    def commit(
        self, checkpoint_id: str, request: object, *, deadline_ts: float, now_ts: float
    ) -> Any:
        """
        Begin to write, or repeat the answer.

        Args:
            checkpoint_id: The checkpoint.
            request: What is to be written and where to; compared by equality.
            deadline_ts: Until when.
            now_ts: The participant's wall clock.

        Returns:
            The recorded answer, or None while it is still to be written.
        """
        return self._bound_call("commit", checkpoint_id, request, deadline_ts, now_ts)

    def restore(
        self, restore_id: str, request: object, *, deadline_ts: float, now_ts: float
    ) -> Any:
        """
        Close admission and begin to install saved episodes, or repeat the answer.

        Args:
            restore_id: The restore.
            request: What is to be installed and where from; compared by equality.
            deadline_ts: Until when.
            now_ts: The participant's wall clock.

        Returns:
            The recorded answer, or None while it is still to be installed.
        """
        return self._bound_call("restore", restore_id, request, deadline_ts, now_ts)

    def record(self, call: RecordedCall, checkpoint_id: str, answer: Any) -> None:
        """
        Keep the holder's answer; the first one stands.

        Raises:
            ParticipantRefused: The participant was resumed meanwhile.
        """
        self._require_holder(checkpoint_id)
        if call not in self._state.answers:
            answers = self._state.answers.insert(call, answer)
            self._state = replaced(self._state, {"answers": answers})

    def resume(self, checkpoint_id: str, *, now_ts: float) -> bool:
        """
        Reopen if this id holds the participant, and refuse the id from now on in any case.

        Returns:
            Whether it reopened.
        """
        checkpoint_id = require_operation_id(checkpoint_id, "checkpoint id")
        self.expire(now_ts)
        before = self._state.checkpoint_id
        self._move("resume", checkpoint_id, {}, stale_ids=self._fenced(checkpoint_id))
        return before is not None and self.is_open

    def expire(self, now_ts: float) -> str | None:
        """
        Reopen if the lease has run out.

        Returns:
            The id that held the participant until now and is stale from now on, or None.
        """
        holder, lease_expires_ts = self._state.checkpoint_id, self._state.lease_expires_ts
        if holder is None or lease_expires_ts is None or now_ts < lease_expires_ts:
            return None
        self._move("expire", holder, {}, stale_ids=self._fenced(holder))
        return holder

    # --- attempts ---------------------------------------------------------------------------

    def retire(
        self,
        checkpoint_id: str,
        episodes: Iterable[EnvironmentEpisode],
        *,
        deadline_ts: float,
        now_ts: float,
    ) -> None:
        """Refuse these attempts and all earlier ones of their rollouts until a forget."""
        listed = tuple(episodes)
        marks = self._state.marks
        nothing_new = all(
            episode.attempt <= marks.get(episode.rollout_id, -1) for episode in listed
        )
        for episode in listed:
            highest = max(episode.attempt, marks.get(episode.rollout_id, -1))
            marks = marks.insert(episode.rollout_id, highest)
        facts = {"nothing_new": nothing_new}
        self._call("retire", checkpoint_id, deadline_ts, now_ts, facts, marks=marks)

    def forget(
        self,
        checkpoint_id: str,
        rollout_ids: Iterable[str],
        *,
        deadline_ts: float,
        now_ts: float,
    ) -> None:
        """Drop all that is remembered of these rollouts, which are finished for good."""
        listed = [require_rollout_id(rollout_id) for rollout_id in rollout_ids]
        marks, newest = self._state.marks, self._state.newest
        for rollout_id in listed:
            marks, newest = marks.discard(rollout_id), newest.discard(rollout_id)
        self._call("forget", checkpoint_id, deadline_ts, now_ts, {}, marks=marks, newest=newest)

    def require_current(self, episode: EnvironmentEpisode) -> None:
        """
        Pass unless the attempt was retired or overtaken by a later one.

        Raises:
            ParticipantRefused: It was.
        """
        mark = self._state.marks.get(episode.rollout_id, -1)
        newest = self._state.newest.get(episode.rollout_id, -1)
        if episode.attempt <= mark or episode.attempt < newest:
            retired = f"{mark} and all before it are retired"
            rule = retired if episode.attempt <= mark else f"attempt {newest} has taken over"
            raise ParticipantRefused(
                "stale_attempt",
                f"{self.server}: attempt {episode.attempt} of rollout {episode.rollout_id!r} is "
                f"refused, {rule}, and no retry changes that: start the rollout over as attempt "
                f"{max(mark + 1, newest + 1)}, forget it, or restore another snapshot",
            )

    def admit(self, episode: EnvironmentEpisode, *, now_ts: float) -> None:
        """
        Let a new attempt begin.

        Raises:
            ParticipantRefused: Admission is closed, or the attempt was retired or overtaken.
        """
        self.expire(now_ts)
        if not self.is_open:
            raise ParticipantRefused(
                "admission_closed",
                f"{self.server}: is {self._state.phase} for {self._state.checkpoint_id!r}; "
                "it admits new attempts when that is resumed",
            )
        self._note([episode])

    def install(self, restore_id: str, episodes: Iterable[EnvironmentEpisode]) -> None:
        """
        Let restored attempts stand: all of them, or none.

        Raises:
            ParticipantRefused: The restore was resumed meanwhile, or an attempt was retired or
                overtaken.
        """
        self._require_holder(restore_id)
        self._note(episodes)

    def _note(self, episodes: Iterable[EnvironmentEpisode]) -> None:
        newest = self._state.newest
        for episode in episodes:
            self.require_current(episode)
            newest = newest.insert(episode.rollout_id, episode.attempt)
        self._state = replaced(self._state, {"newest": newest})

    # --- the chart --------------------------------------------------------------------------

    def _bound_call(
        self,
        call: Literal["commit", "restore"],
        checkpoint_id: str,
        request: object,
        deadline_ts: float,
        now_ts: float,
    ) -> Any:
        self.expire(now_ts)
        known = self._state.requests
        facts = {"same_request": known.get(call) in (None, request)}
        requests = known.insert(call, request)
        self._call(call, checkpoint_id, deadline_ts, now_ts, facts, requests=requests)
        return self.recorded(call)

    def _call(
        self, call: str, wire_id: str, deadline_ts: float, now_ts: float, facts: Facts, **new: Any
    ) -> None:
        """Check the arguments, let a dead lease go, take the call and extend the lease."""
        wire_id = require_operation_id(wire_id, "checkpoint id")
        deadline_ts = require_seconds(deadline_ts, "deadline_ts")
        self.expire(now_ts)
        lease_ts = self._state.lease_expires_ts or -math.inf
        new["lease_expires_ts"] = max(lease_ts, deadline_ts + self.grace_s)
        self._move(call, wire_id, {"late_s": now_ts - deadline_ts, **facts}, **new)

    def _move(self, trigger: str, checkpoint_id: str, facts: Facts, **new: Any) -> None:
        """
        Fire one trigger; this alone changes the phase and who holds the participant.

        `new` replaces fields along with the move, but for those that mean nothing while it is open.
        """
        state = self._state
        known = {
            "server": self.server,
            "phase": state.phase,
            "checkpoint_id": checkpoint_id,
            "holder": state.checkpoint_id,
            "stale_ids": state.stale_ids,
            **facts,
        }
        try:
            outcome = _machine().fire(state.phase, trigger, known)
        except IllegalTransition as error:
            verdict = why_illegal(known, trigger, error.legal)
            raise ParticipantRefused(verdict.code, verdict.reason) from None
        if isinstance(outcome, Refused):
            raise ParticipantRefused(outcome.code, outcome.reason)
        if isinstance(outcome, Fired):
            self._state = _entered(state, outcome, checkpoint_id, new)

    def _fenced(self, checkpoint_id: str) -> tuple[str, ...]:
        """Return the stale ids with one more, as the latest."""
        stale_ids = self._state.stale_ids
        if checkpoint_id in stale_ids:
            stale_ids = tuple(known for known in stale_ids if known != checkpoint_id)
        return (*stale_ids, checkpoint_id)[-STALE_IDS_MAX:]

    def _require_holder(self, checkpoint_id: str) -> None:
        if not self.holds(checkpoint_id):
            raise ParticipantRefused(
                "stale_checkpoint", f"{self.server}: {checkpoint_id!r} was resumed meanwhile"
            )


def _entered(
    state: ControlState, fired: Fired, checkpoint_id: str, new: Mapping[str, Any]
) -> ControlState:
    """Return the state after a move: open again with what outlasts it, or held as before."""
    if fired.dest == _machine().chart.initial:
        kept = {name: new.get(name, getattr(state, name)) for name in _OUTLASTING}
        return ControlState(phase=fired.dest, **kept)
    if fired.dest != fired.source:
        new = {**new, "phase": fired.dest, "checkpoint_id": checkpoint_id}
    return replaced(state, new) if new else state
