"""S7: who is alive keeps its run, whoever asks; who is gone loses it, whatever clocks show."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gymckpt.core.settings import COMMAND_TIMEOUT_S, OWNER_TIMEOUT_S
from gymckpt.errors import Fenced, RunHeld
from gymckpt.journal import Journal, MemoryJournal, MemoryStore, open_journal, sql
from gymckpt.journal.sqlite import SqliteStore
from gymckpt.moves import By, discard
from gymckpt.recovery import recover_all
from gymckpt.runtime.holding import as_process, holder_token, is_gone
from gymckpt.runtime.worker import open_recorder
from tests.faults.virtual import LoopClock, running_loop, simulate
from tests.faults.world import World, until
from tests.journal.samples import RUN, begun

TIMEOUTS_S = st.floats(0.05, 3_600.0)
BY = By(operator="ann@host-7", reason="it hangs since three")


class Silent(MemoryJournal):
    """A journal in which a holder is not heard of after it has claimed a run."""

    def heartbeat(self, run: str, *, epoch: int) -> None:
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


async def asked(world: World, journal: MemoryJournal) -> str:
    """Recover as another process, and return what came of the one operation."""
    with as_process("asker"):
        recorder = await open_recorder(journal, owner=holder_token(), timeout_s=10.0)
    [found] = await recover_all(recorder, {}, run=world.run, clock=LoopClock())
    recorder.let_go()
    return found.outcome


@given(own_s=TIMEOUTS_S, waits_s=st.lists(st.floats(0.0, 200.0), max_size=5))
@example(own_s=600.0, waits_s=[45.0])
@example(own_s=0.5, waits_s=[4.0])
def test_a_living_holder_keeps_its_run(
    own_s: float, waits_s: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No recovery and no command takes a live process for gone, whatever its timeout is."""
    root = tmp_path_factory.mktemp("alive")

    async def main() -> None:
        journal = MemoryJournal(MemoryStore(now_s=running_loop().time))
        world = new_world(journal, root, own_s)
        async with world.coordinator.prepared("left"):
            for wait_s in waits_s:
                await asyncio.sleep(wait_s)
                assert await asked(world, journal) == "held"
                with pytest.raises(RunHeld):
                    await discard(journal, world.run, "left", by=BY, clock=LoopClock())
        assert world.operation("left").epoch == 1

    simulate(main)


@given(own_s=TIMEOUTS_S)
def test_a_holder_that_is_gone_is_taken_over(
    own_s: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A silent holder loses its run after its own timeout, and not before."""
    root = tmp_path_factory.mktemp("gone")

    async def main() -> None:
        store = MemoryStore(now_s=running_loop().time)
        world = new_world(Silent(store), root, own_s)
        await world.coordinator.prepare("left")
        began_s = running_loop().time()
        assert await asked(world, MemoryJournal(store)) != "held"
        waited_s = running_loop().time() - began_s
        assert own_s * 0.999 <= waited_s <= own_s * 1.02 + 0.1

    simulate(main)


def test_an_idle_trainer_keeps_its_run(tmp_path: Path) -> None:
    """Between operations a holder is heard of for as long as its coordinator is there."""

    async def main() -> None:
        journal = MemoryJournal(MemoryStore(now_s=running_loop().time))
        world = new_world(journal, tmp_path, OWNER_TIMEOUT_S)
        async with world.coordinator.prepared("done"):
            pass
        for _ in range(6):
            await asyncio.sleep(600.0)
            with pytest.raises(RunHeld) as caught:
                await world.new_coordinator().prepare("other")
            assert caught.value.age_s <= OWNER_TIMEOUT_S
        async with world.coordinator.prepared("goes-on"):
            pass
        assert world.operation("goes-on").epoch == 1
        assert world.journal.operation(world.run, "other") is None

    simulate(main)


def test_a_trainer_without_a_loop_keeps_its_run(tmp_path: Path) -> None:
    """A process that blocks its loop, or has none, between two snapshots holds its run."""
    path, timeout_s = tmp_path / "journal.sqlite3", 0.6
    world = World(1, journal=open_journal(path), owner_timeout_s=timeout_s)

    async def snapshot(name: str) -> None:
        async with world.coordinator.prepared(name):
            pass
        threading.Event().wait(2 * timeout_s)  # the trainer computes

    def held() -> None:
        other = World(1, journal=open_journal(path), owner_timeout_s=timeout_s)
        other.run = world.run

        async def main() -> None:
            with pytest.raises(RunHeld):
                await other.coordinator.prepare("other")

        asyncio.run(main())
        other.journal.close()

    asking = threading.Thread(target=held)
    asyncio.run(snapshot("one"))
    asking.start()
    asking.join()  # no loop runs now
    asyncio.run(snapshot("two"))
    assert world.operation("two").epoch == 1
    world.coordinator.close()
    world.journal.close()


def test_a_loop_that_hangs_in_an_operation_loses_its_run(tmp_path: Path) -> None:
    """The heartbeat says when the event loop last turned: one that hangs is taken over."""
    path, timeout_s = tmp_path / "journal.sqlite3", 0.6
    world = World(1, journal=open_journal(path), owner_timeout_s=timeout_s)
    taken = threading.Event()

    def take_over() -> None:
        other = World(1, journal=open_journal(path), owner_timeout_s=timeout_s)
        other.run = world.run

        async def main() -> None:
            async with other.coordinator.prepared("other"):
                taken.set()

        asyncio.run(main())
        other.journal.close()

    async def main() -> None:
        asking = threading.Thread(target=take_over)

        async def body() -> None:
            async with world.coordinator.prepared("hangs"):
                assert not taken.wait(timeout_s / 2)  # this is the event loop's thread
                asking.start()
                assert taken.wait(10.0)
                await asyncio.sleep(10.0)

        with pytest.raises(Fenced):
            await body()
        await asyncio.to_thread(asking.join)

    asyncio.run(main())
    world.journal.close()


# --- several of one process, and giving back ------------------------------------------------------


async def test_two_coordinators_of_one_process_live_side_by_side(tmp_path: Path) -> None:
    """They share the epoch, neither fences the other, and the last one gives the run back."""
    path = tmp_path / "journal.sqlite3"
    with open_journal(path) as watching:
        world = World(1)
        first = world.new_coordinator(process="one", journal=path)
        second = world.new_coordinator(process="one", journal=path, owner_timeout_s=7.0)
        async with first.prepared("one"), second.prepared("two"):
            held = watching.held(world.run)
            assert held is not None
            assert held.epoch == 1
            assert await second.recover(force=True) == ()  # what the first drives is not left
        first.close()
        async with second.prepared("three"):
            pass
        second.close()
        await until(lambda: (watching.held(world.run) or held).holder == "")
        third = world.new_coordinator(journal=path)
        async with third.prepared("four"):  # at once, though nobody is provably gone
            pass
        assert {row.epoch for row in watching.operations(world.run)} == {1, 2}


async def test_a_closed_coordinator_claims_again(tmp_path: Path) -> None:
    """`close` refuses while an operation is open, and a verb that comes after it claims anew."""
    world = World(1)
    async with world.coordinator.prepared("open"):
        with pytest.raises(RuntimeError, match="open"):
            world.coordinator.close()
    world.coordinator.close()
    held = world.journal.held(world.run)
    assert held is not None
    assert held.holder == ""
    async with world.coordinator.prepared("next"):
        pass
    assert world.operation("next").epoch == 2


def test_what_is_said_of_processes_is_true_of_this_one() -> None:
    """This process is not gone; one of another start or id is, of another host is not known."""
    token = holder_token()
    host, pid, mark = token.split(":")
    place, began = mark.split("-")
    assert holder_token(command=True).startswith(token)
    assert not is_gone(token)
    assert not is_gone(f"{token}:30s")
    assert is_gone(f"{host}:{pid}:{place}-{int(began) + 1}:30s")
    assert is_gone(f"{host}:{2**22 + 1}:{place}-{began}:command")
    for unknown in (f"{host}:{pid}:0123456789ab-1", f"{host}:{pid}:0123456789ab", "host", "a:b:c"):
        assert not is_gone(unknown)


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
    """What is silent for as long as somebody looks is as old as that, wherever the clock stands."""
    with open_journal(tmp_path / "journal.sqlite3") as dead:
        begun(dead)
    with open_journal(tmp_path / "journal.sqlite3") as journal:
        host.passes(10.0)
        assert journal.silent_s(RUN) == 10.0
        host.wall_ts -= back_s
        host.passes(19.0)
        assert journal.silent_s(RUN) == 29.0
        assert journal.claim(RUN, holder="host-b:2", force=True) == 2
        assert journal.silent_s(RUN) == 0.0


def test_a_dead_holder_is_not_kept_by_a_clock_that_was_set_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run is held for its holder's timeout, not for as long as the clock was wrong."""

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
            [found] = await first.new_coordinator(journal=journal).recover()
            assert (found.operation_id, found.outcome) == ("left", "settled")
            assert 30.0 <= loop.time() - began_s <= 31.0

    simulate(main)


def test_a_command_is_waited_for_as_briefly_as_it_says(tmp_path: Path) -> None:
    """A command that ended without a word keeps its run for 5 s."""

    async def main() -> None:
        store = MemoryStore(now_s=running_loop().time)
        world = new_world(Silent(store), tmp_path, 30.0)
        store_journal = MemoryJournal(store)
        store_journal.claim(world.run, holder="host:1:abc:command")
        began_s = running_loop().time()
        async with world.coordinator.prepared("next"):
            pass
        assert running_loop().time() - began_s == pytest.approx(COMMAND_TIMEOUT_S, rel=0.05)

    simulate(main)
