"""
The instance contract as a pytest class: subclass it, say how to make an instance, run pytest.

    class TestMyBackend(InstanceContract):
        def make_instance(self) -> InstanceUnderTest:
            return MyInstanceUnderTest()

Each check is one test. At the end of the class pytest prints which level the backend reaches and
what it breaks, in plain words. A backend that does not claim all says so: `level = "fenced"`.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Iterator
from typing import Any, ClassVar

import pytest

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


class InstanceContract(abc.ABC):  # noqa: B024 - a factory may come from a fixture instead
    """
    The checks, one test each.

    Attributes:
        level: The highest level that the backend claims; checks above it are skipped.
    """

    level: ClassVar[Level] = LEVELS[-1]

    def make_instance(self) -> InstanceUnderTest | Awaitable[InstanceUnderTest]:
        """Make an instance that is open and has no episode; a subclass says how."""
        pytest.fail(f"{type(self).__name__} does not say how to make an instance")

    @pytest.fixture(scope="class", name="contract_results")
    def _contract_results(self, request: pytest.FixtureRequest) -> Iterator[list[Result]]:
        results: list[Result] = []
        yield results
        reporter: Any = request.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and results:
            owner: Any = request.node
            name = owner.name
            reporter.write_line(f"\n{name}\n{ContractReport(tuple(results))}")

    @pytest.mark.parametrize("check", checks(), ids=lambda check: f"{check.level}-{check.name}")
    def test_instance_keeps(self, check: Check, contract_results: list[Result]) -> None:
        """The instance keeps what the check claims."""
        if LEVELS.index(check.level) > LEVELS.index(self.level):
            pytest.skip(f"the backend claims level {self.level}")
        result = run_check(check, self.make_instance)
        contract_results.append(result)
        if result.outcome == "not tried":
            pytest.skip(result.why)
        if result.outcome == "failed":
            # What failed is the backend; frames of this kit would say nothing about it.
            pytest.fail(f"{check.claim}\n{result.why}", pytrace=False)
