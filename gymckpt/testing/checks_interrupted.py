"""
The instance contract, level faulty: callers that go away, writes that are stopped or slow.

What was given up publishes nothing, and what goes on is answered to whoever asks again.
"""

from __future__ import annotations

import asyncio

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import show
from gymckpt.testing.case import DEADLINE_S, LATE_S, Case, CheckBody
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


# --- cancelled and stopped calls ----------------------------------------------------------------


@_check
async def a_cancelled_prepare_can_be_repeated(case: Case) -> None:
    """A prepare whose caller went away leaves the id good for the next."""
    await case.play(A)
    preparing = case.begin(case.prepare())
    await case.one.settle()
    preparing.cancel()
    await case.one.settle()
    await case.park(A)
    await case.resume()
    await case.expect_running([A], "after a prepare that was cancelled, repeated and resumed")


@_check
async def a_cancelled_prepare_can_be_resumed(case: Case) -> None:
    """A prepare whose caller went away is undone by a resume."""
    await case.play(A)
    preparing = case.begin(case.prepare())
    await case.one.settle()
    preparing.cancel()
    await case.resume()
    await case.one.turn(A)
    await case.expect_running([A], "after a prepare that was cancelled, and its resume")
    await case.expect_open("after a prepare that was cancelled, and its resume")


@_check
async def a_cancelled_commit_can_be_repeated(case: Case) -> None:
    """A commit whose caller went away is answered when it is asked for again."""
    await case.play(A)
    await case.park(A)
    await case.one.hold_storage()
    committing = case.begin(case.commit(A))
    await case.one.settle()
    committing.cancel()
    await case.one.settle()
    await case.one.free_storage()
    answer = await case.commit(A)
    expect(answer.exported_episodes == (A,), f"it exported {show(answer.exported_episodes)}")


@_check
async def a_commit_that_is_stopped_publishes_nothing(case: Case) -> None:
    """A commit whose id is resumed while it writes fails, and nothing can be restored from it."""
    answer = await case.participants()
    await case.play(A)
    await case.park(A)
    await case.one.hold_storage()
    committing = case.begin(case.commit(A))
    await case.one.settle()
    resuming = case.begin(case.resume())
    await case.one.settle()
    await case.one.free_storage()
    await resuming
    await case.fails(committing, "commit whose id was resumed while it wrote")
    await case.expect_unpublished(A, participants=answer, what="a checkpoint that was given up")
    await case.expect_running([A], "after the resume of a commit under way")


@_check
async def a_commit_that_lapses_publishes_nothing(case: Case) -> None:
    """A commit whose lease runs out while it writes fails, and nothing can be restored from it."""
    answer = await case.participants()
    await case.play(A)
    await case.park(A)
    await case.one.hold_storage()
    committing = case.begin(case.commit(A))
    await case.one.settle()
    await case.one.advance(DEADLINE_S + case.one.grace_s + HAIR_S)
    await case.one.free_storage()
    await case.fails(committing, "commit whose lease ran out while it wrote")
    await case.resume()
    await case.expect_unpublished(A, participants=answer, what="a checkpoint whose lease ran out")
    await case.expect_running([A], "after the lease of a commit under way has run out")


@_check
async def a_slow_commit_holds_up_no_other_call(case: Case) -> None:
    """While files are being written, renewals are answered and the instance stays parked."""
    await case.play(A)
    await case.park(A)
    await case.one.hold_storage()
    committing = case.begin(case.commit(A))
    await case.one.settle()
    await case.renew()
    await case.expect_still([A], "while its files are being written")
    await case.one.free_storage()
    expect((await committing).exported_episodes == (A,), "the slow commit exported otherwise")


@_check
async def equal_commits_write_together(case: Case) -> None:
    """A commit that is repeated while the first one writes gets the same answer."""
    await case.play(A)
    await case.park(A)
    await case.one.hold_storage()
    both = [case.begin(case.commit(A)) for _ in range(2)]
    await case.one.settle()
    await case.one.free_storage()
    first, second = await both[0], await both[1]
    expect(first == second, f"one was answered {first}, the other {second}")


@_check
async def another_commit_joins_none_that_writes(case: Case) -> None:
    """A commit of the same id with other arguments is refused while the first one writes too."""
    await case.play(A, B)
    await case.park(A, B)
    await case.one.hold_storage()
    committing = case.begin(case.commit(A))
    await case.one.settle()
    others = case.begin(case.commit(A, B)), case.begin(case.commit(A, root=case.root / "elsewhere"))
    await case.one.settle()
    await case.one.free_storage()
    for other, what in zip(others, ("with other episodes", "elsewhere"), strict=True):
        await case.refused(other, f"commit of the same id {what}, while it writes")
    answer = await committing
    expect(answer.exported_episodes == (A,), f"it exported {show(answer.exported_episodes)}")


@_check
async def a_commit_that_was_too_slow_is_collected_later(case: Case) -> None:
    """A commit that is not done by its deadline fails then, and the same call gets it later."""
    await case.play(A)
    await case.park(A)
    await case.one.hold_storage()
    committing = case.begin(case.commit(A))
    await case.one.settle()
    await case.one.advance(DEADLINE_S + HAIR_S)
    await case.one.settle()
    expect(committing.done(), "the commit still waits though its deadline has passed")
    await case.refused(committing, "commit that was not done by its deadline")
    await case.one.free_storage()
    answer = await case.commit(A)
    expect(answer.exported_episodes == (A,), f"it exported {show(answer.exported_episodes)}")


@_check
async def a_restore_that_is_stopped_installs_nothing(case: Case) -> None:
    """A restore whose id is resumed while it reads either fails for good or has been done."""
    summary = await case.saved(A)
    other = await case.another()
    restoring = case.begin(case.restore(A, participants=summary.participants, on=other))
    await asyncio.sleep(0)  # it leaves first, and the resume comes while it is at work
    await case.resume("x1", on=other)
    await asyncio.wait([restoring])
    if restoring.exception() is None:
        await case.expect_running([A.next_attempt()], "after its restore was resumed", other)
        return
    await asyncio.sleep(LATE_S)
    await case.expect_still([A.next_attempt()], "though its restore has failed", other)
    await case.expect_open("after the resume of a restore under way", other)


@_check
async def a_waiting_prepare_ends_at_its_deadline(case: Case) -> None:
    """A prepare that waits for a turn is answered at its deadline."""
    await case.play(A)
    preparing = case.begin(case.prepare())
    await case.one.settle()
    await case.one.advance(DEADLINE_S + HAIR_S)
    await case.one.settle()
    expect(preparing.done(), "prepare still waits though its deadline has passed")
    expect(not (await preparing).prepared, "it says that it is parked, a turn has not ended")


@_check
async def what_waits_at_the_gate_can_be_retired(case: Case) -> None:
    """A dispatch that came while the instance was parked is stopped by a retire."""
    await case.park()
    await case.one.start(A)
    await case.resume()
    await case.retire(A)
    await case.expect_still([A], "after it was retired")
