"""What the documents at the top of the repository say is so, and keeps its form."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from gymckpt.participant.deployment import Deployment
from tests.repo import house
from tests.repo.documents import (
    between,
    changelog_faults,
    code_spans,
    commands_of,
    links_of,
    make_targets,
    missing_paths,
    rows_of,
    signature_of,
)
from tests.repo.house import ROOT

DOCUMENTS = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"]
DOCUMENTS += ["docs/charts.md", "statecharts/README.md"]


def text_of(name: str) -> str:
    """Read a document."""
    return (ROOT / name).read_text(encoding="utf-8")


ARCHITECTURE = text_of("ARCHITECTURE.md")
README = text_of("README.md")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_paths_and_links_exist(name: str) -> None:
    """Every path that a document names or links to is in the repository."""
    assert missing_paths(ROOT, name, text_of(name)) == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_make_targets_exist(name: str) -> None:
    """Every `make` command that a document gives has its target in the Makefile."""
    targets = make_targets(text_of("Makefile"))
    assert {"example", "test", "lint", "types", "wheel-check", "docs", "bench", "clean"} <= targets
    named = {command.split()[1] for command in commands_of(text_of(name), "make")}
    assert named <= targets


def test_readme_opens_as_promised() -> None:
    """What it is, the chart, both commands and the example come in this order, before all else."""
    marks = [
        "gymckpt checkpoints",
        "<!-- chart:checkpoint",
        "make example",
        "make test",
        "```python",
    ]
    places = [README.index(mark) for mark in marks]
    assert places == sorted(places)
    assert README.index("```python") < README.index("## What is promised")


def test_gymckpt_commands_exist() -> None:
    """Every command of `gymckpt` that the documents give exists."""
    from gymckpt.cli import app

    known = set(vars(typer.main.get_command(app))["commands"])
    named = {
        command.split()[1]
        for name in DOCUMENTS
        for command in commands_of(text_of(name), "gymckpt")
    }
    assert named
    assert named <= known


def test_calls_of_the_readme_are_those_of_the_shipped_deployment() -> None:
    """The table of calls has each one that a coordinator sends, with its very parameters."""
    stated = {row[0].strip("`") for row in rows_of(between(README, "calls"))}
    shipped = {
        signature_of(name, getattr(Deployment, name))
        for name in dir(Deployment)
        if name.startswith("checkpoint_") and name != "checkpoint_status"
    }
    assert stated == shipped


def test_promises_are_all_there() -> None:
    """The table of promises has S1 to S9, once each and in order."""
    assert re.findall(r"^\| (S\d+) \|", README, re.MULTILINE) == [f"S{n}" for n in range(1, 10)]


def test_layers_are_those_that_are_enforced() -> None:
    """The layers name every module of the package once, and no rule lets one import from below."""
    layers = [code_spans(row[1]) for row in rows_of(between(ARCHITECTURE, "layers"))]
    named = [unit for layer in layers for unit in layer]
    units = {source.unit for source in house.package_sources()} - {"__init__", "testing"}
    assert sorted(named) == sorted(units)
    level = {unit: number for number, layer in enumerate(layers) for unit in layer}
    wrong = [
        f"{unit} may import {other}"
        for unit, others in house.MAY_IMPORT.items()
        for other in others
        if unit in level and other in level and level[other] > level[unit]
    ]
    assert wrong == []


def test_installed_package_reads_the_charts_of_the_tree(tmp_path: Path) -> None:
    """Away from the tree, the editable install finds the charts in their place, and all of them."""
    script = "from gymckpt.chart import chart_names, load; print(load._shipped(), *chart_names())"
    done = subprocess.run(
        [sys.executable, "-I", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    charts = ROOT / "statecharts"
    names = sorted(path.stem for path in charts.glob("*.toml"))
    assert (done.returncode, done.stdout.split()) == (0, [str(charts), *names]), done.stderr


def test_changelog_keeps_its_form() -> None:
    """Releases descend, the newest is unreleased or the present one, and lines are sentences."""
    version = re.search(r'^version = "(.+)"$', text_of("pyproject.toml"), re.MULTILINE)
    assert version is not None
    assert list(changelog_faults(text_of("CHANGELOG.md"), version[1])) == []


GOOD = """# Changelog

Words.

## 0.2.0 (2026-01-02)

- It does.

## 0.1.0 (2026-01-01)

- It did,
  over two lines.
"""


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("# Changelog", "# Changes", "begins with"),
        ("0.2.0 (2026-01-02)", "0.2.0", "is no heading"),
        ("0.2.0", "0.0.9", "not the later one"),
        ("0.2.0", "0.3.0", "present version"),
        ("2026-01-01", "2026-02-01", "was released after"),
        ("- It does.", "- It does", "is no sentence"),
        ("- It does.", "- it does.", "is no sentence"),
        ("- It does.", "* It does.", "is no entry"),
        ("- It does.\n", "", "says nothing"),
    ],
)
def test_changelog_faults_are_found(before: str, after: str, said: str) -> None:
    """Each way to break the form of the changelog is named."""
    assert list(changelog_faults(GOOD, "0.2.0")) == []
    found = list(changelog_faults(GOOD.replace(before, after, 1), "0.2.0"))
    assert [fault for fault in found if said in fault], found


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("see `gymckpt/core/step.py` and [it](there/is-none.md)", ["there/is-none.md"]),
        ("see `gymckpt/core/stop.py`", ["gymckpt/core/stop.py"]),
        ("see `sqlite:///` and `a/replica-0` and `gymckpt[ray]`, `x.y`", []),
        ("see `Makefil.py`, `Makefile`, [web](https://example.org/x)", ["Makefil.py"]),
        ("```sh\ncat no/such.py\n```", []),
    ],
)
def test_missing_paths_are_found(text: str, missing: list[str]) -> None:
    """A path that is not there is named; what only looks like one is let pass."""
    assert missing_paths(ROOT, "README.md", text) == missing


def test_links_are_relative_to_their_document(tmp_path: Path) -> None:
    """A link of a document in a directory starts in that directory."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "top.md").write_text("")
    assert missing_paths(tmp_path, "docs/a.md", "[x](../top.md) [y](top.md)") == ["docs/top.md"]
    assert links_of("[a](b.md#part) [c](#here)") == ["b.md"]


def test_sections_of_the_readme_are_unique() -> None:
    """No two neighbouring headings are the same, so that every section can be linked to."""
    headings = sorted(re.findall(r"^#+ (.+)$", README, re.MULTILINE))
    assert all(one != other for one, other in pairwise(headings))
