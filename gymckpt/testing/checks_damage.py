"""
The instance contract, level faulty: errors that must travel, bad disks, damaged files.

Nothing is continued that is not exactly what was saved.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import cast

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import show
from gymckpt.testing.case import Case, CheckBody, files_below
from gymckpt.testing.faults import UnpicklableError
from gymckpt.testing.instance import expect

__all__ = ["CHECKS"]

CHECKS: list[CheckBody] = []
"""The checks of this module, in the order in which they are reported."""

A, B = (EnvironmentEpisode(name, 0) for name in ("r-a", "r-b"))


def _check(body: CheckBody) -> CheckBody:
    CHECKS.append(body)
    return body


# --- bad disks and errors -----------------------------------------------------------------------


def _as_raised(error: Exception, what: str) -> Exception:
    """
    Return what the instance raised.

    Ray hands out an error of a class that it makes on the spot, of the raised class and its own,
    with the raised error inside; where that could not travel, the class is Ray's alone.
    """
    names = [kind.__name__ for kind in type(error).__mro__]
    if "RayError" not in names:
        return error
    carried = names[0].startswith("RayTaskError(")
    expect(carried, f"{what} has lost its type on the way: {show(str(error))}")
    return cast("Exception", getattr(error, "cause", error))


def _travelled(error: Exception, what: str) -> Exception:
    error = _as_raised(error, what)
    try:
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - of this very process
    except Exception as reason:
        raise AssertionError(f"{what} cannot be pickled: {show(str(reason))}") from reason
    expect(type(again) is type(error), f"{what} becomes a {type(again).__name__} when pickled")
    expect(str(again) == str(error), f"{what} says something else after pickling")
    return error


@_check
async def refusals_travel(case: Case) -> None:
    """A refusal crosses processes with its type and its text, and the text says something."""
    await case.park()
    await case.resume()
    refusal = await case.refused(case.prepare(), "prepare of an id that was resumed")
    _travelled(refusal, "the refusal")
    expect(str(refusal).strip(), "the refusal has no text")


@_check
async def answers_travel(case: Case) -> None:
    """The answers of prepare and commit cross processes unchanged."""
    await case.play(A)
    prepared = await case.park(A)
    for answer in (prepared, await case.commit(A)):
        try:
            again = pickle.loads(pickle.dumps(answer))  # noqa: S301 - of this very process
        except Exception as reason:
            raise AssertionError(f"an answer cannot be pickled: {show(str(reason))}") from reason
        expect(again == answer, "an answer changes when it is pickled")


@_check
async def errors_of_a_disk_travel(case: Case) -> None:
    """A write that fails fails the commit, with an error that crosses processes."""
    await case.play(A)
    await case.park(A)
    await case.one.break_storage(UnpicklableError("the disk is on fire"))
    error = await case.fails(case.commit(A), "commit whose write failed")
    _travelled(error, "the error of a failed write")
    expect("on fire" in str(error), f"the error does not say what failed: {show(str(error))}")


@_check
async def a_failed_commit_leaves_it_parked(case: Case) -> None:
    """After a write that failed the instance is parked until resume, and then reopens."""
    await case.play(A)
    await case.park(A)
    await case.one.break_storage(OSError("no space left on device"))
    await case.fails(case.commit(A), "commit whose write failed")
    await case.expect_still([A], "after a commit that failed")
    await case.resume()
    await case.expect_running([A], "after the resume of a commit that failed")


@_check
async def a_failed_commit_can_be_repeated(case: Case) -> None:
    """The same commit succeeds when the disk works again, and can be restored from."""
    await case.play(A)
    await case.park(A)
    await case.one.break_storage(OSError("no space left on device"))
    await case.fails(case.commit(A), "commit whose write failed")
    answer = await case.commit(A)
    other = await case.another()
    await case.restore(A, participants=answer.participants, on=other)
    await case.resume("x1", on=other)
    await case.expect_running([A.next_attempt()], "after its restore was resumed", other)


@_check
async def a_failed_commit_publishes_nothing(case: Case) -> None:
    """Nothing can be restored from a commit whose write failed."""
    answer = await case.participants()
    await case.play(A)
    await case.park(A)
    await case.one.break_storage(OSError("no space left on device"))
    await case.fails(case.commit(A), "commit whose write failed")
    await case.resume()
    other = await case.another()
    restoring = case.restore(A, participants=answer, on=other)
    await case.fails(restoring, "restore of a checkpoint whose write failed")


# --- damaged and foreign checkpoints ------------------------------------------------------------


async def _refuses_damage(case: Case, damage: Callable[[Path], None], what: str) -> None:
    """Pass if a restore fails after `damage` was done to any one of the files."""
    summary = await case.saved(A)
    for number, (path, whole) in enumerate(sorted(files_below(case.root).items())):
        if not whole:
            continue
        damage(path)
        other = await case.another()
        restoring = case.restore(
            A, restore_id=f"x{number}", participants=summary.participants, on=other
        )
        await case.fails(restoring, f"restore from a checkpoint with {path.name} {what}")
        await case.resume(f"x{number}", on=other)
        await case.expect_still([A.next_attempt()], "though its restore failed", other)
        await other.close()
        path.write_bytes(whole)


@_check
async def flipped_bits_are_found(case: Case) -> None:
    """A restore fails when one bit of any file was flipped, and installs nothing."""

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))

    await _refuses_damage(case, flip, "damaged by one bit")


@_check
async def cut_files_are_found(case: Case) -> None:
    """A restore fails when any file was cut short, and installs nothing."""

    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-1])

    await _refuses_damage(case, cut, "cut short")


@_check
async def missing_files_are_found(case: Case) -> None:
    """A restore fails when any file is missing, and installs nothing."""
    await _refuses_damage(case, Path.unlink, "missing")


@_check
async def other_participants_are_refused(case: Case) -> None:
    """A restore of what other participants saved fails, and closes nothing."""
    summary = await case.saved(A)
    for names in ((*summary.participants, "stranger"), summary.participants[1:]):
        other = await case.another()
        restoring = case.restore(A, participants=names, on=other)
        await case.fails(restoring, f"restore with participants {names}")
        await case.expect_open("after a restore that failed", other)
        await case.expect_still([A.next_attempt()], "though its restore failed", other)


@_check
async def another_checkpoint_is_refused(case: Case) -> None:
    """A restore that names another checkpoint than the one that lies there fails."""
    summary = await case.saved(A)
    other = await case.another()
    restoring = case.restore(A, source="c9", participants=summary.participants, on=other)
    await case.fails(restoring, "restore of a checkpoint that does not lie there")
    await case.resume("x1", on=other)
    await case.expect_still([A.next_attempt()], "though its restore failed", other)


@_check
async def episodes_that_were_not_saved_are_refused(case: Case) -> None:
    """A restore that names an episode which was not saved fails, and installs none."""
    summary = await case.saved(A)
    other = await case.another()
    restoring = case.restore(A, B, participants=summary.participants, on=other)
    await case.fails(restoring, "restore of an episode that was not saved")
    await case.resume("x1", on=other)
    await case.expect_still(
        [A.next_attempt(), B.next_attempt()], "though its restore failed", other
    )


@_check
async def a_failed_restore_reopens(case: Case) -> None:
    """After a restore that failed, and its resume, the instance works."""
    summary = await case.saved(A)
    other = await case.another()
    restoring = case.restore(A, B, participants=summary.participants, on=other)
    await case.fails(restoring, "restore of an episode that was not saved")
    await case.resume("x1", on=other)
    await case.expect_open("after a restore that failed, and its resume", other)
