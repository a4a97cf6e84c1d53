"""What leaves a deployment when one of its methods raises."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import socket
from typing import Any

import cloudpickle
import pytest

from gymckpt.errors import GymCheckpointUnavailable, ParticipantRefused, RemoteFailure
from gymckpt.participant.boundary import answers
from gymckpt.participant.deployment import Deployment
from gymckpt.participant.gymnasium import GymnasiumDeployment


class TwoArguments(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


class Builtin(OSError):
    """Not of ours, though its base is."""


class Host:
    instance_id = "tools/replica-0"

    @answers("commit")
    async def raises(self, error: BaseException) -> None:
        """Raise what it is given."""
        raise error


async def failure(error: BaseException) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - it is looked at below
        await Host().raises(error)
    return caught.value


async def test_refusals_keep_their_code() -> None:
    """A refusal leaves as the one class that RL knows, with operation, instance, code, detail."""
    left = await failure(ParticipantRefused("invalid_phase", "env: not now"))
    assert type(left) is GymCheckpointUnavailable
    assert str(left) == "commit on tools/replica-0: invalid_phase env: not now"


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), TypeError("x"), OSError(28, "No space left"), RemoteFailure("A", "b")],
)
async def test_plain_errors_leave_as_they_are(error: Exception) -> None:
    """Python's and our own exceptions are known on the other side."""
    assert await failure(error) is error


@pytest.mark.parametrize(
    "error",
    [TwoArguments(1, 2), Builtin("x"), ExceptionGroup("several", [ValueError("x")])],
)
async def test_other_errors_leave_as_stand_ins_that_travel(error: Exception) -> None:
    """Foreign classes and groups become text that any pickler carries."""
    left = await failure(error)
    assert isinstance(left, RemoteFailure)
    assert left.type_name == type(error).__name__
    for pickler in (pickle, cloudpickle):
        again = pickler.loads(pickler.dumps(left))
        assert (type(again), str(again)) == (RemoteFailure, str(left))


async def test_an_error_that_holds_a_socket_leaves_without_it() -> None:
    """What no pickler can carry is not sent along with an error of a known class."""
    with socket.socket() as held:
        left = await failure(ValueError("while talking", held))
    assert isinstance(left, RemoteFailure)
    assert "while talking" in left.text


async def test_control_flow_is_not_touched() -> None:
    """Cancellation and interrupts leave as themselves."""
    for error in (asyncio.CancelledError(), KeyboardInterrupt()):
        assert await failure(error) is error


def test_every_call_of_the_wire_is_async_and_guarded() -> None:
    """All public methods that an actor offers are coroutines with the arguments of the wire."""
    expected: dict[str, list[str]] = {
        "checkpoint_prepare": ["checkpoint_id", "deadline_ts"],
        "checkpoint_renew": ["checkpoint_id", "deadline_ts"],
        "checkpoint_commit": ["checkpoint_id", "root", "episodes", "deadline_ts"],
        "checkpoint_retire": ["checkpoint_id", "episodes", "deadline_ts"],
        "checkpoint_forget": ["checkpoint_id", "rollout_ids", "deadline_ts"],
        "checkpoint_restore": [
            "restore_id", "root", "episodes", "source_checkpoint_id", "participants", "deadline_ts",
        ],
        "checkpoint_resume": ["checkpoint_id", "deadline_ts"],
        "checkpoint_restart_only_servers": [],
        "checkpoint_status": [],
    }  # fmt: skip
    methods: dict[str, Any] = {
        name: method for name, method in vars_of(Deployment) if name.startswith("checkpoint_")
    }
    assert methods.keys() == expected.keys()
    for name, method in methods.items():
        assert inspect.iscoroutinefunction(method), name
        assert hasattr(method, "__wrapped__"), name
        signature = inspect.signature(method.__wrapped__)
        parameters = [
            parameter
            for parameter in list(signature.parameters.values())[1:]
            if not parameter.name.startswith("_ray_")  # what Ray adds to the class of an actor
        ]
        assert [parameter.name for parameter in parameters] == expected[name]
        if parameters:
            assert parameters[-1].kind is inspect.Parameter.KEYWORD_ONLY
    for name in ("run", "attach", "close"):
        assert inspect.iscoroutinefunction(getattr(GymnasiumDeployment, name))


def vars_of(cls: type) -> list[tuple[str, Any]]:
    return [(name, getattr(cls, name)) for name in dir(cls)]
