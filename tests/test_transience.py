"""Which failures may be gone at the next try (protocol facts, 2), and which actors are dead."""

from __future__ import annotations

import ast
import asyncio
import errno
import itertools
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.exceptions
from hypothesis import given
from hypothesis import strategies as st

import gymckpt
from gymckpt.errors import (
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    GymCheckpointUnavailable,
    RemoteFailure,
    is_actor_dead,
    is_transient_failure,
    is_transient_gym_checkpoint_failure,
)
from gymckpt.standins import forbid_retry, notes_of
from gymckpt.transience import CAUSE_LINKS_MAX, LASTING_REFUSALS, refusal_code
from tests.odd_exceptions import FAILURES, ClientResponseError
from tests.test_errors import EXAMPLES, PICKLERS, delivered, travelled

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


# --- refusals -----------------------------------------------------------------------------------

REFUSALS = {
    # a next try has a new id and a new deadline, and finds other work ended
    "stale_checkpoint": True,
    "checkpoint_conflict": True,
    "invalid_phase": True,
    "deadline_exceeded": True,
    "checkpoint_parked": True,
    "admission_closed": True,
    "checkpoint_coordinator_unavailable": True,
    "checkpoint_error": True,
    # a next try says the same of the same attempts, episodes, directories and files
    "stale_attempt": False,
    "restart_in_scope": False,
    "checkpoint_exists": False,
    # nothing about the request changes
    "rollout_id_required": False,
    "unauthorized": False,
    "invalid_checkpoint_state": False,
    # what no release knows yet, and a backend that gives no code
    "of_a_later_release": True,
    "": True,
}
"""Every code of a refusal (protocol facts, 12), and whether the next try may succeed."""


@pytest.mark.parametrize("transient_code", REFUSALS.items(), ids=REFUSALS)
def test_a_refusal_is_judged_by_its_code(transient_code: tuple[str, bool]) -> None:
    """The code says it, as it was raised, pickled, delivered by Ray, and as a cause."""
    code, expected = transient_code
    refusal = GymCheckpointUnavailable("HTTP 409, whatever it says", code=code)
    through_one = delivered(refusal)
    ways: list[BaseException] = [
        refusal,
        *(travelled(refusal, dumps) for dumps in PICKLERS.values()),
        through_one,
        travelled(through_one, PICKLERS["cloudpickle"]),
        chained(ValueError("it failed"), refusal),
    ]
    assert [is_transient_failure(way) for way in ways] == [expected] * len(ways)
    assert {refusal_code(way) for way in ways[:-1]} == {code}
    error = GymCheckpointOperationError("restore", {"a": refusal, "b": TimeoutError()})
    assert is_transient_gym_checkpoint_failure(error) is expected
    for dumps in PICKLERS.values():
        assert is_transient_gym_checkpoint_failure(travelled(error, dumps)) is expected


@pytest.mark.parametrize("code", REFUSALS)
def test_no_wording_makes_a_refusal_lasting(code: str) -> None:
    """A backend may put any code into its text; only the field counts."""
    assert is_transient_failure(GymCheckpointUnavailable(f"HTTP 409 {code} of r1"))
    assert is_transient_failure(named("GymCheckpointUnavailable"))


@pytest.mark.parametrize("code", [None, 7, ["stale_attempt"]])
def test_an_odd_code_is_none(code: Any) -> None:
    """Whatever somebody else's class of that name holds, it is judged and nothing raises."""
    refusal = named("GymCheckpointUnavailable")
    refusal.code = code  # type: ignore[attr-defined]
    assert refusal_code(refusal) == ""
    assert is_transient_failure(refusal)


def test_a_code_means_something_on_refusals_alone() -> None:
    """A connection error with an attribute of that name is a connection error."""
    error = ConnectionError("lost")
    error.code = "stale_attempt"  # type: ignore[attr-defined]
    assert is_transient_failure(error)


def test_every_code_that_is_given_is_in_the_table() -> None:
    """The participants' side refuses with no code that nobody has thought about."""
    given = {
        node.args[place].value
        for path in Path(gymckpt.__file__).parent.joinpath("participant").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        for name, place in (("ParticipantRefused", 0), ("_refusal", 1))
        if ast.unparse(node.func) == name and isinstance(node.args[place], ast.Constant)
    }
    assert len(given) > 6
    assert given <= REFUSALS.keys()
    assert {code for code, expected in REFUSALS.items() if not expected} == set(LASTING_REFUSALS)
    documented = Path(__file__).parents[1].joinpath("docs", "protocol.md").read_text("utf-8")
    assert [code for code in REFUSALS if f"`{code}`" not in documented] == [
        "of_a_later_release",
        "",
    ]


@pytest.mark.parametrize("dumps", PICKLERS.values(), ids=PICKLERS)
@pytest.mark.parametrize(
    "error",
    [
        GymCheckpointNotReady({"a": {"agent": ("r1",)}}),
        GymCheckpointOperationError("restore", {"a": TimeoutError()}),
        EXAMPLES["OperationOpen"],
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_no_retry_mends_stays_one_wherever_it_goes(error: Any, dumps: Any) -> None:
    """The mark goes with the error through either pickler, with the note that says why."""
    assert is_transient_gym_checkpoint_failure(error)
    lasting = travelled(error, dumps)
    forbid_retry(lasting, "take another snapshot")
    for way in (lasting, travelled(lasting, dumps), travelled(travelled(lasting, dumps), dumps)):
        assert not is_transient_gym_checkpoint_failure(way)
        assert "take another snapshot" in notes_of(way)
    assert is_transient_gym_checkpoint_failure(travelled(error, dumps))
