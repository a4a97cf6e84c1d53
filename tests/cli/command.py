"""The command line as a user runs it, and a journal for it to look at."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from gymckpt.cli import app
from gymckpt.journal import open_journal
from tests.diagnosis.stuck import RUN, Scene, play
from tests.diagnosis.test_stuck import not_ready
from tests.fakes import HANG

AGO_S = 7200.0
"""How long ago the first operation of a sample began."""

WIDE = 160


def run(*arguments: str, columns: int = WIDE) -> Result:
    """Run the command line as a user would, with a terminal of some width."""
    environment = {"COLUMNS": str(columns), "TZ": "UTC"}
    return CliRunner(env=environment).invoke(app, list(arguments))


def unread(*arguments: str) -> tuple[int, bytes]:
    """Run Python with an output that nobody reads; return the exit code and what it complains."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        told = running.stderr.read()
    return running.returncode, told


def answer(*arguments: str, code: int = 0) -> Any:
    """Run a command with `--json`, and return what it says."""
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


async def sample(run: Scene) -> None:
    """Let operations end in every way, and the last one hang."""
    await run.checkpoint("good")
    run.busy.scripts["prepare"] = [not_ready("r-7", "r-8")]
    await run.checkpoint("refused")
    async with run.coordinator.prepared("idle"):
        await asyncio.sleep(2.0)
    await run.checkpoint("good-again")
    await asyncio.sleep(AGO_S - run.loop.time() - 600.0)
    run.busy.always["prepare"] = HANG
    run.begun("stuck")
    await asyncio.sleep(30.0)


def write_journal(
    path: Path, scene: Callable[[Scene], Coroutine[Any, Any, object]] = sample, **how: Any
) -> Path:
    """Play a scene that ends about now, and write its journal to a file."""
    start_ts = time.time() - AGO_S

    async def written(run: Scene) -> None:
        await scene(run)
        with open_journal(path) as target:
            for row in run.journal.operations():
                target.insert_operation(row, run.journal.read(row.run, row.operation_id))

    play(path.parent, written, start_ts=start_ts, **how)
    return path


def silence(path: Path, seconds: float = 600.0) -> None:
    """Let every controller of a journal have been silent for so long."""
    connection = sqlite3.connect(path)
    connection.execute("UPDATE heartbeats SET beat_ts = beat_ts - ?", (seconds,))
    connection.commit()
    connection.close()


__all__ = ["AGO_S", "RUN", "answer", "run", "sample", "silence", "write_journal"]
