"""
The instance contract, level basic: it parks, saves, reopens and restores.

Each check's docstring is the claim that the report prints. A check uses nothing but the calls of
the protocol and the adapter.
"""

from __future__ import annotations

from typing import Any, cast

from gymckpt.episodes import EnvironmentEpisode, instance_directory
from gymckpt.errors import RecordsNotVisible, show
from gymckpt.testing.case import Case, CheckBody, files_below
from gymckpt.testing.instance import expect
from gymckpt.visibility import Visibility

__all__ = ["CHECKS"]

CHECKS: list[CheckBody] = []
"""The checks of this module, in the order in which they are reported."""

A, B, C = (EnvironmentEpisode(name, 0) for name in ("r-a", "r-b", "r-c"))


def _check(body: CheckBody) -> CheckBody:
    CHECKS.append(body)
    return body


# --- parking ------------------------------------------------------------------------------------


@_check
async def parks_when_nothing_runs(case: Case) -> None:
    """An instance without episodes is parked at once, and names nothing in the way."""
    answer = await case.prepare()
    expect(answer.prepared, f"it is not parked, blockers: {answer.blockers}")
    expect(answer.restarts == (), f"it names episodes to start over: {answer.restarts}")


@_check
async def waits_for_the_end_of_a_turn(case: Case) -> None:
    """It does not say that it is parked while an episode is inside a turn."""
    await case.play(A)
    preparing = case.begin(case.prepare())
    await case.one.settle()
    expect(not preparing.done(), "prepare was answered while an episode was inside a turn")
    await case.one.turn(A)
    expect((await preparing).prepared, "it did not park when the turn had ended")


@_check
async def a_turn_that_began_is_finished(case: Case) -> None:
    """Parking lets a turn that has begun come to its end, and begins no other."""
    await case.play(A)
    await case.park(A)
    turns = await case.one.turns(A)
    expect(turns == 2, f"the episode has {turns} turns behind it, 2 were let end")


@_check
async def parked_episodes_do_not_move(case: Case) -> None:
    """No episode begins a turn while the instance is parked."""
    await case.play(A, B)
    await case.park(A, B)
    await case.expect_still([A, B], "while the instance is parked")


@_check
async def new_episodes_wait(case: Case) -> None:
    """An episode that is dispatched while the instance is parked does not begin."""
    await case.park()
    await case.expect_closed("while the instance is parked")


@_check
async def admission_closes_before_it_is_parked(case: Case) -> None:
    """An episode that is dispatched while the instance still parks does not begin."""
    await case.play(A)
    case.begin(case.prepare())
    await case.one.settle()
    await case.expect_closed("while the instance parks")


@_check
async def not_ready_is_an_answer(case: Case) -> None:
    """Not parked by the deadline is an answer that says who is in the way, not an error."""
    await case.play(A)
    answer = await case.prepare(by_s=-1.0)
    expect(not answer.prepared, "it says that it is parked, an episode is inside a turn")
    expect(any(answer.blockers.values()), "it does not say what is in the way")


@_check
async def not_ready_stays_closed(case: Case) -> None:
    """Not parked by the deadline, it parks all the same, and can be asked again."""
    await case.play(A)
    await case.prepare(by_s=-1.0)
    await case.expect_closed("after a prepare that was not ready")
    await case.one.turn(A)
    await case.expect_still([A], "after a prepare that was not ready")
    answer = await case.prepare()
    expect(answer.prepared, "asked again when the turn had ended, it is not parked")


# --- reopening ----------------------------------------------------------------------------------


@_check
async def reopens(case: Case) -> None:
    """After resume parked episodes go on and new ones begin."""
    await case.play(A)
    await case.park(A)
    await case.resume()
    await case.expect_running([A], "after resume")
    await case.expect_open("after resume")


@_check
async def an_interrupted_prepare_reopens(case: Case) -> None:
    """A resume reopens an instance that is not parked yet."""
    await case.play(A)
    case.begin(case.prepare())
    await case.one.settle()
    await case.resume()
    await case.one.turn(A)
    await case.expect_running([A], "after a resume that came before it was parked")
    await case.expect_open("after a resume that came before it was parked")


@_check
async def parking_loses_no_turn(case: Case) -> None:
    """An episode goes on where it was parked."""
    await case.play(A, turns=2)
    await case.park(A)
    await case.resume()
    await case.expect_running([A], "after resume")
    turns = await case.one.turns(A)
    expect(turns == 4, f"the episode has {turns} turns behind it, 4 were let end")


@_check
async def what_waited_begins_after_resume(case: Case) -> None:
    """A parked instance can be checkpointed again, under a new id, after its resume."""
    await case.play(A)
    await case.park(A)
    await case.resume()
    await case.one.settle()
    await case.park(A, checkpoint_id="c2")
    await case.resume("c2")
    await case.expect_running([A], "after the second resume")


@_check
async def renewing_changes_nothing(case: Case) -> None:
    """A renewal is answered and leaves the instance parked."""
    await case.play(A)
    await case.park(A)
    await case.renew()
    await case.expect_still([A], "after a renewal")


# --- saving -------------------------------------------------------------------------------------


@_check
async def saves_what_is_asked(case: Case) -> None:
    """Commit exports the episodes that it is given."""
    await case.play(A, B)
    await case.park(A, B)
    answer = await case.commit(A, B)
    found = answer.exported_episodes
    expect(set(found) == {A, B}, f"it exported {show(found)}")
    unowned = answer.unowned_live_episodes
    expect(unowned == (), f"it says that no server owns {show(unowned)}, which is not here")


@_check
async def saves_nothing_else(case: Case) -> None:
    """Commit exports no episode that it is not given."""
    await case.play(A, B)
    await case.park(A, B)
    answer = await case.commit(B)
    found = answer.exported_episodes
    expect(set(found) == {B}, f"asked for one episode, it exported {show(found)}")


@_check
async def saves_nothing_at_all(case: Case) -> None:
    """A commit of no episode is answered like any other."""
    await case.park()
    answer = await case.commit()
    expect(answer.exported_episodes == (), f"it exported {show(answer.exported_episodes)}")
    await case.resume()
    await case.expect_open("after an empty checkpoint")


@_check
async def participants_are_the_same_each_time(case: Case) -> None:
    """Two checkpoints of one instance name the same participants."""
    first = await case.saved(A)
    await case.one.settle()
    await case.park(A, checkpoint_id="c2")
    second = await case.commit(A, checkpoint_id="c2", root=case.root / "second")
    one, other = sorted(first.participants), sorted(second.participants)
    expect(one == other, f"first {one}, then {other}")


@_check
async def writes_in_its_own_place(case: Case) -> None:
    """Files appear below its own directory and nowhere else, in the form that it says they have."""
    answer = await case.saved(A)
    name = case.one.instance_id
    own = instance_directory(case.root, name)
    files = list(files_below(case.root))
    expect(files, "it wrote no file below the root")
    strays = [path for path in files if own not in path.parents]
    expect(not strays, f"it wrote outside of {own}: {strays[:3]}")
    try:
        Visibility("auto").look(str(case.root), "c1", {name: answer}).once()
    except RecordsNotVisible:
        form = "manifest.json, or gym/<kind>/<server>/manifest.json, that names the checkpoint"
        expect(False, f"it answered written_below_root=True, and {own} has no {form}")


@_check
async def stays_parked_after_commit(case: Case) -> None:
    """A commit does not reopen the instance."""
    await case.play(A)
    await case.park(A)
    await case.commit(A)
    await case.expect_still([A], "after commit, before resume")
    await case.expect_closed("after commit, before resume")


@_check
async def a_second_checkpoint_saves_again(case: Case) -> None:
    """A later checkpoint saves the episode with the turns that it has played since."""
    await case.saved(A)
    await case.expect_running([A], "after resume")
    await case.park(A, checkpoint_id="c2")
    answer = await case.commit(A, checkpoint_id="c2", root=case.root / "second")
    expect(answer.exported_episodes == (A,), f"it exported {show(answer.exported_episodes)}")
    case.root /= "second"
    other = await case.another()
    await case.restore(A, source="c2", participants=answer.participants, on=other)
    await case.resume("x1", on=other)
    await _expect_turns(case, other, A.next_attempt(), 5)


# --- restoring ----------------------------------------------------------------------------------


async def _expect_turns(case: Case, on: Any, episode: EnvironmentEpisode, turns: int) -> None:
    """Pass if an attempt has so many turns behind it after one more turn."""
    await case.expect_running([episode], "after its restore was resumed", on)
    found = await on.turns(episode)
    expect(found == turns, f"after one more turn it has {found} turns behind it, not {turns}")


@_check
async def continues_saved_episodes(case: Case) -> None:
    """A restored attempt goes on where the saved one was, on an instance made anew."""
    summary = await case.saved(A)
    other = await case.another()
    await case.restore(A, participants=summary.participants, on=other)
    await case.resume("x1", on=other)
    await _expect_turns(case, other, A.next_attempt(), 3)


@_check
async def continues_where_they_still_run(case: Case) -> None:
    """A restore on the very instance that saved stops the old attempt and continues it."""
    summary = await case.saved(A)
    await case.expect_running([A], "after resume")
    await case.restore(A, participants=summary.participants)
    await case.resume("x1")
    await case.expect_still([A], "though its next attempt was restored")
    await _expect_turns(case, case.one, A.next_attempt(), 3)


@_check
async def restored_attempts_wait(case: Case) -> None:
    """Restored attempts do not move, and nothing else begins, until the restore is resumed."""
    summary = await case.saved(A)
    other = await case.another()
    await case.restore(A, participants=summary.participants, on=other)
    await case.expect_still([A.next_attempt()], "before its restore is resumed", other)
    await case.expect_closed("before its restore is resumed", other)


@_check
async def restores_what_is_asked(case: Case) -> None:
    """Only the episodes that a restore names are installed."""
    summary = await case.saved(A, B)
    other = await case.another()
    await case.restore(B, participants=summary.participants, on=other)
    await case.resume("x1", on=other)
    await case.expect_running([B.next_attempt()], "after its restore was resumed", other)
    await case.expect_still([A.next_attempt()], "though the restore did not name it", other)


@_check
async def restores_nothing(case: Case) -> None:
    """A restore of no episode is answered, and resumed like any other."""
    summary = await case.saved(A)
    other = await case.another()
    await case.restore(participants=summary.participants, on=other)
    await case.resume("x1", on=other)
    await case.expect_open("after an empty restore", other)


# --- episodes that cannot be captured -----------------------------------------------------------


@_check
async def names_restart_only_servers(case: Case) -> None:
    """The servers whose episodes start over are named as a list of strings."""
    answer = await case.call("restart_only_servers", on=None)
    listed = isinstance(answer, list | tuple)
    names = cast("list[object]", answer)
    good = listed and all(isinstance(name, str) for name in names)
    expect(good, f"it answered {show(names)}")


@_check
async def restart_only_episodes_do_not_block(case: Case) -> None:
    """Episodes that cannot be captured run on while the instance is parked, and are named."""
    await case.start_restart_only(C)
    answer = await case.prepare()
    expect(answer.prepared, f"it waits for an episode that it cannot capture: {answer.blockers}")
    expect(answer.restarts == (C,), f"it names {show(answer.restarts)} to start over")
    await case.expect_running([C], "while the instance is parked, though nobody captures it")


@_check
async def restart_only_episodes_are_left_out(case: Case) -> None:
    """A checkpoint beside episodes that cannot be captured saves the others."""
    await case.start_restart_only(C)
    await case.play(A)
    await case.park(A)
    answer = await case.commit(A)
    expect(answer.exported_episodes == (A,), f"it exported {show(answer.exported_episodes)}")


# --- attempts -----------------------------------------------------------------------------------


@_check
async def retire_stops_an_attempt(case: Case) -> None:
    """A retired attempt does not run when retire is answered, and the others do."""
    await case.play(A, B)
    await case.retire(A)
    await case.expect_still([A], "after it was retired")
    await case.expect_running([B], "after another one was retired")


@_check
async def retired_attempts_are_refused(case: Case) -> None:
    """A retired attempt does not begin, whether or not it has run here before."""
    await case.play(A)
    await case.retire(A, B)
    for episode in (A, B):
        await case.one.start(episode)
    await case.expect_still([A, B], "after it was retired")


@_check
async def later_attempts_begin(case: Case) -> None:
    """The attempt after a retired one begins."""
    await case.play(A)
    await case.retire(A)
    await case.play(A.next_attempt())


@_check
async def forgotten_rollouts_begin_again(case: Case) -> None:
    """After forget an attempt that was retired may begin."""
    await case.play(A)
    await case.retire(A)
    await case.forget(A.rollout_id)
    await case.play(A)
