"""
The instance contract as a pytest class: subclass it, say how to make an instance, run pytest.

    class TestMyBackend(InstanceContract):
        def make_instance(self) -> InstanceUnderTest:
            return MyInstanceUnderTest()

Each check is one test. At the end of the class pytest prints which level the backend reaches and
what it breaks, in plain words. A backend that does not claim all says so: `level = "fenced"`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar, cast

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


_RESULTS = pytest.StashKey[list[Result]]()


def _results_of(request: pytest.FixtureRequest) -> list[Result]:
    """Return where the results of a test's class are gathered, to be printed at its end."""
    owner = cast("Any", request).node.getparent(pytest.Class)  # a node's type is not declared
    if _RESULTS not in owner.stash:
        owner.stash[_RESULTS] = []
        owner.addfinalizer(lambda: _print(request.config, owner.name, owner.stash[_RESULTS]))
    return cast("list[Result]", owner.stash[_RESULTS])


def _print(config: pytest.Config, name: str, results: list[Result]) -> None:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"\n{name}\n{ContractReport(tuple(results))}")


class InstanceContract:
    """
    The checks, one test each.

    Attributes:
        level: The highest level that the backend claims; checks above it are skipped.
    """

    level: ClassVar[Level] = LEVELS[-1]

    def make_instance(self) -> InstanceUnderTest | Awaitable[InstanceUnderTest]:
        """Make an instance that is open and has no episode; a subclass says how."""
        pytest.fail(f"{type(self).__name__} does not say how to make an instance")

    @pytest.mark.parametrize("check", checks(), ids=lambda check: f"{check.level}-{check.name}")
    def test_instance_keeps(self, check: Check, request: pytest.FixtureRequest) -> None:
        """The instance keeps what the check claims."""
        if LEVELS.index(check.level) > LEVELS.index(self.level):
            pytest.skip(f"the backend claims level {self.level}")
        result = run_check(check, self.make_instance)
        _results_of(request).append(result)
        if result.outcome == "not tried":
            pytest.skip(result.why)
        if result.outcome == "failed":
            # What failed is the backend; frames of this kit would say nothing about it.
            pytest.fail(f"{check.claim}\n{result.why}", pytrace=False)
