"""`gymckpt export`, `import` and `prune`: operations on their way out of a journal and into one."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from gymckpt.cli.common import (
    PROBLEM_FOUND,
    JournalOption,
    JsonOption,
    RunOption,
    answering,
    console,
    find,
    leave,
    opened_source,
    print_json,
    say,
)
from gymckpt.cli.styles import since_option

if TYPE_CHECKING:
    from gymckpt.journal import Journal, OperationRow

__all__ = ["add_to"]

PRUNE_SCHEMA = "gymckpt.prune/1"
IMPORT_SCHEMA = "gymckpt.import/1"
SHOWN_MAX = 20


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(export)
    app.command("import")(import_)
    app.command()(prune)


def export(
    op: Annotated[str, typer.Argument(metavar="OP", help="The operation's id.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file; else the standard output.", show_default=False
        ),
    ] = None,
    journal: JournalOption = None,
    run: RunOption = None,
) -> None:
    """Write one operation to a file that shows whether it is whole and unchanged."""
    from gymckpt.journal.portable import export_operation, write_export  # noqa: PLC0415 - when needed

    with answering(), find(op, journal=journal, run=run) as found:
        row = found.row
        if row is None:
            leave(found.cut, PROBLEM_FOUND)
        if output is None:
            for line in export_operation(found.journal, row.run, row.operation_id):
                sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        else:
            write_export(found.journal, row.run, row.operation_id, output)
            say(f"{output}: {row.operation_id}, {row.last_seq} entries", error=True)


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that export wrote.")],
    journal: JournalOption = None,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="Take what is there of a file that was cut off.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Put an exported operation into a journal, for reading: it is checked, and never driven."""
    from gymckpt.journal.portable import import_operation, read_export  # noqa: PLC0415 - when needed

    with answering():
        exported = read_export(file)
        with opened_source(journal, writing=True) as source:
            row = import_operation(source.journal, exported, allow_incomplete=incomplete)
            place = source.journal.url
    if as_json:
        print_json(
            {
                "schema": IMPORT_SCHEMA,
                "run": row.run,
                "operation_id": row.operation_id,
                "entries": row.last_seq,
                "complete": exported.complete,
                "settled": row.settled,
                "imported": row.imported,
                "journal": place,
            }
        )
        return
    say(f"{row.operation_id} of run {row.run}: {row.last_seq} entries, now in {place}")
    if not row.settled:
        say("it is unfinished, and stays so: what was imported is never driven", error=True)


def prune(
    *,
    journal: JournalOption = None,
    run: RunOption = None,
    keep_last: Annotated[
        int | None,
        typer.Option("--keep-last", min=0, help="Keep the latest so many of each run."),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="AGE", help="Only those that ended before: 6h, 30d, or a time."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed, and why.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove settled operations; never an unfinished one, and no id is ever free again."""
    with answering():
        if keep_last is None and older_than is None:
            raise ValueError("say what to keep: --keep-last N, --older-than AGE, or both")
        before_ts = since_option(older_than, time.time())
        with opened_source(journal, writing=not dry_run) as source:
            chosen, unfinished = _chosen(source.journal, run, keep_last, before_ts)
            if not dry_run:
                _remove(source.journal, chosen)
    why = _why(keep_last, older_than)
    if as_json:
        print_json(
            {
                "schema": PRUNE_SCHEMA,
                "dry_run": dry_run,
                "why": why,
                "removed": [{"run": row.run, "operation_id": row.operation_id} for row in chosen],
                "unfinished": [
                    {"run": row.run, "operation_id": row.operation_id} for row in unfinished
                ],
            }
        )
        return
    _print_pruned(chosen, unfinished, why, dry_run=dry_run)


def _chosen(
    journal: Journal, run: str | None, keep_last: int | None, before_ts: float | None
) -> tuple[list[OperationRow], list[OperationRow]]:
    """Return what is to go, and what stays only because it is unfinished."""
    by_run: dict[str, list[OperationRow]] = {}
    for row in journal.operations(run):
        by_run.setdefault(row.run, []).append(row)
    meant = [
        row
        for rows in by_run.values()
        for row in (rows if not keep_last else rows[:-keep_last])
        if before_ts is None or row.updated_ts < before_ts
    ]
    chosen = [row for row in meant if row.settled or row.imported]
    return chosen, [row for row in meant if row not in chosen]


def _remove(journal: Journal, chosen: Sequence[OperationRow]) -> None:
    """Remove operations one by one, with progress where somebody watches."""
    from rich.progress import track  # noqa: PLC0415 - imported when needed

    errors = Console(stderr=True)
    hidden = not sys.stderr.isatty()
    for row in track(chosen, "removing", console=errors, transient=True, disable=hidden):
        journal.remove(row.run, row.operation_id)


def _why(keep_last: int | None, older_than: str | None) -> str:
    reasons: list[str] = []
    if keep_last is not None:
        reasons.append(f"not among the last {keep_last} of their run")
    if older_than is not None:
        reasons.append(f"without an entry since {older_than}")
    return "settled, " + " and ".join(reasons)


def _print_pruned(
    chosen: list[OperationRow], unfinished: list[OperationRow], why: str, *, dry_run: bool
) -> None:
    out = console()
    done = "would be removed" if dry_run else "removed"
    out.print(Text(f"{len(chosen):,} {done}: {why}"))
    for row in chosen[:SHOWN_MAX]:
        out.print(Text(f"  {row.operation_id}  {row.state}  run {row.run}", style="dim"))
    if len(chosen) > SHOWN_MAX:
        out.print(Text(f"  and {len(chosen) - SHOWN_MAX:,} more", style="dim"))
    for row in unfinished[:SHOWN_MAX]:
        out.print(
            Text(f"  kept, it is unfinished: {row.operation_id}  {row.state}", style="yellow")
        )
