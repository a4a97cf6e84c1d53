"""What an operator does by hand is done by the same core: checked, claimed, sent, journaled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gymckpt.core.replay import replay
from gymckpt.errors import (
    Fenced,
    GymCheckpointOperationError,
    JournalError,
    RunHeld,
    TransitionRefused,
)
from gymckpt.journal import MemoryJournal
from gymckpt.journal.entry import decode_row, encode_row
from gymckpt.moves import By, Moved, discard, mark_gone, sweep
from tests.diagnosis.stuck import BUSY, RUN, Scene, play
from tests.fakes import HANG, FakeActor
from tests.journal.samples import entry

BY = By(operator="ann@host-7", reason="it hangs since three")


async def abandoned(run: Scene, name: str, after_s: float) -> MemoryJournal:
    """Leave a copy of an operation's journal as its controller's death leaves it."""
    run.begun(name, body_s=50.0)
    await asyncio.sleep(after_s)
    left = MemoryJournal()
    row = run.journal.operation(RUN, name)
    assert row is not None
    left.insert_operation(row, run.journal.read(RUN, name))
    return left


def state(journal: MemoryJournal, name: str = "cp") -> Any:
    """Return the state that an operation's entries lead to."""
    return replay(journal.read(RUN, name))


def resumes(actors: list[FakeActor]) -> list[int]:
    """Return how often each instance was asked to reopen."""
    return [len(actor.of("resume")) for actor in actors]


@pytest.mark.parametrize(
    ("after_s", "found_in"), [(0.05, "preparing"), (10.0, "parked"), (60.0, "committed")]
)
def test_discard_gives_up_and_reopens(tmp_path: Path, after_s: float, found_in: str) -> None:
    """With handles every instance is reopened, and who discarded it is the operation's cause."""

    async def scene(run: Scene) -> Moved:
        left = await abandoned(run, "cp", after_s)
        moved = await discard(
            left,
            RUN,
            "cp",
            by=BY,
            handles=run.shards.checkpoint_handles,
            force=True,
            clock=run.clock,
        )
        assert resumes(run.actors) == [1, 1, 1]
        ended = state(left)
        assert (ended.state, ended.settled, ended.epoch) == ("discarded", True, 2)
        assert ended.cause.trigger == "discard"
        assert ended.cause.facts["operator"] == BY.operator
        assert ended.cause.facts["reason"] == BY.reason
        return moved

    moved = play(tmp_path, scene)
    assert (moved.found_in, moved.state, moved.unconfirmed) == (found_in, "discarded", ())


def test_discarding_withdraws_the_manifest(tmp_path: Path) -> None:
    """A committed checkpoint that is discarded by hand has no manifest any more."""

    async def scene(run: Scene) -> None:
        left = await abandoned(run, "cp", 60.0)
        path = tmp_path / "cp" / "gym_checkpoint.json"
        assert path.exists()
        await discard(left, RUN, "cp", by=BY, force=True, clock=run.clock)
        assert not path.exists()

    play(tmp_path, scene)


def test_a_living_controller_is_fenced_only_by_force(tmp_path: Path) -> None:
    """Without force nothing changes; with it the other's body ends with the fence."""

    async def scene(run: Scene) -> None:
        task = run.begun("cp", body_s=50.0)
        await asyncio.sleep(10.0)
        before = run.journal.operation(RUN, "cp")
        assert before is not None
        with pytest.raises(RunHeld):
            await discard(run.journal, RUN, "cp", by=BY, clock=run.clock)
        after = run.journal.operation(RUN, "cp")
        assert after is not None
        assert (after.state, after.epoch, after.owner) == (before.state, 1, before.owner)
        await discard(run.journal, RUN, "cp", by=BY, force=True, clock=run.clock)
        assert isinstance(await task, Fenced)
        assert state(run.journal).state == "discarding"

    play(tmp_path, scene)


def test_sweep_asks_again_whoever_has_not_confirmed(tmp_path: Path) -> None:
    """Only those are asked, and the first of these asks says who wanted it."""

    async def scene(run: Scene) -> None:
        run.busy.always["prepare"] = run.busy.always["resume"] = HANG
        assert isinstance(await run.checkpoint("cp"), GymCheckpointOperationError)
        asked = resumes(run.actors)
        del run.busy.always["resume"]
        with pytest.raises(TransitionRefused, match="is being given up already"):
            await discard(run.journal, RUN, "cp", by=BY, force=True, clock=run.clock)
        moved = await sweep(
            run.journal,
            RUN,
            "cp",
            by=BY,
            handles=run.shards.checkpoint_handles,
            force=True,
            clock=run.clock,
        )
        assert moved.settled
        assert resumes(run.actors) == [asked[0], asked[1] + 1, asked[2]]
        by_hand = [entry for entry in run.entries("cp") if "operator" in entry.facts]
        assert [(entry.instance, entry.trigger) for entry in by_hand] == [(BUSY, "retry")]
        assert by_hand[0].facts["why"] == BY.reason

    play(tmp_path, scene)


def test_marked_gone_is_not_waited_for(tmp_path: Path) -> None:
    """In any state: the operation ends without the instance, and the others are reopened."""

    async def scene(run: Scene) -> None:
        run.busy.always["prepare"] = run.busy.always["resume"] = HANG
        left = await abandoned(run, "cp", 100.0)
        others = dict(run.shards.checkpoint_handles)
        del others[BUSY]
        moved = await mark_gone(
            left, RUN, "cp", BUSY, by=BY, handles=others, force=True, clock=run.clock
        )
        assert (moved.state, moved.settled, moved.unconfirmed) == ("discarded", True, ())
        died = next(entry for entry in left.read(RUN, "cp") if entry.trigger == "die")
        assert (died.instance, died.call) == (BUSY, "resume")
        assert BY.operator in died.facts["failure"]["text"]
        assert (died.facts["operator"], died.facts["why"]) == (BY.operator, BY.reason)
        assert died.facts["failure"]["dead"]
        with pytest.raises(TransitionRefused, match="has ended in 'discarded'"):
            await mark_gone(left, RUN, "cp", BUSY, by=BY, force=True, clock=run.clock)

    play(tmp_path, scene)


def test_an_instance_that_has_confirmed_cannot_be_gone(tmp_path: Path) -> None:
    """What an instance has answered stands; nothing is claimed for it."""

    async def scene(run: Scene) -> None:
        run.busy.always["resume"] = HANG
        await run.checkpoint("cp")
        before = run.journal.operation(RUN, "cp")
        with pytest.raises(TransitionRefused, match="resume is 'answered'"):
            await mark_gone(
                run.journal, RUN, "cp", "tools/replica-0", by=BY, force=True, clock=run.clock
            )
        with pytest.raises(ValueError, match="has no instance 'tools/replica-7'"):
            await mark_gone(
                run.journal, RUN, "cp", "tools/replica-7", by=BY, force=True, clock=run.clock
            )
        with pytest.raises(JournalError, match="no operation"):
            await sweep(run.journal, RUN, "nobody", by=BY, clock=run.clock)
        assert run.journal.operation(RUN, "cp") == before

    play(tmp_path, scene)


@pytest.mark.parametrize("words", ["", "   ", "x" * 501])
def test_a_move_needs_somebody_and_a_reason(words: str) -> None:
    """Neither may be empty, nor so long that it floods the journal."""
    with pytest.raises(ValueError, match="needs 1 to 500 characters"):
        By(operator="ann", reason=words)
    with pytest.raises(ValueError, match="needs 1 to 500 characters"):
        By(operator=words, reason="why")


@given(
    operator=st.text(st.characters(exclude_categories=()), max_size=8),
    reason=st.text(st.characters(exclude_categories=()), max_size=8),
)
@example(operator="ann", reason="why \udcff")
@example(operator="\udcff@host", reason="why")
@example(operator="ann", reason="why \x00")
def test_words_are_refused_before_anything_is_done(operator: str, reason: str) -> None:
    """Whatever is said for who and why, the journal keeps it, or nobody can make the move."""
    try:
        by = By(operator=operator, reason=reason)
    except ValueError:
        return
    facts = {"operator": by.operator, "reason": by.reason}
    kept = decode_row(encode_row(entry(facts=facts)))
    assert kept.facts == facts


@pytest.mark.ray
def test_named_actors_are_reached(ray_cluster: None) -> None:
    """A Ray actor with a name is found by it; one that is not there is refused."""
    import ray

    from gymckpt.runtime.instances import named_actors

    @ray.remote
    class Deployment:
        def checkpoint_resume(self, wire_id: str, *, deadline_ts: float) -> str:
            return wire_id

    kept = Deployment.options(name="deployment-7", namespace="moves").remote()
    found = named_actors({BUSY: "moves/deployment-7"}, address="auto")
    reply = found[BUSY].checkpoint_resume.remote("cp", deadline_ts=1.0)
    assert ray.get(reply) == "cp"
    with pytest.raises(ValueError, match="no Ray actor named 'moves/nobody'"):
        named_actors({BUSY: "moves/nobody"}, address="auto")
    del kept
