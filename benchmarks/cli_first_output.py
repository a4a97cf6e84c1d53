"""
How soon the command line answers about a journal of many operations.

A journal of settled checkpoints is written straight into its tables, with one operation at the end
that hangs; then each command runs in a process of its own, several times, and the least and the
median of the wall time to its end are printed, with the process's CPU time: on a busy machine the
latter says more. `python -c pass` is printed as well, for what no command can save.

    python benchmarks/cli_first_output.py [--operations N] [--instances N] [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
from sqlalchemy import insert
from sqlalchemy.dialects import sqlite
from written import lived

from gymckpt.core.entry import Entry
from gymckpt.journal import open_journal, schema
from gymckpt.journal.entry import TAGS, encode_row

SPACING_S = 60.0
RUNS = 10

COMMANDS = (
    ("ops",),
    ("ops", "--open"),
    ("ops", "--since", "1d"),
    ("explain",),
    ("explain", "op-50"),
    ("show", "op-50"),
    ("replay", "op-50", "--verify"),
    ("chart", "--of", "op-50"),
)


def saved(instances: int) -> list[Entry]:
    """Return the history of a checkpoint that went well."""
    names = [f"tools/replica-{place}" for place in range(instances)]
    phases = [
        ("prepare", {}, ["prepare", "renew"]),
        ("commit", {"root": "snapshots/1"}, ["commit"]),
        ("sealed", {}, []),
        ("resume", {}, ["resume"]),
    ]
    return lived("checkpoint", names, {}, phases)


def fill(path: Path, operations: int, instances: int) -> None:
    """Write a journal of so many operations, all but the last of them settled."""
    open_journal(path).close()
    rows = [encode_row(entry) for entry in saved(instances)]
    run, op, ts = TAGS.index("run"), TAGS.index("op"), TAGS.index("ts")

    def entries() -> Iterator[Sequence[object]]:
        for number in range(operations):
            for row in rows[: len(rows) // 3] if number == operations - 1 else rows:
                copy = list(row)
                copy[run], copy[op] = f"run-{number % RUNS}", f"op-{number}"
                copy[ts] += number * SPACING_S
                yield copy

    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    with connection:
        for number in range(operations):
            hangs = number == operations - 1
            last = rows[len(rows) // 3 - 1] if hangs else rows[-1]
            shift_s = number * SPACING_S
            connection.execute(
                "INSERT INTO operations VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                (
                    *(f"run-{number % RUNS}", f"op-{number}", "checkpoint", 1),
                    *("preparing" if hangs else "resumed", not hangs, 1, "host:1"),
                    *(last[TAGS.index("seq")], rows[0][ts] + shift_s, last[ts] + shift_s),
                ),
            )
        statement = insert(schema.entries).compile(dialect=sqlite.dialect())
        connection.executemany(str(statement), entries())
    connection.close()


@attrs.frozen
class Measured:
    """One run of a command."""

    wall_s: float
    cpu_s: float


def measure(arguments: Sequence[str]) -> Measured:
    """Run a process to its end."""
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False)  # noqa: S603 - ours
    wall_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Measured(wall_s, cpu_s)


def main() -> None:
    """Build the journal and print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1] if __doc__ else "")
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "journal.sqlite3"
        fill(path, chosen.operations, chosen.instances)
        os.environ["GYMCKPT_JOURNAL"] = str(path)
        print(f"{chosen.operations:,} operations, {path.stat().st_size / 1e6:,.0f} MB")
        lines = [("python -c pass", ["-c", "pass"])]
        run = "from gymckpt.cli import app; app()"
        lines += [(" ".join(command), ["-c", run, *command]) for command in COMMANDS]
        for name, arguments in lines:
            found = [measure(arguments) for _ in range(chosen.rounds)]
            least_s = min(one.wall_s for one in found)
            middle_s = statistics.median(one.wall_s for one in found)
            cpu_s = min(one.cpu_s for one in found)
            print(f"{name:24} {least_s:6.3f} s  median {middle_s:6.3f} s  CPU {cpu_s:6.3f} s")


if __name__ == "__main__":
    main()
