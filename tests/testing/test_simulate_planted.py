"""Simulation finds faults that are planted into the product, and tells how they come about."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gymckpt.testing.simulation.plan import draw
from gymckpt.testing.simulation.run import Outcome, simulate
from tests.testing.planted import PLANTED, Planted, in_place, uses

WITHIN = 20
"""How many seeds may pass before a fault is found."""


def found(one: Planted) -> Outcome | None:
    """Return the first run that shows a fault, with the kinds of faults that bring it out."""
    with in_place(one):
        for seed in itertools.islice(itertools.count(one.first), WITHIN):
            outcome = simulate(draw(seed, kinds=one.kinds))
            if outcome.problems:
                return outcome
    return None


@pytest.mark.parametrize("one", uses())
def test_it_finds(one: Planted) -> None:
    """Each planted fault breaks a promise that it may break, in a run with a timeline."""
    outcome = found(one)
    assert outcome is not None, f"{one} was not found within {WITHIN} seeds"
    broken = {problem.partition(":")[0] for problem in outcome.problems}
    assert broken & one.promises, outcome.problems
    told = "\n".join(outcome.timeline)
    assert "BROKEN" in told
    assert "journal holds" in told
    assert all(problem in told for problem in outcome.problems)


def test_there_are_enough() -> None:
    """At least a dozen faults are planted, in every part that simulation runs."""
    modules: set[Any] = {str(one) for one in PLANTED}
    assert len(modules) == len(PLANTED) >= 12


@pytest.mark.parametrize("one", uses())
def test_nothing_is_found_without_it(one: Planted) -> None:
    """The same seed breaks nothing in the product as it is."""
    outcome = simulate(draw(one.first, kinds=one.kinds))
    assert not outcome.problems, outcome.timeline
