"""
The command line: `gymckpt`.

Exit codes: 0 all is well, 1 a problem was found in what was looked at, 2 the question cannot be
answered (a wrong command line, a name or a file that is not there). Answers go to the standard
output, everything else to the standard error. Nothing here imports Ray, except to reach the actors
that an operator names.

One module per group of commands; each adds its own to `app`. What a command needs is imported when
it runs, so that the first output comes soon.
"""

from __future__ import annotations

import gc

gc.set_threshold(200_000)  # else it looks at every imported module again and again, for nothing

import typer  # noqa: E402

from gymckpt.cli import (  # noqa: E402
    charts,
    explaining,
    listing,
    moving,
    pictures,
    replaying,
    showing,
    transfer,
    verifying,
    watching,
)

__all__ = ["app"]

app = typer.Typer(
    help="Look at checkpoints of agentic RL rollouts and at the protocol that makes them.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    add_completion=False,
)


@app.callback()
def main() -> None:
    """Look at checkpoints of agentic RL rollouts and at the protocol that makes them."""


for group in (
    listing,
    showing,
    explaining,
    replaying,
    watching,
    pictures,
    transfer,
    charts,
    moving,
    verifying,
):
    group.add_to(app)
