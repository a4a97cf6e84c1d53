"""
The instance contract, level faulty: errors that must travel, bad disks, damaged files.

Nothing is continued that is not exactly what was saved.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
async def errors_of_a_disk_are_told_as_such(case: Case) -> None:
    """A full disk fails the commit with an OSError; a refusal would say that it may pass."""
    await case.play(A)
    await case.park(A)
    await case.one.break_storage(OSError("no space left on device"))
    error = _as_raised(await case.fails(case.commit(A), "commit whose write failed"), "the error")
    kind = type(error).__name__
    expect(isinstance(error, OSError), f"a full disk is told as {kind}, it must stay an OSError")


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
    await case.expect_unpublished(A, participants=answer, what="a checkpoint whose write failed")


# --- damaged and foreign checkpoints ------------------------------------------------------------


FLIPS_MAX = 128
"""How many bits are flipped, one after the other, in all the files of a checkpoint."""

_NUMBER = re.compile(rb"(?<![0-9A-Za-z])[0-9]+(?![0-9A-Za-z])")
"""A number of a file that can be read; the digits of a hash stand among letters."""

Files = Mapping[Path, bytes]
Damage = Callable[[Files], Iterable[tuple[Path, bytes | None]]]
"""Says of files what to put in the place of which, one after the other; None takes it away."""


async def _refuses_damage(case: Case, damage: Damage, what: str) -> None:
    """Pass if a restore fails after each damage, and succeeds when all is mended."""
    summary = await case.saved(A)
    other = await case.another()
    files = {path: whole for path, whole in sorted(files_below(case.root).items()) if whole}
    for number, (path, instead) in enumerate(damage(files)):
        if instead is None:
            path.unlink()
        else:
            path.write_bytes(instead)
        restoring = case.restore(
            A, restore_id=f"x{number}", participants=summary.participants, on=other
        )
        await case.fails(restoring, f"restore from a checkpoint with {path.name} {what}")
        await case.resume(f"x{number}", on=other)
        await case.forget(A.rollout_id, on=other)  # a restore that failed may leave a mark
        path.write_bytes(files[path])
    await case.expect_still([A.next_attempt()], "though its restore failed", other)
    await case.restore(A, restore_id="whole", participants=summary.participants, on=other)
    await case.resume("whole", on=other)
    await case.expect_running([A.next_attempt()], "after the damage was mended", other)


def _spread(places: Sequence[int], most: int) -> list[int]:
    """Return all of these places, or as many of them as allowed, evenly spread."""
    count = min(most, len(places))
    return [places[number * len(places) // count] for number in range(count)]


def _flips(files: Files) -> Iterator[tuple[Path, bytes | None]]:
    """Yield files with one bit flipped: small ones in every byte, and numbers before all else."""
    left = FLIPS_MAX
    by_size = sorted(files, key=lambda path: len(files[path]))
    for number, path in enumerate(by_size):
        whole = files[path]
        share = left // (len(by_size) - number)
        digits = [place for found in _NUMBER.finditer(whole) for place in range(*found.span())]
        others = sorted(set(range(len(whole))).difference(digits))
        chosen = _spread(digits, share)  # a number that was changed is a number still
        chosen += _spread(others, share - len(chosen))
        left -= len(chosen)
        for place in chosen:
            content = bytearray(whole)
            content[place] ^= 1
            yield path, bytes(content)


@_check
async def flipped_bits_are_found(case: Case) -> None:
    """A restore fails when one bit of any file was flipped, and installs nothing."""
    await _refuses_damage(case, _flips, "damaged by one bit")


@_check
async def cut_files_are_found(case: Case) -> None:
    """A restore fails when any file was cut short, and installs nothing."""

    def cut(files: Files) -> Iterator[tuple[Path, bytes | None]]:
        return ((path, whole[:-1]) for path, whole in files.items())

    await _refuses_damage(case, cut, "cut short")


@_check
async def missing_files_are_found(case: Case) -> None:
    """A restore fails when any file is missing, and installs nothing."""

    def take(files: Files) -> Iterator[tuple[Path, bytes | None]]:
        return ((path, None) for path in files)

    await _refuses_damage(case, take, "missing")


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


@_check
async def attempts_of_a_failed_restore_can_be_retired(case: Case) -> None:
    """After a restore that failed a retire of its attempts under its id is answered."""
    summary = await case.saved(A)
    other = await case.another()
    restoring = case.restore(A, B, participants=summary.participants, on=other)
    await case.fails(restoring, "restore of an episode that was not saved")
    await case.retire(A.next_attempt(), B.next_attempt(), sweep_id="x1", on=other)
    await case.resume("x1", on=other)
    await case.expect_open("after a restore that failed, a retire and a resume", other)
