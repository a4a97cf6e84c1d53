"""Instances that cannot park in time: a state, not an error reply; blockers are never parsed."""

from __future__ import annotations

import asyncio
import logging
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.coordinator import (
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    GymCheckpointPrepareSummary,
    is_transient_gym_checkpoint_failure,
)
from gymckpt.journal import Journal
from tests.fakes import HANG, FakeActor, Late
from tests.faults.conftest import NewWorld
from tests.faults.virtual import LoopClock, simulate
from tests.faults.world import SHORT, World, episode, new_id


@pytest.mark.parametrize("blockers", [{"agent": ("rollout-1",)}, {}, {"agent": ()}])
async def test_b3_one_not_ready_beside_one_prepared(
    new_world: NewWorld, journal: Journal, blockers: dict[str, tuple[str, ...]]
) -> None:
    """B3: both instances are reopened, and blockers are kept per instance, be there none."""
    world = new_world(2, journal=journal)
    world.actors[1].always["prepare"] = GymCheckpointPrepareSummary(False, blockers)
    with pytest.raises(GymCheckpointNotReady) as caught:
        async with world.coordinator.prepared("b3"):
            pytest.fail("the body was entered")
    assert caught.value.blockers == {"tools/replica-1": blockers}
    assert is_transient_gym_checkpoint_failure(caught.value)
    for actor in world.actors:
        assert [call.op for call in actor.calls] == ["prepare", "resume"]


texts = st.text(max_size=30)
blocking = st.dictionaries(texts, st.lists(texts, max_size=4).map(tuple), max_size=4)
restarting = st.lists(
    st.integers(0, 30).map(lambda n: episode(f"r{n}")), max_size=3, unique=True
).map(tuple)


@given(
    answers=st.lists(
        st.one_of(
            st.none(),
            st.builds(GymCheckpointPrepareSummary, st.just(False), blocking, restarting),
        ),
        min_size=1,
        max_size=5,
    ).filter(any)
)
def test_b3_b16_any_blockers_arrive_as_they_are(
    answers: list[GymCheckpointPrepareSummary | None],
) -> None:
    """B3, B16: whatever texts block whichever instances, they arrive unparsed and all reopen."""

    async def main() -> None:
        world = World(len(answers), clock=LoopClock(), prepare_timeout_s=300.0)
        wanted = {}
        for instance, actor, answer in zip(world.ids, world.actors, answers, strict=True):
            if answer is not None:
                actor.always["prepare"] = answer
                wanted[instance] = answer.blockers
        with pytest.raises(GymCheckpointNotReady) as caught:
            await world.coordinator.prepare(new_id())
        assert caught.value.blockers == wanted
        assert str(caught.value).encode()  # it can be logged
        assert [actor.ops for actor in world.actors] == [["prepare", "resume"]] * len(answers)
        await world.examine()

    simulate(main)


async def test_b16_lost_worker(new_world: NewWorld) -> None:
    """B16: blockers that name no rollout are carried as they are, and the failure is transient."""
    world = new_world(2)
    blockers = {"agent": ("agent-worker-lost", "agent-workers-unreported:1")}
    world.actors[0].always["prepare"] = GymCheckpointPrepareSummary(False, blockers)
    with pytest.raises(GymCheckpointNotReady, match="agent-workers-unreported:1") as caught:
        await world.coordinator.prepare("b16")
    assert caught.value.blockers == {"tools/replica-0": blockers}
    assert is_transient_gym_checkpoint_failure(caught.value)


async def test_b17_thousands_of_stragglers(
    new_world: NewWorld, caplog: pytest.LogCaptureFixture, journal: Journal
) -> None:
    """B17: 80,000 blockers make one bounded error that carries them all, and a bounded journal."""
    world = new_world(8, journal=journal)
    for number, actor in enumerate(world.actors):
        names = tuple(f"rollout-{number}-{index}" for index in range(10_000))
        actor.always["prepare"] = GymCheckpointPrepareSummary(False, {"agent": names})
    with caplog.at_level(logging.DEBUG), pytest.raises(GymCheckpointNotReady) as caught:
        await world.coordinator.prepare("b17")
    assert len(str(caught.value)) < 20_000
    assert "10000" in str(caught.value)
    assert sum(len(found["agent"]) for found in caught.value.blockers.values()) == 80_000
    assert all(len(record.getMessage()) < 20_000 for record in caplog.records)
    facts = [str(entry.facts) for entry in world.journal.read(world.run, "b17")]
    assert max(map(len, facts)) < 20_000
    assert "10000" in "".join(facts)


async def test_b17_many_servers_with_long_names(new_world: NewWorld) -> None:
    """B17: what is kept of thousands of servers with long names is bounded too."""
    world = new_world(1, control_timeout_s=2.0, prepare_timeout_s=2.0)
    servers = {f"{number}-{'s' * 1_000}": ("b" * 1_000,) for number in range(5_000)}
    world.actors[0].always["prepare"] = GymCheckpointPrepareSummary(False, servers)
    with pytest.raises(GymCheckpointNotReady) as caught:
        await world.coordinator.prepare("servers")
    assert len(str(caught.value)) < 20_000
    assert caught.value.blockers == {"tools/replica-0": servers}
    facts = [str(entry.facts) for entry in world.journal.read(world.run, "servers")]
    assert max(map(len, facts)) < 20_000


async def test_b17_restarts_are_never_capped(new_world: NewWorld) -> None:
    """B17: 50,000 restarts of one instance all reach the body, the commit and the manifest."""
    world = new_world(2, control_timeout_s=30.0, prepare_timeout_s=30.0)
    every = tuple(episode(f"r{number}") for number in range(50_000))
    kept = tuple(episode(f"k{number}") for number in range(20_000))
    world.actors[1].restarts = every
    async with world.coordinator.prepared("b17") as restarts:
        assert restarts == {"tools/replica-0": frozenset(), "tools/replica-1": frozenset(every)}
        result = await world.coordinator.commit(
            "b17",
            world.root(),
            {"tools/replica-0": kept, "tools/replica-1": ()},
            restarts={"tools/replica-1": every},
        )
    assert result.manifest.restarts["tools/replica-1"] == every
    assert result.manifest.instances["tools/replica-0"] == kept


async def test_blockers_that_no_file_can_hold(new_world: NewWorld, journal: Journal) -> None:
    """Blockers with half a character pair or NUL do not keep the instances from being reopened."""
    world = new_world(2, journal=journal)
    odd = {"ag\ud800ent\0": ("\udfff", "\0", "Authorization: Bearer abcdef")}
    world.actors[0].always["prepare"] = GymCheckpointPrepareSummary(False, odd)
    with pytest.raises(GymCheckpointNotReady) as caught:
        await world.coordinator.prepare("odd")
    assert caught.value.blockers == {"tools/replica-0": odd}
    assert world.operation("odd").state == "discarded"
    assert "abcdef" not in str(world.journal.read(world.run, "odd"))


async def test_broken_instance_outweighs_blockers(new_world: NewWorld) -> None:
    """A failed prepare beside one that is not ready: the failure leaves, blockers are a note."""
    world = new_world(3)
    world.actors[0].always["prepare"] = GymCheckpointPrepareSummary(False, {"agent": ("r9",)})
    world.actors[1].always["prepare"] = TypeError("bad")
    with pytest.raises(GymCheckpointOperationError) as caught:
        await world.coordinator.prepare("both")
    assert set(caught.value.failures) == {"tools/replica-1"}
    assert any("r9" in note for note in caught.value.__notes__)
    assert not is_transient_gym_checkpoint_failure(caught.value)


async def test_not_ready_does_not_wait_for_the_whole_prepare(new_world: NewWorld) -> None:
    """L3: once an instance is not ready, the others are waited for `settle_s` and no longer."""
    world = new_world(3, prepare_timeout_s=300.0, settle_s=0.05)
    summary = GymCheckpointPrepareSummary(False, {"agent": ("r1",)})
    world.actors[0].always["prepare"] = summary
    world.actors[1].always["prepare"] = Late(0.02, summary)
    world.actors[2].always["prepare"] = HANG
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(GymCheckpointNotReady) as caught:
        await world.coordinator.prepare("early")
    assert asyncio.get_running_loop().time() - began_s < 1
    assert set(caught.value.blockers) == {"tools/replica-0", "tools/replica-1"}
    assert any("tools/replica-2" in note for note in caught.value.__notes__)


async def test_not_ready_travels(new_world: NewWorld) -> None:
    """The error that leaves can be pickled with blockers and notes as it is."""
    world = new_world(1, **SHORT)
    world.actors[0].always |= {
        "prepare": GymCheckpointPrepareSummary(False, {"agent": ("r1",)}),
        "resume": HANG,
    }
    with pytest.raises(GymCheckpointNotReady) as caught:
        await world.coordinator.prepare("travels")
    travelled = pickle.loads(pickle.dumps(caught.value))
    assert travelled.blockers == caught.value.blockers
    assert travelled.__notes__ == caught.value.__notes__


async def test_retry_after_not_ready_succeeds(new_world: NewWorld, journal: Journal) -> None:
    """What is transient may be tried again under a new id, on the same coordinator."""
    world = new_world(2, journal=journal, fenced=True)
    world.actors[0].scripts["prepare"] = [GymCheckpointPrepareSummary(False, {})] * 2
    for attempt in range(3):
        try:
            async with world.committed(f"try-{attempt}", world.root()):
                break
        except GymCheckpointNotReady as error:
            assert is_transient_gym_checkpoint_failure(error)
    assert attempt == 2
    assert world.operation("try-2").state == "resumed"
    assert refusals(world.actors) == []


def refusals(actors: tuple[FakeActor, ...]) -> list[tuple[str, str]]:
    """Return everything that the instances refused."""
    return [refusal for actor in actors for refusal in actor.refusals]
