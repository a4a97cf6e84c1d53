"""
What a journal keeps when several openers use it, in one process or in many: half of the contract.

A controller, the one that takes over from it and an operator's command are never the same object.
So whatever must hold between them is tried through several openings of one journal, by threads;
what only one object knows, or a lock that only its own threads share, is found here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from gymckpt.errors import Fenced, JournalConflict, RunHeld
from gymckpt.journal import Journal, RunRow
from gymckpt.testing.journal_samples import OPERATION, RUN, begun, entries, entry, held_by

__all__ = ["Open", "OpenersContract"]

RACERS = 6
"""How many threads race, two on each opening."""

RACE_S = 30.0
"""How long, in real time, a racer waits for the others."""

ROUNDS = 8
"""How often they race."""

SILENT_S = 0.2
"""How long a controller is silent before it gives a heartbeat, in real time."""

BEAT_LATE_S = 0.1
"""How much older than it is a heartbeat may seem: no clock is exact."""

Open = Callable[[], Journal]
Result = TypeVar("Result")


class OpenersContract:
    """What every journal keeps between those who have it open, one test each."""

    def opener(self, tmp_path: Path) -> Open:
        """Return what opens one journal again and again; a subclass says how."""
        pytest.fail(f"{type(self).__name__} does not say how to open a journal in {tmp_path}")

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Iterator[Open]:
        """Give what opens the journal, and close whatever was opened."""
        opened: list[Journal] = []
        open_one = self.opener(tmp_path)

        def reopen() -> Journal:
            opened.append(open_one())
            return opened[-1]

        yield reopen
        for journal in opened:
            journal.close()

    @pytest.fixture
    def journal(self, reopen: Open) -> Journal:
        """Give an empty journal."""
        return reopen()

    # --- one after the other

    def test_everything_is_there_when_it_is_opened_again(self, reopen: Open) -> None:
        """Closing and opening changes neither rows nor entries."""
        with reopen() as journal:
            begun(journal, 3)
            journal.claim(RUN, holder="host-b:2", force=True)
            before = journal.operations()
        again = reopen()
        assert again.operations() == before
        assert again.read(RUN, OPERATION) == tuple(entries(1, 3))

    def test_a_second_opener_sees_and_fences(self, reopen: Open) -> None:
        """What one opening of the journal does is seen, and obeyed, through another."""
        one, other = reopen(), reopen()
        begun(one)
        assert other.claim(RUN, holder="host-b:2", force=True) == 2
        with pytest.raises(Fenced):
            one.append([entry(2)], expected_seq=1, epoch=1)

    # --- heartbeats

    def test_silence_is_measured(self, journal: Journal) -> None:
        """The silence of a holder is a number of seconds from its claim on."""
        began_s = time.monotonic()
        begun(journal)
        silent_s = _silent_s(journal)
        assert 0.0 <= silent_s <= time.monotonic() - began_s + BEAT_LATE_S
        assert journal.silent_s("nowhere") is None

    def test_a_heartbeat_ends_the_silence_for_everybody(self, reopen: Open) -> None:
        """A heartbeat that one controller gives is seen through another opening."""
        one, other = reopen(), reopen()
        begun(one)
        _stay_silent(other)
        began_s = time.monotonic()
        one.heartbeat(RUN, epoch=1)
        _require_life(other, began_s, "a heartbeat")
        _require_life(one, began_s, "a heartbeat")

    def test_a_claim_ends_the_silence_for_everybody(self, reopen: Open) -> None:
        """Who takes a run over is heard of by that."""
        one, other = reopen(), reopen()
        begun(one)
        _stay_silent(one)
        began_s = time.monotonic()
        other.claim(RUN, holder="host-b:2", force=True)
        _require_life(one, began_s, "a claim")

    # --- at the same time

    def test_of_racing_writers_one_lands(self, reopen: Open) -> None:
        """Of writers that append different entries after the same one, exactly one lands."""
        begun(reopen())

        def work(writer: int, journal: Journal, seq: int) -> int | None:
            mine = [entry(seq, facts={"writer": writer})]
            try:
                journal.append(mine, expected_seq=seq - 1, epoch=1)
            except JournalConflict:
                return None
            return writer

        rounds = _raced(reopen, lambda writer, journal, turn: work(writer, journal, turn + 2))
        landed = [[writer for writer in one if writer is not None] for one in rounds]
        assert all(len(one) == 1 for one in landed), f"appended after the same entry: {landed}"
        stored = reopen().read(RUN, OPERATION)[1:]
        assert [[one.facts.get("writer")] for one in stored] == landed

    def test_claims_are_all_different(self, reopen: Open) -> None:
        """Claims at the same time never share an epoch."""
        begun(reopen())
        rounds = _raced(
            reopen,
            lambda racer, journal, turn: journal.claim(RUN, holder=f"t-{racer}-{turn}", force=True),
        )
        claims = sorted(epoch for one in rounds for epoch in one)
        assert claims == list(range(2, ROUNDS * RACERS + 2))

    def test_of_racing_claims_one_finds_the_holder_unmoved(self, reopen: Open) -> None:
        """Of those who have seen one silent holder, exactly one takes its run."""
        looking = reopen()
        begun(looking)

        def work(racer: int, journal: Journal, turn: int) -> int | None:
            try:
                return journal.claim(RUN, holder=f"t-{racer}-{turn}", unmoved=seen[turn])
            except RunHeld:
                return None

        def see() -> None:
            seen.append(held_by(looking))

        seen: list[RunRow] = []
        rounds = _raced(reopen, work, before=see)
        claims = [[epoch for epoch in one if epoch is not None] for one in rounds]
        assert claims == [[turn + 2] for turn in range(ROUNDS)]


def _raced(
    reopen: Open,
    work: Callable[[int, Journal, int], Result],
    *,
    before: Callable[[], None] = lambda: None,
) -> list[list[Result]]:
    """
    Let threads do something at the same time, round after round.

    Args:
        reopen: Opens the journal; two threads share an opening.
        work: Does it, given the number of the thread, its journal and the round.
        before: Called before each round, once.

    Returns:
        For each round what it came to on each thread.
    """
    openings = [reopen() for _ in range(RACERS // 2)] * 2
    barrier = threading.Barrier(RACERS, action=before)

    def race(racer: int) -> list[Result]:
        found: list[Result] = []
        try:
            for turn in range(ROUNDS):
                barrier.wait(RACE_S)
                found.append(work(racer, openings[racer], turn))
        except BaseException:
            barrier.abort()
            raise
        return found

    with ThreadPoolExecutor(RACERS) as pool:
        racing = [pool.submit(race, racer) for racer in range(RACERS)]
    errors = [error for one in racing if (error := one.exception()) is not None]
    for error in sorted(errors, key=lambda one: isinstance(one, threading.BrokenBarrierError)):
        raise error
    return [list(one) for one in zip(*(one.result() for one in racing), strict=True)]


def _silent_s(journal: Journal) -> float:
    silent_s = journal.silent_s(RUN)
    assert silent_s is not None, "the journal knows no heartbeat of a run that was claimed"
    return silent_s


def _stay_silent(journal: Journal) -> None:
    """Wait until the journal says that the controller has been silent for a while."""
    began_s = time.monotonic()
    while True:
        waited_s = time.monotonic() - began_s
        if _silent_s(journal) >= SILENT_S:
            return
        assert waited_s < SILENT_S + BEAT_LATE_S, (
            f"{waited_s:.2f} s after the last heartbeat the controller is not said to be silent"
        )


def _require_life(journal: Journal, began_s: float, what: str) -> None:
    """Fail where the silence is older than the heartbeat that was given since."""
    silent_s = _silent_s(journal)
    since_s = time.monotonic() - began_s
    assert silent_s <= since_s + BEAT_LATE_S, (
        f"{what} was given {since_s:.2f} s ago, yet the controller is said to have been silent "
        f"for {silent_s:.2f} s"
    )
