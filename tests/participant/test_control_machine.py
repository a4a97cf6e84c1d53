"""The control plane beside a plain model, through any history that Hypothesis can think of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from gymckpt.chart import load_chart
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import ParticipantRefused
from gymckpt.participant.control import STALE_IDS_MAX, ControlPlane
from gymckpt.testing.counted_rules import run_again

GRACE_S = 20.0
WHO = st.sampled_from(["holder", "holder", "holder", "nobody yet", "a", "b"])
"""Whoever holds the participant, an id never seen, or one of two that are soon stale."""
AHEAD_S = st.sampled_from([5.0, 50.0, 50.0, 0.0, -30.0])
REQUESTS = st.sampled_from(["here", "there"])
ROUNDS_MAX = 20
"""An edge that is hard to meet gets this many chances; two rounds are usually enough."""
ROLLOUTS = st.sampled_from(["r0", "r1"])
ATTEMPTS = st.integers(0, 4)


class Model(RuleBasedStateMachine):
    """What a participant remembers, in plain variables, and what it must answer."""

    taken: ClassVar[set[tuple[str, str, str]]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.plane = ControlPlane("server", grace_s=GRACE_S)
        self.now = 1_000.0
        self.ids = 0
        self.phase = "idle"
        self.holder: str | None = None
        self.lease: float | None = None
        self.stale: list[str] = []
        self.requests: dict[str, str] = {}
        self.answers: dict[str, str] = {}
        self.marks: dict[str, int] = {}
        self.newest: dict[str, int] = {}

    @initialize(state=st.sampled_from(list(load_chart("participant").states)))
    def begin(self, state: str) -> None:
        """Start in any state, through the calls that lead there."""
        if state in ("preparing", "prepared", "committed"):
            self.prepare("holder", 50.0)
        if state in ("prepared", "committed"):
            self.parking_ends(failed=False)
        if state in ("committed", "restored"):
            call = "commit" if state == "committed" else "restore"
            self.commit_or_restore(call, "holder", 50.0, "here")
        assert self.phase == state

    def named(self, who: str) -> str:
        if who in ("a", "b") or (who == "holder" and self.holder is not None):
            return who if self.holder is None or who != "holder" else self.holder
        self.ids += 1
        return f"id-{self.ids}"

    # --- the model --------------------------------------------------------------------------

    def reopen(self, trigger: str, fence: str | None) -> None:
        self.taken.add((self.phase, trigger, "idle"))
        self.phase, self.holder, self.lease = "idle", None, None
        self.requests, self.answers = {}, {}
        if fence is not None:
            self.fence(fence)

    def fence(self, checkpoint_id: str) -> None:
        self.stale = [known for known in self.stale if known != checkpoint_id]
        self.stale = [*self.stale, checkpoint_id][-STALE_IDS_MAX:]

    def lapse(self) -> None:
        if self.lease is not None and self.now >= self.lease:
            self.reopen("expire", self.holder)

    def verdict(self, call: str, who: str, deadline: float, legal: dict[str, bool]) -> str | None:
        """Return the code of the refusal; `legal` maps a phase to whether the deadline counts."""
        if who != self.holder:
            if who in self.stale:
                return "stale_checkpoint"
            if self.holder is not None:
                return "checkpoint_conflict"
        if self.phase not in legal:
            return "invalid_phase"
        return "deadline_exceeded" if legal[self.phase] and self.now >= deadline else None

    def go(self, trigger: str, dest: str, who: str, deadline: float) -> None:
        self.taken.add((self.phase, trigger, dest))
        self.phase = dest
        if dest != "idle":
            self.holder = who
            lease = deadline + GRACE_S
            self.lease = lease if self.lease is None else max(self.lease, lease)

    def compare(self, code: str | None, call: Callable[[], Any]) -> Any:
        """Make the real call: it must be refused with `code`, and then change nothing."""
        before = self.plane.state
        if code is None:
            return call()
        with pytest.raises(ParticipantRefused) as caught:
            call()
        assert caught.value.code == code
        if before.lease_expires_ts is None or self.now < before.lease_expires_ts:
            assert self.plane.state == before
        return None

    # --- calls ------------------------------------------------------------------------------

    @rule(by=st.sampled_from([0.5, 1.0, 10.0, 80.0]))
    def time_passes(self, by: float) -> None:
        self.now += by

    @rule()
    def the_lease_is_looked_at(self) -> None:
        expected = self.holder if self.lease is not None and self.now >= self.lease else None
        assert self.plane.expire(self.now) == expected
        self.lapse()

    @rule(who=WHO, ahead=AHEAD_S)
    def prepare(self, who: str, ahead: float) -> None:
        who = self.named(who)
        self.lapse()
        deadline = self.now + ahead
        phases = dict.fromkeys(("idle", "preparing", "prepared", "committed"), False)
        code = self.verdict("prepare", who, deadline, phases)
        answer = self.compare(
            code, lambda: self.plane.prepare(who, deadline_ts=deadline, now_ts=self.now)
        )
        if code is None:
            assert answer == self.answers.get("prepare")
            self.go("prepare", "preparing" if self.phase == "idle" else self.phase, who, deadline)

    @precondition(lambda self: self.phase == "preparing")
    @rule(failed=st.booleans())
    def parking_ends(self, failed: bool) -> None:
        assert self.holder is not None
        if failed:
            self.plane.prepare_failed(self.holder)
            self.reopen("prepare_failed", None)
        else:
            self.plane.ready(self.holder)
            self.taken.add((self.phase, "ready", "prepared"))
            self.phase = "prepared"

    @rule(who=WHO, ahead=AHEAD_S)
    def renew(self, who: str, ahead: float) -> None:
        who = self.named(who)
        self.lapse()
        deadline = self.now + ahead
        phases = dict.fromkeys(("preparing", "prepared", "committed", "restored"), False)
        code = self.verdict("renew", who, deadline, phases)
        self.compare(code, lambda: self.plane.renew(who, deadline_ts=deadline, now_ts=self.now))
        if code is None:
            self.go("renew", self.phase, who, deadline)

    @rule(call=st.sampled_from(["commit", "restore"]), who=WHO, ahead=AHEAD_S, request=REQUESTS)
    def commit_or_restore(self, call: str, who: str, ahead: float, request: str) -> None:
        who = self.named(who)
        self.lapse()
        deadline = self.now + ahead
        first, after = ("prepared", "committed") if call == "commit" else ("idle", "restored")
        code = self.verdict(call, who, deadline, {first: True, after: False})
        if code is None and self.requests.get(call, request) != request:
            code = "checkpoint_conflict"
        answer = self.compare(
            code,
            lambda: getattr(self.plane, call)(who, request, deadline_ts=deadline, now_ts=self.now),
        )
        if code is None:
            assert answer == self.answers.get(call)
            self.go(call, after, who, deadline)
            self.requests[call] = request

    @rule(call=st.sampled_from(["prepare", "commit", "restore"]), who=WHO, answer=REQUESTS)
    def an_answer_is_recorded(self, call: Any, who: str, answer: str) -> None:
        who = self.named(who)
        code = None if who == self.holder else "stale_checkpoint"
        self.compare(code, lambda: self.plane.record(call, who, answer))
        if code is None:
            self.answers.setdefault(call, answer)

    @rule(who=WHO)
    def resume(self, who: str) -> None:
        who = self.named(who)
        self.lapse()
        held = self.holder == who
        assert self.plane.resume(who, now_ts=self.now) is held
        if held:
            self.reopen("resume", who)
        else:
            self.taken.add((self.phase, "resume", self.phase))
            self.fence(who)

    @rule(who=WHO, ahead=AHEAD_S, rollout=ROLLOUTS, attempt=ATTEMPTS)
    def retire(self, who: str, ahead: float, rollout: str, attempt: int) -> None:
        who = self.named(who)
        self.lapse()
        deadline = self.now + ahead
        code = self.verdict("retire", who, deadline, {"idle": True, "restored": True})
        if self.phase == "idle" and attempt <= self.marks.get(rollout, -1):
            code = None
        episode = EnvironmentEpisode(rollout, attempt)
        self.compare(
            code,
            lambda: self.plane.retire(who, [episode], deadline_ts=deadline, now_ts=self.now),
        )
        if code is None:
            self.go("retire", self.phase, who, deadline)
            self.marks[rollout] = max(attempt, self.marks.get(rollout, -1))

    @rule(who=WHO, ahead=AHEAD_S, rollout=ROLLOUTS)
    def forget(self, who: str, ahead: float, rollout: str) -> None:
        who = self.named(who)
        self.lapse()
        deadline = self.now + ahead
        code = self.verdict("forget", who, deadline, {"idle": True, "restored": True})
        self.compare(
            code,
            lambda: self.plane.forget(who, [rollout], deadline_ts=deadline, now_ts=self.now),
        )
        if code is None:
            self.go("forget", self.phase, who, deadline)
            self.marks.pop(rollout, None)
            self.newest.pop(rollout, None)

    @rule(rollout=ROLLOUTS, attempt=ATTEMPTS, who=st.none() | WHO)
    def an_attempt_begins(self, rollout: str, attempt: int, who: str | None) -> None:
        """Dispatched where `who` is None, else installed by that restore."""
        who = None if who is None else self.named(who)
        episode = EnvironmentEpisode(rollout, attempt)
        if who is None:
            self.lapse()
            code = None if self.phase == "idle" else "admission_closed"
        else:
            code = None if who == self.holder else "stale_checkpoint"
        refused = attempt <= self.marks.get(rollout, -1) or attempt < self.newest.get(rollout, -1)
        if code is None and refused:
            code = "stale_attempt"
        if who is None:
            self.compare(code, lambda: self.plane.admit(episode, now_ts=self.now))
        else:
            self.compare(code, lambda: self.plane.install(who, [episode]))
        if code is None:
            self.newest[rollout] = attempt

    @rule()
    def it_restarts_empty(self) -> None:
        """The actor crashes and comes back: of what it knew nothing is left, not even the fence."""
        self.plane = ControlPlane("server", grace_s=GRACE_S)
        self.phase, self.holder, self.lease, self.stale = "idle", None, None, []
        self.requests, self.answers, self.marks, self.newest = {}, {}, {}, {}

    # --- what always holds ------------------------------------------------------------------

    @invariant()
    def the_plane_is_the_model(self) -> None:
        state = self.plane.state
        assert state.phase == self.phase
        assert state.checkpoint_id == self.holder
        assert state.lease_expires_ts == self.lease
        assert list(state.stale_ids) == self.stale
        assert dict(state.answers) == self.answers
        assert dict(state.marks) == self.marks
        assert dict(state.newest) == self.newest

    @invariant()
    def open_means_held_by_nobody(self) -> None:
        state = self.plane.state
        held = (state.checkpoint_id is not None, state.lease_expires_ts is not None)
        assert held == (not self.plane.is_open, not self.plane.is_open)
        assert state.checkpoint_id not in state.stale_ids


def test_any_history_is_the_models() -> None:
    """Whatever is asked in whatever order, the plane answers as the model, over every edge."""
    chart = load_chart("participant")
    declared = {
        (state.name, trigger, edge.to)
        for state in chart.states.values()
        for trigger, edges in state.on.items()
        for edge in edges
    }
    Model.taken.clear()
    for number in range(ROUNDS_MAX):
        run_again(Model, number, settings(max_examples=40, stateful_step_count=30, deadline=None))
        if declared <= Model.taken:
            break
    assert sorted(declared - Model.taken) == []
    assert sorted(Model.taken - declared) == []
