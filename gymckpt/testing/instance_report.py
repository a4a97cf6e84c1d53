"""
Run the instance contract and say in plain words which level a backend reaches.

`python -m gymckpt.testing.instance_report my_package.my_module:make` does it from a shell, where
`make` makes one `InstanceUnderTest`. Needs neither pytest nor an event loop that runs already.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import attrs

from gymckpt.testing import (
    checks_basic,
    checks_damage,
    checks_fenced,
    checks_interrupted,
    checks_leases,
    checks_repeated,
)
from gymckpt.testing.case import Case, CheckBody
from gymckpt.testing.commands import ended
from gymckpt.testing.instance import Make, NotOffered

__all__ = [
    "CHECK_S",
    "LEVELS",
    "Check",
    "ContractReport",
    "Level",
    "Result",
    "checks",
    "main",
    "run",
]

Level = Literal["basic", "fenced", "faulty"]

LEVELS: tuple[Level, ...] = ("basic", "fenced", "faulty")
"""Each level takes for granted that the ones before it are kept."""

MEANS: dict[Level, str] = {
    "basic": "saves, restores and reopens while nothing goes wrong",
    "fenced": "refuses what is stale, foreign or out of turn, and repeats its answers",
    "faulty": "stays right under silence, clocks, cancelled calls, bad disks and damaged files",
}

_BODIES: dict[Level, list[CheckBody]] = {
    "basic": checks_basic.CHECKS,
    "fenced": checks_fenced.CHECKS + checks_repeated.CHECKS,
    "faulty": checks_leases.CHECKS + checks_interrupted.CHECKS + checks_damage.CHECKS,
}

CHECK_S = 60.0
"""How long, in real time, one check may take."""


@attrs.frozen
class Check:
    """One claim about an instance."""

    name: str
    level: Level
    claim: str
    body: CheckBody


@attrs.frozen(kw_only=True)
class Result:
    """What became of one check."""

    check: Check
    outcome: Literal["passed", "failed", "not tried"]
    why: str = ""
    error: Exception | None = None


def checks() -> tuple[Check, ...]:
    """Return all checks, level after level."""
    return tuple(
        Check(body.__name__, level, " ".join((body.__doc__ or "").split()), body)
        for level in LEVELS
        for body in _BODIES[level]
    )


async def _run(check: Check, make: Make, root: Path) -> None:
    async with asyncio.timeout(CHECK_S), Case(make, root) as case:
        await check.body(case)


def run_check(check: Check, make: Make) -> Result:
    """Run one check in an event loop and a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="gymckpt-contract-") as root:
        try:
            asyncio.run(_run(check, make, Path(root)))
        except NotOffered as missing:
            return Result(check=check, outcome="not tried", why=str(missing))
        except Exception as error:
            why = str(error) or repr(error)
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            return Result(check=check, outcome="failed", why=f"{kind}{why}", error=error)
    return Result(check=check, outcome="passed")


@attrs.frozen
class ContractReport:
    """What a backend keeps of the contract."""

    results: tuple[Result, ...]

    def of(self, level: Level, outcome: str) -> tuple[Result, ...]:
        """Return the results of one level that came out like this."""
        return tuple(
            one for one in self.results if one.check.level == level and one.outcome == outcome
        )

    @property
    def level(self) -> Level | None:
        """The highest level of which nothing failed, nor of any before; None if there is none."""
        reached: Level | None = None
        for level in LEVELS:
            if self.of(level, "failed") or not self.of(level, "passed"):
                break
            reached = level
        return reached

    def __str__(self) -> str:
        lines = [f"reaches level: {self.level or 'none'}"]
        for level in LEVELS:
            passed, failed = self.of(level, "passed"), self.of(level, "failed")
            untried = self.of(level, "not tried")
            total = len(passed) + len(failed) + len(untried)
            if not total:
                continue
            more = f", {len(untried)} not tried" if untried else ""
            lines.append(f"{level}: {len(passed)} of {total} kept{more} ({MEANS[level]})")
            for one in failed:
                lines += [f"  broken: {one.check.claim}", f"          {one.why} [{one.check.name}]"]
            lines += [f"  not tried: {one.check.claim} ({one.why})" for one in untried]
        return "\n".join(lines)


def run(make: Make, chosen: Iterable[Check] | None = None) -> ContractReport:
    """
    Run the contract.

    Args:
        make: Makes one fresh instance.
        chosen: Which checks; by default all.
    """
    return ContractReport(
        tuple(run_check(one, make) for one in (checks() if chosen is None else chosen))
    )


def main(arguments: Sequence[str]) -> int:
    """Run the contract on `module:name`, print the report, and return 0 if all of it is kept."""
    if len(arguments) != 1 or ":" not in arguments[0]:
        sys.stderr.write("usage: python -m gymckpt.testing.instance_report module:make\n")
        return 2
    module, _, name = arguments[0].partition(":")
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        sys.stderr.write(f"{arguments[0]} cannot be had: {error}\n")
        return 2
    report = run(make)
    sys.stdout.write(f"{report}\n")
    return 0 if report.level == LEVELS[-1] else 1


if __name__ == "__main__":
    sys.exit(ended(lambda: main(sys.argv[1:])))
