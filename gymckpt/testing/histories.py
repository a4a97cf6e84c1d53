"""
Hypothesis strategies for what happens: histories of one operation, and plans of faults.

A history is a walk through the explored universe (`gymckpt.testing.universe`): in each step one of
the things happens that may happen there, first among them what lets all go well. So every history
is one that the core has lived, crashes and takeovers included, and a failing one shrinks towards
the path without faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from hypothesis import strategies as st

from gymckpt.core.entry import Entry
from gymckpt.core.events import Event
from gymckpt.core.operation import OperationState
from gymckpt.core.step import Step, step
from gymckpt.testing.explore import SUBJECTS
from gymckpt.testing.faults import FAULTS, FaultScript, require_call
from gymckpt.testing.moves import moves
from gymckpt.testing.universe import Universe

__all__ = ["CALLS", "FaultPlan", "History", "fault_plans", "histories"]

RUN = "run"
CHOICES = 1_023
"""A choice of 0 ends a history; the smaller ones need no fault."""
FAULTLESS = 900
CALLS = ("prepare", "renew", "commit", "resume", "restore", "retire", "forget")
"""Every call that an operation sends."""


@attrs.frozen
class History:
    """What happened to one operation, from its opening on."""

    subject: str
    """What it is a history of: a key of `gymckpt.testing.explore.SUBJECTS`."""
    told: tuple[str, ...]
    """What happened, in words."""
    faults: int
    """How many of these things were faults."""
    events: tuple[Event, ...]
    """What the core was given, in order; `step` takes all of it."""
    entries: tuple[Entry, ...]
    """What it recorded, the opening first; may be cut off anywhere."""
    operation: OperationState
    """Where the operation stood after the last event; of a history that was cut off, later than
    its last entry."""

    def __repr__(self) -> str:
        steps = "".join(f"\n  {words}" for words in self.told)
        return f"<{self.subject}, {len(self.entries)} entries:{steps}>"


class _Recorder:
    """A core that keeps what it is given and what it records."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.events: list[Event] = []
        self.entries = list(entries)

    def __call__(self, operation: OperationState, event: Event) -> Step:
        taken = step(operation, event)
        self.events.append(event)
        self.entries += taken.entries
        return taken


@st.composite
def histories(
    draw: st.DrawFn,
    subject: str | None = None,
    *,
    instances_max: int = 3,
    moves_max: int = 60,
    faults_max: int = 3,
    cut: bool = False,
) -> History:
    """
    Return histories that the core has lived.

    Args:
        draw: Given by Hypothesis.
        subject: `checkpoint`, `restore`, or a sweep's call; None for any.
        instances_max: How many instances it concerns at most.
        moves_max: How many things happen at most.
        faults_max: How many of them are faults at most.
        cut: Whether its entries may be cut off after any but the first, as by a crash.

    Raises:
        ValueError: There is no such subject; raised when the first is drawn.
    """
    if subject not in {None, *SUBJECTS}:
        raise ValueError(f"{subject!r:.100} is none of {', '.join(sorted(SUBJECTS))}")
    chosen = draw(st.sampled_from(sorted(SUBJECTS))) if subject is None else subject
    chart, facts = SUBJECTS[chosen]
    count = draw(st.integers(1, instances_max))
    opening = Universe(chart, count, facts=facts).opening(RUN)
    recorder = _Recorder(opening.entries)
    universe = Universe(chart, count, stepper=recorder, facts=facts)
    world = universe.first(draw(st.integers(0, faults_max)))
    told: list[str] = []
    faults = 0
    while len(told) < moves_max and (choice := draw(st.integers(0, CHOICES))):
        possible = tuple(moves(universe, world))
        free = tuple(move for move in possible if not move.cost)
        wanted = possible if choice > FAULTLESS else free or possible
        if not wanted:
            break
        move = wanted[(choice - 1) % len(wanted)]
        told.append(move.words)
        faults += move.cost
        world = move.make()
    entries = tuple(recorder.entries)
    if cut:
        entries = entries[: draw(st.integers(1, len(entries)))]
    return History(chosen, tuple(told), faults, tuple(recorder.events), entries, world.operation)


# --- plans of faults ------------------------------------------------------------------------------


@attrs.frozen
class FaultPlan:
    """What happens to the calls of some instances, and which of them die."""

    scripts: Mapping[str, Mapping[str, tuple[str | None, ...]]]
    """Instance to call to what happens at its next times: a key of `gymckpt.testing.faults.FAULTS`,
    or None for a call that goes well."""
    deaths: Mapping[str, int]
    """Instance to after how many calls it dies."""

    def arrange(self, instances: Mapping[str, FaultScript]) -> None:
        """
        Let it happen.

        Args:
            instances: Instance id to its script, such as a `FakeInstance` or a `FaultyHandle`.
        """
        for instance, scripts in self.scripts.items():
            for call, planned in scripts.items():
                made = (None if words is None else FAULTS[words]() for words in planned)
                instances[instance].script(call, *made)
        for instance, after in self.deaths.items():
            instances[instance].die(after_calls=after)

    @property
    def size(self) -> int:
        """How many faults there are, deaths included."""
        planned = [one for scripts in self.scripts.values() for one in scripts.values()]
        return len(self.deaths) + sum(words is not None for one in planned for words in one)


@st.composite
def fault_plans(
    draw: st.DrawFn,
    instances: Sequence[str],
    *,
    calls: Sequence[str] = CALLS,
    faults: Sequence[str] = tuple(FAULTS),
    faults_max: int = 4,
    deaths: bool = True,
) -> FaultPlan:
    """
    Return plans of faults; they shrink towards no fault at all.

    Args:
        draw: Given by Hypothesis.
        instances: The instance ids.
        calls: To which calls something may happen.
        faults: What may happen; the earlier ones are the simpler ones.
        faults_max: How many faults there are at most, deaths left out.
        deaths: Whether instances may die.

    Raises:
        ValueError: There is no such call, or no such fault; raised when the first is drawn.
    """
    for call in calls:
        require_call(call)
    for words in faults:
        if words not in FAULTS:
            raise ValueError(f"{words!r:.100} is no fault; there are: {'; '.join(FAULTS)}")
    places = st.tuples(
        st.sampled_from(instances),
        st.sampled_from(calls),
        st.integers(0, 2),
        st.sampled_from(faults),
    )
    scripts: dict[str, dict[str, tuple[str | None, ...]]] = {}
    for instance, call, after, words in draw(st.lists(places, max_size=faults_max)):
        planned = scripts.setdefault(instance, {})
        planned[call] = (*planned.get(call, ()), *([None] * after), words)
    dying = st.dictionaries(st.sampled_from(instances), st.integers(0, 12), max_size=1)
    return FaultPlan(scripts, draw(dying) if deaths else {})
