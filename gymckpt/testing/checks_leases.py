"""
The instance contract, level faulty: a silent controller, late calls, clocks that are set.

An instance reopens by itself when nobody renews its lease, and never earlier.
"""

from __future__ import annotations

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import show
from gymckpt.testing.case import DEADLINE_S, Case, CheckBody
from gymckpt.testing.instance import expect

__all__ = ["CHECKS"]

CHECKS: list[CheckBody] = []
"""The checks of this module, in the order in which they are reported."""

A, B = (EnvironmentEpisode(name, 0) for name in ("r-a", "r-b"))

HAIR_S = 1.0
"""How near to a deadline or the end of a lease the checks go."""


def _check(body: CheckBody) -> CheckBody:
    CHECKS.append(body)
    return body


# --- leases -------------------------------------------------------------------------------------


@_check
async def the_lease_lasts(case: Case) -> None:
    """It stays parked until the last deadline and the grace have passed."""
    await case.play(A)
    await case.park(A)
    await case.one.advance(DEADLINE_S + case.one.grace_s - HAIR_S)
    await case.expect_still([A], "before its lease has run out")


@_check
async def the_lease_ends(case: Case) -> None:
    """It reopens by itself when its controller has been silent for the lease."""
    await case.play(A)
    await case.park(A)
    await case.one.advance(DEADLINE_S + case.one.grace_s + HAIR_S)
    await case.expect_running([A], "after its lease has run out")
    await case.expect_open("after its lease has run out")


@_check
async def a_lapsed_id_is_stale(case: Case) -> None:
    """An id whose lease ran out is refused from then on."""
    await case.play(A)
    await case.park(A)
    await case.one.advance(DEADLINE_S + case.one.grace_s + HAIR_S)
    await case.refused(case.renew(), "renew of an id whose lease ran out")
    await case.refused(case.commit(A), "commit of an id whose lease ran out")
    await case.refused(case.prepare(), "prepare of an id whose lease ran out")


@_check
async def an_unfinished_prepare_lapses(case: Case) -> None:
    """It reopens by itself also when it was never parked."""
    await case.play(A)
    await case.prepare(by_s=-1.0)
    await case.one.advance(case.one.grace_s + HAIR_S)
    await case.one.turn(A)
    await case.expect_running([A], "after the lease of an unfinished prepare has run out")


@_check
async def renewing_extends_the_lease(case: Case) -> None:
    """A renewal lets the lease last until its own deadline and the grace."""
    await case.play(A)
    await case.park(A)
    await case.renew(by_s=10 * DEADLINE_S)
    await case.one.advance(DEADLINE_S + case.one.grace_s + HAIR_S)
    await case.expect_still([A], "before its renewed lease has run out")


@_check
async def prepare_again_extends_the_lease(case: Case) -> None:
    """A prepare that is repeated lets the lease last until its own deadline and the grace."""
    await case.play(A)
    await case.park(A)
    await case.prepare(by_s=10 * DEADLINE_S)
    await case.one.advance(DEADLINE_S + case.one.grace_s + HAIR_S)
    await case.expect_still([A], "before the lease that a repeated prepare extended has run out")


@_check
async def a_lease_is_never_shortened(case: Case) -> None:
    """A renewal with an earlier deadline changes nothing."""
    await case.play(A)
    await case.park(A)
    await case.renew(by_s=HAIR_S)
    await case.renew(by_s=-DEADLINE_S)
    await case.one.advance(DEADLINE_S + case.one.grace_s - HAIR_S)
    await case.expect_still([A], "before its lease has run out, which a renewal shortened")


@_check
async def commit_extends_the_lease(case: Case) -> None:
    """A commit lets the lease last until its own deadline and the grace."""
    await case.play(A)
    await case.park(A)
    await case.commit(A, by_s=10 * DEADLINE_S)
    await case.one.advance(DEADLINE_S + case.one.grace_s + HAIR_S)
    await case.expect_still([A], "before the lease that a commit extended has run out")


@_check
async def a_restore_lapses(case: Case) -> None:
    """Restored attempts go on by themselves when the controller has been silent for the lease."""
    summary = await case.saved(A)
    other = await case.another()
    await case.restore(A, participants=summary.participants, on=other)
    await other.advance(DEADLINE_S + other.grace_s + HAIR_S)
    await case.expect_running([A.next_attempt()], "after the lease has run out", other)
    again = case.restore(A, participants=summary.participants, on=other)
    await case.refused(again, "restore under an id whose lease ran out")


@_check
async def renewing_extends_a_restore(case: Case) -> None:
    """A renewal lets the lease of a restore last until its own deadline and the grace."""
    summary = await case.saved(A)
    other = await case.another()
    await case.restore(A, participants=summary.participants, on=other)
    await case.renew("x1", by_s=10 * DEADLINE_S, on=other)
    await other.advance(DEADLINE_S + other.grace_s + HAIR_S)
    await case.expect_still([A.next_attempt()], "before its renewed lease has run out", other)


@_check
async def retire_extends_a_restore(case: Case) -> None:
    """A retire under a restore's id lets its lease last until its own deadline and the grace."""
    summary = await case.saved(A)
    other = await case.another()
    await case.restore(A, participants=summary.participants, on=other)
    await case.retire(B, sweep_id="x1", by_s=10 * DEADLINE_S, on=other)
    await other.advance(DEADLINE_S + other.grace_s + HAIR_S)
    when = "before the lease that a retire extended has run out"
    await case.expect_still([A.next_attempt()], when, other)


# --- deadlines and clocks -----------------------------------------------------------------------


@_check
async def a_late_commit_is_refused_by_its_deadline(case: Case) -> None:
    """A commit whose deadline has passed is refused, and may be made again with a later one."""
    await case.play(A)
    await case.park(A)
    await case.refused(case.commit(A, by_s=-HAIR_S), "commit after its deadline")
    answer = await case.commit(A)
    expect(answer.exported_episodes == (A,), f"it exported {show(answer.exported_episodes)}")


@_check
async def a_late_restore_is_refused_by_its_deadline(case: Case) -> None:
    """A restore whose deadline has passed is refused, installs nothing and closes nothing."""
    summary = await case.saved(A)
    other = await case.another()
    late = case.restore(A, participants=summary.participants, by_s=-HAIR_S, on=other)
    await case.refused(late, "restore after its deadline")
    await case.expect_still([A.next_attempt()], "though its restore was refused", other)
    await case.expect_open("after a restore that was refused", other)


@_check
async def a_late_retire_is_refused_by_its_deadline(case: Case) -> None:
    """A retire whose deadline has passed is refused, and stops nothing."""
    await case.play(A)
    await case.refused(case.retire(A, by_s=-HAIR_S), "retire after its deadline")
    await case.expect_running([A], "though its retire was refused")


@_check
async def a_late_forget_is_refused_by_its_deadline(case: Case) -> None:
    """A forget whose deadline has passed is refused, and forgets nothing."""
    await case.retire(A)
    await case.refused(case.forget(A.rollout_id, by_s=-HAIR_S), "forget after its deadline")
    await case.one.start(A)
    await case.expect_still([A], "though its forget was refused")


@_check
async def a_resume_is_never_late(case: Case) -> None:
    """A resume reopens, whatever its deadline."""
    await case.play(A)
    await case.park(A)
    await case.resume(by_s=-10 * DEADLINE_S)
    await case.expect_running([A], "after a resume whose deadline had passed")


@_check
async def deadlines_are_by_its_own_clock(case: Case) -> None:
    """A deadline that has passed by the instance's own clock is late, whoever's was meant."""
    await case.play(A)
    await case.park(A)
    meant = case.in_s()
    await case.one.step_clock(2 * DEADLINE_S)
    late = case.commit(A, by_s=meant - case.one.now_ts())
    await case.refused(late, "commit whose deadline is past by the instance's clock")
    await case.expect_still([A], "after its clock was set forward within the lease")


@_check
async def a_clock_set_forward_ends_the_lease(case: Case) -> None:
    """When its clock is set past the end of the lease, the id is refused at its next call."""
    await case.play(A)
    await case.park(A)
    await case.one.step_clock(DEADLINE_S + case.one.grace_s + HAIR_S)
    await case.refused(case.renew(), "renew after the clock was set past the lease")
    await case.expect_running([A], "after the clock was set past the lease")


@_check
async def a_clock_set_back_breaks_nothing(case: Case) -> None:
    """When its clock is set back while it is parked, it can be committed and reopened."""
    await case.play(A)
    await case.park(A)
    await case.one.step_clock(-10 * DEADLINE_S)
    answer = await case.commit(A)
    expect(answer.exported_episodes == (A,), f"it exported {show(answer.exported_episodes)}")
    await case.expect_still([A], "after its clock was set back")
    await case.resume()
    await case.expect_running([A], "after resume with its clock set back")
