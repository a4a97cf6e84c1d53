"""
Explore everything that can happen to an operation, breadth first, and hold the promises to it.

The real core is composed with real control planes, a network and a file system in which a bounded
number of faults may come at any point, and with every order in which things can arrive. S1 to S9
are held in every state and of every step. L2 is held over the whole: without new faults an end can
be reached from every state, and nothing can go round for ever but in the states where the caller's
body runs. A violation comes with a shortest course of events that leads to it.

States are told apart by 128 bits of their keys (`gymckpt.testing.symmetry`), so that no two of
millions are taken for one.

    python -m gymckpt.testing.explore --instances 2 --faults 2
"""

from __future__ import annotations

import argparse
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from gymckpt.chart import Chart, load_chart
from gymckpt.core.step import step
from gymckpt.errors import IllegalTransition, InvariantViolated
from gymckpt.testing.account import Broken
from gymckpt.testing.commands import at_least, ended
from gymckpt.testing.liveness import Graph, hold_liveness
from gymckpt.testing.moves import hold_refusals, moves
from gymckpt.testing.symmetry import digest_of, pruned
from gymckpt.testing.universe import Stepper, Transition, Universe, World

__all__ = [
    "SUBJECTS",
    "Found",
    "Violation",
    "explore",
    "main",
    "missing_transitions",
    "report",
]

SUBJECTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "checkpoint": ("checkpoint", {}),
    "restore": ("restore", {}),
    "retire": ("sweep", {"call": "retire"}),
    "forget": ("sweep", {"call": "forget"}),
    "resume": ("sweep", {"call": "resume"}),
}
"""What is explored: its name to its chart and what its opening entry holds."""


@attrs.frozen(kw_only=True)
class Violation:
    """A promise that does not hold, and how to get there."""

    promise: str
    what: str
    course: tuple[str, ...]
    """What happened, from the opening on; none shorter leads there."""

    def __str__(self) -> str:
        lines = [f"{self.promise} is broken: {self.what}", "", "how it comes about:"]
        lines += [f"{number:4}. {words}" for number, words in enumerate(self.course, 1)]
        return "\n".join(lines)


@attrs.frozen(kw_only=True)
class Found:
    """What one exploration came to."""

    subject: str
    instances: int
    faults: int
    states: int
    transitions: int
    depth: int
    steps: int
    """How often the core was asked."""
    took_s: float
    complete: bool
    """Whether every reachable state was seen."""
    taken: frozenset[Transition]
    """The transitions that were taken of the operation's, the call and the participant chart."""
    violation: Violation | None = None

    @property
    def _end(self) -> str:
        if self.violation is not None:
            return f"{self.violation.promise} BROKEN"
        return "complete" if self.complete else "CUT OFF by time"

    def __str__(self) -> str:
        return (
            f"{self.subject:<11}{self.instances} instance(s), {self.faults} fault(s): "
            f"{self.states} states, {self.transitions} transitions, depth {self.depth}, "
            f"{self.took_s:.1f} s, {self._end}"
        )


class _Explorer:
    """One exploration."""

    def __init__(self, universe: Universe, clock: Callable[[], float], ends_s: float) -> None:
        self.universe = universe
        self.graph = Graph()
        self.depth = 0
        self.transitions = 0
        self.violation: Violation | None = None
        self._clock = clock
        self._ends_s = ends_s
        self._numbers: dict[bytes, int] = {}
        self._parents = array("l")
        self._words: list[str] = []

    def run(self, first: World) -> bool:
        """Go on until all is seen, time is over or a promise is broken; say whether all is seen."""
        self._add(first, -1, "it is opened")
        level = [(0, first)]
        while level:
            following: list[tuple[int, World]] = []
            for number, world in level:
                if self._clock() > self._ends_s:
                    return False
                if not self._expand(number, world, following):
                    return False
            level = following
            self.depth += bool(level)
        self._hold_liveness()
        return self.violation is None

    def _add(self, world: World, parent: int, words: str) -> tuple[int, bool]:
        """Return the number of a world, and whether it is new; note how a new one came about."""
        number = self._numbers.setdefault(digest_of(world), len(self._words))
        if number < len(self._words):
            return number, False
        self._parents.append(parent)
        self._words.append(words)
        row = world.operation.row
        running = not (row.call or row.also or row.effect or row.final)
        self.graph.add(ended=row.final, running=running)
        return number, True

    def _expand(self, number: int, world: World, following: list[tuple[int, World]]) -> bool:
        """Take every move of a world; say whether all promises held."""
        words = ""
        try:
            hold_refusals(self.universe, world)
            for move in moves(self.universe, world):
                words = move.words
                after = pruned(self.universe, move.make())
                self.transitions += 1
                if world.operation.state != after.operation.state:
                    words = f"{words}  [{world.operation.state} -> {after.operation.state}]"
                found, new = self._add(after, number, words)
                if new:
                    following.append((found, after))
                if not move.cost:
                    self.graph.link(number, found)
        except Broken as broken:
            self._fail(broken.promise, broken.what, number, words)
            return False
        except (IllegalTransition, InvariantViolated, AssertionError) as error:
            self._fail(type(error).__name__, str(error), number, words)
            return False
        return True

    def _hold_liveness(self) -> None:
        stuck = hold_liveness(self.graph)
        if stuck is not None:
            number, what = stuck
            self._fail("L2", what, number, "")

    def _fail(self, promise: str, what: str, number: int, last: str) -> None:
        course = [last] if last else []
        while number >= 0:
            course.append(self._words[number])
            number = self._parents[number]
        self.violation = Violation(promise=promise, what=what, course=tuple(reversed(course)))


def explore(
    subject: str,
    *,
    instances: int,
    faults: int,
    seconds: float = 600.0,
    stepper: Stepper = step,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """
    Explore one kind of operation.

    Args:
        subject: One of `SUBJECTS`.
        instances: How many instances it concerns.
        faults: How many faults may come in one course of events.
        seconds: After how long to give up.
        stepper: The core, or one with a planted fault.
        clock: What measures the time.
    """
    chart, facts = SUBJECTS[subject]
    universe = Universe(chart, instances, stepper=stepper, facts=facts)
    began_s = clock()
    explorer = _Explorer(universe, clock, began_s + seconds)
    complete = explorer.run(universe.first(faults))
    return Found(
        subject=subject,
        instances=instances,
        faults=faults,
        states=explorer.graph.size,
        transitions=explorer.transitions,
        depth=explorer.depth,
        steps=universe.steps,
        took_s=clock() - began_s,
        complete=complete,
        taken=frozenset(universe.taken),
        violation=explorer.violation,
    )


def declared_transitions(chart: Chart) -> frozenset[Transition]:
    """Return every transition that a chart declares."""
    return frozenset(
        (chart.name, state.name, trigger, edge.to)
        for state in chart.states.values()
        for trigger, edges in state.on.items()
        for edge in edges
    )


def missing_transitions(runs: Iterable[Found]) -> frozenset[Transition]:
    """
    Return the transitions that no run took.

    Args:
        runs: What was explored; the charts that count are theirs, the call chart and the
            participant chart.
    """
    runs = tuple(runs)
    charts = {SUBJECTS[run.subject][0] for run in runs} | {"call", "participant"}
    declared = (declared_transitions(load_chart(chart)) for chart in charts)
    return frozenset[Transition]().union(*declared).difference(*(run.taken for run in runs))


def report(runs: Sequence[Found]) -> str:
    """Return what several runs took of the charts, and what they did not."""
    lines = [f"{run.violation}\n" for run in runs if run.violation is not None]
    missing = sorted(missing_transitions(runs))
    every = "every transition of these charts was taken"
    lines.append("never taken by what was explored here:" if missing else every)
    lines += [_described(one) for one in missing]
    return "\n".join(lines)


def _described(transition: Transition) -> str:
    chart, source, trigger, dest = transition
    return f"  {chart}: {source} --{trigger}--> {dest}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore from the command line; return 0 where every promise held and all was seen."""
    parser = argparse.ArgumentParser(prog="python -m gymckpt.testing.explore")
    parser.add_argument("--instances", type=at_least(1), default=1, help="how many instances")
    parser.add_argument("--faults", type=at_least(0), default=1, help="how many faults may come")
    parser.add_argument("--seconds", type=at_least(1), default=600, help="the time for all of it")
    parser.add_argument("--only", choices=list(SUBJECTS), action="append", help="what to explore")
    chosen = parser.parse_args(arguments)
    ends_s = time.monotonic() + chosen.seconds
    runs: list[Found] = []
    for subject in chosen.only or SUBJECTS:
        left_s = ends_s - time.monotonic()
        run = explore(subject, instances=chosen.instances, faults=chosen.faults, seconds=left_s)
        runs.append(run)
        sys.stdout.write(f"{run}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{report(runs)}\n")
    return int(not all(run.complete for run in runs))


if __name__ == "__main__":
    sys.exit(ended(main))
