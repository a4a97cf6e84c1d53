"""
One operation as a page: the picture first, then the chart with the path, the trouble, the entries.

`report` needs nothing but the entries. It draws whatever they say, also of a history that is cut
off or that no chart allows, and says so. Text from outside goes into the page as text, never as
markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gymckpt.core.entry import Entry
from gymckpt.core.replay import replay
from gymckpt.core.settings import RENEW
from gymckpt.diagnosis.explanation import Explanation, Move, NextStep
from gymckpt.diagnosis.headline import headline, tone_of
from gymckpt.diagnosis.lanes import Span
from gymckpt.diagnosis.page import Page, Tile, clock_text, escaped, foreign, seconds_text, tiles
from gymckpt.diagnosis.picture import SLOW_FACTOR, Picture, parked_s, picture_of
from gymckpt.diagnosis.report_controls import choice
from gymckpt.diagnosis.report_data import data_of
from gymckpt.diagnosis.report_tables import (
    afterwards_part,
    blockers_part,
    chart_part,
    path_part,
    troubles_part,
)
from gymckpt.errors import InvariantViolated, ReplayDiverged, text_of

__all__ = ["report"]

SCRIPTS = ("text.js", "scale.js", "model.js", "lanes.js", "hands.js")
_SIGNS = {"good": "✓ ", "bad": "✕ ", "busy": "… "}


def report(
    entries: Iterable[Entry],
    *,
    explanation: Explanation | None = None,
    now_ts: float | None = None,
) -> str:
    """
    Return one operation as a self-contained HTML page.

    Args:
        entries: Its history from the first entry, in order; may end anywhere.
        explanation: What `explain` says of it, to stand at the top.
        now_ts: The wall time until which an unfinished operation is drawn; None for its last entry.

    Raises:
        ValueError: There is no entry.
    """
    history = tuple(entries)
    picture = picture_of(history, now_ts=now_ts)
    first = picture.first
    parts = [
        _head(picture, explanation),
        _warning(history),
        tiles(_facts(picture)),
        _lanes(picture),
        _explained(explanation),
        f'<div class="sides">{chart_part(picture)}<div>{path_part(picture)}'
        f"{troubles_part(picture)}{blockers_part(history)}</div></div>",
        afterwards_part(picture),
        f"<footer>{len(history)} entries, the last one number {picture.last.seq}. Times count from "
        "when the operation was opened, by its controller's monotonic clock. This page loads "
        "nothing.</footer>",
    ]
    return Page(
        title=f"{first.operation_id}: {picture.state}",
        body="\n".join(part for part in parts if part),
        data=data_of(picture),
        scripts=SCRIPTS,
    ).html()


# --- the top ------------------------------------------------------------------------------------


def _head(picture: Picture, explanation: Explanation | None) -> str:
    first, last = picture.first, picture.last
    tone = tone_of(picture.chart, picture.state, picture.cause)
    kind = text_of(first.facts.get("chart", "operation"), 60)
    line = explanation.summary if explanation is not None else headline(picture)
    epoch = f" · epoch {last.epoch}" if last.epoch > 1 else ""
    return (
        f"<header><h1>{foreign(first.operation_id)} "
        f'<span class="kind">{escaped(kind)}</span> '
        f'<span class="pill {tone}">{_SIGNS[tone]}{escaped(picture.state or "unknown")}</span></h1>'
        f'<p class="lead">{foreign(line)}</p>'
        f'<p class="about">run {foreign(first.run)} · opened {clock_text(first.ts)}'
        f"{epoch}</p></header>"
    )


def _warning(history: Sequence[Entry]) -> str:
    """Say where the history is not one that today's charts could have lived."""
    try:
        replay(history)
    except (ReplayDiverged, InvariantViolated) as broken:
        return (
            f'<p class="warn"><strong>This history breaks its chart.</strong> '
            f"{foreign(text_of(broken))}. What follows is what the entries say.</p>"
        )
    except (KeyError, TypeError, ValueError) as broken:
        return (
            f'<p class="warn"><strong>This history cannot be replayed.</strong> '
            f"{foreign(text_of(f'{type(broken).__name__}: {broken}'))}. What follows is what the "
            "entries say.</p>"
        )
    return ""


def _facts(picture: Picture) -> Iterator[Tile]:
    tone = tone_of(picture.chart, picture.state, picture.cause)
    row = picture.chart.states.get(picture.state) if picture.chart else None
    yield Tile(
        name="State",
        value=escaped(picture.state or "unknown"),
        detail=escaped(row.means if row else ""),
        tone=tone,
    )
    verb = "Took" if picture.settled else "Has taken"
    began = picture.first.at_s
    yield Tile(
        name=verb, value=seconds_text(picture.end_at_s - began), detail="since it was opened"
    )
    held_s = parked_s(picture.chart, picture.states, picture.end_at_s)
    if held_s is not None:
        share = 100 * held_s / picture.end_at_s if picture.end_at_s > 0 else 0
        detail = f"from the first call until reopening began; {share:.0f} % of it"
        yield Tile(name="Parked", value=seconds_text(held_s), detail=detail)
    troubled = sum(lane.troubled for lane in picture.lanes)
    slow = sum(bool(lane.slow) for lane in picture.lanes)
    waiting = sum(lane.waiting for lane in picture.lanes)
    left = sum(lane.left for lane in picture.lanes)
    found = [
        f"{count} {what}"
        for count, what in (
            (troubled, "in trouble"),
            (waiting, "waited for"),
            (left, "no longer waited for"),
            (slow, "slow"),
        )
        if count
    ]
    yield Tile(
        name="Instances",
        value=str(len(picture.lanes)),
        detail=", ".join(found) or "all well",
        tone="bad" if troubled else "",
    )
    slowest = picture.slowest()
    if slowest is not None:
        lane, span = slowest
        median_s = picture.medians_s.get(span.call)
        usual = f"; the median is {seconds_text(median_s)}" if median_s is not None else ""
        took = seconds_text(picture.seconds(span))
        yield Tile(
            name="Slowest",
            value=foreign(lane.instance),
            detail=f"{escaped(span.call)}: {escaped(_came_to(span))} {took}{usual}",
        )


def _came_to(span: Span) -> str:
    if span.ended_at_s is None:
        return "not answered for"
    return f"{span.outcome} after"


def _explained(explanation: Explanation | None) -> str:
    """Return what is waited for, what comes next and what may be done."""
    if explanation is None:
        return ""
    sections = (
        ("Waits for", [foreign(explanation.waits_for)] if explanation.waits_for else []),
        ("In the way", _blocking(explanation)),
        ("Next, by itself", [f"{foreign(step.what)}{_when(step)}" for step in explanation.next]),
        ("What an operator may do", [_move(move) for move in explanation.moves if move.allowed]),
        ("Besides", [foreign(finding.words) for finding in explanation.findings]),
    )
    parts = "".join(
        f"<h3>{title}</h3><ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"
        for title, lines in sections
        if lines
    )
    return (
        f'<section class="panel" id="explained"><h2>Explained '
        f'<span class="kind">as of {clock_text(explanation.as_of_ts)}</span></h2>{parts}</section>'
    )


def _blocking(explanation: Explanation) -> list[str]:
    named = [
        f"<strong>{foreign(one.instance)}</strong> {foreign(one.words)}"
        for one in explanation.blocking
    ]
    more = explanation.blocking_total - len(named)
    return [*named, f"and {more} more"] if more > 0 else named


def _when(step: NextStep) -> str:
    if step.at_ts is None or step.in_s is None:
        return ""
    ahead = (
        f"in {seconds_text(step.in_s)}"
        if step.in_s >= 0
        else (f"overdue by {seconds_text(-step.in_s)}")
    )
    return f' <span class="detail">{ahead}, at {clock_text(step.at_ts)}</span>'


def _move(move: Move) -> str:
    condition = f' <span class="detail">({foreign(move.why_not)})</span>' if move.why_not else ""
    return f"<code>{foreign(move.command)}</code><br>{foreign(move.does)}{condition}"


# --- the picture --------------------------------------------------------------------------------


_CONTROLS = (
    '<div class="controls" id="controls">'
    + choice(
        "filter",
        "Show",
        (("all", "all"), ("trouble", "in trouble"), ("slow", "slow"), ("waiting", "waiting")),
    )
    + choice("order", "Order", (("worst", "worst first"), ("name", "by name")))
    + choice("scale", "Time", (("fitted", "fitted"), ("true", "to scale")))
    + '<label class="find">Find <input type="search" id="find" autocomplete="off" '
    'placeholder="id or words of an error"></label></div>'
)

_FRAME = (
    '<div class="frame" id="frame"><div class="head" id="head"></div>'
    '<div class="rows" id="rows" role="tree" tabindex="0" aria-label="Instances; arrow keys go '
    'through rows and calls, Enter opens a group"><div class="sizer" id="sizer"></div></div>'
    '<div class="lines" id="lines" aria-hidden="true"></div></div>'
    '<div class="tip" id="tip" role="tooltip" hidden></div>'
    '<p class="unseen" id="say" aria-live="polite"></p>'
)


def _lanes(picture: Picture) -> str:
    lines = "".join(
        f'<li><span class="line {mark.kind} {mark.kind}-ink"></span>{escaped(mark.label)}: '
        f"{seconds_text(mark.at_s)} ({clock_text(picture.first.ts + mark.at_s)})</li>"
        for mark in sorted(picture.marks, key=lambda mark: mark.at_s)
    )
    return (
        '<section class="panel"><h2>Instances over time <span class="kind" id="count"></span></h2>'
        "<noscript><p>The picture is drawn by this page's own script; everything else on the page "
        f'does without.</p></noscript><div id="lanes" hidden>{_CONTROLS}{_FRAME}</div>'
        f'{_legend(picture)}<ul class="legend">{lines}</ul>'
        f'<p class="hint">Slow: more than {SLOW_FACTOR:g} times the median of its call, and far '
        "beyond its spread.</p></section>"
    )


def _legend(picture: Picture) -> str:
    calls = list(
        dict.fromkeys(span.call for lane in picture.lanes for span in lane.spans if span.call)
    )
    outcomes = {span.outcome for lane in picture.lanes for span in lane.spans}
    known = [call for call in calls if call in _CALLS]
    items = [
        f'<li><span class="swatch {call}{" thin" if call == RENEW else ""}"></span>'
        f"{call}, answered</li>"
        for call in known
    ]
    items += [
        f'<li><span class="swatch {kind}"></span>{words}</li>'
        for outcome, kind, words in _OUTCOMES
        if outcome in outcomes
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


_CALLS = frozenset({"prepare", "renew", "commit", "restore", "retire", "forget", "resume"})
_OUTCOMES = (
    ("asked", "waiting", "… not answered yet"),
    ("refused", "refused", "! answered: not ready"),
    ("failed", "failed", "✕ an error came back"),
    ("unanswered", "unanswered", "? never answered"),
    ("gone", "gone", "† the actor is dead"),
    ("abandoned", "abandoned", "no longer waited for, since the operation had moved on"),
)
