"""
What a journal is: the one contract that every store keeps.

`Journal` checks and encodes what it is given before any store is touched, and its docstrings say
everything that each refusal can mean. A store gives `url`, `blocks`, `step_rows`, `close` and the
private methods on rows; what an append comes to is decided in `gymckpt.journal.rules`, once for all
stores.

A journal is synchronous and thread-safe. It knows neither asyncio nor charts: whether a state is
final is told by the caller. Per operation, entries are numbered 1, 2, 3, … without a gap and
never change.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Self

from gymckpt.core.entry import Entry
from gymckpt.journal.entry import TAGS, Row, decode_outline, decode_row, require_name
from gymckpt.journal.fields import INT_MAX, require_count
from gymckpt.journal.records import Opening, OperationRow, Selection, may_exist
from gymckpt.journal.rules import (
    Batch,
    check_read,
    encoded,
    operation_from,
    unknown_operation,
)
from gymckpt.values import plain

__all__ = ["Batch", "Journal", "Opening", "OperationRow", "Selection"]

_INSTANCE_COLUMN = TAGS.index("inst")


class Journal(abc.ABC):
    """The durable, ordered record of transitions, of many operations of many runs."""

    url: str
    """What opens the same journal again, without its secrets; errors name it. Every store gives it,
    as an attribute of the class or of the object."""
    blocks: bool
    """Whether calls may wait for a disk, a network or a lock; False: they may run on an event loop.
    Every store gives it."""

    def open_operation(self, opening: Opening, entries: Sequence[Entry], *, owner: str) -> None:
        """
        Record a new operation with epoch 1 and its first entries, in one transaction.

        Args:
            opening: What the operation is.
            entries: Its first entries, seq 1, 2, …, all of epoch 1; the first opens it.
            owner: A token of the controller that drives it.

        Raises:
            OperationIdUsed: The run has an operation of this id, be it open, settled, or one that
                this very call recorded before its answer was lost: nothing was sent for it, so a
                new id is the way on, and recovery settles the old one.
            ValueError: An argument breaks its rule; no store was touched.
            JournalUnavailable: Full, locked past the timeout, read-only, deleted, replaced or
                closed. Nothing was recorded, unless the error says that this is unknown.
            JournalCorrupt: The store is damaged.
        """
        rows = encoded(entries)
        self._insert(operation_from(opening, entries, epoch=1, owner=owner, settled=False), rows)

    def insert_operation(self, operation: OperationRow, entries: Sequence[Entry]) -> None:
        """
        Record a whole operation as another journal has it, in one transaction.

        Args:
            operation: The operation, in any state and epoch.
            entries: All its entries.

        Raises:
            OperationIdUsed: The run has an operation of this id.
            ValueError: The entries do not lead to this row; no store was touched.
            JournalUnavailable: As for `open_operation`.
            JournalCorrupt: The store is damaged.
        """
        rows = encoded(entries)
        opening = Opening(
            run=operation.run,
            operation_id=operation.operation_id,
            chart=operation.chart,
            chart_version=operation.chart_version,
        )
        row = operation_from(
            opening,
            entries,
            epoch=operation.epoch,
            owner=operation.owner,
            settled=operation.settled,
        )
        if row != operation:
            raise ValueError(
                f"operation {operation.operation_id!r}: its entries lead to state {row.state!r} "
                f"and entry {row.last_seq}, its row says {operation.state!r} and "
                f"{operation.last_seq}"
            )
        self._insert(operation, rows)

    def append(
        self, entries: Sequence[Entry], *, expected_seq: int, epoch: int, settled: bool = False
    ) -> None:
        """
        Append entries of one operation after entry `expected_seq`, in one transaction.

        The same entries again are a no-op, and entries that begin with ones that have landed are
        appended from where the journal ends: an append whose answer was lost is simply repeated,
        also with more entries behind it.

        Args:
            entries: One operation's, seq `expected_seq` + 1, …, all of epoch `epoch`.
            expected_seq: The last entry that the writer knows to be stored.
            epoch: The epoch of the writer.
            settled: Whether the operation is in a final state after them. An operation that has
                settled stays so, whatever is appended later.

        Raises:
            Fenced: Another epoch holds the operation: it was claimed, or this epoch was never
                granted. Of a repeated batch it may mean that the batch had landed before the
                claim; the writer stops in any case.
            JournalConflict: The epoch is right, but the journal ends before `expected_seq`, or
                goes on after it with other entries. Nothing was stored.
            ValueError: The batch is malformed; no store was touched.
            JournalUnavailable: Full, locked past the timeout, read-only, deleted, replaced or
                closed. Nothing was stored, unless the error says that this is unknown because the
                answer to the commit was lost: repeat the append.
            JournalCorrupt: The store is damaged.
            JournalError: There is no such operation.
        """
        batch = Batch.of(entries, expected_seq=expected_seq, epoch=epoch, settled=settled)
        self._append(batch)

    def heartbeat(self, run: str, operation_id: str, *, epoch: int) -> None:
        """
        Give a sign of life of the controller that drives an operation, by the store's clock.

        Opening an operation and claiming it give one too.

        Args:
            run: The run.
            operation_id: The operation.
            epoch: The epoch that this controller drives it with.

        Raises:
            Fenced: Another controller has taken the operation over.
            JournalUnavailable: As for `append`.
            JournalError: There is no such operation.
        """
        if not may_exist(run, operation_id):
            raise unknown_operation(run, operation_id)
        self._heartbeat(plain(run), plain(operation_id), epoch)

    def silent_s(self, run: str, operation_id: str) -> float | None:
        """
        Return how long ago an operation's controller gave a sign of life.

        Returns:
            Seconds by the store's clock; None where there is no such operation, or it was written
            before controllers gave any.

        Raises:
            JournalUnavailable: Locked past the timeout, gone, or closed.
        """
        known = may_exist(run, operation_id)
        return self._silent_s(plain(run), plain(operation_id)) if known else None

    def claim(
        self, run: str, operation_id: str, *, owner: str, stale_s: float | None = None
    ) -> int:
        """
        Take an operation over: raise its epoch by one, in one transaction.

        Whoever drove it is fenced from then on. A claim whose answer was lost is simply repeated;
        an epoch that nobody uses does no harm.

        Args:
            run: The run.
            operation_id: The operation, in any state.
            owner: A token of the controller that drives it from now on.
            stale_s: How long its controller must have been silent, an operator's command less
                long (`gone_after_s`); None to take it over whatever its controller does.

        Returns:
            The new epoch.

        Raises:
            OperationHeld: Its controller gave a sign of life within `stale_s`; nothing changed.
            ValueError: The owner is no short printable word; no store was touched.
            JournalUnavailable: As for `append`.
            JournalCorrupt: The store is damaged.
            JournalError: There is no such operation.
        """
        try:
            owner = require_name(owner)
        except ValueError as error:
            raise ValueError(f"owner {error}") from error
        if not may_exist(run, operation_id):
            raise unknown_operation(run, operation_id)
        return self._claim(plain(run), plain(operation_id), owner, stale_s)

    def read(
        self, run: str, operation_id: str, *, after_seq: int = 0, at_most: int | None = None
    ) -> tuple[Entry, ...]:
        """
        Return the entries of an operation, in order.

        Args:
            run: The run.
            operation_id: The operation.
            after_seq: Leave out the entries up to this one.
            at_most: How many entries; None for all that there are.

        Raises:
            ValueError: `after_seq` is negative, `at_most` not positive, or one of them no int.
            JournalCorrupt: An entry is damaged, missing or too many.
            JournalUnavailable: Locked past the timeout, gone, or closed.
            JournalError: There is no such operation, or a newer release wrote an entry.
        """
        if type(after_seq) is not int or not 0 <= after_seq < 2**63:
            raise ValueError(f"after_seq must be an int from 0, not {after_seq!r:.100}")
        try:
            last_seq = INT_MAX if at_most is None else after_seq + require_count(at_most)
        except ValueError as error:
            raise ValueError(f"at_most {error}") from error
        if not may_exist(run, operation_id):
            raise unknown_operation(run, operation_id)
        held, rows = self._read(plain(run), plain(operation_id), after_seq, min(last_seq, INT_MAX))
        if held is None:
            raise unknown_operation(run, operation_id)
        entries = tuple(decode_row(row) for row in rows)
        check_read(held, entries, after_seq, last_seq)
        return entries

    def operation(self, run: str, operation_id: str) -> OperationRow | None:
        """
        Return an operation's row; None where there is no such operation.

        Raises:
            JournalCorrupt: The row is damaged.
            JournalUnavailable: Locked past the timeout, gone, or closed.
        """
        known = may_exist(run, operation_id)
        return self._operation(plain(run), plain(operation_id)) if known else None

    def outline(self, run: str, operation_id: str) -> tuple[Entry, ...]:
        """
        Return the entries of an operation for a list of many, quickly.

        Those of calls come without their facts, and nothing is checked; see `read` for the truth.

        Raises:
            JournalCorrupt: An entry is damaged beyond recognition.
            JournalUnavailable: Locked past the timeout, gone, or closed.
            JournalError: There is no such operation.
        """
        rows = self._rows(run, operation_id)
        return tuple(decode_outline(row) for row in rows)

    def read_of(self, run: str, operation_id: str, instances: Collection[str]) -> tuple[Entry, ...]:
        """
        Return the entries about some instances, in order, and nothing of the others.

        Args:
            run: The run.
            operation_id: The operation.
            instances: The ids of the instances.

        Raises:
            JournalCorrupt: An entry is damaged.
            JournalUnavailable: Locked past the timeout, gone, or closed.
            JournalError: There is no such operation, or a newer release wrote an entry.
        """
        wanted = frozenset(map(plain, instances))
        rows = self._rows(run, operation_id)
        return tuple(decode_row(row) for row in rows if row[_INSTANCE_COLUMN] in wanted)

    def _rows(self, run: str, operation_id: str) -> Sequence[Row]:
        if not may_exist(run, operation_id):
            raise unknown_operation(run, operation_id)
        held, rows = self._read(plain(run), plain(operation_id), 0, INT_MAX)
        if held is None:
            raise unknown_operation(run, operation_id)
        return rows

    def operations(
        self, run: str | None = None, *, unfinished: bool = False
    ) -> tuple[OperationRow, ...]:
        """
        Return the rows of many operations, by the time at which they were opened.

        Args:
            run: Only those of this run; None for all runs.
            unfinished: Only those that have not settled.

        Raises:
            JournalCorrupt: A row is damaged.
            JournalUnavailable: Locked past the timeout, gone, or closed.
        """
        return self.select(Selection(run=run, unfinished=unfinished))

    def select(self, selection: Selection) -> tuple[OperationRow, ...]:
        """
        Return the rows of the operations that are meant, by the time at which they were opened.

        Args:
            selection: Which they are.

        Raises:
            JournalCorrupt: A row is damaged.
            JournalUnavailable: Locked past the timeout, gone, or closed.
        """
        rows = self._select(selection) if selection.possible else ()
        return tuple(sorted(rows, key=lambda row: (row.opened_ts, row.run, row.operation_id)))

    def remove(self, run: str, operation_id: str) -> None:
        """
        Remove a settled operation with all its entries, in one transaction.

        Its id stays used. An operation that is gone already is no error.

        Raises:
            JournalError: It is unfinished.
            JournalUnavailable: As for `append`.
            JournalCorrupt: The store is damaged.
        """
        if may_exist(run, operation_id):
            self._remove(plain(run), plain(operation_id))

    @abc.abstractmethod
    def step_rows(self, run: str | None) -> Sequence[Row]:
        """
        Return the rows of what operations did themselves: those of calls and openings are left out.

        That is each stored row about no instance (its `inst` is None) whose seq is above 1, exactly
        once, in any order; what was removed has none.

        Args:
            run: Only those of this run; None for all runs.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of the store; every later call raises JournalUnavailable, but for `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abc.abstractmethod
    def _select(self, selection: Selection) -> Sequence[OperationRow]:
        """Return those that `selection.has`, in any order; of them only the `latest`, if given."""

    @abc.abstractmethod
    def _remove(self, run: str, operation_id: str) -> None:
        """Remove the operation if it has settled, or raise `unfinished`; remember its id."""

    @abc.abstractmethod
    def _insert(self, operation: OperationRow, rows: Sequence[Row]) -> None:
        """Store a new operation and its rows, or raise `id_used`."""

    @abc.abstractmethod
    def _append(self, batch: Batch) -> None:
        """Store what `remaining` returns, and move the operation's row with it."""

    @abc.abstractmethod
    def _claim(self, run: str, operation_id: str, owner: str, stale_s: float | None) -> int:
        """Raise the epoch, or raise what `check_claim` or `unknown_operation` says."""

    @abc.abstractmethod
    def _heartbeat(self, run: str, operation_id: str, epoch: int) -> None:
        """Store a sign of life, or raise what `fenced` returns."""

    @abc.abstractmethod
    def _silent_s(self, run: str, operation_id: str) -> float | None:
        """Return the age of the last sign of life."""

    @abc.abstractmethod
    def _operation(self, run: str, operation_id: str) -> OperationRow | None:
        """Return the operation, or None."""

    @abc.abstractmethod
    def _read(
        self, run: str, operation_id: str, after_seq: int, last_seq: int
    ) -> tuple[OperationRow | None, Sequence[Row]]:
        """Return the operation and its rows after one up to another, all of one moment."""
