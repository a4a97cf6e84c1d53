"""Pictures of what a real coordinator lived through, over its own journal."""

from pathlib import Path

import pytest

from gymckpt.coordinator import GymCheckpointCoordinator
from gymckpt.diagnosis.explain import explain
from gymckpt.diagnosis.report import report
from gymckpt.diagnosis.runs_report import passages_of
from gymckpt.diagnosis.trace import trace
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointNotReady, GymCheckpointOperationError
from gymckpt.journal import MemoryJournal
from gymckpt.replies import GymCheckpointPrepareSummary
from tests.diagnosis.markup import data_in, faults_of, text_in
from tests.diagnosis.test_trace import faults_of as trace_faults_of
from tests.fakes import ActorDiedError, FakeActor, FakeShardSet

RUN = "run-1"


async def test_checkpoint_of_a_coordinator_is_drawn(tmp_path: Path) -> None:
    """What a coordinator journals of good, refused and failed checkpoints has all pictures."""
    journal = MemoryJournal()
    actors = [FakeActor(), FakeActor(), FakeActor()]
    coordinator = GymCheckpointCoordinator(
        FakeShardSet(*actors),
        control_timeout_s=5.0,
        prepare_timeout_s=5.0,
        journal=journal,
        run=RUN,
        settle_s=0.05,
    )
    episodes = {
        f"tools/replica-{index}": (EnvironmentEpisode(f"rollout-{index}", 0),) for index in range(3)
    }
    async with coordinator.prepared("step-1"):
        await coordinator.commit("step-1", tmp_path / "step-1", episodes, restarts={})
    refusal = GymCheckpointPrepareSummary(False, {"agent": ("rollout-7", "rollout-8-a2")})
    actors[1].scripts["prepare"].append(refusal)
    with pytest.raises(GymCheckpointNotReady):
        async with coordinator.prepared("step-2"):
            pass
    actors[2].fail_from(None, ActorDiedError("the actor died"))
    with pytest.raises(GymCheckpointOperationError):
        async with coordinator.prepared("step-3"):
            pass

    pages = {}
    for row in journal.operations(RUN):
        entries = journal.read(RUN, row.operation_id)
        pages[row.operation_id] = report(entries, explanation=explain(entries))
        assert faults_of(pages[row.operation_id]) == []
        assert "breaks its chart" not in pages[row.operation_id]
        assert len(data_in(pages[row.operation_id])["lanes"]) == 3
        assert trace_faults_of(trace(entries)) == []
    assert "rollout-8-a2" in text_in(pages["step-2"])
    assert "ActorDiedError" in text_in(pages["step-3"])
    found = {one.row.operation_id: (one.tone, one.group) for one in passages_of(journal)}
    assert found == {
        "step-1": ("good", ""),
        "step-2": ("bad", "prepare · refused"),
        "step-3": ("bad", "prepare · gone · ActorDiedError"),
    }
