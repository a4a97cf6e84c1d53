"""`gymckpt watch`: operations as they go on."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gymckpt.cli.common import (
    JournalOption,
    JsonOption,
    RunOption,
    answering,
    clock_text,
    console,
    find,
    opened_source,
)
from gymckpt.cli.explaining import blocking_text, explanation_of, head_text, next_text
from gymckpt.cli.listing import line_of, table_of
from gymckpt.cli.styles import CALL_STATE_STYLES

if TYPE_CHECKING:
    from gymckpt.cli.common import Found, Source
    from gymckpt.core.operation import OperationState
    from gymckpt.diagnosis.explanation import Explanation

__all__ = ["add_to"]

WATCH_SCHEMA = "gymckpt.watch/1"
SHOWN_MAX = 15
BAR_WIDTH = 30


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(watch)


@attrs.frozen(kw_only=True)
class _Look:
    """What is seen at one moment."""

    data: dict[str, Any]
    """For programs."""
    shown: RenderableType
    """For people."""
    more: bool
    """Whether anything can come after it."""


def watch(
    op: Annotated[
        str | None,
        typer.Argument(
            metavar="[OP]", help="An operation's id; else all that are open.", show_default=False
        ),
    ] = None,
    *,
    journal: JournalOption = None,
    run: RunOption = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0.05, help="Seconds between two looks.")
    ] = 1.0,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--for", metavar="SECONDS", min=0, help="Stop after so long.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Follow operations live: n of m per call, who is in the way since when, the leases."""
    until_s = None if seconds is None else time.monotonic() + seconds
    with answering():
        if op is None:
            with opened_source(journal) as source:
                _follow(_lists(source, run), interval, until_s, as_json=as_json)
        else:
            with find(op, journal=journal, run=run) as found:
                _follow(_looks(found), interval, until_s, as_json=as_json)


def _follow(
    looks: Iterator[_Look], interval_s: float, until_s: float | None, *, as_json: bool
) -> None:
    """Show one look after the other, until nothing more can come or the time is over."""
    from rich.live import Live  # noqa: PLC0415 - brings much along that other commands do not need

    waiting, out = threading.Event(), console()
    live = Live(console=out, auto_refresh=False)
    moving = not as_json and sys.stdout.isatty()
    if moving:
        live.start()
    try:
        for look in looks:
            if as_json:
                typer.echo(json.dumps({"schema": WATCH_SCHEMA, **look.data}, allow_nan=False))
            elif moving:
                live.update(look.shown, refresh=True)
            else:
                out.print(look.shown)
            if not look.more or (until_s is not None and time.monotonic() + interval_s > until_s):
                return
            waiting.wait(interval_s)
    except KeyboardInterrupt:
        return
    finally:
        if moving:
            live.stop()


# --- all that are open --------------------------------------------------------------------------


def _lists(source: Source, run: str | None) -> Iterator[_Look]:
    from gymckpt.journal import Selection  # noqa: PLC0415 - imported when needed

    while True:
        now_ts = time.time()
        rows = source.journal.select(Selection(run=run, unfinished=True, latest=SHOWN_MAX))
        lines = [line_of(source, row, now_ts) for row in rows]
        shown: RenderableType = Text("nothing is open", style="dim")
        if lines:
            shown = table_of(lines, now_ts, console().width)
        yield _Look(
            data={"ts": now_ts, "operations": [line.to_json() for line in lines]},
            shown=Group(Text(clock_text(now_ts), style="dim"), shown),
            more=not source.from_file,
        )


# --- one ----------------------------------------------------------------------------------------


def _looks(found: Found) -> Iterator[_Look]:
    while True:
        explained, operation = explanation_of(found), _operation(found)
        tallies = {} if operation is None else _tallies(operation)
        yield _Look(
            data={
                "ts": explained.as_of_ts,
                "run": explained.run,
                "operation_id": explained.operation_id,
                "state": explained.state,
                "since_ts": explained.since_ts,
                "settled": explained.settled,
                "problem": explained.problem,
                "summary": explained.summary,
                "calls": tallies,
                "blocking": [attrs.asdict(one) for one in explained.blocking],
                "blocking_total": explained.blocking_total,
                "lease": explained.lease and attrs.asdict(explained.lease),
                "next": [attrs.asdict(one) for one in explained.next],
            },
            shown=_shown(explained, tallies),
            more=not explained.settled and not found.from_file,
        )


def _operation(found: Found) -> OperationState | None:
    from gymckpt.diagnosis.replay import replay  # noqa: PLC0415 - imported when needed

    return replay(found.entries()).state


def _tallies(operation: OperationState) -> dict[str, dict[str, int]]:
    """Return how far each call is: state of its machine to the number of instances."""
    total = len(operation.instances)
    tallies: dict[str, dict[str, int]] = {}
    for call, calls in operation.calls.items():
        found = {state: count for state, count in calls.tally.items() if count}
        tallies[call] = {"total": total, **found}
    return tallies


def _shown(explained: Explanation, tallies: dict[str, dict[str, int]]) -> Group:
    from gymckpt.diagnosis.words import duration  # noqa: PLC0415 - imported when needed

    parts: list[RenderableType] = [head_text(explained)]
    state = Text.assemble((explained.state, "bold"), f"  {explained.means}")
    if not explained.settled:
        state.append(f"  for {duration(explained.for_s)}", style="cyan")
    parts.append(state)
    grid = Table.grid(padding=(0, 2))
    for call, tally in tallies.items():
        grid.add_row(Text(call, style="dim"), _bar(tally), _counts(tally))
    parts.append(grid)
    parts += [blocking_text(one) for one in explained.blocking]
    hidden = explained.blocking_total - len(explained.blocking)
    if hidden > 0:
        parts.append(Text(f"  and {hidden:,} more", style="dim"))
    lease = explained.lease
    if lease is not None:
        style = "red" if lease.left_s < 0 else "yellow" if lease.left_s < 10 else "green"
        said = f"leases: {lease.instance} was promised {duration(lease.left_s)} more"
        if lease.left_s < 0:
            said = f"leases: the promise to {lease.instance} ended {duration(-lease.left_s)} ago"
        parts.append(Text(said, style=style))
    parts += [next_text(one, explained.as_of_ts) for one in explained.next[:2]]
    if explained.settled or explained.problem:
        style = "red" if explained.problem else "green"
        parts.append(Text(explained.summary, style=style))
    return Group(*parts)


def _bar(tally: dict[str, int]) -> Text:
    """Return a bar of how many instances are in which state."""
    bar, total, used = Text(), max(1, tally["total"]), 0
    for state, style in CALL_STATE_STYLES.items():
        count = tally.get(state, 0)
        width = min(BAR_WIDTH - used, max(1, round(count / total * BAR_WIDTH))) if count else 0
        bar.append("━" * width, style=style)
        used += width
    return bar.append("─" * (BAR_WIDTH - used), style="bright_black")


def _counts(tally: dict[str, int]) -> Text:
    text = Text(f"{tally.get('answered', 0)}/{tally['total']}")
    for state, count in tally.items():
        if state not in ("answered", "total"):
            text.append(f"  {count} {state}", style=CALL_STATE_STYLES.get(state, ""))
    return text
