"""The command line answers on the standard output, and its exit codes mean what they say."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gymckpt.chart import chart_names, load_chart, to_json, to_mermaid
from gymckpt.cli import app
from tests.chart.samples import OPERATION, broken


def run(*arguments: str) -> Result:
    """Run the command line as a user would, with a terminal that is wide enough."""
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments))


@pytest.mark.parametrize("name", chart_names())
def test_table_names_every_state_and_trigger(name: str) -> None:
    """The table of a chart is the default, and leaves out no state and no trigger."""
    result = run("chart", name)
    assert (result.exit_code, result.stderr) == (0, "")
    chart = load_chart(name)
    assert [word for word in (*chart.states, *chart.triggers) if word not in result.stdout] == []
    assert run("chart", name, "--format", "table").stdout == result.stdout


@pytest.mark.parametrize("name", chart_names())
def test_mermaid_and_json_are_those_of_the_library(name: str) -> None:
    """What is printed for programs is exactly what the library gives."""
    chart = load_chart(name)
    assert run("chart", name, "--format", "mermaid").stdout == to_mermaid(chart)
    assert json.loads(run("chart", name, "--format", "json").stdout) == to_json(chart)
    assert json.loads(run("chart", name, "--json").stdout) == to_json(chart)


def test_brackets_are_text_not_markup() -> None:
    """Guards in brackets are printed, not taken for a style."""
    assert "[fresh_id]" in run("chart", "participant").stdout


def test_own_chart_file_is_shown(tmp_path: Path) -> None:
    """A path shows a chart that is not shipped."""
    path = tmp_path / "mini.toml"
    path.write_text(OPERATION)
    result = run("chart", str(path), "--format", "mermaid")
    assert result.exit_code == 0
    assert "open --> asking: run" in result.stdout


def test_faulty_chart_file_exits_1_with_every_problem(tmp_path: Path) -> None:
    """A chart file with two problems gives both of them on the standard error and exit code 1."""
    path = tmp_path / "mini.toml"
    path.write_text(broken(broken(OPERATION, 'budget = "prepare"\n', ""), "renews = true\n", ""))
    result = run("chart", str(path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert [line.split(": ")[1] for line in result.stderr.splitlines()] == [
        "states.asking",
        "states.holding.when.lease_lost",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chart", "chekpoint"], "did you mean 'checkpoint'?"),
        (["chart", "none.toml"], "none.toml: cannot be read"),
        (["chart", "./checkpoint"], "./checkpoint: cannot be read"),
        (["chart", "."], "there is no chart '.'"),
        (["chart", "./"], "./: cannot be read"),
        (["chart", "call", "--format", "xml"], "xml"),
        (["chart"], "Missing argument"),
        (["chrat"], "chrat"),
    ],
)
def test_what_cannot_be_answered_exits_2(arguments: list[str], said: str) -> None:
    """A wrong name, file or command line is exit code 2 with a reason and without an answer."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_file_that_is_no_text_exits_2(tmp_path: Path) -> None:
    """A file that is not UTF-8 cannot be answered, which is not the same as a faulty chart."""
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert run("chart", str(path)).exit_code == 2


def test_without_a_command_help_is_shown() -> None:
    """The bare command lists the commands that there are."""
    result = run()
    assert result.exit_code == 2
    assert "chart" in result.output
