"""A history of any length is read and replayed without holding up anybody else."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.core.entry import Entry
from gymckpt.core.replay import replay
from gymckpt.errors import JournalOutcomeUnknown, JournalUnavailable
from gymckpt.journal import MemoryJournal, open_journal
from gymckpt.recovery import recover
from gymckpt.runtime import past as past_module
from gymckpt.runtime.past import past_of
from gymckpt.runtime.worker import Recorder
from tests.fakes import FakeActor
from tests.faults.virtual import simulate
from tests.journal.samples import OPERATION, RUN, begun, entries, entry
from tests.recovery.test_recovery import WIRE_ID, holding, lived


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Entry, ...]:
    """A whole checkpoint of three instances, but for its end."""
    whole = lived("checkpoint", tmp_path_factory.mktemp("lived"))
    return tuple(
        attrs.evolve(one, ts=one.ts + (7.0 if one.seq % 5 == 0 else 0.0)) for one in whole[:-1]
    )


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> int:
    """Pages are so short that the history has many."""
    monkeypatch.setattr(past_module, "PAGE", 4)
    return 4


def recorded(journal: Any, timeout_s: float = 10.0) -> Recorder:
    """Return a journal as the event loop sees it."""
    return Recorder(journal, owner="host-b:2", timeout_s=timeout_s)


def handles_of(history: tuple[Entry, ...]) -> dict[str, FakeActor]:
    """Return an instance for every one that the opening names."""
    return {instance: FakeActor() for instance in history[0].facts["instances"]}


@given(page=st.integers(1, 70), known=st.integers(0, 60), ends=st.integers(1, 60))
def test_pages_of_any_length_come_to_the_same(
    history: tuple[Entry, ...], page: int, known: int, ends: int
) -> None:
    """However a history is cut into pages, its end and its clock are those of one reading."""
    cut = history[: max(ends, known)]

    async def main() -> None:
        before = None
        if known:
            before = await past_of(recorded(holding(cut[:known])), cut[0].run, WIRE_ID)
        journal = holding(cut)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(past_module, "PAGE", page)
            past = await past_of(recorded(journal), cut[0].run, WIRE_ID, known=before)
        assert past.operation == replay(cut)
        now_ts = cut[-1].ts + 3.0
        least_s = min(one.at_s + now_ts - one.ts for one in cut)
        assert past.clock_s(now_ts) == pytest.approx(max(cut[-1].at_s, least_s), abs=1e-5)

    simulate(main)


async def test_history_that_takes_longer_than_a_call_may(
    history: tuple[Entry, ...], short_pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no call can read the whole history in its time, the operation is settled anyway."""
    reading = MemoryJournal.read

    def read(self: MemoryJournal, *ids: str, **span: Any) -> tuple[Entry, ...]:
        found = reading(self, *ids, **span)
        if len(found) > short_pages:
            raise JournalOutcomeUnknown("the journal did not answer within 10 s")
        return found

    journal, handles = holding(history), handles_of(history)
    monkeypatch.setattr(MemoryJournal, "read", read)
    [found] = await recover(journal, handles, run=history[0].run, force=True)
    assert (found.outcome, found.state) == ("settled", "resumed")


async def test_one_operation_that_cannot_be_read_in_time(
    history: tuple[Entry, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is claimed from nobody, and is an error only after all others have been settled."""
    names = ("op-0", WIRE_ID, "op-2")
    journal = holding(
        *(tuple(attrs.evolve(one, operation_id=name) for one in history) for name in names)
    )
    reading = MemoryJournal.read

    def read(self: MemoryJournal, run: str, operation_id: str, **span: Any) -> Any:
        if operation_id == WIRE_ID:
            raise JournalUnavailable("its disk failed to read")
        return reading(self, run, operation_id, **span)

    monkeypatch.setattr(MemoryJournal, "read", read)
    run = history[0].run
    with pytest.raises(JournalUnavailable, match="failed to read"):
        await recover(journal, handles_of(history), run=run, force=True)
    rows = {row.operation_id: (row.settled, row.epoch) for row in journal.operations(run)}
    assert rows == {"op-0": (True, 2), WIRE_ID: (False, 1), "op-2": (True, 2)}


@pytest.mark.parametrize("unseen", [1, 4, 7, 20])
async def test_entries_that_come_before_the_fence(
    history: tuple[Entry, ...], short_pages: int, unseen: int
) -> None:
    """What a controller records between the reading and the claim is not lost to the recovery."""

    class Late(MemoryJournal):
        """Holds the last entries only from the claim on."""

        fenced = False

        def read(self, run: str, operation_id: str, **span: Any) -> tuple[Entry, ...]:
            """Return what there is."""
            found = super().read(run, operation_id, **span)
            last_seq = len(history) - (0 if self.fenced else unseen)
            return tuple(one for one in found if one.seq <= last_seq)

        def claim(self, run: str, **given: Any) -> int:
            """Claim it."""
            self.fenced = True
            return super().claim(run, **given)

    journal = Late(holding(history).store)
    [found] = await recover(journal, handles_of(history), run=history[0].run, force=True)
    assert (found.outcome, found.state) == ("settled", "resumed")
    whole = MemoryJournal(journal.store).read(history[0].run, WIRE_ID)
    assert whole[: len(history)] == history
    assert replay(whole).settled


async def test_replay_is_off_the_event_loop(
    history: tuple[Entry, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No page is read or replayed on the thread of the event loop, which goes on meanwhile."""
    threads: list[int] = []
    next_page = past_module._next_page

    def noted(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return next_page(*given)

    monkeypatch.setattr(past_module, "_next_page", noted)
    with open_journal(tmp_path / "journal.sqlite3") as journal:
        [row] = holding(history).operations()
        journal.insert_operation(row, history)
        [found] = await recover(journal, handles_of(history), run=row.run, force=True)
    assert found.outcome == "settled"
    assert threads
    assert threading.get_ident() not in threads


async def test_what_must_be_recorded_does_not_wait_for_a_reader(tmp_path: Path) -> None:
    """While a history is read for long, appends and heartbeats of others land."""
    begins, ends = threading.Event(), threading.Event()
    with open_journal(tmp_path / "journal.sqlite3") as journal:
        begun(journal)
        recorder = recorded(journal)

        def look() -> tuple[Entry, ...]:
            begins.set()
            assert ends.wait(30.0)
            return journal.read(RUN, OPERATION)

        reading = asyncio.ensure_future(recorder.read(look))
        try:
            await asyncio.to_thread(begins.wait, 30.0)
            await recorder.append([entry(2)], expected_seq=1, epoch=1, settled=False)
            await recorder.run(lambda: journal.heartbeat(RUN, epoch=1))
            assert not reading.done()
        finally:
            ends.set()
        assert await reading == tuple(entries(1, 2))


async def test_a_reader_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    """A reading that takes longer than a call may is an error, and the next call is not."""
    ends = threading.Event()
    with open_journal(tmp_path / "journal.sqlite3") as journal:
        begun(journal)
        recorder = recorded(journal, timeout_s=0.05)
        try:
            with pytest.raises(JournalOutcomeUnknown):
                await recorder.read(lambda: ends.wait(30.0))
            recorder.timeout_s = 10.0
            await recorder.append([entry(2)], expected_seq=1, epoch=1, settled=False)
        finally:
            ends.set()
