"""
Deployments that each break the contract in one way, so that its checks can be seen to fail.

Each stands for a mistake that a backend may make; the docstring of its class says which.
"""

from __future__ import annotations

from tests.testing import (
    broken_holding,
    broken_leases,
    broken_reading,
    broken_saving,
    registry,
)

__all__ = ["BROKEN", "broken_holding", "broken_leases", "broken_reading", "broken_saving"]

BROKEN = registry.BROKEN
"""All of them by name."""
