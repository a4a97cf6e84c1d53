"""The contract that every journal keeps: reading, whole operations, closing, threads, life."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gymckpt.core.entry import Entry
from gymckpt.errors import (
    Fenced,
    JournalConflict,
    JournalError,
    JournalUnavailable,
    OperationIdUsed,
)
from gymckpt.journal import Journal, OperationRow
from gymckpt.journal.rules import operation_from
from tests.journal.conftest import Home
from tests.journal.samples import (
    OPERATION,
    RUN,
    begun,
    entries,
    entry,
    held_by,
    nothing_stored,
    opening,
)
from tests.journal.strategies import histories

# --- reading ------------------------------------------------------------------------------------


def test_reading_goes_on_after_any_entry(journal: Journal) -> None:
    """Every entry after `after_seq` is returned and none before it, also beyond the end."""
    begun(journal, 5)
    for after_seq in range(8):
        assert journal.read(RUN, OPERATION, after_seq=after_seq) == tuple(entries(after_seq + 1, 5))


def test_reading_takes_at_most_so_many(journal: Journal) -> None:
    """Of the entries after `after_seq`, the first `at_most` are returned, or all that there are."""
    begun(journal, 5)
    for after_seq in range(8):
        for at_most in (*range(1, 8), 2**63 - 1):
            found = journal.read(RUN, OPERATION, after_seq=after_seq, at_most=at_most)
            assert found == tuple(entries(after_seq + 1, min(5, after_seq + at_most)))


@pytest.mark.parametrize("at_most", [0, -1, True, 1.0, "1", 2**63])
def test_reading_takes_at_most_a_count(journal: Journal, at_most: Any) -> None:
    """An `at_most` that is no count is a ValueError."""
    begun(journal)
    with pytest.raises(ValueError, match="at_most"):
        journal.read(RUN, OPERATION, at_most=at_most)


@pytest.mark.parametrize("after_seq", [-1, True, 1.0, None, 2**63])
def test_reading_starts_after_a_seq(journal: Journal, after_seq: Any) -> None:
    """An `after_seq` that no entry can have is a ValueError."""
    begun(journal)
    with pytest.raises(ValueError, match="after_seq"):
        journal.read(RUN, OPERATION, after_seq=after_seq)


@pytest.mark.parametrize(
    "act",
    [
        lambda journal, run, name: journal.read(run, name),
        lambda journal, run, name: journal.outline(run, name),
    ],
)
@pytest.mark.parametrize(
    ("run", "name"), [(RUN, "op-2"), ("run-2", OPERATION), ("", ""), ("\ud800", "x"), (None, 1)]
)
def test_an_unknown_operation_is_named(
    journal: Journal, act: Callable[..., object], run: Any, name: Any
) -> None:
    """Reading what is not there says so, and the row of it is None."""
    begun(journal)
    with nothing_stored(journal), pytest.raises(JournalError, match="holds no operation"):
        act(journal, run, name)
    assert journal.operation(run, name) is None


def test_appending_to_an_unknown_operation_is_refused(journal: Journal) -> None:
    """An append never opens an operation."""
    begun(journal)
    with pytest.raises(JournalError, match="holds no operation 'op-2'"):
        journal.append([entry(2, operation_id="op-2")], expected_seq=1, epoch=1)
    assert [found.operation_id for found in journal.operations()] == [OPERATION]


def test_operations_are_listed_in_the_order_of_opening(journal: Journal) -> None:
    """The listing is ordered by opening time, whole or for one run or unfinished only."""
    for name, run, ts in [("c", RUN, 30.0), ("a", "run-2", 10.0), ("b", RUN, 20.0)]:
        begun(journal, operation_id=name, run=run, ts=ts)
    journal.append([entry(2, operation_id="b", ts=99.0)], expected_seq=1, epoch=1, settled=True)

    def listed(*arguments: Any, **options: Any) -> list[str]:
        return [found.operation_id for found in journal.operations(*arguments, **options)]

    assert listed() == ["a", "b", "c"]
    assert listed(RUN) == ["b", "c"]
    assert listed(unfinished=True) == ["a", "c"]
    assert listed(RUN, unfinished=True) == ["c"]
    assert listed("run-3") == []


# --- whole operations ---------------------------------------------------------------------------


@settings(
    max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(history=histories(), settled=st.booleans(), extra=st.integers(0, 2), data=st.data())
def test_any_history_comes_back_as_it_was(
    home: Home, history: list[Entry], settled: bool, extra: int, data: st.DataObject
) -> None:
    """Whatever history is inserted, or appended in any batches, is read back equal."""
    journal = home.open()
    number = len(journal.operations())
    name = f"op-{number}"
    settled = settled and len(history) > 1
    history = [attrs.evolve(one, operation_id=name) for one in history]
    operation = operation_from(
        opening(name), history, epoch=history[-1].epoch + extra, owner="x", settled=settled
    )
    held = journal.held(RUN)
    if data.draw(st.booleans()) or (held is not None and held.epoch > history[0].epoch):
        journal.insert_operation(operation, history)
    else:
        _live_through(journal, history, operation, data)
        owner = held_by(journal).holder
        operation = attrs.evolve(operation, epoch=history[-1].epoch, owner=owner)
    again = home.open()
    assert again.read(RUN, name) == tuple(history)
    assert again.operation(RUN, name) == operation


def _live_through(
    journal: Journal, history: list[Entry], operation: OperationRow, data: st.DataObject
) -> None:
    """Record a history as its controllers would have: open, append, claim, append."""
    name = operation.operation_id
    epoch = claimed_as_far_as(journal, history[0].epoch)
    journal.open_operation(opening(name), history[:1])
    at = 1
    while at < len(history):
        epoch = claimed_as_far_as(journal, history[at].epoch)
        room = sum(1 for one in history[at:] if one.epoch == epoch)
        last = at + data.draw(st.integers(1, room))
        settled = operation.settled and last == len(history)
        journal.append(history[at:last], expected_seq=at, epoch=epoch, settled=settled)
        at = last


def claimed_as_far_as(journal: Journal, epoch: int) -> int:
    """Claim the run until it has an epoch."""
    while (held := journal.held(RUN)) is None or held.epoch < epoch:
        journal.claim(RUN, holder=f"x-{held.epoch if held else 0}", force=True)
    return epoch


def test_a_row_that_its_entries_do_not_lead_to_is_refused(journal: Journal) -> None:
    """An operation is inserted only with the row that follows from its entries."""
    history = entries(1, 3)
    right = operation_from(opening(), history, epoch=1, owner="x", settled=True)
    wrongs = [
        {"state": "elsewhere"}, {"last_seq": 2}, {"opened_ts": 0.0}, {"updated_ts": 0.0},
        {"run": "run-2"},
    ]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(ValueError, match="op-1"):
            journal.insert_operation(attrs.evolve(right, **wrong), history)
    with pytest.raises(ValueError, match="epoch"):
        journal.insert_operation(right, [*history[:2], entry(3, epoch=2)])
    assert journal.operations() == ()
    journal.insert_operation(right, history)
    with pytest.raises(OperationIdUsed):
        journal.insert_operation(right, history)


# --- closing ------------------------------------------------------------------------------------


def test_everything_is_there_when_the_journal_is_opened_again(home: Home) -> None:
    """Closing and opening changes neither rows nor entries."""
    with home.open() as journal:
        begun(journal, 3)
        journal.claim(RUN, holder="host-b:2", force=True)
        before = journal.operations()
    again = home.open()
    assert again.operations() == before
    assert again.read(RUN, OPERATION) == tuple(entries(1, 3))


def test_a_closed_journal_refuses_every_call(journal: Journal) -> None:
    """After `close` each call is JournalUnavailable and says why; closing again is fine."""
    begun(journal)
    journal.close()
    journal.close()
    calls: list[Callable[[], object]] = [
        lambda: journal.open_operation(opening("op-2"), [entry(1, operation_id="op-2")]),
        lambda: journal.append([entry(2)], expected_seq=1, epoch=1),
        lambda: journal.claim(RUN, holder="x", force=True),
        lambda: journal.read(RUN, OPERATION),
        lambda: journal.operation(RUN, OPERATION),
        journal.operations,
    ]
    for call in calls:
        with pytest.raises(JournalUnavailable, match="closed"):
            call()


# --- threads ------------------------------------------------------------------------------------


def test_threads_append_to_operations_of_their_own(journal: Journal) -> None:
    """Eight threads on eight operations lose nothing, and none is refused."""

    def work(name: str) -> None:
        begun(journal, operation_id=name)
        for seq in range(2, 22, 2):
            pair = entries(seq, seq + 1, operation_id=name)
            journal.append(pair, expected_seq=seq - 1, epoch=1)

    names = [f"op-{n}" for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, names))
    for name in names:
        assert journal.read(RUN, name) == tuple(entries(1, 21, operation_id=name))


def test_threads_that_race_for_one_entry_have_one_winner(journal: Journal) -> None:
    """Of writers that append different entries after the same one, exactly one lands."""
    begun(journal)
    barrier = threading.Barrier(6)

    def work(writer: int) -> list[int]:
        won = []
        for seq in range(2, 12):
            barrier.wait(30)
            try:
                journal.append(
                    [entry(seq, facts={"writer": writer})], expected_seq=seq - 1, epoch=1
                )
            except JournalConflict:
                continue
            won.append(seq)
        return won

    with ThreadPoolExecutor(6) as pool:
        wins = list(pool.map(work, range(6)))
    assert sorted(seq for won in wins for seq in won) == list(range(2, 12))
    stored = journal.read(RUN, OPERATION)
    for writer, won in enumerate(wins):
        assert [one.seq for one in stored if one.facts.get("writer") == writer] == won


def test_claims_from_many_threads_are_all_different(journal: Journal) -> None:
    """Concurrent claims never share an epoch."""
    begun(journal)
    with ThreadPoolExecutor(6) as pool:
        epochs = list(
            pool.map(lambda n: journal.claim(RUN, holder=f"t-{n}", force=True), range(24))
        )
    assert sorted(epochs) == list(range(2, 26))


# --- heartbeats ------------------------------------------------------------------------------


def test_a_heartbeat_is_of_the_epoch_that_holds_the_run(journal: Journal) -> None:
    """A heartbeat makes the silence shorter; one of an epoch that was fenced says so."""
    begun(journal)
    before = journal.silent_s(RUN)
    journal.heartbeat(RUN, epoch=1)
    after = journal.silent_s(RUN)
    assert before is not None
    assert after is not None
    assert after >= 0.0
    journal.claim(RUN, holder="host-b:2", force=True)
    with pytest.raises(Fenced) as caught:
        journal.heartbeat(RUN, epoch=1)
    assert (caught.value.current_epoch, caught.value.owner) == (2, "host-b:2")


def test_nobody_lives_for_a_run_that_is_not_there(journal: Journal) -> None:
    """A run that nobody has claimed has no silence, and no heartbeat."""
    assert journal.silent_s("nowhere") is None
    with pytest.raises(Fenced, match="nobody holds it"):
        journal.heartbeat("nowhere", epoch=1)
