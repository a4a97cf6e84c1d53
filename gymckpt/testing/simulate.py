"""
Run the library in simulation: from seeds, or at every crash point.

    python -m gymckpt.testing.simulate --seeds 0:10000
    python -m gymckpt.testing.simulate --seeds 4711 --timeline
    python -m gymckpt.testing.simulate --sweep

`docs/simulation.md` says what is simulated and how to read a timeline. The exit code is 0 where all
promises held, else 1; 2 where the arguments make no sense; 130 where it was interrupted before any
promise was seen broken.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

import attrs

from gymckpt.testing.commands import INTERRUPTED, ended, processes
from gymckpt.testing.simulation.coverage import Coverage
from gymckpt.testing.simulation.plan import KINDS, draw, require_kinds
from gymckpt.testing.simulation.report import coverage_lines, missed
from gymckpt.testing.simulation.run import Outcome, simulate
from gymckpt.testing.simulation.sweep import SCENARIOS, Crash, crashed, crashes

__all__ = ["Result", "main", "run_seeds"]

PROGRAM = "python -m gymckpt.testing.simulate"
CHUNK = 20
"""How many seeds a process is given at once."""

TIMELINES_MAX = 3
"""How many timelines of broken runs are printed; the others can be made again."""

SWEEP_EVERY = 1

_CRASH = re.compile(
    r"(?P<scenario>[a-z-]+),(?P<kind>crash|pause),(?P<first>[0-9]{1,9}),(?P<second>[0-9]{1,9})"
)


@attrs.frozen(kw_only=True)
class Choice:
    """What was chosen on the command line, as far as runs depend on it."""

    instances: int | None = None
    kinds: tuple[str, ...] = KINDS
    timeline: bool = False

    def command(self, *about: str) -> str:
        """Return the command that makes a run again."""
        options = [*about]
        if self.instances is not None:
            options += ["--instances", str(self.instances)]
        if self.kinds != KINDS:
            options += ["--faults", ",".join(self.kinds)]
        return f"{PROGRAM} {shlex.join([*options, '--timeline'])}"


@attrs.frozen(kw_only=True)
class Broke:
    """A run in which a promise did not hold."""

    name: str
    command: str
    problems: tuple[str, ...]
    timeline: tuple[str, ...]


@attrs.define
class Result:
    """What came of many runs."""

    runs: int = 0
    operations: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    broke: list[Broke] = attrs.field(factory=list[Broke])
    coverage: Coverage = attrs.field(factory=Coverage)
    interrupted: bool = False
    """Whether some of what was asked for was not run."""
    told: tuple[str, ...] = ()
    """The timeline of the last run, where timelines were asked for."""

    def take(self, name: str, command: str, outcome: Outcome) -> None:
        """Count a run in."""
        self.runs += 1
        self.operations += outcome.operations
        self.simulated_s += outcome.seconds
        self.coverage.add(outcome.coverage)
        if outcome.problems:
            problems, timeline = outcome.problems, outcome.timeline
            broke = Broke(name=name, command=command, problems=problems, timeline=timeline)
            self.broke.append(broke)
        else:
            self.told = outcome.timeline

    def add(self, other: Result) -> None:
        """Count the runs of another process in."""
        self.runs += other.runs
        self.operations += other.operations
        self.simulated_s += other.simulated_s
        self.cpu_s += other.cpu_s
        self.broke += other.broke
        self.coverage.add(other.coverage)
        self.told = other.told or self.told


def run_seeds(seeds: Iterable[int], choice: Choice) -> Result:
    """
    Run seeds one after the other.

    Args:
        seeds: Which.
        choice: What else was chosen.
    """
    result, began_s = Result(), time.process_time()
    for seed in seeds:
        plan = draw(seed, instances=choice.instances, kinds=choice.kinds)
        outcome = simulate(plan, timeline=choice.timeline)
        result.take(f"seed {seed}", choice.command("--seeds", str(seed)), outcome)
    result.cpu_s = time.process_time() - began_s
    return result


def _run_sweep(job: tuple[str, bool, int], choice: Choice) -> Result:
    """Sweep one scenario; several processes share it by its points."""
    scenario, pairs, every = job
    result, began_s = Result(), time.process_time()
    found = crashes(scenario, instances=choice.instances or 2, pairs=pairs, every=every)
    for crash, outcome in found:
        result.take(str(crash), choice.command("--crash", _named(crash)), outcome)
    result.cpu_s = time.process_time() - began_s
    return result


def _named(crash: Crash) -> str:
    return f"{crash.scenario},{crash.kind},{crash.first},{crash.second}"


def _crash_of(text: str, instances: int | None) -> Crash:
    named = _CRASH.fullmatch(text)
    if named is None or named["scenario"] not in SCENARIOS:
        raise ValueError(
            f"--crash {text} names no run of the sweep; that is SCENARIO,KIND,FIRST,SECOND: "
            f"one of {', '.join(SCENARIOS)}; crash or pause; at which point; and at which point of "
            "the recovery once more, 0 for none"
        )
    first, second = int(named["first"]), int(named["second"])
    return Crash(named["scenario"], instances or 2, named["kind"], first, second)


def _came_short(crash: Crash, result: Result) -> bool:
    """Whether a point that was named was never reached, though nothing broke before it."""
    came = sum(result.coverage.fired.values())
    return not result.broke and came < bool(crash.first) + bool(crash.second)


def _crashed(crash: Crash, choice: Choice) -> Result:
    """Run one of the sweep again."""
    result, began_s = Result(), time.process_time()
    outcome = crashed(crash, timeline=True)
    result.take(str(crash), choice.command("--crash", _named(crash)), outcome)
    result.cpu_s = time.process_time() - began_s
    return result


def main(arguments: Sequence[str] | None = None, *, out: TextIO | None = None) -> int:
    """
    Run what was asked for and print what came of it.

    Args:
        arguments: Of the command line; None for those of the process.
        out: Where to print.

    Returns:
        The exit code.
    """
    chosen = _parsed(arguments)
    printed = sys.stdout if out is None else out
    choice = Choice(
        instances=chosen.instances,
        kinds=tuple(kind for kind in KINDS if kind in chosen.faults),
        timeline=chosen.timeline,
    )
    began_s = time.monotonic()
    if chosen.crash is not None:
        result = _crashed(chosen.crash, choice)
        if _came_short(chosen.crash, result):
            sys.stderr.write(f"nothing has so many points: {chosen.crash}\n")
            return 2
    else:
        result = _all(chosen, choice)
    took_s = time.monotonic() - began_s
    if chosen.json:
        printed.write(json.dumps(_as_json(result, took_s), indent=2) + "\n")
    else:
        _write(result, took_s, printed, coverage=chosen.coverage)
    return 1 if result.broke else INTERRUPTED if result.interrupted else 0


def _all(chosen: argparse.Namespace, choice: Choice) -> Result:
    """Run everything, on several processes where that is wanted."""
    jobs: list[Any]
    if chosen.sweep:
        work: Any = _run_sweep
        jobs = [(scenario, not chosen.no_pairs, chosen.every) for scenario in SCENARIOS]
        total = len(jobs)
    else:
        work = run_seeds
        seeds: range = chosen.seeds
        jobs = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
        total = len(seeds)
    result, done = Result(), 0
    try:
        for job, part in zip(jobs, _worked(work, jobs, choice, chosen.jobs), strict=True):
            result.add(part)
            done += 1 if chosen.sweep else len(job)
            _show_progress(done, total, result)
    except KeyboardInterrupt:  # what was found is worth more than the rest
        result.interrupted = True
    return result


def _worked(work: Any, jobs: Sequence[Any], choice: Choice, count: int) -> Iterator[Result]:
    """Yield what comes of each job, in their order."""
    if count == 1 or len(jobs) == 1:
        for job in jobs:
            yield work(job, choice)
        return
    with processes(count) as pool:
        waiting = [pool.submit(work, job, choice) for job in jobs]
        for one in waiting:
            yield one.result()


def _show_progress(done: int, total: int, result: Result) -> None:
    if not sys.stderr.isatty():
        return
    end = "\n" if done == total else ""
    sys.stderr.write(f"\r{done} of {total}, {len(result.broke)} broken{end}")
    sys.stderr.flush()


_ARGUMENTS: Mapping[str, dict[str, Any]] = {
    "--seeds": {"metavar": "A:B", "help": "from A to before B, or one seed; 0:1000 by default"},
    "--jobs": {"type": int, "metavar": "N", "help": "on so many processes; all cores by default"},
    "--instances": {
        "type": int,
        "metavar": "N",
        "help": "how many; drawn by default, 2 in a sweep",
    },
    "--faults": {"metavar": "KIND,…", "help": f"which kinds, none if empty; of {', '.join(KINDS)}"},
    "--timeline": {"action": "store_true", "help": "print the last one also where all held"},
    "--coverage": {"action": "store_true", "help": "print the table of transitions and faults"},
    "--json": {"action": "store_true", "help": "print one JSON object"},
    "--sweep": {"action": "store_true", "help": "crash at every point instead of drawing seeds"},
    "--every": {"type": int, "metavar": "N", "help": "take every N-th point of a sweep only"},
    "--no-pairs": {"action": "store_true", "help": "let the recovery in a sweep not crash"},
    "--crash": {
        "metavar": "SCENARIO,KIND,FIRST,SECOND",
        "help": "one run of a sweep: " + ", ".join(SCENARIOS) + "; crash or pause; the points",
    },
}


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Run the library in simulation.")
    for names, kept in _ARGUMENTS.items():
        parser.add_argument(names, **kept)
    chosen = parser.parse_args(arguments)
    try:
        _require_together(chosen)
        chosen.seeds = _seeds("0:1000" if chosen.seeds is None else chosen.seeds)
        kinds = KINDS if chosen.faults is None else chosen.faults.split(",")
        chosen.faults = require_kinds([kind for kind in kinds if kind])
        chosen.crash = None if chosen.crash is None else _crash_of(chosen.crash, chosen.instances)
    except ValueError as error:
        parser.error(str(error))
    for name in ("jobs", "every", "instances"):
        if (value := getattr(chosen, name)) is not None and value < 1:
            parser.error(f"--{name} is {value}, the least is 1")
    chosen.jobs = chosen.jobs or os.cpu_count() or 1
    chosen.every = chosen.every or SWEEP_EVERY
    return chosen


def _require_together(chosen: argparse.Namespace) -> None:
    """Refuse an option that would do nothing: what was run is not what was asked for."""
    if chosen.sweep and chosen.crash is not None:
        raise ValueError("--crash is one run of the sweep: leave --sweep out")
    swept = "--sweep" if chosen.sweep else "--crash"
    if chosen.sweep or chosen.crash is not None:
        useless = [f"--{name}" for name in ("seeds", "faults") if getattr(chosen, name) is not None]
        if useless:
            raise ValueError(f"{useless[0]} does not go with {swept}, which draws nothing")
    if not chosen.sweep and (chosen.every is not None or chosen.no_pairs):
        raise ValueError("--every and --no-pairs go with --sweep only")


def _seeds(text: str) -> range:
    named = re.fullmatch(r"(-?[0-9]{1,18})(?::(-?[0-9]{1,18}))?", text)
    if named is None:
        raise ValueError(f"--seeds {text} is neither a range A:B of whole numbers nor one of them")
    first = int(named[1])
    seeds = range(first, first + 1 if named[2] is None else int(named[2]))
    if not seeds:
        raise ValueError(f"--seeds {text} is an empty range")
    return seeds


# --- what came of it ----------------------------------------------------------------------------


def _write(result: Result, took_s: float, out: TextIO, *, coverage: bool) -> None:
    out.writelines(
        "\n".join([f"{broke.name}:", *broke.timeline, ""]) for broke in result.broke[:TIMELINES_MAX]
    )
    if not result.broke:
        out.writelines(f"{line}\n" for line in result.told)
    for broke in result.broke:
        out.write(f"{broke.name} broke {broke.problems[0]}\n")
        out.writelines(f"    besides {problem}\n" for problem in broke.problems[1:4])
        out.write(f"    again: {broke.command}\n")
    if coverage:
        out.writelines(f"{line}\n" for line in coverage_lines(result.coverage))
    out.writelines(f"{line}\n" for line in _summary(result, took_s))


def _summary(result: Result, took_s: float) -> list[str]:
    never, unmet = missed(result.coverage)
    faults = ", ".join(f"{kind} {count}" for kind, count in result.coverage.fired.most_common())
    broken = f"{len(result.broke)} of {result.runs} runs broke a promise"
    verdict = broken if result.broke else "all promises held"
    return [
        f"faults: {faults or 'none'}",
        *([f"transitions never taken: {len(never)}"] if never else []),
        *(f"    {' '.join(one)}" for one in never),
        f"transitions by faults: {unmet[0]} of {unmet[1]} met",
        f"{result.runs} runs, {result.operations} operations, {result.coverage.entries} entries, "
        f"{result.simulated_s:.0f} simulated s in {took_s:.1f} s "
        f"({result.operations / max(took_s, 1e-9):.0f} operations/s, "
        f"{result.operations / max(result.cpu_s, 1e-9):.0f} per s of CPU)",
        f"{verdict}; interrupted: the rest was not run" if result.interrupted else verdict,
    ]


def _as_json(result: Result, took_s: float) -> dict[str, Any]:
    never, (met, pairs) = missed(result.coverage)
    return {
        "schema": "gymckpt.simulate/1",
        "runs": result.runs,
        "interrupted": result.interrupted,
        "operations": result.operations,
        "entries": result.coverage.entries,
        "simulated_s": result.simulated_s,
        "seconds": took_s,
        "cpu_s": result.cpu_s,
        "faults": dict(result.coverage.fired),
        "never_taken": [list(one) for one in never],
        "pairs_met": met,
        "pairs": pairs,
        "coverage": [
            [*transition, kind, count]
            for (transition, kind), count in sorted(result.coverage.met.items())
        ],
        "broke": [attrs.asdict(broke) for broke in result.broke],
        "timeline": list(result.told),
    }


if __name__ == "__main__":
    sys.exit(ended(main))
