"""Whatever a history is, cut off anywhere or wrong, it is explained, replayed and shown."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable

import attrs
from hypothesis import given
from hypothesis import strategies as st

from gymckpt import explain, replay
from gymckpt.core.entry import Entry
from gymckpt.diagnosis.course import course_of
from gymckpt.diagnosis.explanation import Explanation
from gymckpt.diagnosis.overview import overview_of
from gymckpt.diagnosis.picture import picture_of
from gymckpt.diagnosis.stories import stories_of
from gymckpt.diagnosis.whatif import Edit, what_if
from gymckpt.journal import Opening
from gymckpt.journal.rules import operation_from
from tests.core.driver import World
from tests.diagnosis.wandering import worlds

LONG = 700
"""No text of an explanation is longer."""


def all_texts(value: object) -> list[str]:
    """Return every text in some JSON data."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.values() for text in all_texts(item)]
    return [text for item in value for text in all_texts(item)] if isinstance(value, list) else []


def explained(entries: list[Entry], **known: object) -> Explanation:
    """Explain a history, and hold the explanation to what all of them keep."""
    found = explain(entries, **known)  # type: ignore[arg-type]
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["schema"] == "gymckpt.explanation/1"
    assert max(map(len, all_texts(data)), default=0) <= LONG
    assert "\n" not in found.summary
    return found


@given(world=worlds, later_s=st.sampled_from([0.0, 20.0, 5_000.0]))
def test_every_beginning_of_a_legal_history_is_explained(world: World, later_s: float) -> None:
    """Each prefix, also the empty one, gives an explanation of its last state, whenever asked."""
    for count in range(len(world.entries) + 1):
        cut = world.entries[:count]
        now_ts = cut[-1].ts + later_s if cut else 1.0
        found = explained(cut, now_ts=now_ts, history=[world.entries, cut])
        told = replay(cut)
        assert told.divergence is None
        assert found.state == (told.state.state if told.state else "")
        assert found.settled == (told.state is not None and told.state.settled)
        assert bool(found.moves) == (bool(cut) and not found.settled)
        if found.settled:
            assert (found.next, found.blocking_total) == ((), 0)
            assert (found.cause is not None) == (told.state.cause is not None)  # type: ignore[union-attr]


@given(world=worlds)
def test_every_beginning_of_a_legal_history_is_shown(world: World) -> None:
    """Each prefix that has an entry gives a timeline, a course and a line of a list."""
    first = world.entries[0]
    opening = Opening(
        run=first.run,
        operation_id=first.operation_id,
        chart=first.facts["chart"],
        chart_version=first.facts["chart_version"],
    )
    for count in range(1, len(world.entries) + 1):
        cut = world.entries[:count]
        state = replay(cut).state
        assert state is not None
        row = operation_from(opening, cut, epoch=9, owner="me", settled=state.settled)
        course = course_of(picture_of(cut, now_ts=cut[-1].ts + 3.0))
        assert 0.0 <= course.parked_s <= course.total_s + 1e-9
        assert all(0.0 <= leg.cost_s <= leg.seconds + 1e-9 for leg in course.legs)
        line = overview_of(row, cut, now_ts=cut[-1].ts)
        assert line.state == state.state
        assert line.instances == len(state.instances)
        assert 0 <= line.answered <= line.instances
        json.dumps([course.to_json(), line.to_json()], allow_nan=False)


FIELDS = ("trigger", "source", "dest", "call", "instance", "ask", "epoch", "seq", "facts")


@given(world=worlds, chance=st.randoms(use_true_random=False))
def test_a_history_that_was_changed_is_told_from_one_that_was_lived(
    world: World, chance: random.Random
) -> None:
    """After any change nothing raises; what no chart gives is found, with both sides."""
    entries = list(world.entries)
    place = chance.randrange(len(entries))
    field = chance.choice(FIELDS)
    values = {"ask": 7, "epoch": 0, "seq": 999, "facts": chance.choice([{}, {"failure": "x"}])}
    changed = attrs.evolve(entries[place], **{field: values.get(field, "retire")})
    entries[place] = changed
    found, told = explained(entries), replay(entries)
    picture_of(entries)
    stories_of(entries)
    diverged = told.divergence
    if field in ("source", "dest") and changed != world.entries[place]:
        assert diverged is not None
    if diverged is not None:
        assert diverged.seq == entries[len(told.entries)].seq
        assert len(told.entries) <= place + 1 or field in (
            "facts",
            "epoch",
            "ask",
            "call",
            "instance",
        )
        assert diverged.expected
        assert diverged.found
        assert found.problem


@given(world=worlds, chance=st.randoms(use_true_random=False))
def test_nothing_changed_gives_the_same_history_again(world: World, chance: random.Random) -> None:
    """A reply that comes no later than it did leads the real scheduler through the same states."""
    told = replay(world.entries)
    replies = [
        entry.seq
        for entry in world.entries
        if entry.instance is not None
        and entry.trigger in ("answer", "fail", "refuse", "die")
        and not told.after(entry.seq - 1).settled
    ]
    if not replies or told.state is None or not told.state.settled:
        return
    seq = chance.choice(replies)
    again = what_if(world.entries, [Edit(kind="delay", seq=seq, seconds=0.0)])
    assert again.entries[: again.from_seq] == tuple(world.entries[: again.from_seq])
    assert replay(again.entries).divergence is None
    assert again.becomes[0] == again.was[0]


def test_an_explanation_of_thousands_of_instances_is_short() -> None:
    """However many hang, each reason is told once, with a count and a few names."""
    world = World("checkpoint", 3_000)
    world.verb("prepare")
    world.answer("prepare", *range(1_000))
    world.refuse("prepare", *range(1_000, 1_010))
    found = explained(world.entries, now_ts=world.moment.ts + 5.0, history=[world.entries])
    assert found.blocking_total == 2_000
    assert len(found.blocking) == 5
    assert {group.state: group.count for group in found.groups} == {"asked": 1_990, "refused": 10}
    assert len(json.dumps(found.to_json())) < 20_000


def told_of(entries: Iterable[Entry]) -> list[tuple[object, ...]]:
    """Return what entries say, with their times as exact as they need be."""
    return [
        (round(entry.at_s, 4), entry.instance, entry.call, entry.ask, entry.trigger, entry.dest)
        for entry in entries
    ]


def test_an_undisturbed_operation_is_retold_to_the_letter() -> None:
    """Where the body, the files and every reply are known, nothing at all is different."""
    world = World("checkpoint", 3)
    for verb in ("prepare", "commit", "resume"):
        world.verb(verb)
        for ask in list(world.asks):
            world.pass_time(0.125)
            world.reply(ask, "answered")
        while world.jobs:
            world.pass_time(0.25)
            world.end_file("write", well=True)
        for ask in list(world.asks):  # the renewal after a prepare
            world.pass_time(0.125)
            world.reply(ask, "answered")
        world.pass_time(0.5)
    assert world.operation.settled
    first = next(entry.seq for entry in world.entries if entry.trigger == "answer")
    again = what_if(world.entries, [Edit(kind="delay", seq=first, seconds=0.0)])
    assert (again.ended, again.assumed) == ("settled", 0)
    assert told_of(again.entries) == told_of(world.entries)


@given(world=worlds, chance=st.randoms(use_true_random=False))
def test_whatever_is_changed_the_other_history_is_legal(
    world: World, chance: random.Random
) -> None:
    """Dropping or delaying a reply, or crashing anywhere, gives a history that charts allow."""
    told = replay(world.entries)
    seqs = [
        entry.seq
        for entry in world.entries
        if entry.instance is not None
        and entry.trigger in ("answer", "fail", "refuse", "die", "stale")
        and not told.after(entry.seq - 1).settled
    ]
    edits = [Edit(kind="drop", seq=seq) for seq in seqs]
    edits += [Edit(kind="delay", seq=seq, seconds=chance.choice([0.5, 40.0])) for seq in seqs]
    edits += [
        Edit(kind="crash", seq=seq, seconds=chance.choice([None, 0.0, 900.0]))
        for seq in range(1, len(world.entries) + 1)
        if not told.after(seq).settled
    ]
    if not edits:
        return
    edit = chance.choice(edits)
    found = what_if(world.entries, [edit])
    other = replay(found.entries)
    assert other.divergence is None
    assert other.state is not None
    assert (found.ended == "settled") == other.state.settled
    if edit.kind == "crash":
        assert found.ended == "settled"
        assert other.state.epoch == told.after(edit.seq).epoch + 1
    json.dumps(found.to_json(), allow_nan=False)


@given(world=worlds)
def test_an_outline_tells_the_same_stories(world: World) -> None:
    """Without the facts of calls it is still known who was asked what, and where that stands."""
    bare = [
        entry if entry.instance is None else attrs.evolve(entry, facts={})
        for entry in world.entries
    ]
    known = stories_of(world.entries)
    assert {key: story.state for key, story in stories_of(bare).items()} == {
        key: story.state for key, story in known.items()
    }
