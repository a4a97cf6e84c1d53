"""
Run the instance contract and say in plain words which level a backend reaches.

`python -m gymckpt.testing.instance_report my_package.my_module:make` does it from a shell, where
`make` makes one `InstanceUnderTest`. Needs neither pytest nor an event loop that runs already.
"""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
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
from gymckpt.testing.case import END_S, Case, CheckBody, DoesNotApply
from gymckpt.testing.commands import ended
from gymckpt.testing.instance import ContractBroken, Make, NotOffered

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

STILL_S = 2.0
"""How long the event loop may stand still before a check that fails says so."""

PULSE_S = 0.05
"""How often it is looked whether the event loop still turns."""

FRAMES_MAX = 6
"""How many places of a check that hangs are named, from the innermost."""


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
    outcome: Literal["passed", "failed", "not tried", "does not apply"]
    why: str = ""
    error: Exception | None = None


def checks() -> tuple[Check, ...]:
    """Return all checks, level after level."""
    return tuple(
        Check(body.__name__, level, " ".join((body.__doc__ or "").split()), body)
        for level in LEVELS
        for body in _BODIES[level]
    )


class _Pulse:
    """Watches for how long the event loop stands still."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def beat(self) -> None:
        """Look at the time again and again."""
        loop = asyncio.get_running_loop()
        last_s = loop.time()
        while True:
            await asyncio.sleep(PULSE_S)
            now_s = loop.time()
            self.longest_s, last_s = max(self.longest_s, now_s - last_s), now_s


async def _run(check: Check, make: Make, root: Path, pulse: _Pulse) -> None:
    beating = asyncio.create_task(pulse.beat())
    limit = asyncio.timeout(CHECK_S)
    try:
        async with limit, Case(make, root) as case:
            await check.body(case)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise ContractBroken(f"it was not done within {CHECK_S:g} s") from error
    finally:
        beating.cancel()


def _place(frame: FrameType | None) -> str:
    """Return where a program is, the innermost place first."""
    found = traceback.extract_stack(frame)[-FRAMES_MAX:]
    return ", in ".join(f"{one.name} ({one.filename}:{one.lineno})" for one in reversed(found))


@contextmanager
def _ended(limit_s: float, places: list[str]) -> Iterator[None]:
    """
    Let the body raise `ContractBroken` where it has not ended in time, and again and again.

    A timeout of asyncio does nothing where something blocks the event loop; a signal gets through.
    It is heard in the main thread alone: elsewhere the body has no bound.

    Args:
        limit_s: How long the body may take.
        places: Takes where the body was each time.
    """

    def interrupt(_signal: int, frame: FrameType | None) -> None:
        places.append(_place(frame))
        raise ContractBroken("it hangs")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGALRM, interrupt)
    began_s = time.monotonic()
    left_s, every_s = signal.setitimer(signal.ITIMER_REAL, limit_s, END_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left_s:  # somebody else waits for it too, such as a plugin of pytest
            left_s = max(left_s - (time.monotonic() - began_s), 0.001)
            signal.setitimer(signal.ITIMER_REAL, left_s, every_s)


def _tried(check: Check, make: Make, pulse: _Pulse) -> Result:
    with tempfile.TemporaryDirectory(prefix="gymckpt-contract-") as root:
        try:
            asyncio.run(_run(check, make, Path(root), pulse))
        except NotOffered as missing:
            return Result(check=check, outcome="not tried", why=str(missing))
        except DoesNotApply as missing:
            return Result(check=check, outcome="does not apply", why=str(missing))
        except Exception as error:
            why = str(error) or repr(error)
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            return Result(check=check, outcome="failed", why=f"{kind}{why}", error=error)
    return Result(check=check, outcome="passed")


def run_check(check: Check, make: Make) -> Result:
    """Run one check in an event loop and a directory of its own."""
    pulse = _Pulse()
    limit_s = CHECK_S + 3 * END_S
    places: list[str] = []
    result = Result(check=check, outcome="failed")
    with suppress(ContractBroken), _ended(limit_s, places):
        result = _tried(check, make, pulse)
    if places:  # what was interrupted may have gone on as if nothing were
        why = f"it hangs: after {limit_s:g} s it was in {places[0]}"
        return attrs.evolve(result, outcome="failed", why=why)
    if result.outcome == "failed" and pulse.longest_s >= STILL_S:
        blocked = f"something blocked the event loop for {pulse.longest_s:.0f} s"
        return attrs.evolve(result, why=f"{result.why}; {blocked}")
    return result


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
        """The highest level of which all was tried and kept, and of all before; else None."""
        reached: Level | None = None
        for level in LEVELS:
            missed = self.of(level, "failed") + self.of(level, "not tried")
            if missed or not self.of(level, "passed"):
                break
            reached = level
        return reached

    def __str__(self) -> str:
        lines = [f"reaches level: {self.level or 'none'}"]
        for level in LEVELS:
            passed, failed = self.of(level, "passed"), self.of(level, "failed")
            untried, foreign = self.of(level, "not tried"), self.of(level, "does not apply")
            total = len(passed) + len(failed) + len(untried)
            if not total:
                continue
            more = f", {len(untried)} not tried" if untried else ""
            more += f", {len(foreign)} do not apply" if foreign else ""
            lines.append(f"{level}: {len(passed)} of {total} kept{more} ({MEANS[level]})")
            for one in failed:
                lines += [f"  broken: {one.check.claim}", f"          {one.why} [{one.check.name}]"]
            for one in (*untried, *foreign):
                lines.append(f"  {one.outcome}: {one.check.claim} ({one.why})")
        return "\n".join(lines)


def run(make: Make, chosen: Iterable[Check] | None = None) -> ContractReport:
    """
    Run the contract.

    Args:
        make: Makes one fresh instance.
        chosen: Which checks; by default all.
    """
    return ContractReport(tuple(_results(make, checks() if chosen is None else chosen)))


def _results(make: Make, chosen: Iterable[Check]) -> Iterator[Result]:
    return (run_check(one, make) for one in chosen)


def main(arguments: Sequence[str]) -> int:
    """Run the contract on `module:name`, print the report, and return 0 if it reaches all."""
    if len(arguments) != 1 or ":" not in arguments[0]:
        sys.stderr.write("usage: python -m gymckpt.testing.instance_report module:make\n")
        return 2
    module, _, name = arguments[0].partition(":")
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        sys.stderr.write(f"{arguments[0]} cannot be had: {error}\n")
        return 2
    found: list[Result] = []
    for result in _results(make, checks()):
        found.append(result)
        if result.outcome == "failed":  # it may have taken a minute, and others are to come
            sys.stderr.write(f"broken: {result.check.name}\n")
            sys.stderr.flush()
    report = ContractReport(tuple(found))
    sys.stdout.write(f"{report}\n")
    return 0 if report.level == LEVELS[-1] else 1


if __name__ == "__main__":
    sys.exit(ended(lambda: main(sys.argv[1:])))
