"""
Show a chart: as a Mermaid diagram, a table, Markdown or JSON.

Everything is derived from the chart and comes out in the order of its file, so that the same chart
always gives the same text and a diff of a rendered page is a diff of the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from gymckpt.chart.check import AT_OPENING
from gymckpt.chart.model import Chart, State
from gymckpt.errors import did_you_mean

__all__ = ["JSON_SCHEMA", "TableRow", "to_json", "to_markdown", "to_mermaid", "to_table"]

JSON_SCHEMA = "gymckpt.chart/1"
"""What `to_json` calls its shape; a change that breaks readers raises the number."""

COLUMNS = ("state", "means", "calls", "leaves by")

_STYLES = {
    "visited": "fill:#dbeafe,stroke:#2563eb,color:#111827",
    "current": "fill:#fde68a,stroke:#b45309,color:#111827,stroke-width:3px",
}

_MERMAID_WORDS = frozenset(
    {"accdescr", "acctitle", "class", "classdef", "click", "default", "href", "note", "scale"}
    | {"state", "style"}
)
"""Words that Mermaid's parser does not take as the name of a state."""


@attrs.frozen(kw_only=True)
class TableRow:
    """One state of a chart in words."""

    state: str
    means: str
    initial: bool
    final: bool
    calls: str
    """What entering the state sets going; empty where nothing."""
    leaves: tuple[str, ...]
    """Each target with the triggers that lead there; empty for a final state."""
    ignores: tuple[str, ...]
    """The triggers that are ignored here."""


def to_mermaid(chart: Chart, *, path: Sequence[str] = (), current: str | None = None) -> str:
    """
    Return a chart as a Mermaid state diagram.

    Args:
        chart: What to draw.
        path: States that were visited, to be highlighted.
        current: The state to be marked as the present one.

    Raises:
        ValueError: `path` or `current` names a state that the chart has not.
    """
    marked = (*path, current) if current is not None else tuple(path)
    for name in marked:
        if name not in chart.states:
            hint = did_you_mean(name, chart.states)
            raise ValueError(f"chart {chart.name} has no state {name!r:.100}{hint}")
    lines = ["stateDiagram-v2"]
    lines += [
        f'    state "{name}" as {_node(name)}' for name in chart.states if _node(name) != name
    ]
    lines.append(f"    [*] --> {_node(chart.initial)}")
    for state in chart.states.values():
        lines += _mermaid_edges(state)
        if state.final:
            lines.append(f"    {_node(state.name)} --> [*]")
    visited = [name for name in chart.states if name in path and name != current]
    for style, names in (("visited", visited), ("current", [current] if current else [])):
        if names:
            lines.append(f"    classDef {style} {_STYLES[style]}")
            lines.append(f"    class {','.join(_node(name) for name in names)} {style}")
    return "\n".join(lines) + "\n"


def to_table(chart: Chart) -> tuple[TableRow, ...]:
    """
    Return a chart's states in words, in the order of the file.

    Args:
        chart: What to describe.
    """
    return tuple(
        TableRow(
            state=state.name,
            means=" ".join(state.means.split()),
            initial=state.name == chart.initial,
            final=state.final,
            calls=_calls(state),
            leaves=tuple(
                f"{' / '.join(groups)} → {target}" for target, groups in _by_target(state).items()
            ),
            ignores=tuple(state.ignore),
        )
        for state in chart.states.values()
    )


def to_markdown(chart: Chart) -> str:
    """
    Return a chart as a Markdown table; final states are bold.

    Args:
        chart: What to describe.
    """
    lines = [_markdown_row(COLUMNS), _markdown_row("---" for _ in COLUMNS)]
    for row in to_table(chart):
        name = f"**{row.state}**" if row.final else row.state
        lines.append(_markdown_row((name, row.means, row.calls, "; ".join(row.leaves))))
    return "\n".join(lines) + "\n"


def to_json(chart: Chart) -> dict[str, Any]:
    """
    Return a chart as plain JSON data; `statecharts/README.md` documents the shape.

    Args:
        chart: What to describe.
    """
    return {
        "schema": JSON_SCHEMA,
        "name": chart.name,
        "version": chart.version,
        "scope": chart.scope,
        "means": chart.means,
        "initial": chart.initial,
        "triggers": dict(chart.triggers),
        "guards": dict(chart.guards),
        "states": {name: _state_to_json(state) for name, state in chart.states.items()},
    }


def _state_to_json(state: State) -> dict[str, Any]:
    return {
        "means": state.means,
        "final": state.final,
        "call": state.call,
        "also": state.also,
        "budget": state.budget,
        "effect": state.effect,
        "renews": state.renews,
        "reopens": state.reopens,
        "when": dict(state.when),
        "on": {
            trigger: [{"to": edge.to, "guard": edge.guard} for edge in edges]
            for trigger, edges in state.on.items()
        },
        "ignore": dict(state.ignore),
    }


def _mermaid_edges(state: State) -> Iterator[str]:
    """Yield a state's edges; those that stay stand in its box, where loops would be in the way."""
    node = _node(state.name)
    for target, groups in _by_target(state).items():
        if target == state.name:
            yield f"    {node}: {state.name}"
            yield from (f"    {node}: stays on {group}" for group in groups)
        else:
            yield f"    {node} --> {_node(target)}: {' / '.join(groups)}"


def _by_target(state: State) -> Mapping[str, list[str]]:
    """Say for every target which triggers lead there, those with one guard together."""
    found: dict[str, dict[str | None, list[str]]] = {}
    for trigger, edges in state.on.items():
        for edge in edges:
            found.setdefault(edge.to, {}).setdefault(edge.guard, []).append(trigger)
    return {
        target: [_label(guard, triggers) for guard, triggers in by_guard.items()]
        for target, by_guard in found.items()
    }


def _label(guard: str | None, triggers: Iterable[str]) -> str:
    return ", ".join(triggers) + (f" [{guard}]" if guard else "")


def _calls(state: State) -> str:
    doing: list[str] = [state.effect] if state.effect else []
    if state.call:
        doing.append("named at opening" if state.call == AT_OPENING else state.call)
    if state.also:
        also = "the call named at opening" if state.also == AT_OPENING else state.also
        doing.append(f"also {also} where it is unconfirmed")
    if state.renews:
        doing.append("renew rounds")
    return ", ".join(doing)


def _node(name: str) -> str:
    """Return what Mermaid is to call a state; states' names hold no capital letters."""
    return f"{name.upper()}_STATE" if name in _MERMAID_WORDS else name


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
