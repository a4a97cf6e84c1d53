"""Which transitions of which charts were met by which kinds of faults, over many runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from gymckpt.chart import load_chart
from gymckpt.core.entry import Entry
from gymckpt.core.operation import CALL_CHART, OPEN_TRIGGER

__all__ = ["CHARTS", "Coverage", "Transition", "all_transitions"]

CHARTS = ("checkpoint", "restore", "sweep", CALL_CHART)

Transition = tuple[str, str, str, str]
"""Chart, source, trigger, dest."""

NO_FAULT = "none"


def all_transitions() -> list[Transition]:
    """Return every transition of the charts of operations and calls."""
    return sorted(
        (name, state.name, trigger, edge.to)
        for name in CHARTS
        for state in load_chart(name).states.values()
        for trigger, edges in state.on.items()
        for edge in edges
    )


class Coverage:
    """
    What one run has met, or several together.

    Attributes:
        fired: How often each kind of fault has happened.
        met: (transition, kind) to how often it was taken after such a fault of its operation.
        entries: How many entries were recorded.
    """

    def __init__(self) -> None:
        self.fired: Counter[str] = Counter()
        self.met: Counter[tuple[Transition, str]] = Counter()
        self.entries = 0
        self._order: list[str] = []
        self._opened: dict[str, tuple[str, int]] = {}
        """Operation to its chart, and how many faults had happened before it."""

    def fires(self, kind: str) -> None:
        """Note a fault."""
        self.fired[kind] += 1
        self._order.append(kind)

    def any_fired(self, prefix: str) -> bool:
        """Whether a fault has happened whose kind begins so."""
        return any(kind.startswith(prefix) for kind in self.fired)

    def recorded(self, entries: Sequence[Entry]) -> None:
        """Note entries."""
        self.entries += len(entries)
        for entry in entries:
            if entry.trigger == OPEN_TRIGGER and entry.instance is None:
                self._opened[entry.operation_id] = (entry.facts["chart"], len(self._order))
                continue
            chart, since = self._opened.get(entry.operation_id, ("", 0))
            about = CALL_CHART if entry.instance is not None else chart
            transition = (about, entry.source, entry.trigger, entry.dest)
            kinds: Iterable[str] = dict.fromkeys(self._order[since:]) or (NO_FAULT,)
            for kind in kinds:
                self.met[transition, kind] += 1

    def add(self, other: Coverage) -> None:
        """Count in what another run has met."""
        self.fired.update(other.fired)
        self.met.update(other.met)
        self.entries += other.entries
