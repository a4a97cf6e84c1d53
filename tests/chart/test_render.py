"""What is shown of a chart is complete, stable, and derived from nothing but the chart."""

import json
import re

import attrs
import pytest

from gymckpt.chart import (
    Chart,
    Edge,
    State,
    chart_names,
    load_chart,
    parse_chart,
    to_json,
    to_markdown,
    to_mermaid,
    to_table,
)
from tests.chart.samples import OPERATION, PARTICIPANT

DOOR_MERMAID = """\
stateDiagram-v2
    [*] --> shut
    shut --> taken: knock [known] / knock [paid]
    taken --> shut: leave, knock
    taken: taken
    taken: stays on knock [known]
"""

DOOR_MARKDOWN = """\
| state | means | calls | leaves by |
| --- | --- | --- | --- |
| shut | nobody is in |  | knock [known] / knock [paid] → taken |
| taken | somebody is in |  | leave, knock → shut; knock [known] → taken |
"""


def drawn_edges(diagram: str) -> set[tuple[str, str, str]]:
    """Read source, target and each trigger with its guard back out of a diagram."""
    found: set[tuple[str, str, str]] = set()
    for line in diagram.splitlines():
        if stays := re.fullmatch(r" {4}(\w+): stays on (.+)", line):
            source, target, label = stays[1], stays[1], stays[2]
        elif arrow := re.fullmatch(r" {4}(\w+) --> (\w+): (.+)", line):
            source, target, label = arrow.groups()
        else:
            continue
        for group in label.split(" / "):
            triggers, _, guard = group.partition(" [")
            found |= {(source, target, f"{one}[{guard}") for one in triggers.split(", ")}
    return found


def test_small_chart_is_drawn_as_expected() -> None:
    """The whole diagram and the whole table of a small chart are these."""
    door = parse_chart(PARTICIPANT, "door.toml")
    assert to_mermaid(door) == DOOR_MERMAID
    assert to_markdown(door) == DOOR_MARKDOWN


@pytest.mark.parametrize("name", chart_names())
def test_diagram_holds_every_edge_once(name: str) -> None:
    """Read back, a diagram has exactly the chart's edges, its beginning and its ends."""
    chart = load_chart(name)
    diagram = to_mermaid(chart)
    expected = {
        (state.name, edge.to, f"{trigger}[" + (f"{edge.guard}]" if edge.guard else ""))
        for state in chart.states.values()
        for trigger, edges in state.on.items()
        for edge in edges
    }
    assert drawn_edges(diagram) == expected
    arrows = re.findall(r"^ {4}(\w+) --> (\w+):", diagram, re.MULTILINE)
    assert len(arrows) == len(set(arrows))
    assert f"    [*] --> {chart.initial}\n" in diagram
    assert set(re.findall(r"(\w+) --> \[\*\]", diagram)) == chart.final_states


@pytest.mark.parametrize("name", chart_names())
def test_rendering_is_stable(name: str) -> None:
    """The order of what is rendered is the file's: twice the same, whatever was rendered before."""
    chart = load_chart(name)
    for render in (to_mermaid, to_markdown, to_table, to_json):
        assert render(chart) == render(attrs.evolve(chart))
    assert [row.state for row in to_table(chart)] == list(chart.states)


def test_path_and_current_state_are_marked() -> None:
    """Visited states and the present one get their classes; the present one only its own."""
    diagram = to_mermaid(
        load_chart("checkpoint"), path=["preparing", "open", "parked", "open"], current="parked"
    )
    assert (
        "    classDef visited fill:#dbeafe,stroke:#2563eb,color:#111827\n"
        "    class open,preparing visited\n"
    ) in diagram
    assert diagram.endswith("    class parked current\n")
    assert diagram.count("classDef") == 2
    assert "classDef" not in to_mermaid(load_chart("checkpoint"))
    assert "visited" not in to_mermaid(load_chart("checkpoint"), current="open")


@pytest.mark.parametrize("marks", [{"path": ["opne"]}, {"current": "opne"}])
def test_unknown_state_cannot_be_marked(marks: dict[str, object]) -> None:
    """A mark on a state that the chart has not is refused with the state that was meant."""
    with pytest.raises(ValueError, match="no state 'opne'; did you mean 'open'"):
        to_mermaid(load_chart("checkpoint"), **marks)  # type: ignore[arg-type]


def test_words_of_mermaid_can_name_states() -> None:
    """A state called like a word of Mermaid is drawn under an alias and keeps its name."""
    note = State(name="note", means="m | n\n o", on={"go": (Edge(to="note"),)})
    chart = Chart(
        name="words",
        version=1,
        scope="participant",
        means="m",
        initial="note",
        triggers={"go": "m"},
        states={"note": note},
    )
    assert to_mermaid(chart, current="note").splitlines() == [
        "stateDiagram-v2",
        '    state "note" as NOTE_STATE',
        "    [*] --> NOTE_STATE",
        "    NOTE_STATE: note",
        "    NOTE_STATE: stays on go",
        "    classDef current fill:#fde68a,stroke:#b45309,color:#111827,stroke-width:3px",
        "    class NOTE_STATE current",
    ]
    assert to_markdown(chart).splitlines()[-1] == "| note | m \\| n o |  | go → note |"


@pytest.mark.parametrize(
    "word",
    [
        *("accdescr", "acctitle", "class", "classdef", "click", "default", "href", "note", "scale"),
        *("state", "style"),
    ],
)
def test_no_word_of_mermaid_is_drawn_as_a_name(word: str) -> None:
    """Each word that Mermaid's parser would take for its own gets an alias."""
    state = State(name=word, means="m", on={"go": (Edge(to=word),)})
    chart = Chart(
        name="words",
        version=1,
        scope="participant",
        means="m",
        initial=word,
        triggers={"go": "m"},
        states={word: state},
    )
    assert f'    state "{word}" as {word.upper()}_STATE\n' in to_mermaid(chart)


def test_table_says_what_a_state_does() -> None:
    """Calls, file effects and renewals stand in the table, final states are bold and end there."""
    by_name = {row.state: row for row in to_table(parse_chart(OPERATION, "mini.toml"))}
    assert by_name["asking"].calls == "prepare"
    assert by_name["writing"].calls == "write_manifest"
    assert by_name["holding"].calls == "renew rounds"
    assert by_name["open"].initial
    assert by_name["over"].final
    assert by_name["over"].leaves == ()
    assert by_name["over"].ignores == ("discard", "cancel", "settle")
    assert "| **over** |" in to_markdown(parse_chart(OPERATION, "mini.toml"))
    committing = next(
        row for row in to_table(load_chart("checkpoint")) if row.state == "committing"
    )
    assert committing.calls == "commit, renew rounds"
    calling, insisting = (row for row in to_table(load_chart("sweep")) if row.calls)
    assert calling.calls == "named at opening"
    assert insisting.calls == "also the call named at opening where it is unconfirmed"
    (discarding,) = (row for row in to_table(load_chart("restore")) if row.state == "discarding")
    assert discarding.calls == "resume, also retire where it is unconfirmed"


@pytest.mark.parametrize("name", chart_names())
def test_json_holds_the_whole_chart(name: str) -> None:
    """The chart can be built again from its JSON, so nothing is lost in it."""
    chart = load_chart(name)
    shown = json.loads(json.dumps(to_json(chart)))
    assert shown.pop("schema") == "gymckpt.chart/1"
    states = {
        state: State(
            name=state,
            on={
                trigger: tuple(Edge(**edge) for edge in edges)
                for trigger, edges in row.pop("on").items()
            },
            **row,
        )
        for state, row in shown.pop("states").items()
    }
    assert Chart(states=states, **shown) == chart
