"""A restore happens on every instance or on none, whatever fails on whichever of them."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.coordinator import GymCheckpointOperationError, is_transient_gym_checkpoint_failure
from gymckpt.errors import GymCheckpointUnavailable, OperationOpen
from gymckpt.journal import Journal
from tests.fakes import HANG, ActorDiedError, Apply, Ghost, Immediate, Late
from tests.faults.conftest import NewWorld
from tests.faults.virtual import LoopClock, running_loop, simulate
from tests.faults.world import SHORT, World, new_id, until

FAILURES: dict[str, Any] = {
    "raises": RuntimeError("cannot install"),
    "unavailable": GymCheckpointUnavailable("HTTP 503"),
    "hangs": HANG,
    "applies, no reply": Apply(HANG),
    "applies, raises": Apply(RuntimeError("lost")),
    "applies later": Ghost(3.0),
    "applies much later": Ghost(300.0),
    "too late": Late(50.0),
    "dead": ActorDiedError("dead"),
    "cannot be sent": Immediate(ConnectionError("refused")),
}


@pytest.mark.parametrize("failure", ["raises", "applies, no reply", "cannot be sent"])
@pytest.mark.parametrize("gives_futures", [False, True])
async def test_b9_restore_fails_on_one_of_two(
    new_world: NewWorld, journal: Journal, failure: str, gives_futures: bool
) -> None:
    """B9: both get one restore, one retire of the next attempts and one resume under its id."""
    world = new_world(2, journal=journal, gives_futures=gives_futures, **SHORT)
    world.actors[1].always["restore"] = FAILURES[failure]
    manifest = world.manifest("source", each=3)
    with pytest.raises(GymCheckpointOperationError) as caught:
        async with world.coordinator.restored("b9", "/nowhere", manifest):
            pytest.fail("the body was entered")
    assert caught.value.operation == "restore"
    assert set(caught.value.failures) == {"tools/replica-1"}
    for instance, actor in world.shards.checkpoint_handles.items():
        assert [call.op for call in actor.calls] == ["restore", "retire", "resume"]
        assert {call.wire_id for call in actor.calls} == {"b9"}
        assert actor.of("retire")[0].args[1] == manifest.next_attempts()[instance]
        assert not actor.running
    assert world.operation("b9").state == "discarded"


@given(
    failures=st.lists(
        st.one_of(st.just("fine"), st.sampled_from(sorted(FAILURES))), min_size=1, max_size=4
    ),
    retire=st.sampled_from(["fine", "hangs", "unavailable", "raises"]),
    resume=st.sampled_from(["fine", "hangs", "unavailable"]),
    body=st.sampled_from(["good", "raises", "retires"]),
    data=st.data(),
)
def test_b9_all_or_none_whatever_fails(
    failures: list[str], retire: str, resume: str, body: str, data: st.DataObject
) -> None:
    """B9, S5: restored attempts go on everywhere or nowhere, also where cleaning up fails first."""
    troubled = data.draw(st.integers(0, len(failures) - 1))

    async def main() -> None:
        count = len(failures)
        world = World(count, clock=LoopClock(), fenced=True, control_timeout_s=10.0)
        for actor, failure in zip(world.actors, failures, strict=True):
            actor.always["restore"] = FAILURES.get(failure)
        for verb, trouble in (("retire", retire), ("resume", resume)):
            if trouble != "fine":
                world.actors[troubled].scripts[verb] = [FAILURES[trouble]] * 2
        manifest, name = world.manifest("source", each=2), new_id()
        good = body == "good" and set(failures) <= {"fine"}
        with contextlib.suppress(GymCheckpointOperationError, ValueError):
            async with world.coordinator.restored(name, "/nowhere", manifest):
                await asyncio.sleep(7)
                if body == "retires":
                    await world.coordinator.retire_restored(name, manifest)
                if body != "good":
                    raise ValueError("train")
        await asyncio.sleep(400)  # late restores, sweeps and late retires
        for instance, actor in world.shards.checkpoint_handles.items():
            wanted = set(manifest.next_attempts()[instance]) if good else set()
            assert actor.running & set(manifest.next_attempts()[instance]) == wanted
            assert name in actor.resumed
            assert actor.holder is None
        await world.examine()

    simulate(main)


async def test_b8_each_actor_gets_its_own_participants(new_world: NewWorld) -> None:
    """B8: a restore call carries exactly its instance's episodes, participants and the source."""
    world = new_world(3)
    manifest = world.manifest("source", each=2)
    async with world.coordinator.restored("b8", "/snapshots/7", manifest):
        pass
    for instance, actor in world.shards.checkpoint_handles.items():
        (call,) = actor.of("restore")
        assert call.args == ("b8", "/snapshots/7", manifest.instances[instance])
        assert call.kwargs["participants"] == manifest.participants[instance]
        assert call.kwargs["source_checkpoint_id"] == "source"
        assert set(call.kwargs) == {"participants", "source_checkpoint_id", "deadline_ts"}


async def test_good_restore_resumes_once(new_world: NewWorld, journal: Journal) -> None:
    """A restore whose body ends well is resumed once, and its attempts go on."""
    world = new_world(2, journal=journal, fenced=True)
    async with world.coordinator.restored("good", "/nowhere", world.manifest()):
        assert not any(actor.running for actor in world.actors)
    assert [actor.ops for actor in world.actors] == [["restore", "resume"]] * 2
    assert all(actor.running for actor in world.actors)
    assert world.operation("good").state == "resumed"


async def test_retire_inside_and_outside(new_world: NewWorld) -> None:
    """Restored attempts may be retired in the body under the restore's id, not under another."""
    world = new_world(2, fenced=True)
    manifest = world.manifest()
    async with world.coordinator.restored("mine", "/nowhere", manifest):
        with pytest.raises(OperationOpen):
            await world.coordinator.retire("other", manifest.next_attempts())
        await world.coordinator.retire_restored("mine", manifest)
    assert not any(actor.running for actor in world.actors)
    assert [actor.ops for actor in world.actors] == [["restore", "retire", "retire", "resume"]] * 2
    assert world.operation("mine").state == "discarded"


@pytest.mark.parametrize("whole", [True, False])
async def test_a_lone_resume_keeps_a_restore_unless_it_was_retired(
    whole: bool, new_world: NewWorld
) -> None:
    """`resume` of a restore's id keeps it, also where some attempts, but not all, were retired."""
    world = new_world(2, fenced=True)
    manifest = world.manifest(each=2)
    await world.coordinator.restore("mine", "/nowhere", manifest)
    if whole:
        await world.coordinator.retire_restored("mine", manifest)
    else:
        some = {name: some[:1] for name, some in manifest.next_attempts().items()}
        await world.coordinator.retire("mine", some)
    await world.coordinator.resume("mine")
    assert world.operation("mine").state == ("discarded" if whole else "resumed")
    assert [len(actor.running) for actor in world.actors] == ([0, 0] if whole else [1, 1])


async def test_late_retires_in_the_background(new_world: NewWorld) -> None:
    """S5: without a next operation the failed retire is tried again by itself."""
    world = new_world(1, fenced=True, sweep_interval_s=0.05)
    world.actors[0].scripts["retire"] = [GymCheckpointUnavailable("HTTP 503")] * 2
    world.actors[0].scripts["restore"] = [Apply(RuntimeError("no"))]
    with pytest.raises(GymCheckpointOperationError):
        await world.coordinator.restore("first", "/nowhere", world.manifest())
    await until(lambda: not world.actors[0].running)
    assert world.actors[0].ops.count("retire") == 3


def test_restore_gives_up_early(tmp_path: Path) -> None:
    """L3: an instance that refuses a restore ends it after `settle_s`, not after its budget."""

    async def main() -> None:
        world = World(3, clock=LoopClock(), root=tmp_path, control_timeout_s=60.0, settle_s=2.0)
        world.actors[0].always["restore"] = RuntimeError("broken")
        world.actors[1].always["restore"] = Late(1.5, RuntimeError("broken too"))
        world.actors[2].always["restore"] = HANG
        with pytest.raises(GymCheckpointOperationError) as caught:
            await world.coordinator.restore("early", "/nowhere", world.manifest())
        assert running_loop().time() <= 2.1
        assert set(caught.value.failures) == {"tools/replica-0", "tools/replica-1"}
        assert not is_transient_gym_checkpoint_failure(caught.value)
        await world.examine()

    simulate(main)


async def test_no_restore_call_is_repeated(new_world: NewWorld) -> None:
    """A restore that failed in passing is not sent again under its id, nor under another one."""
    world = new_world(2)
    world.actors[0].always["restore"] = GymCheckpointUnavailable("HTTP 503")
    with pytest.raises(GymCheckpointOperationError) as caught:
        await world.coordinator.restore("once", "/nowhere", world.manifest())
    assert not is_transient_gym_checkpoint_failure(caught.value)
    assert world.actors[0].ops == ["restore", "retire", "resume"]
