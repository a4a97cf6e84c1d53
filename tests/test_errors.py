"""The error vocabulary: wording, stand-ins, what is transient, and travelling between processes."""

from __future__ import annotations

import asyncio
import copy
import errno
import inspect
import itertools
import pickle
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
import ray
import ray.exceptions
from hypothesis import given
from hypothesis import strategies as st

from gymckpt import errors
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import (
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    GymCheckpointUnavailable,
    IllegalTransition,
    OperationOpen,
    RemoteFailure,
    is_actor_dead,
    is_transient_failure,
    is_transient_gym_checkpoint_failure,
    show,
    tame,
    text_of,
)
from gymckpt.standins import pack
from gymckpt.transience import CAUSE_LINKS_MAX
from gymckpt.wording import TEXT_MAX
from tests.test_wording import TEXTS

MESSAGE_MAX = 20_000

PICKLERS = {"pickle": pickle.dumps, "cloudpickle": cloudpickle.dumps}


def travelled(error: Any, dumps: Callable[[Any], bytes]) -> Any:
    return pickle.loads(dumps(error))


# --- exceptions that nobody would write on purpose -----------------------------------------------


class StrRaises(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class StrPanics(Exception):
    def __str__(self) -> str:
        raise BaseOnly("a library in another language gave up")


class ReprRaises(Exception):
    def __repr__(self) -> str:
        raise ValueError("no repr")


class BaseOnly(BaseException):
    pass


class ArgsProperty(Exception):
    @property
    def args(self) -> Any:
        raise AttributeError("args")


class CauseProperty(Exception):
    @property
    def __cause__(self) -> Any:
        raise RuntimeError("cause")


class CauseText(Exception):
    __cause__: Any = "not an exception"


class NotesProperty(Exception):
    @property
    def __notes__(self) -> Any:
        raise RuntimeError("notes")


class NotesNumber(Exception):
    __notes__: Any = 5


class TwoArguments(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")


class HoldsLock(TimeoutError):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class LoadsOther(Exception):
    def __reduce__(self) -> Any:
        return (str, ("no exception at all",))


class ReduceRaises(Exception):
    def __reduce__(self) -> Any:
        raise BaseOnly("cannot be pickled, and says so rudely")


class ClientResponseError(Exception):
    """Stands for aiohttp's class, which is recognised by its name."""

    def __init__(self, status: Any) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class StatusProperty(ClientResponseError):
    status: Any = property(lambda _self: 1 / 0, lambda _self, _value: None)


def nested_group(depth: int) -> BaseExceptionGroup[BaseException]:
    group: BaseExceptionGroup[BaseException] = ExceptionGroup("group", [TimeoutError("slow")])
    for _level in range(depth):
        group = BaseExceptionGroup("group", [group, BaseOnly("odd")])
    return group


ODD_EXCEPTIONS = st.one_of(
    st.builds(
        lambda make, text: make(text),
        st.sampled_from([
            StrRaises, StrPanics, ReprRaises, BaseOnly, ArgsProperty, CauseProperty, CauseText,
            NotesProperty, NotesNumber, HoldsLock, LoadsOther, ReduceRaises, StatusProperty,
            ValueError, KeyError, TimeoutError, ConnectionResetError, KeyboardInterrupt,
            SystemExit, GeneratorExit, asyncio.CancelledError, GymCheckpointUnavailable,
            ray.exceptions.RaySystemError, ray.exceptions.UnserializableException,
        ]),
        TEXTS,
    ),
    st.builds(TwoArguments, st.integers(), TEXTS),
    st.builds(ClientResponseError, st.one_of(st.integers(), st.none(), st.text())),
    st.builds(nested_group, st.integers(0, 12)),
    st.builds(RemoteFailure, st.text(), TEXTS, TEXTS),
    st.builds(type("E" * 500, (Exception,), {}), TEXTS),
)  # fmt: skip


def with_cause(error: BaseException, cause: BaseException | None) -> BaseException:
    if not isinstance(error, CauseProperty):
        error.__cause__ = cause
    return error


FAILURES = st.builds(with_cause, ODD_EXCEPTIONS, st.none() | ODD_EXCEPTIONS)


@given(FAILURES)
def test_any_exception_object_can_be_named_tamed_and_classified(failure: BaseException) -> None:
    """Naming, taming and classifying never raise, and the tamed form prints and is ordinary."""
    named = text_of(failure)
    quoted = show(failure)
    tamed = tame(failure)

    assert len(named) <= TEXT_MAX
    assert len(quoted) <= TEXT_MAX
    assert f"{named}{quoted}".encode()
    assert isinstance(tamed, Exception | asyncio.CancelledError)
    assert not isinstance(tamed, BaseExceptionGroup)
    assert str(tamed) is not None
    assert repr(tamed)
    assert is_transient_failure(failure) in (True, False)
    assert is_actor_dead(failure) is False


@given(FAILURES)
def test_taming_never_makes_a_failure_transient(failure: BaseException) -> None:
    """A tamed failure is transient only if the failure was; a stand-in never is."""
    tamed = tame(failure)

    if tamed is not failure:
        assert isinstance(tamed, RemoteFailure)
        assert not is_transient_failure(tamed)
    assert is_transient_failure(failure) or not is_transient_failure(tamed)


@pytest.mark.parametrize("dumps", PICKLERS.values(), ids=PICKLERS)
@given(
    failures=st.dictionaries(st.text(min_size=1), FAILURES, max_size=8),
    notes=st.lists(st.text(), max_size=3),
)
def test_an_operation_error_with_any_failures_travels(
    dumps: Callable[[Any], bytes], failures: dict[str, BaseException], notes: list[str]
) -> None:
    """Either pickler keeps type, operation, instances, message and notes; none turns transient."""
    error = GymCheckpointOperationError("commit", failures)
    for note in notes:
        error.add_note(note)

    arrived = travelled(error, dumps)

    assert type(arrived) is GymCheckpointOperationError
    assert arrived.operation == "commit"
    assert arrived.failures.keys() == failures.keys()
    assert str(arrived) == str(error)
    assert getattr(arrived, "__notes__", []) == notes
    assert len(str(error)) < MESSAGE_MAX
    for instance, failure in failures.items():
        assert is_transient_failure(failure) or not is_transient_failure(arrived.failures[instance])


def test_a_failure_that_cannot_be_pickled_becomes_text_and_is_not_transient() -> None:
    """A timeout that holds a lock arrives as a stand-in with its type's name, text and notes."""
    failure = HoldsLock("took too long")
    failure.add_note("asked twice")
    error = GymCheckpointOperationError("renew", {"a/replica-0": failure})
    assert is_transient_gym_checkpoint_failure(error)

    arrived = travelled(error, pickle.dumps)

    stand_in = arrived.failures["a/replica-0"]
    assert isinstance(stand_in, RemoteFailure)
    assert (stand_in.type_name, stand_in.text) == ("HoldsLock", "took too long")
    assert stand_in.__notes__ == ["asked twice"]
    assert not is_transient_gym_checkpoint_failure(arrived)


def test_a_stand_in_keeps_the_traceback_as_text() -> None:
    """What an exception group held is still readable when the group has become text."""
    try:
        raise ExceptionGroup("both", [TimeoutError("slow"), ValueError("wrong")])
    except ExceptionGroup as group:
        stand_in = tame(group)

    assert isinstance(stand_in, RemoteFailure)
    assert "ValueError: wrong" in stand_in.traceback_text
    assert "test_a_stand_in_keeps_the_traceback_as_text" in stand_in.traceback_text


def test_a_failure_whose_class_is_missing_arrives_as_its_stand_in() -> None:
    """Where a failure's own module cannot be imported, its text takes its place."""
    packed = pack(TimeoutError("slow"))
    there = type(packed)(packed.pickled.replace(b"TimeoutError", b"NoSuchErrorX"), packed.stand_in)

    arrived = there.unpack()

    assert isinstance(arrived, RemoteFailure)
    assert str(arrived) == "TimeoutError: slow"


# --- the vocabulary ------------------------------------------------------------------------------

ARGUMENTS: dict[str, Any] = {
    "failures": {"a/replica-0": TimeoutError("slow")},
    "blockers": {"a/replica-0": {"agent": ("r1", "r2-a3")}},
    "episodes": {"a/replica-0": (EnvironmentEpisode("r1", 0),)},
    "servers": {"a/replica-0": ("tools",)},
    "legal": ("prepare",),
    "str": "some text",
    "int": 3,
    "float": 1.5,
}
"""What to make an error with, by the name of a parameter or by its type."""


def example_of(cls: type[BaseException]) -> BaseException:
    if not inspect.isfunction(cls.__init__):
        return cls("some text")
    parameters = list(inspect.signature(cls).parameters.values())
    return cls(*(ARGUMENTS.get(it.name) or ARGUMENTS[it.annotation] for it in parameters))


EXAMPLES = {
    name: example_of(value)
    for name in errors.__all__
    if isinstance(value := getattr(errors, name), type) and issubclass(value, BaseException)
}
"""One error of every public class, also of those that will be added."""


@pytest.mark.parametrize("dumps", PICKLERS.values(), ids=PICKLERS)
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_error_survives_pickling(name: str, dumps: Callable[[Any], bytes]) -> None:
    """Type, message, fields and notes of each error are the same after the trip."""
    error = copy.copy(EXAMPLES[name])
    error.__notes__ = ["cleanup failed", "twice"]

    arrived = travelled(error, dumps)

    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert len(str(arrived)) < 1_000
    assert vars(arrived).keys() == vars(error).keys()
    for field in vars(error).keys() - {"failures"}:
        assert getattr(arrived, field) == getattr(error, field)


def test_notes_that_are_no_texts_are_left_behind() -> None:
    """Something else in `__notes__` does not keep an error from travelling."""
    error = OperationOpen("prepare", "step-1", "parked")
    error.__notes__ = ["kept", 5]  # type: ignore[list-item]

    assert travelled(error, pickle.dumps).__notes__ == ["kept"]


def test_an_operation_error_does_not_follow_its_callers_mapping() -> None:
    """Changing the mapping afterwards changes neither the failures nor the message."""
    failures: dict[str, BaseException] = {"a/replica-0": TimeoutError("slow")}
    error = GymCheckpointOperationError("commit", failures)
    failures.clear()

    assert list(error.failures) == ["a/replica-0"]


def test_not_ready_does_not_follow_its_callers_mapping() -> None:
    """Changing the blockers afterwards, at any depth, changes nothing in the error."""
    names = ["r1"]
    servers = {"agent": names}
    blockers = {"a/replica-0": servers}
    error = GymCheckpointNotReady(blockers)  # type: ignore[arg-type]
    names.append("r2")
    servers["model"] = []
    blockers.clear()

    assert error.blockers == {"a/replica-0": {"agent": ("r1",)}}


def test_an_operation_error_names_its_failures_sorted_by_instance() -> None:
    """The message counts the failures and gives instance, type and text in instance order."""
    error = GymCheckpointOperationError(
        "commit", {"b/replica-0": ValueError("bad"), "a/replica-0": TimeoutError("slow")}
    )

    assert str(error) == (
        "Gym checkpoint commit failed on 2 instance(s): "
        "a/replica-0: TimeoutError: slow; b/replica-0: ValueError: bad"
    )


def test_not_ready_without_any_blocker_says_so() -> None:
    """An instance that a resume overtook names nothing, and the message explains why."""
    error = GymCheckpointNotReady({"a/replica-0": {}, "b/replica-0": {"agent": ()}})

    assert str(error).count("no blocker named") == 2


@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 400),
    st.sampled_from(["r", "é", "🧨", "\ud800", "\0"]),
)
def test_not_ready_stays_short_however_much_blocks(
    instances: int, servers: int, blockers: int, character: str
) -> None:
    """The message is bounded and has totals, and the error itself has everything."""
    name = character * 1_000
    names = tuple(f"{index}{name}" for index in range(blockers))
    everything = {
        f"shard{index}{name}/replica-0": {f"{server}{name}": names for server in range(servers)}
        for index in range(instances)
    }

    error = GymCheckpointNotReady(everything)

    assert len(str(error)) < MESSAGE_MAX
    assert f"{instances} instance(s)" in str(error)
    assert f"{blockers} blocker(s)" in str(error)
    assert error.blockers == everything


@given(st.integers(1, 3_000), st.integers(0, 100_000))
def test_an_operation_error_stays_short_however_much_fails(instances: int, size: int) -> None:
    """The message is bounded and counts, and the error itself has every failure."""
    failures = {f"a/replica-{index}": ValueError("x" * size) for index in range(instances)}

    error = GymCheckpointOperationError("commit", failures)

    assert len(str(error)) < MESSAGE_MAX
    assert f"{instances} instance(s)" in str(error)
    assert len(error.failures) == instances


# --- what is transient (protocol facts, 2) --------------------------------------------------------

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


def test_an_illegal_transition_names_what_is_legal() -> None:
    """The message has subject, trigger, state, chart and the legal triggers, or says final."""
    refused = IllegalTransition("checkpoint", 1, "open", "commit", ("prepare",), "s-1")

    assert str(refused) == (
        "checkpoint 's-1' cannot take 'commit' in state 'open' (chart checkpoint v1); "
        "legal here: prepare"
    )
    assert str(IllegalTransition("call", 1, "gone", "ask", ())).endswith("nothing, it is final")


# --- across real actors --------------------------------------------------------------------------


def raising(make: Callable[[], BaseException]) -> BaseException:
    """Return what a caller gets when an actor's method raises."""

    @ray.remote(num_cpus=0)
    class Actor:
        def fail(self) -> None:
            raise make()

    actor = Actor.remote()
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever Ray makes of it
        ray.get(actor.fail.remote(), timeout=60)
    ray.kill(actor)
    return caught.value


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
class TestAcrossActors:
    def test_an_exception_that_cannot_be_pickled_is_not_transient(self) -> None:
        """B18: a timeout holding a lock arrives without its type; its text is kept all the same."""
        arrived = raising(lambda: HoldsLock("took too long"))

        error = GymCheckpointOperationError("commit", {"a/replica-0": arrived})
        assert not is_transient_gym_checkpoint_failure(error)
        assert "took too long" in str(error)

    def test_an_exception_that_cannot_be_made_again_is_not_transient(self) -> None:
        """B18: two constructor arguments and no `__reduce__` lose the type, and are not guessed."""
        arrived = raising(lambda: TwoArguments(503, "busy"))

        error = GymCheckpointOperationError("commit", {"a/replica-0": arrived})
        assert not is_transient_gym_checkpoint_failure(error)
        assert "TwoArguments" in text_of(arrived) or "busy" in text_of(arrived)

    @pytest.mark.parametrize(
        ("make", "transient"),
        [
            (lambda: TimeoutError("slow"), True),
            (lambda: GymCheckpointUnavailable("HTTP 409"), True),
            (lambda: ValueError("bad"), False),
            (lambda: chained(RuntimeError("bad"), TimeoutError("slow")), False),
            (lambda: ExceptionGroup("both", [TimeoutError("slow")]), False),
        ],
        ids=["timeout", "unavailable", "value", "cause", "group"],
    )
    def test_what_an_actor_raised_is_judged_by_its_own_class(
        self, make: Callable[[], BaseException], transient: bool
    ) -> None:
        """Ray's class on the fly counts as the one that was raised; a cause does not come along."""
        assert is_transient_failure(raising(make)) is transient

    @pytest.mark.parametrize("dumps", PICKLERS.values(), ids=PICKLERS)
    def test_failures_that_ray_delivered_travel_on(self, dumps: Callable[[Any], bytes]) -> None:
        """B19: an error with Ray's own classes inside crosses with either pickler, types kept."""
        error = GymCheckpointOperationError(
            "renew", {"a/replica-0": raising(lambda: TimeoutError("slow"))}
        )

        arrived = travelled(error, dumps)

        assert str(arrived) == str(error)
        assert isinstance(arrived.failures["a/replica-0"], TimeoutError)
        assert is_transient_gym_checkpoint_failure(arrived)

    def test_an_error_that_caught_a_ray_failure_crosses_a_second_actor(self) -> None:
        """B19: raised by an actor, an operation error still has operation, failures and notes."""
        inner = raising(lambda: TimeoutError("slow"))

        def make() -> BaseException:
            error = GymCheckpointOperationError(
                "renew", {"a/replica-0": inner, "b/replica-0": HoldsLock("stuck")}
            )
            error.add_note("cleanup failed")
            return error

        arrived = raising(make)

        assert isinstance(arrived, GymCheckpointOperationError)
        assert arrived.operation == "renew"
        assert isinstance(arrived.failures["a/replica-0"], TimeoutError)
        assert isinstance(arrived.failures["b/replica-0"], RemoteFailure)
        assert not is_transient_gym_checkpoint_failure(arrived)
        assert arrived.__notes__ == ["cleanup failed"]

    def test_not_ready_crosses_an_actor_with_its_blockers(self) -> None:
        """B19: raised by an actor, not-ready still has every blocker and is transient."""
        blockers = {"a/replica-0": {"agent": ("r1", "agent-worker-lost")}}

        arrived = raising(lambda: GymCheckpointNotReady(blockers))

        assert isinstance(arrived, GymCheckpointNotReady)
        assert arrived.blockers == blockers
        assert is_transient_gym_checkpoint_failure(arrived)

    def test_an_actor_that_reports_anothers_death_is_alive(self) -> None:
        """The death of an actor is told apart from an actor that met a dead one and says so."""

        @ray.remote(num_cpus=0)
        class Actor:
            def ping(self) -> None:
                pass

            def ask(self, others: list[Any]) -> None:
                ray.get(others[0].ping.remote(), timeout=60)

        dead, alive = Actor.remote(), Actor.remote()
        ray.kill(dead)

        with pytest.raises(ray.exceptions.ActorDiedError) as of_dead:
            ray.get(dead.ping.remote(), timeout=60)
        with pytest.raises(ray.exceptions.RayTaskError) as of_alive:
            ray.get(alive.ask.remote([dead]), timeout=60)

        assert isinstance(of_alive.value, ray.exceptions.ActorDiedError)
        assert is_actor_dead(of_dead.value)
        assert not is_actor_dead(of_alive.value)
        assert is_transient_failure(of_dead.value)
        ray.get(alive.ping.remote(), timeout=60)
        ray.kill(alive)
