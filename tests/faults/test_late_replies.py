"""Calls that are no longer waited for: cancelled once, and what comes of them changes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt import coordinator as coordinator_module
from gymckpt.coordinator import (
    GymCheckpointOperationError,
    GymCheckpointPrepareSummary,
    is_transient_gym_checkpoint_failure,
)
from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.journal import Journal
from tests.fakes import HANG, ActorDiedError, Late, Stubborn
from tests.faults.conftest import NewWorld
from tests.faults.virtual import LoopClock, running_loop, simulate
from tests.faults.world import SHORT, World, new_id

VERBS = ("prepare", "renew", "commit", "restore", "retire", "forget", "resume")


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The references of which the remote side was told that nobody waits any more."""
    references: list[Any] = []

    def cancel(reference: Any) -> None:
        references.append(reference)
        raise RuntimeError("the cancel hook fails, which must not matter")

    monkeypatch.setattr(coordinator_module, "_cancel_remote", cancel)
    return references


async def fail(world: World, verb: str, name: str) -> GymCheckpointOperationError:
    """Do the operation that a call belongs to, and return the error that must leave."""
    with pytest.raises(GymCheckpointOperationError) as caught:
        if verb in ("prepare", "renew", "commit"):
            await world.operate("checkpoint", name)
        else:
            await world.operate(verb, name)
    assert caught.value.operation == verb
    return caught.value


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("gives_futures", [False, True])
async def test_b24_all_failures_are_reported_and_nothing_stays(
    new_world: NewWorld, cancelled: list[Any], verb: str, gives_futures: bool
) -> None:
    """B24: the raiser and the hanger are the failures, the slow one is not, the hanger is told."""
    world = new_world(3, gives_futures=gives_futures, control_timeout_s=0.1, prepare_timeout_s=0.1)
    error = ValueError("raised at once")
    world.actors[0].always[verb] = error
    world.actors[1].always[verb] = Late(0.03)
    world.actors[2].always[verb] = HANG
    failures = (await fail(world, verb, "b24")).failures
    assert set(failures) == {"tools/replica-0", "tools/replica-2"}
    assert failures["tools/replica-0"] is error
    assert type(failures["tools/replica-2"]) is TimeoutError
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert [task for task in others if not task.done() and "_drain" not in str(task)] == []
    told = Counter(map(id, cancelled))
    assert {told[id(call.reference)] for call in world.actors[2].of(verb)} == {1}
    assert {told[id(call.reference)] for call in world.actors[1].of(verb)} == {0}


@pytest.mark.parametrize("verb", VERBS)
async def test_b35_dead_beside_hanging(new_world: NewWorld, verb: str) -> None:
    """B35: a dead actor's own error stands beside the timeout of a hanging one, in bounded time."""
    world = new_world(3, **SHORT)
    dead = ActorDiedError("dead")
    world.actors[0].always[verb] = dead
    world.actors[1].always[verb] = HANG
    began_s = asyncio.get_running_loop().time()
    error = await fail(world, verb, "b35")
    assert asyncio.get_running_loop().time() - began_s < 1.0
    assert error.failures["tools/replica-0"] is dead
    assert type(error.failures["tools/replica-1"]) is TimeoutError
    assert len(error.failures) == 2
    assert is_transient_gym_checkpoint_failure(error) is (verb != "restore")


async def test_b35_instance_dies_in_the_commit(new_world: NewWorld, journal: Journal) -> None:
    """B35: of an instance that is dead for commit and renewals alike, the commit's error leaves."""
    world = new_world(3, journal=journal, **SHORT)
    dead = ActorDiedError("dead")

    def die(*_args: Any, **_kwargs: Any) -> Any:
        world.actors[0].fail_from(None, dead)
        return dead

    world.actors[0].scripts["commit"] = [die]
    world.actors[1].always["commit"] = HANG
    error = await fail(world, "commit", "b35")
    assert error.failures["tools/replica-0"] is dead
    assert type(error.failures["tools/replica-1"]) is TimeoutError
    assert len(error.failures) == 2
    assert is_transient_gym_checkpoint_failure(error)


BEHAVIOURS: dict[str, Any] = {
    "good": None,
    "slow": Late(1.0),
    "just in time": Late(2.9),
    "hangs": HANG,
    "too late": Late(30.0),
    "stubborn": Stubborn(40.0, RuntimeError("late")),
    "stubborn and well": Stubborn(40.0),
    "broken": TypeError("bad"),
    "refuses": GymCheckpointUnavailable("HTTP 503"),
    "refuses late": Late(2.0, GymCheckpointUnavailable("HTTP 503")),
    "dead": ActorDiedError("dead"),
}
GOOD = {"good", "slow", "just in time"}
TRANSIENT = {
    "hangs",
    "too late",
    "stubborn",
    "stubborn and well",
    "refuses",
    "refuses late",
    "dead",
}


@given(
    verb=st.sampled_from(VERBS),
    behaviours=st.lists(st.sampled_from(sorted(BEHAVIOURS)), min_size=1, max_size=5),
    gives_futures=st.booleans(),
)
def test_b24_any_mix_of_replies(
    verb: str, behaviours: list[str], gives_futures: bool, tmp_path_factory: Any
) -> None:
    """B24, B4: failures are those of the instances that failed, transient exactly if all are."""
    root = tmp_path_factory.mktemp("mix")

    async def main() -> None:
        settings = {"control_timeout_s": 3.0, "prepare_timeout_s": 3.0, "settle_s": 100.0}
        world = World(
            len(behaviours), clock=LoopClock(), root=root, gives_futures=gives_futures, **settings
        )
        for actor, behaviour in zip(world.actors, behaviours, strict=True):
            actor.always[verb] = BEHAVIOURS[behaviour]
        bad = {name for name, b in zip(world.ids, behaviours, strict=True) if b not in GOOD}
        began_s = running_loop().time()
        if not bad:
            await world.operate(verb if verb not in CHECKPOINT else "checkpoint", new_id())
        else:
            error = await fail(world, verb, new_id())
            assert set(error.failures) == bad
            transient = not any(b not in GOOD | TRANSIENT for b in behaviours)
            if verb == "restore":  # what lives refuses the attempts from then on
                transient = set(behaviours) == {"dead"}
            assert is_transient_gym_checkpoint_failure(error) == transient
        # the calls of one operation, each with grace and one pause, and stubborn ones' second
        assert running_loop().time() - began_s <= 5 * 6.0 + 3.0
        await world.examine()
        await asyncio.sleep(700)
        await world.examine()

    simulate(main)


CHECKPOINT = ("prepare", "renew", "commit")


async def test_b29_late_acknowledgement_of_an_expired_checkpoint(
    new_world: NewWorld, journal: Journal
) -> None:
    """B29: a reply to s1 that comes while s2 runs, be it an error, is seen by neither."""
    world = new_world(2, journal=journal, **SHORT)
    late = GymCheckpointPrepareSummary(True, {}, ())
    world.actors[0].scripts["prepare"] = [Stubborn(0.2, late)]
    world.actors[1].scripts["prepare"] = [Stubborn(0.25, RuntimeError("late failure"))]
    with pytest.raises(GymCheckpointOperationError) as caught:
        await world.coordinator.prepare("s1")
    assert {type(failure) for failure in caught.value.failures.values()} == {TimeoutError}
    summaries = await world.coordinator.prepare("s2")
    assert all(summary is not late for summary in summaries.values())
    await asyncio.sleep(0.2)
    await world.coordinator.resume("s2")
    entries = world.journal.read(world.run, "s2")
    assert [entry.trigger for entry in entries if entry.call == "prepare"].count("stale") == 0
    assert world.operation("s1").state == "discarded"


async def test_b29_late_resume_confirms(new_world: NewWorld) -> None:
    """A late answer to the first resume confirms the instance while the second try hangs."""
    world = new_world(1, control_timeout_s=0.1)
    world.actors[0].scripts["resume"] = [Late(0.25), HANG]
    await world.coordinator.prepare("late")
    await world.coordinator.resume("late")
    assert world.actors[0].ops == ["prepare", "resume", "resume"]
    assert world.operation("late").state == "discarded"


def test_b29_late_failure_is_of_the_ask_that_failed(tmp_path: Path) -> None:
    """B29: what the first resume fails with, late, is not taken for the answer to the second."""

    async def main() -> None:
        world = World(1, clock=LoopClock(), root=tmp_path, control_timeout_s=3.0)
        failing = GymCheckpointUnavailable("HTTP 503")
        world.actors[0].scripts["resume"] = [Late(8.0, failing), Late(2.0)]
        await world.coordinator.prepare("late")
        await world.coordinator.resume("late")  # the second ask leaves at 7 s, and ends well at 9 s
        entries = world.journal.read(world.run, "late")
        told = [(one.trigger, one.ask) for one in entries if one.call == "resume"]
        assert told == [("ask", 1), ("expire", 1), ("retry", 2), ("stale", 1), ("answer", 2)]

    simulate(main)


@pytest.mark.parametrize("verb", VERBS)
async def test_b30_each_reference_is_cancelled_once(
    new_world: NewWorld, cancelled: list[Any], verb: str
) -> None:
    """B30: whatever is no longer waited for is cancelled once, and a failing hook is no matter."""
    world = new_world(3, gives_futures=True, **SHORT)
    for actor in world.actors:
        actor.always[verb] = HANG
    for number in range(3):
        await fail(world, verb, f"b30-{number}")
    told = Counter(map(id, cancelled))
    sent = [call.reference for actor in world.actors for call in actor.of(verb)]
    assert {told[id(reference)] for reference in sent} == {1}
    assert set(told.values()) == {1}
    assert all(reference.done() for reference in cancelled)


async def test_b30_cancelled_caller_cancels_its_calls(
    new_world: NewWorld, cancelled: list[Any]
) -> None:
    """B30: the calls of a caller that was cancelled are cancelled remotely as well."""
    world = new_world(3, gives_futures=True, control_timeout_s=5.0, prepare_timeout_s=5.0)
    for actor in world.actors:
        actor.always["prepare"] = HANG
    preparing = asyncio.create_task(world.coordinator.prepare("gone"))
    await asyncio.sleep(0.02)
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    assert len({id(reference) for reference in cancelled}) == len(cancelled) == 3


async def test_restart_only_servers_is_bounded(new_world: NewWorld, cancelled: list[Any]) -> None:
    """The question about restart-only servers names every instance that did not answer well."""
    world = new_world(6, **SHORT)
    bad: list[Any] = [HANG, RuntimeError("no"), "tools", [5], {"tools": 1}]
    for actor, answer in zip(world.actors[1:], bad, strict=True):
        actor.always["restart_only_servers"] = lambda a=answer: a
    with pytest.raises(GymCheckpointOperationError) as caught:
        await world.coordinator.restart_only_servers()
    assert caught.value.operation == "restart_only_servers"
    assert set(caught.value.failures) == set(world.ids[1:])
    assert type(caught.value.failures["tools/replica-1"]) is TimeoutError
    assert len(cancelled) == 1


async def test_restart_only_servers_cancelled(new_world: NewWorld, cancelled: list[Any]) -> None:
    """A caller that stops asking about restart-only servers leaves nothing behind."""
    world = new_world(3, control_timeout_s=5.0, gives_futures=True)
    world.actors[0].always["restart_only_servers"] = RuntimeError("unseen")
    world.actors[1].always["restart_only_servers"] = HANG
    asking = asyncio.create_task(world.coordinator.restart_only_servers())
    await asyncio.sleep(0.02)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert len(cancelled) == 1


async def test_interrupt_while_asking(new_world: NewWorld) -> None:
    """B37: an interrupt that lands in the question about restart-only servers leaves as itself."""
    world = new_world(2)
    world.actors[0].always["restart_only_servers"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        await world.coordinator.restart_only_servers()
