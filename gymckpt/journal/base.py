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
from collections.abc import Collection, Hashable, Sequence
from types import TracebackType
from typing import Self

from gymckpt.core.entry import Entry
from gymckpt.episodes import require_operation_id
from gymckpt.errors import Fenced, JournalCorrupt, text_of
from gymckpt.journal.entry import TAGS, Row, decode_outline, decode_row, require_name
from gymckpt.journal.fields import INT_MAX, require_count
from gymckpt.journal.records import (
    Damaged,
    Opening,
    OperationRow,
    RunRow,
    Selection,
    is_operation_id,
    may_exist,
)
from gymckpt.journal.rules import (
    Batch,
    check_read,
    encoded,
    operation_from,
    unknown_operation,
)
from gymckpt.values import plain

__all__ = ["Batch", "Damaged", "Journal", "Opening", "OperationRow", "RunRow", "Selection"]

UNSAID = "-"
"""The owner in the row of an opening, until the store says who holds the run."""

_INSTANCE_COLUMN = TAGS.index("inst")


class Journal(abc.ABC):
    """The durable, ordered record of transitions, of many operations of many runs."""

    url: str
    """What opens the same journal again, without its secrets; errors name it. Every store gives it,
    as an attribute of the class or of the object."""
    blocks: bool
    """Whether calls may wait for a disk, a network or a lock; False: they may run on an event loop.
    Every store gives it."""

    @property
    def shared_as(self) -> Hashable:
        """What is equal for two journals of this process exactly if they hold the same runs."""
        return self.url

    def open_operation(self, opening: Opening, entries: Sequence[Entry]) -> None:
        """
        Record a new operation with its first entries, in one transaction.

        Args:
            opening: What the operation is.
            entries: Its first entries, seq 1, 2, …, all of the epoch with which the run is held;
                the first opens it.

        Raises:
            Fenced: Another epoch holds the run, or nobody has claimed it.
            OperationIdUsed: The run has an operation of this id, be it open, settled, or one that
                this very call recorded before its answer was lost: nothing was sent for it, so a
                new id is the way on, and recovery settles the old one.
            ValueError: An argument breaks its rule; no store was touched.
            JournalUnavailable: Full, locked past the timeout, read-only, deleted, replaced or
                closed. Nothing was recorded, unless the error says that this is unknown.
            JournalCorrupt: The store is damaged.
        """
        rows = encoded(entries)
        epoch = entries[0].epoch if entries else 1
        row = operation_from(opening, entries, epoch=epoch, owner=UNSAID, settled=False)
        if any(entry.epoch != epoch for entry in entries):
            raise ValueError(f"operation {row.operation_id!r}: its first entries are of two epochs")
        self._insert(row, rows, driven=True)

    def insert_operation(self, operation: OperationRow, entries: Sequence[Entry]) -> None:
        """
        Record a whole operation as another journal has it, in one transaction.

        Nobody need hold its run for that.

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
        self._insert(operation, rows, driven=False)

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
            Fenced: Another epoch holds the run: it was claimed or given back, or this epoch was
                never granted. Of a repeated batch it may mean that the batch had landed before
                the claim; the writer stops in any case.
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

    def claim(
        self, run: str, *, holder: str, unmoved: RunRow | None = None, force: bool = False
    ) -> int:
        """
        Take a run: raise its epoch by one, in one transaction, which fences whoever held it.

        Who holds it already is given the present epoch, so that a claim whose answer was lost is
        simply repeated, and several controllers of one process share it.

        Args:
            run: The run, new or known.
            holder: A token of the process that holds it from now on.
            unmoved: What `held` has returned again and again, for as long as its holder may be
                silent: it counts as gone, if the row is still the same.
            force: Whether to take the run from a holder that is alive.

        Returns:
            The epoch with which everything of the run is recorded from now on.

        Raises:
            RunHeld: Another process holds it and is not known to be gone; nothing changed.
            ValueError: The run or the holder is malformed; no store was touched.
            JournalUnavailable: As for `append`.
            JournalCorrupt: The store is damaged.
        """
        require_operation_id(run, "run")
        try:
            require_name(holder)
        except ValueError as error:
            raise ValueError(f"holder {error}") from error
        return self._claim(run, holder, unmoved, force)

    def heartbeat(self, run: str, *, epoch: int) -> None:
        """
        Say that the holder of a run is alive; claiming it says so too.

        Args:
            run: The run.
            epoch: The epoch with which it is held.

        Raises:
            Fenced: Another process has taken the run over, or it was given back.
            JournalUnavailable: As for `append`.
        """
        if not is_operation_id(run):
            raise Fenced(text_of(run)[:150], epoch, 0, "")
        self._heartbeat(plain(run), epoch)

    def release(self, run: str, *, epoch: int) -> None:
        """
        Give a run back: it has no holder then, nothing is recorded, and whoever comes next claims.

        A run that another epoch holds, or nobody, is left as it is.

        Args:
            run: The run.
            epoch: The epoch with which it was held.

        Raises:
            JournalUnavailable: As for `append`.
        """
        if is_operation_id(run):
            self._release(run, epoch)

    def held(self, run: str) -> RunRow | None:
        """
        Return who holds a run, with its heartbeat; None where nobody has claimed it yet.

        Raises:
            JournalCorrupt: The row is damaged.
            JournalUnavailable: Locked past the timeout, gone, or closed.
        """
        return self._held(run) if is_operation_id(run) else None

    def runs(self) -> tuple[RunRow, ...]:
        """
        Return the runs that were claimed at some time, by name.

        Raises:
            JournalCorrupt: A row is damaged.
            JournalUnavailable: Locked past the timeout, gone, or closed.
        """
        return tuple(sorted(self._runs(), key=lambda row: row.run))

    def silent_s(self, run: str) -> float | None:
        """
        Return how old the last heartbeat of a run's holder is.

        Returns:
            Seconds by the store's clock, for people: see `RunRow.beats`. None where nobody holds
            the run.

        Raises:
            JournalUnavailable: Locked past the timeout, gone, or closed.
        """
        return self._silent_s(plain(run)) if is_operation_id(run) else None

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

    def unfinished(self, run: str) -> tuple[OperationRow | Damaged, ...]:
        """
        Return the operations of a run that have not settled, by the time of their opening.

        Rows that are damaged come last, and keep nobody from the others.

        Raises:
            JournalUnavailable: Locked past the timeout, gone, or closed.
        """
        selection = Selection(run=run, unfinished=True)
        found = self._unfinished(selection) if selection.possible else ()
        rows = [row for row in found if isinstance(row, OperationRow)]
        rows.sort(key=lambda row: (row.opened_ts, row.operation_id))
        return (*rows, *(row for row in found if isinstance(row, Damaged)))

    def opening(self, run: str, operation_id: str) -> Entry:
        """
        Return the first entry of an operation, whatever is damaged behind it.

        Raises:
            JournalCorrupt: It is damaged, or not there.
            JournalUnavailable: Locked past the timeout, gone, or closed.
            JournalError: A newer release wrote it.
        """
        rows = self._first_rows(run, operation_id) if may_exist(run, operation_id) else ()
        for row in rows:
            return decode_row(row)
        raise JournalCorrupt(f"operation {operation_id!r:.150} has no opening entry")

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

    def _unfinished(self, selection: Selection) -> Sequence[OperationRow | Damaged]:
        """Return what `_select` does, with what is said of each row that is damaged."""
        return self._select(selection)

    def _first_rows(self, run: str, operation_id: str) -> Sequence[Row]:
        """Return the first row of an operation, if it is there; its operation need not be."""
        return self._read(run, operation_id, 0, 1)[1]

    @abc.abstractmethod
    def _remove(self, run: str, operation_id: str) -> None:
        """Remove the operation if it has settled, or raise `unfinished`; remember its id."""

    @abc.abstractmethod
    def _insert(self, operation: OperationRow, rows: Sequence[Row], *, driven: bool) -> None:
        """
        Store a new operation and its rows, or raise `id_used`.

        One that is `driven` also has to pass `check_epoch`, and its owner is the run's holder.
        """

    @abc.abstractmethod
    def _append(self, batch: Batch) -> None:
        """Store what `remaining` returns, and move the operation's row with it."""

    @abc.abstractmethod
    def _claim(self, run: str, holder: str, unmoved: RunRow | None, force: bool) -> int:
        """Store what `claimed_epoch` returns, with a heartbeat, or raise what it raises."""

    @abc.abstractmethod
    def _heartbeat(self, run: str, epoch: int) -> None:
        """Count one more heartbeat, or raise what `check_epoch` raises."""

    @abc.abstractmethod
    def _release(self, run: str, epoch: int) -> None:
        """Leave the run without a holder, if this epoch holds it."""

    @abc.abstractmethod
    def _held(self, run: str) -> RunRow | None:
        """Return the run, or None."""

    @abc.abstractmethod
    def _runs(self) -> Sequence[RunRow]:
        """Return all runs, in any order."""

    @abc.abstractmethod
    def _silent_s(self, run: str) -> float | None:
        """Return the age of the last heartbeat; None where nobody holds the run."""

    @abc.abstractmethod
    def _operation(self, run: str, operation_id: str) -> OperationRow | None:
        """Return the operation, or None."""

    @abc.abstractmethod
    def _read(
        self, run: str, operation_id: str, after_seq: int, last_seq: int
    ) -> tuple[OperationRow | None, Sequence[Row]]:
        """Return the operation and its rows after one up to another, all of one moment."""
