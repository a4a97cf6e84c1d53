"""What a report draws: the lanes, the lines, what counts as slow, and the chart."""

import functools
import itertools
import statistics

import attrs
import pytest

from gymckpt.chart import chart_names, load_chart
from gymckpt.core.entry import Entry
from gymckpt.core.replay import replay
from gymckpt.diagnosis.drawing import BOX_H, BOX_W, Visit, chart_svg, layout_of
from gymckpt.diagnosis.headline import cause_group, happy_states, headline, tone_of
from gymckpt.diagnosis.lanes import ABANDONED, WAITING
from gymckpt.diagnosis.picture import parked_s, picture_of
from gymckpt.diagnosis.timeline import timeline_of
from tests.diagnosis import pictured
from tests.diagnosis.markup import of, read
from tests.diagnosis.pictured import STORIES, played

SMALL = [name for name in STORIES if name != "crowd"]


@functools.cache
def history(name: str) -> tuple[Entry, ...]:
    """Return a story's history."""
    return played(STORIES[name]())


@pytest.mark.parametrize("name", SMALL)
def test_lanes_hold_every_ask_once(name: str) -> None:
    """Unmerged, the spans are the asks that the journal recorded, each with when it was sent."""
    entries = history(name)
    asked = sorted(
        (str(entry.instance), str(entry.call), entry.ask, entry.at_s)
        for entry in entries
        if entry.trigger in ("ask", "retry")
    )
    drawn = sorted(
        (lane.instance, span.call, span.ask, span.began_at_s)
        for lane in picture_of(entries, merge=False).lanes
        for span in lane.spans
    )
    assert drawn == asked


@pytest.mark.parametrize("name", SMALL)
def test_lanes_agree_with_the_timeline(name: str) -> None:
    """Where a wait ended and what it came to is the same as the timeline says."""
    entries = history(name)
    spans = {(one.instance, one.call, one.ask): one for one in timeline_of(entries).asks}
    for lane in picture_of(entries, merge=False).lanes:
        for span in lane.spans:
            other = spans[lane.instance, span.call, span.ask]
            outcome = "unanswered" if span.outcome == ABANDONED else span.outcome
            assert (outcome, span.ended_at_s) == (other.outcome, other.ended_at_s)


@pytest.mark.parametrize("name", SMALL)
def test_lanes_end_where_replay_ends(name: str) -> None:
    """The last span of each call comes to the state in which replay leaves that call."""
    entries = history(name)
    operation = replay(entries)
    for lane in picture_of(entries, merge=False).lanes:
        last = {span.call: span for span in lane.spans}
        later = {tick.call for tick in lane.ticks if tick.kind != "stale"}
        for call, span in last.items():
            outcome = "unanswered" if span.outcome == ABANDONED else span.outcome
            if call not in later:
                assert outcome == operation.call_state(call, lane.instance).state
        leased = operation.acknowledged_at_s.get(lane.instance)
        assert lane.leased_until_s == leased


def test_merged_renewals_keep_their_number_and_their_trouble() -> None:
    """Renewals become one run per stretch without trouble, and no ask is lost."""
    entries = history("lost_lease")
    merged, each = picture_of(entries), picture_of(entries, merge=False)
    for one, other in zip(merged.lanes, each.lanes, strict=True):
        assert sum(span.count for span in one.spans) == len(other.spans)
        bad = [span for span in other.spans if span.outcome != "answered"]
        assert [span for span in one.spans if span.outcome != "answered"] == bad
    assert max(len(lane.spans) for lane in merged.lanes) < 8


def test_late_answer_ends_the_ask_that_is_waited_for() -> None:
    """A resume that is answered while its second ask is out is no longer waited for."""

    def answering(instance: str, call: str, ask: int) -> pictured.Answer | None:
        if call == "resume" and instance == "swe/replica-1":
            return pictured.Answer(37.0) if ask == 1 else None
        return pictured.prompt(instance, call, ask)

    story = attrs.evolve(pictured.good(), answering=answering)
    picture = picture_of(played(story))
    lane = next(lane for lane in picture.lanes if lane.instance == "swe/replica-1")
    resumes = [(span.ask, span.outcome) for span in lane.spans if span.call == "resume"]
    assert resumes == [(1, "unanswered"), (2, "answered")]
    assert [tick.kind for tick in lane.ticks] == ["confirm"]
    assert not lane.waiting


def test_abandoned_asks_are_no_trouble() -> None:
    """Who was no longer waited for because another had failed is not among the troubled."""
    picture = picture_of(history("dead"))
    assert [lane.instance for lane in picture.lanes if lane.troubled] == ["browser/replica-1"]
    assert any(span.outcome == ABANDONED for lane in picture.lanes for span in lane.spans)


def test_slow_means_far_beyond_what_is_usual() -> None:
    """Of 2,000 instances all that were made slow are found, and few others."""
    picture = picture_of(history("crowd"))
    found = {lane.instance for lane in picture.lanes if "prepare" in lane.slow}
    made = {
        lane.instance
        for lane in picture.lanes
        for span in lane.spans
        if span.call == "prepare" and picture.seconds(span) >= 30.0
    }
    assert len(made) == 14
    assert made <= found
    assert len(found) < 60


def test_equal_instances_are_never_slow() -> None:
    """Where every instance takes as long as the others, none is slow."""
    story = attrs.evolve(
        pictured.good(), answering=lambda instance, call, ask: pictured.Answer(3.0)
    )
    assert not any(lane.slow for lane in picture_of(played(story)).lanes)


def test_what_is_waited_for_long_is_slow() -> None:
    """An ask that has been out far longer than others took is slow before it ends."""
    entries = history("hung")
    picture = picture_of(entries, now_ts=pictured.START_TS + 96.0)
    lane, span = picture.slowest() or (None, None)
    assert lane is not None
    assert span is not None
    assert (lane.instance, span.outcome, lane.slow) == ("swe/replica-2", WAITING, ("prepare",))


@pytest.mark.parametrize("name", SMALL)
def test_parked_time_lies_between_first_call_and_reopening(name: str) -> None:
    """The parked time is from the first prepare or restore to the first resume, or to the end."""
    entries = history(name)
    picture = picture_of(entries)
    began = next(one.at_s for one in entries if one.call in ("prepare", "restore"))
    reopening = (one.at_s for one in entries if one.call == "resume")
    ended = next(reopening, picture.end_at_s)
    held_s = parked_s(picture.chart, picture.states, picture.end_at_s)
    assert held_s == pytest.approx(ended - began)


def test_sweep_parks_nothing() -> None:
    """An operation without any state that reopens has no parked time."""
    chart = load_chart("sweep")
    assert parked_s(chart, (), 9.0) is None


def test_medians_are_over_answers() -> None:
    """The median of a call is that of its answers; failures do not count."""
    picture = picture_of(history("dead"))
    seconds = [
        picture.seconds(span)
        for lane in picture.lanes
        for span in lane.spans
        if span.call == "commit" and span.outcome == "answered"
    ]
    assert picture.medians_s["commit"] == pytest.approx(statistics.median(seconds))


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("good", []),
        ("hung", ["deadline", "lease"]),
        ("lost_lease", ["cause"]),
        ("restore_discarded", ["cause", "deadline"]),
        ("parked_long", ["lease", "lease"]),
    ],
)
def test_lines_across(name: str, kinds: list[str]) -> None:
    """A deadline is drawn where it was reached or is ahead, a lease where it is ahead."""
    assert [mark.kind for mark in picture_of(history(name)).marks] == kinds


def test_takeover_is_a_line() -> None:
    """Where the epoch rises there is a line that names the new one."""
    entries = [
        attrs.evolve(entry, epoch=2) if entry.seq > 60 else entry for entry in history("good")
    ]
    marks = [mark for mark in picture_of(entries).marks if mark.kind == "takeover"]
    assert [(mark.label, mark.at_s) for mark in marks] == [
        ("taken over, epoch 2", history("good")[60].at_s)
    ]


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tone", "group"),
    [
        ("good", "good", ""),
        ("hung", "busy", ""),
        ("dead", "bad", "commit · gone · ActorDiedError"),
        ("not_ready", "bad", "prepare · refused"),
        ("full_disk", "bad", "manifest · OSError"),
        ("lost_lease", "bad", "renew · unanswered · TimeoutError"),
        ("restore_discarded", "bad", "restore · failed · OSError"),
        ("unconfirmed", "good", ""),
    ],
)
def test_tone_and_cause(name: str, tone: str, group: str) -> None:
    """How an operation looks, and under which cause it is counted."""
    picture = picture_of(history(name))
    assert tone_of(picture.chart, picture.state, picture.cause) == tone
    assert (cause_group(picture.cause) if picture.cause else "") == group


def test_happy_way_of_every_operation_chart() -> None:
    """The way that each chart declares first ends in its good final state."""
    ends = {name: happy_states(load_chart(name))[-1] for name in ("checkpoint", "restore", "sweep")}
    assert ends == {"checkpoint": "resumed", "restore": "resumed", "sweep": "done"}


def test_headline_is_bounded() -> None:
    """However many instances are waited for, the line names five of them."""
    story = attrs.evolve(pictured.good(500), answering=lambda *_: None, until_s=1.0)
    line = headline(picture_of(played(story)))
    assert line.count("/replica-") == 5
    assert "and 495 more" in line


# --- the chart ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", chart_names())
def test_boxes_of_a_chart_stand_apart(name: str) -> None:
    """No box covers another, every box and every corner lies within the drawing."""
    chart = load_chart(name)
    layout = layout_of(chart)
    boxes = list(layout.boxes.values())
    assert [box.state for box in boxes] == list(chart.states)
    for one, other in itertools.combinations(boxes, 2):
        assert abs(one.x - other.x) >= BOX_W or abs(one.y - other.y) >= BOX_H
    corners = [corner for edge in layout.edges.values() for corner in edge]
    corners += [(box.x, box.y) for box in boxes]
    corners += [(box.x + BOX_W, box.y + BOX_H) for box in boxes]
    assert all(0 < x < layout.width and 0 < y < layout.height for x, y in corners)


@pytest.mark.parametrize("name", ["checkpoint", "restore", "sweep"])
def test_edges_run_clear_of_boxes(name: str) -> None:
    """No edge of an operation's chart runs through a box that it does not join."""
    layout = layout_of(load_chart(name))
    for (source, target), corners in layout.edges.items():
        for (x, y), (x2, y2) in itertools.pairwise(corners):
            for box in layout.boxes.values():
                if box.state in (source, target):
                    continue
                over_x = min(x, x2) < box.x + BOX_W and max(x, x2) > box.x
                over_y = min(y, y2) < box.y + BOX_H and max(y, y2) > box.y
                assert not (over_x and over_y), (source, target, box.state)


@pytest.mark.parametrize("name", chart_names())
def test_drawing_shows_every_edge_of_the_chart(name: str) -> None:
    """There is one line per pair of states that the chart joins, and none besides."""
    chart = load_chart(name)
    joined = {
        (state.name, edge.to)
        for state in chart.states.values()
        for edges in state.on.values()
        for edge in edges
        if edge.to != state.name
    }
    assert set(layout_of(chart).edges) == joined


def test_path_is_marked_and_numbered() -> None:
    """What was passed through is marked in order, and where it stands alone is marked as that."""
    chart = load_chart("checkpoint")
    visits = [
        Visit(state="open", trigger="open", seconds=0.0),
        Visit(state="preparing", trigger="prepare", seconds=3.0),
        Visit(state="discarding", trigger="refuse", seconds=None),
    ]
    reader = read(chart_svg(chart, visits, settled=False))
    groups = [one for one in of(reader, "g") if "state" in one.attributes["class"].split()]
    marked = {one.text.split(":")[0]: one.attributes["class"].split() for one in groups}
    assert [name for name, kinds in marked.items() if "visited" in kinds] == [
        visit.state for visit in visits
    ]
    assert [name for name, kinds in marked.items() if "now" in kinds] == ["discarding"]
    labels = [one.text for one in of(reader, "text") if one.attributes["class"] == "trigger"]
    assert sorted(labels) == ["prepare", "refuse"]
    numbers = [one.text for one in of(reader, "text") if one.attributes["class"] == "number"]
    assert sorted(numbers) == ["1", "2", "3"]
    taken = [one for one in of(reader, "g") if one.attributes["class"] == "edge taken"]
    assert len(taken) == 2
