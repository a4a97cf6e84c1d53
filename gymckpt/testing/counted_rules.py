"""
Which rules a Hypothesis machine has, and how often each was executed.

Hypothesis runs a machine whose rules never fire as happily as one whose rules do. Here each rule
counts itself in the `executed` of the class that runs.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis.stateful import RULE_MARKER, RuleBasedStateMachine

__all__ = ["count_rules", "rules_of"]


def rules_of(machine: type[RuleBasedStateMachine]) -> set[str]:
    """Return the names of the rules of a machine, those included that it inherits."""
    members = inspect.getmembers(machine)
    return {name for name, member in members if getattr(member, RULE_MARKER, None) is not None}


def count_rules(machine: type[RuleBasedStateMachine]) -> None:
    """Let each rule of a machine count itself; those of classes that are shared are done once."""
    for _, member in inspect.getmembers(machine):
        found = getattr(member, RULE_MARKER, None)
        if found is not None and not hasattr(found.function, "counts"):
            found.function = _counted(found.function)


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(machine: Any, *args: Any, **kwargs: Any) -> Any:
        executed: Counter[str] = machine.executed
        executed[function.__name__] += 1
        return function(machine, *args, **kwargs)

    counted.counts = True  # type: ignore[attr-defined]
    return counted
