"""
How many entries a second the journal makes durable, against its database driven by hand.

The baseline does the least that is as durable: one transaction with `executemany` (or COPY) of
ready rows, in the same file modes, in the same process, turn by turn with the journal so that a
busy machine slows both. What is above it is the price of checks, encoding, compare-and-append and
the operation's row. Per batch size the medians of all rounds are printed, and their ratio.

    python benchmarks/journal_append.py [--directory DIR] [--rounds N] [--batches 1,10,100,1000]
        [--postgresql postgresql+psycopg://user@host/database]

PostgreSQL is measured only where a URL is given, in a schema that is made for it and dropped again.
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import psycopg
from sqlalchemy.engine import make_url

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


Row = tuple[Any, ...]


class ByHand(Protocol):
    """A database by hand: rows that are ready, one table, nothing checked."""

    def append(self, rows: Sequence[Row]) -> None:
        """Make rows durable."""
        ...


class SqliteByHand:
    """SQLite, by `executemany`."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        columns = ", ".join(f'"{tag}"' for tag in TAGS)
        self._connection.execute(f"CREATE TABLE entries ({columns}, PRIMARY KEY (run, op, seq))")
        self._insert = f"INSERT INTO entries VALUES ({', '.join('?' * len(TAGS))})"  # noqa: S608

    def append(self, rows: Sequence[Row]) -> None:
        """Make rows durable."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(self._insert, rows)
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


class PostgresqlByHand:
    """PostgreSQL, by `executemany` or by COPY, into a table like the journal's."""

    def __init__(self, connection: psycopg.Connection[Any], table: str, *, copy: bool) -> None:
        self._connection = connection
        connection.execute(
            f"CREATE TABLE {table} (LIKE entries INCLUDING CONSTRAINTS INCLUDING INDEXES)".encode()
        )
        self._copy = f"COPY {table} FROM STDIN".encode() if copy else b""
        self._insert = f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(TAGS))})".encode()  # noqa: S608

    def append(self, rows: Sequence[Row]) -> None:
        """Make rows durable."""
        with self._connection.transaction(), self._connection.cursor() as cursor:
            if not self._copy:
                cursor.executemany(self._insert, rows)
                return
            with cursor.copy(self._copy) as copy:
                for row in rows:
                    copy.write_row(row)


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
    journal.open_operation(opening, [first])
    return timed(
        batches,
        lambda batch: journal.append(batch, expected_seq=batch[0].seq - 1, epoch=1),
    )


def measure(
    size: int, rounds: int, by_hand: dict[str, ByHand], journals: dict[str, Journal]
) -> dict[str, float]:
    """Return entries per second of each contender: medians over rounds that take turns."""
    rates: dict[str, list[float]] = {name: [] for name in (*by_hand, *journals)}
    for number in range(rounds + 1):
        operation_id = f"op-{size}-{number}"
        batches = batches_of(operation_id, size)
        rows = {id(batch): [encode_row(entry) for entry in batch] for batch in batches}
        taken_s = {
            name: timed(batches, lambda batch, one=one, rows=rows: one.append(rows[id(batch)]))
            for name, one in by_hand.items()
        }
        for name, journal in journals.items():
            taken_s[name] = journal_round(journal, operation_id, batches)
        if number:  # the first round warms up
            for name, seconds in taken_s.items():
                rates[name].append(size * len(batches) / seconds)
    return {name: statistics.median(found) for name, found in rates.items()}


def report(
    sizes: Sequence[int], rounds: int, by_hand: dict[str, ByHand], journals: dict[str, Journal]
) -> None:
    """Print a table: entries per second, and of each journal the share of each way by hand."""
    print(f"{'batch':>6}" + "".join(f" {name:>12}" for name in by_hand), end="")
    for name in journals:
        print(f" {name:>12}" + "".join(f" {f'/ {one}':>13}" for one in by_hand), end="")
    print()
    for size in sizes:
        rate = measure(size, rounds, by_hand, journals)
        print(f"{size:>6}" + "".join(f" {rate[name]:>12,.0f}" for name in by_hand), end="")
        for name in journals:
            shares = "".join(f" {rate[name] / rate[one]:>13.2f}" for one in by_hand)
            print(f" {rate[name]:>12,.0f}{shares}", end="")
        print(flush=True)


@contextlib.contextmanager
def scratch_schema(url: str) -> Iterator[tuple[Journal, psycopg.Connection[Any]]]:
    """Give a journal in a new schema of a database, and a plain connection to the same."""
    name = f"gymckpt_bench_{uuid.uuid4().hex[:12]}"
    target = make_url(url).set(drivername="postgresql")
    options = f"-c search_path={name}"
    plain = target.render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True, options=options) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
        try:
            within = target.update_query_dict({"options": options})
            with open_journal(within.render_as_string(hide_password=False)) as journal:
                yield journal, connection
        finally:
            connection.execute(f"DROP SCHEMA {name} CASCADE".encode())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--directory", type=Path, help="where to write; a local disk")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", default="1,10,100,1000")
    parser.add_argument("--postgresql", metavar="URL", help="a database to measure as well")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.batches.split(",")]
    print("median entries/s, and each journal as a share of its database by hand")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as place:
        by_hand = SqliteByHand(Path(place) / "by-hand.sqlite3")
        with open_journal(Path(place) / "journal.sqlite3") as journal:
            contenders = {"sqlite": journal, "memory": MemoryJournal()}
            report(sizes, arguments.rounds, {"by hand": by_hand}, contenders)
        by_hand.close()
    if arguments.postgresql:
        with scratch_schema(arguments.postgresql) as (journal, connection):
            ways: dict[str, ByHand] = {
                "executemany": PostgresqlByHand(connection, "by_executemany", copy=False),
                "COPY": PostgresqlByHand(connection, "by_copy", copy=True),
            }
            report(sizes, arguments.rounds, ways, {"postgresql": journal})


if __name__ == "__main__":
    main()
