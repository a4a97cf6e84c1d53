"""S5, S2: an instance that comes back with nothing, under the same handle, at any moment."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.coordinator import GYM_CHECKPOINT_MANIFEST_FILENAME
from gymckpt.errors import GymCheckpointOperationError
from tests.fakes import HANG, Apply, Call, Late, Script
from tests.faults.virtual import LoopClock, simulate
from tests.faults.world import World

LOST = ConnectionError("reset")


def test_s5_an_instance_that_comes_back_empty_during_the_body(tmp_path: Path) -> None:
    """The restore is given up everywhere, and its context raises the renewal's error."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path, fenced=True, control_timeout_s=10.0)
        with pytest.raises(GymCheckpointOperationError) as caught:
            async with world.coordinator.restored("op", "/nowhere", world.manifest()):
                world.actors[1].restart_empty()
        assert caught.value.operation == "renew"
        assert set(caught.value.failures) == {"tools/replica-1"}
        assert world.operation("op").state == "discarded"
        assert [sorted(actor.running) for actor in world.actors] == [[], []]
        await world.examine()

    simulate(main)


async def test_s5_a_lone_resume_of_an_empty_instance(tmp_path: Path) -> None:
    """`resume` of the open restore raises too where an instance has lost what was restored."""
    world = World(2, root=tmp_path, fenced=True, control_timeout_s=0.2)
    await world.coordinator.restore("op", "/nowhere", world.manifest())
    world.actors[0].restart_empty()
    with pytest.raises(GymCheckpointOperationError, match="renew failed on 1"):
        await world.coordinator.resume("op")
    assert not any(actor.running for actor in world.actors)


def test_s5_an_earlier_renewal_proves_nothing(tmp_path: Path) -> None:
    """An answer to a renewal that was sent before the body ended does not keep the restore."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path, fenced=True, control_timeout_s=9.0)
        slow, restarting = world.actors
        with pytest.raises(GymCheckpointOperationError):
            async with world.coordinator.restored("op", "/nowhere", world.manifest()):
                slow.scripts["renew"].append(Late(4.0))
                restarting.scripts["renew"].append(Late(4.0, Apply(None)))
                await asyncio.sleep(3.5)  # a round of renewals is under way
                restarting.restart_empty()
        assert not any(actor.running for actor in world.actors)

    simulate(main)


def test_s5_a_cancelled_caller_leaves_at_once_while_a_restore_is_kept(tmp_path: Path) -> None:
    """A cancellation during the last renewal gives the restore up, and leaves as itself."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path, fenced=True, control_timeout_s=60.0)

        async def restoring() -> None:
            async with world.coordinator.restored("op", "/nowhere", world.manifest()):
                world.actors[0].scripts["renew"].append(HANG)

        task = asyncio.ensure_future(restoring())
        await asyncio.sleep(1.0)
        assert world.operation("op").state == "keeping"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() < 10.0
        assert world.operation("op").state == "discarded"
        assert not any(actor.running for actor in world.actors)

    simulate(main)


class Emptied:
    """Lets one instance come back empty after its n-th call, or some time after that."""

    def __init__(self, world: World, victim: int, after_calls: int, delay_s: float) -> None:
        self.actor = world.actors[victim]
        self.at_tick: int | None = None
        """When it did, in the order of all calls."""
        self._left = after_calls
        self._delay_s = delay_s
        self.actor.on_call = self._count

    def _count(self, call: Call) -> None:
        self._left -= 1
        if self._left == 0:
            asyncio.get_running_loop().call_later(self._delay_s, self._empty, call)

    def _empty(self, call: Call) -> None:
        self.at_tick = max(one.tick for one in self.actor.calls)
        self.actor.restart_empty()


SCRIPTS: dict[str, Script] = {"fine": None, "late": Late(1.5), "lost": Apply(LOST), "fails": LOST}

TROUBLE = st.fixed_dictionaries(
    {
        op: st.lists(st.sampled_from(sorted(SCRIPTS)), max_size=3)
        for op in ("prepare", "renew", "commit", "restore", "retire", "resume")
    }
)


def _scripted(world: World, trouble: dict[str, list[str]], of: int) -> None:
    for op, scripts in trouble.items():
        world.actors[of].scripts[op] += [SCRIPTS[one] for one in scripts]


@given(
    count=st.integers(1, 3),
    after_calls=st.integers(1, 8),
    delay_s=st.sampled_from([0.0, 0.5, 2.0]),
    body=st.sampled_from([0.0, 1.0, 8.0]),
    fails=st.booleans(),
    trouble=TROUBLE,
    data=st.data(),
)
def test_s5_an_instance_that_comes_back_empty_at_any_moment(
    count: int,
    after_calls: int,
    delay_s: float,
    body: float,
    fails: bool,
    trouble: dict[str, list[str]],
    data: st.DataObject,
) -> None:
    """A restore that stands runs everywhere, but on who lost it after its last renewal."""
    victim = data.draw(st.integers(0, count - 1))
    troubled = data.draw(st.integers(0, count - 1))

    async def main() -> None:
        world = World(count, clock=LoopClock(), fenced=True, control_timeout_s=6.0)
        emptied = Emptied(world, victim, after_calls, delay_s)
        _scripted(world, trouble, troubled)
        manifest = world.manifest(each=2)
        with contextlib.suppress(GymCheckpointOperationError, ZeroDivisionError):
            async with world.coordinator.restored("op", "/nowhere", manifest):
                await asyncio.sleep(body)
                _ = 1 / (0 if fails else 1)
        await asyncio.sleep(900.0)
        stands = world.operation("op").state == "resumed"
        assert stands or world.operation("op").state == "discarded"
        wanted = manifest.next_attempts()
        for number, instance in enumerate(world.ids):
            actor = world.actors[number]
            if not stands:
                assert not actor.running
            elif actor is not emptied.actor or emptied.at_tick is None:
                assert actor.running == set(wanted[instance])
            elif not actor.running:  # it had proven before that it held them
                kept = [call for call in actor.of("renew") if call.outcome == "answered"]
                assert kept[-1].ended_tick > 0
                assert kept[-1].tick <= emptied.at_tick
        assert not any(actor.holder for actor in world.actors)

    simulate(main)


@given(
    after_calls=st.integers(1, 7),
    delay_s=st.sampled_from([0.0, 0.5, 2.0]),
    body=st.sampled_from([0.0, 1.0, 8.0]),
    trouble=TROUBLE,
)
def test_s2_an_instance_that_comes_back_empty_during_a_checkpoint(
    after_calls: int,
    delay_s: float,
    body: float,
    trouble: dict[str, list[str]],
    tmp_path_factory: Any,
) -> None:
    """A checkpoint that stands was written by instances that were parked until then."""
    root = tmp_path_factory.mktemp("empty")

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=root, fenced=True, control_timeout_s=6.0)
        emptied = Emptied(world, 1, after_calls, delay_s)
        _scripted(world, trouble, 0)
        with contextlib.suppress(GymCheckpointOperationError):
            async with world.coordinator.prepared("op") as restarts:
                await asyncio.sleep(body)
                none = {name: tuple(found) for name, found in restarts.items()}
                await world.coordinator.commit("op", root, world.offer(), restarts=none)
                await asyncio.sleep(body)
        await asyncio.sleep(900.0)
        stands = world.operation("op").state == "resumed"
        assert (root / GYM_CHECKPOINT_MANIFEST_FILENAME).exists() == stands
        if stands and emptied.at_tick is not None:
            [*_, written] = [one for one in emptied.actor.of("commit") if one.outcome == "answered"]
            assert written.tick <= emptied.at_tick
        assert not any(actor.holder for actor in world.actors)

    simulate(main)
