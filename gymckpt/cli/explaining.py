"""`gymckpt explain`: why an operation is where it is, what comes next, what may be done."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gymckpt.cli.common import (
    CANNOT_ANSWER,
    PROBLEM_FOUND,
    Found,
    JournalOption,
    JsonOption,
    RunOption,
    answering,
    clock_text,
    console,
    find,
    leave,
    opened_source,
    print_json,
)
from gymckpt.cli.styles import CALL_STATE_STYLES, instance_text, moment_option

if TYPE_CHECKING:
    from gymckpt.cli.common import Source
    from gymckpt.core.entry import Entry
    from gymckpt.diagnosis.explanation import Blocking, Explanation, Move, NextStep, Why
    from gymckpt.journal import OperationRow

__all__ = ["add_to", "blocking_text", "explanation_of", "head_text", "next_text"]

HISTORY_MAX = 10
LOOKED_AT_MAX = 200
"""How many unfinished operations are looked at to find the one that most needs attention."""

_MARKS = {"gone": "✗", "refused": "!", "failed": "✗", "unanswered": "?", "asked": "▸"}


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(explain)


def explain(
    op: Annotated[
        str | None,
        typer.Argument(
            metavar="[OP]",
            help="An operation's id, or an exported file; else the one that most needs attention.",
            show_default=False,
        ),
    ] = None,
    *,
    journal: JournalOption = None,
    run: RunOption = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="Explain it for this moment instead of now."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what an operation is doing, who blocks it and why, what comes next, what you may do."""
    with answering():
        now_ts = None if at is None else moment_option(at)
        looked_for = _neediest(journal, run) if op is None else find(op, journal=journal, run=run)
        with looked_for as found:
            explained = explanation_of(found, now_ts)
    if as_json:
        print_json(explained.to_json())
    else:
        console().print(rendered(explained))
    if explained.problem:
        raise typer.Exit(PROBLEM_FOUND)


def explanation_of(found: Found, now_ts: float | None = None) -> Explanation:
    """Explain an operation where it was found, with how its instances behaved before."""
    from gymckpt.diagnosis.explain import explain as explain_entries  # noqa: PLC0415 - when needed

    entries, row = found.entries(), found.row
    explained = partial(
        explain_entries,
        entries,
        now_ts=found.now_ts if now_ts is None else now_ts,
        owner=row.owner if row is not None else "",
        epoch=row.epoch if row is not None else None,
        silent_s=found.silent_s if now_ts is None else None,
        undriven=found.undriven if now_ts is None else "",
        cut=found.cut,
    )
    first = explained()
    culprits = first.cause.culprits if first.cause is not None else ()
    names = {one.instance for one in (*first.blocking, *culprits)}
    if row is None or not names:
        return first
    return explained(history=list(_history(found, row, sorted(names))))


def _history(
    found: Found, row: OperationRow, instances: Sequence[str]
) -> Iterator[tuple[Entry, ...]]:
    """Yield what earlier operations of the same kind say of some instances, the latest first."""
    from gymckpt.journal import Selection  # noqa: PLC0415 - imported when needed

    earlier = found.journal.select(
        Selection(run=row.run, chart=row.chart, opened_before_ts=row.opened_ts, latest=HISTORY_MAX)
    )
    for one in reversed(earlier):
        yield found.journal.read_of(one.run, one.operation_id, instances)


@contextlib.contextmanager
def _neediest(journal: str | None, run: str | None) -> Iterator[Found]:
    """Find the operation that most needs attention, or leave where there is none at all."""
    from gymckpt.journal import Selection  # noqa: PLC0415 - imported when needed

    with opened_source(journal) as source:
        rows = source.journal.select(Selection(run=run, unfinished=True, latest=LOOKED_AT_MAX))
        if not rows:
            rows = source.journal.select(Selection(run=run, latest=1))
        if not rows:
            within = f" of run {run!r:.100}" if run else ""
            leave(f"the journal holds no operation{within}", CANNOT_ANSWER)
        yield source.found(min(rows, key=lambda row: _need(source, row)))


def _need(source: Source, row: OperationRow) -> tuple[int, bool, float]:
    """Order unfinished operations: without a controller, then given up, then the oldest."""
    rank = {False: 0, None: 1, True: 2}[source.alive(row)]
    given_up = row.state in ("discarding", "retiring")
    return rank, not given_up, row.updated_ts


# --- words --------------------------------------------------------------------------------------


def rendered(explained: Explanation) -> Group:
    """Return an explanation for a terminal."""
    from gymckpt.diagnosis.words import duration  # noqa: PLC0415 - imported when needed

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold dim", no_wrap=True)
    grid.add_column(ratio=1)
    state = Text.assemble((explained.state, _state_style(explained)), f"  {explained.means}")
    since = f"since {clock_text(explained.since_ts, day_of=explained.as_of_ts)}"
    if not explained.settled:
        since += f", {duration(explained.for_s)} ago"
    if explained.parked_s:
        since += f"; instances {'were' if explained.settled else 'have been'} parked for "
        since += duration(explained.parked_s)
    grid.add_row("state", Group(state, Text(since, style="dim")))
    if explained.cause is not None:
        grid.add_row("why", Group(*_why(explained.cause)))
    if not explained.settled:
        grid.add_row("waits for", Group(*_waits(explained)))
        grid.add_row("driven by", Group(*_driven(explained)))
        grid.add_row("next", Group(*(next_text(one, explained.as_of_ts) for one in explained.next)))
    for finding in explained.findings:
        style = "yellow" if finding.problem else "dim"
        grid.add_row("look" if finding.problem else "note", Text(finding.words, style=style))
    grid.add_row("do", Text(explained.advice, style="bold"))
    if explained.moves:
        grid.add_row("you may", Group(*_moves(explained.moves)))
    return Group(head_text(explained), grid)


def head_text(explained: Explanation) -> Text:
    """Return the line that says which operation, and when."""
    head = Text.assemble((explained.title, "bold"), (f"  run {explained.run}", "dim"))
    return head.append(f"  as of {clock_text(explained.as_of_ts)}", style="dim")


def _why(cause: Why) -> Iterator[RenderableType]:
    """Yield why an operation was given up, and how the culprits behaved before."""
    style = "dim" if cause.expected else ""
    yield Text(f"given up while {cause.in_state}: {cause.words}", style)
    for one in cause.culprits:
        if one.behaviour is not None:
            line = instance_text(one.instance)
            yield Padding(line.append(f": {one.behaviour.words}", style="dim"), (0, 0, 0, 2))


def _state_style(explained: Explanation) -> str:
    if explained.settled:
        return "bold red" if explained.problem else "bold green"
    return "bold yellow" if explained.problem else "bold cyan"


def _waits(explained: Explanation) -> Iterator[RenderableType]:
    progress = explained.progress
    line = Text(explained.waits_for)
    if progress is not None and not explained.settled:
        line.append(f"  ({progress.done}/{progress.total} answered {progress.call})", style="dim")
    yield line
    for one in explained.blocking:
        yield blocking_text(one)
        if one.behaviour is not None:
            yield Padding(Text(one.behaviour.words, style="dim"), (0, 0, 0, 4))
    if explained.blocking_total > len(explained.blocking):
        yield Text(f"  in all {explained.blocking_total:,} instances:", style="dim")
        for group in explained.groups:
            named = ", ".join(group.sample[:3]) + (", …" if group.count > 3 else "")
            yield Text(f"    {group.count:,} {group.state} ({named}): {group.reason}", style="dim")


def blocking_text(one: Blocking) -> RenderableType:
    """Return what the matter is with one instance."""
    style = CALL_STATE_STYLES.get(one.state, "")
    text = instance_text(one.instance)
    text.append(f" {one.words}")
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=2, justify="right")
    grid.add_column()
    grid.add_row(Text(_MARKS.get(one.state, "·"), style=f"bold {style}"), text)
    return grid


def _driven(explained: Explanation) -> Iterator[Text]:
    from gymckpt.diagnosis.words import duration  # noqa: PLC0415 - imported when needed

    controller = explained.controller
    style = {"silent": "bold red", "alive": "green"}.get(controller.status, "")
    line = Text(controller.words, style=style)
    if controller.epoch > 1:
        line.append(f"  (epoch {controller.epoch})", style="dim")
    yield line
    lease = explained.lease
    if lease is not None:
        left = (
            f"in {duration(lease.left_s)}"
            if lease.left_s >= 0
            else f"{duration(-lease.left_s)} ago"
        )
        ends = "ends" if lease.left_s >= 0 else "ended"
        horizon = clock_text(lease.horizon_ts, day_of=explained.as_of_ts)
        yield Text(
            f"the first acknowledged deadline, {lease.instance}'s, {ends} {left}; by {horizon} "
            "every instance has reopened by itself, whatever happens",
            style="dim",
        )


def next_text(one: NextStep, now_ts: float) -> Text:
    """Return what comes by itself, and when."""
    from gymckpt.diagnosis.words import duration  # noqa: PLC0415 - imported when needed

    text = Text()
    if one.at_ts is not None and one.in_s is not None:
        text.append(clock_text(one.at_ts, day_of=now_ts), style="bold")
        passed = "ago" if one.kind == "lease_horizon" else "overdue"
        ahead = f"in {duration(one.in_s)}" if one.in_s >= 0 else f"{duration(-one.in_s)} {passed}"
        text.append(f"  {ahead}  ", style="cyan" if one.in_s >= 0 else "yellow")
    text.append(one.what)
    if one.leads_to is not None:
        text.append(" → ", style="dim").append(one.leads_to, style="bold")
    return text


def _moves(moves: Sequence[Move]) -> Iterator[RenderableType]:
    for move in moves:
        if move.allowed:
            yield Text(move.command, style="cyan")
            yield Padding(Text(move.does, style="dim"), (0, 0, 0, 2))
    conditions = list(
        dict.fromkeys(move.why_not for move in moves if move.allowed and move.why_not)
    )
    yield from (Text(f"{condition}", style="yellow") for condition in conditions)
    for move in moves:
        if not move.allowed:
            yield Text(f"not {move.name}: {move.why_not}", style="dim")
