"""Why an operation was given up: the first cause, in few words, however many instances failed."""

from __future__ import annotations

import json

import pytest

from gymckpt.core.operation import Cause
from tests.core.driver import FATAL, World, settings
from tests.core.histories import OPERATION_CHARTS, bring_about, reached
from tests.core.steps import all_transitions

GIVES_UP = ("refuse", "lose_lease", "seal_failed", "discard", "cancel", "settle")
STANDS = {("checkpoint", "committed", "settle")}
"""A recovered checkpoint that is durable stands."""


def cause_of(world: World) -> Cause:
    """Return the cause of an operation that was given up."""
    assert world.operation.cause is not None
    return world.operation.cause


@pytest.mark.parametrize(
    ("chart", "state", "trigger"),
    sorted(
        (chart, state, trigger)
        for name in OPERATION_CHARTS
        for chart, state, trigger, _ in all_transitions(name)
        if trigger in GIVES_UP
    ),
)
def test_what_gives_an_operation_up_is_its_cause(chart: str, state: str, trigger: str) -> None:
    """Each trigger that gives an operation up is its cause, with its state and its entry."""
    world = reached(chart, state)
    bring_about(world, trigger)
    if (chart, state, trigger) in STANDS:
        assert world.operation.cause is None
        return
    cause = cause_of(world)
    assert (cause.trigger, cause.state) == (trigger, state)
    entry = world.entries[cause.seq - 1]
    assert (entry.trigger, entry.source, entry.facts) == (trigger, state, cause.facts)


def test_the_first_cause_is_kept() -> None:
    """What goes wrong while an operation is given up does not become its cause."""
    world = reached("restore", "restored")
    world.verb("discard", reason="the body failed")
    world.fail("retire", 0, 1, failure=FATAL)
    world.verb("cancel")
    world.verb("settle")
    cause = cause_of(world)
    assert (cause.trigger, cause.facts["reason"]) == ("discard", "the body failed")
    assert cause.call is None


@pytest.mark.parametrize("chart", ["checkpoint", "restore", "sweep"])
def test_an_operation_that_ends_well_has_no_cause(chart: str) -> None:
    """An operation that stands was given up by nobody."""
    ends_well = {"checkpoint": "resumed", "restore": "resumed", "sweep": "done"}[chart]
    assert reached(chart, ends_well).operation.cause is None


def test_causes_name_a_few_instances_and_count_all() -> None:
    """The cause of a phase that 10,000 instances failed keeps five of them and both totals."""
    world = reached("checkpoint", "preparing", count=10_000)
    failing = range(0, 10_000, 2)
    world.fail("prepare", *failing, failure=FATAL)
    world.wait(1.0)
    facts = cause_of(world).facts
    assert (facts["call"], facts["failed"], facts["instances"]) == ("prepare", 5_000, 10_000)
    assert [found["instance"] for found in facts["sample"]] == [
        world.operation.instances[which] for which in failing[:5]
    ]
    assert len(json.dumps(dict(facts))) < 2_000


def test_causes_leave_out_whom_nobody_waited_for() -> None:
    """Instances that were not waited for any longer have not failed."""
    world = reached("checkpoint", "preparing", count=3)
    world.refuse("prepare", 2)
    world.wait(1.0)
    facts = cause_of(world).facts
    assert (facts["failed"], len(facts["sample"])) == (1, 1)
    assert facts["sample"] == [
        {"instance": world.operation.instances[2], "state": "refused", "failure": None}
    ]


def test_causes_name_whom_was_waited_for_in_vain() -> None:
    """An instance that used up the whole budget without an answer has failed."""
    world = reached("checkpoint", "preparing")
    world.answer("prepare", 1)
    world.wait(105.0)
    text = "no answer to prepare within 105 s"
    assert cause_of(world).facts == {
        "call": "prepare",
        "failed": 1,
        "instances": 2,
        "sample": [
            {
                "instance": world.operation.instances[0],
                "state": "unanswered",
                "failure": {"type": "TimeoutError", "text": text, "transient": True, "dead": False},
            }
        ],
    }


def test_what_goes_well_blames_nobody() -> None:
    """The entries of conditions that give nothing up keep no failures, whatever failed before."""
    world = reached("checkpoint", "resuming")
    world.fail("resume", 0)
    world.wait(1.0)
    world.answer("resume")
    assert world.operation.state == "resumed"
    well = [entry for entry in world.entries if entry.trigger in ("all_answered", "all_settled")]
    assert [entry.facts for entry in well] == [{}] * 4


def test_a_lost_lease_is_the_renewals_fault() -> None:
    """A lease that is lost while its renewal is out once more blames the renewal that failed."""
    numbers = settings(prepare_timeout_s=10.0)
    world = reached("checkpoint", "committing", numbers=numbers)
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    world.fail("renew", 0)
    world.answer("renew", 1)
    world.wait_until(lambda world: world.operation.cause is not None)
    cause = cause_of(world)
    assert (cause.trigger, cause.state, cause.call) == ("lose_lease", "committing", "renew")
    assert [(found["instance"], found["state"]) for found in cause.facts["sample"]] == [
        (world.operation.instances[0], "asked")
    ]
