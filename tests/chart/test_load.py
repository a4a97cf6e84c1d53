"""Charts are found in a wheel and in a tree, and every wrong file is a ChartError with a path."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest

from gymckpt.chart import State, chart_names, load_chart, load_chart_file, parse_chart
from gymckpt.chart import load as load_module
from gymckpt.errors import ChartError
from tests.chart.samples import CALL, OPERATION, PARTICIPANT, broken

SHIPPED = Path(__file__).resolve().parents[2] / "statecharts"


def refused(text: str) -> list[str]:
    """Return the lines of the error that a text is refused with."""
    with pytest.raises(ChartError) as caught:
        parse_chart(text, "x.toml")
    return str(caught.value).splitlines()


def test_names_are_those_of_the_files() -> None:
    """The five charts of the design are shipped, and nothing else is."""
    assert chart_names() == ("call", "checkpoint", "participant", "restore", "sweep")


def test_loading_twice_gives_one_object() -> None:
    """A shipped chart is read once per process."""
    assert load_chart("call") is load_chart("call")


def test_unknown_chart_is_refused_with_a_hint() -> None:
    """A misspelt chart name is answered with the one that was meant."""
    with pytest.raises(ChartError, match="no chart 'chekpoint'; did you mean 'checkpoint'"):
        load_chart("chekpoint")


@pytest.mark.parametrize("name", ["../pyproject", "/etc/passwd", "", "call.toml"])
def test_names_are_not_paths(name: str) -> None:
    """Only the name of a shipped chart opens a file."""
    with pytest.raises(ChartError, match="there is no chart"):
        load_chart(name)


def test_file_equals_shipped_chart() -> None:
    """Reading a shipped chart by its path gives an equal chart, with an equal hash."""
    chart = load_chart_file(SHIPPED / "checkpoint.toml")
    assert chart == load_chart("checkpoint")
    assert hash(chart) == hash(load_chart("checkpoint"))


@pytest.mark.parametrize("name", chart_names())
def test_charts_cannot_be_changed(name: str) -> None:
    """No table of a shared chart takes an assignment."""
    chart = load_chart(name)
    tables: list[Any] = [chart.states, chart.triggers, chart.guards]
    for state in chart.states.values():
        tables += [state.on, state.ignore, state.when]
    for table in tables:
        with pytest.raises(TypeError, match="does not support item assignment"):
            table["idle"] = ()


def test_states_are_values() -> None:
    """States that were read twice are equal and stand in one place of a set."""
    states = load_chart("checkpoint").states
    again = load_chart_file(SHIPPED / "checkpoint.toml").states
    assert {*states.values(), *again.values()} == set(states.values())
    assert len({*states.values(), *again.values()}) == len(states)


def test_what_a_file_leaves_out_is_none_or_false() -> None:
    """A state of which only the meaning is given does nothing and is not the last one."""
    assert attrs.asdict(State(name="open", means="m")) == {
        "name": "open",
        "means": "m",
        "final": False,
        "call": None,
        "also": None,
        "budget": None,
        "effect": None,
        "renews": False,
        "reopens": False,
        "when": {},
        "on": {},
        "ignore": {},
    }


def test_wheel_and_tree_are_both_found(tmp_path: Path) -> None:
    """Charts inside the package come first, those beside it second; without both, that is said."""
    package = tmp_path / "package"
    package.mkdir()
    with pytest.raises(ChartError, match="installed without its charts"):
        load_module._shipped(package)
    shutil.copytree(SHIPPED, tmp_path / "statecharts")
    assert load_module._shipped(package) == tmp_path / "statecharts"
    shutil.copytree(SHIPPED, package / "statecharts")
    assert load_module._shipped(package) == package / "statecharts"


def test_missing_file_is_a_chart_error(tmp_path: Path) -> None:
    """A path without a file is refused with the path and the reason."""
    with pytest.raises(ChartError) as caught:
        load_chart_file(tmp_path / "none.toml")
    assert str(caught.value).startswith(f"{tmp_path / 'none.toml'}: cannot be read as a chart: ")
    assert "No such file" in str(caught.value)


def test_a_wrong_file_is_named_by_its_path(tmp_path: Path) -> None:
    """What is wrong in a file that was given by its path begins with that path."""
    path = tmp_path / "mini.toml"
    path.write_text(broken(OPERATION, "version = 1", "version = 0"), encoding="utf-8")
    with pytest.raises(ChartError) as caught:
        load_chart_file(path)
    assert str(caught.value) == f"{path}: version: 0 is no version; the first one is 1"


def test_other_encoding_is_a_chart_error(tmp_path: Path) -> None:
    """A file that is not UTF-8 is refused as one."""
    path = tmp_path / "latin.toml"
    path.write_bytes("name = 'é'".encode("latin-1"))
    with pytest.raises(ChartError, match=r"latin\.toml: cannot be read as a chart"):
        load_chart_file(path)


def test_a_wrong_shipped_chart_is_named_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong in a shipped chart begins with its path in the repository."""
    text = broken(OPERATION, "version = 1", "version = 0")
    (tmp_path / "mini.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(load_module, "_shipped", lambda: tmp_path)
    with pytest.raises(ChartError) as caught:
        load_chart("mini")
    expected = "statecharts/mini.toml: version: 0 is no version; the first one is 1"
    assert str(caught.value) == expected


def test_charts_are_utf8_in_any_locale(tmp_path: Path) -> None:
    """A process whose locale knows nothing but ASCII reads charts as any other does."""
    path = tmp_path / "ring.toml"
    path.write_text(broken(CALL, "Ring once.", "Läuten→einmal"), encoding="utf-8")
    script = (
        "import codecs, locale, pathlib, sys; from gymckpt.chart import load; "
        "path = pathlib.Path(sys.argv[1]); load._shipped = lambda: path.parent; "
        "found = [load.load_chart_file(path), load.load_chart('ring')]; "
        "print(codecs.lookup(locale.getencoding()).name, *(ascii(one.means) for one in found))"
    )
    env = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ascii", *2 * [ascii("Läuten→einmal")]]


@pytest.mark.parametrize(
    "text", ["name = ", "name = 1\nname = 2", "x = " + "[" * 10_000, "x = " + "9" * 5_000]
)
def test_what_is_not_toml_says_so(text: str) -> None:
    """Bad syntax, double keys, absurd nesting and absurd numbers are one line each."""
    (line,) = refused(text)
    with pytest.raises((ValueError, RecursionError)) as caught:
        tomllib.loads(text)
    assert line.startswith("x.toml: is not TOML: ")
    assert str(caught.value)[:50] in line


def test_empty_file_names_every_missing_key() -> None:
    """An empty text lacks each key that has no default."""
    missing = ("name", "version", "scope", "means", "initial", "triggers", "states")
    assert refused("") == [f"x.toml: {key}: is missing" for key in missing]


SHAPES = [
    ("version = 1", "version = true", "version: must be an integer, not a boolean: True"),
    ("version = 1", "version = 1.0", "version: must be an integer, not a float: 1.0"),
    (
        "version = 1",
        "version = 1979-05-27",
        "version: must be an integer, not a date or time: datetime.date(1979, 5, 27)",
    ),
    ('initial = "open"', "initial = 7", "initial: must be a string, not an integer: 7"),
    (
        'scope = "operation"',
        'scope = "oper"',
        "scope: 'oper' is not one of operation, call, participant; did you mean 'operation'?",
    ),
    ('scope = "operation"', "scope = 1", "scope: must be a string, not an integer: 1"),
    ("final = true", "final = 1", "states.over.final: must be a boolean, not an integer: 1"),
    (
        'budget = "prepare"',
        'budget = "preparation"',
        "states.asking.budget: 'preparation' is not one of prepare, control; did you "
        "mean 'prepare'?",
    ),
    (
        'when.all_answered = "all_answered"',
        'when.all_answred = "all_answered"',
        "states.asking.when.all_answred: 'all_answred' is not one of all_answered, "
        "cannot_succeed, all_settled, exhausted, lease_lost; did you mean 'all_answered'?",
    ),
    (
        'on.run = "asking"',
        "on.run = 1",
        "states.open.on.run: must be a state or an array of tables: 1",
    ),
    (
        'on.run = "asking"',
        'on.run = ["asking"]',
        "states.open.on.run[0]: must be a table, not a string: 'asking'",
    ),
    (
        'on.run = "asking"',
        'on.run = [{ to = "asking", gard = "x" }]',
        "states.open.on.run[0].gard: is an unknown key; did you mean 'guard'?",
    ),
    ('on.run = "asking"', "on.run = [{}]", "states.open.on.run[0].to: is missing"),
    (
        'call = "prepare"',
        'cal = "prepare"',
        "states.asking.cal: is an unknown key; did you mean 'call'?",
    ),
    (
        'call = "prepare"',
        'name = "prepare"',
        "states.asking.name: is an unknown key; known: means, final, call, also, budget and 6 more",
    ),
    (
        "[states.open]\n",
        '[states.open]\n"a b" = 1\n',
        "states.open.'a b': is an unknown key; known: means, final, call, also, budget and 6 more",
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), SHAPES, ids=[row[2] for row in SHAPES])
def test_wrong_shape_is_named(old: str, new: str, expected: str) -> None:
    """A value of another type, an unknown word and an unknown key are said with their path."""
    assert refused(broken(OPERATION, old, new)) == [f"x.toml: {expected}"]


@pytest.mark.parametrize("key", ["states", "triggers", "guards"])
def test_tables_must_be_tables(key: str) -> None:
    """A list where a table belongs is refused as that."""
    head = PARTICIPANT.split("[triggers]")[0]
    found = refused(f"{head}{key} = []\n")
    assert f"x.toml: {key}: must be a table, not an array: []" in found


def test_state_must_be_a_table() -> None:
    """A state that is a string is refused with its path."""
    head = PARTICIPANT.split("[triggers]")[0]
    found = refused(f'{head}states.shut = "shut"\n')
    assert "x.toml: states.shut: must be a table, not a string: 'shut'" in found


def test_name_of_a_state_cannot_be_smuggled_in() -> None:
    """The key under which a state's name is structured is of no use in a file."""
    found = refused(broken(OPERATION, "[states.over]\n", '[states.over]\n"[name]" = "end"\n'))
    assert found == ["x.toml: states.over: the state in it is called 'end'"]


def test_shape_problems_are_reported_together() -> None:
    """Two wrong values in two states are two lines of one error."""
    text = broken(OPERATION, "final = true", "final = 1")
    text = broken(text, "renews = true", 'renews = "yes"')
    assert [line.split(": ")[1] for line in refused(text)] == [
        "states.holding.renews",
        "states.over.final",
    ]


@pytest.mark.parametrize(("count", "more"), [(50, 0), (51, 1), (60, 10)])
def test_what_is_not_listed_is_counted(count: int, more: int) -> None:
    """Fifty problems are all listed; of more than that the rest are counted."""
    extra = "".join(f"bad{index} = 1\n" for index in range(count))
    found = refused(f"{extra}{OPERATION}")
    assert len(found) == 50 + bool(more)
    assert (found[-1] == f"x.toml: and {more} more problems") == bool(more)


def test_error_is_bounded() -> None:
    """A file with thousands of faults is refused with a count, not with thousands of lines."""
    extra = "".join(f'bad{index} = "{"x" * 3_000}"\n' for index in range(1_000))
    found = refused(f"{OPERATION}\n[{'y' * 3_000}]\n[more]\n{extra}")
    assert len(found) <= load_module.PROBLEMS_SHOWN_MAX + 1
    many = "".join(f'[states.S{index}]\nmeans = "x"\n' for index in range(1_000))
    found = refused(f"{OPERATION}\n{many}")
    assert len(found) == load_module.PROBLEMS_SHOWN_MAX + 1
    assert found[-1].endswith("more problems")
    assert max(map(len, found)) < 3_000
