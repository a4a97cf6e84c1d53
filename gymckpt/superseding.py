"""
Which attempts of a discarded restore a later restore has taken over (DESIGN, 5).

A restore that was given up goes on to retire what is unconfirmed. Once a later restore of the run
has begun to install the same attempts on the same instances, retiring them is that one's business
alone: it does so if it fails, and they go on if it stands. The live controller posts this when the
later restore begins; a controller that recovers works it out from the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from gymckpt.core.entry import Entry
from gymckpt.core.operation import OperationState, opened
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import JournalUnavailable, text_of
from gymckpt.journal import Journal, OperationRow, Selection
from gymckpt.topology import to_facts

__all__ = ["superseded_by", "superseded_since"]

logger = logging.getLogger("gymckpt")


def superseded_by(later: OperationState, earlier: OperationState) -> dict[str, Any] | None:
    """
    Return the facts of the entry by which `later` takes attempts over from `earlier`.

    Args:
        later: A restore that has begun to install its attempts.
        earlier: An unfinished operation that was opened before it.

    Returns:
        None where there are none to take over.
    """
    attempts: dict[str, tuple[EnvironmentEpisode, ...]] = {}
    if later.chart != "restore" or "supersede" not in earlier.row.on:
        return None
    for instance in earlier.instances:
        installed = frozenset(later.to_retire(instance) if instance in later.instances else ())
        confirmed = earlier.call_state("retire", instance).state in ("answered", "gone", "lapsed")
        left = () if confirmed else earlier.to_retire(instance)
        both = tuple(one for one in left if one in installed)
        if both:
            attempts[instance] = both
    return {"by": later.operation_id, "attempts": to_facts(attempts)} if attempts else None


def superseded_since(
    journal: Journal, row: OperationRow, earlier: OperationState
) -> tuple[dict[str, Any], ...]:
    """
    Return what later restores have taken over from an operation that is to be gone on with.

    Args:
        journal: The journal.
        row: The operation.
        earlier: What its history comes to.

    Raises:
        JournalUnavailable: The journal cannot be read.
    """
    if "supersede" not in earlier.row.on:
        return ()
    found = (superseded_by(later, earlier) for later in _later_restores(journal, row))
    return tuple(facts for facts in found if facts is not None)


def _later_restores(journal: Journal, row: OperationRow) -> Iterator[OperationState]:
    """Yield the restores that were sent after an operation; what cannot be read is left out."""
    first = journal.read(row.run, row.operation_id, at_most=1)[0]
    for other in journal.select(Selection(run=row.run, chart="restore")):
        earlier = (other.epoch, other.opened_ts) <= _order(first)
        if earlier or other.operation_id == row.operation_id or other.state == "open":
            continue
        try:
            entries = journal.read(other.run, other.operation_id, at_most=2)
            if _was_sent(entries) and _order(entries[0]) > _order(first):
                yield opened(entries[0])
        except JournalUnavailable:
            raise
        except Exception as broken:  # whatever a damaged opening comes to
            logger.warning("restore %r is unreadable: %s", other.operation_id, text_of(broken))


def _was_sent(entries: tuple[Entry, ...]) -> bool:
    return len(entries) > 1 and entries[1].trigger == "restore"


def _order(opening: Entry) -> tuple[int, float]:
    """Return the order of openings in a run: its epochs first, wall clocks within one of them."""
    return opening.epoch, opening.ts
