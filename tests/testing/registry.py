"""Where the deployments that break the contract are kept, by the names of their classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from gymckpt.participant.gymnasium import GymnasiumDeployment

BROKEN: dict[str, type[GymnasiumDeployment]] = {}


def broken(cls: type[GymnasiumDeployment]) -> type[GymnasiumDeployment]:
    """Add a deployment."""
    BROKEN[cls.__name__] = cls
    return cls


def edit(self: GymnasiumDeployment, change: Callable[[Any], dict[str, Any]]) -> None:
    """Change what every control plane remembers."""
    for server in self._servers.all:
        control = server.control
        control._state = attrs.evolve(control._state, **change(control._state))
