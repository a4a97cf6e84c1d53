"""`docs/cli.md` names every command, every shape and every field that the command line gives."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from gymckpt.cli import MODULES, app
from tests.cli.command import answer, run
from tests.diagnosis.stuck import BUSY
from tests.repo.house import ROOT

PAGE = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
WORDS = frozenset(re.findall(r"`([^`\n]+)`", PAGE))

FREE = frozenset({"tally", "calls", "facts"})
"""Fields whose own keys are names of states and calls, or whatever an entry keeps."""


def fields(value: Any) -> set[str]:
    """Return every field in some JSON data."""
    if isinstance(value, list):
        return {name for item in value for name in fields(item)}
    if not isinstance(value, dict):
        return set()
    inner = [fields(item) for name, item in value.items() if name not in FREE]
    return set(value).union(*inner)


def test_every_command_of_every_module_is_found() -> None:
    """A command is made by the module that is looked into for it, and no module has another."""
    for module in set(MODULES.values()):
        some = typer.Typer()
        importlib.import_module(f"gymckpt.cli.{module}").add_to(some)
        made = {one.name or one.callback.__name__ for one in some.registered_commands}  # type: ignore[union-attr]
        assert made == {name for name, place in MODULES.items() if place == module}


def test_every_command_is_named() -> None:
    """No command is left out of the page, nor of the help."""
    names = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert {name for name in names if not re.search(rf"`(gymckpt )?{name}\b", PAGE)} == set()
    assert [name for name in names if name not in run("--help").stdout] == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["ops"], 1),
        (["explain", "stuck"], 1),
        (["explain", "refused"], 1),
        (["show", "refused"], 0),
        (["replay", "good"], 0),
        (["replay", "good", "--step"], 0),
        (["replay", "good", "--what-if", "crash=5"], 0),
        (["watch", "good"], 0),
        (["prune", "--keep-last", "0", "--dry-run"], 0),
        (["discard", "stuck", "--reason", "x"], 1),
        (["mark-gone", "stuck", BUSY, "--reason", "x"], 1),
        (["recover"], 1),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_every_field_is_documented(arguments: list[str], code: int) -> None:
    """The schema has its section, and each field of the answer stands in the page."""
    found = answer(*arguments, code=code)
    assert found["schema"] in WORDS
    entry_fields = {"source", "dest", "facts"}
    assert {name for name in fields(found) if name not in WORDS} - entry_fields == set()


def test_import_and_verify_are_documented(tmp_path: Path) -> None:
    """The shapes of the commands that need files are documented as well."""
    run("export", "good", "-o", str(tmp_path / "good.jsonl"))
    found = answer("import", str(tmp_path / "good.jsonl"), "-j", str(tmp_path / "j.sqlite3"))
    assert fields(found) | {found["schema"]} <= WORDS
    assert "gymckpt.verify/1" in WORDS
