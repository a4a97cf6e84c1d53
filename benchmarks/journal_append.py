"""
How many entries a second the journal makes durable, against SQLite driven by hand.

The baseline does the least that is as durable: one IMMEDIATE transaction with `executemany` of
ready rows, in the same file modes, in the same process, turn by turn with the journal so that a
busy machine slows both. What is above it is the price of checks, encoding, compare-and-append and
the operation's row. Per batch size the medians of all rounds are printed, and their ratio.

    python benchmarks/journal_append.py [--directory DIR] [--rounds N] [--batches 1,10,100,1000]
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gymckpt.core.entry import Entry
from gymckpt.journal import Journal, MemoryJournal, Opening, open_journal
from gymckpt.journal.entry import TAGS, encode_row

ENTRIES_PER_ROUND = 2_000
"""A round appends about so many entries, but at most `APPENDS_PER_ROUND` batches."""

APPENDS_PER_ROUND = 200


def reply(operation_id: str, seq: int) -> Entry:
    """Return an entry as a checkpoint has most of: the answer of one instance."""
    return Entry(
        run="bench",
        operation_id=operation_id,
        seq=seq,
        epoch=1,
        ts=1_700_000_000.0 + seq,
        at_s=seq / 1000,
        instance=f"shard-{seq % 8}/replica-{seq % 1000}",
        call="commit",
        ask=1,
        trigger="answer",
        source="asked",
        dest="answered",
        facts={"episodes": 64, "staging_keys": 128, "digest": "0f" * 16, "duration_s": 1.25},
    )


class Baseline:
    """SQLite by hand: rows that are ready, one table, nothing checked."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        columns = ", ".join(f'"{tag}"' for tag in TAGS)
        self._connection.execute(f"CREATE TABLE entries ({columns}, PRIMARY KEY (run, op, seq))")
        self._insert = f"INSERT INTO entries VALUES ({', '.join('?' * len(TAGS))})"  # noqa: S608

    def append(self, rows: list[tuple[object, ...]]) -> None:
        """Make rows durable."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(self._insert, rows)
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def timed(batches: list[list[Entry]], append: Callable[[list[Entry]], None]) -> float:
    """Return the seconds that appending all batches takes."""
    begin_s = time.perf_counter()
    for batch in batches:
        append(batch)
    return time.perf_counter() - begin_s


def batches_of(operation_id: str, size: int) -> list[list[Entry]]:
    """Return the batches of one round, which follow the first entry."""
    count = min(APPENDS_PER_ROUND, max(1, ENTRIES_PER_ROUND // size))
    return [
        [reply(operation_id, 2 + number * size + offset) for offset in range(size)]
        for number in range(count)
    ]


def journal_round(journal: Journal, operation_id: str, batches: list[list[Entry]]) -> float:
    """Append a round to a new operation, and return the seconds that it took."""
    opening = Opening(run="bench", operation_id=operation_id, chart="checkpoint", chart_version=1)
    first = Entry(
        run="bench", operation_id=operation_id, seq=1, epoch=1, ts=0.0, at_s=0.0,
        trigger="open", source="", dest="open",
    )  # fmt: skip
    journal.open_operation(opening, [first], owner="bench")
    return timed(
        batches,
        lambda batch: journal.append(batch, expected_seq=batch[0].seq - 1, epoch=1),
    )


def measure(directory: Path, size: int, rounds: int) -> dict[str, float]:
    """Return entries per second of each contender: medians over rounds that take turns."""
    baseline = Baseline(directory / f"baseline-{size}.sqlite3")
    rates: dict[str, list[float]] = {"baseline": [], "sqlite": [], "memory": []}
    memory = MemoryJournal()
    with open_journal(directory / f"journal-{size}.sqlite3") as journal:
        for number in range(rounds + 1):
            name = f"op-{size}-{number}"
            batches = batches_of(name, size)
            rows = {id(batch): [encode_row(entry) for entry in batch] for batch in batches}
            taken = {
                "baseline": timed(
                    batches, lambda batch, rows=rows: baseline.append(rows[id(batch)])
                ),
                "sqlite": journal_round(journal, name, batches),
                "memory": journal_round(memory, name, batches),
            }
            if number:  # the first round warms up
                for contender, seconds in taken.items():
                    rates[contender].append(size * len(batches) / seconds)
    baseline.close()
    return {contender: statistics.median(found) for contender, found in rates.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--directory", type=Path, help="where to write; a local disk")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", default="1,10,100,1000")
    arguments = parser.parse_args()
    print("median entries/s, and each as a share of SQLite by hand")
    print(f"{'batch':>6} {'by hand':>10} {'journal':>10} {'share':>6} {'memory':>10} {'share':>6}")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as place:
        for size in map(int, arguments.batches.split(",")):
            rate = measure(Path(place), size, arguments.rounds)
            hand = rate["baseline"]
            print(
                f"{size:>6} {hand:>10,.0f} {rate['sqlite']:>10,.0f} {rate['sqlite'] / hand:>6.2f} "
                f"{rate['memory']:>10,.0f} {rate['memory'] / hand:>6.2f}"
            )


if __name__ == "__main__":
    main()
