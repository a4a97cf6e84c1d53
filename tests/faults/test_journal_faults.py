"""A journal that fails at any write: nothing begins without it, and instances reopen anyway."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.coordinator import GymCheckpointOperationError
from gymckpt.errors import Fenced, JournalError, JournalOutcomeUnknown, JournalUnavailable
from tests.fakes import HANG
from tests.faults.conftest import NewWorld
from tests.faults.journals import Trouble, TroubledJournal
from tests.faults.virtual import LoopClock, running_loop, simulate
from tests.faults.world import SHORT, World, new_id

KINDS = ("checkpoint", "restore", "retire", "forget", "resume")
SETTINGS = {"control_timeout_s": 30.0, "prepare_timeout_s": 300.0}


def writes_of(kind: str, root: Path) -> int:
    """Return how many times an operation of a kind writes to its journal."""

    async def main() -> int:
        journal = TroubledJournal()
        world = World(2, journal=journal, clock=LoopClock(), root=root, **SETTINGS)
        await world.operate(kind, new_id())
        return journal.writes

    return simulate(main)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trouble", ["fail", "lose", "refuse"])
@pytest.mark.parametrize("lasts", [1, 2, 1_000])
def test_any_write_may_fail(kind: str, trouble: Trouble, lasts: int, tmp_path: Path) -> None:
    """Whichever write fails, instances reopen, the error says so, and the history ends later."""
    total = writes_of(kind, tmp_path)
    assert total >= 3

    async def main(first: int) -> None:
        journal = TroubledJournal()
        world = World(2, journal=journal, clock=LoopClock(), root=tmp_path, **SETTINGS)
        world.settings |= {"sweep_interval_s": 5.0}
        journal.trouble = lambda n: trouble if first <= n < first + lasts else "none"
        name = new_id()
        try:
            await world.operate(kind, name)
        except (JournalError, ValueError) as error:
            assert first > 1 or not any(actor.calls for actor in world.actors)
            if trouble != "refuse" or first > 1:
                assert isinstance(error, JournalError)
            assert "says the test" in str(error)
        else:
            assert first > 1
        assert journal.troubles
        if first == 1:
            assert world.story() == []
        for actor in world.actors if kind in ("checkpoint", "restore") and first > 2 else ():
            assert actor.calls[-1].op == "resume"
        journal.trouble = lambda _number: "none"
        await asyncio.sleep(6)
        await world.examine()
        unfinished = journal.operations(world.run, unfinished=True)
        assert unfinished == () or first == 1  # one whose opening was lost is left to recovery
        await world.operate(kind, new_id())
        await world.examine()

    for first in range(1, total + 1):
        simulate(lambda first=first: main(first))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trouble", ["fail", "lose", "refuse"])
def test_a_claim_that_fails_sends_nothing(kind: str, trouble: Trouble, tmp_path: Path) -> None:
    """S7: a verb whose run cannot be claimed sends nothing and fails; the next one may not."""

    async def main() -> None:
        journal = TroubledJournal()
        world = World(2, journal=journal, clock=LoopClock(), root=tmp_path, **SETTINGS)
        journal.claim_trouble = trouble
        with pytest.raises((JournalError, ValueError), match="says the test"):
            await world.operate(kind, new_id())
        assert world.story() == []
        assert journal.operations() == ()
        await world.operate(kind, new_id())
        await world.examine()

    simulate(main)


@pytest.mark.parametrize("trouble", ["fail", "lose"])
def test_no_manifest_is_written_whose_entry_may_be_lost(trouble: Trouble, tmp_path: Path) -> None:
    """S6: once a write has failed, the manifest is not even begun, stored as the write may be."""
    total = writes_of("checkpoint", tmp_path)
    unbegun = 0

    async def main(first: int) -> None:
        nonlocal unbegun
        journal = TroubledJournal()
        world = World(2, journal=journal, clock=LoopClock(), root=tmp_path, **SETTINGS)
        journal.trouble = lambda n: trouble if n >= first else "none"
        begun: list[bool] = []

        def job_s(name: str) -> float:
            if "sealed" in name:
                begun.append(bool(journal.troubles))
            return 0.0

        running_loop().job_s = job_s
        with contextlib.suppress(JournalError):
            await world.operate("checkpoint", new_id())
        assert True not in begun
        unbegun += not begun
        journal.trouble = lambda _number: "none"
        await asyncio.sleep(60)
        await world.examine()

    for first in range(1, total + 1):
        simulate(lambda first=first: main(first))
    assert 0 < unbegun < total


@given(
    troubles=st.lists(st.sampled_from(["none", "fail", "lose", "refuse"]), max_size=25),
    kinds=st.lists(st.sampled_from(["checkpoint", "restore", "retire"]), min_size=1, max_size=3),
    hangs=st.sampled_from(["", "prepare", "commit", "restore", "resume", "retire", "renew"]),
)
def test_any_series_of_failing_writes(
    troubles: list[Trouble], kinds: list[str], hangs: str, tmp_path_factory: Any
) -> None:
    """Whatever series of writes fails besides a hanging call, S1 to S5 hold and all of it ends."""
    root = tmp_path_factory.mktemp("series")

    async def main() -> None:
        journal = TroubledJournal()
        world = World(2, journal=journal, clock=LoopClock(), root=root, **SETTINGS)
        journal.trouble = lambda n: troubles[n - 1] if n <= len(troubles) else "none"
        if hangs:
            world.actors[0].scripts[hangs] = [HANG]
        for kind in kinds:
            with contextlib.suppress(JournalError, ValueError, GymCheckpointOperationError):
                await world.operate(kind, new_id())
        await asyncio.sleep(1_500)  # beyond the lease horizon and many sweeps
        await world.examine()
        unfinished = journal.operations(world.run, unfinished=True)
        assert all(row.state == "open" for row in unfinished)

    simulate(main)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lands", [True, False])
def test_hung_journal(kind: str, lands: bool, tmp_path: Path) -> None:
    """A journal that answers late or never holds no verb up for long, and instances reopen."""
    total = writes_of(kind, tmp_path)

    async def main(first: int) -> None:
        loop = running_loop()
        journal = TroubledJournal(blocks=True)
        world = World(2, journal=journal, clock=LoopClock(), root=tmp_path, **SETTINGS)
        started = 0

        def job_s(name: str) -> float | None:
            nonlocal started
            started += "journal" in name
            hung = "journal" in name and first <= started <= first + 1
            return 0.001 if not hung else 60.0 if lands else None

        loop.job_s = job_s
        began_s = loop.time()
        try:
            await world.operate(kind, new_id())
        except JournalError as error:
            assert isinstance(error, JournalOutcomeUnknown)
        assert loop.time() - began_s < 2 * 10.0 + 5.0
        for actor in world.actors:
            assert not actor.calls or actor.calls[-1].op in ("resume", "retire", "forget")
        await asyncio.sleep(120)
        await world.examine()
        unfinished = journal.operations(world.run, unfinished=True)
        assert unfinished == () or first <= 4  # two for the claim, and the opening

    for first in range(1, total + 1):
        simulate(lambda first=first: main(first))


def test_renewals_go_on_while_a_manifest_hangs(tmp_path: Path) -> None:
    """L1: a file system that hangs while the manifest is written stops neither loop nor leases."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path, **SETTINGS)
        running_loop().job_s = lambda name: None if "sealed" in name else 0.0
        began_s = running_loop().time()
        with pytest.raises(TimeoutError, match="35 s"):
            await world.operate("checkpoint", "hung")
        assert running_loop().time() - began_s < 40
        assert len(world.actors[0].of("renew")) >= 4
        assert world.operation("hung").state == "discarded"
        await world.examine()

    simulate(main)


def test_withdrawal_hangs(tmp_path: Path) -> None:
    """A withdrawal that hangs is a note on the body's error, and is done at a later sweep."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path, **SETTINGS)
        hung = [True]
        running_loop().job_s = lambda name: None if "withdrawn" in name and hung[0] else 0.0
        with pytest.raises(ValueError, match="train") as caught:
            async with world.committed("hung", world.root()):
                raise ValueError("train")
        assert any("withdrawing the manifest" in note for note in caught.value.__notes__)
        assert (world.root() / "gym_checkpoint.json").exists()
        hung[0] = False
        await asyncio.sleep(60)
        assert world.operation("hung").state == "discarded"
        await world.examine()

    simulate(main)


@pytest.mark.parametrize("ends", ["never", "late"])
def test_a_withdrawal_that_hangs_for_a_day(ends: str, tmp_path: Path) -> None:
    """L1, L2: a file system that hangs for a day holds few threads, and no withdrawal is lost."""
    day_s = 86_400.0

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path, **SETTINGS)
        begun: list[str] = []
        takes_s: list[float | None] = [None if ends == "never" else day_s]

        def job_s(name: str) -> float | None:
            begun.extend([name] if "withdrawn" in name else [])
            return takes_s[0] if "withdrawn" in name else 0.0

        running_loop().job_s = job_s
        with pytest.raises(ValueError, match="train"):
            async with world.committed("hung", world.root()):
                raise ValueError("train")
        for number in range(24):
            await world.operate("checkpoint", f"hourly-{number}")
            await asyncio.sleep(day_s / 25)
        assert 3 <= len(begun) <= 13
        assert world.operation("hung").seq < 60
        takes_s[0] = 0.0
        await asyncio.sleep(2 * day_s if ends == "never" else day_s / 20)
        assert world.operation("hung").state == "discarded"
        await world.examine()

    simulate(main)


def test_a_slow_withdrawal_has_a_budget_of_its_own(tmp_path: Path) -> None:
    """A withdrawal that begins while the manifest is being written is given its whole time."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path, **SETTINGS)
        takes_s = {"gymckpt-checkpoint-root": 0.0, "gymckpt-withdrawn": 25.0}
        running_loop().job_s = takes_s.get
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(20), world.committed("slow", world.root()):
                pytest.fail("the manifest was written")
        assert running_loop().time() == pytest.approx(45.0, abs=0.1)
        told = [entry.trigger for entry in world.journal.read(world.run, "slow")]
        assert "withdrawn" in told
        assert "withdraw_failed" not in told
        await world.examine()

    simulate(main)


async def test_a_fenced_controller_stops(new_world: NewWorld) -> None:
    """S7: a body whose run was taken over is cancelled with Fenced, and nothing is sent."""
    world = new_world(2, **SHORT)
    with pytest.raises(Fenced) as caught:
        async with world.coordinator.prepared("mine"):
            world.journal.claim(world.run, holder="other", force=True)
            world.fenced_off.add("mine")
            await asyncio.sleep(10)
    assert caught.value.owner == "other"
    assert not any(actor.of("resume") for actor in world.actors)
    with pytest.raises(Fenced):  # nor is anything begun: the run is lost, not one operation
        await world.coordinator.prepare("next")
    assert world.journal.operation(world.run, "next") is None


@pytest.mark.parametrize("moment", ["commit", "resume", "discard", "renew"])
async def test_fenced_before_any_verb(new_world: NewWorld, moment: str) -> None:
    """S7: whichever verb comes first after the take-over sends nothing and raises or ends."""
    world = new_world(2, control_timeout_s=30.0)
    await world.coordinator.prepare("mine")
    world.journal.claim(world.run, holder="other", force=True)
    world.fenced_off.add("mine")
    before = world.story()
    with pytest.raises(Fenced):
        if moment == "commit":
            offered = world.offer()
            await world.coordinator.commit("mine", world.root(), offered, restarts={})
        elif moment == "renew":
            await world.coordinator.renew("mine")
        else:
            await world.coordinator.resume("mine")
    assert world.story() == before


async def test_closed_journal(new_world: NewWorld) -> None:
    """A journal that was closed under a coordinator is unavailable, for every verb."""
    world = new_world(1)
    coordinator = world.new_coordinator(journal=TroubledJournal())
    closed = coordinator._operations._journal
    assert isinstance(closed, TroubledJournal)
    closed.close()
    for verb in ("prepare", "resume"):
        with pytest.raises(JournalUnavailable):
            await getattr(coordinator, verb)(new_id())
    assert world.story() == []
