"""
The rules that every journal keeps, as data and pure functions; no store is touched here.

What an operation is, what a batch is, which entry may follow which, and what an append comes to
when the journal has moved: decided once, so that no two stores can differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from gymckpt.core.entry import Entry
from gymckpt.core.settings import same_owner
from gymckpt.errors import (
    Fenced,
    JournalConflict,
    JournalCorrupt,
    JournalError,
    OperationIdUsed,
    RunHeld,
)
from gymckpt.journal.entry import Row, encode_row, require_count
from gymckpt.journal.fields import INT_MAX
from gymckpt.journal.records import Opening, OperationRow, RunRow, Selection

__all__ = [
    "Batch",
    "Opening",
    "OperationRow",
    "RunRow",
    "Selection",
    "break_after",
    "check_epoch",
    "check_read",
    "claimed_epoch",
    "encoded",
    "id_used",
    "imported",
    "operation_from",
    "remaining",
    "unfinished",
    "unknown_operation",
]


@attrs.frozen(kw_only=True)
class Batch:
    """Entries that were checked and encoded, with what a store must do about them."""

    run: str
    operation_id: str
    expected_seq: int
    """After which entry they belong."""
    epoch: int
    rows: tuple[Row, ...]
    state: str | None
    """Where the operation itself goes with them; None where only its calls moved."""
    settled: bool
    updated_ts: float

    @property
    def last_seq(self) -> int:
        """The seq of the last entry."""
        return self.expected_seq + len(self.rows)

    @classmethod
    def of(cls, entries: Sequence[Entry], *, expected_seq: int, epoch: int, settled: bool) -> Batch:
        """
        Check and encode a batch.

        Raises:
            ValueError: It is malformed; the message names the entry and the field.
        """
        for name, value in (("expected_seq", expected_seq), ("epoch", epoch)):
            try:
                require_count(value)
            except ValueError as error:
                raise ValueError(f"{name} {error}") from error
        if type(settled) is not bool:
            raise ValueError(f"settled must be a bool, not {settled!r:.100}")
        if not entries:
            raise ValueError(f"nothing to append after entry {expected_seq}: the batch is empty")
        rows = encoded(entries)
        first, state = entries[0], None
        for seq, entry in enumerate(entries, expected_seq + 1):
            if (entry.run, entry.operation_id) != (first.run, first.operation_id):
                raise ValueError(
                    f"a batch is of one operation, not of {first.operation_id!r} of run "
                    f"{first.run!r} and {entry.operation_id!r} of run {entry.run!r}"
                )
            if entry.seq != seq or entry.epoch != epoch:
                raise ValueError(
                    f"operation {entry.operation_id!r}: entry {entry.seq} of epoch {entry.epoch} "
                    f"stands where entry {seq} of epoch {epoch} belongs"
                )
            state = state if entry.instance is not None else entry.dest
        return cls(
            run=first.run,
            operation_id=first.operation_id,
            expected_seq=expected_seq,
            epoch=epoch,
            rows=rows,
            state=state,
            settled=settled,
            updated_ts=float(entries[-1].ts),
        )


# --- rules that all stores share ----------------------------------------------------------------


def encoded(entries: Sequence[Entry]) -> tuple[Row, ...]:
    """Return the rows of entries, or raise ValueError naming the entry and the field."""
    return tuple(encode_row(entry) for entry in entries)


def break_after(previous: Entry | None, entry: Entry) -> str:
    """
    Say why `entry` cannot follow `previous` in one operation; empty where it can.

    Args:
        previous: The entry before it; None where `entry` is to be the first.
        entry: The entry.
    """
    if previous is None:
        opens = entry.seq == 1 and entry.instance is None and not entry.source
        return "" if opens else "the first entry does not open it (seq 1, no instance, source '')"
    if (entry.run, entry.operation_id) != (previous.run, previous.operation_id):
        return (
            f"entry {entry.seq} is of operation {entry.operation_id!r:.150} of run "
            f"{entry.run!r:.150}, the one before it of {previous.operation_id!r:.150} of run "
            f"{previous.run!r:.150}"
        )
    if entry.seq != previous.seq + 1:
        return f"entry {entry.seq} follows entry {previous.seq}"
    if entry.epoch < previous.epoch:
        return f"entry {entry.seq} has epoch {entry.epoch}, the one before it {previous.epoch}"
    return ""


def operation_from(
    opening: Opening, entries: Sequence[Entry], *, epoch: int, owner: str, settled: bool
) -> OperationRow:
    """
    Return the row of an operation that has these entries.

    Args:
        opening: What it is.
        entries: All its entries, from seq 1.
        epoch: Which epoch drives it.
        owner: Who drives it.
        settled: Whether it has reached a final state.

    Raises:
        ValueError: The entries are none, are of another operation, are no gapless sequence, or
            one has a later epoch; or another argument breaks its rule.
    """
    if not entries:
        raise ValueError(f"operation {opening.operation_id!r} needs at least one entry")
    previous: Entry | None = None
    state = ""
    for entry in entries:
        broken = break_after(previous, entry)
        if broken:
            raise ValueError(f"operation {opening.operation_id!r}: {broken}")
        previous, state = entry, state if entry.instance is not None else entry.dest
    first, last = entries[0], entries[-1]
    if (first.run, first.operation_id) != (opening.run, opening.operation_id):
        raise ValueError(
            f"the entries are of operation {first.operation_id!r:.150} of run {first.run!r:.150}, "
            f"not of {opening.operation_id!r} of run {opening.run!r}"
        )
    if last.epoch > epoch:
        raise ValueError(f"entry {last.seq} has epoch {last.epoch}, the operation {epoch}")
    return OperationRow(
        **attrs.asdict(opening),
        state=state,
        settled=settled,
        epoch=epoch,
        owner=owner,
        last_seq=last.seq,
        opened_ts=float(first.ts),
        updated_ts=float(last.ts),
    )


def check_read(
    held: OperationRow, entries: Sequence[Entry], after_seq: int, last_seq: int = INT_MAX
) -> None:
    """
    Raise JournalCorrupt unless the entries are what the operation's row says.

    Args:
        held: The row, read in one moment with the entries.
        entries: What is stored after `after_seq`, up to `last_seq`.
        after_seq: Where the reading began.
        last_seq: Up to which entry it was to go.
    """
    what = f"operation {held.operation_id!r} of run {held.run!r}"
    ends = held.last_seq <= last_seq
    expected = max(min(held.last_seq, last_seq) - after_seq, 0)
    if len(entries) != expected:
        part = "" if ends else f" and up to entry {last_seq}"
        raise JournalCorrupt(
            f"{what}: {len(entries)} entries are stored after entry {after_seq}{part}, not "
            f"{expected}"
        )
    previous: Entry | None = None
    for entry in entries:
        broken = break_after(previous, entry) if previous or not after_seq else ""
        if broken:
            raise JournalCorrupt(f"{what}: {broken}")
        previous = entry
    if not ends:
        if previous is not None and previous.seq != last_seq:
            raise JournalCorrupt(f"{what}: entry {previous.seq} stands where {last_seq} belongs")
    elif previous is not None and (previous.seq, previous.ts) != (held.last_seq, held.updated_ts):
        raise JournalCorrupt(f"{what}: its last entry is {previous.seq}, not {held.last_seq}")
    if previous is not None and previous.epoch > held.epoch:
        raise JournalCorrupt(f"{what}: an entry has epoch {previous.epoch} > {held.epoch}")


def remaining(
    batch: Batch,
    run: RunRow | None,
    held: OperationRow | None,
    stored: Callable[[], Sequence[Row]],
) -> tuple[Row, ...]:
    """
    Return the rows of a batch that are still to be stored; none where all have landed before.

    Args:
        batch: What is to be appended.
        run: Its run as it is stored, read in the same transaction.
        held: The operation, likewise.
        stored: Reads the stored rows after `batch.expected_seq` up to `batch.last_seq`; called
            only where the journal goes on after `batch.expected_seq`.

    Raises:
        Fenced: Another epoch holds the run.
        JournalConflict: The journal ends elsewhere, or goes on with other entries.
        JournalError: There is no such operation.
    """
    if held is None:
        raise unknown_operation(batch.run, batch.operation_id)
    if held.imported:
        raise imported(held)
    check_epoch(run, batch.run, batch.epoch)
    if held.last_seq == batch.expected_seq:
        return batch.rows
    if held.last_seq < batch.expected_seq:
        raise JournalConflict(batch.operation_id, batch.expected_seq, held.last_seq)
    landed = tuple(stored())
    count = min(held.last_seq, batch.last_seq) - batch.expected_seq
    if len(landed) != count or landed != batch.rows[:count]:
        raise JournalConflict(batch.operation_id, batch.expected_seq, held.last_seq)
    return batch.rows[count:]


def check_epoch(held: RunRow | None, run: str, epoch: int) -> RunRow:
    """
    Return the row of a run that is held with this epoch.

    Args:
        held: The run as it is stored; None where nobody has claimed it yet.
        run: The run.
        epoch: The epoch of whoever wants to record something.

    Raises:
        Fenced: Another epoch holds the run, or it was given back.
    """
    if held is None or held.epoch != epoch or not held.holder:
        raise Fenced(run, epoch, 0 if held is None else held.epoch, held.holder if held else "")
    return held


def claimed_epoch(
    held: RunRow | None,
    last_epoch: int,
    holder: str,
    *,
    age_s: float,
    unmoved: RunRow | None,
    force: bool,
) -> int:
    """
    Return the epoch that a claim gives: that of the run plus one, or its own to its holder.

    Args:
        held: The run as it is stored; None where nobody has claimed it yet.
        last_epoch: The last epoch in which anything of the run was recorded; 0 where nothing was.
        holder: Who claims it.
        age_s: How old the last heartbeat is.
        unmoved: The row that whoever claims has seen not to change for long enough.
        force: Whether to take it from a living holder.

    Raises:
        RunHeld: Another process holds it, and was heard of since `unmoved` was read.
    """
    if held is None:
        return last_epoch + 1
    if held.holder and same_owner(held.holder, holder):
        return held.epoch
    is_silent = unmoved is not None and unmoved.mark == held.mark
    if held.holder and not (force or is_silent):
        raise RunHeld(held.run, held.holder, held.since_ts, max(0.0, age_s))
    return held.epoch + 1


def unknown_operation(run: str, operation_id: str) -> JournalError:
    """Return the error about an operation that the journal does not hold."""
    return JournalError(
        f"the journal holds no operation {operation_id!r:.150} of run {run!r:.150}; "
        "open it first, or look in the journal and the run in which it was opened"
    )


def imported(held: OperationRow) -> JournalError:
    """Return the error about an operation that came from an exported file, which is for reading."""
    return JournalError(
        f"operation {held.operation_id!r} of run {held.run!r} was imported: it is here for reading "
        "and is never driven; go to the journal that it was exported from"
    )


def unfinished(held: OperationRow) -> JournalError:
    """Return the error about an operation that must not be removed."""
    return JournalError(
        f"operation {held.operation_id!r} of run {held.run!r} is unfinished (state "
        f"{held.state!r}), and what is unfinished is never removed: settle it first"
    )


def id_used(held: OperationRow | None, run: str, operation_id: str) -> OperationIdUsed:
    """Return the error about an id that was used before; `held` is None where it was removed."""
    if held is None:
        return OperationIdUsed(
            f"operation id {operation_id!r} was used before in run {run!r} and removed since; "
            "take a new id, none is ever used twice"
        )
    return OperationIdUsed(
        f"operation id {held.operation_id!r} was used before in run {held.run!r} (chart "
        f"{held.chart}, state {held.state!r}, epoch {held.epoch}); take a new id, none is ever "
        "used twice"
    )
