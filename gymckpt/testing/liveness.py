"""
Whether every explored state comes to an end without new faults (L2).

Two things are required of the moves that need no fault. From every state an end can be reached.
And nothing goes round for ever, except where the caller's body runs, which takes as long as it
likes: so no order of events can keep an operation from its end.
"""

from __future__ import annotations

from array import array

__all__ = ["Graph", "hold_liveness"]


class Graph:
    """States by number, and the moves between them that need no fault."""

    def __init__(self) -> None:
        self.ended = bytearray()
        self.running = bytearray()
        """Whether the state waits for its caller."""
        self._sources = array("l")
        self._dests = array("l")

    @property
    def size(self) -> int:
        """How many states there are."""
        return len(self.ended)

    def add(self, *, ended: bool, running: bool) -> None:
        """Add the next state."""
        self.ended.append(ended)
        self.running.append(running)

    def link(self, source: int, dest: int) -> None:
        """Add a move from one state to another, in any order."""
        self._sources.append(source)
        self._dests.append(dest)

    def following(self, *, reverse: bool = False) -> list[list[int]]:
        """Return to which states each leads, or from which it comes."""
        found: list[list[int]] = [[] for _ in range(self.size)]
        for source, dest in zip(self._sources, self._dests, strict=True):
            if reverse:
                found[dest].append(source)
            else:
                found[source].append(dest)
        return found


def hold_liveness(graph: Graph) -> tuple[int, str] | None:
    """Return a state that may never come to an end, and what is wrong; None where there is none."""
    stuck = _without_end(graph)
    if stuck is not None:
        return stuck, "no end can be reached from here without new faults"
    stuck = _going_round(graph)
    if stuck is not None:
        return stuck, "from here it may go round for ever without new faults"
    return None


def _without_end(graph: Graph) -> int | None:
    """Return the first state from which no end can be reached."""
    before = graph.following(reverse=True)
    good = bytearray(graph.ended)
    left = [number for number in range(graph.size) if good[number]]
    while left:
        for number in before[left.pop()]:
            if not good[number]:
                good[number] = 1
                left.append(number)
    return next((number for number in range(graph.size) if not good[number]), None)


def _going_round(graph: Graph) -> int | None:
    """Return the first state on or behind a cycle through no state where the body runs."""
    before = graph.following(reverse=True)
    after = graph.following()
    count = [0] * graph.size
    for number, following in enumerate(after):
        if not graph.running[number]:
            count[number] = sum(1 for one in following if not graph.running[one])
    left = [number for number in range(graph.size) if not count[number]]
    done = 0
    while left:
        number = left.pop()
        done += 1
        if graph.running[number]:
            continue
        for source in before[number]:
            if graph.running[source]:
                continue
            count[source] -= 1
            if not count[source]:
                left.append(source)
    if done == graph.size:
        return None
    return next(number for number in range(graph.size) if count[number] > 0)
