"""
The history of a run as a page: how long its operations parked it, and why some were given up.

It reads the operations' own entries and nothing of their calls, so it is quick however many
instances there were.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from gymckpt.chart import Chart, chart_names, load_chart
from gymckpt.core.entry import Entry
from gymckpt.core.operation import FAILING_TRIGGERS
from gymckpt.diagnosis.headline import cause_group, cause_words, tone_of
from gymckpt.diagnosis.lanes import StateSpan
from gymckpt.diagnosis.page import Page, Tile, clock_text, escaped, foreign, seconds_text, tiles
from gymckpt.diagnosis.picture import parked_s
from gymckpt.diagnosis.report_controls import choice
from gymckpt.diagnosis.report_tables import table
from gymckpt.errors import text_of
from gymckpt.journal import Journal, OperationRow
from gymckpt.journal.steps import steps_of
from gymckpt.wording import visible

__all__ = ["Passage", "passages_of", "runs_report"]

SCRIPTS = ("text.js", "runs.js")
WORKING = frozenset({"committing", "sealing", "restoring", "calling", "insisting"})
"""The states in which instances write, read, or do what a sweep asks of them."""


@attrs.frozen(kw_only=True)
class Passage:
    """One operation of a history."""

    row: OperationRow
    tone: str
    """`good`, `bad` or `busy`."""
    whole_s: float
    parked_s: float | None
    """None for an operation that parks nothing."""
    working_s: float
    """How long instances wrote, read, or did what they were asked to."""
    group: str
    """What gave it up, in few words; empty where nothing did."""
    words: str
    """The same, in its own words."""


def runs_report(journal: Journal, run: str | None = None) -> str:
    """
    Return the history of a journal's operations as a self-contained HTML page.

    Args:
        journal: Where they are.
        run: Only those of this run; None for all runs.

    Raises:
        JournalError: The journal cannot be read.
    """
    passages = passages_of(journal, run)
    title = "every run" if run is None else run
    parts = [
        f'<header><h1>{foreign(title)} <span class="kind">operations of gymckpt</span></h1>'
        f'<p class="about">{_span(passages)}</p></header>',
        tiles(_facts(passages)),
        _OVER_TIME,
        _causes(passages),
        _LIST,
        "<footer>Parked: from the first call until reopening began. Working: committing and "
        "sealing, restoring, or the call of a sweep. This page loads nothing.</footer>",
    ]
    return Page(
        title=f"{title}: operations", body="\n".join(parts), data=_data(passages), scripts=SCRIPTS
    ).html()


def passages_of(journal: Journal, run: str | None = None) -> tuple[Passage, ...]:
    """
    Return a journal's operations, by the time at which they were opened.

    Args:
        journal: Where they are.
        run: Only those of this run; None for all runs.

    Raises:
        JournalError: The journal cannot be read.
    """
    charts = {name: load_chart(name) for name in chart_names()}
    by_operation = itertools.groupby(
        steps_of(journal, run), key=lambda entry: (entry.run, entry.operation_id)
    )
    steps = {key: tuple(found) for key, found in by_operation}
    return tuple(
        _passage(row, steps.get((row.run, row.operation_id), ()), charts)
        for row in journal.operations(run)
    )


def _passage(row: OperationRow, steps: Sequence[Entry], charts: Mapping[str, Chart]) -> Passage:
    chart = charts.get(row.chart)
    states = list(_states(chart, steps))
    end_at_s = states[-1].entered_at_s if row.settled else max(0.0, row.updated_ts - row.opened_ts)
    cause = next((span for span in states if span.trigger in FAILING_TRIGGERS), None)
    return Passage(
        row=row,
        tone=tone_of(chart, row.state, cause),
        whole_s=end_at_s,
        parked_s=parked_s(chart, states, end_at_s),
        working_s=sum(
            (end_at_s if span.left_at_s is None else span.left_at_s) - span.entered_at_s
            for span in states
            if span.state in WORKING
        ),
        group="" if cause is None else cause_group(cause),
        words="" if cause is None else cause_words(cause),
    )


def _states(chart: Chart | None, steps: Iterable[Entry]) -> Iterator[StateSpan]:
    """Yield the states of one operation, from its opening, which is not among the steps."""
    moves = [entry for entry in steps if entry.dest != entry.source]
    left = [*(entry.at_s for entry in moves), None]
    yield StateSpan(
        state=chart.initial if chart else "",
        trigger="open",
        entered_at_s=0.0,
        left_at_s=left[0],
        facts={},
        seq=1,
    )
    for entry, left_at_s in zip(moves, left[1:], strict=True):
        yield StateSpan(
            state=entry.dest,
            trigger=entry.trigger,
            entered_at_s=entry.at_s,
            left_at_s=left_at_s,
            facts=entry.facts,
            seq=entry.seq,
        )


# --- the page -----------------------------------------------------------------------------------


def _span(passages: Sequence[Passage]) -> str:
    if not passages:
        return "The journal holds no operation of it."
    first, last = passages[0].row.opened_ts, passages[-1].row.opened_ts
    return f"opened between {clock_text(first)} and {clock_text(last)}"


def _facts(passages: Sequence[Passage]) -> Iterator[Tile]:
    tones = Counter(passage.tone for passage in passages)
    kinds = Counter(passage.row.chart for passage in passages)
    yield Tile(
        name="Operations",
        value=f"{len(passages):,}",
        detail=", ".join(f"{count:,} {escaped(kind)}" for kind, count in kinds.most_common()),
    )
    well = tones["good"]
    share = f"{100 * well / len(passages):.1f} %" if passages else "none"
    yield Tile(name="Ended well", value=share, detail=f"{well:,} of them", tone="good")
    yield Tile(
        name="Given up",
        value=f"{tones['bad']:,}",
        detail=f"{tones['busy']:,} have not ended",
        tone="bad" if tones["bad"] else "",
    )
    parked = [
        passage.parked_s
        for passage in passages
        if passage.parked_s is not None and passage.row.chart == "checkpoint"
    ]
    working = [
        passage.working_s
        for passage in passages
        if passage.row.chart == "checkpoint" and passage.tone == "good"
    ]
    if parked:
        yield Tile(name="Parked, all checkpoints", value=seconds_text(sum(parked)), detail="in all")
        yield Tile(name="Parked, usually", value=_middle(parked), detail=_tail(parked))
    if working:
        yield Tile(name="Committing, usually", value=_middle(working), detail=_tail(working))


def _middle(seconds: Sequence[float]) -> str:
    return seconds_text(statistics.median(seconds))


def _tail(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    late_s = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return f"95 % within {seconds_text(late_s)}, at most {seconds_text(ordered[-1])}"


_OVER_TIME = (
    '<section class="panel"><h2>Operation by operation <span class="kind" id="count"></span></h2>'
    "<noscript><p>The graph and the list are drawn by this page's own script.</p></noscript>"
    '<div class="controls" id="controls">'
    + choice("measure", "Time", (("parked", "parked"), ("working", "working"), ("whole", "whole")))
    + choice(
        "kind",
        "Kind",
        (("", "all"), ("checkpoint", "checkpoint"), ("restore", "restore"), ("sweep", "sweep")),
    )
    + choice(
        "tone",
        "End",
        (("", "all"), ("good", "well"), ("bad", "given up"), ("busy", "not ended")),
    )
    + '<label class="find">Find <input type="search" id="find" autocomplete="off" '
    'placeholder="id or cause"></label></div>'
    '<div class="graph" id="graph"><canvas id="plot" role="img" aria-label="Time per operation, in '
    'the order of their opening; the list below has the same"></canvas></div>'
    '<ul class="legend"><li><span class="swatch prepare"></span>● ended well</li>'
    '<li><span class="swatch failed"></span>✕ given up</li>'
    '<li><span class="swatch waiting"></span>○ has not ended</li>'
    "<li>line: the median of the 51 operations around</li></ul></section>"
)

_LIST = (
    '<section class="panel listing"><h2>All operations, the latest first</h2>'
    '<div class="listed" aria-hidden="true"><span>operation</span><span class="wide">kind</span>'
    '<span class="wide">opened, UTC</span><span>state</span><span class="number" id="measured">'
    'parked</span><span class="number wide">whole</span><span class="wide">given up because of'
    '</span></div><div class="list" id="list" role="listbox" tabindex="0" aria-label="Operations">'
    '<div class="sizer" id="sizer"></div></div></section>'
    '<div class="tip" id="tip" role="tooltip" hidden></div>'
    '<p class="unseen" id="say" aria-live="polite"></p>'
)


def _causes(passages: Sequence[Passage]) -> str:
    """Return the failures by cause: how many, how much parked time they cost, one of them."""
    alike: dict[str, list[Passage]] = {}
    for passage in passages:
        if passage.group and passage.tone != "good":
            alike.setdefault(passage.group, []).append(passage)
    ordered = sorted(alike.items(), key=lambda item: (-len(item[1]), item[0]))
    most = len(ordered[0][1]) if ordered else 1
    rows = [
        [
            f'<button type="button" class="cause">{foreign(group)}</button>',
            f"{len(found):,}",
            f'<svg class="meter" viewBox="0 0 100 10" preserveAspectRatio="none" '
            f'aria-hidden="true"><rect width="{100 * len(found) / most:.1f}" height="10"/></svg>',
            seconds_text(sum(passage.parked_s or 0.0 for passage in found)),
            clock_text(found[-1].row.opened_ts),
            foreign(text_of(found[-1].words, 300)),
        ]
        for group, found in ordered
    ]
    columns = (
        ("cause", "names"),
        ("n", "number"),
        ("", "share"),
        ("parked in vain", "number"),
        ("latest", "short"),
        ("its words", ""),
    )
    body = (
        table(columns, rows, of="causes")
        if rows
        else '<p class="none">No operation was given up.</p>'
    )
    return f'<section class="panel causes" id="causes"><h2>Given up, by cause</h2>{body}</section>'


def _data(passages: Sequence[Passage]) -> dict[str, Any]:
    groups: dict[str, int] = {}
    several = len({passage.row.run for passage in passages}) > 1
    return {
        "operations": [
            [
                visible(
                    f"{passage.row.run} / {passage.row.operation_id}"
                    if several
                    else passage.row.operation_id
                ),
                visible(passage.row.chart),
                passage.row.opened_ts,
                visible(passage.row.state),
                passage.tone,
                None if passage.parked_s is None else round(passage.parked_s, 3),
                round(passage.working_s, 3),
                round(passage.whole_s, 3),
                groups.setdefault(passage.group, len(groups)),
                visible(text_of(passage.words, 400)) if passage.tone != "good" else "",
            ]
            for passage in passages
        ],
        "groups": [visible(group) for group in groups],
    }
