"""
How soon a controller starts whose run has many discarded restores.

A recovery reads what is unfinished, and nothing of what has ended. Two journals in files are made,
one run with many discarded restores and one with a single one, and `coordinator.recover()` is timed
on each by turns, claim of the run included. The medians and their ratio are printed.

    python benchmarks/recovery_start.py [--restores N] [--instances N] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sqlalchemy import insert
from sqlalchemy.dialects import sqlite
from written import START_TS, lived

from gymckpt.coordinator import GymCheckpointCoordinator
from gymckpt.core.entry import Entry
from gymckpt.journal import open_journal, schema
from gymckpt.journal.entry import TAGS, encode_row

RUN = "run-0"


def discarded(names: Sequence[str]) -> list[Entry]:
    """Return the history of a restore whose body failed."""
    inventory = {name: [{"rollout_id": f"r{name}", "attempt": 0}] for name in names}
    entries = lived(
        "restore",
        names,
        {"inventory": inventory, "root": "/snapshots/1"},
        [("restore", {}, ["restore"]), ("discard", {}, ["retire", "resume"])],
    )
    if entries[-1].dest != "discarded":
        raise RuntimeError(f"the restore has ended in {entries[-1].dest}")
    return entries


def fill(path: Path, history: Sequence[Entry], restores: int) -> None:
    """Write a journal of one run with so many restores of that history."""
    with open_journal(path) as journal:
        journal.release(RUN, epoch=journal.claim(RUN, holder="an earlier controller"))
    rows = [encode_row(entry) for entry in history]
    op, last = TAGS.index("op"), history[-1]

    def copies() -> Iterator[Sequence[object]]:
        for number in range(restores):
            for row in rows:
                copy = list(row)
                copy[op] = f"op-{number}"
                yield copy

    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    with connection:
        connection.executemany(
            "INSERT INTO operations VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            [
                (
                    *(RUN, f"op-{number}", "restore", history[0].facts["chart_version"]),
                    *(last.dest, True, 1, "an earlier controller", last.seq, START_TS, last.ts),
                )
                for number in range(restores)
            ],
        )
        statement = insert(schema.entries).compile(dialect=sqlite.dialect())
        connection.executemany(str(statement), copies())
    connection.close()


def recovered_s(path: Path, names: Sequence[str]) -> float:
    """Return how long a new controller takes to find that nothing is unfinished, in seconds."""

    class Shards:
        checkpoint_handles = dict.fromkeys(names, object())

    async def start() -> float:
        began_s = time.perf_counter()
        coordinator = GymCheckpointCoordinator(
            Shards(), control_timeout_s=30.0, prepare_timeout_s=300.0, journal=str(path), run=RUN
        )
        settled = await coordinator.recover()
        took_s = time.perf_counter() - began_s
        coordinator.close()
        if settled:
            raise RuntimeError(f"{len(settled)} operation(s) were unfinished")
        return took_s

    return asyncio.run(start())


def main() -> None:
    """Build the journals and print how long a start takes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1] if __doc__ else "")
    parser.add_argument("--restores", type=int, default=1_000)
    parser.add_argument("--instances", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    names = [f"tools/replica-{place}" for place in range(chosen.instances)]
    with tempfile.TemporaryDirectory() as directory:
        history = discarded(names)
        many, one = Path(directory) / "many.sqlite3", Path(directory) / "one.sqlite3"
        fill(many, history, chosen.restores)
        fill(one, history, 1)
        print(f"{chosen.restores:,} restores, {many.stat().st_size / 1e6:,.0f} MB")
        found: dict[Path, list[float]] = {many: [], one: []}
        for _ in range(chosen.rounds):
            for path, times in found.items():
                times.append(recovered_s(path, names))
    many_s, one_s = (statistics.median(times) for times in found.values())
    print(
        f"median start {many_s * 1e3:.1f} ms, {one_s * 1e3:.1f} ms with one: {many_s / one_s:.2f}x"
    )


if __name__ == "__main__":
    main()
