"""The error vocabulary: any failure at all is named, stood in for and travels."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import unicodedata
from collections.abc import Callable
from typing import Any, cast

import cloudpickle
import pytest
import ray.exceptions
from hypothesis import assume, given
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
from gymckpt.standins import pack, said_by, text_of_failure
from gymckpt.wording import TEXT_MAX
from tests.odd_exceptions import FAILURES, HoldsLock, LoadsOther, ReduceRaises, TwoArguments

MESSAGE_MAX = 20_000

PICKLERS = {"pickle": pickle.dumps, "cloudpickle": cloudpickle.dumps}


def travelled(error: Any, dumps: Callable[[Any], bytes]) -> Any:
    return pickle.loads(dumps(error))


def delivered(failure: BaseException) -> BaseException:
    """Return what Ray delivers of a failure: its own class, with a coloured traceback for text."""
    made: Any = ray.exceptions.RayTaskError
    where = ("Deployment.checkpoint_prepare", "Traceback (most recent call last):\n  File x\n...")
    told = made(*where, failure, f"ray::{where[0]}", 7, "192.0.2.2")
    return cast("BaseException", told.as_instanceof_cause())


# --- any exception object at all ------------------------------------------------------------------


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
def test_a_failure_is_told_in_one_line(failure: BaseException) -> None:
    """Whatever it says, it has one line without an escape, and its stand-in says the same."""
    told = text_of_failure(failure)

    assert len(told.splitlines()) <= 1
    assert not any(unicodedata.category(letter) == "Cc" for letter in told)
    assert text_of_failure(tame(failure)) == told
    assert text_of_failure(pack(failure).stand_in) == told


@given(FAILURES.filter(lambda failure: not isinstance(failure, BaseExceptionGroup)))
def test_what_ray_delivered_is_told_as_the_actor_raised_it(failure: BaseException) -> None:
    """The class and the text are the actor's, through one actor or two, without a traceback."""
    assume(not isinstance(failure, HoldsLock | LoadsOther | ReduceRaises | TwoArguments))
    through_one = delivered(failure)

    assert "\x1b[36mray::Deployment.checkpoint_prepare" in str(through_one)
    assert said_by(through_one) == said_by(failure)
    assert said_by(delivered(through_one)) == said_by(failure)


def test_a_refusal_on_ray_is_told_by_its_reason() -> None:
    """The reason comes first, right behind the class that was raised."""
    refusal = delivered(GymCheckpointUnavailable("games is parked\n  by \x1b[31m'other'\x1b[0m"))

    assert str(GymCheckpointOperationError("prepare", {"games/replica-0": refusal})) == (
        "Gym checkpoint prepare failed on 1 instance(s): games/replica-0: "
        "GymCheckpointUnavailable: games is parked by 'other'"
    )


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


@pytest.mark.parametrize("dumps", PICKLERS.values(), ids=PICKLERS)
def test_an_ordinary_failure_keeps_its_class(dumps: Callable[[Any], bytes]) -> None:
    """A failure that can be pickled is itself on the other side, with its arguments and notes."""
    failure = ConnectionResetError(104, "reset by peer")
    failure.add_note("asked twice")

    arrived = travelled(GymCheckpointOperationError("renew", {"a": failure}), dumps).failures["a"]

    assert type(arrived) is ConnectionResetError
    assert arrived.args == failure.args
    assert arrived.__notes__ == ["asked twice"]


def test_a_stand_in_stays_what_it_is() -> None:
    """A stand-in is neither tamed again nor changed by further trips."""
    stand_in = RemoteFailure("OddError", "what it said", "Traceback: …")
    error = GymCheckpointOperationError("renew", {"a": stand_in})

    twice = travelled(travelled(error, pickle.dumps), cloudpickle.dumps).failures["a"]

    assert tame(stand_in) is stand_in
    assert pack(stand_in).stand_in is stand_in
    assert vars(twice) == vars(stand_in)


def test_a_cancellation_is_not_tamed() -> None:
    """S9: what cancels a task leaves as itself."""
    cancelled = asyncio.CancelledError("stop")

    assert tame(cancelled) is cancelled


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
    named = inspect.signature(cls).parameters.values()
    parameters = [one for one in named if one.kind is not one.KEYWORD_ONLY]
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


@pytest.mark.parametrize(("count", "end"), [(5, "ValueError: 4"), (6, "; and 1 more")])
def test_five_failures_are_named_and_the_rest_counted(count: int, end: str) -> None:
    """A message says how many it leaves out, and says nothing when it leaves out none."""
    failures = {f"a/replica-{index}": ValueError(index) for index in range(count)}

    assert str(GymCheckpointOperationError("commit", failures)).endswith(end)


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


def test_an_illegal_transition_names_what_is_legal() -> None:
    """The message has subject, trigger, state, chart and the legal triggers, or says final."""
    refused = IllegalTransition("checkpoint", 1, "open", "commit", ("prepare",), "s-1")

    assert str(refused) == (
        "checkpoint 's-1' cannot take 'commit' in state 'open' (chart checkpoint v1); "
        "legal here: prepare"
    )
    assert str(IllegalTransition("call", 1, "gone", "ask", ())).endswith("nothing, it is final")
