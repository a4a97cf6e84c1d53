"""However a chart's file is mangled, it loads to a sound chart or is refused with a place."""

import re

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from gymckpt.chart import (
    ChartMachine,
    Verdict,
    chart_names,
    check_chart,
    parse_chart,
    rows,
    to_markdown,
    to_mermaid,
)
from gymckpt.errors import ChartError
from tests.chart.samples import CALL, OPERATION, PARTICIPANT
from tests.chart.test_load import SHIPPED

TEXTS = {name: (SHIPPED / f"{name}.toml").read_text() for name in chart_names()}
TEXTS |= {"op sample": OPERATION, "participant sample": PARTICIPANT, "call sample": CALL}

WORD = re.compile(r"[A-Za-z_]+")
WORDS = sorted({word for text in TEXTS.values() for word in WORD.findall(text)})
LINES = sorted({line for text in TEXTS.values() for line in text.splitlines() if line})
ODD = ["", "true", "1", "[]", "{}", '""', "[[states]]", "1979-05-27", '"\\u0000"', "= =", "é"]

CHARACTERS = list("a9_-.=[]{}'\"#,\\ \t\n\r\0\x85é\u2028😀")

PLACE = re.compile(r"mutant\.toml: (is not TOML: .|[\w.'\[\]-]+: .|and \d+ more problems)")


@st.composite
def mutants(draw: st.DrawFn) -> str:
    """Draw the text of a chart with a few words or lines replaced, dropped, doubled or moved."""
    lines = draw(st.sampled_from(list(TEXTS.values()))).splitlines()
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        kind = draw(st.sampled_from(["drop", "double", "swap", "word", "line", "odd", "char"]))
        line = lines[at]
        if kind == "drop" and len(lines) > 1:
            del lines[at]
        elif kind == "double":
            lines.insert(at, line)
        elif kind == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], line
        elif kind == "word" and (found := WORD.findall(line)):
            lines[at] = line.replace(draw(st.sampled_from(found)), draw(st.sampled_from(WORDS)), 1)
        elif kind == "line":
            lines[at] = draw(st.sampled_from(LINES))
        elif kind == "odd":
            lines[at] = line.partition("=")[0] + "= " + draw(st.sampled_from(ODD))
        elif kind == "char":
            cut = draw(st.integers(0, len(line)))
            lines[at] = line[:cut] + draw(st.sampled_from(CHARACTERS)) + line[cut + 1 :]
    return "\n".join(lines)


@given(text=mutants())
def test_mutant_is_sound_or_refused_with_a_place(text: str) -> None:
    """A mangled chart raises nothing but ChartError, each line with a path, or loads whole."""
    try:
        chart = parse_chart(text, "mutant.toml")
    except ChartError as error:
        event("refused")
        for line in str(error).splitlines():
            assert PLACE.match(line), line
        return
    event("sound")
    assert check_chart(chart) == ()
    assert len(list(rows(chart))) == len(chart.states) * len(chart.triggers)
    assert to_mermaid(chart, path=list(chart.states), current=chart.initial)
    assert to_markdown(chart)
    ChartMachine(chart, {name: lambda facts: Verdict(allowed=True) for name in chart.guards})


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_dropping_any_line_never_breaks_the_loader(text: str) -> None:
    """Each chart without any one of its lines is sound or refused, never something else."""
    lines = text.splitlines()
    refused: list[str] = []
    for at in range(len(lines)):
        try:
            parse_chart("\n".join(lines[:at] + lines[at + 1 :]), "mutant.toml")
        except ChartError as error:
            refused.append(str(error))
    assert [line for text in refused for line in text.splitlines() if not PLACE.match(line)] == []
    assert len(refused) > len(lines) / 2
