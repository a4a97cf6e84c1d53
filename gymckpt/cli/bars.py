"""A timeline in characters: bars of asks, the strip of states above them, the axis below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from gymckpt.cli.styles import CALL_STATE_STYLES

if TYPE_CHECKING:
    from gymckpt.diagnosis.lanes import Lane, StateSpan

__all__ = ["CALL_STYLES", "END_MARKS", "Scale", "axis_text", "lane_text", "states_text"]

CALL_STYLES = {
    "prepare": "blue",
    "restore": "blue",
    "renew": "bright_black",
    "commit": "cyan",
    "retire": "magenta",
    "forget": "magenta",
    "resume": "green",
}
"""How the bar of a call is shown while all is well."""

END_MARKS = {
    "refused": "!",
    "failed": "✗",
    "gone": "✗",
    "unanswered": "?",
    "abandoned": "»",
    "asked": "▸",
}
"""How a bar ends that did not end in an answer; that it does must be seen without colours."""

_BAR, _THIN = "━", "·"
_STATE_STYLES = ("bold white on grey30", "bold white on grey42")


class Scale:
    """Seconds on a row of cells."""

    def __init__(self, end_at_s: float, width: int) -> None:
        """
        Lay seconds out.

        Args:
            end_at_s: What the last cell is for.
            width: How many cells there are.
        """
        self.end_at_s = max(end_at_s, 1e-6)
        self.width = max(1, width)

    def cell(self, at_s: float) -> int:
        """Return the cell of an instant, one of those that there are."""
        return min(self.width - 1, max(0, int(at_s / self.end_at_s * self.width)))

    def cells(self, began_at_s: float, ended_at_s: float | None) -> range:
        """Return the cells of a span, at least one."""
        first = self.cell(began_at_s)
        last = self.cell(self.end_at_s if ended_at_s is None else ended_at_s)
        return (
            range(first, max(last, first + 1)) if last < self.width - 1 else range(first, last + 1)
        )


class _Row:
    """One row of cells, each a character with a style."""

    def __init__(self, width: int) -> None:
        self._cells: list[tuple[str, str]] = [(" ", "")] * width

    def put(self, cell: int, character: str, style: str) -> None:
        self._cells[cell] = (character, style)

    def text(self) -> Text:
        return Text.assemble(*self._cells, no_wrap=True, end="")


def lane_text(lane: Lane, scale: Scale) -> Text:
    """Return the asks to one instance as bars."""
    row = _Row(scale.width)
    spans = sorted(lane.spans, key=lambda span: span.call != "renew")
    for span in spans:
        well = span.outcome in ("answered", "asked")
        style = CALL_STYLES.get(span.call, "white") if well else CALL_STATE_STYLES[span.outcome]
        cells = scale.cells(span.began_at_s, span.ended_at_s)
        for cell in cells:
            row.put(cell, _THIN if span.call == "renew" else _BAR, style)
        mark = END_MARKS.get(span.outcome)
        if mark is not None and (span.call, span.outcome) != ("renew", "abandoned"):
            row.put(cells[-1], mark, f"bold {style}")
    return row.text()


def states_text(states: Sequence[StateSpan], scale: Scale) -> Text:
    """Return the states of an operation as a strip with their names, where they fit."""
    row = _Row(scale.width)
    for number, span in enumerate(states):
        left_at_s = span.left_at_s
        if left_at_s is None and span is states[-1] and span.entered_at_s >= scale.end_at_s:
            continue
        cells = scale.cells(span.entered_at_s, left_at_s)
        style = _STATE_STYLES[number % 2]
        for cell in cells:
            row.put(cell, " ", style)
        for cell, character in zip(cells, f"{span.state:^{len(cells)}}", strict=False):
            if len(cells) >= len(span.state):
                row.put(cell, character, style)
    return row.text()


def axis_text(scale: Scale) -> Text:
    """Return the axis: ticks at round seconds, with their labels where they fit."""
    from gymckpt.diagnosis.words import duration  # noqa: PLC0415 - imported when needed

    step_s = _round_step(scale.end_at_s / max(1, scale.width // 12))
    row, free, at_s = _Row(scale.width), 0, 0.0
    while at_s <= scale.end_at_s:
        cell, label = scale.cell(at_s), f"╵{'0' if at_s == 0 else duration(at_s)}"
        if cell >= free and cell + len(label) <= scale.width:
            for offset, character in enumerate(label):
                row.put(cell + offset, character, "dim")
            free = cell + len(label) + 1
        at_s += step_s
    return row.text()


def _round_step(least_s: float) -> float:
    """Return the least round number of seconds, minutes or hours from `least_s` on."""
    for step_s in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400):
        if step_s >= least_s > 0.5:
            return float(step_s)
    power = 10.0 ** math.floor(math.log10(max(least_s, 1e-9)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least_s)
