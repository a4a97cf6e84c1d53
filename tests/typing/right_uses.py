# pyright: strict, reportDeprecated=false
"""What a type checker accepts: backends, snapshots and sides of RL of one's own. Never run."""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import gymckpt
from gymckpt import (
    DataPlaneMutationCut,
    EnvironmentCheckpoint,
    EnvironmentEpisode,
    EnvironmentSnapshot,
    GymCheckpointCoordinator,
    GymEnvironmentCheckpoint,
    LedgerUnderCut,
    NoEnvironmentCheckpoint,
    RestoredEnvironmentRollouts,
    RolloutSource,
)


class OwnSnapshot:
    """A snapshot of one's own, without a word of the protocol."""

    restarted_rollouts: int = 0

    async def check_against_cut(self, cut: DataPlaneMutationCut) -> None:
        assert cut.live

    def metrics(self, paused_seconds: float) -> dict[str, float]:
        return {"own/paused_s": paused_seconds}


class OwnSnapshotContext(AbstractAsyncContextManager[OwnSnapshot]):
    """A context manager that is a class."""

    async def __aenter__(self) -> OwnSnapshot:
        return OwnSnapshot()

    async def __aexit__(self, *_error: object) -> None:
        return None


class OwnCheckpoint:
    """A backend of one's own, without a word of the protocol."""

    @property
    def holds_rollout_state(self) -> bool:
        return True

    async def check_startup(self) -> None:
        return None

    @asynccontextmanager
    async def snapshot(self, checkpoint_path: Path) -> AsyncIterator[OwnSnapshot | None]:
        yield OwnSnapshot() if checkpoint_path.name else None

    @asynccontextmanager
    async def restored(self, checkpoint_path: Path) -> AsyncIterator[RestoredEnvironmentRollouts]:
        yield RestoredEnvironmentRollouts(
            continued_attempts=frozenset({("a/replica-0", checkpoint_path.name, 0)}),
            staging_keys=frozenset({"r/c0"}),
        )

    def is_unavailable(self, error: BaseException) -> bool:
        return isinstance(error, TimeoutError)


class BroaderCheckpoint:
    """A backend that takes more and promises more than it must."""

    holds_rollout_state = False

    async def check_startup(self, *, thoroughly: bool = False) -> None:
        return None

    def snapshot(
        self, checkpoint_path: Path | str, *, pause: bool = True
    ) -> AbstractAsyncContextManager[OwnSnapshot]:
        return OwnSnapshotContext()

    def restored(
        self, checkpoint_path: Path | str
    ) -> AbstractAsyncContextManager[RestoredEnvironmentRollouts]:
        return OwnCheckpoint().restored(Path(checkpoint_path))

    def is_unavailable(self, error: object) -> bool:
        return False


class OwnCut:
    """A cut of RL's own."""

    def __init__(self) -> None:
        self.live = True


class OwnRollouts:
    """RL's side, without a word of the protocol."""

    @asynccontextmanager
    async def dispatch_closed(self) -> AsyncIterator[None]:
        yield

    def episodes_in_flight(self) -> dict[str, list[EnvironmentEpisode]]:
        return {"a/replica-0": [EnvironmentEpisode("r", 0).next_attempt()]}

    async def replies_landed(self, expected_later: Collection[EnvironmentEpisode]) -> None:
        assert len(expected_later) >= 0

    def ledger_under(self, cut: DataPlaneMutationCut) -> LedgerUnderCut:
        return LedgerUnderCut(unfinished=frozenset({"r"}), sealed=frozenset())

    def attempts_refused(self, episodes: Collection[EnvironmentEpisode]) -> None:
        assert [episode.capture_key for episode in episodes]


own: EnvironmentCheckpoint = OwnCheckpoint()
broader: EnvironmentCheckpoint = BroaderCheckpoint()
nothing: EnvironmentCheckpoint = NoEnvironmentCheckpoint()
snapshot_of_ones_own: EnvironmentSnapshot = OwnSnapshot()
cut_of_ones_own: DataPlaneMutationCut = OwnCut()
rollouts: RolloutSource = OwnRollouts()


def facade(coordinator: GymCheckpointCoordinator) -> EnvironmentCheckpoint:
    return GymEnvironmentCheckpoint(
        coordinator, OwnRollouts(), restart_only="refuse", replies_timeout_s=5
    )


async def snapshot_as_in_the_document(env_checkpoint: EnvironmentCheckpoint, path: Path) -> float:
    async with env_checkpoint.snapshot(path) as snapshot:
        if snapshot is not None:
            await snapshot.check_against_cut(OwnCut())
    if snapshot is None:
        return 0.0
    return snapshot.metrics(1.0)["own/paused_s"] + snapshot.restarted_rollouts


async def restore_as_in_the_document(env_checkpoint: EnvironmentCheckpoint, path: Path) -> int:
    async with env_checkpoint.restored(path) as restored:
        for instance_id, rollout_id, attempt in restored.continued_attempts:
            assert instance_id
            assert EnvironmentEpisode(rollout_id, attempt).capture_key
        keys: frozenset[str] = restored.staging_keys
    return len(keys)


async def retry_as_in_the_document(env_checkpoint: EnvironmentCheckpoint, path: Path) -> None:
    await env_checkpoint.check_startup()
    try:
        await snapshot_as_in_the_document(env_checkpoint, path)
    except Exception as error:
        if not (env_checkpoint.holds_rollout_state and env_checkpoint.is_unavailable(error)):
            raise


async def recover(handles: Mapping[str, object]) -> list[str]:
    found = await gymckpt.recover(None, handles, run="job", force=False)
    return [one.reason for one in found if not one.ended]
