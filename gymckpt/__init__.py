"""
Checkpoint and restore agentic RL rollouts across environment deployments.

Every checkpoint and every restore is an explicit, persisted state machine. What is exported here
is all that a controller needs; the environment's side is in `gymckpt.participant`. Importing this
package imports neither Ray nor Gymnasium.

Each name is imported when it is first used, so that reading a journal from the command line does
not wait for what drives operations.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gymckpt.calls import GymCheckpointCommitResult
    from gymckpt.coordinator import GymCheckpointCoordinator
    from gymckpt.core.settings import RetryPolicy
    from gymckpt.diagnosis.explain import explain
    from gymckpt.diagnosis.explanation import Explanation
    from gymckpt.diagnosis.replay import Replay, replay
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
        OperationIdUsed,
        OperationOpen,
        RecordsNotVisible,
        RemoteFailure,
        ReplayDiverged,
        RestartOnlyDeployment,
        RunHeld,
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
    "Explanation",
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
    "OperationIdUsed",
    "OperationOpen",
    "RecordsNotVisible",
    "Recovered",
    "RemoteFailure",
    "Replay",
    "ReplayDiverged",
    "RestartOnlyDeployment",
    "RestoredEnvironmentRollouts",
    "RetryPolicy",
    "RolloutSource",
    "RunHeld",
    "ShardSet",
    "TransitionRefused",
    "UnownedEpisodes",
    "explain",
    "is_transient_gym_checkpoint_failure",
    "load_gym_checkpoint_manifest",
    "new_operation_id",
    "open_journal",
    "recover",
    "replay",
    "staging_keys_of",
    "write_gym_checkpoint_manifest",
]

_NAMES = {
    "calls": ("GymCheckpointCommitResult",),
    "coordinator": ("GymCheckpointCoordinator",),
    "core.settings": ("RetryPolicy",),
    "diagnosis.explain": ("explain",),
    "diagnosis.explanation": ("Explanation",),
    "diagnosis.replay": ("Replay", "replay"),
    "environment": ("GymEnvironmentCheckpoint",),
    "episodes": ("EnvironmentEpisode", "GymCheckpointEpisode", "new_operation_id"),
    "errors": (
        "ChartError",
        "CutMismatch",
        "Fenced",
        "GymCheckpointNotReady",
        "GymCheckpointOperationError",
        "GymCheckpointUnavailable",
        "IllegalTransition",
        "InvariantViolated",
        "JournalConflict",
        "JournalCorrupt",
        "JournalError",
        "JournalUnavailable",
        "OperationDiscarded",
        "OperationIdUsed",
        "OperationOpen",
        "RecordsNotVisible",
        "RemoteFailure",
        "ReplayDiverged",
        "RestartOnlyDeployment",
        "RunHeld",
        "RunHeld",
        "TransitionRefused",
        "UnownedEpisodes",
        "is_transient_gym_checkpoint_failure",
    ),
    "interfaces": (
        "DataPlaneMutationCut",
        "EnvironmentCheckpoint",
        "EnvironmentSnapshot",
        "NoEnvironmentCheckpoint",
        "RestoredEnvironmentRollouts",
    ),
    "journal": ("Journal", "open_journal"),
    "manifest": (
        "GYM_CHECKPOINT_MANIFEST_FILENAME",
        "GYM_CHECKPOINT_SCHEMA_VERSION",
        "GymCheckpointManifest",
        "load_gym_checkpoint_manifest",
        "write_gym_checkpoint_manifest",
    ),
    "recovery": ("Recovered", "recover"),
    "replies": ("GymCheckpointCommitSummary", "GymCheckpointPrepareSummary", "staging_keys_of"),
    "runtime.instances": ("ShardSet",),
    "snapshot": ("LedgerUnderCut", "RolloutSource"),
}
"""Module of the package to the public names that it gives."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name, or a module of the package, when it is first asked for."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"{__name__}.{_HOMES.get(name, name)}"
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name != home:
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    if name not in _HOMES:
        return module
    found = getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
