"""
The instance contract, level fenced: the same again, retired attempts, what a commit may name.

A call that is made again under its id does its thing once and gives the same answer.
"""

from __future__ import annotations

from contextlib import suppress

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import show
from gymckpt.testing.case import Case, CheckBody, DoesNotApply, files_below, stamps_below
from gymckpt.testing.instance import NotOffered, expect

__all__ = ["CHECKS"]

CHECKS: list[CheckBody] = []
"""The checks of this module, in the order in which they are reported."""

A, B, C = (EnvironmentEpisode(name, 0) for name in ("r-a", "r-b", "r-c"))


def _check(body: CheckBody) -> CheckBody:
    CHECKS.append(body)
    return body


# --- the same again -----------------------------------------------------------------------------


@_check
async def prepare_again_is_the_same(case: Case) -> None:
    """A prepare that is repeated gives the same answer."""
    with suppress(DoesNotApply):  # the answer names what cannot be captured, where there is any
        await case.start_restart_only(C)
    first = await case.prepare()
    again = await case.prepare()
    expect(first == again, f"first {first}, then {again}")


@_check
async def two_prepares_wait_together(case: Case) -> None:
    """A prepare that is repeated while the first one waits is answered like it."""
    await case.play(A)
    both = [case.begin(case.prepare()) for _ in range(2)]
    await case.one.settle()
    await case.one.turn(A)
    for preparing in both:
        expect((await preparing).prepared, "one of two equal prepares was not answered as parked")


@_check
async def prepare_again_after_commit(case: Case) -> None:
    """A prepare that is repeated after the commit does not undo it."""
    await case.play(A)
    await case.park(A)
    first = await case.commit(A)
    expect((await case.prepare()).prepared, "asked again, it is not parked")
    again = await case.commit(A)
    expect(first == again, "the commit is answered otherwise after a repeated prepare")


@_check
async def commit_again_is_the_same(case: Case) -> None:
    """A commit that is repeated gives the same answer and leaves the files as they are."""
    await case.play(A)
    await case.park(A)
    first = await case.commit(A)
    before, stamps = files_below(case.root), stamps_below(case.root)
    again = await case.commit(A)
    expect(first == again, f"first {first}, then {again}")
    expect(before == files_below(case.root), "the repeated commit changed files")
    expect(stamps == stamps_below(case.root), "the repeated commit wrote its files anew")


@_check
async def commit_again_with_others_is_refused(case: Case) -> None:
    """A second commit of the id with other episodes is refused."""
    await case.play(A, B)
    await case.park(A, B)
    await case.commit(A)
    await case.refused(case.commit(A, B), "commit of the same id with other episodes")


@_check
async def commit_again_elsewhere_is_refused(case: Case) -> None:
    """A second commit of the id to another directory is refused, and writes nothing there."""
    await case.play(A)
    await case.park(A)
    await case.commit(A)
    elsewhere = case.root / "elsewhere"
    await case.refused(case.commit(A, root=elsewhere), "commit of the same id elsewhere")
    files = list(files_below(elsewhere))
    expect(not files, f"the refused commit wrote {files[:3]}")


@_check
async def resume_again_is_fine(case: Case) -> None:
    """A resume that is repeated is answered, also while another id holds the instance."""
    await case.play(A)
    await case.park(A)
    await case.resume()
    await case.resume()
    await case.one.settle()
    await case.park(A, checkpoint_id="c2")
    await case.resume()
    await case.expect_still([A], "after the repeated resume of an older id")


@_check
async def restore_again_is_the_same(case: Case) -> None:
    """A restore that is repeated installs nothing a second time."""
    summary = await case.saved(A)
    other = await case.another()
    for _ in range(2):
        await case.restore(A, participants=summary.participants, on=other)
    await case.resume("x1", on=other)
    await case.expect_running([A.next_attempt()], "after its restore was resumed", other)
    turns = await other.turns(A.next_attempt())
    expect(turns == 3, f"after one more turn it has {turns} turns behind it, not 3")
    await case.expect_still([A.next_attempt().next_attempt()], "from a repeated restore", other)


@_check
async def restore_again_with_others_is_refused(case: Case) -> None:
    """A second restore of the id with other episodes is refused, and installs nothing."""
    summary = await case.saved(A, B)
    other = await case.another()
    await case.restore(A, participants=summary.participants, on=other)
    more = case.restore(A, B, participants=summary.participants, on=other)
    await case.refused(more, "restore of the same id with other episodes")
    await case.resume("x1", on=other)
    await case.expect_still([B.next_attempt()], "though its restore was refused", other)


@_check
async def retire_and_forget_again_are_fine(case: Case) -> None:
    """Retire and forget may be repeated, and may name what was never here."""
    await case.play(A)
    for _ in range(2):
        await case.retire(A, B, sweep_id="sweep")
    await case.expect_still([A], "after it was retired")
    for _ in range(2):
        await case.forget(A.rollout_id, B.rollout_id)
    await case.play(A)


@_check
async def two_restores_install_once(case: Case) -> None:
    """A restore that is repeated while the first one reads is answered too, and installs once."""
    summary = await case.saved(A)
    other = await case.another()
    restores = [case.restore(A, participants=summary.participants, on=other) for _ in range(2)]
    for restoring in [case.begin(one) for one in restores]:
        await restoring
    await case.resume("x1", on=other)
    await case.expect_running([A.next_attempt()], "after its restore was resumed", other)
    turns = await other.turns(A.next_attempt())
    expect(turns == 3, f"after one more turn it has {turns} turns behind it, not 3")
    await case.expect_still([A.next_attempt().next_attempt()], "from a repeated restore", other)


@_check
async def two_retires_wait_together(case: Case) -> None:
    """A retire that is repeated while an attempt cleans up waits for it, and cuts nothing short."""
    await case.play(A)
    try:
        await case.one.hold_cleanup()
    except NotOffered as none:
        raise DoesNotApply(str(none)) from none
    retires = [case.begin(case.retire(A, sweep_id="sweep"))]
    await case.one.settle()
    retires.append(case.begin(case.retire(A, sweep_id="sweep")))
    await case.one.settle()
    for which, retiring in zip(("first", "second"), retires, strict=True):
        expect(not retiring.done(), f"the {which} was answered before the attempt had stopped")
    await case.one.free_cleanup()
    for retiring in retires:
        await retiring
    await case.expect_still([A], "after it was retired")


@_check
async def calls_that_wait_for_nothing_come_twice(case: Case) -> None:
    """A renew, a resume and a forget that come twice at once are each answered twice."""
    await case.play(A)
    await case.park(A)
    for call in (case.renew, case.resume):
        for one in [case.begin(call()) for _ in range(2)]:
            await one
    await case.retire(A)
    for one in [case.begin(case.forget(A.rollout_id)) for _ in range(2)]:
        await one
    await case.play(A)


# --- attempts -----------------------------------------------------------------------------------


@_check
async def retire_marks_all_before(case: Case) -> None:
    """Retiring an attempt refuses the ones before it as well."""
    await case.retire(A.next_attempt())
    await case.one.start(A)
    await case.expect_still([A], "after a later attempt of it was retired")


@_check
async def retire_leaves_later_attempts(case: Case) -> None:
    """Retiring an attempt stops none that came after it."""
    await case.play(A.next_attempt())
    await case.retire(A)
    await case.expect_running([A.next_attempt()], "after the attempt before it was retired")


@_check
async def marks_outlive_a_checkpoint(case: Case) -> None:
    """A retired attempt is still refused after a later checkpoint was resumed."""
    await case.retire(A)
    await case.park()
    await case.resume()
    await case.one.start(A)
    await case.expect_still([A], "after it was retired, before it is forgotten")


@_check
async def forget_is_for_the_rollouts_named(case: Case) -> None:
    """Forgetting one rollout leaves the marks of others."""
    await case.retire(A, B)
    await case.forget(B.rollout_id)
    await case.one.start(A)
    await case.expect_still([A], "after another rollout was forgotten")


@_check
async def retire_is_refused_while_parked(case: Case) -> None:
    """Nothing is retired while a checkpoint holds the instance."""
    await case.play(A)
    await case.park(A)
    await case.refused(case.retire(A, B), "retire while a checkpoint holds the instance")
    await case.resume()
    await case.one.start(B)
    await case.expect_running([A, B], "though its retire was refused")


@_check
async def forget_is_refused_while_parked(case: Case) -> None:
    """Nothing is forgotten while a checkpoint holds the instance."""
    await case.retire(A)
    await case.park()
    await case.refused(case.forget(A.rollout_id), "forget while a checkpoint holds the instance")
    await case.resume()
    await case.one.start(A)
    await case.expect_still([A], "though its forget was refused")


@_check
async def restored_attempts_can_be_retired(case: Case) -> None:
    """Retire under a restore's id is allowed before its resume; the attempts never run."""
    summary = await case.saved(A, B)
    other = await case.another()
    await case.restore(A, B, participants=summary.participants, on=other)
    await case.retire(A.next_attempt(), sweep_id="x1", on=other)
    await case.resume("x1", on=other)
    await case.expect_still([A.next_attempt()], "though it was retired", other)
    await case.expect_running([B.next_attempt()], "after its restore was resumed", other)


@_check
async def strangers_retire_nothing_of_a_restore(case: Case) -> None:
    """Retire under another id is refused while a restore holds the instance."""
    summary = await case.saved(A)
    other = await case.another()
    await case.restore(A, participants=summary.participants, on=other)
    foreign = case.retire(A.next_attempt(), sweep_id="another", on=other)
    await case.refused(foreign, "retire under another id than the restore's")
    await case.resume("x1", on=other)
    await case.expect_running([A.next_attempt()], "though its retire was refused", other)


@_check
async def overtaken_attempts_are_refused(case: Case) -> None:
    """An attempt does not begin when a later one of its rollout was restored."""
    summary = await case.saved(A)
    other = await case.another()
    await case.restore(A, participants=summary.participants, on=other)
    await case.resume("x1", on=other)
    await other.start(A)
    await case.expect_still([A], "though its next attempt was restored", other)


@_check
async def a_second_restore_installs_no_twin(case: Case) -> None:
    """An attempt that runs already is not installed again by a restore of another id."""
    summary = await case.saved(A)
    other = await case.another()
    await case.restore(A, participants=summary.participants, on=other)
    await case.resume("x1", on=other)
    twin = case.restore(A, restore_id="x2", participants=summary.participants, on=other)
    await case.refused(twin, "restore of an attempt that runs already")
    await case.expect_running([A.next_attempt()], "after a second restore was refused", other)


@_check
async def overtaken_attempts_are_not_restored(case: Case) -> None:
    """A restore whose attempts a later one has overtaken is refused, and leaves that running."""
    summary = await case.saved(A)
    other = await case.another()
    newest = A.next_attempt().next_attempt()
    await other.start(newest)
    restoring = case.restore(A, participants=summary.participants, on=other)
    await case.refused(restoring, "restore of an attempt that a later one has overtaken")
    await case.expect_running([newest], "after an older restore was refused", other)
    await case.expect_still([A.next_attempt()], "though a later one has overtaken it", other)


@_check
async def retired_attempts_are_not_restored(case: Case) -> None:
    """A restore whose attempts were retired is refused, and the instance stays open."""
    summary = await case.saved(A)
    other = await case.another()
    await case.retire(A.next_attempt(), on=other)
    restoring = case.restore(A, participants=summary.participants, on=other)
    await case.refused(restoring, "restore of an attempt that was retired")
    await case.expect_open("after a restore that was refused", other)
    await case.expect_still([A.next_attempt()], "though it was retired", other)


# --- the scope of a commit ----------------------------------------------------------------------


@_check
async def unknown_episodes_are_refused(case: Case) -> None:
    """A commit that names an episode which was never here is refused, and can be put right."""
    await case.play(A)
    await case.park(A)
    await case.refused(case.commit(A, B), "commit of an episode that was never here")
    answer = await case.commit(A)
    expect(answer.exported_episodes == (A,), f"it exported {show(answer.exported_episodes)}")


@_check
async def foreign_attempts_are_refused(case: Case) -> None:
    """A commit that names another attempt than the one that runs is refused."""
    await case.play(A)
    await case.park(A)
    later = EnvironmentEpisode(A.rollout_id, 3)
    await case.refused(case.commit(later), "commit of an attempt that was never here")


@_check
async def restart_only_episodes_are_refused(case: Case) -> None:
    """A commit that names an episode which cannot be captured is refused."""
    await case.start_restart_only(C)
    await case.park()
    await case.refused(case.commit(C), "commit of an episode that cannot be captured")


@_check
async def a_directory_holds_one_checkpoint(case: Case) -> None:
    """A commit into the directory of an earlier checkpoint is refused and changes nothing there."""
    await case.saved(A)
    before = files_below(case.root)
    await case.one.settle()
    await case.park(A, checkpoint_id="c2")
    second = case.commit(A, checkpoint_id="c2")
    await case.fails(second, "commit into the directory of an earlier checkpoint")
    after = {path: path.read_bytes() for path in before}
    expect(before == after, "the refused commit changed files of the earlier checkpoint")


@_check
async def ids_that_are_none_are_refused(case: Case) -> None:
    """An id that could lead out of a directory is an error, and closes nothing."""
    for name in ("../c1", "", "a b", "x" * 200):
        await case.fails(case.prepare(name), f"prepare of {name[:20]!r}")
        await case.fails(case.resume(name), f"resume of {name[:20]!r}")
    await case.expect_open("after ids that are none")
