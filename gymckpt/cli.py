"""
The command line: `gymckpt`.

Exit codes: 0 all is well, 1 a problem was found in what was looked at, 2 the question cannot be
answered (a wrong command line, a name or a file that is not there). Answers go to the standard
output, everything else to the standard error. Nothing here imports Ray.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gymckpt.chart import (
    Chart,
    chart_names,
    load_chart,
    parse_chart,
    to_json,
    to_mermaid,
    to_table,
)
from gymckpt.errors import ChartError, did_you_mean, text_of

__all__ = ["app"]

PROBLEM_FOUND = 1
CANNOT_ANSWER = 2

app = typer.Typer(
    help="Look at checkpoints of agentic RL rollouts and at the protocol that makes them.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


class ChartFormat(StrEnum):
    """How a chart is printed."""

    TABLE = "table"
    MERMAID = "mermaid"
    JSON = "json"


@app.callback()
def main() -> None:
    """Look at checkpoints of agentic RL rollouts and at the protocol that makes them."""


@app.command()
def chart(
    name: Annotated[
        str, typer.Argument(help="The name of a shipped chart, or the path of a chart file.")
    ],
    output: Annotated[
        ChartFormat, typer.Option("--format", help="How to print it.")
    ] = ChartFormat.TABLE,
) -> None:
    """Check a chart and print it."""
    found = _find_chart(name)
    if output is ChartFormat.MERMAID:
        typer.echo(to_mermaid(found), nl=False)
    elif output is ChartFormat.JSON:
        typer.echo(json.dumps(to_json(found), indent=2, ensure_ascii=False))
    else:
        Console(highlight=False).print(_chart_table(found))


def _find_chart(name: str) -> Chart:
    """Return the chart that the user means, or leave with what is wrong."""
    try:
        if name in chart_names():
            return load_chart(name)
        if "/" not in name and not name.endswith(".toml"):
            _leave(f"there is no chart {name!r}{did_you_mean(name, chart_names())}", CANNOT_ANSWER)
        text = Path(name).read_text(encoding="utf-8")
        return parse_chart(text, name)
    except ChartError as error:
        _leave(str(error), PROBLEM_FOUND)
    except (OSError, UnicodeDecodeError) as error:
        _leave(f"{name}: cannot be read: {text_of(error)}", CANNOT_ANSWER)


def _leave(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)


def _chart_table(shown: Chart) -> Table:
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
        means = Text(row.means)
        if row.calls:
            means.append(f"\ncalls {row.calls}", style="cyan")
        leaves = Text("\n".join(row.leaves) if row.leaves else "ends here")
        if row.ignores:
            leaves.append(f"\nignores {', '.join(row.ignores)}", style="dim")
        table.add_row(Text(row.state, style=style), means, leaves, end_section=True)
    return table
