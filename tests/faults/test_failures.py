"""Failures of any class and shape: named, classified, carried, and never guessed to be harmless."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.coordinator import (
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    GymCheckpointPrepareSummary,
    is_transient_gym_checkpoint_failure,
)
from gymckpt.errors import GymCheckpointUnavailable, RemoteFailure
from gymckpt.journal import Journal
from tests.fakes import HANG, ActorDiedError, Immediate
from tests.faults.conftest import NewWorld
from tests.faults.virtual import LoopClock, simulate
from tests.faults.world import SHORT, World, new_id


def test_b4_transient_only_if_all_failures_are() -> None:
    """B4: one broken reply makes the error no transient one; nor is an error without failures."""
    timeout, broken = TimeoutError(), TypeError("bad summary")
    cases: list[tuple[BaseException, bool]] = [
        (GymCheckpointOperationError("commit", {"a": timeout, "b": broken}), False),
        (GymCheckpointOperationError("commit", {"a": timeout}), True),
        (GymCheckpointOperationError("commit", {}), False),
        (ValueError(), False),
        (RuntimeError(), False),
        (TimeoutError(), False),
        (GymCheckpointUnavailable("outside of an operation"), False),
    ]
    for error, transient in cases:
        assert is_transient_gym_checkpoint_failure(error) is transient, error


@pytest.mark.parametrize("verb", ["prepare", "renew", "commit", "restore", "retire", "resume"])
async def test_b4_timeout_beside_a_broken_reply(new_world: NewWorld, verb: str) -> None:
    """B4: a real timeout of one instance beside a broken one is reported whole, not transient."""
    world = new_world(2, **SHORT)
    world.actors[0].always[verb] = HANG
    world.actors[1].always[verb] = TypeError("bad summary")
    kind = "checkpoint" if verb in ("prepare", "renew", "commit") else verb
    with pytest.raises(GymCheckpointOperationError) as caught:
        await world.operate(kind, "b4")
    assert {type(failure) for failure in caught.value.failures.values()} == {
        TimeoutError,
        TypeError,
    }
    assert not is_transient_gym_checkpoint_failure(caught.value)


EMPTY = AttributeError("'NemoGym' object has no attribute 'rch'")
PHASES = ("prepare", "renew", "commit", "resume", "restore", "retire")


@pytest.mark.parametrize("phase", PHASES)
async def test_b23_restarted_actor_is_alive_but_empty(
    new_world: NewWorld, journal: Journal, phase: str
) -> None:
    """B23: whenever an actor loses its servers that is no transient error and is not retried."""
    world = new_world(3, journal=journal)
    victim = world.actors[1]
    victim.always[phase] = lambda *_args, **_kwargs: victim.fail_from(None, EMPTY) or EMPTY
    kind = "restore" if phase in ("restore", "retire") else "checkpoint"
    if phase == "retire":
        world.actors[0].always["restore"] = RuntimeError("first")
    if phase == "resume":
        await world.operate(kind, "b23")  # which stands; the instance's lease sees to the rest
    else:
        with pytest.raises(GymCheckpointOperationError) as caught:
            await world.operate(kind, "b23")
        assert not is_transient_gym_checkpoint_failure(caught.value)
    assert len([call for call in victim.of("resume") if call.wire_id == "b23"]) == 1
    for actor in (world.actors[0], world.actors[2]):
        assert actor.calls[-1].op == "resume"
        assert len([call for call in actor.of("resume") if call.wire_id == "b23"]) == 1


class ReadOnlyError(Exception):
    @property
    def args(self) -> Any:  # type: ignore[override]
        raise AttributeError("read-only")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class UnpicklableError(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not by pickle")


class ManyError(Exception):
    def __init__(self, one: int, two: str, *, three: float) -> None:
        super().__init__(one)
        self.values = (one, two, three)


class StrayError(BaseException):
    """Not an Exception."""


class OddStatusError(Exception):
    """Named as an HTTP client's error, with a status that cannot be read."""

    @property
    def status(self) -> int:
        raise RuntimeError("no status")


OddStatusError.__name__ = "ClientResponseError"


class MutinousError(Exception):
    """Compares and hashes by raising."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")


def odd_failures() -> list[BaseException]:
    """Return failures of odd classes, none of them transient."""
    cyclic = RuntimeError("cause of itself")
    cyclic.__cause__ = cyclic
    return [
        ExceptionGroup("group", [TimeoutError(), ValueError()]),
        BaseExceptionGroup("group", [KeyboardInterrupt()]),
        ReadOnlyError("x"),
        UnprintableError(),
        UnpicklableError("x"),
        ManyError(1, "2", three=3.0),
        StrayError("stray"),
        GeneratorExit(),
        OddStatusError(),
        MutinousError("x"),
        cyclic,
        asyncio.CancelledError("by the actor"),
        asyncio.InvalidStateError("x"),
        ValueError("\ud800\0"),
        ValueError("x" * 1_000_000),
        KeyError(),
        StopAsyncIteration(),
        MemoryError(),
        OSError(28, "No space left on device"),
        RecursionError(),
        NotImplementedError(),
    ]


@pytest.mark.parametrize("immediate", [False, True])
@pytest.mark.parametrize("gives_futures", [False, True])
def test_b36_any_exception_object_may_turn_up(
    immediate: bool, gives_futures: bool, tmp_path: Any
) -> None:
    """B36, B19: whatever an actor ends with gives an error that is readable, travels, and stays."""

    async def main() -> None:
        for failure in odd_failures():
            world = World(2, clock=LoopClock(), root=tmp_path, gives_futures=gives_futures)
            world.actors[1].always["commit"] = Immediate(failure) if immediate else failure
            name = new_id()
            with pytest.raises(GymCheckpointOperationError) as caught:
                await world.operate("checkpoint", name)
            error = caught.value
            assert error.operation == "commit"
            assert set(error.failures) == {"tools/replica-1"}
            kept = error.failures["tools/replica-1"]
            assert type(failure).__name__ in (type(kept).__name__, getattr(kept, "type_name", ""))
            assert isinstance(kept, Exception | asyncio.CancelledError)
            assert not is_transient_gym_checkpoint_failure(error)
            assert len(str(error)) < 20_000
            for module in (pickle, cloudpickle):
                travelled = pickle.loads(module.dumps(error))
                assert str(travelled) == str(error)
                assert travelled.operation == "commit"
                assert not is_transient_gym_checkpoint_failure(travelled)
            assert world.operation(name).state == "discarded"
            await world.examine()

    simulate(main)


class RayTaskError(Exception):
    """Stands for what arrives when an error could not be carried."""


class UnserializableException(Exception):
    """Stands for Ray's class of that name."""


async def test_b18_error_that_arrives_without_its_type(new_world: NewWorld) -> None:
    """B18: an error that lost its type on the way is no transient one, and its text is kept."""
    world = new_world(2)
    world.actors[0].always["commit"] = UnserializableException("header object")
    world.actors[1].always["commit"] = RayTaskError("TimeoutError: looks transient")
    with pytest.raises(GymCheckpointOperationError, match="looks transient") as caught:
        await world.operate("checkpoint", "b18")
    assert "header object" in str(caught.value)
    assert not is_transient_gym_checkpoint_failure(caught.value)


class OneError(RuntimeError):
    """An error with two arguments and no way to be pickled by default."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


@given(
    failures=st.dictionaries(
        st.sampled_from([f"tools/replica-{index}" for index in range(5)]),
        st.sampled_from(
            [TimeoutError("t"), ValueError("v"), OneError("a", "b"), ActorDiedError("d")]
        ),
        max_size=5,
    ),
    notes=st.lists(st.text(max_size=20), max_size=3),
)
def test_b19_operation_errors_travel(failures: dict[str, Any], notes: list[str]) -> None:
    """B19: an operation error keeps its type, facts, message and notes when it travels."""
    error = GymCheckpointOperationError("commit", failures)
    for note in notes:
        error.add_note(note)
    for module in (pickle, cloudpickle):
        again = pickle.loads(pickle.dumps(pickle.loads(module.dumps(error))))
        assert type(again) is GymCheckpointOperationError
        assert (again.operation, str(again)) == ("commit", str(error))
        assert list(getattr(again, "__notes__", [])) == notes
        assert set(again.failures) == set(failures)
        for name, failure in failures.items():
            kept = again.failures[name]
            assert type(kept) in (type(failure), RemoteFailure)
            assert type(failure).__name__ in str(again)
        assert is_transient_gym_checkpoint_failure(again) <= is_transient_gym_checkpoint_failure(
            error
        )


async def test_b19_errors_that_left_travel(new_world: NewWorld) -> None:
    """B19: the errors that really left a coordinator travel, with the notes of its cleaning up."""
    world = new_world(2, **SHORT)
    world.actors[0].always |= {"commit": UnpicklableError("x"), "resume": HANG}
    with pytest.raises(GymCheckpointOperationError) as caught:
        await world.operate("checkpoint", "b19")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.__notes__) == (str(caught.value), caught.value.__notes__)
    assert isinstance(again.failures["tools/replica-0"], RemoteFailure)
    world.actors[0].always = {"prepare": GymCheckpointPrepareSummary(False, {"a": ("b",)})}
    with pytest.raises(GymCheckpointNotReady) as not_ready:
        await world.operate("checkpoint", "again")
    assert pickle.loads(pickle.dumps(not_ready.value)).blockers == not_ready.value.blockers
