"""`gymckpt verify`: whether a snapshot on disk is whole, and what of it could be restored."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from gymckpt.cli.common import (
    CANNOT_ANSWER,
    PROBLEM_FOUND,
    JsonOption,
    console,
    leave,
    print_json,
)
from gymckpt.cli.styles import instance_text
from gymckpt.errors import text_of
from gymckpt.roots import require_root

if TYPE_CHECKING:
    from gymckpt.participant.audit import InstanceAudit, SnapshotAudit

__all__ = ["add_to"]

VERIFY_SCHEMA = "gymckpt.verify/1"
SHOWN_MAX = 20


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(verify)


def verify(
    snapshot_dir: Annotated[
        Path, typer.Argument(metavar="SNAPSHOT_DIR", help="The directory that commit wrote into.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Hold a snapshot's outer manifest and every participant's records against their digests."""
    from gymckpt.manifest import GYM_CHECKPOINT_MANIFEST_FILENAME  # noqa: PLC0415 - when needed

    try:
        require_root(snapshot_dir)
    except ValueError as error:
        leave(text_of(error), CANNOT_ANSWER)
    try:
        audit = _audited(snapshot_dir)
    except FileNotFoundError:
        path = snapshot_dir / GYM_CHECKPOINT_MANIFEST_FILENAME
        leave(f"{path}: there is none, so nothing here was ever committed", CANNOT_ANSWER)
    except ValueError as error:
        leave(text_of(error), PROBLEM_FOUND)
    except OSError as error:
        leave(text_of(error), CANNOT_ANSWER)
    if as_json:
        print_json({"schema": VERIFY_SCHEMA, **audit.to_json()})
    else:
        _print(audit)
    if audit.damaged:
        raise typer.Exit(PROBLEM_FOUND)


def _audited(snapshot_dir: Path) -> SnapshotAudit:
    """Look the snapshot over, with progress where somebody watches."""
    from gymckpt.participant.audit import audit_snapshot  # noqa: PLC0415 - imported when needed

    if not sys.stderr.isatty():
        return audit_snapshot(snapshot_dir)
    from rich import progress  # noqa: PLC0415 - only where somebody watches

    columns = (
        progress.TextColumn("reading"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        return audit_snapshot(
            snapshot_dir,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def _print(audit: SnapshotAudit) -> None:
    out = console()
    damaged, total = audit.damaged, len(audit.instances)
    records = sum(one.records for instance in audit.instances for one in instance.participants)
    size = sum(one.bytes for instance in audit.instances for one in instance.participants)
    episodes = sum(instance.episodes for instance in audit.instances)
    out.print(Text.assemble("checkpoint ", (audit.checkpoint_id, "bold"), f"  {audit.root}"))
    if not damaged:
        text = f"✓ whole: {total:,} instances, {episodes:,} episodes, {records:,} records, "
        out.print(Text(f"{text}{size / 1e6:,.1f} MB", style="green"))
    for instance in damaged[:SHOWN_MAX]:
        _print_damaged(out, instance)
    if len(damaged) > SHOWN_MAX:
        out.print(Text(f"and {len(damaged) - SHOWN_MAX:,} more damaged instances", style="red"))
    if damaged:
        lost = sum(instance.episodes for instance in damaged)
        rest = (
            f"the other {total - len(damaged):,} are whole: {episodes - lost:,} of {episodes:,} "
            f"episodes could be restored, {lost:,} would start over"
            if len(damaged) < total
            else "no instance is whole: nothing of it can be restored"
        )
        out.print(Text(f"a restore of this snapshot would fail; {rest}"))
    if audit.unknown:
        names = ", ".join(one.instance for one in audit.unknown[:5])
        said = f"{len(audit.unknown):,} instances keep no records that can be looked into: {names}"
        out.print(Text(said, style="yellow"))


def _print_damaged(out: Console, instance: InstanceAudit) -> None:
    line = Text("✗ ", style="bold red")
    line.append_text(instance_text(instance.instance))
    line.append(f"  {instance.episodes:,} episodes", style="dim")
    out.print(line)
    if instance.problem:
        out.print(Text(f"    {instance.problem}"))
    for one in instance.participants:
        if one.problem:
            out.print(Text(f"    {one.kind or 'server'} {one.name}: {one.problem}"))
