"""
A restore that failed is not tried for ever: what leaves it says so, and what helps instead.

The instances are the shipped fakes, which keep the protocol by the control plane of a real
deployment: attempts that were retired are refused until their rollouts are forgotten.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gymckpt import (
    EnvironmentEpisode,
    GymCheckpointCoordinator,
    GymCheckpointManifest,
    GymEnvironmentCheckpoint,
)
from gymckpt.coordinator import write_gym_checkpoint_manifest
from gymckpt.errors import (
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    OperationOpen,
    is_transient_gym_checkpoint_failure,
)
from gymckpt.journal import MemoryJournal
from gymckpt.standins import notes_of
from gymckpt.testing.fakes import FakeInstance, FakeShardSet
from gymckpt.testing.faults import Fault
from tests.environment.source import Source
from tests.faults.world import new_id

HELP = ("forget them", "another snapshot", "later attempts")
TRIES_MAX = 5


def coordinator_of(*instances: FakeInstance) -> GymCheckpointCoordinator:
    """Return a coordinator that does not wait long."""
    return GymCheckpointCoordinator(
        FakeShardSet(*instances),
        control_timeout_s=1.0,
        prepare_timeout_s=1.0,
        settle_s=0.05,
        journal=MemoryJournal(),
        run="run",
    )


def manifest_of(*rollouts: str) -> GymCheckpointManifest:
    """Return the manifest of two instances, the second of which has no episode."""
    names = ("tools/replica-0", "tools/replica-1")
    saved = {names[0]: tuple(EnvironmentEpisode(one, 0) for one in rollouts), names[1]: ()}
    nothing: dict[str, tuple[()]] = dict.fromkeys(names, ())
    return GymCheckpointManifest(
        2, "source", saved, nothing, nothing, dict.fromkeys(names, ("fake",))
    )


async def tried(
    coordinator: GymCheckpointCoordinator, root: Path, manifest: GymCheckpointManifest
) -> list[BaseException]:
    """Restore again and again, as a trainer does that believes what is said of its errors."""
    errors: list[BaseException] = []
    for _number in range(TRIES_MAX):
        try:
            async with coordinator.restored(new_id("restore"), root, manifest):
                return errors
        except GymCheckpointOperationError as error:
            errors.append(error)
            if not is_transient_gym_checkpoint_failure(error):
                return errors
    return errors


FAULTS = {
    "lost on the way": Fault(does=False, error=ConnectionError("reset")),
    "lost on the way back": Fault(error=ConnectionError("reset")),
    "silent": Fault(hangs=True),
    "silent and deaf": Fault(does=False, hangs=True),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("place", [0, 1])
async def test_a_loop_of_tries_ends(tmp_path: Path, fault: Fault, place: int) -> None:
    """One transient failure retires the attempts everywhere, so that no other try is asked for."""
    instances = FakeInstance(), FakeInstance()
    coordinator = coordinator_of(*instances)
    instances[place].script("restore", fault)

    [error] = await tried(coordinator, tmp_path, manifest_of("r1", "r2"))

    assert isinstance(error, GymCheckpointOperationError)
    [note] = [note for note in notes_of(error) if "refused from now on" in note]
    assert "2 attempt(s)" in note
    assert [word for word in HELP if word not in note] == []
    assert all(instance.is_open and not instance.installed for instance in instances)


async def test_what_no_retry_mends_is_mended_by_a_forget(tmp_path: Path) -> None:
    """The refusal of a second restore names what helps; once forgotten, the restore succeeds."""
    first, second = FakeInstance(), FakeInstance()
    coordinator, manifest = coordinator_of(first, second), manifest_of("r1")
    second.script("restore", Fault(does=False, error=ConnectionError("reset")))
    await tried(coordinator, tmp_path, manifest)

    with pytest.raises(GymCheckpointOperationError, match="stale_attempt") as refused:
        await coordinator.restore("again", tmp_path, manifest)
    assert not is_transient_gym_checkpoint_failure(refused.value)
    assert "forget it, or restore another snapshot" in str(refused.value)

    await coordinator.forget("forgotten", manifest.instances)
    assert await tried(coordinator, tmp_path, manifest) == []
    assert first.installed == {EnvironmentEpisode("r1", 1)}


async def test_a_body_that_fails_transiently_leaves_nothing_to_retry(tmp_path: Path) -> None:
    """Whatever class the body raises, its restore is gone; elsewhere that class is transient."""
    for error in (GymCheckpointNotReady({}), OperationOpen("x", "y", "z")):
        coordinator = coordinator_of(FakeInstance(), FakeInstance())
        with pytest.raises(type(error)) as left:
            async with coordinator.restored("it", tmp_path, manifest_of("r1")):
                assert is_transient_gym_checkpoint_failure(error)
                raise error
        assert left.value is error
        assert not is_transient_gym_checkpoint_failure(error)


async def test_a_restore_of_nothing_may_be_tried_again(tmp_path: Path) -> None:
    """Without an episode nothing is installed and nothing is retired, and the next try succeeds."""
    instances = FakeInstance(), FakeInstance()
    coordinator = coordinator_of(*instances)
    instances[1].script("restore", Fault(does=False, error=ConnectionError("reset")))

    [error] = await tried(coordinator, tmp_path, manifest_of())

    assert is_transient_gym_checkpoint_failure(error)


async def test_a_restore_that_sent_nothing_may_be_tried_again(tmp_path: Path) -> None:
    """Where another operation is open, nothing was sent and nothing is used up."""
    coordinator = coordinator_of(FakeInstance(), FakeInstance())
    await coordinator.prepare("other")
    with pytest.raises(OperationOpen) as busy:
        await coordinator.restore("it", tmp_path, manifest_of("r1"))
    assert is_transient_gym_checkpoint_failure(busy.value)
    await coordinator.resume("other")
    assert await tried(coordinator, tmp_path, manifest_of("r1")) == []


async def test_the_facade_says_that_such_a_restore_is_not_merely_unavailable(
    tmp_path: Path,
) -> None:
    """A trainer that asks `is_unavailable` does not try the same snapshot again."""
    instances = FakeInstance(), FakeInstance()
    facade = GymEnvironmentCheckpoint(coordinator_of(*instances), Source({}))
    write_gym_checkpoint_manifest(tmp_path, manifest_of("r1"))
    instances[1].script("restore", Fault(does=False, error=ConnectionError("reset")))
    with pytest.raises(GymCheckpointOperationError) as left:
        async with facade.restored(tmp_path):
            pass
    assert not facade.is_unavailable(left.value)
