"""What the shipped strategies make is legal, and the odd cases are among it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from gymckpt.core.replay import replay
from gymckpt.core.step import step
from gymckpt.episodes import EnvironmentEpisode, require_instance_id, require_operation_id
from gymckpt.journal import MemoryJournal, Opening
from gymckpt.manifest import (
    GymCheckpointManifest,
    load_gym_checkpoint_manifest,
    write_gym_checkpoint_manifest,
)
from gymckpt.replies import GymCheckpointCommitSummary, require_commit_summary
from gymckpt.testing import strategies
from gymckpt.testing.explore import SUBJECTS
from gymckpt.testing.fakes import FakeInstance
from gymckpt.testing.faults import FAULTS
from gymckpt.testing.histories import FaultPlan, History, fault_plans, histories


@given(strategies.operation_ids(), strategies.instance_ids(), strategies.episodes())
def test_ids_are_legal(operation_id: str, instance_id: str, episode: EnvironmentEpisode) -> None:
    """Every id is taken by the rules, and every episode is named by its capture key."""
    assert require_operation_id(operation_id, "id") == operation_id
    assert require_instance_id(instance_id) == instance_id
    assert EnvironmentEpisode.from_capture_key(episode.capture_key) == episode


@given(st.data())
def test_a_commit_exports_only_what_was_offered(data: st.DataObject) -> None:
    """An answer that was made for an offer is accepted for it."""
    offered = tuple(data.draw(strategies.inventories()))
    summary = data.draw(strategies.commit_summaries(offered))
    assert require_commit_summary(summary, offered) is summary


@settings(max_examples=20, deadline=None)
@given(manifest=strategies.manifests())
def test_a_manifest_can_be_written_and_read(
    tmp_path_factory: pytest.TempPathFactory, manifest: GymCheckpointManifest
) -> None:
    """Every manifest comes back from the disk as it was."""
    root: Path = tmp_path_factory.mktemp("manifest")
    write_gym_checkpoint_manifest(root, manifest)
    assert load_gym_checkpoint_manifest(root) == manifest


MANY = settings(
    phases=[Phase.generate],
    database=None,
    max_examples=5_000,
    deadline=None,
    derandomize=True,
)
"""Always the same histories, so that a rare kind is found each time or never."""
SHRUNK = settings(
    phases=[Phase.generate, Phase.shrink],
    database=None,
    max_examples=3_000,
    deadline=None,
    derandomize=True,
)
FIRST = settings(phases=[Phase.generate], database=None)
"""The first example that is found will do, however large."""


def test_odd_cases_are_made() -> None:
    """Not parked and no blocker, an export that is left out, a continued and a restarted one."""

    def left_out(summary: GymCheckpointCommitSummary) -> bool:
        return set(summary.staging_keys_by_episode) > set(summary.exported_episodes)

    assert not find(
        strategies.prepare_summaries(),
        lambda one: not one.prepared and not one.blockers,
        settings=FIRST,
    ).prepared
    assert find(strategies.commit_summaries(), left_out, settings=FIRST).participants
    both = find(
        strategies.manifests(),
        lambda one: any(one.instances.values()) and any(one.restarts.values()),
        settings=FIRST,
    )
    assert both.checkpoint_id


# --- histories ------------------------------------------------------------------------------------


@settings(deadline=None)
@given(history=histories())
def test_a_history_is_one_that_the_core_lives(history: History) -> None:
    """From its opening on `step` takes every event, and records and becomes just the same."""
    operation, entries = replay(history.entries[:1]), list(history.entries[:1])
    for one in history.events:
        taken = step(operation, one)
        entries += taken.entries
        operation = taken.operation
    assert tuple(entries) == history.entries
    assert operation == history.operation


@settings(deadline=None)
@given(history=histories(cut=True))
def test_a_history_that_was_cut_off_is_legal(history: History) -> None:
    """Wherever it was cut off it replays, and a journal takes and gives it back."""
    operation = replay(history.entries)
    assert operation.seq == len(history.entries)
    journal, first = MemoryJournal(), history.entries[0]
    opening = Opening(
        run=first.run,
        operation_id=first.operation_id,
        chart=operation.chart,
        chart_version=operation.chart_version,
    )
    assert journal.claim(first.run, holder="holder") == first.epoch
    journal.open_operation(opening, history.entries[:1])
    for number, entry in enumerate(history.entries[1:], 1):
        if entry.epoch > history.entries[number - 1].epoch:
            journal.claim(first.run, holder=f"another-{entry.epoch}", force=True)
        journal.append([entry], expected_seq=number, epoch=entry.epoch)
    assert journal.read(first.run, first.operation_id) == history.entries


def taken_in(history: History) -> set[str]:
    """Return the triggers of a history."""
    return {entry.trigger for entry in history.entries}


ODD: dict[str, Callable[[History], bool]] = {
    "ends well": lambda one: one.operation.state == "resumed" and one.operation.cause is None,
    "is given up": lambda one: one.operation.state == "discarded",
    "crashes": lambda one: one.entries[-1].epoch > 1,
    "crashes twice": lambda one: one.entries[-1].epoch > 2,
    "loses a lease": lambda one: "lose_lease" in taken_in(one),
    "has a dead instance": lambda one: "die" in taken_in(one),
    "has a late answer": lambda one: "stale" in taken_in(one) or "confirm" in taken_in(one),
    "lets a lease lapse": lambda one: "lapse" in taken_in(one),
    "withdraws a manifest": lambda one: "withdrawn" in taken_in(one),
    "is not ready": lambda one: "refuse" in taken_in(one),
}


RARE = {"crashes twice"}


@pytest.mark.parametrize("kind", ODD)
def test_odd_histories_are_made(kind: str, thorough: bool) -> None:
    """Each thing that makes a history odd is come to within some thousand of them."""
    if kind in RARE and not thorough:
        pytest.skip("it takes thousands of histories: run pytest with --thorough")
    found = find(histories("checkpoint", instances_max=1), ODD[kind], settings=MANY)
    assert ODD[kind](found)


@pytest.mark.parametrize("subject", sorted(SUBJECTS))
def test_every_subject_has_histories_that_end(subject: str) -> None:
    """A history of each chart, and of each call of a sweep, may come to an end."""
    found = find(histories(subject), lambda one: one.operation.settled, settings=MANY)
    assert found.subject == subject


def test_a_failing_history_shrinks_to_what_matters() -> None:
    """The smallest history of one lost lease has the one fault that it takes, and soon ends."""
    alone = histories(instances_max=1)
    found = find(alone, lambda one: "lose_lease" in taken_in(one), settings=SHRUNK)
    assert found.faults == 1, found
    assert len(found.told) <= 12, found


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (histories("nonsense"), "'nonsense' is none of checkpoint"),
        (fault_plans(["a/replica-0"], calls=["comit"]), "'comit' is no call"),
        (fault_plans(["a/replica-0"], faults=["it rains"]), "'it rains' is no fault; there are: "),
    ],
)
def test_what_there_is_not_is_refused(strategy: st.SearchStrategy[object], said: str) -> None:
    """A name with a typo does not make histories or plans in which nothing happens."""
    with pytest.raises(ValueError, match=said):
        find(strategy, bool, settings=SHRUNK)


# --- plans of faults ------------------------------------------------------------------------------

PAIR = ("tools/replica-0", "tools/replica-1")


@settings(deadline=None)
@given(plan=fault_plans(PAIR))
def test_a_plan_is_carried_out(plan: FaultPlan) -> None:
    """Every fault of a plan is due on the instance that it names, and the doomed one dies."""
    fakes = {name: FakeInstance() for name in PAIR}
    plan.arrange(fakes)
    assert sum(fake.due for fake in fakes.values()) + len(plan.deaths) == plan.size
    for name, after in plan.deaths.items():
        lived = 0
        while not fakes[name].is_dead:
            fakes[name].checkpoint_restart_only_servers.remote().close()
            lived += not fakes[name].is_dead
        assert lived == after


def test_plans_reach_every_fault_and_shrink() -> None:
    """Each kind of fault is planned for some call; the smallest plan with it has nothing else."""
    for words in FAULTS:

        def has(plan: FaultPlan, words: str = words) -> bool:
            return any(words in calls for one in plan.scripts.values() for calls in one.values())

        found = find(fault_plans(PAIR), has, settings=SHRUNK)
        assert found == FaultPlan({PAIR[0]: {"prepare": (words,)}}, {})
    doomed = find(fault_plans(PAIR), lambda plan: plan.deaths, settings=SHRUNK)
    assert doomed == FaultPlan({}, {PAIR[0]: 0})
