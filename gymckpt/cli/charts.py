"""`gymckpt chart`: a chart, and the path that an operation took through it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
import typer
from rich import box
from rich.table import Table
from rich.text import Text

from gymckpt.cli.common import (
    CANNOT_ANSWER,
    PROBLEM_FOUND,
    JournalOption,
    JsonOption,
    RunOption,
    answering,
    console,
    find,
    leave,
    print_json,
)
from gymckpt.errors import ChartError, did_you_mean, text_of

if TYPE_CHECKING:
    from gymckpt.chart import Chart
    from gymckpt.core.entry import Entry

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(chart)


class ChartFormat(StrEnum):
    """How a chart is printed."""

    TABLE = "table"
    MERMAID = "mermaid"
    JSON = "json"


@attrs.frozen(kw_only=True)
class _Path:
    """The way that an operation took through its chart."""

    visits: tuple[tuple[str, str, float], ...]
    """(state, trigger that led there, when), in order."""

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(state for state, _, _ in self.visits)

    @property
    def current(self) -> str | None:
        return self.visits[-1][0] if self.visits else None


def chart(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The name of a shipped chart, or the path of a chart file; may be left out with "
            "--of.",
            show_default=False,
        ),
    ] = None,
    *,
    output: Annotated[
        ChartFormat, typer.Option("--format", help="How to print it.")
    ] = ChartFormat.TABLE,
    of: Annotated[
        str | None,
        typer.Option(
            "--of",
            metavar="OP",
            help="Mark the path that this operation took, and where it stands.",
            show_default=False,
        ),
    ] = None,
    journal: JournalOption = None,
    run: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a chart and print it."""
    if as_json:
        output = ChartFormat.JSON
    path: _Path | None = None
    if of is not None:
        own, path = _path_of(of, journal, run)
        if name is not None and name != own:
            leave(f"operation {of!r:.100} runs chart {own!r}, not {name!r:.100}", CANNOT_ANSWER)
        name = own
    if name is None:
        leave("Missing argument: name a chart, or an operation with --of", CANNOT_ANSWER)
    from gymckpt.chart import to_json, to_mermaid  # noqa: PLC0415 - imported when needed

    found = _find_chart(name)
    visited = [state for state in path.states if state in found.states] if path else []
    current = visited[-1] if visited else None
    if output is ChartFormat.MERMAID:
        typer.echo(to_mermaid(found, path=visited, current=current), nl=False)
    elif output is ChartFormat.JSON:
        data = to_json(found)
        if path is not None:
            data["of"] = {
                "operation_id": of,
                "current": current,
                "path": [
                    {"state": state, "trigger": trigger, "at_s": at_s}
                    for state, trigger, at_s in path.visits
                ],
            }
        print_json(data)
    else:
        console().print(_chart_table(found, path))


def _path_of(op: str, journal: str | None, run: str | None) -> tuple[str, _Path]:
    """Return the chart that an operation runs and its path through it."""
    with answering(), find(op, journal=journal, run=run) as found:
        entries = found.entries()
        if not entries or found.row is None:
            leave(found.cut or f"operation {op!r:.100} has no entry", CANNOT_ANSWER)
        return found.row.chart, _Path(visits=tuple(_visits(entries)))


def _visits(entries: Sequence[Entry]) -> Sequence[tuple[str, str, float]]:
    return [
        (entry.dest, entry.trigger, entry.at_s)
        for entry in entries
        if entry.instance is None and entry.dest != entry.source
    ]


def _find_chart(name: str) -> Chart:
    """Return the chart that the user means, or leave with what is wrong."""
    from gymckpt.chart import chart_names, load_chart, parse_chart  # noqa: PLC0415 - when needed

    try:
        if name in chart_names():
            return load_chart(name)
        if "/" not in name and not name.endswith(".toml"):
            leave(f"there is no chart {name!r}{did_you_mean(name, chart_names())}", CANNOT_ANSWER)
        text = Path(name).read_text(encoding="utf-8")
        return parse_chart(text, name)
    except ChartError as error:
        leave(str(error), PROBLEM_FOUND)
    except (OSError, UnicodeDecodeError) as error:
        leave(f"{name}: cannot be read: {text_of(error)}", CANNOT_ANSWER)


def _chart_table(shown: Chart, path: _Path | None) -> Table:
    from gymckpt.chart import to_table  # noqa: PLC0415 - imported when needed
    from gymckpt.diagnosis.words import duration  # noqa: PLC0415 - likewise

    table = Table(
        title=Text(f"{shown.name} v{shown.version} ({shown.scope})"),
        caption=Text(shown.means),
        box=box.ROUNDED,
    )
    table.add_column("state", no_wrap=True)
    table.add_column("means", ratio=1)
    table.add_column("leaves by", ratio=1)
    for row in to_table(shown):
        style = "bold" if row.final else "cyan" if row.initial else ""
        state = Text(row.state, style=style)
        if path is not None:
            visits = [visit for visit in path.visits if visit[0] == row.state]
            current = row.state == path.current
            mark, style = (
                ("▶ ", "bold yellow") if current else ("● ", "green") if visits else ("  ", "dim")
            )
            state = Text(f"{mark}{row.state}", style=style)
            for _, trigger, at_s in visits:
                state.append(f"\n  +{duration(at_s)} {trigger}", style="dim")
        means = Text(row.means)
        if row.calls:
            means.append(f"\ncalls {row.calls}", style="cyan")
        leaves = Text("\n".join(row.leaves) if row.leaves else "ends here")
        if row.ignores:
            leaves.append(f"\nignores {', '.join(row.ignores)}", style="dim")
        table.add_row(state, means, leaves, end_section=True)
    return table
