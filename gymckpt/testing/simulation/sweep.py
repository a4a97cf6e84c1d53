"""
The sweep over crash points: a fixed operation, and a crash at each point that it passes.

Points are before and after each append, each call that leaves and each file job. The first
controller crashes at point i; in pairs the one that recovers crashes at its point j as well, and a
third one ends it. Besides, the first is paused at each point for so long that another one takes
over, and then goes on: it must do no harm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from gymckpt.testing.simulation.plan import Fault, Plan, Verb
from gymckpt.testing.simulation.run import Outcome, simulate

__all__ = ["SCENARIOS", "Crash", "crashed", "crashes"]

PAUSE_S = 40.0
"""Longer than a controller may be silent, and shorter than leases and the takeover together."""


def _plan(*verbs: Verb, instances: int) -> Plan:
    return Plan(
        seed=0,
        instances=instances,
        rollouts=1,
        turn_s=1.0,
        message_faults={},
        verbs=verbs,
        takeover_s=16.0,
        forced=False,
    )


_SAVED = Verb(kind="checkpoint", body_s=0.1, choice=1)

SCENARIOS: Mapping[str, tuple[Verb, ...]] = {
    "checkpoint": (Verb(kind="checkpoint", body_s=0.1, choice=3),),
    "snapshot": (Verb(kind="snapshot", body_s=0.1, choice=1),),
    "checkpoint-discarded": (Verb(kind="checkpoint", body_s=0.1, choice=1, body_fails=True),),
    "restore": (_SAVED, Verb(kind="restored", body_s=0.1, choice=1)),
    "restore-discarded": (_SAVED, Verb(kind="restored", body_s=0.1, choice=1, body_fails=True)),
    "retire": (Verb(kind="retire", body_s=0.0, choice=1),),
}
"""Name to verbs; it is the last of them that is swept."""


@attrs.frozen
class Crash:
    """One run of the sweep."""

    scenario: str
    instances: int
    kind: str
    """`crash` or `pause`."""
    first: int
    """At which point of the last verb the first controller ends; 0 for none."""
    second: int = 0
    """At which point of its recovery the second one crashes; 0 for none."""

    def __str__(self) -> str:
        second = f", and a crash at point {self.second} of the recovery" if self.second else ""
        return f"{self.scenario} of {self.instances}: {self.kind} at point {self.first}{second}"


def crashed(crash: Crash, *, timeline: bool = False) -> Outcome:
    """
    Run one of the sweep.

    Args:
        crash: Where it is.
        timeline: Whether to keep the timeline of a run in which nothing was broken.
    """
    *before, last = SCENARIOS[crash.scenario]
    if crash.first:
        fault = Fault(kind=crash.kind, point=crash.first, target=0, seconds=PAUSE_S, choice=1)
        last = attrs.evolve(last, faults=(fault,))
    plan = _plan(*before, last, instances=crash.instances)
    if crash.second:
        again = Fault(kind="crash", point=crash.second, target=0, seconds=0.0, choice=1)
        plan = attrs.evolve(plan, startup_faults=(again,))
    return simulate(plan, timeline=timeline)


def crashes(
    scenario: str, *, instances: int = 2, pairs: bool = True, every: int = 1
) -> Iterator[tuple[Crash, Outcome]]:
    """
    Sweep one scenario, and yield each run with what came of it.

    Args:
        scenario: Its name.
        instances: How many instances there are.
        pairs: Whether the recovering controller crashes too.
        every: Take only every so many-th point, to bound the sweep.
    """
    whole = Crash(scenario, instances, "crash", 0)
    outcome = crashed(whole)
    yield whole, outcome
    points = outcome.passed[0][-1]
    for kind in ("crash", "pause"):
        for first in range(1, points + 1, every):
            single = Crash(scenario, instances, kind, first)
            outcome = crashed(single)
            yield single, outcome
            if not pairs or kind != "crash" or len(outcome.passed) < 2:
                continue
            for second in range(1, outcome.passed[1][0] + 1, every):
                pair = attrs.evolve(single, second=second)
                yield pair, crashed(pair)
