"""The contract that every journal keeps, run over each of them: opening, appending, epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gymckpt.core.entry import Entry
from gymckpt.errors import (
    Fenced,
    JournalConflict,
    OperationIdUsed,
)
from gymckpt.journal import Journal, Opening, OperationRow
from tests.journal.samples import (
    HOLDER,
    OPERATION,
    RUN,
    begun,
    call_entry,
    entries,
    entry,
    nothing_stored,
    opening,
    row,
)

# --- opening ------------------------------------------------------------------------------------


def test_an_opened_operation_is_listed_with_what_its_entries_say(journal: Journal) -> None:
    """The row follows from the first entries: state, last seq, times, epoch 1, owner."""
    first = [entry(1), entry(2, dest="preparing"), call_entry(3)]
    journal.claim(RUN, holder=HOLDER)
    journal.open_operation(opening(), first)
    assert row(journal) == OperationRow(
        run=RUN,
        operation_id=OPERATION,
        chart="checkpoint",
        chart_version=1,
        state="preparing",
        settled=False,
        epoch=1,
        owner="host-a:1",
        last_seq=3,
        opened_ts=first[0].ts,
        updated_ts=first[2].ts,
    )
    assert journal.read(RUN, OPERATION) == tuple(first)


def test_an_id_is_used_once(journal: Journal) -> None:
    """Opening an id again is refused, be it the same call, other entries, or after settling."""
    begun(journal)
    for _ in range(2):
        for again in ([entry(1)], [entry(1, dest="elsewhere")]):
            with nothing_stored(journal), pytest.raises(OperationIdUsed, match="new id"):
                journal.open_operation(opening(), again)
        if not row(journal).settled:
            journal.append([entry(2)], expected_seq=1, epoch=1, settled=True)


def test_the_same_id_in_another_run_is_another_operation(journal: Journal) -> None:
    """Ids of different runs never collide, and what is appended to one stays out of the other."""
    begun(journal)
    begun(journal, run="run-2")
    journal.append([entry(2, run="run-2")], expected_seq=1, epoch=1)
    assert row(journal).last_seq == 1
    assert row(journal, run="run-2").last_seq == 2
    assert journal.read(RUN, OPERATION) == (entry(1),)


@pytest.mark.parametrize(
    "first",
    [
        [],
        [entry(2)],
        [entry(1, source="open")],
        [call_entry(1, source="")],
        [entry(1), entry(3)],
        [entry(1), entry(2, epoch=2)],
        [entry(1), entry(2, operation_id="op-2")],
        [entry(1, run="run-2")],
        [entry(1), entry(2, facts={"a": b""})],
    ],
)
def test_malformed_first_entries_are_refused(journal: Journal, first: Sequence[Entry]) -> None:
    """An opening that is no legal beginning of a history stores nothing."""
    with pytest.raises(ValueError, match="operation"):
        journal.open_operation(opening(), first)
    assert journal.operations() == ()


@pytest.mark.parametrize("holder", ["", "a\nb", "x" * 300, None])
def test_a_holder_is_a_short_printable_word(journal: Journal, holder: Any) -> None:
    """A holder that no log line can show is refused, and the run stays as it was."""
    begun(journal)
    before = journal.held(RUN)
    with pytest.raises(ValueError, match="holder"):
        journal.claim(RUN, holder=holder, force=True)
    assert journal.held(RUN) == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"run": "a b"},
        {"operation_id": ""},
        {"chart": ""},
        {"chart_version": 0},
        {"chart_version": True},
    ],
)
def test_an_opening_has_legal_fields(wrong: dict[str, Any]) -> None:
    """An opening with an illegal field cannot be made."""
    fields = {"run": RUN, "operation_id": OPERATION, "chart": "checkpoint", "chart_version": 1}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Opening(**(fields | wrong))


# --- appending ----------------------------------------------------------------------------------


def test_appended_entries_follow_in_order(journal: Journal) -> None:
    """Batches of any size are read back as one gapless sequence."""
    begun(journal)
    journal.append([entry(2)], expected_seq=1, epoch=1)
    journal.append(entries(3, 40), expected_seq=2, epoch=1)
    assert journal.read(RUN, OPERATION) == tuple(entries(1, 40))


def test_the_state_follows_the_operation_not_its_calls(journal: Journal) -> None:
    """An entry of a call moves the last seq and the time, and leaves the state."""
    begun(journal)
    journal.append([entry(2, dest="preparing"), call_entry(3)], expected_seq=1, epoch=1)
    journal.append([call_entry(4, dest="gone")], expected_seq=3, epoch=1)
    assert (row(journal).state, row(journal).last_seq) == ("preparing", 4)
    assert row(journal).updated_ts == entry(4).ts
    assert row(journal).opened_ts == entry(1).ts


def test_a_settled_operation_stays_settled(journal: Journal) -> None:
    """Late entries are appended to a settled operation, and never unsettle it."""
    begun(journal)
    journal.append([entry(2, dest="discarded")], expected_seq=1, epoch=1, settled=True)
    journal.append([call_entry(3, trigger="stale")], expected_seq=2, epoch=1)
    assert row(journal).settled
    assert row(journal).state == "discarded"


def test_the_same_entries_again_are_a_no_op(journal: Journal) -> None:
    """An append whose answer was lost can be repeated, also when the journal went on since."""
    begun(journal)
    journal.append(entries(2, 4), expected_seq=1, epoch=1)
    with nothing_stored(journal):
        journal.append(entries(2, 4), expected_seq=1, epoch=1)
    journal.append([entry(5)], expected_seq=4, epoch=1)
    with nothing_stored(journal):
        journal.append(entries(2, 4), expected_seq=1, epoch=1)
        journal.append(entries(3, 3), expected_seq=2, epoch=1)
        journal.append(entries(3, 5), expected_seq=2, epoch=1)


def test_entries_that_landed_in_part_go_on_from_there(journal: Journal) -> None:
    """A repeated append with more entries behind it stores exactly those."""
    begun(journal)
    journal.append(entries(2, 4), expected_seq=1, epoch=1)
    longer = [*entries(2, 5), entry(6, dest="discarded")]
    journal.append(longer, expected_seq=1, epoch=1, settled=True)
    assert journal.read(RUN, OPERATION) == (entry(1), *longer)
    assert (row(journal).state, row(journal).settled) == ("discarded", True)


@pytest.mark.parametrize(
    ("batch", "expected_seq"),
    [
        ([entry(3)], 2),
        (entries(6, 7), 5),
        ([entry(2, dest="elsewhere")], 1),
        ([entry(2, ts=0.5)], 1),
        ([entry(2, facts={})], 1),
        ([entry(2), call_entry(3)], 1),
        ([entry(2), entry(3, at_s=0.0), entry(4), entry(5), entry(6)], 1),
        ([call_entry(4), entry(5)], 3),
    ],
)
def test_other_entries_are_a_conflict(
    journal: Journal, batch: Sequence[Entry], expected_seq: int
) -> None:
    """Entries that do not follow what is stored, or differ from it, are refused as a conflict."""
    last_seq = 4 if expected_seq < 5 and batch[0] != entry(3) else 1
    begun(journal, last_seq)
    with nothing_stored(journal), pytest.raises(JournalConflict) as caught:
        journal.append(batch, expected_seq=expected_seq, epoch=1)
    found = caught.value
    assert (found.operation_id, found.expected_seq, found.last_seq) == (
        OPERATION,
        expected_seq,
        last_seq,
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"entries": []},
        {"entries": [entry(3)]},
        {"entries": [entry(2), entry(2)]},
        {"entries": [entry(2), entry(4)]},
        {"entries": [entry(2, epoch=2)]},
        {"entries": [entry(2), entry(3, operation_id="op-2")]},
        {"entries": [entry(2), entry(3, run="run-2")]},
        {"entries": [entry(2), entry(3, facts={"a": {1}})]},
        {"expected_seq": 0},
        {"expected_seq": True},
        {"expected_seq": None},
        {"epoch": 0},
        {"epoch": 1.0},
        {"settled": 1},
    ],
)
def test_a_malformed_batch_is_refused_whole(journal: Journal, wrong: dict[str, Any]) -> None:
    """A batch with one wrong entry or argument is a ValueError, and nothing of it is stored."""
    begun(journal)
    arguments = {"entries": [entry(2)], "expected_seq": 1, "epoch": 1} | wrong
    with nothing_stored(journal), pytest.raises(ValueError, match=r".") as caught:
        journal.append(arguments.pop("entries"), **arguments)
    assert type(caught.value) is ValueError


def test_a_malformed_batch_is_refused_before_the_store_is_touched(journal: Journal) -> None:
    """A closed journal still says first that the batch is malformed."""
    journal.close()
    with pytest.raises(ValueError, match="empty"):
        journal.append([], expected_seq=1, epoch=1)


def test_facts_are_kept_as_they_were_when_they_were_appended(journal: Journal) -> None:
    """Changing facts after an append, or what a read returned, changes nothing that is stored."""
    given_facts: dict[str, Any] = {"names": ["a"]}
    begun(journal)
    journal.append([entry(2, facts=given_facts)], expected_seq=1, epoch=1)
    given_facts["names"].append("b")
    journal.read(RUN, OPERATION)[1].facts["names"].append("c")
    assert journal.read(RUN, OPERATION)[1].facts == {"names": ["a"]}


# --- epochs -------------------------------------------------------------------------------------


def test_a_fenced_epoch_is_named(journal: Journal) -> None:
    """The refusal says which run, which epoch, and who holds it now; nothing is stored."""
    begun(journal)
    journal.claim(RUN, holder="host-b:2", force=True)
    with nothing_stored(journal), pytest.raises(Fenced) as caught:
        journal.append([entry(2)], expected_seq=1, epoch=1)
    found = caught.value
    named = (found.run, found.epoch, found.current_epoch, found.owner)
    assert named == (RUN, 1, 2, "host-b:2")
    journal.release(RUN, epoch=2)
    with nothing_stored(journal), pytest.raises(Fenced, match="nobody holds it"):
        journal.append([entry(2, epoch=2)], expected_seq=1, epoch=2)


def test_a_settled_operation_stays_so_under_another_epoch(journal: Journal) -> None:
    """A claim that comes after the end of an operation changes nothing of it."""
    begun(journal)
    journal.append([entry(2)], expected_seq=1, epoch=1, settled=True)
    with nothing_stored(journal):
        assert journal.claim(RUN, holder="host-b:2", force=True) == 2
    journal.append([call_entry(3, epoch=2)], expected_seq=2, epoch=2)
    assert row(journal).settled


@pytest.mark.parametrize("run", ["", "a b", "\ud800", None, 1])
def test_a_run_that_no_operation_can_have_is_nobodys(journal: Journal, run: Any) -> None:
    """A malformed run is refused where it is claimed, and unknown everywhere else."""
    with pytest.raises((ValueError, TypeError), match="run"):
        journal.claim(run, holder="host-a:1")
    assert journal.held(run) is None
    assert journal.silent_s(run) is None
    journal.release(run, epoch=1)
    with pytest.raises(Fenced):
        journal.heartbeat(run, epoch=1)
    assert journal.runs() == ()
