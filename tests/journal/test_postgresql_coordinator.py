"""A coordinator over PostgreSQL whose server is restarted, or stays away, amid a checkpoint."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from gymckpt.core.replay import replay
from gymckpt.errors import JournalError, JournalUnavailable
from gymckpt.journal import Journal, open_journal
from gymckpt.manifest import load_gym_checkpoint_manifest
from tests.faults.world import World, until
from tests.journal.conftest import PostgresqlHome
from tests.journal.servers import impatient
from tests.racing import WAIT_S

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
async def world(pg_home: PostgresqlHome, tmp_path: Path) -> AsyncIterator[World]:
    """Give three instances and a coordinator over PostgreSQL; all promises are held afterwards."""
    made = World(
        3,
        journal=pg_home.open(),
        root=tmp_path,
        control_timeout_s=1.0,
        prepare_timeout_s=WAIT_S,
        journal_timeout_s=WAIT_S,
        sweep_interval_s=0.1,
    )
    async with asyncio.timeout(4 * WAIT_S):
        yield made
        await made.examine()


@contextlib.asynccontextmanager
async def stopped(home: PostgresqlHome, mode: str = "immediate") -> AsyncIterator[None]:
    """Stop the server for the time of the body, off the event loop."""
    await asyncio.to_thread(home.server.stop, mode)
    try:
        yield
    finally:
        await asyncio.to_thread(home.server.start)


async def restart(home: PostgresqlHome, mode: str) -> None:
    """Crash or stop the server, and start it again."""
    async with stopped(home, mode):
        pass


def histories(journal: Journal, run: str) -> dict[str, str]:
    """Return each operation's state as its entries give it, which its row must say too."""
    found = {}
    for row in journal.operations(run):
        operation = replay(journal.read(run, row.operation_id))
        assert (operation.state, operation.settled) == (row.state, row.settled)
        found[row.operation_id] = operation.state
    return found


@pytest.mark.parametrize("mode", ["immediate", "fast"])
async def test_a_checkpoint_outlasts_a_restart_of_the_server(
    world: World, pg_home: PostgresqlHome, mode: str
) -> None:
    """A server restarted in a prepared body, before and after the commit, changes nothing."""
    root = world.root()
    async with world.coordinator.prepared("step-1") as restarts:
        await restart(pg_home, mode)
        await world.coordinator.commit("step-1", root, world.offer(), restarts=restarts)
        await restart(pg_home, mode)
        await world.coordinator.renew("step-1")
    assert load_gym_checkpoint_manifest(root).checkpoint_id == "step-1"
    with open_journal(pg_home.url) as journal:
        assert histories(journal, world.run) == {"step-1": "resumed"}
    assert all(actor.ops[-1] == "resume" for actor in world.actors)


async def test_a_restart_amid_every_call_loses_no_entry(
    world: World, pg_home: PostgresqlHome
) -> None:
    """While the server is restarted again and again, checkpoints and restores complete."""
    restarting = asyncio.ensure_future(_restart_often(pg_home, 3))
    number = 0
    while not restarting.done() or number < 2:
        number += 1
        await world.operate("checkpoint" if number % 2 else "restore", f"step-{number}")
    await restarting
    with open_journal(pg_home.url) as journal:
        assert set(histories(journal, world.run).values()) == {"resumed"}
        assert len(histories(journal, world.run)) == number


async def _restart_often(home: PostgresqlHome, times: int) -> None:
    for number in range(times):
        await restart(home, "immediate" if number % 2 else "fast")


async def commit_when(world: World, prepared: Awaitable[None]) -> None:
    """Prepare a checkpoint, wait for something, and commit."""
    async with world.coordinator.prepared("amid"):
        await prepared
        await world.coordinator.commit("amid", world.root(), world.offer(), restarts={})


async def test_a_server_that_stays_away_ends_the_checkpoint(
    world: World, pg_home: PostgresqlHome
) -> None:
    """Without its journal a checkpoint is given up, all reopen, and it is recorded afterwards."""
    with impatient(world.journal):
        async with stopped(pg_home):
            with pytest.raises(JournalUnavailable, match="check the server"):
                await world.coordinator.prepare("before")
        assert world.story() == []
    async with contextlib.AsyncExitStack() as away:
        with impatient(world.journal), pytest.raises(JournalUnavailable, match="check the server"):
            await commit_when(world, away.enter_async_context(stopped(pg_home)))
        assert [actor.ops[-1] for actor in world.actors] == ["resume"] * 3
        assert not any("commit" in actor.ops for actor in world.actors)
        assert list(world.root().iterdir()) == []
    await until(lambda: world.journal.operations(world.run)[0].settled, bound_s=WAIT_S)
    await world.operate("checkpoint", "later")
    states = histories(world.journal, world.run)
    assert states == {"amid": "discarded", "later": "resumed"}


async def test_what_a_crash_of_both_left_is_recovered(
    world: World, pg_home: PostgresqlHome
) -> None:
    """A controller and the server die together; the next controller settles what they left."""
    await world.coordinator.prepare("left")
    world.fenced_off.add("left")
    await restart(pg_home, "immediate")
    with pg_home.open_with() as journal:
        second = world.new_coordinator(journal=journal)
        held = await second.recover()
        assert [(found.operation_id, found.outcome) for found in held] == [("left", "held")]
        recovering = asyncio.ensure_future(second.recover(force=True))
        await restart(pg_home, "fast")
        found = await recovering
        assert [(one.operation_id, one.outcome) for one in found] == [("left", "settled")]
        assert histories(journal, world.run) == {"left": "discarded"}
        assert all(actor.ops[-1] == "resume" for actor in world.actors)
        with pytest.raises(JournalError, match="fenced"):
            await world.coordinator.renew("left")
        world._coordinator = second
        await world.operate("checkpoint", "next")
        await world.quiet()
