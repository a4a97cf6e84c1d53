"""The trace of an operation, held against the Trace Event Format as Perfetto reads it."""

import functools
import itertools
import json
import math
from collections import defaultdict
from typing import Any

import attrs
import pytest

from gymckpt.core.entry import Entry
from gymckpt.diagnosis.trace import trace
from tests.diagnosis import pictured
from tests.diagnosis.pictured import START_TS, STORIES, played

SMALL = [name for name in STORIES if name != "crowd"]

COMMON = {"ph", "pid", "tid", "name"}
FIELDS: dict[str, tuple[set[str], set[str]]] = {
    "X": ({"ts", "dur", "cat", "args"}, {"cname"}),
    "B": ({"ts", "cat", "args"}, {"cname"}),
    "i": ({"ts", "s", "cat", "args"}, set()),
    "C": ({"ts", "args"}, set()),
    "M": ({"args"}, set()),
    "s": ({"ts", "cat", "id"}, set()),
    "f": ({"ts", "cat", "id", "bp"}, set()),
}
"""Phase to the fields that an event must have, and may have, besides the common ones."""

METADATA = {
    "process_name": "name",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


@functools.cache
def history(name: str) -> tuple[Entry, ...]:
    """Return a story's history."""
    return played(STORIES[name]())


def faults_of(made: dict[str, Any]) -> list[str]:
    """Return everything in which a trace differs from the format."""
    faults = []
    read = json.loads(json.dumps(made, allow_nan=False))
    if read != made or set(made) != {"traceEvents", "displayTimeUnit", "otherData"}:
        faults.append("it is no plain JSON object of a trace")
    if made["displayTimeUnit"] not in ("ms", "ns"):
        faults.append(f"displayTimeUnit is {made['displayTimeUnit']!r}")
    for event in made["traceEvents"]:
        faults += [f"{problem}: {event}" for problem in _event_faults(event)]
    return [*faults, *_track_faults(made["traceEvents"]), *_flow_faults(made["traceEvents"])]


def _event_faults(event: dict[str, Any]) -> list[str]:
    phase = event.get("ph")
    if phase not in FIELDS:
        return [f"phase {phase!r}"]
    must, may = FIELDS[phase]
    faults = []
    if not COMMON | must <= set(event) <= COMMON | must | may:
        faults.append(f"fields {sorted(event)}")
    if type(event["pid"]) is not int or type(event["tid"]) is not int or event["pid"] <= 0:
        faults.append("ids are positive ints")
    if not isinstance(event["name"], str) or not event["name"]:
        faults.append("a name is a text")
    for field in ("ts", "dur"):
        value = event.get(field, 0)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            faults.append(f"{field} is no number")
        elif value < 0:
            faults.append(f"{field} is negative")
    if phase == "i" and event["s"] not in ("g", "p", "t"):
        faults.append("scope")
    if phase == "f" and event["bp"] != "e":
        faults.append("binding point")
    if phase == "M":
        field = METADATA.get(event["name"], "")
        kind = int if field == "sort_index" else str
        if set(event["args"]) != {field} or type(event["args"][field]) is not kind:
            faults.append("metadata")
    if phase == "C" and any(type(value) is not int for value in event["args"].values()):
        faults.append("a counter counts")
    return faults


def _slices(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[float, float]]]:
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] in ("X", "B"):
            ended = event["ts"] + event["dur"] if event["ph"] == "X" else math.inf
            tracks[event["pid"], event["tid"]].append((event["ts"], ended))
    return tracks


def _track_faults(events: list[dict[str, Any]]) -> list[str]:
    """Slices of one track come in order and never overlap; every track has a name."""
    faults = []
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = [e["pid"] for e in events if e["name"] == "process_name"]
    if len(set(processes)) != len(processes):
        faults.append("a process has two names")
    for track, slices in _slices(events).items():
        if track not in named or track[0] not in processes:
            faults.append(f"track {track} has no name")
        for (_, ended), (began, _) in itertools.pairwise(slices):
            if began < ended - 0.01:  # a hundredth of a microsecond is the rounding
                faults.append(f"slices of track {track} overlap")
    return faults


def _flow_faults(events: list[dict[str, Any]]) -> list[str]:
    """Each arrow has a beginning and an end, in this order, each within a slice."""
    faults = []
    tracks = _slices(events)
    ends: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in ("s", "f"):
            ends[event["name"], event["id"]].append(event)
            within = tracks[event["pid"], event["tid"]]
            if not any(began <= event["ts"] <= ended for began, ended in within):
                faults.append(f"flow {event['id']} binds to no slice")
    for identity, both in ends.items():
        if [event["ph"] for event in both] != ["s", "f"] or both[0]["ts"] > both[1]["ts"]:
            faults.append(f"flow {identity} is {both}")
    return faults


@pytest.mark.parametrize("name", sorted(STORIES))
def test_trace_keeps_to_the_format(name: str) -> None:
    """Every event has the fields of its phase, tracks do not overlap, arrows bind to slices."""
    assert faults_of(trace(history(name))) == []


@pytest.mark.parametrize("name", ["dead", "unconfirmed", "restore_discarded"])
def test_trace_of_what_is_cut_off_anywhere_keeps_to_the_format(name: str) -> None:
    """A history that ends anywhere has a trace."""
    whole = history(name)
    for count in range(1, len(whole), 3):
        assert faults_of(trace(whole[:count])) == []


def test_every_ask_is_a_slice_of_its_instance() -> None:
    """Each ask is on the track of its call, from sending to whatever ended the wait."""
    entries = history("lost_lease")
    made = trace(entries)["traceEvents"]
    process = {e["pid"]: e["args"]["name"] for e in made if e["name"] == "process_name"}
    thread = {(e["pid"], e["tid"]): e["args"]["name"] for e in made if e["name"] == "thread_name"}
    slices = sorted(
        (process[e["pid"]], thread[e["pid"], e["tid"]], e["args"]["ask"], e["ts"])
        for e in made
        if e["ph"] in ("X", "B") and e["cat"] in ("call", "trouble")
    )
    asks = sorted(
        (str(one.instance), str(one.call), one.ask, round(one.at_s * 1e6, 3))
        for one in entries
        if one.trigger in ("ask", "retry")
    )
    assert slices == asks


@pytest.mark.parametrize("name", SMALL)
def test_states_fill_the_whole_time(name: str) -> None:
    """The states of the operation follow each other without a gap from its opening to its end."""
    entries = history(name)
    states = [e for e in trace(entries)["traceEvents"] if e.get("cat") == "state"]
    ends = [0.0, *(e["ts"] + e["dur"] for e in states)]
    assert [e["ts"] for e in states] == pytest.approx(ends[:-1], abs=0.01)
    assert ends[-1] == pytest.approx(entries[-1].at_s * 1e6, abs=0.01)
    lived = [e.dest for e in entries if e.instance is None and e.dest != e.source]
    assert [e["name"] for e in states] == lived


def test_open_asks_begin_and_do_not_end() -> None:
    """What is waited for is a slice that has only a beginning, and the counter ends with it."""
    made = trace(history("hung"), now_ts=START_TS + 96.0)["traceEvents"]
    assert [e["name"] for e in made if e["ph"] == "B"] == ["prepare: asked"]
    counts = [e["args"]["instances"] for e in made if e["ph"] == "C"]
    assert (max(counts), counts[-1]) == (12, 1)


def test_counters_end_at_nothing_when_it_has_ended() -> None:
    """Of an operation that has ended every counter goes back to zero and is never below."""
    made = trace(history("good"))["traceEvents"]
    counts: dict[str, list[int]] = defaultdict(list)
    for event in made:
        if event["ph"] == "C":
            counts[event["name"]].append(event["args"]["instances"])
    assert set(counts) == {
        f"waiting for {call}" for call in ("prepare", "renew", "commit", "resume")
    }
    assert all(values[-1] == 0 and min(values) == 0 for values in counts.values())


def test_stale_replies_are_instants() -> None:
    """Each reply that no longer counts is an instant on the track of its call."""
    entries = history("dead")
    made = trace(entries)["traceEvents"]
    stale = [e for e in made if e["ph"] == "i" and e["cat"] == "stale"]
    assert len(stale) == sum(entry.trigger == "stale" for entry in entries) > 0


def test_arrow_leads_from_the_failure_to_what_it_caused() -> None:
    """The cause is an arrow from the failed ask to the state that the operation went to."""
    made = trace(history("dead"))["traceEvents"]
    start, end = [e for e in made if e["name"] == "gave it up"]
    process = {e["pid"]: e["args"]["name"] for e in made if e["name"] == "process_name"}
    assert process[start["pid"]] == "browser/replica-1"
    state = next(e for e in made if e.get("cat") == "state" and e["ts"] == end["ts"])
    assert state["name"] == "discarding"


def test_retries_are_joined_by_arrows() -> None:
    """Each ask that was sent again is reached by an arrow from the one before."""
    made = trace(history("unconfirmed"))["traceEvents"]
    again = sum(1 for e in made if e["ph"] == "f" and e["name"] == "sent again")
    assert again == sum(one.trigger == "retry" for one in history("unconfirmed")) > 0


def test_hostile_words_stay_words() -> None:
    """Ids and texts are data, whatever they say; what UTF-8 cannot hold is spelled out."""
    entries = [
        attrs.evolve(entry, instance=entry.instance and f"\ud800</script>{entry.instance}")
        for entry in history("dead")[1:]
    ]
    made = trace([history("dead")[0], *entries])
    json.dumps(made, ensure_ascii=False).encode("utf-8")
    assert faults_of(made) == []


def test_two_thousand_instances_have_a_trace() -> None:
    """A process per instance, and one for the operation."""
    made = trace(played(pictured.crowd(400)))["traceEvents"]
    assert sum(e["name"] == "process_name" for e in made) == 401
