"""The table of transitions and faults, as lines, and what no run has met."""

from __future__ import annotations

from collections import defaultdict

from gymckpt.testing.simulation.coverage import NO_FAULT, Coverage, Transition, all_transitions
from gymckpt.testing.simulation.plan import KINDS

__all__ = ["coverage_lines", "missed"]

COLUMN = 4


def missed(coverage: Coverage) -> tuple[list[Transition], tuple[int, int]]:
    """
    Return the transitions that were never taken, and how many pairs were met of how many.

    Args:
        coverage: Of all runs.
    """
    known = all_transitions()
    taken = {transition for transition, _ in coverage.met}
    met = sum((one, kind) in coverage.met for one in known for kind in KINDS)
    return [one for one in known if one not in taken], (met, len(known) * len(KINDS))


def coverage_lines(coverage: Coverage) -> list[str]:
    """
    Return a table with a line for each transition and a column for each kind of fault.

    Args:
        coverage: Of all runs. A cell says how often the transition was taken in an operation after
            such a fault: `.` never, else the count, from a thousand on in thousands.
    """
    columns = (NO_FAULT, *KINDS)
    lines = [
        "column: fault",
        *(f"{number:>6}: {kind}" for number, kind in enumerate(columns)),
        f"{'transition':<58}" + "".join(f"{number:>{COLUMN}}" for number in range(len(columns))),
    ]
    counts: dict[Transition, dict[str, int]] = defaultdict(dict)
    for (transition, kind), count in coverage.met.items():
        counts[transition][kind] = count
    for one in all_transitions():
        chart, source, trigger, dest = one
        cells = "".join(f"{_short(counts[one].get(kind, 0)):>{COLUMN}}" for kind in columns)
        lines.append(f"{f'{chart}: {source} -{trigger}-> {dest}':<58}{cells}")
    return lines


def _short(count: int) -> str:
    if not count:
        return "."
    return str(count) if count < 1_000 else f"{count // 1_000}k"
