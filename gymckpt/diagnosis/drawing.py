"""
Draw a chart as inline SVG, with the path that an operation took and where it stands.

The layout is layered: a state's row is the longest way to it from the beginning. The way that the
file declares first is the first column; what branches off it stands in the columns to its right.
An edge that goes past other states runs down a channel that is free of them, and edges to the same
state share it. Everything is derived from the chart. No attribute holds style: classes do.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import attrs

from gymckpt.chart import Chart
from gymckpt.diagnosis.page import escaped, seconds_text

__all__ = ["Box", "Layout", "Visit", "chart_svg", "layout_of"]

BOX_W, BOX_H = 128, 40
GAP_X, GAP_Y = 46, 28
CHANNEL_W = 18
MARGIN = 12
CORNER = 8


@attrs.frozen(kw_only=True)
class Visit:
    """One state that was passed through."""

    state: str
    trigger: str
    """What led into it."""
    seconds: float | None
    """How long it lasted; None while it lasts."""


@attrs.frozen(kw_only=True)
class Box:
    """Where a state stands."""

    state: str
    row: int
    column: int
    x: int
    y: int

    @property
    def middle(self) -> int:
        """Its middle, from the left."""
        return self.x + BOX_W // 2


@attrs.frozen(kw_only=True)
class Layout:
    """Where everything of a chart stands."""

    boxes: Mapping[str, Box]
    edges: Mapping[tuple[str, str], tuple[tuple[int, int], ...]]
    """(source, target) to the corners of the line."""
    width: int
    height: int


def chart_svg(chart: Chart, visits: Sequence[Visit], *, settled: bool) -> str:
    """
    Return a chart as SVG, with a path marked.

    Args:
        chart: What to draw.
        visits: The states that were passed through, in order; the last is the present one.
        settled: Whether the operation has ended there.
    """
    layout = layout_of(chart)
    taken = {
        (before.state, after.state): after.trigger for before, after in itertools.pairwise(visits)
    }
    triggers = _triggers(chart)
    lines = [
        _edge(chart, pair, corners, triggers[pair], taken.get(pair))
        for pair, corners in sorted(layout.edges.items(), key=lambda item: item[0] in taken)
    ]
    last = {visit.state: (number, visit) for number, visit in enumerate(visits, 1)}
    boxes = [
        _box(chart, box, last.get(name), now=bool(visits) and visits[-1].state == name)
        for name, box in layout.boxes.items()
    ]
    walked = " → ".join(visit.state for visit in visits) or "nothing yet"
    verdict = "It has ended." if settled else "It has not ended."
    description = f"The chart {chart.name}. The path taken: {walked}. {verdict}"
    return (
        f'<svg class="chart" viewBox="0 0 {layout.width} {layout.height}" role="img" '
        f'width="{layout.width}" height="{layout.height}" aria-label="{escaped(description)}">'
        f"{_ARROWS}{''.join(lines)}{''.join(boxes)}</svg>"
    )


_ARROWS = "".join(
    f'<marker id="arrow-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
    f'markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
    f'<path class="arrow {name}" d="M0 0L8 4L0 8Z"/></marker>'
    for name in ("open", "taken")
)


def _edge(
    chart: Chart,
    pair: tuple[str, str],
    corners: Sequence[tuple[int, int]],
    triggers: Sequence[str],
    taken: str | None,
) -> str:
    kind = "open" if taken is None else "taken"
    meaning = "; ".join(f"{name}: {chart.triggers.get(name, name)}" for name in triggers)
    label = ""
    if taken is not None:
        (x, y), (x2, _) = corners[0], corners[1]
        along = x + 6 if x2 >= x else x - 6
        at_x, at_y = (x + 7, y + 17) if x2 == x else (along, y - 5)
        anchor = "start" if x2 >= x else "end"
        label = (
            f'<text class="trigger" x="{at_x}" y="{at_y}" text-anchor="{anchor}">'
            f"{escaped(taken)}</text>"
        )
    return (
        f'<g class="edge {kind}"><title>{escaped(f"{pair[0]} → {pair[1]}: {meaning}")}</title>'
        f'<path d="{_rounded(corners)}" marker-end="url(#arrow-{kind})"/>{label}</g>'
    )


def _box(chart: Chart, box: Box, visited: tuple[int, Visit] | None, *, now: bool) -> str:
    row = chart.states[box.state]
    kinds = ["state"]
    kinds += ["visited"] if visited else []
    kinds += ["now"] if now else []
    kinds += ["final"] if row.final else []
    second = f"calls {row.call}" if row.call and not row.call.startswith("@") else ""
    badge = ""
    if visited is not None:
        number, visit = visited
        if not row.final:
            ended = visit.seconds is not None
            second = seconds_text(visit.seconds or 0.0) if ended else "is here now"
        else:
            second = "ended here"
        badge = (
            f'<circle class="step" cx="{box.x}" cy="{box.y}" r="9"/>'
            f'<text class="number" x="{box.x}" y="{box.y + 4}" text-anchor="middle">{number}</text>'
        )
    name_y = box.y + (17 if second else 25)
    detail = (
        f'<text class="detail" x="{box.middle}" y="{box.y + 32}" text-anchor="middle">'
        f"{escaped(second)}</text>"
        if second
        else ""
    )
    return (
        f'<g class="{" ".join(kinds)}"><title>{escaped(f"{box.state}: {row.means}")}</title>'
        f'<rect x="{box.x}" y="{box.y}" width="{BOX_W}" height="{BOX_H}" rx="7"/>'
        f'<text class="name" x="{box.middle}" y="{name_y}" text-anchor="middle">'
        f"{escaped(box.state)}</text>{detail}{badge}</g>"
    )


def _rounded(corners: Sequence[tuple[int, int]]) -> str:
    """Return a line through corners as a path that takes each of them in a small curve."""
    path = [f"M{corners[0][0]} {corners[0][1]}"]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        near, far = _towards(corner, before), _towards(corner, after)
        path.append(f"L{near[0]} {near[1]}Q{corner[0]} {corner[1]} {far[0]} {far[1]}")
    path.append(f"L{corners[-1][0]} {corners[-1][1]}")
    return "".join(path)


def _towards(corner: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Return the point a little way from a corner towards another one."""
    (x, y), (x2, y2) = corner, other
    step_x = max(-CORNER, min(CORNER, (x2 - x) // 2))
    step_y = max(-CORNER, min(CORNER, (y2 - y) // 2))
    return x + step_x, y + step_y


# --- the layout ---------------------------------------------------------------------------------


def layout_of(chart: Chart) -> Layout:
    """
    Return where the states and edges of a chart stand; no box covers another.

    Args:
        chart: Any chart.
    """
    pairs = list(_triggers(chart))
    back = _back_edges(chart, pairs)
    rows = _rows(chart, [pair for pair in pairs if pair not in back])
    columns = _columns(chart, rows, [pair for pair in pairs if pair not in back])
    left = MARGIN + (CHANNEL_W * len({target for _, target in back}) if back else 0)
    boxes = {
        name: Box(
            state=name,
            row=rows[name],
            column=columns[name],
            x=left + columns[name] * (BOX_W + GAP_X),
            y=MARGIN + rows[name] * (BOX_H + GAP_Y),
        )
        for name in chart.states
    }
    routes = _Routes(boxes, left)
    edges = {pair: routes.route(*pair, back=pair in back) for pair in pairs}
    return Layout(
        boxes=boxes,
        edges=edges,
        width=routes.right + MARGIN,
        height=max(box.y for box in boxes.values()) + BOX_H + MARGIN,
    )


def _triggers(chart: Chart) -> dict[tuple[str, str], list[str]]:
    """Return every pair of states that an edge joins, with its triggers; loops are left out."""
    found: dict[tuple[str, str], list[str]] = {}
    for state in chart.states.values():
        for trigger, edges in state.on.items():
            for edge in edges:
                if edge.to != state.name:
                    found.setdefault((state.name, edge.to), []).append(trigger)
    return found


def _back_edges(chart: Chart, pairs: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the edges that lead back to where one came from."""
    back: set[tuple[str, str]] = set()
    done: set[str] = set()
    walk: list[str] = []

    def visit(name: str) -> None:
        walk.append(name)
        for pair in pairs:
            if pair[0] != name:
                continue
            if pair[1] in walk:
                back.add(pair)
            elif pair[1] not in done:
                visit(pair[1])
        walk.pop()
        done.add(name)

    visit(chart.initial)
    return back


def _rows(chart: Chart, pairs: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the longest way to each state; without back edges there is one."""
    rows = dict.fromkeys(chart.states, 0)
    for _ in chart.states:
        for source, target in pairs:
            rows[target] = max(rows[target], rows[source] + 1)
    return rows


def _columns(
    chart: Chart, rows: Mapping[str, int], pairs: Sequence[tuple[str, str]]
) -> dict[str, int]:
    """Return a column for each state: the way that is declared first, then what branches off."""
    columns: dict[str, int] = {}
    for column, start in enumerate(sorted(chart.states, key=lambda name: rows[name])):
        name: str | None = start
        while name is not None and name not in columns:
            columns[name] = column
            onward = (target for source, target in pairs if source == name)
            name = next(onward, None)
    used = sorted(set(columns.values()))
    return {name: used.index(column) for name, column in columns.items()}


class _Routes:
    """Lines between boxes, and the channels that they share."""

    def __init__(self, boxes: Mapping[str, Box], left: int) -> None:
        self._boxes = boxes
        self._left = left
        self._by_place = {(box.row, box.column): box for box in boxes.values()}
        self.right = max(box.x for box in boxes.values()) + BOX_W
        self._channels: dict[str, int] = {}
        """Target to the middle of a channel outside all boxes."""
        self._back_channels: dict[str, int] = {}

    def route(self, source: str, target: str, *, back: bool) -> tuple[tuple[int, int], ...]:
        """Return the corners of one edge."""
        start, end = self._boxes[source], self._boxes[target]
        middle_y = start.y + BOX_H // 2
        if back:
            free = self._left - CHANNEL_W * (len(self._back_channels) + 1) + CHANNEL_W // 2
            x = self._back_channels.setdefault(target, free)
            end_y = end.y + BOX_H // 2
            return ((start.x, middle_y), (x, middle_y), (x, end_y), (end.x, end_y))
        if self._is_free(end.column, start.row + 1, end.row):
            if start.column == end.column:
                return ((start.middle, start.y + BOX_H), (end.middle, end.y))
            right = end.column > start.column
            if not self._is_clear(start.row, start.column, end.column):
                x = start.middle + (BOX_W // 4 if right else -BOX_W // 4)
                gap_y = start.y + BOX_H + GAP_Y // 2  # between two rows, past the boxes of its own
                below = ((x, gap_y), (end.middle, gap_y))
                return ((x, start.y + BOX_H), *below, (end.middle, end.y))
            side = start.x + BOX_W if right else start.x
            return ((side, middle_y), (end.middle, middle_y), (end.middle, end.y))
        if target not in self._channels:
            self._channels[target] = self.right + CHANNEL_W
            self.right += CHANNEL_W + CHANNEL_W // 2
        x, end_y = self._channels[target], end.y + BOX_H // 2
        side, end_x = start.x + BOX_W, end.x + BOX_W
        return ((side, middle_y), (x, middle_y), (x, end_y), (end_x, end_y))

    def _is_clear(self, row: int, column: int, other: int) -> bool:
        """Whether no box stands in a row from one column to another, but in the first of them."""
        step = 1 if other > column else -1
        return all(
            (row, at) not in self._by_place for at in range(column + step, other + step, step)
        )

    def _is_free(self, column: int, first: int, end: int) -> bool:
        """Whether no box stands in a column in the rows from `first` to before `end`."""
        return all((row, column) not in self._by_place for row in range(first, end))
