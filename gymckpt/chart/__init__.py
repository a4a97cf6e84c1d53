"""
Charts: the protocol as data, how it is read, checked, fired and drawn.

Nothing here knows what the states mean to an instance or a journal; a chart is a table that says
where a trigger leads, and what the state that it leads to asks of whoever drives the machine.
"""

from gymckpt.chart.check import AT_OPENING, Row, check_chart, rows
from gymckpt.chart.load import chart_names, load_chart, load_chart_file, parse_chart
from gymckpt.chart.machine import ChartMachine, CompiledChart, compile_chart, machine_for
from gymckpt.chart.model import (
    Budget,
    Chart,
    Condition,
    Edge,
    Facts,
    FileEffect,
    Fired,
    Guard,
    Ignored,
    Machine,
    Outcome,
    Refused,
    Scope,
    State,
    Verdict,
)
from gymckpt.chart.render import TableRow, to_json, to_markdown, to_mermaid, to_table

__all__ = [
    "AT_OPENING",
    "Budget",
    "Chart",
    "ChartMachine",
    "CompiledChart",
    "Condition",
    "Edge",
    "Facts",
    "FileEffect",
    "Fired",
    "Guard",
    "Ignored",
    "Machine",
    "Outcome",
    "Refused",
    "Row",
    "Scope",
    "State",
    "TableRow",
    "Verdict",
    "chart_names",
    "check_chart",
    "compile_chart",
    "load_chart",
    "load_chart_file",
    "machine_for",
    "parse_chart",
    "rows",
    "to_json",
    "to_markdown",
    "to_mermaid",
    "to_table",
]
