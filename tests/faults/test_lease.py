"""Renewals that hang, fail or find a dead actor: the lease is kept, or its loss ends everything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.coordinator import GymCheckpointOperationError, is_transient_gym_checkpoint_failure
from gymckpt.errors import GymCheckpointUnavailable, IllegalTransition
from gymckpt.journal import Journal
from tests.fakes import HANG, ActorDiedError, Apply, Late, RayActorError
from tests.faults.conftest import NewWorld
from tests.faults.virtual import LoopClock, running_loop, simulate
from tests.faults.world import SHORT, World, new_id, until


async def test_b1_renewal_hangs_in_a_slow_body(new_world: NewWorld, journal: Journal) -> None:
    """B1: a renewal that never answers ends a slow body with the renewal's error, and soon."""
    world = new_world(1, journal=journal, **SHORT)
    actor = world.actors[0]
    actor.scripts["renew"] = [None]
    actor.always["renew"] = HANG
    began_s = time.monotonic()
    with pytest.raises(GymCheckpointOperationError) as caught:
        async with world.coordinator.prepared("slow"):
            await asyncio.sleep(60)
    assert caught.value.operation == "renew"
    assert [type(failure) for failure in caught.value.failures.values()] == [TimeoutError]
    assert is_transient_gym_checkpoint_failure(caught.value)
    assert actor.calls[-1].op == "resume"
    assert time.monotonic() - began_s < 2


async def test_b1_first_renewal_hangs(new_world: NewWorld) -> None:
    """B1: the body is not entered if the renewal before it hangs."""
    world = new_world(3, **SHORT)
    world.actors[1].always["renew"] = HANG
    with pytest.raises(GymCheckpointOperationError) as caught:
        async with world.coordinator.prepared("never"):
            pytest.fail("the body was entered")
    assert caught.value.operation == "renew"
    assert set(caught.value.failures) == {"tools/replica-1"}
    assert [actor.calls[-1].op for actor in world.actors] == ["resume"] * 3


@pytest.mark.parametrize("verb", ["renew", "commit"])
async def test_next_verb_is_told_what_was_lost_before_it(new_world: NewWorld, verb: str) -> None:
    """A lease that is lost while no verb waits is the error of the next one, and of that one."""
    world = new_world(2, **SHORT)
    await world.coordinator.prepare("lost")
    world.actors[1].always["renew"] = GymCheckpointUnavailable("HTTP 503")

    def go_on() -> Awaitable[object]:
        if verb == "renew":
            return world.coordinator.renew("lost")
        restarts = dict.fromkeys(world.ids, ())
        return world.coordinator.commit("lost", world.root(), world.offer(), restarts=restarts)

    await until(lambda: world.journal.operations(world.run)[0].settled)
    with pytest.raises(GymCheckpointOperationError) as caught:
        await go_on()
    assert caught.value.operation == "renew"
    assert set(caught.value.failures) == {"tools/replica-1"}
    with pytest.raises(IllegalTransition, match="not open"):
        await go_on()


@pytest.mark.parametrize("holds_up_s", [0.0, 2.0, 5.0])
def test_a_verb_after_a_body_that_held_the_loop_up(holds_up_s: float, tmp_path: Path) -> None:
    """S9: a commit that comes before the timer of a lost lease is told of the lease."""

    async def main() -> None:
        budgets = {"control_timeout_s": 3.0, "prepare_timeout_s": 3.0}
        world = World(2, clock=LoopClock(), root=tmp_path, fenced=True, **budgets)
        world.actors[1].scripts["renew"] = [None]
        world.actors[1].always["renew"] = GymCheckpointUnavailable("HTTP 503")
        with pytest.raises(GymCheckpointOperationError) as caught:
            async with world.coordinator.prepared("held-up"):
                await asyncio.sleep(1.5)  # a renewal has failed, and its lease ends at 3 s
                running_loop()._now_s += holds_up_s  # synchronous work: no timer fires
                offered = world.offer()
                try:
                    await world.coordinator.commit("held-up", world.root(), offered, restarts={})
                except BaseException as error:
                    assert isinstance(error, GymCheckpointOperationError) or not holds_up_s
                    raise
                await asyncio.sleep(1e5)
        assert caught.value.operation == "renew"
        assert set(caught.value.failures) == {"tools/replica-1"}
        assert bool(world.actors[0].of("commit")) == (holds_up_s == 0.0)
        assert world.operation("held-up").cause.trigger == "lose_lease"
        await world.examine()

    simulate(main)


async def test_a_renewal_in_the_body_is_told_of_its_lease(new_world: NewWorld) -> None:
    """S9: a body that renews when a lease is lost gets the lease's error, not a cancellation."""
    world = new_world(2, **SHORT)
    async with asyncio.timeout(3):
        with pytest.raises(GymCheckpointOperationError) as left:
            async with world.coordinator.prepared("renewing"):
                world.actors[1].always["renew"] = GymCheckpointUnavailable("HTTP 503")
                with pytest.raises(GymCheckpointOperationError) as told:
                    await world.coordinator.renew("renewing")
                raise told.value
    assert left.value is told.value
    assert (left.value.operation, set(left.value.failures)) == ("renew", {world.ids[1]})


TROUBLE: dict[str, Any] = {
    "hangs": HANG,
    "dies": ActorDiedError("the actor died"),
    "is unavailable": GymCheckpointUnavailable("HTTP 503"),
    "is broken": AttributeError("'NemoGym' object has no attribute 'rch'"),
    "answers very late": Late(3_600.0),
    "is applied and hangs": Apply(HANG),
}


@given(
    trouble=st.sampled_from(sorted(TROUBLE)),
    count=st.integers(1, 4),
    good_rounds=st.integers(1, 4),
    kind=st.sampled_from(["prepared", "restored"]),
    control_s=st.sampled_from([0.05, 3.0, 30.0]),
    data=st.data(),
)
def test_b1_b5_any_lost_lease_ends_the_body(
    trouble: str, count: int, good_rounds: int, kind: str, control_s: float, data: st.DataObject
) -> None:
    """B1, B5: whatever stops the renewals of an instance, the body ends within its lease."""
    victim = data.draw(st.integers(0, count - 1))

    async def main() -> None:
        budgets = {"control_timeout_s": control_s, "prepare_timeout_s": control_s}
        world = World(count, clock=LoopClock(), fenced=True, **budgets)
        actor = world.actors[victim]
        actor.scripts["renew"] = [None] * good_rounds
        actor.always["renew"] = TROUBLE[trouble]
        loop = asyncio.get_running_loop()
        began_s, name = loop.time(), new_id()
        opened = (
            world.coordinator.prepared(name)
            if kind == "prepared"
            else world.coordinator.restored(name, "/nowhere", world.manifest())
        )
        with pytest.raises(GymCheckpointOperationError) as caught:
            async with opened:
                await asyncio.sleep(1e5)
        interval_s = max(0.01, min(control_s / 3, 10))
        grace_s = min(control_s, 5.0)
        bound_s = interval_s * (good_rounds + 1) + 2 * (control_s + grace_s)
        assert loop.time() - began_s <= bound_s
        assert caught.value.operation == "renew"
        assert set(caught.value.failures) == {world.ids[victim]}
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await world.examine()

    simulate(main)


async def test_b5_actor_dies_while_its_lease_is_renewed(
    new_world: NewWorld, journal: Journal
) -> None:
    """B5: a dead actor ends the snapshot as transient, and its peer is reopened."""
    world = new_world(2, journal=journal, **SHORT)
    world.actors[1].scripts["renew"] = [None]
    dead = RayActorError("the actor is dead")
    world.actors[1].fail_from("renew", dead)
    world.actors[1].fail_from("resume", dead)
    began_s = time.monotonic()
    with pytest.raises(GymCheckpointOperationError) as caught:
        async with world.coordinator.prepared("dies"):
            await asyncio.Event().wait()
    assert caught.value.operation == "renew"
    assert caught.value.failures == {"tools/replica-1": dead}
    assert is_transient_gym_checkpoint_failure(caught.value)
    assert world.actors[0].calls[-1].op == "resume"
    assert world.operation("dies").state == "discarded"  # nothing is left to reopen
    assert time.monotonic() - began_s < 1


async def test_b5_both_die_and_the_body_waits_for_one(new_world: NewWorld) -> None:
    """B5: where all actors are dead, that is the error, and the operation has ended."""
    world = new_world(3, **SHORT)
    for actor in world.actors:
        actor.scripts["renew"] = [None]
        actor.fail_from("renew", ActorDiedError("dead"))
        actor.fail_from("resume", ActorDiedError("dead"))
    with pytest.raises(GymCheckpointOperationError) as caught:
        async with world.coordinator.prepared("all"):
            await asyncio.Event().wait()
    assert is_transient_gym_checkpoint_failure(caught.value)
    assert world.operation("all").settled


async def test_renewal_recovers_before_the_lease_is_over(new_world: NewWorld) -> None:
    """A renewal that fails in passing is tried again until the acknowledged deadline, and heals."""
    world = new_world(1, control_timeout_s=0.4)
    unavailable = GymCheckpointUnavailable("HTTP 503")
    world.actors[0].scripts["renew"] = [None, unavailable, None]
    async with world.coordinator.prepared("heals"):
        await until(lambda: len(world.actors[0].of("renew")) >= 4)
    cause = world.operation("heals").cause
    assert cause is not None
    assert cause.trigger == "discard"  # the body did not commit


async def test_a_busy_commit_acknowledges_the_lease(new_world: NewWorld) -> None:
    """An instance that answers renewals only after its commit keeps its lease by the commit."""
    world = new_world(2, control_timeout_s=0.3)
    busy = asyncio.Event()

    def commit(*_args: Any, **_kwargs: Any) -> Any:
        world.actors[1].always["renew"] = lambda *_a, **_k: HANG if not busy.is_set() else None
        asyncio.get_running_loop().call_later(0.2, busy.set)
        return Late(0.2)

    world.actors[1].scripts["commit"] = [commit]
    async with world.committed("busy", world.root()):
        pass
    assert world.operation("busy").state == "resumed"


async def test_lost_lease_beats_a_commit_under_way(new_world: NewWorld) -> None:
    """A lease that is lost while commit waits makes commit raise the renewal's error."""
    world = new_world(2, control_timeout_s=2.0)
    world.actors[0].always["commit"] = HANG
    world.actors[1].scripts["renew"] = [None]
    world.actors[1].always["renew"] = ActorDiedError("dead")
    with pytest.raises(GymCheckpointOperationError) as caught:
        async with world.committed("lost", world.root()):
            pytest.fail("the commit succeeded")
    assert caught.value.operation == "renew"
    assert list(world.root().iterdir()) == []


async def test_lost_lease_after_the_commit_withdraws_the_manifest(new_world: NewWorld) -> None:
    """A lease that is lost after the commit gives the checkpoint up, and its manifest goes."""
    world = new_world(2, control_timeout_s=0.3)
    with pytest.raises(GymCheckpointOperationError):
        async with world.committed("late", world.root()):
            assert (world.root() / "gym_checkpoint.json").exists()
            world.actors[0].fail_from("renew", ActorDiedError("dead"))
            await asyncio.sleep(10)
    assert list(world.root().iterdir()) == []


async def test_lease_that_is_lost_as_the_body_ends(new_world: NewWorld) -> None:
    """A checkpoint that is given up in the moment in which its body ends does not end well."""
    world = new_world(1, **SHORT)
    ended = asyncio.Event()

    def breaks(*_args: Any, **_kwargs: Any) -> Any:
        asyncio.get_running_loop().call_soon(ended.set)
        return AttributeError("restarted empty")

    with pytest.raises(GymCheckpointOperationError) as caught:
        async with world.committed("both", world.root()):
            world.actors[0].always["renew"] = breaks
            await ended.wait()
    assert caught.value.operation == "renew"
    assert any(note.startswith("explained: ") for note in caught.value.__notes__)
    assert world.operation("both").state == "discarded"
    assert not (world.root() / "gym_checkpoint.json").exists()


async def test_renew_by_hand_that_fails_in_passing(new_world: NewWorld) -> None:
    """The verb does not say that every lease is renewed while the renewal of one has failed."""
    world = new_world(2, control_timeout_s=1.0)
    await world.coordinator.prepare("one")
    world.actors[1].always["renew"] = ConnectionError("away")
    with pytest.raises(GymCheckpointOperationError) as caught:
        await world.coordinator.renew("one")
    assert caught.value.operation == "renew"
    assert set(caught.value.failures) == {world.ids[1]}
    assert world.operation("one").state == "discarded"


async def test_renew_by_hand(new_world: NewWorld) -> None:
    """The verb renews every instance at once, and raises the loss of a lease after reopening."""
    world = new_world(2, control_timeout_s=30.0)
    await world.coordinator.prepare("byhand")
    await world.coordinator.renew("byhand")
    assert [len(actor.of("renew")) for actor in world.actors] == [2, 2]
    world.actors[1].fail_from("renew", ActorDiedError("dead"))
    with pytest.raises(GymCheckpointOperationError) as caught:
        await world.coordinator.renew("byhand")
    assert caught.value.operation == "renew"
    assert [actor.ops[-1] for actor in world.actors] == ["resume", "resume"]


async def test_body_that_swallows_the_cancellation(new_world: NewWorld) -> None:
    """A body that goes on after its lease was lost still ends with the renewal's error."""
    world = new_world(1, **SHORT)
    world.actors[0].scripts["renew"] = [None]
    world.actors[0].always["renew"] = AttributeError("restarted empty")
    with pytest.raises(GymCheckpointOperationError) as caught:
        async with world.coordinator.prepared("stubborn"):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                await asyncio.sleep(0.01)
    assert caught.value.operation == "renew"
    assert not is_transient_gym_checkpoint_failure(caught.value)


async def test_body_in_a_task_group(new_world: NewWorld) -> None:
    """A task group inside of the body is cancelled as a whole, and the renewal's error leaves."""
    world = new_world(1, **SHORT)
    world.actors[0].scripts["renew"] = [None]
    world.actors[0].always["renew"] = AttributeError("restarted empty")
    ended: list[str] = []

    async def child() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended.append("child")

    with pytest.raises(GymCheckpointOperationError):
        async with world.coordinator.prepared("group"), asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())
    assert ended == ["child", "child"]


async def test_outer_cancellation_beside_a_lost_lease(new_world: NewWorld) -> None:
    """A caller that is cancelled while its lease is lost sees its own cancellation leave."""
    world = new_world(1, **SHORT)
    world.actors[0].scripts["renew"] = [None]
    world.actors[0].always["renew"] = AttributeError("restarted empty")

    async def caller() -> None:
        async with world.coordinator.prepared("both"):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                task.cancel()
                raise

    task = asyncio.create_task(caller())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_outer_cancellation_at_the_same_time_as_a_lost_lease(new_world: NewWorld) -> None:
    """Where two cancellations reach the body as one, the caller's own still leaves."""
    world = new_world(1, **SHORT)
    world.actors[0].scripts["renew"] = [None]
    world.actors[0].always["renew"] = AttributeError("restarted empty")

    async def caller() -> None:
        async with world.coordinator.prepared("at-once"):
            running = world.coordinator._operations.open
            assert running is not None
            look = running.scheduler.on_moved

            def look_and_cancel() -> None:
                look()
                if task.cancelling() == 1:
                    task.cancel()

            running.scheduler.on_moved = look_and_cancel
            await asyncio.sleep(10)

    task = asyncio.create_task(caller())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert world.actors[0].ops == ["prepare", "resume"]
