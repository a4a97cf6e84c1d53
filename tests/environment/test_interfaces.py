"""The protocols that a trainer knows, and the backend that keeps nothing."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gymckpt import (
    DataPlaneMutationCut,
    EnvironmentCheckpoint,
    EnvironmentEpisode,
    EnvironmentSnapshot,
    NoEnvironmentCheckpoint,
    RestoredEnvironmentRollouts,
)
from tests.environment.conftest import NewScene
from tests.environment.source import Cut


async def test_both_backends_are_environment_checkpoints(new_scene: NewScene) -> None:
    """What a trainer can hold is known at run time, and what a snapshot yields is too."""
    scene = new_scene()
    for backend in (scene.environment, NoEnvironmentCheckpoint()):
        assert isinstance(backend, EnvironmentCheckpoint)
    async with scene.environment.snapshot(scene.path) as snapshot:
        assert isinstance(snapshot, EnvironmentSnapshot)
    assert isinstance(Cut(), DataPlaneMutationCut)


MEMBERS = ("holds_rollout_state", "check_startup", "snapshot", "restored", "is_unavailable")


@pytest.mark.parametrize("missing", MEMBERS)
def test_backend_that_lacks_something(missing: str) -> None:
    """A class that lacks any member is no environment checkpoint."""
    members = {name: getattr(NoEnvironmentCheckpoint, name) for name in MEMBERS if name != missing}
    assert not isinstance(type("Partial", (), members)(), EnvironmentCheckpoint)
    complete = {**members, missing: getattr(NoEnvironmentCheckpoint, missing)}
    assert isinstance(type("Complete", (), complete)(), EnvironmentCheckpoint)


async def test_backend_that_keeps_nothing(tmp_path: Path) -> None:
    """It yields None and nothing, touches no file, never holds state and is never unavailable."""
    backend = NoEnvironmentCheckpoint()
    assert backend.holds_rollout_state is False
    await backend.check_startup()
    async with backend.snapshot(tmp_path / "snapshot") as snapshot:
        assert snapshot is None
    async with backend.restored(tmp_path / "absent") as restored:
        assert restored == RestoredEnvironmentRollouts(frozenset(), frozenset())
    assert not backend.is_unavailable(TimeoutError())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("method", ["snapshot", "restored"])
async def test_errors_pass_through_the_backend_that_keeps_nothing(
    tmp_path: Path, method: str
) -> None:
    """What a body raises leaves as itself."""
    error = RuntimeError("body")
    with pytest.raises(RuntimeError) as caught:
        async with getattr(NoEnvironmentCheckpoint(), method)(tmp_path):
            raise error
    assert caught.value is error


def test_restored_rollouts_are_values() -> None:
    """Two that say the same are equal, and the attempts that go on follow the saved ones."""
    saved = frozenset({("a/replica-0", "r", 0), ("a/replica-1", "s", 4)})
    one, two = (RestoredEnvironmentRollouts(saved, frozenset({"k"})) for _ in range(2))
    assert one == two
    assert one.replacements() == {
        ("a/replica-0", EnvironmentEpisode("r", 1)),
        ("a/replica-1", EnvironmentEpisode("s", 5)),
    }


async def test_trainer_written_for_any_backend(new_scene: NewScene) -> None:
    """The order of the API document runs as it stands there, whichever backend it is."""

    @asynccontextmanager
    async def barrier():  # type: ignore[no-untyped-def]
        cut = Cut()
        yield cut
        cut.live = False

    scene = new_scene()
    for env_checkpoint, expected in ((scene.environment, True), (NoEnvironmentCheckpoint(), False)):
        backend: EnvironmentCheckpoint = env_checkpoint
        async with backend.snapshot(scene.path) as snapshot, barrier() as cut:
            if snapshot is not None:
                await snapshot.check_against_cut(cut)
        assert (snapshot is not None) is expected
