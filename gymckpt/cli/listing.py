"""`gymckpt ops`: what operations there are, and how they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gymckpt.cli.common import (
    PROBLEM_FOUND,
    JournalOption,
    JsonOption,
    RunOption,
    answering,
    clock_text,
    console,
    leave,
    opened_source,
    print_json,
    say,
)
from gymckpt.cli.styles import (
    CALL_STATE_STYLES,
    STATUS_STYLES,
    WIDE,
    instance_text,
    since_option,
)

if TYPE_CHECKING:
    from gymckpt.cli.common import Source
    from gymckpt.diagnosis.overview import OverviewLine
    from gymckpt.journal import OperationRow

__all__ = ["add_to", "line_of", "table_of"]

OPS_SCHEMA = "gymckpt.ops/1"

LIMIT = 20
NAME_MAX = 44

FAILED = frozenset({"failed", "given_up"})

SCAN_MAX = 2_000
"""How many of the latest failed operations are looked at for those that failed in earnest."""


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(ops)


def ops(
    *,
    journal: JournalOption = None,
    run: RunOption = None,
    open_only: Annotated[
        bool, typer.Option("--open", help="Only those that have not ended.")
    ] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only those that failed or are being given up.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", help="Only those that moved since then: 90s, 20m, 6h, 3d, or a time."
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = LIMIT,
    as_json: JsonOption = False,
) -> None:
    """List operations, the latest last."""
    now_ts = time.time()
    with answering(), opened_source(journal) as source:
        from gymckpt.diagnosis.overview import FAILED_STATES  # noqa: PLC0415 - when needed
        from gymckpt.journal import Selection  # noqa: PLC0415 - likewise

        rows = source.journal.select(
            Selection(
                run=run,
                unfinished=open_only,
                states=FAILED_STATES if failed else (),
                updated_since_ts=since_option(since, now_ts),
                latest=SCAN_MAX if failed else limit + 1,
            )
        )
        meant = FAILED if failed else None
        lines, more = _latest_lines(source, rows, now_ts, limit, meant)
    if as_json:
        print_json({"schema": OPS_SCHEMA, "operations": [line.to_json() for line in lines]})
    elif lines:
        out = console()
        out.print(table_of(lines, now_ts, out.width))
        if more:
            out.print(Text("there are more; --limit shows them", style="dim"))
    else:
        say("no operation is like that", error=True)
    silent = [line.operation_id for line in lines if line.alive is False]
    if silent:
        leave(_silent(silent), PROBLEM_FOUND)


def _latest_lines(
    source: Source,
    rows: Sequence[OperationRow],
    now_ts: float,
    limit: int,
    meant: frozenset[str] | None,
) -> tuple[list[OverviewLine], bool]:
    """Return the lines about the latest operations that are meant, and whether there are more."""
    lines: list[OverviewLine] = []
    for row in reversed(rows):
        line = line_of(source, row, now_ts)
        if meant is not None and line.status not in meant:
            continue
        if len(lines) == limit:
            return lines[::-1], True
        lines.append(line)
    return lines[::-1], False


def _silent(silent: Sequence[str]) -> str:
    return (
        f"{len(silent)} unfinished without a controller: {', '.join(silent[:5])}; "
        f"gymckpt explain {silent[0]}"
    )


def line_of(source: Source, row: OperationRow, now_ts: float) -> OverviewLine:
    """Return the line about one operation."""
    from gymckpt.diagnosis.overview import overview_of  # noqa: PLC0415 - imported when needed

    outline = source.journal.outline(row.run, row.operation_id)
    at_ts = row.updated_ts if source.from_file else now_ts
    return overview_of(row, outline, now_ts=at_ts, alive=source.alive(row))


def table_of(lines: Sequence[OverviewLine], now_ts: float, width: int) -> RenderableType:
    """Return operations for a terminal of some width: a line each, or two where it is narrow."""
    wide = width >= WIDE
    several = wide or len({line.kind for line in lines}) > 1
    names = ["operation", *(["kind"] if several else []), "state", "since", "took", "answered"]
    names += ["worst instance", "controller"] if wide else []
    rows = [_cells(line, now_ts, kind=several, wide=wide) for line in lines]
    widths = [
        min(NAME_MAX, max(len(name), *(len(row[place]) for row in rows)))
        for place, name in enumerate(names)
    ]
    shown = [_joined([Text(name, style="dim") for name in names], widths)]
    for line, row in zip(lines, rows, strict=True):
        shown.append(_joined(row, widths))
        if not wide and line.status in ("failed", "given_up", "going_on"):
            below = Text("  ").append_text(_worst_text(line))
            shown.append(below.append("  ").append_text(_owner_text(line)))
    runs = sorted({line.run for line in lines})
    if len(runs) > 1:
        named = ", ".join(runs[:3]) + (", …" if len(runs) > 3 else "")
        shown.append(Text(f"of {len(runs)} runs: {named}; --run chooses one", style="dim"))
    return Group(*shown)


def _joined(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    """Return a line of cells, each as wide as its column."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for cell, width in zip(cells, widths, strict=True):
        cell.truncate(width, overflow="ellipsis", pad=True)
        line.append_text(cell).append("  ")
    line.rstrip()
    return line


def _cells(line: OverviewLine, now_ts: float, *, kind: bool, wide: bool) -> list[Text]:
    from gymckpt.diagnosis.words import duration  # noqa: PLC0415 - imported when needed

    cells = [Text(line.operation_id, style="bold"), *([Text(line.kind)] if kind else [])]
    cells += [
        Text(line.state + " (imported)" * line.imported, style=STATUS_STYLES[line.status]),
        Text(clock_text(line.since_ts, day_of=now_ts)),
        Text(duration(line.duration_s)),
        Text(f"{line.answered}/{line.instances} {line.call}"),
    ]
    return [*cells, _worst_text(line), _owner_text(line)] if wide else cells


def _worst_text(line: OverviewLine) -> Text:
    from gymckpt.diagnosis.words import duration  # noqa: PLC0415 - imported when needed

    worst = line.worst
    if worst is None:
        return Text("")
    text = instance_text(worst.instance)
    what = f" {worst.call}" if worst.state == "answered" else f" {worst.state}"
    took = "" if worst.state == "gone" else f" {duration(worst.for_s)}"
    return text.append(f"{what}{took}", style=CALL_STATE_STYLES.get(worst.state, ""))


def _owner_text(line: OverviewLine) -> Text:
    if line.settled or line.imported:
        return Text("")
    said = {True: ("alive ", "green"), False: ("silent ", "bold red"), None: ("", "")}[line.alive]
    return Text.assemble(said, (_short(line.owner), "dim"))


def _short(owner: str) -> str:
    """Return a controller's token without what only makes it unique."""
    head, _, tail = owner.rpartition(":")
    return head if head and len(tail) >= 8 else owner
