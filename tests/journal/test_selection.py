"""Choosing operations, reading parts of them, and removing them, over every journal."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gymckpt.errors import JournalError, JournalUnavailable, OperationIdUsed
from gymckpt.journal import Journal, OperationRow, Selection
from tests.journal.conftest import Home
from tests.journal.samples import HOLDER, OPERATION, RUN, begun, call_entry, entries, entry, opening

RUNS = ("run-1", "run-2")
CHARTS = ("checkpoint", "restore")
STATES = ("open", "discarded", "resumed")


def filled(journal: Journal) -> list[OperationRow]:
    """Store operations of two runs and charts, in all states, opened at times that all differ."""
    for number in range(12):
        run, chart = RUNS[number % 2], CHARTS[number // 2 % 2]
        state = STATES[number % 3]
        first = entry(1, run=run, operation_id=f"op-{number % 5}-{chart}", ts=1_000.0 + number)
        last = attrs.evolve(first, seq=2, source="open", dest=state, ts=5_000.0 - number)
        journal.claim(run, holder=HOLDER)
        journal.open_operation(opening(first.operation_id, run, chart=chart), [first])
        journal.append([last], expected_seq=1, epoch=1, settled=state != "open")
    return list(journal.operations())


selections = st.builds(
    Selection,
    run=st.sampled_from([None, *RUNS, "run-3"]),
    operation_id=st.sampled_from([None, "op-1-restore", "op-2-checkpoint", "op-9"]),
    chart=st.sampled_from([None, *CHARTS]),
    states=st.sampled_from([(), ("open",), ("discarded", "resumed")]),
    unfinished=st.booleans(),
    opened_before_ts=st.sampled_from([None, 1_000.0, 1_006.0, 2_000.0]),
    updated_since_ts=st.sampled_from([None, 4_990.0, 4_995.0, 6_000.0]),
    latest=st.sampled_from([None, 1, 3, 100]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(selection=selections)
def test_select_gives_what_the_selection_says(journal: Journal, selection: Selection) -> None:
    """A store leaves out exactly what `Selection.has` does, and of the rest keeps the latest."""
    rows = list(journal.operations()) or filled(journal)
    meant = [row for row in rows if selection.has(row)]
    wanted = meant if selection.latest is None else meant[-selection.latest :]
    assert list(journal.select(selection)) == wanted


def test_an_outline_is_the_history_without_the_facts_of_calls(journal: Journal) -> None:
    """Every field but the facts of calls' entries is as `read` gives it."""
    begun(journal, 2)
    journal.append([call_entry(3), entry(4)], expected_seq=2, epoch=1)
    whole = journal.read(RUN, OPERATION)
    bare = [one if one.instance is None else attrs.evolve(one, facts={}) for one in whole]
    assert list(journal.outline(RUN, OPERATION)) == bare


def test_reading_of_some_instances_leaves_the_others_out(journal: Journal) -> None:
    """Entries about the named instances come in order and complete, and no other."""
    begun(journal, 1)
    names = ["a/replica-0", "b/replica-1", "a/replica-0", "c/replica-2"]
    more = [call_entry(seq, instance=name) for seq, name in enumerate(names, 2)]
    journal.append(more, expected_seq=1, epoch=1)
    wanted = {"a/replica-0", "c/replica-2", "d/replica-3"}
    assert list(journal.read_of(RUN, OPERATION, wanted)) == [
        one for one in more if one.instance in wanted
    ]


@pytest.mark.parametrize("run", [RUN, "nowhere", "no id!"])
def test_parts_of_what_is_not_there_are_refused(journal: Journal, run: str) -> None:
    """An unknown operation has neither outline nor parts, however its ids are formed."""
    with pytest.raises(JournalError, match="holds no operation"):
        journal.outline(run, "op-9")
    with pytest.raises(JournalError, match="holds no operation"):
        journal.read_of(run, "op-9", ["a/replica-0"])


def test_a_removed_operation_is_gone_and_its_id_stays_used(home: Home) -> None:
    """After a removal nothing of the operation is found, and nobody can open it again."""
    journal = home.open()
    first = begun(journal, 2)
    begun(journal, 1, operation_id="op-2")
    journal.append([entry(3, dest="resumed")], expected_seq=2, epoch=1, settled=True)
    journal.remove(RUN, OPERATION)
    journal.remove(RUN, OPERATION)
    for opened in (journal, home.open()):
        assert [row.operation_id for row in opened.operations()] == ["op-2"]
        assert opened.operation(RUN, OPERATION) is None
        with pytest.raises(OperationIdUsed, match=f"{OPERATION}.*removed"):
            opened.open_operation(opening(), first)
        with pytest.raises(JournalError, match="holds no operation"):
            opened.read(RUN, OPERATION)


def test_what_is_unfinished_is_never_removed(journal: Journal) -> None:
    """A removal of an operation that has not settled is an error and changes nothing."""
    begun(journal, 3)
    before = journal.operations(), journal.read(RUN, OPERATION)
    with pytest.raises(JournalError, match="unfinished"):
        journal.remove(RUN, OPERATION)
    assert (journal.operations(), journal.read(RUN, OPERATION)) == before


def test_removing_what_never_was_is_no_error_and_uses_no_id(journal: Journal) -> None:
    """An id that no operation had may still be used after its removal."""
    journal.remove(RUN, OPERATION)
    journal.remove("no id!", OPERATION)
    assert list(begun(journal, 1)) == entries(1, 1)


def test_a_closed_journal_neither_selects_nor_removes(journal: Journal) -> None:
    """After `close` the new methods are refused like the old ones."""
    journal.close()
    for call in (
        lambda: journal.select(Selection()),
        lambda: journal.remove(RUN, OPERATION),
        lambda: journal.outline(RUN, OPERATION),
    ):
        with pytest.raises(JournalUnavailable):
            call()
