"""
Checkpoint and restore agentic RL rollouts across environment deployments.

Every checkpoint and every restore is an explicit, persisted state machine. What is exported here
is all that a controller needs; the environment's side is in `gymckpt.participant`. Importing this
package imports neither Ray nor Gymnasium.
"""

from gymckpt.calls import GymCheckpointCommitResult
from gymckpt.coordinator import GymCheckpointCoordinator
from gymckpt.core.settings import RetryPolicy
from gymckpt.episodes import EnvironmentEpisode, GymCheckpointEpisode, new_operation_id
from gymckpt.errors import (
    ChartError,
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
    OperationIdUsed,
    OperationOpen,
    RemoteFailure,
    ReplayDiverged,
    TransitionRefused,
    is_transient_gym_checkpoint_failure,
)
from gymckpt.journal import Journal, open_journal
from gymckpt.manifest import (
    GYM_CHECKPOINT_MANIFEST_FILENAME,
    GYM_CHECKPOINT_SCHEMA_VERSION,
    GymCheckpointManifest,
    load_gym_checkpoint_manifest,
    write_gym_checkpoint_manifest,
)
from gymckpt.replies import (
    GymCheckpointCommitSummary,
    GymCheckpointPrepareSummary,
    staging_keys_of,
)
from gymckpt.runtime.instances import ShardSet

__all__ = [
    "GYM_CHECKPOINT_MANIFEST_FILENAME",
    "GYM_CHECKPOINT_SCHEMA_VERSION",
    "ChartError",
    "EnvironmentEpisode",
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
    "IllegalTransition",
    "InvariantViolated",
    "Journal",
    "JournalConflict",
    "JournalCorrupt",
    "JournalError",
    "JournalUnavailable",
    "OperationDiscarded",
    "OperationIdUsed",
    "OperationOpen",
    "RemoteFailure",
    "ReplayDiverged",
    "RetryPolicy",
    "ShardSet",
    "TransitionRefused",
    "is_transient_gym_checkpoint_failure",
    "load_gym_checkpoint_manifest",
    "new_operation_id",
    "open_journal",
    "staging_keys_of",
    "write_gym_checkpoint_manifest",
]
