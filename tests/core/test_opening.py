"""What an operation can be opened with, and what its settings may be."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.core.events import FailureRecord, Moment
from gymckpt.core.settings import (
    COMMAND_TIMEOUT_S,
    OWNER_TIMEOUT_S,
    RetryPolicy,
    Settings,
    gone_after_s,
    owner_saying,
    require_duration,
    require_policies,
    same_owner,
)
from gymckpt.core.step import open_operation
from gymckpt.errors import IllegalTransition
from tests.core.driver import START_TS, World, names, settings
from tests.core.strategies import policies

DURATIONS = (
    "control_timeout_s",
    "prepare_timeout_s",
    "reply_grace_s",
    "settle_s",
    "lease_grace_s",
    "sweep_interval_s",
)
MAY_BE_ZERO = {"reply_grace_s", "settle_s"}


def test_what_is_not_set_has_the_promised_values() -> None:
    """An instance keeps 600 s for its controller, and what is unconfirmed is tried each 30 s."""
    bare = Settings(control_timeout_s=10.0, prepare_timeout_s=60.0, reply_grace_s=5.0)
    assert (bare.settle_s, bare.lease_grace_s, bare.sweep_interval_s) == (1.0, 600.0, 30.0)
    assert bare.retries == {}
    assert bare.retry("prepare").attempts == 1
    assert OWNER_TIMEOUT_S == 30.0


# --- operations ---------------------------------------------------------------------------------


def test_a_command_counts_as_gone_sooner_than_a_controller() -> None:
    """Whoever is silent is given what was asked for, a command that may have ended 5 s."""
    assert COMMAND_TIMEOUT_S == 5.0
    for owner, controller in (("host:1", True), ("host:1:command", False), ("command:1", True)):
        assert gone_after_s(owner) == (OWNER_TIMEOUT_S if controller else COMMAND_TIMEOUT_S)
        assert gone_after_s(owner, 7.0) == (7.0 if controller else 5.0)
        assert gone_after_s(owner, 2.0) == (2.0 if controller else 5.0)


def test_a_token_says_how_long_its_controller_may_be_silent() -> None:
    """No asker waits for less than what an owner's token says, which is a day at the most."""
    for timeout_s in (1e-6, 0.5, 1 / 3, 12.0, 30.0, 31.0, 1e300):
        owner = owner_saying("host:1:abc", timeout_s)
        assert owner.startswith("host:1:abc:")
        said_s = min(timeout_s, 86_400.0)
        assert same_owner(owner, "host:1:abc")
        for asked_s in (0.0, 0.1, 7.0, 30.0, 600.0):
            assert gone_after_s(owner, asked_s) == pytest.approx(max(asked_s, said_s), rel=1e-5)
    assert owner_saying("host:1:command", 3.0) == "host:1:command"
    for odd in ("host:1", "host:1:s", "host:1:nans", "host:1:-5s", "host:1:1e9s", "host:5s:1"):
        assert gone_after_s(odd, 7.0) == 7.0


def test_an_opening_names_everything_that_a_replay_needs() -> None:
    """The opening entry holds chart, version, instances and settings beside the caller's facts."""
    world = World("restore", 2, facts={"inventory": {"a": 1}})
    (entry,) = world.entries
    assert (entry.seq, entry.epoch, entry.source, entry.dest) == (1, 1, "", "open")
    assert (entry.ts, entry.at_s) == (START_TS, 0.0)
    assert entry.facts == {
        "inventory": {"a": 1},
        "chart": "restore",
        "chart_version": 2,
        "instances": list(names(2)),
        "settings": settings().to_facts(),
    }
    assert (world.asks, world.timers) == ([], {})


def test_an_operation_begins_when_it_is_opened() -> None:
    """An operation that was just opened is in its first state since then, and nothing is done."""
    opening = open_operation(
        moment=Moment(START_TS, 0.0),
        run="run",
        operation_id="op-1",
        chart="restore",
        instances=names(2),
        settings=settings(),
        facts={},
    )
    assert (opening.effects, opening.refused) == ((), None)
    operation = opening.operation
    assert (operation.state, operation.chart, operation.chart_version) == ("open", "restore", 2)
    assert (operation.opened_ts, operation.entered_ts) == (START_TS, START_TS)
    assert (operation.at_s, operation.entered_at_s, operation.seq) == (0.0, 0.0, 1)
    assert (operation.epoch, operation.root, operation.cause) == (1, None, None)
    assert (operation.file, operation.lease_deadline_at_s) == ("none", 0.0)


def test_a_verb_that_comes_at_the_wrong_time_is_refused_with_the_operation() -> None:
    """Whoever reads the error knows the operation, the version of its chart and what is legal."""
    world = World("checkpoint")
    with pytest.raises(IllegalTransition) as caught:
        world.verb("commit")
    assert (caught.value.subject, caught.value.version) == ("op-1", 1)
    assert str(caught.value) == (
        "checkpoint 'op-1' cannot take 'commit' in state 'open' (chart checkpoint v1); "
        "legal here: prepare, discard, cancel, settle"
    )


def test_a_wire_id_may_differ_from_the_operations() -> None:
    """Instances know an operation by its own id, unless its opening names another."""
    assert World("checkpoint").operation.wire_id == "op-1"
    sweep = World("sweep", facts={"call": "retire", "wire_id": "restore-1"})
    assert sweep.operation.wire_id == "restore-1"


@pytest.mark.parametrize("call", ["retire", "forget", "resume"])
def test_a_sweep_sends_the_call_that_its_opening_names(call: str) -> None:
    """A chart that leaves its call open gets it from the opening."""
    world = World("sweep", facts={"call": call})
    world.verb("run")
    assert {ask.call for ask in world.asks} == {call}
    world.answer(call)
    assert world.operation.state == "done"


@pytest.mark.parametrize("call", ["prepare", "restore", "commit", "renew", "nonsense", None, 1])
def test_a_sweep_cannot_close_instances(call: object) -> None:
    """A call that would have to be followed by a resume, or that is none, is no sweep."""
    with pytest.raises(ValueError, match="sends one of forget, resume, retire, not"):
        World("sweep", facts={"call": call})


def test_a_sweep_must_name_its_call() -> None:
    """An opening that names no call is refused, before anything is sent."""
    with pytest.raises(ValueError, match="not None"):
        World("sweep")


@pytest.mark.parametrize(
    ("instances", "error", "message"),
    [
        ([], ValueError, "without instances"),
        (["a", "b", "a"], ValueError, "names each instance once; twice: a"),
        (["a", ""], TypeError, "a list of ids"),
        (["a", 7], TypeError, "a list of ids"),
    ],
)
def test_bad_instances_are_refused(
    instances: list[Any], error: type[Exception], message: str
) -> None:
    """An operation concerns at least one instance, and each once."""
    with pytest.raises(error, match=message):
        World("checkpoint", instances)


@pytest.mark.parametrize("chart", ["call", "participant", "nonsense"])
def test_only_operation_charts_are_run(chart: str) -> None:
    """Charts of calls and participants are none that an operation can run."""
    with pytest.raises(ValueError, match="chart"):
        World(chart)


def test_a_commit_names_its_directory() -> None:
    """A commit whose directory is no text is refused, and nothing is sent."""
    world = World("checkpoint", 1)
    for _ in range(3):
        world.go_on()
    assert world.operation.state == "parked"
    sent = len(world.sent)
    with pytest.raises(TypeError, match="root is a text, not None"):
        world.verb("commit", root=None)
    assert (world.operation.state, len(world.sent)) == ("parked", sent)


# --- settings -----------------------------------------------------------------------------------


@given(
    durations=st.fixed_dictionaries(
        {name: st.floats(0.001, 1e6) | st.integers(1, 1_000) for name in DURATIONS}
    ),
    retries=policies(),
)
def test_settings_survive_their_facts(
    durations: dict[str, float], retries: dict[str, RetryPolicy]
) -> None:
    """Settings that were written into an opening entry are read back equal."""
    numbers = Settings(**durations, retries=retries)
    assert Settings.from_facts(numbers.to_facts()) == numbers


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, -math.inf, 10**400])
def test_durations_out_of_range_are_refused(name: str, value: float) -> None:
    """A duration is finite and not negative, and the error names it."""
    with pytest.raises(ValueError, match=f"{name} must be finite"):
        settings(**{name: value})


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", [True, "1", None])
def test_durations_of_another_type_are_refused(name: str, value: object) -> None:
    """A duration is a number; a bool and a text are none."""
    with pytest.raises(TypeError, match=f"{name} is a number of seconds, not"):
        settings(**{name: value})


@pytest.mark.parametrize("name", DURATIONS)
def test_only_grace_and_settling_may_be_zero(name: str) -> None:
    """A budget of nothing is refused; grace and settling time may be nothing."""
    if name in MAY_BE_ZERO:
        assert getattr(settings(**{name: 0}), name) == 0
    else:
        with pytest.raises(ValueError, match=f"{name} must be finite and positive, got 0"):
            settings(**{name: 0})


def test_durations_are_floats() -> None:
    """A whole number of seconds counts as the same float."""
    assert require_duration(3, "x") == 3.0
    assert type(require_duration(3, "x")) is float


@pytest.mark.parametrize(
    ("value", "zero", "message"),
    [
        ("1", False, "x is a number of seconds, not str: '1'"),
        (True, True, "x is a number of seconds, not bool: True"),
        (0, False, "x must be finite and positive, got 0.0"),
        (-1, False, "x must be finite and positive, got -1.0"),
        (-1, True, "x must be finite and not negative, got -1.0"),
        (math.inf, True, "x must be finite and not negative, got inf"),
        (10**400, False, "x must be finite and positive, got inf"),
    ],
)
def test_what_is_wrong_with_a_duration_is_said(value: object, zero: bool, message: str) -> None:
    """The error says the rule, and the value that breaks it."""
    with pytest.raises((TypeError, ValueError)) as caught:
        require_duration(value, "x", zero=zero)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("attempts", "pause_s", "error", "message"),
    [
        (0, 1.0, ValueError, "attempts must be at least 1, got 0"),
        (-1, 1.0, ValueError, "attempts must be at least 1, got -1"),
        (1.0, 1.0, TypeError, "attempts is an int, not float: 1.0"),
        (True, 1.0, TypeError, "attempts is an int, not bool: True"),
        (1, -1.0, ValueError, "pause_s must be finite and not negative, got -1.0"),
        (1, "1", TypeError, "pause_s is a number of seconds, not str: '1'"),
    ],
)
def test_bad_policies_are_refused(
    attempts: Any, pause_s: Any, error: type[Exception], message: str
) -> None:
    """A call is sent at least once, and rests for a duration."""
    with pytest.raises(error) as caught:
        RetryPolicy(attempts=attempts, pause_s=pause_s)
    assert str(caught.value) == message


def test_a_call_may_be_sent_once_and_again_without_a_rest() -> None:
    """One attempt is no retry, and a retry may follow at once."""
    policy = RetryPolicy(attempts=1, pause_s=0)
    assert (policy.attempts, policy.pause_s) == (1, 0)


@pytest.mark.parametrize(
    ("raw", "error", "message"),
    [
        (None, TypeError, "retry maps calls to policies; got NoneType: None"),
        (["prepare"], TypeError, "retry maps calls to policies; got list: ['prepare']"),
        (
            {"prepair": RetryPolicy(attempts=1, pause_s=0)},
            ValueError,
            "retry names 'prepair', which is no call; calls are commit, forget, prepare, renew, "
            "restore, resume, retire",
        ),
        ({"prepare": 3}, TypeError, "retry['prepare'] is a RetryPolicy, not int"),
    ],
)
def test_bad_policy_mappings_are_refused(raw: object, error: type[Exception], message: str) -> None:
    """Policies are given by call, and only for calls that exist."""
    with pytest.raises(error) as caught:
        require_policies(raw)
    assert str(caught.value) == message


def test_policy_mappings_are_copied() -> None:
    """What the caller does to its mapping later changes nothing."""
    raw = {"prepare": RetryPolicy(attempts=2, pause_s=0.5)}
    taken = require_policies(raw)
    raw.clear()
    assert taken == {"prepare": RetryPolicy(attempts=2, pause_s=0.5)}


def test_calls_without_a_policy_are_sent_once() -> None:
    """A call that has no policy is not retried; a renewal rests a round before it is."""
    numbers = settings()
    assert numbers.retry("prepare") == RetryPolicy(attempts=1, pause_s=0.0)
    assert numbers.retry("renew") == RetryPolicy(attempts=1, pause_s=numbers.renew_interval_s)
    assert (numbers.tries("prepare"), numbers.tries("resume")) == (1, 2)
    assert numbers.tries("renew") == math.inf


def test_budgets_follow_the_chart() -> None:
    """Prepare has a budget of its own, every other call the control budget."""
    numbers = settings()
    assert (numbers.budget_s("prepare"), numbers.budget_s("control")) == (100.0, 10.0)
    assert numbers.budget_s(None) == 10.0


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"), [("type", 1), ("text", None), ("transient", 1), ("dead", "no")]
)
def test_failures_are_plain_records(field: str, value: object) -> None:
    """A failure that is read from a journal has texts and bools, or is none."""
    plain: dict[str, Any] = {"type": "E", "text": "t", "transient": True, "dead": False}
    assert attrs.asdict(FailureRecord(**plain)) == plain
    with pytest.raises(TypeError, match=field):
        FailureRecord(**{**plain, field: value})
