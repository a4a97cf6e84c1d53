"""What an operation is, as a journal opens, lists and chooses it: data, checked when made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from gymckpt.episodes import require_operation_id
from gymckpt.journal.entry import require_count, require_name, require_seconds
from gymckpt.journal.fields import require_source
from gymckpt.values import plain

__all__ = [
    "IMPORTED",
    "Damaged",
    "Opening",
    "OperationRow",
    "RunRow",
    "Selection",
    "checked_field",
    "is_operation_id",
    "may_exist",
]


def is_operation_id(value: str) -> bool:
    """Whether a run or an operation can have this id; no store is asked about others."""
    try:
        require_operation_id(value)
    except (TypeError, ValueError):
        return False
    return True


def may_exist(run: str, operation_id: str) -> bool:
    """Whether an operation can have these ids."""
    return is_operation_id(run) and is_operation_id(operation_id)


IMPORTED = "imported:"
"""How the owner of an operation begins that came from an exported file; nobody drives it."""


def checked_field(require: Callable[[object], Any]) -> Any:
    """
    Return an attrs field that holds only what `require` accepts; the error names the field.

    Args:
        require: Raises TypeError or ValueError about a value that breaks the rule.
    """

    def check(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        try:
            require(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"field {attribute.name}: {error}") from error

    return attrs.field(converter=plain, validator=check)


@attrs.frozen(kw_only=True)
class Opening:
    """
    What an operation is, said once when it is opened.

    Raises:
        TypeError: An id is no string.
        ValueError: A field breaks its rule.
    """

    run: str = checked_field(require_operation_id)
    """The training run; ids of different runs never collide."""
    operation_id: str = checked_field(require_operation_id)
    """Used once in its run and never again."""
    chart: str = checked_field(require_name)
    """The name of the chart that it is a run of."""
    chart_version: int = checked_field(require_count)
    """The version of that chart, by which its entries must be replayed."""


@attrs.frozen(kw_only=True)
class OperationRow:
    """
    One operation as a journal lists it; everything but the owner follows from its entries.

    Who drives it now is said by the row of its run.

    Raises:
        TypeError: An id is no string, or `settled` no bool.
        ValueError: A field breaks its rule.
    """

    run: str = checked_field(require_operation_id)
    operation_id: str = checked_field(require_operation_id)
    chart: str = checked_field(require_name)
    chart_version: int = checked_field(require_count)
    state: str = checked_field(require_name)
    """Where the last entry of the operation itself (not of a call) led."""
    settled: bool = attrs.field(validator=attrs.validators.instance_of(bool))
    """Whether a final state was reached; never taken back."""
    epoch: int = checked_field(require_count)
    """The epoch in which its run was held when it was last recorded."""
    owner: str = checked_field(require_name)
    """A token of the process that held the run then, for people; behind `IMPORTED` where that was
    another journal's."""
    last_seq: int = checked_field(require_count)
    opened_ts: float = checked_field(require_seconds)
    """The wall time of the first entry."""
    updated_ts: float = checked_field(require_seconds)
    """The wall time of the last entry."""

    @property
    def imported(self) -> bool:
        """Whether it came from an exported file: it is for reading, and nobody drives it."""
        return self.owner.startswith(IMPORTED)


def _text(value: str | None) -> str | None:
    return plain(value)


@attrs.frozen(kw_only=True)
class Damaged:
    """An operation whose row is not what any release wrote."""

    operation_id: str
    chart: str
    """As it is stored, like the state; printable."""
    state: str
    reason: str


@attrs.frozen(kw_only=True)
class RunRow:
    """
    Who holds a run, and its heartbeat.

    Raises:
        TypeError: The run is no string.
        ValueError: A field breaks its rule.
    """

    run: str = checked_field(require_operation_id)
    epoch: int = checked_field(require_count)
    """Raised by one with every claim; only its holder may record anything."""
    holder: str = checked_field(require_source)
    """A token of the process that holds the run; empty where it was given back."""
    since_ts: float = checked_field(require_seconds)
    """When it was claimed, or given back, by the store's clock."""
    beats: int = checked_field(require_count)
    """How often it was heard of. Whether this goes up is what tells a holder that is alive: whoever
    wants to know looks twice, and counts the time in between by a clock of its own."""
    beat_ts: float = checked_field(require_seconds)
    """When it was last heard of, by the store's clock; for people."""

    @property
    def mark(self) -> tuple[int, str, int]:
        """What changes with every heartbeat and every claim."""
        return self.epoch, self.holder, self.beats


@attrs.frozen(kw_only=True)
class Selection:
    """Which operations are meant; a field that is None or empty leaves nothing out."""

    run: str | None = attrs.field(default=None, converter=_text)
    operation_id: str | None = attrs.field(default=None, converter=_text)
    chart: str | None = attrs.field(default=None, converter=_text)
    states: tuple[str, ...] = ()
    """Only those in one of these states."""
    unfinished: bool = False
    """Only those that have not settled."""
    opened_before_ts: float | None = None
    updated_since_ts: float | None = None
    latest: int | None = None
    """Only so many: of all that are left, those that were opened last."""

    @property
    def possible(self) -> bool:
        """Whether any operation can be meant: no store is asked about a text that none can hold."""
        texts = (self.run, self.operation_id, self.chart, *self.states)
        return all(text is None or text.isprintable() for text in texts)

    def has(self, row: OperationRow) -> bool:
        """Whether an operation is meant, but for `latest`."""
        before_ts, since_ts = self.opened_before_ts, self.updated_since_ts
        return (
            self.run in (None, row.run)
            and self.operation_id in (None, row.operation_id)
            and self.chart in (None, row.chart)
            and (not self.states or row.state in self.states)
            and not (self.unfinished and row.settled)
            and (before_ts is None or row.opened_ts < before_ts)
            and (since_ts is None or row.updated_ts >= since_ts)
        )
