"""Which failures may be gone at the next try (protocol facts, 2), and which actors are dead."""

from __future__ import annotations

import asyncio
import errno
import itertools
from typing import Any

import pytest
import ray
import ray.exceptions
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.errors import (
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    GymCheckpointUnavailable,
    RemoteFailure,
    is_actor_dead,
    is_transient_failure,
    is_transient_gym_checkpoint_failure,
)
from gymckpt.transience import CAUSE_LINKS_MAX
from tests.odd_exceptions import FAILURES, ClientResponseError
from tests.test_errors import EXAMPLES

INFRA_OF_RAY = [
    "RayActorError", "ActorDiedError", "ActorUnavailableError", "ActorUnschedulableError",
    "TaskUnschedulableError", "WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError",
    "OwnerDiedError", "RpcError", "GetTimeoutError", "ObjectFetchTimedOutError", "ObjectLostError",
    "OutOfMemoryError", "ObjectStoreFullError", "RaySystemError",
]  # fmt: skip
DATA_OF_RAY = [
    "RayError", "TaskCancelledError", "UnserializableException", "RayTaskError",
    "PendingCallsLimitExceeded", "OutOfDiskError", "RuntimeEnvSetupError", "UserCodeException",
    "CrossLanguageError",
]  # fmt: skip


def of_ray(name: str) -> BaseException:
    cls: type[BaseException] = getattr(ray.exceptions, name)
    return cls.__new__(cls)


@pytest.mark.parametrize("name", INFRA_OF_RAY)
def test_infrastructure_failures_of_ray_are_transient(name: str) -> None:
    """Each of Ray's failures of actors, workers, nodes and objects may be gone at the next try."""
    assert is_transient_failure(of_ray(name))


@pytest.mark.parametrize("name", DATA_OF_RAY)
def test_other_failures_of_ray_are_not_transient(name: str) -> None:
    """What arrives without a type, was cancelled, or fills a disk is not guessed to be harmless."""
    assert not is_transient_failure(of_ray(name))


@pytest.mark.parametrize(
    "failure",
    [
        TimeoutError(),
        TimeoutError(errno.ETIMEDOUT, "slow"),
        ConnectionError(),
        ConnectionResetError(),
        BrokenPipeError(),
        GymCheckpointUnavailable("HTTP 409 checkpoint_conflict"),
    ],
    ids=repr,
)
def test_timeouts_connections_and_refusals_are_transient(failure: BaseException) -> None:
    """A timeout, a lost connection and a refused live call may be gone at the next try."""
    assert is_transient_failure(failure)


@pytest.mark.parametrize(
    "failure",
    [
        ValueError("bad summary"),
        RuntimeError("not offered"),
        AttributeError("'NemoGym' object has no attribute 'rch'"),
        OSError(errno.ENOSPC, "full"),
        MemoryError(),
        asyncio.CancelledError(),
        KeyboardInterrupt(),
        ExceptionGroup("both", [TimeoutError()]),
        BaseExceptionGroup("both", [TimeoutError(), KeyboardInterrupt()]),
        RemoteFailure("TimeoutError", "slow"),
        EXAMPLES["GymCheckpointNotReady"],
        EXAMPLES["OperationOpen"],
        EXAMPLES["ManifestWithdrawn"],
        EXAMPLES["ParticipantRefused"],
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_everything_else_is_not_transient(failure: BaseException) -> None:
    """An unknown failure of one instance is not transient, also not a group of timeouts."""
    assert not is_transient_failure(failure)


def named(name: str, *bases: type[BaseException], module: str = "elsewhere") -> BaseException:
    cls = type(name, bases or (Exception,), {"__module__": module})
    return cls("text")


@pytest.mark.parametrize(
    "name",
    [
        "ClientConnectionError", "ClientPayloadError", "RolloutInfraFailure", "RolloutTimeout",
        "GenerationUnavailable", "NoHealthyShards", "GymTransportError", "GymCheckpointUnavailable",
    ],
)  # fmt: skip
def test_infrastructure_is_recognised_by_name_also_of_a_base(name: str) -> None:
    """A class of that name, or derived from one, counts without its library being imported."""
    failure = named(name)

    assert is_transient_failure(failure)
    assert is_transient_failure(named("Special", type(failure)))


@pytest.mark.parametrize("name", ["OutOfMemoryError", "RpcError"])
def test_common_names_count_only_as_rays_own(name: str) -> None:
    """A GPU without memory has the name of Ray's error and is none."""
    assert not is_transient_failure(named(name, module="torch"))
    assert is_transient_failure(named(name, module="ray.exceptions"))


@given(st.one_of(st.integers(), st.sampled_from([399, 400, 404, 408, 409, 429, 499, 500, 503])))
def test_an_http_answer_is_judged_by_its_status_alone(status: int) -> None:
    """Only 408, 429 and everything from 500 up may be gone at the next try."""
    assert is_transient_failure(ClientResponseError(status)) is (
        status >= 500 or status in {408, 429}
    )


@pytest.mark.parametrize("status", [None, "503", 503.0])
def test_an_http_answer_without_a_status_is_not_transient(status: Any) -> None:
    """A status that is no number says nothing."""
    assert not is_transient_failure(ClientResponseError(status))


def chained(*links: BaseException) -> BaseException:
    for error, cause in itertools.pairwise(links):
        error.__cause__ = cause
    return links[0]


@given(st.integers(0, 20))
def test_causes_are_followed_eight_links_deep(depth: int) -> None:
    """A timeout counts up to eight causes below the failure, and not beyond."""
    links = [RuntimeError(str(index)) for index in range(depth)]

    assert is_transient_failure(chained(*links, TimeoutError())) is (depth <= CAUSE_LINKS_MAX)


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(0, 5))
def test_a_failure_of_data_wins_wherever_it_stands(infra: list[bool], place: int) -> None:
    """One failure of data among the causes makes the whole chain permanent."""
    links: list[BaseException] = [TimeoutError() if infra_ else ValueError() for infra_ in infra]
    links.insert(place, named("RolloutDataFailure", TimeoutError))

    assert not is_transient_failure(chained(*links))


def test_a_circle_of_causes_ends() -> None:
    """A chain that bites its own tail is classified all the same."""
    first, second = RuntimeError("1"), RuntimeError("2")
    first.__cause__, second.__cause__ = second, first

    assert not is_transient_failure(first)


def test_the_context_of_a_failure_does_not_count() -> None:
    """An error that was merely raised while a timeout was handled is judged by itself."""
    failure = ValueError("bad")
    failure.__context__ = TimeoutError()

    assert not is_transient_failure(failure)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (GymCheckpointOperationError("commit", {"a": TimeoutError(), "b": TypeError("x")}), False),
        (GymCheckpointOperationError("commit", {"a": TimeoutError()}), True),
        (GymCheckpointOperationError("commit", {}), False),
        (GymCheckpointNotReady({}), True),
        (EXAMPLES["OperationOpen"], True),
        (GymCheckpointUnavailable("x"), False),
        (ValueError(), False),
        (RuntimeError(), False),
        (TimeoutError(), False),
        (OSError(errno.ENOSPC, "full"), False),
    ],
)
def test_one_timeout_plus_one_broken_reply_is_not_transient(
    error: BaseException, expected: bool
) -> None:
    """B4: an operation is tried again only if it failed, and every failure is transient."""
    assert is_transient_gym_checkpoint_failure(error) is expected


@given(st.dictionaries(st.text(), FAILURES, max_size=6))
def test_an_operation_is_transient_exactly_if_all_its_failures_are(
    failures: dict[str, BaseException],
) -> None:
    """The rule for an operation is the rule for its failures, and one is needed at least."""
    expected = bool(failures) and all(map(is_transient_failure, failures.values()))

    error = GymCheckpointOperationError("commit", failures)

    assert is_transient_gym_checkpoint_failure(error) is expected


@pytest.mark.parametrize(
    ("name", "dead"),
    [
        ("RayActorError", True),
        ("ActorDiedError", True),
        ("ActorUnavailableError", False),
        ("ActorUnschedulableError", False),
        ("WorkerCrashedError", False),
        ("NodeDiedError", False),
        ("GetTimeoutError", False),
    ],
)
def test_only_a_dead_actor_is_dead(name: str, dead: bool) -> None:
    """An actor that is merely unavailable may come back, and must still be reopened."""
    assert is_actor_dead(of_ray(name)) is dead
