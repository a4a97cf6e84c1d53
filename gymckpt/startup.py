"""What is seen to before the first snapshot: who can take part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymckpt.core.settings import CALLS
from gymckpt.errors import GymCheckpointOperationError, sample

__all__ = ["METHODS", "require_methods"]

METHODS = tuple(f"checkpoint_{call}" for call in (*sorted(CALLS), "restart_only_servers"))
"""What an actor must offer to take part in checkpoints."""


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
