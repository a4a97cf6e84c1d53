"""What the documents show of the charts is what the charts say."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import get_args

import attrs
import pytest

from gymckpt.chart import Budget, Chart, Condition, FileEffect, Scope, State, chart_names
from gymckpt.chart.check import ANY_TIME, AT_OPENING, FILE_ENDS
from gymckpt.chart.render import JSON_SCHEMA
from tests.repo.house import ROOT

GRAMMAR = (ROOT / "statecharts/README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/charts.md").read_text(encoding="utf-8")


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_charts", ROOT / "docs/render_charts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


render_charts = _load()


def test_documents_are_not_stale() -> None:
    """The charts in the documents are those of statecharts/; else run docs/render_charts.py."""
    assert render_charts.main(["--check"]) == 0


@pytest.mark.parametrize("name", chart_names())
def test_every_chart_has_its_place(name: str) -> None:
    """The page of the charts leaves none out, and draws it."""
    assert f"<!-- chart:{name} -->\n\n```mermaid\nstateDiagram-v2\n" in PAGE


def test_stale_document_is_found_and_rewritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A chart edited by hand is exit code 1 with --check, and is put right without it."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# nothing to render\n")
    page = tmp_path / "docs/charts.md"
    page.write_text(PAGE.replace("open --> preparing", "open --> parked", 1))
    assert render_charts.main(["--check"], tmp_path) == 1
    assert "docs/charts.md is stale" in capsys.readouterr().err
    assert render_charts.main([], tmp_path) == 0
    assert page.read_text() == PAGE
    assert render_charts.main(["--check"], tmp_path) == 0
    assert (tmp_path / "README.md").read_text() == "# nothing to render\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!-- chart:chekpoint -->\n<!-- /chart -->\n", "did you mean 'checkpoint'"),
        ("<!-- chart:call -->\n", "is not closed"),
        ("<!-- chart:call -->\n<!-- chart:sweep -->\n<!-- /chart -->\n", "chart:call --> is not"),
        (
            "<!-- chart:call picture -->\n<!-- /chart -->\n",
            "no 'picture'; it has diagram and table",
        ),
    ],
)
def test_wrong_mark_is_named_and_nothing_is_written(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mark that cannot be served is exit code 1 with the reason, and its document stays."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/charts.md").write_text("")
    (tmp_path / "README.md").write_text(text)
    assert render_charts.main([], tmp_path) == 1
    assert said in capsys.readouterr().err
    assert (tmp_path / "README.md").read_text() == text


def test_parts_can_be_shown_alone() -> None:
    """A mark may ask for the diagram or the table, and text around the marks is kept."""
    text = "a\n<!-- chart:call diagram -->\nold\n<!-- /chart -->\nb\n<!-- chart:call table -->\n"
    text += "<!-- /chart -->\nc\n"
    diagram, table = render_charts.rendered(text).split("\nb\n")
    assert diagram.startswith("a\n<!-- chart:call diagram -->\n\n```mermaid\n")
    assert "| state |" not in diagram
    assert "| state | means |" in table
    assert table.endswith("\n<!-- /chart -->\nc\n")
    assert render_charts.rendered(render_charts.rendered(text)) == render_charts.rendered(text)


def test_wrong_command_line_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown option is answered with the usage, and nothing is rendered."""
    assert render_charts.main(["--chekc"]) == 2
    assert "usage" in capsys.readouterr().err


def test_grammar_names_every_key_and_word() -> None:
    """Each key, scope, budget, effect, condition and fixed word of a chart is in the grammar."""
    keys = [f"`{field.name}`" for field in attrs.fields(Chart) if field.name in {"name", "version"}]
    keys += [f"`{field.name}" for field in (*attrs.fields(Chart), *attrs.fields(State))]
    keys = [key for key in keys if key.strip("`") not in {"triggers", "guards", "states", "name"}]
    words = [word for kind in (Scope, Budget, FileEffect, Condition) for word in get_args(kind)]
    words += [
        *ANY_TIME,
        AT_OPENING,
        JSON_SCHEMA,
        *(end for ends in FILE_ENDS.values() for end in ends),
    ]
    assert [key for key in keys if key not in GRAMMAR] == []
    assert [word for word in words if word not in GRAMMAR] == []
    assert [
        table for table in ("[triggers]", "[guards]", "[states.NAME]") if table not in GRAMMAR
    ] == []


def test_grammar_lists_every_chart() -> None:
    """The grammar's table of files is the list of shipped charts."""
    assert [name for name in chart_names() if f"[`{name}.toml`]({name}.toml)" not in GRAMMAR] == []
