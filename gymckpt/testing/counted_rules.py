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

from hypothesis import seed, settings
from hypothesis.stateful import RULE_MARKER, RuleBasedStateMachine, run_state_machine_as_test

__all__ = ["count_rules", "rules_of", "run_again"]


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


def run_again(machine: type[RuleBasedStateMachine], number: int, chosen: settings) -> None:
    """
    Run a machine as a test, otherwise than with each other number.

    Hypothesis does the same in each run where it is told to be deterministic, as its own profile
    for continuous integration tells it. A run that is to execute what earlier ones did not needs
    another seed then.

    Args:
        machine: The machine.
        number: Which run this is, counted from 0.
        chosen: For Hypothesis.
    """
    if chosen.derandomize and number:
        machine = seed(number)(type(machine.__name__, (machine,), {"__doc__": machine.__doc__}))
    run_state_machine_as_test(machine, settings=chosen)


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(machine: Any, *args: Any, **kwargs: Any) -> Any:
        executed: Counter[str] = machine.executed
        executed[function.__name__] += 1
        return function(machine, *args, **kwargs)

    counted.counts = True  # type: ignore[attr-defined]
    return counted
