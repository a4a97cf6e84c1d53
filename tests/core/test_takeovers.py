"""
Another controller goes on from the journal, and lone ids are reopened.

Round numbers as everywhere (`driver.settings`): resume has 10 s and 5 s of grace, two tries with
1 s between them.
"""

from __future__ import annotations

import pytest

from tests.core.driver import FATAL, World, settings
from tests.core.histories import reached


def discarding(count: int = 2) -> World:
    """Return a checkpoint that was given up while it prepared, at 0 s."""
    return reached("checkpoint", "preparing", "discarding", count=count)


@pytest.mark.parametrize(
    ("chart", "state", "ends_in"),
    [
        ("checkpoint", "open", "discarded"),
        ("checkpoint", "preparing", "discarded"),
        ("checkpoint", "confirming", "discarded"),
        ("checkpoint", "parked", "discarded"),
        ("checkpoint", "committing", "discarded"),
        ("checkpoint", "sealing", "discarded"),
        ("checkpoint", "committed", "resumed"),
        ("checkpoint", "resuming", "resumed"),
        ("checkpoint", "discarding", "discarded"),
        ("restore", "open", "discarded"),
        ("restore", "restoring", "discarded"),
        ("restore", "restored", "discarded"),
        ("restore", "keeping", "discarded"),
        ("restore", "retiring", "discarded"),
        ("restore", "resuming", "resumed"),
        ("restore", "discarding", "discarded"),
        ("sweep", "open", "failed"),
        ("sweep", "calling", "failed"),
        ("sweep", "insisting", "done"),
    ],
)
def test_a_takeover_settles(chart: str, state: str, ends_in: str) -> None:
    """Whatever state a controller died in, the next one ends the operation as the design says."""
    world = reached(chart, state)
    closed = {ask.instance for ask in world.sent if ask.call in ("prepare", "restore")}
    sent = len(world.sent)
    world.take_over(silent_s=5.0)
    while not world.operation.settled:
        if world.outstanding_withdrawals():
            world.end_file("withdraw", well=True)
        elif world.asks:
            world.reply(world.asks[0], "answered")
        else:
            world.advance()
    assert world.operation.state == ends_in
    again = {ask.instance for ask in world.sent[sent:] if ask.call == "resume"}
    assert closed <= again
    assert {entry.epoch for entry in world.entries} == {1, 2}
    world.crash_and_replay()


def test_a_takeover_asks_again_what_was_under_way() -> None:
    """Resumes that the dead controller had out count as unanswered, and are sent once more."""
    world = discarding()
    world.answer("resume", 1)
    world.take_over()
    assert [(ask.instance[-1], ask.ask) for ask in world.asks] == [("0", 2)]


def test_a_takeover_of_a_log_cut_off_within_a_step_leaves_nobody_closed() -> None:
    """Instances whose resume was never recorded are asked by the next controller all the same."""
    world = discarding(count=3)
    count = next(i for i, e in enumerate(world.entries) if (e.call, e.ask) == ("resume", 1)) + 1
    world.take_over(count)
    assert [(ask.instance[-1], ask.ask) for ask in world.asks] == [("0", 2), ("1", 1), ("2", 1)]


def test_a_takeover_withdraws_again() -> None:
    """Whether the dead controller's withdrawal worked is unknown, so it is done again."""
    world = reached("checkpoint", "committed")
    world.verb("discard")
    world.answer("resume")
    world.work_file("withdraw", well=False)
    world.take_over()
    world.end_file("withdraw", well=True)
    assert (world.operation.state, world.manifest) == ("discarded", False)


def test_a_takeover_asks_again_what_had_failed() -> None:
    """Resumes that had failed for good before the controller died are sent once more."""
    world = discarding()
    world.fail("resume", 0, failure=FATAL)
    world.answer("resume", 1)
    world.take_over()
    assert [(ask.instance[-1], ask.ask) for ask in world.asks] == [("0", 2)]


def test_a_takeover_withdraws_again_what_had_failed() -> None:
    """A withdrawal that had failed before the controller died is done again at once."""
    world = reached("checkpoint", "committed")
    world.verb("discard")
    world.answer("resume")
    world.end_file("withdraw", well=False)
    taken = world.take_over(reason="the disk is back")
    assert [(entry.trigger, entry.facts) for entry in taken.entries] == [
        ("withdraw", {"owner": "controller-2", "reason": "the disk is back"})
    ]
    world.end_file("withdraw", well=True)
    assert world.operation.state == "discarded"


def test_a_takeover_says_who_took_over_and_why() -> None:
    """The entry that settles a dead controller's operation names the new one, as does its cause."""
    world = reached("checkpoint", "parked")
    settles = world.take_over().entries[0]
    facts = {"reason": "taken over by controller-2", "owner": "controller-2"}
    assert (settles.trigger, settles.facts) == ("settle", facts)
    cause = world.operation.cause
    assert cause is not None
    assert (cause.trigger, cause.facts) == ("settle", facts)


def test_an_operator_who_takes_over_gives_their_own_reason() -> None:
    """What an operator notes goes into the first entry of the takeover, before all defaults."""
    world = reached("checkpoint", "parked")
    discards = world.take_over(trigger="discard", reason="the node is gone", by="ops").entries[0]
    assert discards.trigger == "discard"
    assert discards.facts == {
        "reason": "the node is gone",
        "owner": "controller-2",
        "by": "ops",
    }


def test_who_asks_again_by_hand_is_noted_once() -> None:
    """Where a takeover has only to ask again, the first ask carries what the operator noted."""
    world = discarding()
    taken = world.take_over(reason="the node is gone")
    asks = [entry for entry in taken.entries if entry.trigger == "retry"]
    assert [entry.facts.get("reason") for entry in asks] == ["the node is gone", None]


def test_a_takeover_of_what_has_ended_does_nothing() -> None:
    """There is nothing to go on with in an operation that has ended."""
    world = reached("checkpoint", "preparing", "discarding", "discarded")
    taken = world.take_over()
    assert (taken.entries, taken.effects) == ((), ())


def test_a_takeover_with_nobody_to_ask_waits_for_the_file_alone() -> None:
    """Where every instance is open again, only the withdrawal is waited for."""
    world = reached("checkpoint", "committed")
    world.verb("discard")
    world.answer("resume")
    world.take_over()
    assert (set(world.timers), world.asks) == ({"budget.file"}, [])


# --- the resume of a lone id --------------------------------------------------------------------


def lone_resume(count: int = 2) -> World:
    """Return a sweep that reopens an id which no operation of the journal has, at 0 s."""
    world = World("sweep", count, numbers=settings(), facts={"call": "resume"})
    world.verb("run")
    return world


def test_a_lone_resume_is_tried_twice_on_whom_does_not_answer() -> None:
    """An instance that hangs is asked twice, with a whole budget each, and then it has failed."""
    world = lone_resume()
    world.answer("resume", 1)
    world.wait_until(lambda world: world.operation.settled)
    assert (world.at_s, world.operation.state) == (31.0, "failed")
    assert [ask.ask for ask in world.sent_to("resume", 0)] == [1, 2]
    assert not world.asks


def test_a_lone_resume_that_fails_somewhere_is_owed_to_the_others() -> None:
    """A dead actor does not shorten the tries at reopening another instance."""
    world = lone_resume()
    world.kill("resume", 0)
    world.wait(3.0)
    world.fail("resume", 1)
    world.wait(1.0)
    assert world.operation.state == "calling"
    world.answer("resume", 1)
    assert (world.at_s, world.operation.state) == (4.0, "failed")


def test_a_lone_resume_is_not_swept() -> None:
    """A sweep timer asks nobody again while a lone resume waits for another instance."""
    world = lone_resume()
    world.fail("resume", 0, failure=FATAL)
    world.fail("resume", 1)
    world.fire("sweep")
    assert not world.asks


def test_a_late_answer_confirms_a_lone_resume() -> None:
    """A lone resume is confirmed by an answer to its first ask, as any other."""
    world = lone_resume(count=1)
    world.wait(16.0)
    world.reply(world.sent_to("resume")[0], "answered")
    assert world.operation.state == "done"
