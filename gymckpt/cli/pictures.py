"""`gymckpt report` and `gymckpt trace`: operations as pages and as Perfetto traces."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gymckpt.cli.common import (
    CANNOT_ANSWER,
    PROBLEM_FOUND,
    Found,
    JournalOption,
    OperationArgument,
    RunOption,
    answering,
    find,
    leave,
    opened_source,
    say,
)
from gymckpt.cli.explaining import explanation_of

__all__ = ["add_to"]

OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="The file, which is replaced if it is there; else the standard output.",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(report)
    app.command()(trace)


def report(
    op: Annotated[
        str | None,
        typer.Argument(
            metavar="[OP]", help="An operation's id, or an exported file.", show_default=False
        ),
    ] = None,
    *,
    runs: Annotated[
        bool,
        typer.Option("--runs", help="The history of all operations, of one run with --run."),
    ] = False,
    output: OutputOption = None,
    journal: JournalOption = None,
    run: RunOption = None,
) -> None:
    """Draw an operation, or the history of many, as one HTML page that loads nothing."""
    from gymckpt.diagnosis.report import report as drawn  # noqa: PLC0415 - imported when needed
    from gymckpt.diagnosis.runs_report import runs_report  # noqa: PLC0415 - likewise

    if (op is None) != runs:
        leave("name one operation, or give --runs for the history of all", CANNOT_ANSWER)
    with answering():
        if op is None:
            with opened_source(journal) as source:
                page = runs_report(source.journal, run)
        else:
            with find(op, journal=journal, run=run) as found:
                _require_entries(found)
                page = drawn(
                    found.entries(), explanation=explanation_of(found), now_ts=found.now_ts
                )
        _write(output, page)


def trace(
    op: OperationArgument,
    output: OutputOption = None,
    journal: JournalOption = None,
    run: RunOption = None,
) -> None:
    """Write an operation as a trace that ui.perfetto.dev opens."""
    import json  # noqa: PLC0415 - used here only

    from gymckpt.diagnosis.trace import trace as traced  # noqa: PLC0415 - imported when needed

    with answering(), find(op, journal=journal, run=run) as found:
        _require_entries(found)
        made = traced(found.entries(), now_ts=found.now_ts)
        _write(output, json.dumps(made, allow_nan=False, separators=(",", ":")) + "\n")


def _require_entries(found: Found) -> None:
    """Leave where there is nothing to draw, and say what is missing where something is."""
    if found.row is None:
        leave(found.cut, PROBLEM_FOUND)
    if found.cut:
        say(found.cut, error=True)


def _write(output: Path | None, text: str) -> None:
    """Write a file, which appears whole or not at all, or to the standard output."""
    from gymckpt.files import write_beside  # noqa: PLC0415 - imported when needed

    if output is None:
        sys.stdout.buffer.write(text.encode("utf-8"))
        sys.stdout.buffer.flush()
        return
    temporary = write_beside(output, text.encode("utf-8"), prefix=".gymckpt-")
    try:
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
    say(f"{output}: {len(text):,} characters", error=True)
