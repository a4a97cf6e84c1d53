"""`gymckpt show`: one operation as a timeline, an instance a row."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from gymckpt.cli.bars import CALL_STYLES, END_MARKS, Scale, axis_text, lane_text, states_text
from gymckpt.cli.common import (
    CANNOT_ANSWER,
    PROBLEM_FOUND,
    Found,
    JournalOption,
    JsonOption,
    OperationArgument,
    RunOption,
    answering,
    clock_text,
    console,
    find,
    leave,
    print_json,
)
from gymckpt.cli.styles import CALL_STATE_STYLES, instance_text

if TYPE_CHECKING:
    from rich.console import Console

    from gymckpt.diagnosis.course import Course, Leg
    from gymckpt.diagnosis.lanes import Lane
    from gymckpt.diagnosis.picture import Picture

__all__ = ["add_to"]

SHOW_SCHEMA = "gymckpt.show/1"

ROWS = 20
BAR_MIN = 20
INSTANCE_MAX = 28

_MEANS = {"abandoned": "given up", "asked": "still out"}
"""What the legend calls an outcome where that is not its own name."""

_WORK = ("prepare", "restore", "commit", "retire", "forget", "resume")
"""The calls whose durations have a column, in its order."""


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(show)


def show(
    op: OperationArgument,
    journal: JournalOption = None,
    run: RunOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Show at most so many instances.")
    ] = ROWS,
    as_json: JsonOption = False,
) -> None:
    """Show an operation as a timeline: a row per instance, the slowest on top."""
    from gymckpt.diagnosis.course import course_of  # noqa: PLC0415 - imported when needed
    from gymckpt.diagnosis.picture import picture_of  # noqa: PLC0415 - likewise

    with answering(), find(op, journal=journal, run=run) as found:
        entries = found.entries()
        if not entries:
            leave(found.cut or f"operation {op!r:.100} has no entry", CANNOT_ANSWER)
        picture = picture_of(entries, now_ts=found.now_ts, merge=not as_json)
    course = course_of(picture)
    lanes = sorted(picture.lanes, key=lambda lane: _rank(picture, lane))
    if as_json:
        print_json(_to_json(found, picture, course, lanes))
    else:
        out = console()
        _print_head(out, found, picture, course)
        out.print(_timeline(out.width, picture, lanes, limit))
        _print_tail(out, picture, lanes, limit)
    if found.cut:
        leave(found.cut, PROBLEM_FOUND)


def _rank(picture: Picture, lane: Lane) -> tuple[bool, bool, float]:
    """Order lanes: those in trouble first, then those that are waited for, then the slowest."""
    seconds = sum(picture.seconds(span) for span in lane.spans if span.call != "renew")
    return not lane.troubled, not lane.waiting, -seconds


# --- words --------------------------------------------------------------------------------------


def _print_head(out: Console, found: Found, picture: Picture, course: Course) -> None:
    from gymckpt.diagnosis.words import duration  # noqa: PLC0415 - imported when needed

    first, row = picture.first, found.row
    kind = picture.chart.name if picture.chart is not None else "operation"
    head = Text.assemble(
        (kind, "dim"),
        " ",
        (first.operation_id, "bold"),
        ("  ", ""),
        (picture.state, "bold green" if picture.settled and not picture.cause else "bold yellow"),
    )
    took = "took" if picture.settled else "for"
    when = clock_text(first.ts, day_of=time.time())
    owner = f", controller {row.owner}" if row is not None and not picture.settled else ""
    owner = ", imported" if row is not None and row.imported else owner
    head.append(f"  {when}, {took} {duration(course.total_s)}, run {first.run}{owner}", style="dim")
    out.print(head)
    for line in _sentences(course):
        out.print(line)
    out.print()


def _sentences(course: Course) -> Sequence[Text]:
    """Say how long everything was parked, who cost most of it, and the critical path."""
    from gymckpt.diagnosis.words import duration  # noqa: PLC0415 - imported when needed

    lines: list[Text] = []
    if course.parked_s:
        line = Text.assemble("parked for ", (duration(course.parked_s), "bold"))
        if course.costliest:
            instance, cost_s = course.costliest[0]
            share = f"{min(1.0, cost_s / course.parked_s):.0%}"
            line.append(f"; {share} of it, {duration(cost_s)}, is the cost of ")
            line.append_text(instance_text(instance))
            line.append(" alone")
        lines.append(line)
    path = Text.assemble(("critical path  ", "dim"))
    path.append_text(
        Text(" → ", style="dim").join(_leg_text(leg) for leg in course.legs if _tells(leg, course))
    )
    lines.append(path)
    return lines


def _tells(leg: Leg, course: Course) -> bool:
    """Whether a state is worth naming on the critical path."""
    return leg.seconds >= 0.005 * course.total_s or bool(leg.outcome not in ("", "answered"))


def _leg_text(leg: Leg) -> Text:
    from gymckpt.diagnosis.words import duration  # noqa: PLC0415 - imported when needed

    text = Text.assemble((leg.state, "bold"), f" {duration(leg.seconds)}")
    if leg.instance is not None:
        text.append(" (")
        text.append_text(instance_text(leg.instance))
        if leg.outcome != "answered":
            text.append(f" {leg.outcome}", style=CALL_STATE_STYLES.get(leg.outcome, ""))
        text.append(")")
    elif leg.waits_on in ("files", "body"):
        text.append(" (the file system)" if leg.waits_on == "files" else " (the body)")
    return text


# --- the timeline -------------------------------------------------------------------------------


def _timeline(width: int, picture: Picture, lanes: Sequence[Lane], limit: int) -> Table:
    from gymckpt.diagnosis.words import duration  # noqa: PLC0415 - imported when needed

    shown = lanes[:limit]
    used = {span.call for lane in lanes for span in lane.spans}
    calls = [call for call in _WORK if call in used]
    longest = max((len(lane.instance) for lane in shown), default=8)
    name_width = min(longest, INSTANCE_MAX, max(12, width // 4))
    cells = {
        lane.instance: {call: _seconds_of(picture, lane, call) for call in calls} for lane in shown
    }
    widths = {
        call: max([len(call), *(len(duration(by[call] or 0.0)) + 1 for by in cells.values())])
        for call in calls
    }
    bar_width = max(BAR_MIN, width - name_width - sum(widths.values()) - 2 * (len(calls) + 1) - 1)
    scale = Scale(picture.end_at_s, bar_width)
    table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=True, header_style="")
    table.add_column(Text("instance", "dim"), width=name_width, no_wrap=True, overflow="ellipsis")
    table.add_column(states_text(picture.states, scale), width=bar_width, no_wrap=True)
    for call in calls:
        style = CALL_STYLES.get(call, "")
        table.add_column(Text(call, style=style), width=widths[call], justify="right", no_wrap=True)
    for lane in shown:
        durations = [
            _duration_text(picture, lane, call, cells[lane.instance][call]) for call in calls
        ]
        table.add_row(instance_text(lane.instance), lane_text(lane, scale), *durations)
    table.add_row("", axis_text(scale), *("" for _ in calls))
    return table


def _seconds_of(picture: Picture, lane: Lane, call: str) -> float | None:
    """Return how long an instance took for a call, over all its asks."""
    spans = [span for span in lane.spans if span.call == call]
    if not spans:
        return None
    ends = [picture.end_at_s if span.ended_at_s is None else span.ended_at_s for span in spans]
    return max(ends) - spans[0].began_at_s


def _duration_text(picture: Picture, lane: Lane, call: str, seconds: float | None) -> Text:
    from gymckpt.diagnosis.words import duration  # noqa: PLC0415 - imported when needed

    if seconds is None:
        return Text("-", style="dim")
    outcome = [span.outcome for span in lane.spans if span.call == call][-1]
    style = "bold" if call in lane.slow else ""
    mark = END_MARKS.get(outcome)
    if mark is not None:
        emphasis = "" if outcome == "abandoned" else "bold "
        return Text(f"{duration(seconds)}{mark}", style=f"{emphasis}{CALL_STATE_STYLES[outcome]}")
    return Text(duration(seconds), style=style)


def _print_tail(out: Console, picture: Picture, lanes: Sequence[Lane], limit: int) -> None:
    """Say what was left out, what the signs mean, and what the instances in trouble said."""
    if len(lanes) > limit:
        rest = len(lanes) - limit
        troubled = sum(lane.troubled for lane in lanes[limit:])
        said = f"{rest:,} more instances" + (
            f", {troubled:,} of them in trouble" if troubled else ""
        )
        out.print(Text(f"{said}; --limit shows them", style="dim"))
    legend = Text.assemble(("━", "blue"), (" a call  ", "dim"))
    for outcome in ("refused", "failed", "unanswered", "abandoned", "asked"):
        legend.append(END_MARKS[outcome], style=f"bold {CALL_STATE_STYLES[outcome]}")
        legend.append(f" {_MEANS.get(outcome, outcome)}  ", style="dim")
    legend.append("· leases renewed", style="dim")
    out.print(legend)
    notes = [
        (lane.instance, span)
        for lane in lanes[:limit]
        for span in lane.spans
        if span.note and (span.outcome not in ("answered", "abandoned") or span.call == "commit")
    ]
    for instance, span in notes[:5]:
        line = instance_text(instance)
        line.append(f" {span.outcome} {span.call}", style=CALL_STATE_STYLES[span.outcome])
        line.append(f": {span.note}")
        out.print(line)
    if len(notes) > 5:
        out.print(Text(f"and {len(notes) - 5} more; gymckpt explain says why", style="dim"))


# --- for programs -------------------------------------------------------------------------------


def _to_json(
    found: Found, picture: Picture, course: Course, lanes: Sequence[Lane]
) -> dict[str, Any]:
    first, row = picture.first, found.row
    return {
        "schema": SHOW_SCHEMA,
        "run": first.run,
        "operation_id": first.operation_id,
        "chart": picture.chart.name if picture.chart is not None else None,
        "state": picture.state,
        "settled": picture.settled,
        "owner": row.owner if row is not None else None,
        "imported": row is not None and row.imported,
        "opened_ts": first.ts,
        "cut_off": found.cut,
        "states": [
            {
                "state": span.state,
                "trigger": span.trigger,
                "entered_at_s": span.entered_at_s,
                "left_at_s": span.left_at_s,
            }
            for span in picture.states
        ],
        "course": course.to_json(),
        "instances": [
            {
                "instance": lane.instance,
                "troubled": lane.troubled,
                "slow": list(lane.slow),
                "asks": [
                    {
                        "call": span.call,
                        "ask": span.ask,
                        "began_at_s": span.began_at_s,
                        "ended_at_s": span.ended_at_s,
                        "outcome": span.outcome,
                        "note": span.note,
                    }
                    for span in lane.spans
                ],
            }
            for lane in lanes
        ],
    }
