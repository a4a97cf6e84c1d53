"""What is seen to before the first snapshot: what an earlier controller left, who can take part."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from gymckpt.coordinator import GymCheckpointCoordinator
from gymckpt.core.settings import CALLS, gone_after_s
from gymckpt.errors import GymCheckpointOperationError, sample
from gymckpt.recovery import Recovered

__all__ = ["METHODS", "recovered_first", "require_methods"]

METHODS = tuple(f"checkpoint_{call}" for call in (*sorted(CALLS), "restart_only_servers"))
"""What an actor must offer to take part in checkpoints."""

HELD_MARGIN_S = 0.1
"""How much longer than its timeout a controller that seems alive is waited for."""


async def recovered_first(coordinator: GymCheckpointCoordinator) -> tuple[Recovered, ...]:
    """
    Settle what an earlier controller of the run left unfinished.

    A controller that died a moment ago still counts as alive; where one holds an operation, it is
    given its time to be silent and asked about once more.

    Args:
        coordinator: Whose run it is.

    Returns:
        What came of each; what is held even then is among them.

    Raises:
        JournalError: The journal cannot be read or written.
    """
    first = await coordinator.recover()
    held = [found.held_by for found in first if found.held_by is not None]
    if not held:
        return first
    left_s = max(
        gone_after_s(found.owner, coordinator.owner_timeout_s) - found.age_s for found in held
    )
    await asyncio.sleep(max(0.0, left_s) + HELD_MARGIN_S)
    again = await coordinator.recover()
    known = {found.operation_id for found in again}
    return (
        tuple(found for found in first if found.held_by is None and found.operation_id not in known)
        + again
    )


def require_methods(handles: Mapping[str, Any]) -> None:
    """
    Require that every actor has the methods that checkpoints and restores call.

    Args:
        handles: Instance id to handle.

    Raises:
        GymCheckpointOperationError: Some actor lacks one; nothing was sent.
    """
    lacking: dict[str, BaseException] = {}
    for instance, handle in handles.items():
        missing = [name for name in METHODS if not _offers(handle, name)]
        if missing:
            lacking[instance] = AttributeError(
                f"the actor lacks {len(missing)} method(s): {sample(missing)}; without them it "
                "cannot take part in checkpoints"
            )
    if lacking:
        raise GymCheckpointOperationError("check_startup", lacking)


def _offers(handle: object, method: str) -> bool:
    """Whether a handle has a method that can be called on its actor."""
    return callable(getattr(getattr(handle, method, None), "remote", None))
