"""The page of one operation, as a text: what it holds, what it survives, and that it is safe."""

import functools
import html
import itertools
import json
import math
import re

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymckpt.core.entry import Entry
from gymckpt.diagnosis.explain import explain
from gymckpt.diagnosis.page import escaped, seconds_text
from gymckpt.diagnosis.report import report
from gymckpt.wording import visible
from tests.diagnosis import pictured
from tests.diagnosis.markup import data_in, faults_of, of, read, text_in
from tests.diagnosis.pictured import START_TS, STORIES, played

SMALL = [name for name in STORIES if name != "crowd"]


@functools.cache
def history(name: str) -> tuple[Entry, ...]:
    """Return a story's history."""
    return played(STORIES[name]())


@pytest.mark.parametrize("name", sorted(STORIES))
def test_page_is_whole_and_reaches_nowhere(name: str) -> None:
    """Every page is well-formed, allows only its own style and script, and names no address."""
    assert faults_of(report(history(name))) == []


@pytest.mark.parametrize("name", SMALL)
def test_history_that_is_cut_off_anywhere_has_a_page(name: str) -> None:
    """However far a history goes, its page holds as many instances as were named."""
    whole = history(name)
    for count in {1, 2, 3, len(whole) // 2, len(whole) - 1}:
        page = report(whole[:count])
        assert faults_of(page) == []
        assert len(data_in(page)["lanes"]) == 12


def test_no_history_has_no_page() -> None:
    """Without any entry there is an error that says so."""
    with pytest.raises(ValueError, match="without any entry"):
        report(())


def test_summary_names_state_parked_time_slowest_and_cause() -> None:
    """The first things on the page are where it stands, how long, the slowest and why."""
    page = report(history("dead"))
    words = text_in(page)
    assert "Given up while committing: commit could not succeed on 1 of 12" in words
    tiles = dict(_tiles(page))
    assert tiles["State"].startswith("discarded")
    assert tiles["Took"].startswith("17.5 s")
    assert tiles["Parked"].startswith("15.0 s")
    assert tiles["Slowest"].startswith("tools/replica-3")
    assert "1 in trouble" in tiles["Instances"]


def _tiles(page: str) -> list[tuple[str, str]]:
    reader = read(page)
    return [
        (name.text, value.text)
        for name, value in zip(of(reader, "dt"), of(reader, "dd"), strict=True)
    ]


def test_unfinished_operation_is_drawn_until_now() -> None:
    """What is waited for lasts until now, and what is ahead lies beyond it."""
    page = report(history("hung"), now_ts=START_TS + 96.0)
    data = data_in(page)
    assert data["end"] == 96.0
    waiting = [lane for lane in data["lanes"] if any(span[3] is None for span in lane[3])]
    assert [lane[0] for lane in waiting] == ["swe/replica-2"]
    ahead = {label: at_s for at_s, _, label in data["marks"] if at_s > data["end"]}
    assert ahead == {
        "prepare deadline, first lease ends": 120.0,
        "every lease has ended": 720.0,
    }
    assert "In preparing for 1 min 36 s" in text_in(page)


def test_settled_operation_does_not_last_until_now() -> None:
    """Of an operation that has ended, now changes nothing."""
    assert report(history("good"), now_ts=START_TS + 9e6) == report(history("good"))


def test_blockers_and_failures_are_listed() -> None:
    """Everything that was in the way, and every failure's words, stand below the picture."""
    words = text_in(report(history("not_ready")))
    for expected in ("math-17, math-18-a1, web-4", "environment-worker-lost", "and 8 more"):
        assert expected in words
    assert "ActorDiedError: The actor died" in text_in(report(history("dead")))


def test_late_replies_are_listed_with_what_came_of_them() -> None:
    """A late confirmation, a reply that no longer counts and a lapse are told apart."""
    words = text_in(report(history("unconfirmed")))
    for expected in ("came late, and confirms it", "its lease has passed", "too late to count"):
        assert expected in words


def test_alike_troubles_are_one_row() -> None:
    """Six hundred instances in one kind of trouble make one row, which opens to name them."""
    story = attrs.evolve(
        pictured.good(600),
        answering=lambda instance, call, ask: pictured.Answer(
            0.5, "failed", failure=pictured.SHAKY
        ),
        until_s=40.0,
    )
    page = report(played(story))
    rows = [element.text for element in of(read(page), "tr") if "all 600" in element.text]
    assert [row[:13] for row in rows] == ["resumefailed6", "preparefailed"]
    assert all("tools/replica-199" in row for row in rows)


def test_history_that_no_chart_allows_is_drawn_and_denounced() -> None:
    """An entry that the chart cannot give is named, and the picture is there all the same."""
    broken = [
        attrs.evolve(entry, dest="committed") if entry.trigger == "commit" else entry
        for entry in history("good")
    ]
    page = report(broken)
    assert "This history breaks its chart" in text_in(page)
    assert "committed" in {state[0] for state in data_in(page)["states"]}


def test_history_of_an_unknown_chart_is_drawn() -> None:
    """A chart that this release does not ship costs its drawing and nothing else."""
    first = history("good")[0]
    facts = {**first.facts, "chart": "migration"}
    page = report([attrs.evolve(first, facts=facts), *history("good")[1:]])
    assert faults_of(page) == []
    assert "cannot be replayed" in text_in(page) or "breaks its chart" in text_in(page)
    assert len(data_in(page)["lanes"]) == 12


HOSTILE = (
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script>",
    "</script/ ></script ><script >window.pwned=1</script >",
    "\"><img src=x onerror='window.pwned=1'>",
    "<!--<script>",
    "]]>&lt;b&gt;\u2028\u202e\x00\ud800",
    "' onmouseover='window.pwned=1",
)
texts = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40))


def poisoned(base: tuple[Entry, ...], words: list[str]) -> list[Entry]:
    """Return a history with hostile words wherever somebody else's words can stand."""
    names = {name: f"{words[0]}{number}/{name}" for number, name in enumerate(_names(base))}
    found: list[Entry] = []
    for entry in base:
        facts = dict(entry.facts)
        if entry.seq == 1:
            facts["instances"] = [names[name] for name in facts["instances"]]
        if "failure" in facts:
            facts["failure"] = {**facts["failure"], "type": words[1], "text": words[2]}
        if "blockers" in facts:
            facts["blockers"] = {words[3]: {"count": 2, "sample": [words[0], words[1]]}}
        if "sample" in facts:
            facts["sample"] = [{"instance": words[2], "state": words[3], "failure": None}]
        if entry.instance is None and entry.seq > 1:
            facts["reason"] = words[3]
        found.append(
            attrs.evolve(
                entry,
                run=words[1],
                operation_id=words[2],
                instance=entry.instance and names[entry.instance],
                facts=facts,
            )
        )
    return found


def _names(base: tuple[Entry, ...]) -> list[str]:
    return list(base[0].facts["instances"])


@settings(max_examples=60, deadline=None)
@given(words=st.lists(texts, min_size=4, max_size=4), name=st.sampled_from(["dead", "not_ready"]))
def test_hostile_words_stay_words(words: list[str], name: str) -> None:
    """Whatever ids, failures and reasons say, the page has the elements that it always has."""
    page = report(poisoned(history(name), words))
    page.encode("utf-8")
    assert faults_of(page) == []
    tags = {element.tag for element in read(page).elements}
    assert tags <= {element.tag for element in read(report(history(name))).elements}
    shown = {lane[0] for lane in data_in(page)["lanes"]}
    assert shown == {
        visible(f"{words[0]}{number}/{one}") for number, one in enumerate(_names(history(name)))
    }


@given(text=st.text())
def test_escaped_text_is_the_visible_text(text: str) -> None:
    """Escaping changes how a text is written, never what is read; and it can hold no markup."""
    markup = escaped(text)
    assert html.unescape(markup) == visible(text)
    assert not set(markup) & set("<>\"'")
    assert all(char.isprintable() or char == "\n" for char in markup.replace("\xa0", " "))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-1e6, 1e6) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
odd_facts = st.dictionaries(
    st.sampled_from(
        [
            *("failure", "blockers", "deadline_ts", "abandoned", "sample", "reason", "call"),
            *("instances", "settings", "chart", "failed", "outcome", "root"),
        ]
    ),
    json_values,
)


@settings(max_examples=80, deadline=None)
@given(odd=odd_facts, seq=st.integers(1, 111))
def test_any_facts_have_a_page(odd: dict[str, object], seq: int) -> None:
    """Facts of any JSON, in any entry, cost at most what they would have said."""
    damaged = [
        attrs.evolve(entry, facts={**entry.facts, **odd}) if entry.seq == seq else entry
        for entry in history("dead")
    ]
    assert faults_of(report(damaged)) == []


@given(seconds=st.floats(0, 1e9))
def test_durations_read_back_near_what_they_are(seconds: float) -> None:
    """A duration in words is off by at most one hundredth of itself, or half a millisecond."""
    units = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "days": 86400.0}
    parts = seconds_text(seconds).split()
    total = sum(
        float(number) * units[unit] for number, unit in zip(parts[::2], parts[1::2], strict=True)
    )
    assert abs(total - seconds) <= max(0.0005, 0.011 * seconds)


def test_explanation_stands_at_the_top() -> None:
    """With an explanation its summary is the first line, and its moves and steps are named."""
    found = explain(history("hung"), now_ts=START_TS + 96.0)
    page = report(history("hung"), explanation=found, now_ts=START_TS + 96.0)
    words = text_in(page)
    assert visible(found.summary) in words
    assert faults_of(page) == []
    for step in found.next:
        assert visible(step.what) in words
    for move in found.moves:
        assert (visible(move.command) in words) is move.allowed


# --- colours ------------------------------------------------------------------------------------

SEEN_AS = {
    "all colours": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "no green": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "no blue": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}
"""How linear colours look to people who lack one kind of cones (Machado and others, 2009)."""

SOLID = ("prepare", "commit", "resume", "refused", "failed", "gone")
"""What is told apart by its colour, also where its pattern is too small to be seen."""


def themes() -> dict[str, dict[str, str]]:
    """Return the colours of both themes, as the page's own style names them."""
    style = of(read(report(history("good"))), "style")[0].text
    light, dark = style.split("@media (prefers-color-scheme: dark)", 1)
    found = {}
    for name, part in (("light", light), ("dark", dark[: dark.index("* {")])):
        found[name] = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part))
    return found


def lab(colour: str, seen_as: tuple[tuple[float, ...], ...]) -> tuple[float, float, float]:
    """Return a colour as it is seen, in CIE Lab."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    seen = [
        min(1.0, max(0.0, sum(k * c for k, c in zip(row, linear, strict=True)))) for row in seen_as
    ]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    scaled = [
        sum(k * c for k, c in zip(row, seen, strict=True)) / w
        for row, w in zip(to_xyz, white, strict=True)
    ]
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in scaled)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("eyes", sorted(SEEN_AS))
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_colour_blind_can_tell_the_colours_apart(theme: str, eyes: str) -> None:
    """Any two colours of bars, and each and the ground, differ clearly for every kind of eyes."""
    colours = themes()[theme]
    named = {name: lab(colours[name], SEEN_AS[eyes]) for name in (*SOLID, "panel")}
    for (one, first), (other, second) in itertools.combinations(named.items(), 2):
        assert math.dist(first, second) > 14, (one, other)


def test_both_themes_have_every_colour() -> None:
    """No colour of the light theme is left over in the dark one."""
    found = themes()
    assert set(found["light"]) == set(found["dark"])
    kept = {name for name, colour in found["light"].items() if found["dark"][name] == colour}
    assert kept == set()


def test_data_is_plain_json() -> None:
    """The data of a large page has no NaN, and is smaller than its history."""
    entries = history("parked_long")
    text = json.dumps(data_in(report(entries)), allow_nan=False)
    assert len(text) < 20 * len(entries)
