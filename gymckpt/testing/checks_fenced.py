"""
The instance contract, level fenced: what is stale, foreign or out of turn is refused.

A refusal changes nothing.
"""

from __future__ import annotations

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.testing.case import Case, CheckBody, files_below
from gymckpt.testing.instance import expect

__all__ = ["CHECKS"]

CHECKS: list[CheckBody] = []
"""The checks of this module, in the order in which they are reported."""

A = EnvironmentEpisode("r-a", 0)


def _check(body: CheckBody) -> CheckBody:
    CHECKS.append(body)
    return body


# --- ids that were resumed ----------------------------------------------------------------------


@_check
async def a_late_prepare_is_refused(case: Case) -> None:
    """A prepare that comes after the resume of its id is refused, and closes nothing."""
    await case.park()
    await case.resume()
    await case.refused(case.prepare(), "prepare of an id that was resumed")
    await case.expect_open("after a prepare that came too late")


@_check
async def an_unknown_id_is_fenced(case: Case) -> None:
    """A resume of an id that the instance never saw makes a later prepare of it be refused."""
    await case.resume("never-seen")
    await case.refused(case.prepare("never-seen"), "prepare of an id that was resumed unseen")
    await case.expect_open("after a prepare that came too late")


@_check
async def a_late_renew_is_refused(case: Case) -> None:
    """A renewal of an id that was resumed is refused."""
    await case.park()
    await case.resume()
    await case.refused(case.renew(), "renew of an id that was resumed")


@_check
async def a_late_commit_is_refused(case: Case) -> None:
    """A commit of an id that was resumed is refused, and writes nothing."""
    await case.play(A)
    await case.park(A)
    await case.resume()
    await case.refused(case.commit(A), "commit of an id that was resumed")
    files = list(files_below(case.root))
    expect(not files, f"the refused commit wrote {files[:3]}")


@_check
async def a_late_restore_is_refused(case: Case) -> None:
    """A restore whose id was resumed is refused, and installs nothing."""
    summary = await case.saved(A)
    other = await case.another()
    await case.resume("x1", on=other)
    late = case.restore(A, participants=summary.participants, on=other)
    await case.refused(late, "restore under an id that was resumed")
    await case.expect_still([A.next_attempt()], "though its restore was refused", other)
    await case.expect_open("after a restore that came too late", other)


@_check
async def an_answered_id_is_stale_after_resume(case: Case) -> None:
    """A commit that was answered is not answered again when its id was resumed."""
    await case.saved(A)
    await case.refused(case.commit(A), "commit of an id that was resumed, once answered")


@_check
async def ids_stay_stale(case: Case) -> None:
    """An id is still refused after eight later checkpoints."""
    for number in range(8):
        await case.park(checkpoint_id=f"c{number}")
        await case.resume(f"c{number}")
    for number in (0, 7):
        await case.refused(case.prepare(f"c{number}"), f"prepare of the stale id c{number}")


@_check
async def a_resume_ends_a_waiting_prepare(case: Case) -> None:
    """A prepare that still waits ends when its id is resumed, and not as parked."""
    await case.play(A)
    preparing = case.begin(case.prepare())
    await case.one.settle()
    await case.resume()
    await case.one.settle()
    expect(preparing.done(), "the prepare still waits after the resume of its id")
    parked = preparing.exception() is None and preparing.result().prepared
    expect(not parked, "the prepare says that the instance is parked, its id was resumed")


# --- one holder ---------------------------------------------------------------------------------


@_check
async def another_resume_leaves_the_holder(case: Case) -> None:
    """A resume of another id does not reopen the instance."""
    await case.play(A)
    await case.park(A)
    await case.resume("another")
    await case.expect_still([A], "after the resume of another id")
    await case.expect_closed("after the resume of another id")


@_check
async def another_resume_leaves_a_restore(case: Case) -> None:
    """A resume of another id does not let restored attempts go."""
    summary = await case.saved(A)
    other = await case.another()
    await case.restore(A, participants=summary.participants, on=other)
    await case.resume("another", on=other)
    await case.expect_still([A.next_attempt()], "after the resume of another id", other)


@_check
async def another_prepare_is_refused(case: Case) -> None:
    """A prepare of another id is refused while one holds the instance, which it goes on to do."""
    await case.play(A)
    await case.park(A)
    await case.refused(case.prepare("c2"), "prepare of a second id")
    await case.commit(A)
    await case.resume()
    await case.expect_running([A], "after the resume of the id that held the instance")


@_check
async def another_renew_is_refused(case: Case) -> None:
    """A renewal of an id that does not hold the instance is refused."""
    await case.park()
    await case.refused(case.renew("c2"), "renew of an id that does not hold the instance")


@_check
async def another_commit_is_refused(case: Case) -> None:
    """A commit of an id that does not hold the instance is refused, and writes nothing."""
    await case.play(A)
    await case.park(A)
    foreign = case.commit(A, checkpoint_id="c2")
    await case.refused(foreign, "commit of an id that does not hold the instance")
    files = list(files_below(case.root))
    expect(not files, f"the refused commit wrote {files[:3]}")


@_check
async def another_restore_is_refused(case: Case) -> None:
    """A restore is refused while a checkpoint holds the instance, and installs nothing."""
    summary = await case.saved(A)
    other = await case.another()
    await case.park(checkpoint_id="c2", on=other)
    restoring = case.restore(A, participants=summary.participants, on=other)
    await case.refused(restoring, "restore while a checkpoint holds the instance")
    await case.resume("c2", on=other)
    await case.expect_still([A.next_attempt()], "though its restore was refused", other)
    await case.expect_open("after the resume of the checkpoint", other)


@_check
async def a_restored_instance_takes_no_prepare(case: Case) -> None:
    """A prepare is refused while a restore holds the instance."""
    summary = await case.saved(A)
    other = await case.another()
    await case.restore(A, participants=summary.participants, on=other)
    await case.refused(case.prepare("c2", on=other), "prepare while a restore holds the instance")
    await case.expect_still([A.next_attempt()], "after a prepare that was refused", other)


# --- out of turn --------------------------------------------------------------------------------


@_check
async def renew_needs_prepare(case: Case) -> None:
    """A renewal is refused when nothing was prepared, and closes nothing."""
    await case.refused(case.renew(), "renew without prepare")
    await case.expect_open("after a renewal that was refused")


@_check
async def commit_needs_prepare(case: Case) -> None:
    """A commit is refused when nothing was prepared, and writes nothing."""
    await case.play(A)
    await case.refused(case.commit(A), "commit without prepare")
    files = list(files_below(case.root))
    expect(not files, f"the refused commit wrote {files[:3]}")


@_check
async def commit_needs_parked_episodes(case: Case) -> None:
    """A commit is refused while an episode is inside a turn."""
    await case.play(A)
    answer = await case.prepare(by_s=-1.0)
    expect(not answer.prepared, "it says that it is parked, an episode is inside a turn")
    await case.refused(case.commit(A), "commit of an instance that is not parked")


@_check
async def a_restore_is_not_committed(case: Case) -> None:
    """A commit under a restore's id is refused."""
    summary = await case.saved(A)
    other = await case.another()
    await case.restore(A, participants=summary.participants, on=other)
    committing = case.commit(
        A.next_attempt(), checkpoint_id="x1", root=case.root / "second", on=other
    )
    await case.refused(committing, "commit under a restore's id")
