"""
The journal contract as a pytest class, for whoever keeps the journal in a store of their own.

    class TestMyJournal(JournalContract):
        def opener(self, tmp_path: Path) -> Callable[[], Journal]:
            return lambda: MyJournal(tmp_path / "journal")

Every call of the opener opens the same entries; each test begins with an empty store. What a
journal promises is said in `gymckpt.journal.base`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from gymckpt.core.entry import Entry
from gymckpt.errors import (
    Fenced,
    JournalConflict,
    JournalError,
    JournalUnavailable,
    OperationIdUsed,
    RunHeld,
)
from gymckpt.journal import Journal, OperationRow, Selection
from gymckpt.journal.rules import operation_from
from gymckpt.journal.steps import steps_of
from gymckpt.testing.journal_openers import OpenersContract
from gymckpt.testing.journal_samples import (
    HOLDER,
    OPERATION,
    RUN,
    begun,
    call_entry,
    entries,
    entry,
    held_by,
    opening,
    row_of,
)

__all__ = ["JournalContract"]


def set_fields(selection: Selection) -> list[str]:
    """Return the names of the fields of a selection that leave something out."""
    return [name for name, value in attrs.asdict(selection).items() if value]


# --- the contract -------------------------------------------------------------------------------


class JournalContract(OpenersContract):
    """What every journal keeps, one test each."""

    # --- what it says of itself

    def test_it_says_where_it_is(self, journal: Journal) -> None:
        """`url` is a text that leads to it, which an error names and an operator can use."""
        url = getattr(journal, "url", None)
        assert isinstance(url, str), f"{type(journal).__name__} says nothing of `url`: {url!r}"
        assert url.strip(), f"the `url` of {type(journal).__name__} is empty"

    def test_it_says_whether_calls_may_wait(self, journal: Journal) -> None:
        """`blocks` is True or False: without it no controller can use the journal."""
        blocks = getattr(journal, "blocks", None)
        assert isinstance(blocks, bool), (
            f"{type(journal).__name__} says nothing of `blocks`, which is True unless no call ever "
            f"waits for a disk, a network or a lock: {blocks!r}"
        )

    # --- opening and appending

    def test_an_opened_operation_is_listed(self, journal: Journal) -> None:
        """The row follows from the first entries: state, last seq, times, epoch 1, owner."""
        first = [entry(1), entry(2), call_entry(3)]
        journal.claim(RUN, holder=HOLDER)
        journal.open_operation(opening(), first)
        assert row_of(journal) == OperationRow(
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

    def test_an_id_is_used_once(self, journal: Journal) -> None:
        """Opening an id again is refused, also after it has settled."""
        begun(journal)
        for settles in (True, False):
            with pytest.raises(OperationIdUsed):
                begun(journal)
            if settles:
                journal.append([entry(2)], expected_seq=1, epoch=1, settled=True)
        assert journal.read(RUN, OPERATION) == tuple(entries(1, 2))

    def test_runs_are_apart(self, journal: Journal) -> None:
        """The same id in another run is another operation."""
        begun(journal)
        begun(journal, run="run-2")
        journal.append([entry(2, run="run-2")], expected_seq=1, epoch=1)
        assert row_of(journal).last_seq == 1
        assert row_of(journal, run="run-2").last_seq == 2

    def test_entries_come_back_in_order(self, journal: Journal) -> None:
        """Batches of any size are read back as one sequence, whole or after any entry."""
        begun(journal)
        journal.append([entry(2)], expected_seq=1, epoch=1)
        journal.append(entries(3, 40), expected_seq=2, epoch=1)
        for after_seq in (0, 1, 17, 40, 41):
            found = journal.read(RUN, OPERATION, after_seq=after_seq)
            assert found == tuple(entries(after_seq + 1, 40))

    def test_entries_come_back_in_pages(self, journal: Journal) -> None:
        """Of a long history no more is read than was asked for, from any entry on."""
        begun(journal, 7)
        for after_seq, at_most in [(0, 1), (0, 3), (3, 3), (6, 3), (7, 3), (2, 100)]:
            found = journal.read(RUN, OPERATION, after_seq=after_seq, at_most=at_most)
            assert found == tuple(entries(after_seq + 1, min(7, after_seq + at_most)))

    def test_facts_come_back_as_they_were(self, journal: Journal) -> None:
        """Whatever JSON an entry carries is read back equal, and no later change reaches it."""
        facts: dict[str, Any] = {
            "a": [1, 2.5, None, True, "ü\n\u2028", "Ü"],
            "B": {"c": [{}], "C": 0.1},
            "d": -0.0,
            "e": 1_700_000_000.123457,
        }
        begun(journal)
        journal.append([entry(2, facts=facts)], expected_seq=1, epoch=1)
        facts["a"].append("later")
        stored = journal.read(RUN, OPERATION)[1].facts
        assert stored == {**facts, "a": facts["a"][:-1]}

    def test_state_follows_the_operation(self, journal: Journal) -> None:
        """Entries of calls move the last seq and the time, and leave the state."""
        begun(journal)
        journal.append([entry(2), call_entry(3, dest="gone")], expected_seq=1, epoch=1)
        found = row_of(journal)
        assert (found.state, found.last_seq) == ("preparing", 3)
        assert (found.opened_ts, found.updated_ts) == (entry(1).ts, entry(3).ts)

    def test_settled_is_for_ever(self, journal: Journal) -> None:
        """Late entries are appended to a settled operation and never unsettle it."""
        begun(journal)
        journal.append([entry(2, dest="discarded")], expected_seq=1, epoch=1, settled=True)
        journal.append([call_entry(3, trigger="stale")], expected_seq=2, epoch=1)
        assert (row_of(journal).settled, row_of(journal).state) == (True, "discarded")

    def test_an_append_can_be_repeated(self, journal: Journal) -> None:
        """The same entries again are a no-op, also when the journal went on since."""
        begun(journal)
        journal.append(entries(2, 4), expected_seq=1, epoch=1)
        journal.append(entries(2, 4), expected_seq=1, epoch=1)
        journal.append([entry(5)], expected_seq=4, epoch=1)
        journal.append(entries(3, 4), expected_seq=2, epoch=1)
        assert journal.read(RUN, OPERATION) == tuple(entries(1, 5))

    def test_an_append_that_landed_in_part_goes_on(self, journal: Journal) -> None:
        """A repeated append with more entries behind it stores exactly those."""
        begun(journal)
        journal.append(entries(2, 4), expected_seq=1, epoch=1)
        journal.append(entries(2, 6), expected_seq=1, epoch=1, settled=True)
        assert journal.read(RUN, OPERATION) == tuple(entries(1, 6))
        assert row_of(journal).settled

    @pytest.mark.parametrize(
        ("batch", "expected_seq"),
        [
            ([entry(6)], 5),
            ([entry(2, dest="elsewhere")], 1),
            ([entry(2), entry(3, facts={})], 1),
            ([entry(4, at_s=0.0), entry(5)], 3),
        ],
    )
    def test_other_entries_are_a_conflict(
        self, journal: Journal, batch: Sequence[Entry], expected_seq: int
    ) -> None:
        """Entries that do not follow what is stored, or differ from it, change nothing."""
        begun(journal, 4)
        with pytest.raises(JournalConflict):
            journal.append(batch, expected_seq=expected_seq, epoch=1)
        assert journal.read(RUN, OPERATION) == tuple(entries(1, 4))

    @pytest.mark.parametrize(
        "batch", [[], [entry(3)], [entry(2), entry(4)], [entry(2, epoch=2)]], ids=len
    )
    def test_a_malformed_batch_is_refused_whole(
        self, journal: Journal, batch: Sequence[Entry]
    ) -> None:
        """A batch with a gap, of two epochs or of nothing is a ValueError, and stores nothing."""
        begun(journal)
        with pytest.raises(ValueError, match=r"."):
            journal.append(batch, expected_seq=1, epoch=1)
        assert journal.read(RUN, OPERATION) == (entry(1),)

    # --- epochs and heartbeats

    def test_a_claim_fences_the_epoch_before(self, journal: Journal) -> None:
        """After a claim only the new epoch appends; the refusal says who holds the run."""
        begun(journal)
        assert journal.claim(RUN, holder="host-b:2", force=True) == 2
        with pytest.raises(Fenced) as caught:
            journal.append([entry(2)], expected_seq=1, epoch=1)
        assert (caught.value.current_epoch, caught.value.owner) == (2, "host-b:2")
        journal.append([entry(2, epoch=2)], expected_seq=1, epoch=2)
        assert journal.read(RUN, OPERATION) == (entry(1), entry(2, epoch=2))
        assert (row_of(journal).epoch, row_of(journal).owner) == (2, "host-b:2")

    def test_nothing_is_opened_without_the_run(self, journal: Journal) -> None:
        """An opening is fenced like an append: by a claim, by a release, and before any claim."""
        with pytest.raises(Fenced):
            journal.open_operation(opening(), [entry()])
        epoch = journal.claim(RUN, holder="host-b:2")
        with pytest.raises(Fenced):
            journal.open_operation(opening(), [entry(epoch=epoch + 1)])
        journal.release(RUN, epoch=epoch)
        with pytest.raises(Fenced):
            journal.open_operation(opening(), [entry(epoch=epoch)])
        assert journal.operations() == ()

    def test_runs_are_claimed_apart(self, journal: Journal) -> None:
        """A claim of one run fences no other."""
        begun(journal)
        begun(journal, run="run-2")
        journal.claim("run-2", holder="host-b:2", force=True)
        journal.append([entry(2)], expected_seq=1, epoch=1)
        assert [(row.run, row.epoch) for row in journal.runs()] == [(RUN, 1), ("run-2", 2)]

    def test_a_batch_that_had_landed_is_still_fenced(self, journal: Journal) -> None:
        """Who was taken over is told so, whether or not its last append had landed."""
        begun(journal, 2)
        journal.claim(RUN, holder="host-b:2", force=True)
        with pytest.raises(Fenced):
            journal.append([entry(2)], expected_seq=1, epoch=1)

    def test_an_epoch_that_was_never_granted_is_fenced(self, journal: Journal) -> None:
        """A writer with a made-up epoch is refused like one that was taken over."""
        begun(journal)
        with pytest.raises(Fenced):
            journal.append([entry(2, epoch=9)], expected_seq=1, epoch=9)

    def test_claims_count_up(self, journal: Journal) -> None:
        """Every claim by another holder is a new epoch, and leaves the operations as they are."""
        begun(journal)
        before = row_of(journal)
        claims = [journal.claim(RUN, holder=f"host-{n}", force=True) for n in range(3)]
        assert claims == [2, 3, 4]
        assert row_of(journal) == before

    def test_the_holder_is_given_its_own_epoch(self, journal: Journal) -> None:
        """Who holds a run is given the present epoch again, whatever timeout it says then."""
        begun(journal)
        assert [journal.claim(RUN, holder=HOLDER + end) for end in ("", ":7s", ":30s")] == [1, 1, 1]
        assert held_by(journal).holder == HOLDER
        journal.append([entry(2)], expected_seq=1, epoch=1)

    def test_the_living_keep_their_run(self, journal: Journal) -> None:
        """A claim is refused, and changes nothing, when a heartbeat came since the run was read."""
        begun(journal)
        for seen in (None, held_by(journal)):
            journal.heartbeat(RUN, epoch=1)
            before = held_by(journal)
            with pytest.raises(RunHeld) as caught:
                journal.claim(RUN, holder="host-b:2", unmoved=seen)
            assert (caught.value.run, caught.value.holder) == (RUN, HOLDER)
            assert caught.value.since_ts == before.since_ts
            assert held_by(journal) == before
        assert journal.claim(RUN, holder="host-b:2", unmoved=held_by(journal)) == 2
        with pytest.raises(Fenced):
            journal.heartbeat(RUN, epoch=1)

    def test_every_heartbeat_moves_the_row(self, journal: Journal) -> None:
        """What tells the living from the dead changes with each heartbeat and each claim."""
        begun(journal)
        marks = [held_by(journal).mark]
        for _ in range(3):
            journal.heartbeat(RUN, epoch=1)
            marks.append(held_by(journal).mark)
        journal.claim(RUN, holder="host-b:2", force=True)
        marks.append(held_by(journal).mark)
        assert len(set(marks)) == len(marks)

    def test_a_run_that_was_given_back_is_claimed_at_once(self, journal: Journal) -> None:
        """After `release` nobody holds the run: its epoch is fenced, the next claim succeeds."""
        begun(journal)
        journal.release(RUN, epoch=1)
        journal.release(RUN, epoch=1)
        assert held_by(journal).holder == ""
        assert journal.silent_s(RUN) is None
        with pytest.raises(Fenced):
            journal.append([entry(2)], expected_seq=1, epoch=1)
        with pytest.raises(Fenced):
            journal.heartbeat(RUN, epoch=1)
        assert journal.claim(RUN, holder="host-b:2") == 2
        journal.release(RUN, epoch=1)
        assert held_by(journal).holder == "host-b:2"

    def test_a_claim_goes_on_after_what_is_recorded(self, journal: Journal) -> None:
        """Of a run that nobody has claimed, the first epoch is above that of every entry."""
        first = [entry(epoch=5)]
        row = operation_from(opening(), first, epoch=5, owner="x", settled=False)
        journal.insert_operation(row, first)
        assert journal.claim(RUN, holder=HOLDER) == 6

    # --- what is not there, listing, closing

    def test_what_is_not_there_is_named(self, journal: Journal) -> None:
        """Reading or appending to an unknown operation says so; its row is None."""
        begun(journal)
        calls: list[Callable[[], object]] = [
            lambda: journal.read(RUN, "op-2"),
            lambda: journal.append([entry(2, operation_id="op-2")], expected_seq=1, epoch=1),
        ]
        for call in calls:
            with pytest.raises(JournalError, match="op-2"):
                call()
        assert journal.operation(RUN, "op-2") is None
        assert [found.operation_id for found in journal.operations()] == [OPERATION]

    def test_operations_are_listed_by_opening(self, journal: Journal) -> None:
        """The listing is ordered by opening time, whole or for one run or unfinished only."""
        for name, run, ts in [("c", RUN, 30.0), ("a", "run-2", 10.0), ("b", RUN, 20.0)]:
            begun(journal, operation_id=name, run=run, ts=ts)
        journal.append([entry(2, operation_id="b", ts=99.0)], expected_seq=1, epoch=1, settled=True)

        def listed(run: str | None = None, *, unfinished: bool = False) -> list[str]:
            return [one.operation_id for one in journal.operations(run, unfinished=unfinished)]

        assert listed() == ["a", "b", "c"]
        assert listed(RUN) == ["b", "c"]
        assert listed(unfinished=True) == ["a", "c"]
        assert listed(RUN, unfinished=True) == ["c"]

    @pytest.mark.parametrize(
        "selection",
        [
            Selection(run="run-2"),
            Selection(operation_id="op-3"),
            Selection(chart="restore"),
            Selection(states=("open", "discarded")),
            Selection(unfinished=True),
            Selection(opened_before_ts=3.0),
            Selection(updated_since_ts=97.0),
            Selection(latest=2),
            Selection(unfinished=True, latest=1),
        ],
        ids=lambda selection: "-".join(set_fields(selection)),
    )
    def test_a_selection_is_what_is_listed(self, journal: Journal, selection: Selection) -> None:
        """Each field of a selection leaves out what it says, and `latest` the oldest ones."""
        ends = ("resumed", "discarded", "open")
        for run in (RUN, "run-2"):
            journal.claim(run, holder=HOLDER)
        for number in range(6):
            name, run = f"op-{number}", (RUN, "run-2")[number % 2]
            first = entry(operation_id=name, run=run, ts=float(number))
            of = attrs.evolve(opening(name, run), chart=("checkpoint", "restore")[number % 2])
            journal.open_operation(of, [first])
            end = ends[number % 3]
            last = entry(2, operation_id=name, run=run, ts=99.0 - number, dest=end)
            journal.append([last], expected_seq=1, epoch=1, settled=end != "open")
        rows = journal.operations()
        meant = [row for row in rows if selection.has(row)]
        assert list(journal.select(selection)) == meant[-(selection.latest or len(rows)) :]

    def test_the_steps_are_what_operations_did_themselves(self, journal: Journal) -> None:
        """`step_rows` has each entry but openings and those of calls, once, of one run or all."""
        for name, run in [("b", RUN), ("a", "run-2"), ("c", RUN), ("gone", RUN)]:
            begun(journal, 2, operation_id=name, run=run)
            of = {"operation_id": name, "run": run}
            more = [call_entry(3, **of), call_entry(4, **of), entry(5, **of)]
            journal.append(more, expected_seq=2, epoch=1, settled=name == "gone")
        journal.remove(RUN, "gone")

        def steps(name: str, run: str) -> list[Entry]:
            return [entry(seq, operation_id=name, run=run) for seq in (2, 5)]

        assert list(steps_of(journal, RUN)) == steps("b", RUN) + steps("c", RUN)
        assert list(steps_of(journal, "run-2")) == steps("a", "run-2")
        assert list(steps_of(journal)) == [
            *steps("b", RUN), *steps("c", RUN), *steps("a", "run-2"),
        ]  # fmt: skip
        assert steps_of(journal, "run-9") == ()

    def test_only_what_has_settled_is_removed(self, journal: Journal) -> None:
        """An unfinished operation is not removed; a settled one is, and its id stays used."""
        begun(journal)
        with pytest.raises(JournalError):
            journal.remove(RUN, OPERATION)
        journal.append([entry(2)], expected_seq=1, epoch=1, settled=True)
        journal.remove(RUN, OPERATION)
        journal.remove(RUN, OPERATION)
        assert journal.operations() == ()
        with pytest.raises(OperationIdUsed):
            begun(journal)

    def test_a_closed_journal_refuses(self, journal: Journal) -> None:
        """After `close` each call is JournalUnavailable; closing again is fine."""
        begun(journal)
        journal.close()
        journal.close()
        calls: list[Callable[[], object]] = [
            lambda: begun(journal, operation_id="op-2"),
            lambda: journal.append([entry(2)], expected_seq=1, epoch=1),
            lambda: journal.claim(RUN, holder="host-a:1", force=True),
            lambda: journal.read(RUN, OPERATION),
            journal.operations,
        ]
        for call in calls:
            with pytest.raises(JournalUnavailable):
                call()
