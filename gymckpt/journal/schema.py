"""
The tables of a journal in a database, and the numbered steps that lead to them.

`operations` has one row per operation, `entries` one per entry under the tags of
`gymckpt.journal.entry`, `runs` the holder and the epoch of each run, `heartbeats` what was last
heard of that holder, `removed` the ids that must not be used again, `meta` one row with the schema
version, which is the number of migrations that have run. A step that a release has shipped is never
changed: whatever differs is a new step. Keys are compared byte by byte in every database, so that
all give one order and no update of a system's locales can damage an index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    ForeignKeyConstraint,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    insert,
    text,
    update,
)
from sqlalchemy.types import TypeEngine

from gymckpt.journal.entry import TAGS

__all__ = [
    "MIGRATIONS",
    "Migration",
    "entries",
    "heartbeats",
    "meta",
    "migrate",
    "operations",
    "removed",
    "runs",
    "tables_of",
]

Migration = Callable[[Connection], None]
"""One step from a schema version to the next, inside a transaction that its caller commits."""

_TABLES = MetaData()

_KEY = Text().with_variant(Text(collation="C"), "postgresql")

meta = Table("meta", _TABLES, Column("schema_version", Integer, nullable=False))

operations = Table(
    "operations",
    _TABLES,
    Column("run", _KEY, nullable=False),
    Column("op", _KEY, nullable=False),
    Column("chart", Text, nullable=False),
    Column("chart_version", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("settled", Boolean, nullable=False),
    Column("ep", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("opened_ts", Double, nullable=False),
    Column("updated_ts", Double, nullable=False),
    PrimaryKeyConstraint("run", "op"),
)

removed = Table(
    "removed",
    _TABLES,
    Column("run", _KEY, nullable=False),
    Column("op", _KEY, nullable=False),
    PrimaryKeyConstraint("run", "op"),
)

_beats_of_operations = Table(
    "heartbeats",
    MetaData(),
    Column("run", _KEY, nullable=False),
    Column("op", _KEY, nullable=False),
    Column("beat_ts", Double, nullable=False),
    PrimaryKeyConstraint("run", "op"),
)

_TABLES_OF_RUNS = MetaData()

runs = Table(
    "runs",
    _TABLES_OF_RUNS,
    Column("run", _KEY, nullable=False),
    Column("ep", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("since_ts", Double, nullable=False),
    PrimaryKeyConstraint("run"),
)

heartbeats = Table(
    "heartbeats",
    _TABLES_OF_RUNS,
    Column("run", _KEY, nullable=False),
    Column("beats", BigInteger, nullable=False),
    Column("beat_ts", Double, nullable=False),
    PrimaryKeyConstraint("run"),
)
"""Apart from `runs`, so that a heartbeat never waits for those who look at the epoch."""

_TYPES: dict[str, TypeEngine[Any] | type[TypeEngine[Any]]] = {
    "run": _KEY,
    "op": _KEY,
    "v": Integer,
    "seq": BigInteger,
    "ep": BigInteger,
    "ts": Double,
    "at": Double,
    "ask": BigInteger,
}
"""Tags whose column is no plain text."""

_MAY_BE_NULL = frozenset({"inst", "call", "ask"})

entries = Table(
    "entries",
    _TABLES,
    *(Column(tag, _TYPES.get(tag, Text), nullable=tag in _MAY_BE_NULL) for tag in TAGS),
    PrimaryKeyConstraint("run", "op", "seq"),
    ForeignKeyConstraint(["run", "op"], ["operations.run", "operations.op"]),
)


def _create_tables(connection: Connection) -> None:
    _TABLES.create_all(connection, checkfirst=False)
    connection.execute(insert(meta).values(schema_version=1))


def _add_heartbeats(connection: Connection) -> None:
    _beats_of_operations.create(connection)


def _add_runs(connection: Connection) -> None:
    _beats_of_operations.drop(connection)
    _TABLES_OF_RUNS.create_all(connection, checkfirst=False)


def _add_indexes(connection: Connection) -> None:
    """For the command line: the latest of all or a run, those that moved, one by id, unsettled."""
    for name, columns in (
        ("operations_by_opening", "opened_ts, run, op, updated_ts, state"),
        ("operations_by_run", "run, opened_ts, op"),
        ("operations_by_id", "op"),
        ("operations_by_settled", "settled"),
    ):
        connection.execute(text(f"CREATE INDEX {name} ON operations ({columns})"))


MIGRATIONS: Sequence[Migration] = (_create_tables, _add_heartbeats, _add_indexes, _add_runs)
"""Step n leads from version n - 1 to version n."""


def tables_of(version: int) -> tuple[Table, ...]:
    """Return the tables of a journal of a schema version, but for the one that says so."""
    if not version:
        return ()
    beats = (_beats_of_operations,) if version > 1 else ()
    return (operations, entries, removed, *((runs, heartbeats) if version > 3 else beats))


def migrate(connection: Connection, version: int, migrations: Sequence[Migration]) -> None:
    """
    Run the steps that a journal lacks, inside one transaction.

    Args:
        connection: In a transaction that excludes other writers; the caller commits it.
        version: The journal's present version, read in that transaction; 0 for an empty one.
        migrations: All steps.
    """
    for number, step in enumerate(migrations[version:], version + 1):
        step(connection)
        connection.execute(update(meta).values(schema_version=number))
