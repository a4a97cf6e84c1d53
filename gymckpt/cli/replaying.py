"""`gymckpt replay`: run a history through today's charts, or see what would have happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from gymckpt.cli.common import (
    CANNOT_ANSWER,
    PROBLEM_FOUND,
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
    say,
)
from gymckpt.cli.styles import CALL_STATE_STYLES, instance_text

if TYPE_CHECKING:
    from gymckpt.core.entry import Entry
    from gymckpt.core.operation import OperationState
    from gymckpt.diagnosis.replay import Replay
    from gymckpt.diagnosis.whatif import Phase

__all__ = ["add_to"]

_PLAIN = frozenset({"ask", "answer", "refuse", "fail", "expire", "die", "lapse"})
"""Triggers of calls that the state to which they lead says well enough."""

STEPS_MAX = 200
"""How many entries `--step` prints before it leaves the middle out."""


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(replay)


def replay(
    op: OperationArgument,
    *,
    journal: JournalOption = None,
    run: RunOption = None,
    to: Annotated[
        int | None, typer.Option("--to", metavar="SEQ", min=1, help="Stop after this entry.")
    ] = None,
    step: Annotated[
        bool, typer.Option("--step", help="Print every entry with the state after it.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Print nothing but the verdict.")
    ] = False,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="EDIT",
            help="Run it again from an entry on, with something going differently: drop=SEQ (the "
            "reply that entry SEQ records never comes), delay=SEQ:SECONDS, or crash=SEQ[:SECONDS] "
            "(the controller crashes after it, another goes on SECONDS later). May be repeated.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run an operation's entries through today's charts, or see what would have happened."""
    from gymckpt.diagnosis.replay import replay as replayed  # noqa: PLC0415 - imported when needed

    if what_if:
        _tell_what_if(op, journal, run, what_if, as_json=as_json)
        return
    with answering(), find(op, journal=journal, run=run) as found:
        result, cut = replayed(found.entries(), to_seq=to), found.cut
    if not result.given:
        leave(cut or f"operation {op!r:.100} has no entry", CANNOT_ANSWER)
    if as_json:
        steps = _steps_json(result) if step else None
        print_json(result.to_json() | ({"steps": steps} if step else {}) | {"cut_off": cut})
    else:
        out = console()
        if step:
            out.print(_steps_table(result))
        if result.state is not None and not verify:
            out.print(_state_text(result.state, result.entries[-1]))
        out.print(_verdict(result))
        if cut:
            say(cut, error=True)
    if result.divergence is not None or cut:
        raise typer.Exit(PROBLEM_FOUND)


def _tell_what_if(
    op: str, journal: str | None, run: str | None, edits: Sequence[str], *, as_json: bool
) -> None:
    """Run a history with something going differently, and say what comes of it."""
    from gymckpt.diagnosis import whatif  # noqa: PLC0415 - brings the scheduler along

    with answering(), find(op, journal=journal, run=run) as found:
        result = whatif.what_if(found.entries(), [whatif.edit_of(text) for text in edits])
    if as_json:
        print_json(result.to_json())
        return
    out = console()
    for edit in result.edits:
        out.print(Text.assemble(("what if  ", "bold cyan"), edit))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("it was", Group(_phases_text(result.was), Text(result.summary_was, style="dim")))
    grid.add_row(
        "it becomes", Group(_phases_text(result.becomes), Text(result.summary_becomes, style="dim"))
    )
    out.print(grid)
    if result.ended == "body":
        state = result.becomes[-1].state
        said = f"here it depends on the controller's body, which never was in {state!r}"
        out.print(Text(said, style="yellow"))
    elif result.ended == "limit":
        out.print(Text("it has not ended after a day", style="yellow"))
    if result.assumed:
        said = f"{result.assumed:,} answers that the history does not know are assumed"
        out.print(Text(said, style="dim"))


def _phases_text(phases: Sequence[Phase]) -> Text:
    from gymckpt.diagnosis.words import duration  # noqa: PLC0415 - imported when needed

    parts = [
        Text(one.state, style="bold")
        if one.seconds is None
        else Text.assemble(one.state, (f" {duration(one.seconds)}", "cyan"))
        for one in phases
        if one.seconds is None or one.seconds > 0
    ]
    return Text(" → ").join(parts)


def _verdict(result: Replay) -> Text:
    diverged = result.divergence
    if diverged is None:
        taken, given = len(result.entries), result.given
        rest = "" if taken == given else f" of {given:,}"
        return Text(
            f"✓ {taken:,}{rest} entries follow today's charts and invariants", style="green"
        )
    text = Text(
        f"✗ entry {diverged.seq} of {result.given:,} is the first that does not fit\n", "bold red"
    )
    text.append(f"  {diverged.rule} gives: ", style="dim").append(
        f"{diverged.expected}\n", style=""
    )
    text.append("  the history has: ", style="dim").append(diverged.found, style="")
    return text


def _state_text(operation: OperationState, last: Entry) -> Table:
    from gymckpt.diagnosis.words import duration  # noqa: PLC0415 - imported when needed

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row(
        "operation", Text(f"{operation.chart} {operation.operation_id}, run {operation.run}")
    )
    grid.add_row(
        "after entry", Text(f"{operation.seq} ({clock_text(last.ts)}, +{duration(last.at_s)})")
    )
    grid.add_row("state", Text.assemble((operation.state, "bold"), f"  {operation.row.means}"))
    for call, calls in operation.calls.items():
        tally = Text()
        for state, count in calls.tally.items():
            if count:
                tally.append(f"{count} {state}  ", style=CALL_STATE_STYLES.get(state, ""))
        grid.add_row(call, tally)
    if operation.file != "none":
        grid.add_row("manifest", Text(f"{operation.file}, {operation.root}"))
    return grid


def _steps_table(result: Replay) -> Table:
    from gymckpt.diagnosis.words import duration  # noqa: PLC0415 - imported when needed

    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for name in ("seq", "at", "what", "operation", "calls"):
        table.add_column(name, overflow="fold", no_wrap=name in ("seq", "at"))
    steps = list(zip(result.entries, result.states, strict=True))
    hidden = len(steps) - STEPS_MAX
    shown = steps if hidden <= 0 else [*steps[: STEPS_MAX // 2], *steps[-STEPS_MAX // 2 :]]
    for number, (entry, state) in enumerate(shown):
        if hidden > 0 and number == STEPS_MAX // 2:
            table.add_row("…", "", Text(f"{hidden:,} entries; --json has them all", style="dim"))
        table.add_row(
            str(entry.seq),
            Text(f"+{duration(entry.at_s)}", style="dim"),
            _entry_text(entry),
            Text(state.state, style="bold" if entry.instance is None else "dim"),
            Text(_tallies(state), style="dim"),
        )
    return table


def _entry_text(entry: Entry) -> Text:
    if entry.instance is None:
        return Text(f"{entry.trigger}: {entry.source or 'nothing'} → {entry.dest}", style="bold")
    text = instance_text(entry.instance)
    told = "" if entry.trigger in _PLAIN else f"{entry.trigger} "
    text.append(f" {entry.call} #{entry.ask} {told}")
    return text.append(entry.dest, style=CALL_STATE_STYLES.get(entry.dest, ""))


def _tallies(state: OperationState) -> str:
    return ", ".join(
        f"{call} {calls.count('answered')}/{len(state.instances)}"
        for call, calls in state.calls.items()
    )


def _steps_json(result: Replay) -> Sequence[dict[str, object]]:
    from gymckpt.diagnosis.replay import snapshot  # noqa: PLC0415 - imported when needed

    return [
        {
            "seq": entry.seq,
            "ts": entry.ts,
            "at_s": entry.at_s,
            "instance": entry.instance,
            "call": entry.call,
            "ask": entry.ask,
            "trigger": entry.trigger,
            "source": entry.source,
            "dest": entry.dest,
            "after": snapshot(state),
        }
        for entry, state in zip(result.entries, result.states, strict=True)
    ]
