"""Who is alive keeps its operations, whoever asks; who is gone loses them, whatever clocks show."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gymckpt.core.settings import OWNER_TIMEOUT_S
from gymckpt.errors import OperationHeld
from gymckpt.journal import Journal, MemoryJournal, MemoryStore
from gymckpt.moves import By, discard
from gymckpt.recovery import recover_all
from gymckpt.runtime.worker import new_owner, open_recorder
from tests.faults.virtual import LoopClock, running_loop, simulate
from tests.faults.world import World

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
