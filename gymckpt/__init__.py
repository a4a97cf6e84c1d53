"""
Checkpoint and restore agentic RL rollouts across environment deployments.

Every checkpoint and every restore is an explicit, persisted state machine. What is exported here
is all that a controller needs; the environment's side is in `gymckpt.participant`. Importing this
package imports neither Ray nor Gymnasium.
"""

from gymckpt.calls import GymCheckpointCommitResult
from gymckpt.coordinator import GymCheckpointCoordinator
from gymckpt.core.settings import RetryPolicy
from gymckpt.environment import GymEnvironmentCheckpoint
from gymckpt.episodes import EnvironmentEpisode, GymCheckpointEpisode, new_operation_id
from gymckpt.errors import (
    ChartError,
    CutMismatch,
    Fenced,
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    GymCheckpointUnavailable,
    IllegalTransition,
    InvariantViolated,
    JournalConflict,
    JournalCorrupt,
    JournalError,
    JournalUnavailable,
    OperationDiscarded,
    OperationHeld,
    OperationIdUsed,
    OperationOpen,
    RemoteFailure,
    ReplayDiverged,
    RestartOnlyDeployment,
    TransitionRefused,
    UnownedEpisodes,
    is_transient_gym_checkpoint_failure,
)
from gymckpt.interfaces import (
    DataPlaneMutationCut,
    EnvironmentCheckpoint,
    EnvironmentSnapshot,
    NoEnvironmentCheckpoint,
    RestoredEnvironmentRollouts,
)
from gymckpt.journal import Journal, open_journal
from gymckpt.manifest import (
    GYM_CHECKPOINT_MANIFEST_FILENAME,
    GYM_CHECKPOINT_SCHEMA_VERSION,
    GymCheckpointManifest,
    load_gym_checkpoint_manifest,
    write_gym_checkpoint_manifest,
)
from gymckpt.recovery import Recovered, recover
from gymckpt.replies import (
    GymCheckpointCommitSummary,
    GymCheckpointPrepareSummary,
    staging_keys_of,
)
from gymckpt.runtime.instances import ShardSet
from gymckpt.snapshot import LedgerUnderCut, RolloutSource

__all__ = [
    "GYM_CHECKPOINT_MANIFEST_FILENAME",
    "GYM_CHECKPOINT_SCHEMA_VERSION",
    "ChartError",
    "CutMismatch",
    "DataPlaneMutationCut",
    "EnvironmentCheckpoint",
    "EnvironmentEpisode",
    "EnvironmentSnapshot",
    "Fenced",
    "GymCheckpointCommitResult",
    "GymCheckpointCommitSummary",
    "GymCheckpointCoordinator",
    "GymCheckpointEpisode",
    "GymCheckpointManifest",
    "GymCheckpointNotReady",
    "GymCheckpointOperationError",
    "GymCheckpointPrepareSummary",
    "GymCheckpointUnavailable",
    "GymEnvironmentCheckpoint",
    "IllegalTransition",
    "InvariantViolated",
    "Journal",
    "JournalConflict",
    "JournalCorrupt",
    "JournalError",
    "JournalUnavailable",
    "LedgerUnderCut",
    "NoEnvironmentCheckpoint",
    "OperationDiscarded",
    "OperationHeld",
    "OperationIdUsed",
    "OperationOpen",
    "Recovered",
    "RemoteFailure",
    "ReplayDiverged",
    "RestartOnlyDeployment",
    "RestoredEnvironmentRollouts",
    "RetryPolicy",
    "RolloutSource",
    "ShardSet",
    "TransitionRefused",
    "UnownedEpisodes",
    "is_transient_gym_checkpoint_failure",
    "load_gym_checkpoint_manifest",
    "new_operation_id",
    "open_journal",
    "recover",
    "staging_keys_of",
    "write_gym_checkpoint_manifest",
]
