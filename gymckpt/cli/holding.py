"""`gymckpt runs` and `release`: which process holds a run, and giving a run back."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from gymckpt.cli.common import (
    CANNOT_ANSWER,
    PROBLEM_FOUND,
    JournalOption,
    JsonOption,
    answering,
    clock_text,
    confirm_force,
    console,
    leave,
    opened_source,
    print_json,
)

if TYPE_CHECKING:
    from gymckpt.journal import Journal, RunRow

__all__ = ["add_to"]

RUNS_SCHEMA = "gymckpt.runs/1"
RELEASE_SCHEMA = "gymckpt.release/1"
JOURNAL_TIMEOUT_S = 10.0


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(runs)
    app.command()(release)


def runs(*, journal: JournalOption = None, as_json: JsonOption = False) -> None:
    """List the runs of a journal: which process holds each, since when, and its last heartbeat."""
    with answering(), opened_source(journal) as source:
        listed = [_told(source.journal, row) for row in source.journal.runs()]
    if as_json:
        print_json({"schema": RUNS_SCHEMA, "runs": listed})
        return
    if not listed:
        console().print(Text("no process has ever held a run in this journal"))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("run", "holder", "since", "heartbeat", "epoch"):
        table.add_column(column, overflow="fold")
    for one in listed:
        beat = one["silent_s"]
        style = {"held": "green", "gone": "bold red"}.get(one["status"], "dim")
        holder = one["holder"] or "nobody"
        table.add_row(
            one["run"],
            Text(holder + (" (has ended)" if one["status"] == "gone" else ""), style=style),
            clock_text(one["since_ts"], day_of=time.time()),
            "" if beat is None else f"{beat:.1f} s ago",
            str(one["epoch"]),
        )
    console().print(table)


def _told(journal: Journal, row: RunRow) -> dict[str, Any]:
    from gymckpt.runtime.holding import is_gone  # noqa: PLC0415 - imported when needed

    status = "free" if not row.holder else "gone" if is_gone(row.holder) else "held"
    return {
        "run": row.run,
        "status": status,
        "holder": row.holder,
        "epoch": row.epoch,
        "since_ts": row.since_ts,
        "silent_s": journal.silent_s(row.run) if row.holder else None,
    }


def release(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The training run.")],
    *,
    journal: JournalOption = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also from a process that is alive, which ends every verb of its trainer; asks "
            "first where it can.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Give a run back whose holder is gone, so that the next controller need not wait for it."""
    with answering(), opened_source(journal, writing=True) as source:
        held = source.journal.held(run)
        if held is None:
            leave(f"no process has ever held run {run!r:.100} in this journal", CANNOT_ANSWER)
        confirm_force(source.journal, run, force=force)
        epoch = asyncio.run(_released(source.journal, run, force=force)) if held.holder else None
        unfinished = len(source.journal.operations(run, unfinished=True))
    if as_json:
        told = {"run": run, "was_held_by": held.holder, "epoch": epoch, "unfinished": unfinished}
        print_json({"schema": RELEASE_SCHEMA, **told})
    else:
        _tell_released(run, held.holder, unfinished)
    if unfinished:
        raise typer.Exit(PROBLEM_FOUND)


def _tell_released(run: str, holder: str, unfinished: int) -> None:
    out = console()
    said = f"{run}: taken from {holder} and given back" if holder else f"{run}: nobody holds it"
    out.print(Text(said, style="green"))
    if unfinished:
        left = f"{unfinished} operation(s) are unfinished: gymckpt recover --run {run}"
        out.print(Text(left, style="yellow"))


async def _released(journal: Journal, run: str, *, force: bool) -> int:
    """Claim a run as a command, which fences its holder, and give it back."""
    from gymckpt.runtime.holding import holder_token  # noqa: PLC0415 - imported when needed
    from gymckpt.runtime.worker import Recorder  # noqa: PLC0415 - likewise

    recorder = Recorder(journal, owner=holder_token(command=True), timeout_s=JOURNAL_TIMEOUT_S)
    try:
        return (await recorder.hold(run, force=force)).epoch
    finally:
        await recorder.give_back()
        recorder.let_go()
