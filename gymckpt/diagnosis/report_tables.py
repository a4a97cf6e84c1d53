"""
What stands below the picture of a report: the chart, the path, the trouble, what is in the way.

Every table is bounded: what is alike is one row that counts its instances, and opens to name them
all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gymckpt.core.entry import Entry
from gymckpt.diagnosis.drawing import Visit, chart_svg
from gymckpt.diagnosis.facts import blockers_of
from gymckpt.diagnosis.headline import cause_words
from gymckpt.diagnosis.lanes import TROUBLE, StateSpan
from gymckpt.diagnosis.page import clock_text, escaped, foreign, seconds_text
from gymckpt.diagnosis.picture import Picture
from gymckpt.errors import text_of

__all__ = ["afterwards_part", "blockers_part", "chart_part", "path_part", "table", "troubles_part"]

ROWS_MAX = 300
NAMED_MAX = 3

_AFTERWARDS = {
    "stale": "came too late to count",
    "confirm": "came late, and confirms it",
    "lapse": "never confirmed; its lease has passed",
    "die": "turned out to be dead",
}


def table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], *, of: str) -> str:
    """
    Return rows as a table; beyond a bound they are only counted.

    Args:
        columns: Title and class of each column.
        rows: Cells, as markup.
        of: What a row is, in the plural.
    """
    head = "".join(f'<th scope="col" class="{kind}">{title}</th>' for title, kind in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}" data-name="{title}">{cell}</td>'
            for (title, kind), cell in zip(columns, row, strict=True)
        )
        + "</tr>"
        for row in rows[:ROWS_MAX]
    )
    more = len(rows) - ROWS_MAX
    rest = f'<p class="hint">and {more} more {of}</p>' if more > 0 else ""
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{rest}"
    )


def chart_part(picture: Picture) -> str:
    """Return the chart with the path that was taken."""
    chart = picture.chart
    if chart is None:
        return '<section class="panel"><h2>Chart</h2><p class="none">Not known here.</p></section>'
    visits = [
        Visit(
            state=span.state,
            trigger=span.trigger,
            seconds=None if span.left_at_s is None else span.left_at_s - span.entered_at_s,
        )
        for span in picture.states
        if span.state in chart.states
    ]
    drawn = chart_svg(chart, visits, settled=picture.settled)
    return (
        f'<section class="panel" id="chart"><h2>{escaped(chart.name)}, and the path taken</h2>'
        f"{drawn}</section>"
    )


def path_part(picture: Picture) -> str:
    """Return what the operation itself did, in words."""
    chart = picture.chart
    rows: list[list[str]] = []
    for number, span in enumerate(picture.states, 1):
        row = chart.states.get(span.state) if chart else None
        meaning = chart.triggers.get(span.trigger, "") if chart else ""
        why = "" if number == 1 else _why(span) or escaped(meaning)
        lasted = "" if span.left_at_s is None else seconds_text(span.left_at_s - span.entered_at_s)
        rows.append(
            [
                str(number),
                seconds_text(span.entered_at_s),
                f"<strong>{escaped(span.state)}</strong>",
                f'{escaped(span.trigger)}<br><span class="detail">{why}</span>'
                if why
                else escaped(span.trigger),
                "" if row is not None and row.final else lasted or "is here now",
            ]
        )
    columns = (
        ("", "short"),
        ("at", "number"),
        ("state", "short"),
        ("entered by", ""),
        ("for", "number"),
    )
    opened = clock_text(picture.first.ts)
    return (
        f'<section class="panel" id="path"><h2>The path in words</h2>'
        f'{table(columns, rows, of="states")}<p class="hint">0 s is {opened}.</p></section>'
    )


def _why(span: StateSpan) -> str:
    """Return what was recorded about a step, where something was."""
    facts = span.facts
    if "sample" in facts or "failure" in facts:
        return foreign(cause_words(span))
    return foreign(text_of(facts["reason"], 600)) if "reason" in facts else ""


def troubles_part(picture: Picture) -> str:
    """Return every ask that did not come to an answer, those that are alike together."""
    alike: dict[tuple[str, str, str], list[tuple[str, float]]] = {}
    for lane in picture.lanes:
        for span in lane.spans:
            if span.outcome in TROUBLE:
                key = (span.call, span.outcome, span.note)
                alike.setdefault(key, []).append((lane.instance, picture.seconds(span)))
    rows = [
        [
            escaped(call),
            f'<span class="bad">{escaped(outcome)}</span>',
            str(len(dict.fromkeys(name for name, _ in found))),
            _instances(name for name, _ in found),
            _range([seconds for _, seconds in found]),
            foreign(note),
        ]
        for (call, outcome, note), found in sorted(alike.items(), key=lambda item: -len(item[1]))
    ]
    columns = (
        ("call", "short"),
        ("came to", "short"),
        ("n", "number"),
        ("instances", "names"),
        ("after", "short"),
        ("in its own words", ""),
    )
    body = (
        table(columns, rows, of="kinds of trouble")
        if rows
        else '<p class="none">No call was refused, failed, or went unanswered.</p>'
    )
    return f'<section class="panel" id="trouble"><h2>Trouble</h2>{body}</section>'


def _instances(names: Iterable[str]) -> str:
    """Name a few instances; the rest are there to be opened."""
    listed = list(dict.fromkeys(names))
    shown = ", ".join(foreign(name) for name in listed[:NAMED_MAX])
    if len(listed) <= NAMED_MAX:
        return shown
    items = "".join(f"<li>{foreign(name)}</li>" for name in listed)
    return f"{shown}<details><summary>all {len(listed)}</summary><ul>{items}</ul></details>"


def _range(seconds: Sequence[float]) -> str:
    low, high = seconds_text(min(seconds)), seconds_text(max(seconds))
    return low if low == high else f"{low} to {high}"


def blockers_part(history: Iterable[Entry]) -> str:
    """Return what kept instances from parking; empty where nothing did."""
    rows: list[list[str]] = []
    total = 0
    for entry in history:
        for server, count, named in blockers_of(entry.facts):
            total += count
            more = f" and {count - len(named)} more" if count > len(named) else ""
            words = ", ".join(foreign(text_of(name, 200)) for name in named)
            cells = [foreign(entry.instance or ""), foreign(server), str(count), f"{words}{more}"]
            rows.append([*cells, seconds_text(entry.at_s)])
    if not rows:
        return ""
    columns = (
        ("instance", ""),
        ("server", ""),
        ("in the way", "number"),
        ("which", ""),
        ("said at", "number"),
    )
    return (
        f'<section class="panel" id="blockers"><h2>In the way of parking '
        f'<span class="kind">{total}</span></h2>{table(columns, rows, of="servers")}</section>'
    )


def afterwards_part(picture: Picture) -> str:
    """Return what came of asks after they were no longer waited for; empty where nothing did."""
    alike: dict[tuple[str, str, str], list[tuple[str, float]]] = {}
    for lane in picture.lanes:
        for tick in lane.ticks:
            key = (tick.call, tick.kind, tick.note)
            alike.setdefault(key, []).append((lane.instance, tick.at_s))
    if not alike:
        return ""
    rows = [
        [
            escaped(call),
            escaped(_AFTERWARDS.get(kind, kind)),
            str(len(dict.fromkeys(name for name, _ in found))),
            _instances(name for name, _ in found),
            _range([at_s for _, at_s in found]),
            foreign(note),
        ]
        for (call, kind, note), found in sorted(alike.items(), key=lambda item: -len(item[1]))
    ]
    columns = (
        ("call", "short"),
        ("what came of it", ""),
        ("n", "number"),
        ("instances", "names"),
        ("at", "short"),
        ("what came", ""),
    )
    return (
        f'<section class="panel" id="afterwards"><h2>Afterwards</h2>'
        f"{table(columns, rows, of='kinds')}</section>"
    )
