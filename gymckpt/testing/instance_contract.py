"""
The instance contract as a pytest class: subclass it, say how to make an instance, run pytest.

    class TestMyBackend(InstanceContract):
        def make_instance(self) -> InstanceUnderTest:
            return MyInstanceUnderTest()

Each check is one test. At the end pytest prints which level the backend reaches and
what it breaks, in plain words. A backend that does not claim all says so: `level = "fenced"`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable
from typing import Any, ClassVar

import pytest

from gymckpt.errors import show
from gymckpt.testing.instance import InstanceUnderTest
from gymckpt.testing.instance_report import (
    LEVELS,
    Check,
    ContractReport,
    Level,
    Result,
    checks,
    run_check,
)

__all__ = ["InstanceContract"]


PLUGIN = "gymckpt-instance-contract"
"""The name under which a run's results are kept with pytest."""


class _Summary:
    """Keeps the results of each class, and prints the reports when pytest sums up."""

    def __init__(self) -> None:
        self.results: defaultdict[str, list[Result]] = defaultdict(list)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print one report a class."""
        for name, results in self.results.items():
            terminalreporter.section(f"instance contract: {name}")
            terminalreporter.write_line(str(ContractReport(tuple(results))))


def _summary_of(config: pytest.Config) -> _Summary:
    summary = config.pluginmanager.get_plugin(PLUGIN)
    if not isinstance(summary, _Summary):
        summary = _Summary()
        config.pluginmanager.register(summary, PLUGIN)
    return summary


class InstanceContract:
    """
    The checks, one test each.

    Attributes:
        level: The highest level that the backend claims; checks above it are skipped.
    """

    level: ClassVar[Level] = LEVELS[-1]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Look at the level as soon as a class claims it, and not in each of its tests."""
        super().__init_subclass__(**kwargs)
        if cls.level not in LEVELS:
            levels = ", ".join(LEVELS)
            raise ValueError(f"{cls.__name__}.level is {show(cls.level)}, it is one of {levels}")

    def make_instance(self) -> InstanceUnderTest | Awaitable[InstanceUnderTest]:
        """Make an instance that is open and has no episode; a subclass says how."""
        pytest.fail(f"{type(self).__name__} does not say how to make an instance")

    @pytest.mark.parametrize("check", checks(), ids=lambda check: f"{check.level}-{check.name}")
    def test_instance_keeps(self, check: Check, request: pytest.FixtureRequest) -> None:
        """The instance keeps what the check claims."""
        if LEVELS.index(check.level) > LEVELS.index(self.level):
            pytest.skip(f"the backend claims level {self.level}")
        result = run_check(check, self.make_instance)
        _summary_of(request.config).results[type(self).__name__].append(result)
        if result.outcome in {"not tried", "does not apply"}:
            pytest.skip(f"{result.outcome}: {result.why}")
        if result.outcome == "failed":
            # What failed is the backend; frames of this kit would say nothing about it.
            pytest.fail(f"{check.claim}\n{result.why}", pytrace=False)
