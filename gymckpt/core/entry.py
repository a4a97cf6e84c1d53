"""
An entry: one transition of one machine, as the journal keeps it.

The core makes entries and folds them back into states; the stored form (tags, schema version,
upcasting) belongs to `gymckpt.journal.entry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

__all__ = ["Entry", "JsonFacts"]

JsonFacts = Mapping[str, Any]
"""Plain JSON data: str, int, finite float, bool, None, lists and string-keyed objects."""


@attrs.frozen(kw_only=True)
class Entry:
    """One transition that happened, of the operation or of one call to one instance."""

    run: str
    """The training run that the operation belongs to."""
    operation_id: str
    """The operation, unique within its run."""
    seq: int
    """1, 2, 3, …: per operation, gapless."""
    epoch: int
    """Which incarnation of the controller made the transition; the first is 1."""
    ts: float
    """Epoch seconds of the controller's wall clock; may step."""
    at_s: float
    """Seconds since the operation was opened, by the controller's monotonic clock."""
    instance: str | None = None
    """The instance whose call moved; None when the operation itself moved."""
    call: str | None = None
    """Which call moved: `prepare`, `renew`, …; None when the operation itself moved."""
    ask: int | None = None
    """Which sending of the call; counts per instance and call from 1."""
    trigger: str
    """What happened, a trigger of the chart."""
    source: str
    """The state before; the empty string for the entry that opens the operation."""
    dest: str
    """The state after; equal to `source` where the entry only records something."""
    facts: JsonFacts = attrs.field(factory=dict[str, Any])
    """What else a reader, a replay or a recovery must know."""
