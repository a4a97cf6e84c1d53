"""
The command line: `gymckpt`.

Exit codes: 0 all is well, 1 a problem was found in what was looked at, 2 the question cannot be
answered (a wrong command line, a name or a file that is not there), 141 nobody reads the answer any
more. Answers go to the standard
output, everything else to the standard error. Nothing here imports Ray, except to reach the actors
that an operator names.

One module per group of commands; each adds its own to an app. A module is imported when one of its
commands is looked at, and what a command needs when it runs, so that the first output comes soon.
"""

from __future__ import annotations

import atexit
import gc

gc.set_threshold(200_000)  # else it looks at every imported module again and again, for nothing
atexit.register(gc.freeze)  # and once more at the very end

import importlib  # noqa: E402
from collections.abc import Iterator, Mapping  # noqa: E402
from typing import Any  # noqa: E402

import typer  # noqa: E402
from typer.core import TyperGroup  # noqa: E402

from gymckpt.unread import let_go  # noqa: E402

__all__ = ["app"]

MODULES: Mapping[str, str] = {
    "ops": "listing",
    "show": "showing",
    "explain": "explaining",
    "replay": "replaying",
    "watch": "watching",
    "report": "pictures",
    "trace": "pictures",
    "export": "transfer",
    "import": "transfer",
    "prune": "transfer",
    "chart": "charts",
    "discard": "moving",
    "sweep": "moving",
    "mark-gone": "moving",
    "recover": "moving",
    "runs": "holding",
    "release": "holding",
    "verify": "verifying",
}
"""Command to the module that has it, in the order of the help."""


class _Commands(Mapping[str, Any]):
    """Every command by its name, made when it is looked at."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            some = typer.Typer()
            importlib.import_module(f"{__name__}.{MODULES[name]}").add_to(some)
            self._made |= typer.main.get_group(some).commands
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


class _Group(TyperGroup):
    """The commands of `gymckpt`."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands: Any = _Commands()

    def invoke(self, ctx: Any) -> Any:
        """Run a command; that its reader went away must not look like a problem that was found."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                print(end="", flush=True)  # where there is an output at all
        except BrokenPipeError:
            raise typer.Exit(let_go()) from None


app = typer.Typer(
    cls=_Group,
    help="Look at checkpoints of agentic RL rollouts and at the protocol that makes them.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    add_completion=False,
)


@app.callback()
def main() -> None:
    """Look at checkpoints of agentic RL rollouts and at the protocol that makes them."""
