"""
What counts when the journal fails in the middle of an operation (DESIGN, 7).

The operation is settled and its instances are reopened without waiting for the journal; what
happened is appended afterwards. So whatever is decided here must still fit behind what the journal
holds by then, which is not always known: an append whose answer was lost may land later.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from gymckpt.core.effects import Effect, SendCall, WriteManifest
from gymckpt.core.events import Moment, Triggered
from gymckpt.core.operation import OperationState
from gymckpt.core.step import Step, step
from gymckpt.errors import JournalError, JournalOutcomeUnknown, text_of

__all__ = ["what_counts"]


def what_counts(
    durable: OperationState, steps: Sequence[Step], failure: JournalError, now: Moment
) -> list[Step]:
    """
    Return the steps that count although their entries could not be recorded.

    Args:
        durable: The operation as the journal holds it.
        steps: What happened since then, in order.
        failure: Why it could not be recorded.
        now: This moment.

    An operation that is being cleaned up goes on. Any other is settled: from its last durable state
    where nothing was stored, and on top of these steps where that is unknown. Of their effects, no
    call leaves but one that reopens or retires, and no manifest is written (DESIGN, S6).
    """
    kept = list(steps)
    if not durable.cleaning and not isinstance(failure, JournalOutcomeUnknown):
        kept = []
    base = kept[-1].operation if kept else durable
    if not base.cleaning:
        settling = Triggered(moment=now, trigger="settle", facts={"reason": text_of(failure)})
        kept.append(step(base, settling))
        base = kept[-1].operation
    return [
        attrs.evolve(taken, effects=tuple(e for e in taken.effects if _is_due(e, base)))
        for taken in kept
    ]


def _is_due(effect: Effect, after: OperationState) -> bool:
    """Whether an effect is still wanted once everything of its batch has happened."""
    if isinstance(effect, SendCall):
        asked = after.call_state(effect.call, effect.instance)
        return asked.state == "asked" and asked.ask == effect.ask
    return not isinstance(effect, WriteManifest)
