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

import attrs
from sqlalchemy import Connection, Select, bindparam, delete, func, insert, select, update

from gymckpt.errors import JournalCorrupt, text_of
from gymckpt.journal.base import Batch, Damaged, Journal, OperationRow, RunRow, Selection
from gymckpt.journal.entry import Row
from gymckpt.journal.fields import INT_MAX
from gymckpt.journal.rules import (
    check_epoch,
    claimed_epoch,
    id_used,
    remaining,
    unfinished,
)
from gymckpt.journal.schema import entries, heartbeats, operations, removed, runs

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

_RUN = select(runs).where(runs.c.run == bindparam("of_run"))
_RUN_KEPT = _RUN.with_for_update(read=True)
"""The same row, kept from whoever claims it, and not from others who only look at its epoch."""
_RUN_TAKEN = _RUN.with_for_update()
_MOVE_RUN = update(runs).where(runs.c.run == bindparam("of_run"))
_HEARTBEAT = select(heartbeats).where(heartbeats.c.run == bindparam("of_run"))
_BEAT = update(heartbeats).where(heartbeats.c.run == bindparam("of_run"))
_LAST_EPOCH = select(func.max(operations.c.ep)).where(operations.c.run == bindparam("of_run"))

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
        self._beats: dict[str, tuple[tuple[int, str, int], float]] = {}
        """Run to the last heartbeat that was seen here, and when by this host's monotonic clock it
        was given at the latest."""

    def close(self) -> None:
        """Let go of the database."""
        self._store.close()

    def _select(self, selection: Selection) -> Sequence[OperationRow]:
        statement = _selecting(selection)
        found = self._store.read(lambda connection: connection.execute(statement).mappings().all())
        return [_operation(row) for row in found]

    def _unfinished(self, selection: Selection) -> Sequence[OperationRow | Damaged]:
        statement = _selecting(selection)
        found = self._store.read(lambda connection: connection.execute(statement).mappings().all())
        return [_known(row) for row in found]

    def _first_rows(self, run: str, operation_id: str) -> Sequence[Row]:
        return self._store.read(lambda connection: _stored(connection, run, operation_id, 0, 1))

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
            for table in (entries, operations):
                connection.execute(
                    delete(table).where(table.c.run == run, table.c.op == operation_id)
                )
            connection.execute(insert(removed), {"run": run, "op": operation_id})

        self._store.write(job)

    def _insert(self, operation: OperationRow, rows: Sequence[Row], *, driven: bool) -> None:
        keys = (operation.run, operation.operation_id)

        def job(connection: Connection, again: bool) -> None:
            run = _find_run(connection, _RUN_KEPT, keys[0]) if driven else None
            held = _find(connection, _HELD, *keys)
            if held is not None or _is_removed(connection, operation):
                given = attrs.evolve(operation, owner=held.owner) if driven and held else operation
                if again and held == given and _stored(connection, *keys) == list(rows):
                    return  # the try before was stored, only its answer was lost
                raise id_used(held, *keys)
            owner = check_epoch(run, keys[0], operation.epoch).holder if driven else operation.owner
            connection.execute(insert(operations), _columns(attrs.evolve(operation, owner=owner)))
            self._store.insert_rows(connection, rows)

        self._store.write(job)

    def _append(self, batch: Batch) -> None:
        keys = {"of_run": batch.run, "of_op": batch.operation_id}
        span = {"after_seq": batch.expected_seq, "last_seq": batch.last_seq}

        def job(connection: Connection, _again: bool) -> None:
            run = _find_run(connection, _RUN_KEPT, batch.run)
            held = _find(connection, _HELD, batch.run, batch.operation_id)
            rows = remaining(
                batch,
                run,
                held,
                lambda: [tuple(row) for row in connection.execute(_SPAN, keys | span)],
            )
            if held is None or run is None or not rows:
                return
            self._store.insert_rows(connection, rows)
            moved = {
                "ep": batch.epoch,
                "owner": run.holder,
                "state": batch.state or held.state,
                "settled": batch.settled or held.settled,
                "last_seq": batch.last_seq,
                "updated_ts": batch.updated_ts,
            }
            connection.execute(_MOVE, keys | moved)

        self._store.write(job)

    def _claim(self, run: str, holder: str, unmoved: RunRow | None, force: bool) -> int:
        def job(connection: Connection, _again: bool) -> int:
            keys = {"of_run": run}
            held = _find_run(connection, _RUN_TAKEN, run)
            last_epoch = 0 if held else connection.execute(_LAST_EPOCH, keys).scalar() or 0
            age_s = self._age_s(connection, held)
            epoch = claimed_epoch(
                held, last_epoch, holder, age_s=age_s, unmoved=unmoved, force=force
            )
            now_ts = self._store.now_ts(connection)
            if held is None:
                row = {"run": run, "ep": epoch, "holder": holder, "since_ts": now_ts}
                connection.execute(insert(runs), row)
                first = {"run": run, "beats": 1, "beat_ts": now_ts}
                connection.execute(insert(heartbeats), first)
                return epoch
            if epoch != held.epoch:
                moved = {"ep": epoch, "holder": holder, "since_ts": now_ts}
                connection.execute(_MOVE_RUN, keys | moved)
            connection.execute(_BEAT, keys | {"beats": held.beats + 1, "beat_ts": now_ts})
            return epoch

        return self._store.write(job)

    def _heartbeat(self, run: str, epoch: int) -> None:
        def job(connection: Connection, _again: bool) -> None:
            held = check_epoch(_find_run(connection, _RUN_KEPT, run), run, epoch)
            beat_ts = self._store.now_ts(connection)
            keys = {"of_run": run}
            connection.execute(_BEAT, keys | {"beats": held.beats + 1, "beat_ts": beat_ts})

        self._store.write(job)

    def _release(self, run: str, epoch: int) -> None:
        def job(connection: Connection, _again: bool) -> None:
            held = _find_run(connection, _RUN_TAKEN, run)
            if held is not None and held.holder and held.epoch == epoch:
                given_back = {"holder": "", "since_ts": self._store.now_ts(connection)}
                connection.execute(_MOVE_RUN, {"of_run": run} | given_back)

        self._store.write(job)

    def _held(self, run: str) -> RunRow | None:
        return self._store.read(lambda connection: _find_run(connection, _RUN, run))

    def _runs(self) -> Sequence[RunRow]:
        joined = select(runs, heartbeats.c.beats, heartbeats.c.beat_ts).where(
            runs.c.run == heartbeats.c.run
        )
        found = self._store.read(lambda connection: connection.execute(joined).mappings().all())
        return [_run(row) for row in found]

    def _silent_s(self, run: str) -> float | None:
        def job(connection: Connection) -> float | None:
            held = _find_run(connection, _RUN, run)
            return self._age_s(connection, held) if held is not None and held.holder else None

        return self._store.read(job)

    def _age_s(self, connection: Connection, held: RunRow | None) -> float:
        """
        Return how old the last heartbeat is.

        A clock that is set back makes it younger, for as long as the step. But one that does not
        change while this journal is asked again and again is as old as that.
        """
        if held is None:
            return 0.0
        now_s = time.monotonic()
        given_s = now_s - max(0.0, self._store.now_ts(connection) - held.beat_ts)
        seen, seen_s = self._beats.get(held.run, (None, given_s))
        if seen == held.mark:
            given_s = min(given_s, seen_s)
        self._beats[held.run] = (held.mark, given_s)
        return now_s - given_s

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


def _find_run(
    connection: Connection, statement: Select[*tuple[Any, ...]], run: str
) -> RunRow | None:
    """Return a run with its heartbeat, which is read once the run is kept as the statement says."""
    keys = {"of_run": run}
    found = connection.execute(statement, keys).mappings().one_or_none()
    if found is None:
        return None
    beat = connection.execute(_HEARTBEAT, keys).mappings().one_or_none()
    return _run({**found, **(beat or {})})


def _run(row: Mapping[Any, Any]) -> RunRow:
    """Return the run that rows of the two tables hold, or raise JournalCorrupt."""
    values: dict[str, Any] = dict(row)
    values["epoch"] = values.pop("ep")
    try:
        return RunRow(**values)
    except (TypeError, ValueError) as error:
        raise JournalCorrupt(
            f"run {text_of(values['run'])[:150]!r}: its row is damaged: {text_of(error)[:300]}"
        ) from error


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


def _known(row: Mapping[Any, Any]) -> OperationRow | Damaged:
    """Return the operation of a row, or what can be told of it where it is damaged."""
    try:
        return _operation(row)
    except JournalCorrupt as error:
        name, chart, state = (text_of(row[key])[:150] for key in ("op", "chart", "state"))
        return Damaged(operation_id=name, chart=chart, state=state, reason=str(error))


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
