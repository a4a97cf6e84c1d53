"""
The past of an operation, read from the journal page by page and replayed on the way.

A history may be a million entries long. Every page is a call of its own, bounded like any other,
and is replayed off the event loop, so that neither others' operations nor the loop wait for it.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Sequence

import attrs

from gymckpt.core.entry import Entry
from gymckpt.core.operation import OperationState
from gymckpt.core.replay import replay, states_after
from gymckpt.journal import Journal
from gymckpt.runtime.worker import Recorder

__all__ = ["Past", "past_of"]

PAGE = 2_000
"""How many entries are read and replayed in one go: some 0.1 s of work."""


@attrs.frozen
class Past:
    """What a history comes to."""

    operation: OperationState
    ahead_s: float
    """The least that the operation's own clock was ahead of the wall clock in any entry."""

    def clock_s(self, now_ts: float) -> float:
        """
        Return what the operation's own clock shows now, on a host that may be another one.

        Each entry gives an estimate by the wall clock. They agree unless a wall clock was stepped
        meanwhile; the least is taken then, so that no lease counts as over before it is (S3).

        Args:
            now_ts: What the wall clock shows.
        """
        return max(self.operation.at_s, self.ahead_s + now_ts)


async def past_of(
    recorder: Recorder, run: str, operation_id: str, *, known: Past | None = None
) -> Past:
    """
    Return what the history of an operation comes to, as far as the journal holds it now.

    Args:
        recorder: The journal.
        run: The run.
        operation_id: The operation.
        known: What an earlier part of it came to, if that was read before.

    Raises:
        ReplayDiverged: Its log does not follow its chart.
        InvariantViolated: Its log breaks a promise of the design.
        JournalError: The journal cannot be read.
    """
    while True:
        past, count = await recorder.read(
            functools.partial(_next_page, recorder.journal, run, operation_id, known)
        )
        if count < PAGE:
            return past
        known = past
        await asyncio.sleep(0)  # a journal that does not block has kept the loop so far


def _next_page(
    journal: Journal, run: str, operation_id: str, known: Past | None
) -> tuple[Past, int]:
    """Return what the history comes to with one page more, and how many entries that page has."""
    after_seq = 0 if known is None else known.operation.seq
    entries = journal.read(run, operation_id, after_seq=after_seq, at_most=PAGE)
    return _replayed(known, entries), len(entries)


def _replayed(known: Past | None, entries: Sequence[Entry]) -> Past:
    ahead_s = min((entry.at_s - entry.ts for entry in entries), default=math.inf)
    if known is None:
        return Past(replay(entries), ahead_s)
    operation = known.operation
    for after in states_after(known.operation, entries):
        operation = after
    return Past(operation, min(known.ahead_s, ahead_s))
