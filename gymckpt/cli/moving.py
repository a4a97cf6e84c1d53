"""`gymckpt discard`, `sweep`, `mark-gone` and `recover`: what an operator does by hand."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import socket
from collections.abc import Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import attrs
import typer
from rich.text import Text

from gymckpt.cli.common import (
    CANNOT_ANSWER,
    PROBLEM_FOUND,
    JournalOption,
    JsonOption,
    RunOption,
    answering,
    confirm_force,
    console,
    find,
    leave,
    opened_source,
    print_json,
)
from gymckpt.errors import (
    InvariantViolated,
    JournalCorrupt,
    ReplayDiverged,
    TransitionRefused,
    sample,
    text_of,
)

if TYPE_CHECKING:
    from gymckpt.journal import Damaged, Journal, OperationRow
    from gymckpt.moves import By, Moved
    from gymckpt.recovery import Recovered

__all__ = ["add_to"]

MOVE_SCHEMA = "gymckpt.move/1"
RECOVER_SCHEMA = "gymckpt.recover/1"

T = TypeVar("T")

IdArgument = Annotated[str, typer.Argument(metavar="OP", help="The operation's id.")]
ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="WHY", help="Why you do it; journaled with who you are.")
]
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Take the run away from a controller that is alive, which ends every verb of its "
        "trainer; asks first where it can.",
    ),
]
ActorOption = Annotated[
    list[str] | None,
    typer.Option(
        "--actor",
        metavar="INSTANCE=NAME",
        help="The named Ray actor behind an instance, as NAME or NAMESPACE/NAME; repeat it for "
        "each. An instance without one is not asked: the next recovery with its handle does that.",
        show_default=False,
    ),
]
AddressOption = Annotated[str, typer.Option("--ray-address", help="The Ray cluster of the actors.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(discard)
    app.command()(sweep)
    app.command("mark-gone")(mark_gone)
    app.command()(recover)


def discard(
    op: IdArgument,
    *,
    reason: ReasonOption,
    journal: JournalOption = None,
    run: RunOption = None,
    actor: ActorOption = None,
    ray_address: AddressOption = "auto",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Give an operation up by hand: nothing of it stands, and every instance is reopened."""
    from gymckpt import moves  # noqa: PLC0415 - imported when needed

    with _moving(), find(op, journal=journal, run=run, writing=True) as found:
        row = found.known_row()
        confirm_force(found.journal, row.run, force=force)
        handles = _handles(actor, ray_address)
        moved = _done(
            moves.discard(
                found.journal,
                row.run,
                row.operation_id,
                by=_by(reason),
                handles=handles,
                force=force,
            )
        )
    _tell(moved, as_json=as_json)


def sweep(
    op: IdArgument,
    *,
    reason: ReasonOption,
    journal: JournalOption = None,
    run: RunOption = None,
    actor: ActorOption = None,
    ray_address: AddressOption = "auto",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Ask every instance that has not confirmed its reopening once more, now."""
    from gymckpt import moves  # noqa: PLC0415 - imported when needed

    with _moving(), find(op, journal=journal, run=run, writing=True) as found:
        row = found.known_row()
        confirm_force(found.journal, row.run, force=force)
        handles = _handles(actor, ray_address)
        moved = _done(
            moves.sweep(
                found.journal,
                row.run,
                row.operation_id,
                by=_by(reason),
                handles=handles,
                force=force,
            )
        )
    _tell(moved, as_json=as_json)


def mark_gone(
    op: IdArgument,
    instance: Annotated[
        str, typer.Argument(metavar="INSTANCE", help="The instance whose actor is dead for good.")
    ],
    *,
    reason: ReasonOption,
    journal: JournalOption = None,
    run: RunOption = None,
    actor: ActorOption = None,
    ray_address: AddressOption = "auto",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take an instance for dead, so that it is no longer waited for."""
    from gymckpt import moves  # noqa: PLC0415 - imported when needed

    with _moving(), find(op, journal=journal, run=run, writing=True) as found:
        row = found.known_row()
        confirm_force(found.journal, row.run, force=force)
        handles = _handles(actor, ray_address)
        moved = _done(
            moves.mark_gone(
                found.journal,
                row.run,
                row.operation_id,
                instance,
                by=_by(reason),
                handles=handles,
                force=force,
            )
        )
    _tell(moved, as_json=as_json)


def recover(
    *,
    journal: JournalOption = None,
    run: RunOption = None,
    actor: ActorOption = None,
    ray_address: AddressOption = "auto",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take over what controllers that are gone left unfinished, and bring each to its end."""
    from gymckpt.recovery import recover as recovered  # noqa: PLC0415 - imported when needed

    with _moving(), opened_source(journal, writing=True) as source:
        runs = _unfinished_runs(source.journal, run)
        for one in runs:
            confirm_force(source.journal, one, force=force)
        handles = _handles(actor, ray_address)
        found = [
            (one, outcome)
            for one in runs
            for outcome in _done(
                recovered(source.journal, handles, run=one, force=force, command=True)
            )
        ]
    if as_json:
        listed = [
            {
                "run": one,
                **attrs.asdict(outcome, filter=lambda field, _: field.name != "held_by"),
            }
            for one, outcome in found
        ]
        print_json({"schema": RECOVER_SCHEMA, "operations": listed})
    else:
        _tell_recovered(found)
    if any(not outcome.ended for _, outcome in found):
        raise typer.Exit(PROBLEM_FOUND)


def _unfinished_runs(journal: Journal, run: str | None) -> Sequence[str]:
    """Return the runs of which something is unfinished, or the one that is meant if it is so."""
    names = dict.fromkeys([run] if run is not None else [row.run for row in journal.runs()])
    if run is None:
        with contextlib.suppress(JournalCorrupt):  # then only those that were claimed are known
            names.update(dict.fromkeys(row.run for row in journal.operations(unfinished=True)))
    return [name for name in names if any(_is_driven(row) for row in journal.unfinished(name))]


def _is_driven(row: OperationRow | Damaged) -> bool:
    """Whether a recovery sees to an operation: one that was imported is for reading."""
    from gymckpt.journal import OperationRow  # noqa: PLC0415 - imported when needed

    return not (isinstance(row, OperationRow) and row.imported)


# --- doing --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _moving() -> Iterator[None]:
    """Turn what may be refused about a move into an exit code with a message."""
    with answering():
        try:
            yield
        except TransitionRefused as error:
            leave(text_of(error), CANNOT_ANSWER)
        except (ReplayDiverged, InvariantViolated) as error:
            leave(f"its log cannot be gone on with: {text_of(error)}", PROBLEM_FOUND)


def _done(move: Coroutine[Any, Any, T]) -> T:
    """Run a move to its end."""
    return asyncio.run(move)


def _by(reason: str) -> By:
    """Say who sits at this terminal, and why."""
    from gymckpt.moves import By  # noqa: PLC0415 - imported when needed

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = "unknown"
    return By(operator=f"{user}@{socket.gethostname()}", reason=reason)


def _handles(actors: Sequence[str] | None, address: str) -> dict[str, Any]:
    """Return the actors that the command line names, by instance."""
    from gymckpt.episodes import require_instance_id  # noqa: PLC0415 - imported when needed

    names: dict[str, str] = {}
    for one in actors or ():
        instance, equals, name = one.partition("=")
        if not equals or not name:
            raise ValueError(f"--actor {one!r:.100} is not INSTANCE=NAME")
        names[require_instance_id(instance)] = name
    if not names:
        return {}
    from gymckpt.runtime.instances import named_actors  # noqa: PLC0415 - brings Ray along

    return named_actors(names, address=address)


# --- telling ------------------------------------------------------------------------------------


def _tell(moved: Moved, *, as_json: bool) -> None:
    if as_json:
        print_json({"schema": MOVE_SCHEMA, **attrs.asdict(moved)})
    else:
        out = console()
        style = "green" if moved.settled else "yellow"
        line = Text.assemble(
            (moved.operation_id, "bold"), f": {moved.found_in} → ", (moved.state, style)
        )
        out.print(line.append(f"  (epoch {moved.epoch})", style="dim"))
        for text in _left_over(moved.unconfirmed, moved.missing):
            out.print(text)
    if not moved.settled:
        raise typer.Exit(PROBLEM_FOUND)


def _left_over(unconfirmed: Sequence[str], missing: Sequence[str]) -> Sequence[Text]:
    lines: list[Text] = []
    silent = [name for name in unconfirmed if name not in missing]
    if silent:
        said = f"{len(silent)} not confirmed open: {sample(silent)}"
        lines.append(Text(said, style="yellow"))
    if missing:
        said = (
            f"{len(missing)} not asked, since there is no handle: {sample(missing)}; recover with "
            "--actor INSTANCE=NAME, or let the controller recover; else each reopens when its "
            "lease ends"
        )
        lines.append(Text(said, style="yellow"))
    return lines


def _tell_recovered(found: Sequence[tuple[str, Recovered]]) -> None:
    out = console()
    if not found:
        out.print(Text("nothing is unfinished", style="green"))
    for run, one in found:
        style = "green" if one.ended else "yellow"
        line = Text.assemble(
            (one.operation_id, "bold"), f"  {one.found_in} → {one.state}  ", (one.outcome, style)
        )
        out.print(line.append(f"  run {run}", style="dim"))
        if one.reason:
            out.print(Text(f"  {one.reason}", style="yellow"))
        if one.fenced:
            out.print(Text(f"  {len(one.fenced)} refuse its id from now on", style="yellow"))
        for text in _left_over(one.unconfirmed, one.missing):
            out.print(Text("  ").append_text(text))
