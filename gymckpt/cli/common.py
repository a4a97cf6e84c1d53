"""
What all commands share: where operations are found, how answers leave, what the exit codes mean.

An operation is found in a journal or in an exported file. A file is read into a journal in memory,
so that every command works on both; what the file lacks is said with the answer.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import attrs
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from gymckpt.errors import (
    JournalCorrupt,
    JournalError,
    RunHeld,
    did_you_mean,
    text_of,
)
from gymckpt.wording import lines_of, visible

if TYPE_CHECKING:
    from gymckpt.core.entry import Entry
    from gymckpt.journal import Journal, OperationRow

__all__ = [
    "CANNOT_ANSWER",
    "PROBLEM_FOUND",
    "Found",
    "JournalOption",
    "JsonOption",
    "OperationArgument",
    "RunOption",
    "answering",
    "clock_text",
    "confirm_force",
    "console",
    "find",
    "leave",
    "opened_source",
    "print_json",
    "say",
]

PROBLEM_FOUND = 1
CANNOT_ANSWER = 2

WIDTH_UNKNOWN = 100
"""How many columns an answer has that goes to no terminal."""

KNOWN_MAX = 1000
"""Among how many of the latest operations a name that was not found is looked for."""

JournalOption = Annotated[
    str | None,
    typer.Option(
        "--journal",
        "-j",
        metavar="URL|FILE",
        help="The journal, or an exported file. Default: $GYMCKPT_JOURNAL, else the one in the "
        "user's state directory.",
        show_default=False,
    ),
]
RunOption = Annotated[
    str | None,
    typer.Option("--run", help="Only operations of this training run.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON; docs/cli.md has the shape.")]
OperationArgument = Annotated[
    str, typer.Argument(metavar="OP", help="An operation's id, or an exported file.")
]


class _Answers(Console):
    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Spell out what a terminal would obey: here everything passes, by whomever it is made."""
        for segment in super().render(renderable, options):
            plain = segment.control or segment.text.isprintable()
            yield segment if plain else Segment(visible(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Leave it to the command, which has an exit code for it."""
        raise  # noqa: PLE0704 - it is called where the error was caught


def console() -> Console:
    """Return where answers go, as wide as the terminal."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return _Answers(highlight=False, width=None if known else WIDTH_UNKNOWN)


def print_json(data: Mapping[str, Any]) -> None:
    """Print an answer for programs: all of it, with what is not ASCII as escapes."""
    typer.echo(json.dumps(data, indent=2, allow_nan=False))


def say(message: object, *, error: bool = False) -> None:
    """Print a message, on the standard error where it is about what went wrong."""
    typer.echo(lines_of(message), err=error)


def leave(message: str, code: int) -> NoReturn:
    """Leave with a message on the standard error."""
    say(message, error=True)
    raise typer.Exit(code)


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Turn what can go wrong with a journal or a file into an exit code with a message."""
    try:
        yield
    except BrokenPipeError:
        raise
    except JournalCorrupt as error:
        leave(str(error), PROBLEM_FOUND)
    except RunHeld as error:
        leave(f"{error} (--force)", CANNOT_ANSWER)
    except (JournalError, ValueError, OSError) as error:
        leave(text_of(error), CANNOT_ANSWER)


def confirm_force(journal: Journal, run: str, *, force: bool) -> None:
    """
    Before a run is taken by force: say from whom and what that does, and ask where one can answer.

    Args:
        journal: Where the run is.
        run: The run.
        force: Whether it is to be taken by force.
    """
    held = journal.held(run) if force else None
    if held is None or not held.holder:
        return
    from gymckpt.runtime.holding import is_gone  # noqa: PLC0415 - imported when needed

    if is_gone(held.holder):
        return
    age_s = journal.silent_s(run) or 0.0
    what = (
        f"run {run!r:.100} is held by {held.holder}, whose last heartbeat is {age_s:.1f} s old; "
        "taking it by force ends every verb of that trainer with Fenced"
    )
    if sys.stdin.isatty():
        typer.confirm(f"{lines_of(what)}. Go on?", abort=True, err=True)
    else:
        say(what, error=True)


# --- finding ------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Source:
    """Where operations are found."""

    journal: Journal
    cut: str = ""
    """What is missing of its one operation, where it is a file that was cut off."""
    from_file: bool = False
    """Whether it is a file at rest, so that nothing can have happened since its last entry."""

    def alive(self, row: OperationRow) -> bool | None:
        """
        Whether an operation's controller gives heartbeats; False: it counts as gone.

        None where that is not known, needless, or one is merely late.
        """
        if row.settled or row.imported or self.from_file:
            return None
        found = self.found(row)
        silent_s = found.silent_s
        if found.undriven:
            return False
        if silent_s is None:
            return None
        from gymckpt.diagnosis.signs import standing_of  # noqa: PLC0415 - imported when needed

        return {"alive": True, "silent": False}.get(standing_of(row.owner, silent_s))

    def found(self, row: OperationRow | None) -> Found:
        """Return one of its operations; None where a file has nothing but a header."""
        at_rest = self.from_file or (row is not None and row.imported)
        return Found(row=row, journal=self.journal, cut=self.cut, from_file=at_rest)


@attrs.frozen(kw_only=True, slots=False)
class Found:
    """One operation, where it was found."""

    row: OperationRow | None
    """None where a file has nothing but a header."""
    journal: Journal
    cut: str
    from_file: bool

    def entries(self) -> tuple[Entry, ...]:
        """Read its entries."""
        row = self.row
        return () if row is None else self.journal.read(row.run, row.operation_id)

    def known_row(self) -> OperationRow:
        """Return the operation's row, or leave."""
        if self.row is None:
            leave(self.cut or "there is no such operation", CANNOT_ANSWER)
        return self.row

    @property
    def now_ts(self) -> float | None:
        """The moment to look at it from; None for that of its last entry."""
        return None if self.from_file else time.time()

    @property
    def silent_s(self) -> float | None:
        """How old the last heartbeat of its controller is, where that still holds the run."""
        if self.row is None or self.row.settled or self.from_file or self.undriven:
            return None
        return self.journal.silent_s(self.row.run)

    @functools.cached_property
    def undriven(self) -> str:
        """Why certainly nobody drives it any more; empty where somebody may."""
        row = self.row
        if row is None or row.settled or self.from_file:
            return ""
        held = self.journal.held(row.run)
        if held is None or not held.holder:
            return "no process holds the run"
        if held.epoch != row.epoch:
            return f"{held.holder} holds the run now, and has not recovered this operation"
        from gymckpt.runtime.holding import is_gone  # noqa: PLC0415 - imported when needed

        return f"{held.holder} has ended" if is_gone(held.holder) else ""


@contextlib.contextmanager
def opened_source(place: str | None, *, writing: bool = False) -> Iterator[Source]:
    """
    Open where operations are found.

    Args:
        place: What the command line names; None for the default journal.
        writing: Whether the journal is to be written.
    """
    if place is not None and _is_export(place):
        if writing:
            leave(f"{text_of(place)[:200]}: an exported file is not changed", CANNOT_ANSWER)
        yield _source_of_file(place)
        return
    from gymckpt.journal import open_journal  # noqa: PLC0415 - imported when needed

    with open_journal(place, read_only=not writing) as journal:
        yield Source(journal=journal)


def _is_export(place: str) -> bool:
    """Whether a place is a file that an export was written to."""
    path = Path(place)
    try:
        if "://" in place or not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(80)
    except OSError:
        return False
    if path.suffix == ".jsonl" or not head.startswith(b"{"):
        return path.suffix == ".jsonl"
    from gymckpt.journal.portable import FORMAT  # noqa: PLC0415 - imported when needed

    return head.startswith(f'{{"format":"{FORMAT}"'.encode())


def _source_of_file(place: str) -> Source:
    """Read an exported file into a journal in memory."""
    from gymckpt.journal import MemoryJournal  # noqa: PLC0415 - imported when needed
    from gymckpt.journal.portable import read_export, row_of  # noqa: PLC0415 - likewise

    export, journal = read_export(place), MemoryJournal()
    if export.entries:  # whatever they say: `replay` tells where they leave their chart
        journal.insert_operation(row_of(export), export.entries)
    return Source(journal=journal, cut=export.problem, from_file=True)


@contextlib.contextmanager
def find(
    name: str, *, journal: str | None, run: str | None, writing: bool = False
) -> Iterator[Found]:
    """
    Find the operation that the user means.

    Args:
        name: Its id, or the path of an exported file.
        journal: Where to look for an id.
        run: Its run; needed only where several runs have the id.
        writing: Whether the journal is to be written.
    """
    as_file = not writing and _is_export(name)
    with opened_source(name if as_file else journal, writing=writing) as source:
        rows = source.journal.operations() if as_file else _rows_of(source, name, run)
        yield source.found(rows[0] if rows else None)


def _rows_of(source: Source, name: str, run: str | None) -> tuple[OperationRow, ...]:
    """Return the one operation of an id, or leave with the choice that there is."""
    from gymckpt.journal import Selection  # noqa: PLC0415 - imported when needed

    rows = source.journal.select(Selection(operation_id=name, run=run))
    if not rows:
        known = source.journal.select(Selection(run=run, latest=KNOWN_MAX))
        hint = did_you_mean(name, [row.operation_id for row in reversed(known)])
        within = "" if run is None else f" of run {run!r:.100}"
        leave(f"there is no operation {name!r:.100}{within}{hint}", CANNOT_ANSWER)
    if len(rows) > 1:
        runs = ", ".join(row.run for row in rows[:5])
        leave(f"{len(rows)} runs have an operation {name!r:.100}: {runs}; add --run", CANNOT_ANSWER)
    return rows


# --- time ---------------------------------------------------------------------------------------


def clock_text(ts: float, *, day_of: float | None = None) -> str:
    """
    Return a moment in local time, with its day unless it is that of another moment.

    Args:
        ts: Epoch seconds.
        day_of: The other moment.
    """
    try:
        moment = datetime.datetime.fromtimestamp(ts).astimezone()
        same = day_of is not None and (
            datetime.datetime.fromtimestamp(day_of).astimezone().date() == moment.date()
        )
    except (OverflowError, ValueError, OSError):
        return f"{ts:.0f}"
    return moment.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M:%S")
