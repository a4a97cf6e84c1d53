"""What one control plane answers, over the full product of its chart and beyond."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.chart import load_chart
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import ParticipantRefused
from gymckpt.participant.control import STALE_IDS_MAX, ControlPlane
from gymckpt.participant.guards import GUARDS

NOW = 1_000.0
IN_TIME, LATE = NOW + 30, NOW
"""Late is from the deadline on, not only after it."""
HOLDER, OTHER, STALE = "holder", "other", "stale"
STATES = tuple(load_chart("participant").states)
CALLS = ("prepare", "renew", "commit", "restore", "retire", "forget", "resume")
E0 = EnvironmentEpisode("r0", 0)


def plane_in(state: str) -> ControlPlane:
    """Return a plane in a state, held by HOLDER unless idle, to which STALE is fenced."""
    plane = ControlPlane("server")
    plane.resume(STALE, now_ts=NOW)
    if state in ("preparing", "prepared", "committed"):
        plane.prepare(HOLDER, deadline_ts=IN_TIME, now_ts=NOW)
    if state in ("prepared", "committed"):
        plane.ready(HOLDER)
    if state == "committed":
        plane.commit(HOLDER, "what", deadline_ts=IN_TIME, now_ts=NOW)
    if state == "restored":
        plane.restore(HOLDER, "what", deadline_ts=IN_TIME, now_ts=NOW)
    assert plane.state.phase == state
    return plane


def make_call(plane: ControlPlane, call: str, who: str, deadline_ts: float) -> Any:
    times = {"deadline_ts": deadline_ts, "now_ts": NOW}
    if call == "resume":
        return plane.resume(who, now_ts=NOW)
    if call in ("commit", "restore"):
        return getattr(plane, call)(who, "what", **times)
    if call == "retire":
        return plane.retire(who, [E0], **times)
    if call == "forget":
        return plane.forget(who, ["r0"], **times)
    return getattr(plane, call)(who, **times)


REOPENED = "idle"
ACCEPTED = {
    # state: {call: (state afterwards, whether the deadline counts)}
    "idle": {
        "prepare": ("preparing", False),
        "restore": ("restored", True),
        "retire": ("idle", True),
        "forget": ("idle", True),
    },
    "preparing": {"prepare": ("preparing", False), "renew": ("preparing", False)},
    "prepared": {
        "prepare": ("prepared", False),
        "renew": ("prepared", False),
        "commit": ("committed", True),
    },
    "committed": {
        "prepare": ("committed", False),
        "renew": ("committed", False),
        "commit": ("committed", False),
    },
    "restored": {
        "renew": ("restored", False),
        "restore": ("restored", False),
        "retire": ("restored", True),
        "forget": ("restored", True),
    },
}
"""What the protocol facts say, written down once more without the chart."""


def expected(state: str, call: str, who: str, late: bool) -> tuple[str, str]:
    held = state != "idle"
    if call == "resume":
        return "ok", REOPENED if held and who == HOLDER else state
    if who == STALE:
        return "refused", "stale_checkpoint"
    if held and who == OTHER:
        return "refused", "checkpoint_conflict"
    if call not in ACCEPTED[state]:
        return "refused", "invalid_phase"
    after, deadline_counts = ACCEPTED[state][call]
    return ("refused", "deadline_exceeded") if late and deadline_counts else ("ok", after)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("who", [HOLDER, OTHER, STALE])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("state", STATES)
def test_every_call_in_every_state(state: str, call: str, who: str, late: bool) -> None:
    """Each call moves the plane as the protocol says, or is refused with its code and no trace."""
    plane = plane_in(state)
    before = plane.state
    verdict, detail = expected(state, call, who, late)
    if verdict == "refused":
        with pytest.raises(ParticipantRefused) as caught:
            make_call(plane, call, who, LATE if late else IN_TIME)
        assert caught.value.code == detail
        assert "server" in caught.value.detail
        assert plane.state == before
        return
    make_call(plane, call, who, LATE if late else IN_TIME)
    assert plane.state.phase == detail
    assert (plane.state.lease_expires_ts is None) == (detail == "idle")
    assert (plane.state.checkpoint_id is None) == (detail == "idle")


@pytest.mark.parametrize("call", CALLS)
def test_deadlines_are_finite_numbers(call: str) -> None:
    """A deadline that is no finite number is refused as a mistake of the caller, with no trace."""
    for bad in (math.nan, math.inf, -math.inf, True, "soon", None):
        if call == "resume":
            continue
        plane = plane_in("idle")
        before = plane.state
        with pytest.raises((TypeError, ValueError), match="deadline_ts"):
            make_call(plane, call, HOLDER, bad)
        assert plane.state == before


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("bad", ["", "a/b", ".x", "x" * 129, "a\n"])
def test_ids_are_checked(call: str, bad: str) -> None:
    """An id that the wire would not carry never reaches the chart, not even in a resume."""
    plane = plane_in("idle")
    before = plane.state
    with pytest.raises(ValueError, match="checkpoint id"):
        make_call(plane, call, bad, IN_TIME)
    assert plane.state == before


def test_the_grace_is_positive() -> None:
    """A lease without grace would reopen a participant while its controller still may act."""
    for bad in (0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="grace_s"):
            ControlPlane("server", grace_s=bad)


# --- leases -------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8))
def test_a_lease_is_never_shortened(deadlines: list[float]) -> None:
    """Whatever deadlines renewals carry, the lease is the highest so far plus the grace."""
    plane = ControlPlane("server", grace_s=5e6)
    plane.prepare(HOLDER, deadline_ts=IN_TIME, now_ts=NOW)
    for count, deadline_ts in enumerate(deadlines, start=1):
        plane.renew(HOLDER, deadline_ts=deadline_ts, now_ts=NOW)
        assert plane.state.lease_expires_ts == max(IN_TIME, *deadlines[:count]) + 5e6


@pytest.mark.parametrize("state", [state for state in STATES if state != "idle"])
def test_an_expired_lease_is_a_resume(state: str) -> None:
    """At the lease's last moment the plane reopens, and the id is stale for whatever comes."""
    plane = plane_in(state)
    assert plane.expire(IN_TIME + 599.9) is None
    assert plane.state.phase == state
    assert plane.expire(IN_TIME + 600) == HOLDER
    assert plane.state.phase == "idle"
    assert plane.expire(IN_TIME + 601) is None
    with pytest.raises(ParticipantRefused) as caught:
        plane.renew(HOLDER, deadline_ts=IN_TIME + 700, now_ts=IN_TIME + 600)
    assert caught.value.code == "stale_checkpoint"


def test_any_call_notices_an_expired_lease() -> None:
    """A lease that nobody looked at does not conflict with the next checkpoint."""
    plane = plane_in("committed")
    plane.prepare(OTHER, deadline_ts=IN_TIME + 900, now_ts=IN_TIME + 600)
    assert plane.holds(OTHER)
    assert HOLDER in plane.state.stale_ids


def test_a_prepare_long_past_its_deadline_closes_and_reopens_by_itself() -> None:
    """A clock further ahead than the grace makes a lease that has run out already."""
    plane = ControlPlane("server", grace_s=10)
    plane.prepare(HOLDER, deadline_ts=NOW - 60, now_ts=NOW)
    assert not plane.is_open
    assert plane.expire(NOW) == HOLDER


# --- fencing ------------------------------------------------------------------------------------


def test_a_foreign_resume_leaves_the_holder_alone() -> None:
    """B45: the resume of a second controller fences its own id and does not reopen the first's."""
    plane = plane_in("prepared")
    assert plane.resume(OTHER, now_ts=NOW) is False
    assert plane.state.phase == "prepared"
    with pytest.raises(ParticipantRefused) as caught:
        plane.prepare(OTHER, deadline_ts=IN_TIME, now_ts=NOW)
    assert caught.value.code == "stale_checkpoint"
    plane.commit(HOLDER, "what", deadline_ts=IN_TIME, now_ts=NOW)
    assert plane.resume(HOLDER, now_ts=NOW) is True


def test_resume_is_idempotent() -> None:
    """A second resume says that nothing was reopened and changes nothing."""
    plane = plane_in("committed")
    assert plane.resume(HOLDER, now_ts=NOW) is True
    once = plane.state
    assert plane.resume(HOLDER, now_ts=NOW) is False
    assert plane.state == once


def test_the_last_64_resumed_ids_are_stale() -> None:
    """Id 65 pushes the oldest one out, and a repeated resume makes an id the youngest again."""
    plane = ControlPlane("server")
    for number in range(STALE_IDS_MAX):
        plane.resume(f"id-{number}", now_ts=NOW)
    plane.resume("id-0", now_ts=NOW)
    plane.resume("id-new", now_ts=NOW)
    assert len(plane.state.stale_ids) == STALE_IDS_MAX
    assert "id-1" not in plane.state.stale_ids
    assert {"id-0", "id-new", "id-2"} <= set(plane.state.stale_ids)


def test_a_late_prepare_after_resume_is_refused() -> None:
    """B10: a prepare that was queued until after the resume of its id closes nothing."""
    plane = ControlPlane("server")
    plane.resume(HOLDER, now_ts=NOW)
    with pytest.raises(ParticipantRefused) as caught:
        plane.prepare(HOLDER, deadline_ts=IN_TIME, now_ts=NOW)
    assert caught.value.code == "stale_checkpoint"
    assert plane.is_open


def test_a_failed_prepare_reopens_and_may_be_tried_again() -> None:
    """An error while parking reopens admission without using up the id."""
    plane = plane_in("preparing")
    plane.prepare_failed(HOLDER)
    assert plane.is_open
    assert plane.state.lease_expires_ts is None
    plane.prepare(HOLDER, deadline_ts=IN_TIME, now_ts=NOW)
    assert plane.holds(HOLDER)


# --- recorded answers ---------------------------------------------------------------------------


def test_answers_are_repeated_until_resume() -> None:
    """A call that was answered gives the same answer again, and nothing after resume."""
    plane = plane_in("prepared")
    assert plane.prepare(HOLDER, deadline_ts=IN_TIME, now_ts=NOW) is None
    plane.record("prepare", HOLDER, "parked")
    plane.record("prepare", HOLDER, "another answer")
    assert plane.prepare(HOLDER, deadline_ts=LATE, now_ts=NOW) == "parked"
    assert plane.commit(HOLDER, "what", deadline_ts=IN_TIME, now_ts=NOW) is None
    plane.record("commit", HOLDER, "written")
    assert plane.commit(HOLDER, "what", deadline_ts=LATE, now_ts=NOW) == "written"
    plane.resume(HOLDER, now_ts=NOW)
    assert plane.recorded("prepare") is None
    with pytest.raises(ParticipantRefused, match="resumed meanwhile"):
        plane.record("commit", HOLDER, "too late")


@pytest.mark.parametrize(("state", "call"), [("committed", "commit"), ("restored", "restore")])
def test_one_id_asks_for_one_thing(state: str, call: str) -> None:
    """The same id with another directory or scope is a conflict, not another commit or restore."""
    plane = plane_in(state)
    before = plane.state
    with pytest.raises(ParticipantRefused) as caught:
        getattr(plane, call)(HOLDER, "something else", deadline_ts=IN_TIME, now_ts=NOW)
    assert caught.value.code == "checkpoint_conflict"
    assert plane.state == before


def test_what_is_overtaken_cannot_become_ready() -> None:
    """A prepare that finishes waiting after its resume does not park anything."""
    plane = plane_in("preparing")
    plane.resume(HOLDER, now_ts=NOW)
    with pytest.raises(ParticipantRefused) as caught:
        plane.ready(HOLDER)
    assert caught.value.code == "stale_checkpoint"
    assert plane.is_open


# --- attempts -----------------------------------------------------------------------------------


def retire(plane: ControlPlane, attempt: int, who: str = "sweep") -> None:
    episode = EnvironmentEpisode("r0", attempt)
    plane.retire(who, [episode], deadline_ts=IN_TIME, now_ts=NOW)


def refused_code(plane: ControlPlane, attempt: int) -> str | None:
    try:
        plane.admit(EnvironmentEpisode("r0", attempt), now_ts=NOW)
    except ParticipantRefused as refused:
        return refused.code
    return None


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 7))
def test_marks_only_rise(retired: list[int], attempt: int) -> None:
    """Attempts up to the highest retired one are refused, in whatever order they were retired."""
    plane = ControlPlane("server")
    for number in retired:
        retire(plane, number)
    assert (refused_code(plane, attempt) == "stale_attempt") == (attempt <= max(retired))


def test_a_mark_lasts_until_forget_and_over_checkpoints() -> None:
    """A checkpoint in between does not lower a mark; a forget drops it."""
    plane = ControlPlane("server")
    retire(plane, 3)
    plane.prepare(HOLDER, deadline_ts=IN_TIME, now_ts=NOW)
    plane.resume(HOLDER, now_ts=NOW)
    assert refused_code(plane, 3) == "stale_attempt"
    plane.forget("sweep-2", ["r0"], deadline_ts=IN_TIME, now_ts=NOW)
    assert refused_code(plane, 0) is None


def test_an_earlier_attempt_is_refused_after_a_later_one() -> None:
    """Attempt n is stale once attempt n+1 was admitted, and attempt n+1 itself is not."""
    plane = ControlPlane("server")
    assert refused_code(plane, 1) is None
    assert refused_code(plane, 0) == "stale_attempt"
    assert refused_code(plane, 1) is None


def test_nothing_is_admitted_while_closed() -> None:
    """Admission is closed in every state but idle, also for restored attempts of others."""
    for state in STATES:
        assert refused_code(plane_in(state), 0) == (None if state == "idle" else "admission_closed")


def test_only_the_holder_installs() -> None:
    """Only the restore that holds the plane installs, and what it installs overtakes."""
    plane = plane_in("restored")
    with pytest.raises(ParticipantRefused, match="stale_checkpoint"):
        plane.install(OTHER, [EnvironmentEpisode("r0", 1)])
    plane.install(HOLDER, [EnvironmentEpisode("r0", 1)])
    plane.resume(HOLDER, now_ts=NOW)
    assert refused_code(plane, 0) == "stale_attempt"


def test_a_retired_next_attempt_cannot_be_installed() -> None:
    """After a discarded restore attempt n+1 is refused: the rollout starts over as n+2 or later."""
    plane = plane_in("restored")
    plane.retire(HOLDER, [EnvironmentEpisode("r0", 1)], deadline_ts=IN_TIME, now_ts=NOW)
    with pytest.raises(ParticipantRefused, match="start the rollout over as attempt 2"):
        plane.install(HOLDER, [EnvironmentEpisode("r0", 1)])


def test_a_retire_that_asks_for_nothing_new_is_done() -> None:
    """A retire repeated after the resume of its restore is confirmed; one that adds is stale."""
    plane = plane_in("restored")
    retire(plane, 1, HOLDER)
    plane.resume(HOLDER, now_ts=NOW)
    before = plane.state
    plane.retire(HOLDER, [EnvironmentEpisode("r0", 1)], deadline_ts=LATE, now_ts=NOW)
    assert plane.state == before
    with pytest.raises(ParticipantRefused) as caught:
        retire(plane, 2, HOLDER)
    assert caught.value.code == "stale_checkpoint"


@given(holder=st.sampled_from([None, "a", "b"]), stale=st.booleans())
def test_a_resume_always_has_exactly_one_edge(holder: str | None, stale: bool) -> None:
    """An id either holds the plane or does not: the two guards of a resume never agree."""
    facts = {
        "server": "server", "phase": "prepared", "checkpoint_id": "a", "holder": holder,
        "stale_ids": ("a",) if stale else (),
    }  # fmt: skip
    assert GUARDS["same_id"](facts).allowed != GUARDS["other_id"](facts).allowed
