"""What the controllers of a run share: settings, what they work on, what verbs may end with."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, Protocol

import attrs

from gymckpt.errors import (
    CutMismatch,
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    IllegalTransition,
    JournalError,
    ManifestWithdrawn,
    OperationDiscarded,
    OperationOpen,
    RecordsNotVisible,
    TransitionRefused,
    UnownedEpisodes,
)
from gymckpt.testing.account import Broken
from gymckpt.testing.simulation.hosts import GRACE_S
from gymckpt.testing.simulation.ledger import Ledger
from gymckpt.testing.simulation.loop import Process
from gymckpt.testing.simulation.timeline import Timeline

__all__ = [
    "EPOCH_TS",
    "EXPECTED",
    "RUN",
    "SETTINGS",
    "STARTUP_BOUND_S",
    "STARTUP_TRIES_MAX",
    "VERB_BOUND_S",
    "BodyFailed",
    "Run",
    "Stage",
]

RUN = "sim"
EPOCH_TS = 1_700_000_000.0
"""What all wall clocks show when a run begins."""

CONTROL_S, PREPARE_S, JOURNAL_S, OWNER_S = 5.0, 10.0, 3.0, 15.0
SETTINGS: dict[str, Any] = {
    "control_timeout_s": CONTROL_S,
    "prepare_timeout_s": PREPARE_S,
    "lease_grace_s": GRACE_S,
    "sweep_interval_s": 10.0,
    "journal_timeout_s": JOURNAL_S,
    "owner_timeout_s": OWNER_S,
    "run": RUN,
}

VERB_BOUND_S = 130.0
"""Within which every verb ends, besides its body: the sum of all budgets of the longest one, with
those of the journal, of files, and of sweeps that it has to wait for."""

STARTUP_BOUND_S = 600.0
"""Within which a controller has recovered what there is, operation after operation."""

STARTUP_TRIES_MAX = 4

EXPECTED = (
    CutMismatch,
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    JournalError,
    ManifestWithdrawn,
    OperationDiscarded,
    OperationOpen,
    RecordsNotVisible,
    UnownedEpisodes,
    IllegalTransition,
    TransitionRefused,
    OSError,
    ValueError,
)
"""What a verb may end with when there are faults."""


class BodyFailed(Exception):
    """What a body raises."""


@attrs.frozen
class Stage:
    """What all controllers of a run share."""

    base: Path
    """A directory for snapshots."""
    ledger: Ledger
    timeline: Timeline
    rng: Random
    published: list[tuple[Path, str]]
    """Directory and id of every checkpoint that its verb said is good."""
    used: list[str]
    """Wire ids of operations that were begun."""


class Run(Protocol):
    """What controllers need of the run that they are in."""

    def broken(self, broken: Broken) -> None:
        """Take note of a promise that does not hold."""
        ...

    def renew_instances(self) -> None:
        """Let every instance begin a new life, as a new cluster does."""
        ...

    def keeps(self, process: Process) -> None:
        """Take note that the body of a restore has ended well."""
        ...

    @property
    def faulty(self) -> bool:
        """Whether any fault has happened or may happen."""
        ...
