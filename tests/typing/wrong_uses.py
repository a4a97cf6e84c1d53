# pyright: strict, reportDeprecated=false
"""What a type checker refuses, on the lines that say so, and on no others. Never run."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

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


class Empty:
    """A class with nothing."""


class WithoutStartup:
    """A backend that lacks one method."""

    holds_rollout_state: bool = True

    @asynccontextmanager
    async def snapshot(self, checkpoint_path: Path) -> AsyncIterator[EnvironmentSnapshot | None]:
        yield None

    @asynccontextmanager
    async def restored(self, checkpoint_path: Path) -> AsyncIterator[RestoredEnvironmentRollouts]:
        yield RestoredEnvironmentRollouts()

    def is_unavailable(self, error: BaseException) -> bool:
        return False


class Complete(WithoutStartup):
    """A right backend, for others to go wrong in one thing."""

    async def check_startup(self) -> None:
        return None


right: EnvironmentCheckpoint = Complete()


class StateIsAsked:
    """A backend with a method in place of a property."""

    def holds_rollout_state(self) -> bool:
        return True

    async def check_startup(self) -> None:
        return None

    @asynccontextmanager
    async def snapshot(self, checkpoint_path: Path) -> AsyncIterator[EnvironmentSnapshot | None]:
        yield None

    @asynccontextmanager
    async def restored(self, checkpoint_path: Path) -> AsyncIterator[RestoredEnvironmentRollouts]:
        yield RestoredEnvironmentRollouts()

    def is_unavailable(self, error: BaseException) -> bool:
        return False


class StartupBlocks(WithoutStartup):
    """A coroutine that became a function."""

    def check_startup(self) -> None:
        return None


class SnapshotTakesNothing:
    """A snapshot that is not told where to."""

    holds_rollout_state: bool = True

    async def check_startup(self) -> None:
        return None

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[EnvironmentSnapshot | None]:
        yield None

    @asynccontextmanager
    async def restored(self, checkpoint_path: Path) -> AsyncIterator[RestoredEnvironmentRollouts]:
        yield RestoredEnvironmentRollouts()

    def is_unavailable(self, error: BaseException) -> bool:
        return False


class SnapshotIsAnIterator:
    """A context manager that became a bare generator."""

    holds_rollout_state: bool = True

    async def check_startup(self) -> None:
        return None

    async def snapshot(self, checkpoint_path: Path) -> AsyncIterator[EnvironmentSnapshot | None]:
        yield None

    @asynccontextmanager
    async def restored(self, checkpoint_path: Path) -> AsyncIterator[RestoredEnvironmentRollouts]:
        yield RestoredEnvironmentRollouts()

    def is_unavailable(self, error: BaseException) -> bool:
        return False


class SnapshotYieldsAPath:
    """A snapshot that yields something else."""

    holds_rollout_state: bool = True

    async def check_startup(self) -> None:
        return None

    @asynccontextmanager
    async def snapshot(self, checkpoint_path: Path) -> AsyncIterator[Path]:
        yield checkpoint_path

    @asynccontextmanager
    async def restored(self, checkpoint_path: Path) -> AsyncIterator[RestoredEnvironmentRollouts]:
        yield RestoredEnvironmentRollouts()

    def is_unavailable(self, error: BaseException) -> bool:
        return False


class RestoredMayBeNone:
    """A restore that may yield nothing at all."""

    holds_rollout_state: bool = True

    async def check_startup(self) -> None:
        return None

    @asynccontextmanager
    async def snapshot(self, checkpoint_path: Path) -> AsyncIterator[EnvironmentSnapshot | None]:
        yield None

    @asynccontextmanager
    async def restored(
        self, checkpoint_path: Path
    ) -> AsyncIterator[RestoredEnvironmentRollouts | None]:
        yield None

    def is_unavailable(self, error: BaseException) -> bool:
        return False


class LooksAtTimeoutsOnly:
    """A backend that takes fewer errors than it may be given."""

    holds_rollout_state: bool = True

    async def check_startup(self) -> None:
        return None

    @asynccontextmanager
    async def snapshot(self, checkpoint_path: Path) -> AsyncIterator[EnvironmentSnapshot | None]:
        yield None

    @asynccontextmanager
    async def restored(self, checkpoint_path: Path) -> AsyncIterator[RestoredEnvironmentRollouts]:
        yield RestoredEnvironmentRollouts()

    def is_unavailable(self, error: TimeoutError) -> bool:
        return True


empty: EnvironmentCheckpoint = Empty()  # wrong
without_startup: EnvironmentCheckpoint = WithoutStartup()  # wrong
state_is_asked: EnvironmentCheckpoint = StateIsAsked()  # wrong
startup_blocks: EnvironmentCheckpoint = StartupBlocks()  # wrong
snapshot_takes_nothing: EnvironmentCheckpoint = SnapshotTakesNothing()  # wrong
snapshot_is_an_iterator: EnvironmentCheckpoint = SnapshotIsAnIterator()  # wrong
snapshot_yields_a_path: EnvironmentCheckpoint = SnapshotYieldsAPath()  # wrong
restored_may_be_none: EnvironmentCheckpoint = RestoredMayBeNone()  # wrong
looks_at_timeouts_only: EnvironmentCheckpoint = LooksAtTimeoutsOnly()  # wrong
a_class: EnvironmentCheckpoint = NoEnvironmentCheckpoint  # wrong


class CountsInInts:
    """A snapshot whose metrics are no floats to a checker."""

    restarted_rollouts: int = 0

    async def check_against_cut(self, cut: DataPlaneMutationCut) -> None:
        return None

    def metrics(self, paused_seconds: float) -> dict[str, int]:
        return {}


class ChecksAtOnce:
    """A snapshot whose check is no coroutine."""

    restarted_rollouts: int = 0

    def check_against_cut(self, cut: DataPlaneMutationCut) -> None:
        return None

    def metrics(self, paused_seconds: float) -> dict[str, float]:
        return {}


counts_in_ints: EnvironmentSnapshot = CountsInInts()  # wrong
checks_at_once: EnvironmentSnapshot = ChecksAtOnce()  # wrong


class ListsEpisodes:
    """RL's side with a flat list in place of one list for each instance."""

    @asynccontextmanager
    async def dispatch_closed(self) -> AsyncIterator[None]:
        yield

    def episodes_in_flight(self) -> list[EnvironmentEpisode]:
        return []

    async def replies_landed(self, expected_later: Collection[EnvironmentEpisode]) -> None:
        return None

    def ledger_under(self, cut: DataPlaneMutationCut) -> LedgerUnderCut:
        return LedgerUnderCut(unfinished=frozenset())

    def attempts_refused(self, episodes: Collection[EnvironmentEpisode]) -> None:
        return None


lists_episodes: RolloutSource = ListsEpisodes()  # wrong


def facade(coordinator: GymCheckpointCoordinator, rollouts: RolloutSource) -> None:
    GymEnvironmentCheckpoint(coordinator, ListsEpisodes())  # wrong
    GymEnvironmentCheckpoint(coordinator, rollouts, restart_only="ignore")  # wrong
    GymEnvironmentCheckpoint(coordinator, rollouts, 5.0)  # wrong
    GymEnvironmentCheckpoint(rollouts)  # wrong


async def trainer(env_checkpoint: EnvironmentCheckpoint, cut: DataPlaneMutationCut) -> None:
    async with env_checkpoint.snapshot(Path()) as snapshot:
        await snapshot.check_against_cut(cut)  # wrong
    async with env_checkpoint.snapshot("path"):  # wrong
        pass
    async with env_checkpoint.restored(Path()) as restored:
        first: str = next(iter(restored.continued_attempts))  # wrong
        restored.staging_keys = frozenset()  # wrong
    with env_checkpoint.snapshot(Path()):  # wrong
        pass
    env_checkpoint.holds_rollout_state = first == ""  # wrong
    cut.live = False  # wrong
    EnvironmentEpisode("r", "0")  # wrong
    EnvironmentEpisode(rollout_id="r")  # wrong
    LedgerUnderCut(frozenset())  # wrong
    RestoredEnvironmentRollouts(continued_attempts={("a/replica-0", "r", 0)})  # wrong
