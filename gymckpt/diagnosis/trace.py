"""
One operation as a trace in the Trace Event Format, which Perfetto and Chromium open.

The operation is the first process: its states on one track, what gave it up and who took it over as
instants, and a counter of how many instances each call waits for. Every instance is a process with
a track per call, so that slices of one track never overlap. An arrow leads from an ask to the one
that was sent again in its place, and from what gave the operation up to the state that followed.
Times are microseconds since the operation was opened, by its controller's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gymckpt.core.entry import Entry
from gymckpt.core.settings import RENEW
from gymckpt.diagnosis.headline import cause_words
from gymckpt.diagnosis.lanes import TROUBLE, Lane, Span
from gymckpt.diagnosis.page import clock_text
from gymckpt.diagnosis.picture import Picture, picture_of
from gymckpt.wording import visible

__all__ = ["trace"]

OPERATION_PID = 1
STATES_TID, EVENTS_TID = 1, 2

TraceEvent = dict[str, Any]


def trace(entries: Iterable[Entry], *, now_ts: float | None = None) -> dict[str, Any]:
    """
    Return one operation as a trace; `json.dumps` of it is the file.

    Args:
        entries: Its history from the first entry, in order; may end anywhere.
        now_ts: The wall time until which an unfinished operation lasts; None for its last entry.

    Raises:
        ValueError: There is no entry.
    """
    picture = picture_of(entries, now_ts=now_ts, merge=False)
    first, last = picture.first, picture.last
    events = [
        *_operation_events(picture),
        *_counters(picture),
        *(
            event
            for number, lane in enumerate(picture.lanes)
            for event in _lane_events(picture, lane, OPERATION_PID + 1 + number)
        ),
        *_cause_flow(picture),
    ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "run": visible(first.run),
            "operation": visible(first.operation_id),
            "opened": clock_text(first.ts),
            "state": visible(picture.state),
            "entries": str(last.seq),
        },
    }


def _us(seconds: float) -> float:
    """Return microseconds, to the nanosecond."""
    return round(seconds * 1e6, 3)


def _named(pid: int, name: str, order: int, threads: Iterable[tuple[int, str]]) -> Iterator[Any]:
    """Yield what a process and its threads are called, and where they stand."""
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}}
    order_args = {"sort_index": order}
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": order_args}
    for tid, thread in threads:
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": thread}}
        yield {
            "ph": "M",
            "pid": pid,
            "tid": tid,
            "name": "thread_sort_index",
            "args": {"sort_index": tid},
        }


def _operation_events(picture: Picture) -> Iterator[TraceEvent]:
    first = picture.first
    kind = picture.chart.name if picture.chart else "operation"
    name = visible(f"{kind} {first.operation_id}")
    yield from _named(OPERATION_PID, name, 0, ((STATES_TID, "state"), (EVENTS_TID, "events")))
    for span in picture.states:
        row = picture.chart.states.get(span.state) if picture.chart else None
        left_s = picture.end_at_s if span.left_at_s is None else span.left_at_s
        yield {
            "ph": "X",
            "pid": OPERATION_PID,
            "tid": STATES_TID,
            "name": visible(span.state),
            "cat": "state",
            "ts": _us(span.entered_at_s),
            "dur": _us(max(0.0, left_s - span.entered_at_s)),
            "args": {
                "means": row.means if row else "",
                "entered by": visible(span.trigger),
                "entry": span.seq,
            },
        }
    for mark in picture.marks:
        if mark.at_s <= picture.end_at_s:
            scope = "g" if mark.kind == "cause" else "p"
            yield _instant(OPERATION_PID, EVENTS_TID, mark.label, mark.at_s, mark.kind, scope=scope)


def _instant(
    pid: int, tid: int, name: str, at_s: float, category: str, *, scope: str = "t", **args: Any
) -> TraceEvent:
    return {
        "ph": "i",
        "pid": pid,
        "tid": tid,
        "name": visible(name),
        "cat": category,
        "ts": _us(at_s),
        "s": scope,
        "args": args,
    }


def _counters(picture: Picture) -> Iterator[TraceEvent]:
    """Yield how many instances each call waits for, whenever that changes."""
    changes: dict[str, dict[float, int]] = {}
    for lane in picture.lanes:
        for span in lane.spans:
            of_call = changes.setdefault(span.call, {})
            of_call[span.began_at_s] = of_call.get(span.began_at_s, 0) + 1
            if span.ended_at_s is not None:
                of_call[span.ended_at_s] = of_call.get(span.ended_at_s, 0) - 1
    for call, of_call in changes.items():
        waiting = 0
        for at_s in sorted(of_call):
            if of_call[at_s] == 0:
                continue
            waiting += of_call[at_s]
            yield {
                "ph": "C",
                "pid": OPERATION_PID,
                "tid": 0,
                "name": visible(f"waiting for {call}"),
                "ts": _us(at_s),
                "args": {"instances": waiting},
            }


def _lane_events(picture: Picture, lane: Lane, pid: int) -> Iterator[TraceEvent]:
    """Yield one instance: a track per call, what came afterwards, arrows between retries."""
    used = [*(span.call for span in lane.spans), *(tick.call for tick in lane.ticks)]
    calls = list(dict.fromkeys(used))
    tids = {call: number for number, call in enumerate(calls, 1)}
    threads = [(tid, visible(call)) for call, tid in tids.items()]
    yield from _named(pid, visible(lane.instance), pid, threads)
    before: dict[str, Span] = {}
    for span in lane.spans:
        yield _slice(picture, span, pid, tids[span.call])
        earlier = before.get(span.call)
        if earlier is not None and span.call != RENEW:
            identity = f"{pid}.{tids[span.call]}.{span.ask}"
            yield from _flow("sent again", identity, (pid, tids[span.call], earlier.began_at_s),
                             (pid, tids[span.call], span.began_at_s))  # fmt: skip
        before[span.call] = span
    for tick in lane.ticks:
        name = f"{tick.kind} {tick.call}"
        args: dict[str, Any] = {"ask": tick.ask, "note": visible(tick.note)}
        yield _instant(pid, tids[tick.call], name, tick.at_s, tick.kind, **args)


def _slice(picture: Picture, span: Span, pid: int, tid: int) -> TraceEvent:
    """Return one ask; one that is waited for begins and does not end."""
    args: dict[str, Any] = {
        "outcome": span.outcome,
        "ask": span.ask,
        "deadline_s": round(span.deadline_at_s, 6),
    }
    if span.note:
        args["note"] = visible(span.note)
    event: TraceEvent = {
        "ph": "B" if span.ended_at_s is None else "X",
        "pid": pid,
        "tid": tid,
        "name": visible(f"{span.call}: {span.outcome}"),
        "cat": "trouble" if span.outcome in TROUBLE else "call",
        "ts": _us(span.began_at_s),
        "args": args,
    }
    if span.ended_at_s is not None:
        event["dur"] = _us(max(0.0, span.ended_at_s - span.began_at_s))
    if span.outcome in TROUBLE:
        event["cname"] = "terrible"
    return event


def _flow(
    name: str, identity: str, start: tuple[int, int, float], end: tuple[int, int, float]
) -> Iterator[TraceEvent]:
    """Yield an arrow between two slices, each named by a moment within it."""
    for phase, (pid, tid, at_s) in (("s", start), ("f", end)):
        event: TraceEvent = {
            "ph": phase,
            "pid": pid,
            "tid": tid,
            "name": name,
            "cat": "flow",
            "id": identity,
            "ts": _us(at_s),
        }
        if phase == "f":
            event["bp"] = "e"
        yield event


def _cause_flow(picture: Picture) -> Iterator[TraceEvent]:
    """Yield an arrow from the ask that gave the operation up to the state that followed."""
    cause = picture.cause
    if cause is None:
        return
    note = {"why": visible(cause_words(cause))}
    yield _instant(
        OPERATION_PID, STATES_TID, f"cause: {cause.trigger}", cause.entered_at_s, "cause", **note
    )
    found = _first_trouble(picture.lanes, str(cause.facts.get("call")), cause.entered_at_s)
    if found is None:
        return
    number, lane, span = found
    calls = list(dict.fromkeys(one.call for one in lane.spans))
    start = (OPERATION_PID + 1 + number, calls.index(span.call) + 1, span.began_at_s)
    end = (OPERATION_PID, STATES_TID, cause.entered_at_s)
    yield from _flow("gave it up", "cause", start, end)


def _first_trouble(
    lanes: Sequence[Lane], call: str, until_s: float
) -> tuple[int, Lane, Span] | None:
    """Return the ask of a call that was the first to end in trouble."""
    found = [
        (span.ended_at_s, number, lane, span)
        for number, lane in enumerate(lanes)
        for span in lane.spans
        if span.call == call
        and span.outcome in TROUBLE
        and span.ended_at_s is not None
        and span.ended_at_s <= until_s
    ]
    if not found:
        return None
    _, number, lane, span = min(found, key=lambda item: item[:2])
    return number, lane, span
