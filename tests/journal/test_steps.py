"""Reading what operations themselves did, over every journal."""

from __future__ import annotations

import attrs
import pytest

from gymckpt.core.entry import Entry
from gymckpt.errors import JournalUnavailable
from gymckpt.journal import Journal
from gymckpt.journal.steps import steps_of
from tests.journal.samples import HOLDER, begun, call_entry, entry, opening


def mixed(operation_id: str, run: str = "run-1") -> list[Entry]:
    """Return a history in which the operation's own entries stand between those of its calls."""
    about = {"operation_id": operation_id, "run": run}
    return [
        entry(1, **about),
        call_entry(2, **about),
        entry(3, **about),
        call_entry(4, **about),
        call_entry(5, **about),
        entry(6, **about),
    ]


def test_steps_are_the_entries_of_the_operations_themselves(journal: Journal) -> None:
    """Openings and calls are left out, and the rest comes whole, by run, operation and seq."""
    histories = [mixed("op-b"), mixed("op-a"), mixed("op-c", "run-2")]
    for history in histories:
        first = history[0]
        journal.claim(first.run, holder=HOLDER)
        journal.open_operation(opening(first.operation_id, first.run), history)
    expected = [
        one
        for history in sorted(histories, key=lambda found: (found[0].run, found[0].operation_id))
        for one in history
        if one.instance is None and one.seq > 1
    ]
    assert list(steps_of(journal)) == expected
    assert list(steps_of(journal, "run-2")) == [one for one in expected if one.run == "run-2"]
    assert steps_of(journal, "run-9") == ()


def test_steps_see_what_was_appended_since(journal: Journal) -> None:
    """What is appended later is among the steps of the next reading."""
    begun(journal)
    assert steps_of(journal) == ()
    later = attrs.evolve(entry(2), dest="preparing")
    journal.append([later], expected_seq=1, epoch=1)
    assert steps_of(journal) == (later,)


def test_closed_journal_gives_no_steps(journal: Journal) -> None:
    """A journal that was closed refuses to give steps."""
    begun(journal)
    journal.close()
    with pytest.raises(JournalUnavailable):
        steps_of(journal)
