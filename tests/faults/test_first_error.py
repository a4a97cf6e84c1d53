"""The first error is the one that leaves; what cleaning up could not do are notes on it (S9)."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.coordinator import (
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    GymCheckpointPrepareSummary,
    is_transient_gym_checkpoint_failure,
)
from gymckpt.errors import GymCheckpointUnavailable, OperationDiscarded
from gymckpt.journal import Journal
from tests.fakes import HANG, ActorDiedError, Apply, Immediate
from tests.faults.conftest import NewWorld
from tests.faults.virtual import LoopClock, simulate
from tests.faults.world import SHORT, World, new_id

NOT_READY = GymCheckpointPrepareSummary(False, {"agent": ("rollout-1",)})


def notes(error: BaseException) -> list[str]:
    """Return the notes on an error that say what cleaning up left undone."""
    return [note for note in getattr(error, "__notes__", ()) if note.startswith("cleanup")]


async def test_b2_lost_resume_does_not_replace_not_ready(
    new_world: NewWorld, journal: Journal
) -> None:
    """B2: blockers leave although the resume after them hangs; it is tried twice and noted."""
    world = new_world(1, journal=journal, **SHORT)
    world.actors[0].always |= {"prepare": NOT_READY, "resume": HANG}
    with pytest.raises(GymCheckpointNotReady, match="rollout-1") as caught:
        async with world.coordinator.prepared("b2"):
            pytest.fail("the body was entered")
    assert world.actors[0].ops == ["prepare", "resume", "resume"]
    assert len(notes(caught.value)) == 1
    assert is_transient_gym_checkpoint_failure(caught.value)


FAULTS: dict[str, Any] = {
    "fine": None,
    "hangs": HANG,
    "applied": Apply(HANG),
    "transient": GymCheckpointUnavailable("HTTP 503 no"),
    "broken": TypeError("broken"),
    "dead": ActorDiedError("dead"),
    "at once": Immediate(RuntimeError("cannot be sent")),
}
FIRST = {name: fault for name, fault in FAULTS.items() if name != "fine"} | {"blocked": NOT_READY}
VERBS = {
    "prepare": "checkpoint",
    "renew": "checkpoint",
    "commit": "checkpoint",
    "restore": "restore",
}


@given(
    verb=st.sampled_from(sorted(VERBS)),
    first=st.sampled_from(sorted(FIRST)),
    retire=st.sampled_from(sorted(FAULTS)),
    resume=st.sampled_from(sorted(FAULTS)),
    count=st.integers(1, 3),
    data=st.data(),
)
def test_b2_b12_any_first_error_survives_any_cleanup(
    verb: str, first: str, retire: str, resume: str, count: int, data: st.DataObject
) -> None:
    """B2, B12: whatever fails first leaves as itself; each failed step of cleaning up is a note."""
    if first == "blocked" and verb != "prepare":
        first = "broken"
    victim, other = (data.draw(st.integers(0, count - 1)) for _ in range(2))

    async def main() -> None:
        world = World(count, clock=LoopClock(), control_timeout_s=2.0, prepare_timeout_s=4.0)
        world.base = data_root
        world.actors[victim].always[verb] = FIRST[first]
        world.actors[other].always |= {"retire": FAULTS[retire], "resume": FAULTS[resume]}
        name = new_id()
        with pytest.raises((GymCheckpointOperationError, GymCheckpointNotReady)) as caught:
            await world.operate(VERBS[verb], name)
        if first == "blocked":
            assert isinstance(caught.value, GymCheckpointNotReady)
        else:
            assert isinstance(caught.value, GymCheckpointOperationError)
            assert caught.value.operation == verb
            assert set(caught.value.failures) == {world.ids[victim]}
        failed = [("retire", retire)] if verb == "restore" else []
        wanted = [step for step, fault in [*failed, ("resume", resume)] if fault != "fine"]
        said = notes(caught.value)
        assert [f"{step} failed" in note for step, note in zip(wanted, said, strict=True)] == [
            True
        ] * len(wanted)
        await world.examine()

    with tempfile.TemporaryDirectory() as directory:
        data_root = Path(directory)
        simulate(main)


@pytest.mark.parametrize("resume_fails", [False, True])
async def test_b12_cleanup_of_a_failed_restore_fails_too(
    new_world: NewWorld, journal: Journal, resume_fails: bool
) -> None:
    """B12: retire and resume are tried on every actor whatever fails, one note for each."""
    world = new_world(2, journal=journal)
    first, second = world.actors
    first.always |= {"restore": RuntimeError("restore"), "retire": RuntimeError("retire")}
    if resume_fails:
        first.always["resume"] = RuntimeError("resume")
    with pytest.raises(GymCheckpointOperationError) as caught:
        await world.coordinator.restore("b12", "/nowhere", world.manifest())
    assert caught.value.operation == "restore"
    assert [str(failure) for failure in caught.value.failures.values()] == ["restore"]
    assert len(notes(caught.value)) == 1 + resume_fails
    assert second.ops == ["restore", "retire", "resume"]
    assert first.ops[:3] == ["restore", "retire", "resume"]


@pytest.mark.parametrize("kind", ["prepared", "restored"])
async def test_b20_cancellation_survives_a_failing_rollback(
    new_world: NewWorld, journal: Journal, kind: str
) -> None:
    """B20: a cancelled body leaves as cancelled though rolling back fails, which is a note."""
    world = new_world(2, journal=journal)
    world.actors[0].always |= {
        "retire": GymCheckpointUnavailable("no retire"),
        "resume": GymCheckpointUnavailable("no resume"),
    }
    raised: list[BaseException] = []

    async def caller() -> None:
        opened = (
            world.coordinator.prepared("b20")
            if kind == "prepared"
            else world.coordinator.restored("b20", "/nowhere", world.manifest())
        )
        try:
            async with opened:
                inside.set()
                await asyncio.sleep(10)
        except BaseException as error:
            raised.append(error)
            raise

    inside = asyncio.Event()
    task = asyncio.create_task(caller())
    await inside.wait()
    task.cancel("stop it")
    with pytest.raises(asyncio.CancelledError, match="stop it"):
        await task
    assert task.cancelled()
    assert type(raised[0]) is asyncio.CancelledError
    steps = ["reopening"] if kind == "prepared" else ["retiring", "reopening"]
    assert [step in note for step, note in zip(steps, notes(raised[0]), strict=True)] == [
        True
    ] * len(steps)


class StrangeError(Exception):
    """An error of a body that takes no notes."""

    __notes__ = ()  # type: ignore[assignment]


def bodies() -> list[BaseException]:
    """Return one error of each sort that a body may raise."""
    return [
        ValueError("train"),
        ExceptionGroup("many", [ValueError("one")]),
        KeyboardInterrupt(),
        SystemExit(3),
        GymCheckpointOperationError("commit", {}),
        TimeoutError(),
        asyncio.CancelledError("mine"),
        StopIteration("value"),
        StopAsyncIteration(),
        GeneratorExit(),
        StrangeError("takes no notes"),
    ]


@pytest.mark.parametrize("kind", ["prepared", "committed", "restored"])
@pytest.mark.parametrize("cleanup", ["fine", "broken", "hangs"])
def test_b21_body_error_leaves_as_itself(kind: str, cleanup: str, tmp_path: Path) -> None:
    """B21, B37, B39: whatever a body raises leaves as that very object, whatever cleanup does."""
    for error in bodies():
        assert simulate(lambda error=error: leave_with(error, kind, cleanup, tmp_path)) is error
        assert cleanup == "fine" or isinstance(error, StrangeError) or notes(error)


async def leave_with(
    error: BaseException, kind: str, cleanup: str, root: Path
) -> BaseException | None:
    """Leave a context manager with an error, and return what comes out of it."""
    world = World(2, clock=LoopClock(), root=root)
    world.actors[1].always["resume"] = FAULTS[cleanup]
    name = new_id()
    opened: Any = world.coordinator.prepared(name)
    if kind == "restored":
        opened = world.coordinator.restored(name, "/nowhere", world.manifest())
    elif kind == "committed":
        opened = world.committed(name, world.root(name))
    await opened.__aenter__()
    try:
        swallowed = await opened.__aexit__(type(error), error, None)
    except BaseException as left:
        found: BaseException | None = left
    else:
        found = None if swallowed else error
    await world.examine()
    return found


async def test_b21_good_body_with_a_failing_resume(
    new_world: NewWorld, caplog: pytest.LogCaptureFixture, journal: Journal
) -> None:
    """B21: a good body is not spoilt by a resume that fails twice; a warning says so."""
    world = new_world(2, journal=journal)
    world.actors[0].always["resume"] = GymCheckpointUnavailable("HTTP 503 still closed")
    with caplog.at_level(logging.WARNING, logger="gymckpt"):
        async with world.committed("b21", world.root()):
            pass
    assert [actor.ops.count("resume") for actor in world.actors] == [2, 1]
    assert "still closed" in caplog.text
    assert "b21" in caplog.text
    assert world.operation("b21").state == "resuming"


async def test_b21_the_verb_resume_raises(new_world: NewWorld) -> None:
    """B21: called by hand, a resume that fails on an instance is an error that names it."""
    world = new_world(2)
    world.actors[0].always["resume"] = GymCheckpointUnavailable("HTTP 503")
    await world.coordinator.prepare("byhand")
    with pytest.raises(GymCheckpointOperationError) as caught:
        await world.coordinator.resume("byhand")
    assert caught.value.operation == "resume"
    assert set(caught.value.failures) == {"tools/replica-0"}
    await world.coordinator.prepare("next")  # it does not count as open
    world.actors[0].always.clear()
    await world.coordinator.resume("next")


@pytest.mark.parametrize("then", ["ends", "fails", "goes on"])
@pytest.mark.parametrize("by", ["the body", "a task of the body"])
@pytest.mark.parametrize("commits", [True, False])
async def test_resume_in_the_body(new_world: NewWorld, commits: bool, by: str, then: str) -> None:
    """A body that lets the instances go on itself is not cancelled for it, nor told of a loss."""
    world = new_world(2, **SHORT)
    world.actors[1].scripts["resume"] = [GymCheckpointUnavailable("HTTP 503")]
    told = then if then == "fails" else None

    async def body() -> None:
        async with world.coordinator.prepared("early"):
            if commits:
                offered = world.offer()
                await world.coordinator.commit("early", world.root(), offered, restarts={})
            resuming = world.coordinator.resume("early")
            await (resuming if by == "the body" else asyncio.create_task(resuming))
            if then == "goes on":
                await asyncio.sleep(0.1)
            if told:
                raise ValueError(told)

    try:
        await body()
    except ValueError as error:
        assert str(error) == told
    else:
        assert told is None
    assert all(actor.calls[-1].op == "resume" for actor in world.actors)
    assert world.operation("early").state == ("resumed" if commits else "discarded")


async def test_resume_by_somebody_else(new_world: NewWorld) -> None:
    """A body is told that its instances go on where another task has let them."""
    world = new_world(2, **SHORT)
    inside = asyncio.Event()

    async def body() -> None:
        async with world.coordinator.prepared("one"):
            inside.set()
            await asyncio.sleep(30.0)

    working = asyncio.create_task(body())
    await inside.wait()
    await world.coordinator.resume("one")
    with pytest.raises(OperationDiscarded, match="the caller is done"):
        await working


async def test_lost_lease_and_failing_body(new_world: NewWorld) -> None:
    """A body that fails while its lease is lost raises its own error with the loss as a note."""
    world = new_world(1, **SHORT)
    world.actors[0].scripts["renew"] = [None]
    world.actors[0].always["renew"] = AttributeError("restarted empty")
    with pytest.raises(ValueError, match="train") as caught:
        async with world.coordinator.prepared("both"):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                raise ValueError("train") from None
    assert any("renew failed" in note for note in caught.value.__notes__)


async def test_body_that_hides_its_failed_commit(new_world: NewWorld) -> None:
    """A body that catches the error of its commit ends well: the checkpoint is discarded."""
    world = new_world(2)
    world.actors[0].always["commit"] = RuntimeError("no")
    async with world.coordinator.prepared("hidden") as restarts:
        with pytest.raises(GymCheckpointOperationError):
            await world.coordinator.commit(
                "hidden", world.root(), world.offer(), restarts=dict.fromkeys(restarts, ())
            )
    assert world.operation("hidden").state == "discarded"
    assert not (world.root() / "gym_checkpoint.json").exists()


STEPS = (
    "prepare",
    "not ready",
    "first renewal",
    "commit",
    "bad reply",
    "manifest",
    "body",
    "renewal",
)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("count", [1, 3])
async def test_b31_every_step_fails_in_turn(new_world: NewWorld, step: str, count: int) -> None:
    """B31: whichever step fails, its error leaves and each actor's last call is its resume."""
    world = new_world(count, **SHORT | {"control_timeout_s": 0.3})
    victim, failure = world.actors[-1], RuntimeError(step)
    errors: dict[str, Any] = {"prepare": failure, "not ready": NOT_READY, "commit": failure}
    if step in errors:
        victim.always["commit" if step == "commit" else "prepare"] = errors[step]
    elif step == "first renewal":
        victim.always["renew"] = failure
    elif step == "bad reply":
        victim.always["commit"] = {}
    elif step == "manifest":
        world.root().write_text("a file where a directory is needed")
    with pytest.raises((RuntimeError, OSError)) as caught:
        async with world.committed("b31", world.root()):
            if step == "body":
                raise failure
            victim.always["renew"] = failure
            await asyncio.sleep(10)
    if step == "manifest":
        assert isinstance(caught.value, OSError)
    elif step == "not ready":
        assert isinstance(caught.value, GymCheckpointNotReady)
    elif step == "body":
        assert caught.value is failure
    else:
        assert isinstance(caught.value, GymCheckpointOperationError)
        names = {"first renewal": "renew", "renewal": "renew", "bad reply": "commit"}
        assert caught.value.operation == names.get(step, step)
    for actor in world.actors:
        assert (actor.calls[-1].op, actor.calls[-1].wire_id) == ("resume", "b31")
