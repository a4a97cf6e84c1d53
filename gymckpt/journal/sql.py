"""
A journal in a database, through SQLAlchemy Core.

`SqlJournal` holds every statement and is the same for all databases. What differs between them is
a `SqlStore`: how transactions begin and end, how rows are inserted in bulk, what an error means.
What a store is given to `write` excludes other writers of the same operation until it ends; what it
is given to `read` sees one moment. Both end in the journal's own errors, never in the driver's.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, bindparam, delete, insert, select, update

from gymckpt.errors import JournalCorrupt, text_of
from gymckpt.journal.base import Batch, Journal, OperationRow, Selection
from gymckpt.journal.entry import Row
from gymckpt.journal.fields import INT_MAX
from gymckpt.journal.rules import (
    check_claim,
    fenced,
    id_used,
    remaining,
    unfinished,
    unknown_operation,
)
from gymckpt.journal.schema import entries, heartbeats, operations, removed

__all__ = ["SqlJournal", "SqlStore"]

T = TypeVar("T")


class SqlStore(abc.ABC):
    """One database, as the journal uses it; thread-safe."""

    url: str
    """What opens the same database again."""

    @abc.abstractmethod
    def write(self, job: Callable[[Connection, bool], T]) -> T:
        """
        Run a job in one transaction, again where the database says that it may be tried again.

        Args:
            job: Given the connection, and whether an earlier try may have been stored although
                its answer was lost.

        Raises:
            JournalError: Whatever went wrong in the end, also in the job and in the commit.
        """

    @abc.abstractmethod
    def read(self, job: Callable[[Connection], T]) -> T:
        """
        Run a job that only reads, all of it of one moment; again where that may help.

        Raises:
            JournalError: Whatever went wrong in the end, also in the job.
        """

    @abc.abstractmethod
    def now_ts(self, connection: Connection) -> float:
        """Return the time by the one clock that all controllers on this database share."""

    @abc.abstractmethod
    def insert_rows(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Insert entries in bulk, straight through the driver, inside `write`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of every connection; what comes later raises JournalUnavailable."""


_OPERATION = select(operations).where(
    operations.c.run == bindparam("of_run"), operations.c.op == bindparam("of_op")
)
_HELD = _OPERATION.with_for_update()
"""The same row, kept from other writers by databases that lock rows."""

_MOVE = update(operations).where(
    operations.c.run == bindparam("of_run"), operations.c.op == bindparam("of_op")
)

_BEAT = update(heartbeats).where(
    heartbeats.c.run == bindparam("of_run"), heartbeats.c.op == bindparam("of_op")
)
_LAST_BEAT = select(heartbeats.c.beat_ts).where(
    heartbeats.c.run == bindparam("of_run"), heartbeats.c.op == bindparam("of_op")
)

_ENTRIES = (
    select(entries)
    .where(
        entries.c.run == bindparam("of_run"),
        entries.c.op == bindparam("of_op"),
        entries.c.seq > bindparam("after_seq"),
    )
    .order_by(entries.c.seq)
)
_SPAN = _ENTRIES.where(entries.c.seq <= bindparam("last_seq"))


class SqlJournal(Journal):
    """A journal in a database."""

    blocks = True

    def __init__(self, store: SqlStore) -> None:
        """
        Take a database over.

        Args:
            store: The database, with its tables; `close` closes it.
        """
        self.url = store.url
        self._store = store
        self._beats: dict[tuple[str, str], tuple[float, float]] = {}
        """Operation to the last sign of life that was seen here, and when by this host's monotonic
        clock it was given at the latest."""

    def close(self) -> None:
        """Let go of the database."""
        self._store.close()

    def _select(self, selection: Selection) -> Sequence[OperationRow]:
        statement = _selecting(selection)
        found = self._store.read(lambda connection: connection.execute(statement).mappings().all())
        return [_operation(row) for row in found]

    def step_rows(self, run: str | None) -> Sequence[Row]:
        """Return what `steps.steps_of` reads, of one run or all, in any order."""
        columns = entries.c
        chosen = select(entries).where(columns.inst.is_(None), columns.seq > 1)
        if run is not None:
            chosen = chosen.where(columns.run == run)
        found = self._store.read(lambda connection: connection.execute(chosen).all())
        return [tuple(row) for row in found]

    def _remove(self, run: str, operation_id: str) -> None:
        def job(connection: Connection, _again: bool) -> None:
            held = _find(connection, _HELD, run, operation_id)
            if held is None:
                return
            if not (held.settled or held.imported):
                raise unfinished(held)
            for table in (heartbeats, entries, operations):
                connection.execute(
                    delete(table).where(table.c.run == run, table.c.op == operation_id)
                )
            connection.execute(insert(removed), {"run": run, "op": operation_id})

        self._store.write(job)

    def _insert(self, operation: OperationRow, rows: Sequence[Row]) -> None:
        keys = (operation.run, operation.operation_id)

        def job(connection: Connection, again: bool) -> None:
            held = _find(connection, _HELD, *keys)
            if held is not None or _is_removed(connection, operation):
                if again and held == operation and _stored(connection, *keys) == list(rows):
                    return  # the try before was stored, only its answer was lost
                raise id_used(held, *keys)
            connection.execute(insert(operations), _columns(operation))
            self._beat(connection, *keys)
            self._store.insert_rows(connection, rows)

        self._store.write(job)

    def _append(self, batch: Batch) -> None:
        keys = {"of_run": batch.run, "of_op": batch.operation_id}
        span = {"after_seq": batch.expected_seq, "last_seq": batch.last_seq}

        def job(connection: Connection, _again: bool) -> None:
            held = _find(connection, _HELD, batch.run, batch.operation_id)
            rows = remaining(
                batch,
                held,
                lambda: [tuple(row) for row in connection.execute(_SPAN, keys | span)],
            )
            if held is None or not rows:
                return
            self._store.insert_rows(connection, rows)
            moved = {
                "state": batch.state or held.state,
                "settled": batch.settled or held.settled,
                "last_seq": batch.last_seq,
                "updated_ts": batch.updated_ts,
            }
            connection.execute(_MOVE, keys | moved)

        self._store.write(job)

    def _heartbeat(self, run: str, operation_id: str, epoch: int) -> None:
        def job(connection: Connection, _again: bool) -> None:
            held = _find(connection, _HELD, run, operation_id)
            if held is None or held.epoch != epoch:
                raise fenced(held, run, operation_id, epoch)
            self._beat(connection, run, operation_id)

        self._store.write(job)

    def _silent_s(self, run: str, operation_id: str) -> float | None:
        return self._store.read(lambda connection: self._age_s(connection, run, operation_id))

    def _beat(self, connection: Connection, run: str, operation_id: str) -> None:
        keys = {"of_run": run, "of_op": operation_id}
        beat_ts = self._store.now_ts(connection)
        if not connection.execute(_BEAT, keys | {"beat_ts": beat_ts}).rowcount:
            first = {"run": run, "op": operation_id, "beat_ts": beat_ts}
            connection.execute(insert(heartbeats), first)

    def _age_s(self, connection: Connection, run: str, operation_id: str) -> float | None:
        """
        Return how old the last sign of life is.

        A clock that is set back makes it younger, for as long as the step. But one that does not
        change while this journal is asked again and again is as old as that.
        """
        beat_ts = connection.execute(_LAST_BEAT, {"of_run": run, "of_op": operation_id}).scalar()
        if beat_ts is None:
            return None
        now_s = time.monotonic()
        given_s = now_s - max(0.0, self._store.now_ts(connection) - float(beat_ts))
        seen_ts, seen_s = self._beats.get((run, operation_id), (None, given_s))
        if seen_ts == beat_ts:
            given_s = min(given_s, seen_s)
        self._beats[run, operation_id] = (beat_ts, given_s)
        return now_s - given_s

    def _claim(self, run: str, operation_id: str, owner: str, stale_s: float | None) -> int:
        keys = {"of_run": run, "of_op": operation_id}

        def job(connection: Connection, again: bool) -> int:
            held = _find(connection, _HELD, run, operation_id)
            if held is None:
                raise unknown_operation(run, operation_id)
            if not (again and held.owner == owner):
                check_claim(held, self._age_s(connection, run, operation_id), stale_s)
            self._beat(connection, run, operation_id)
            connection.execute(_MOVE, keys | {"ep": held.epoch + 1, "owner": owner})
            return held.epoch + 1

        return self._store.write(job)

    def _operation(self, run: str, operation_id: str) -> OperationRow | None:
        return self._store.read(lambda connection: _find(connection, _OPERATION, run, operation_id))

    def _read(
        self, run: str, operation_id: str, after_seq: int, last_seq: int
    ) -> tuple[OperationRow | None, Sequence[Row]]:
        def job(connection: Connection) -> tuple[OperationRow | None, Sequence[Row]]:
            held = _find(connection, _OPERATION, run, operation_id)
            return held, _stored(connection, run, operation_id, after_seq, last_seq)

        return self._store.read(job)


def _stored(
    connection: Connection,
    run: str,
    operation_id: str,
    after_seq: int = 0,
    last_seq: int = INT_MAX,
) -> list[Row]:
    keys = {"of_run": run, "of_op": operation_id, "after_seq": after_seq}
    if last_seq == INT_MAX:  # also what is damaged, such as a text, which is more than any number
        return [tuple(row) for row in connection.execute(_ENTRIES, keys).all()]
    return [tuple(row) for row in connection.execute(_SPAN, keys | {"last_seq": last_seq}).all()]


def _selecting(selection: Selection) -> Select[*tuple[Any, ...]]:
    """Return the statement for what `Selection.has` says of a row."""
    columns, chosen = operations.c, select(operations)
    for column, value in (
        (columns.run, selection.run),
        (columns.op, selection.operation_id),
        (columns.chart, selection.chart),
    ):
        if value is not None:
            chosen = chosen.where(column == value)
    if selection.states:
        chosen = chosen.where(columns.state.in_(selection.states))
    if selection.unfinished:
        chosen = chosen.where(columns.settled.is_(False))
    if selection.opened_before_ts is not None:
        chosen = chosen.where(columns.opened_ts < selection.opened_before_ts)
    if selection.updated_since_ts is not None:
        chosen = chosen.where(columns.updated_ts >= selection.updated_since_ts)
    if selection.latest is not None:
        order = (columns.opened_ts.desc(), columns.run.desc(), columns.op.desc())
        chosen = chosen.order_by(*order).limit(selection.latest)
    return chosen


def _is_removed(connection: Connection, operation: OperationRow) -> bool:
    """Whether the journal held an operation of this id that was removed since."""
    of_it = (removed.c.run == operation.run, removed.c.op == operation.operation_id)
    return connection.execute(select(removed).where(*of_it)).first() is not None


def _find(
    connection: Connection, statement: Select[*tuple[Any, ...]], run: str, operation_id: str
) -> OperationRow | None:
    keys = {"of_run": run, "of_op": operation_id}
    found = connection.execute(statement, keys).mappings().one_or_none()
    return None if found is None else _operation(found)


def _operation(row: Mapping[Any, Any]) -> OperationRow:
    """Return the operation that a row of the table holds, or raise JournalCorrupt."""
    values: dict[str, Any] = dict(row)
    values["operation_id"], values["epoch"] = values.pop("op"), values.pop("ep")
    try:
        return OperationRow(**values)
    except (TypeError, ValueError) as error:
        raise JournalCorrupt(
            f"operation {text_of(values['operation_id'])[:150]!r} of run "
            f"{text_of(values['run'])[:150]!r}: its row is damaged: {text_of(error)[:300]}"
        ) from error


def _columns(operation: OperationRow) -> dict[str, object]:
    return {
        "run": operation.run,
        "op": operation.operation_id,
        "chart": operation.chart,
        "chart_version": operation.chart_version,
        "state": operation.state,
        "settled": operation.settled,
        "ep": operation.epoch,
        "owner": operation.owner,
        "last_seq": operation.last_seq,
        "opened_ts": operation.opened_ts,
        "updated_ts": operation.updated_ts,
    }
