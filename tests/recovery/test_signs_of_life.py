"""Who is alive keeps its operations, whoever asks; who is gone loses them, whatever clocks show."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gymckpt.core.settings import OWNER_TIMEOUT_S
from gymckpt.errors import OperationHeld
from gymckpt.journal import Journal, MemoryJournal, MemoryStore, open_journal, sql
from gymckpt.journal.sqlite import SqliteStore
from gymckpt.moves import By, discard
from gymckpt.recovery import recover_all
from gymckpt.runtime.worker import new_owner, open_recorder
from gymckpt.startup import recovered_first
from tests.faults.virtual import LoopClock, running_loop, simulate
from tests.faults.world import World
from tests.journal.samples import OPERATION, RUN, begun

TIMEOUTS_S = st.floats(0.05, 3_600.0)
BY = By(operator="ann@host-7", reason="it hangs since three")


class Silent(MemoryJournal):
    """A journal in which a controller gives no sign of life after it has opened an operation."""

    def heartbeat(self, run: str, operation_id: str, *, epoch: int) -> None:
        """Swallow it."""


def new_world(journal: Journal, root: Path, owner_timeout_s: float) -> World:
    """Return a world of one instance whose controller lives on the running loop."""
    return World(
        1,
        clock=LoopClock(),
        journal=journal,
        root=root,
        control_timeout_s=600.0,
        owner_timeout_s=owner_timeout_s,
    )


async def asked(world: World, journal: MemoryJournal, owner_timeout_s: float) -> str:
    """Recover with a timeout of one's own, and return what came of the one operation."""
    recorder = await open_recorder(journal, owner=new_owner(), timeout_s=10.0)
    [found] = await recover_all(
        recorder, {}, run=world.run, owner_timeout_s=owner_timeout_s, clock=LoopClock()
    )
    return found.outcome


@given(own_s=TIMEOUTS_S, asker_s=TIMEOUTS_S, waits_s=st.lists(st.floats(0.0, 200.0), max_size=5))
@example(own_s=600.0, asker_s=30.0, waits_s=[45.0])
@example(own_s=30.0, asker_s=0.5, waits_s=[4.0])
def test_a_living_controller_keeps_its_operation(
    own_s: float, asker_s: float, waits_s: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No recovery and no command takes a live controller for gone, whatever timeouts both have."""
    root = tmp_path_factory.mktemp("alive")

    async def main() -> None:
        journal = MemoryJournal(MemoryStore(now_s=running_loop().time))
        world = new_world(journal, root, own_s)
        async with world.coordinator.prepared("left"):
            for wait_s in waits_s:
                await asyncio.sleep(wait_s)
                assert await asked(world, journal, asker_s) == "held"
                with pytest.raises(OperationHeld):
                    await discard(journal, world.run, "left", by=BY, clock=LoopClock())
        assert world.operation("left").epoch == 1

    simulate(main)


@given(own_s=TIMEOUTS_S, asker_s=TIMEOUTS_S)
def test_a_controller_that_is_gone_is_taken_over(
    own_s: float, asker_s: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A silent controller loses its operation after the asker's timeout, or its own up to 30 s."""
    root = tmp_path_factory.mktemp("gone")

    async def main() -> None:
        store = MemoryStore(now_s=running_loop().time)
        world = new_world(Silent(store), root, own_s)
        await world.coordinator.prepare("left")
        await asyncio.sleep(max(asker_s, min(own_s, OWNER_TIMEOUT_S)) * 1.001)
        assert await asked(world, MemoryJournal(store), asker_s) != "held"

    simulate(main)


# --- clocks that are set back -------------------------------------------------------------------


@attrs.define
class Host:
    """The clocks of a host, as a journal in a file sees them."""

    wall_ts: float = 1_700_000_000.0
    monotonic_s: float = 50.0

    def monotonic(self) -> float:
        """Return what never goes back."""
        return self.monotonic_s

    def passes(self, by_s: float) -> None:
        """Let time pass on both."""
        self.wall_ts += by_s
        self.monotonic_s += by_s


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """The clocks by which journals in files judge silence in this test."""
    clocks = Host()
    monkeypatch.setattr(sql, "time", clocks)
    monkeypatch.setattr(SqliteStore, "now_ts", lambda *_: clocks.wall_ts)
    return clocks


@pytest.mark.parametrize("back_s", [0.0, 20.0, 7_200.0])
def test_silence_outlasts_a_clock_that_is_set_back(
    host: Host, back_s: float, tmp_path: Path
) -> None:
    """What is silent for as long as somebody looks is gone, wherever the wall clock stands."""
    with open_journal(tmp_path / "journal.sqlite3") as dead:
        begun(dead)
    with open_journal(tmp_path / "journal.sqlite3") as journal:
        host.passes(10.0)
        assert journal.silent_s(RUN, OPERATION) == 10.0
        host.wall_ts -= back_s
        host.passes(19.0)
        with pytest.raises(OperationHeld) as caught:
            journal.claim(RUN, OPERATION, owner="host-b:2", stale_s=30.0)
        assert caught.value.age_s == 29.0
        host.passes(2.0)
        assert journal.claim(RUN, OPERATION, owner="host-b:2", stale_s=30.0) == 2
        assert journal.silent_s(RUN, OPERATION) == 0.0


def test_signs_of_life_go_on_after_a_clock_was_set_back(host: Host, tmp_path: Path) -> None:
    """A controller whose signs change lives, though all of them are younger than the first."""
    with open_journal(tmp_path / "journal.sqlite3") as journal:
        begun(journal)
        assert journal.silent_s(RUN, OPERATION) == 0.0
        host.wall_ts -= 7_200.0
        for _ in range(20):
            host.passes(5.0)
            journal.heartbeat(RUN, OPERATION, epoch=1)
            host.passes(5.0)
            with pytest.raises(OperationHeld):
                journal.claim(RUN, OPERATION, owner="host-b:2", stale_s=30.0)
            assert journal.silent_s(RUN, OPERATION) == 5.0


def test_start_after_a_clock_was_set_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A controller that starts is held for its timeout, not for as long as the clock was wrong."""

    async def main() -> None:
        loop, ahead_s = running_loop(), 7_200.0
        monkeypatch.setattr(sql, "time", SimpleNamespace(monotonic=loop.time))
        monkeypatch.setattr(SqliteStore, "now_ts", lambda *_: loop.time() + ahead_s)
        dead = open_journal(tmp_path / "journal.sqlite3")
        first = new_world(dead, tmp_path, 30.0)
        await first.coordinator.prepare("left")
        dead.close()
        ahead_s = 0.0
        with open_journal(tmp_path / "journal.sqlite3") as journal:
            began_s = loop.time()
            [found] = await recovered_first(first.new_coordinator(journal=journal))
            assert (found.operation_id, found.outcome) == ("left", "settled")
            assert 30.0 <= loop.time() - began_s <= 31.0

    simulate(main)
