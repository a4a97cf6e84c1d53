"""Both type checkers accept what is right and refuse what is wrong, line by line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = ("right_uses.py", "wrong_uses.py")

Found = dict[str, set[int]]
"""File name to the lines that are refused."""


def _run(*command: str) -> str:
    files = [str(HERE / name) for name in FILES]
    done = subprocess.run(
        [sys.executable, "-m", *command, *files],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def mypy() -> Found:
    """Return the lines that mypy refuses."""
    found: Found = {name: set() for name in FILES}
    for line in _run("mypy", "--strict", "--no-error-summary").splitlines():
        where = re.match(r"(?P<path>[^:]+):(?P<line>\d+): error: ", line)
        if where:
            found[Path(where["path"]).name].add(int(where["line"]))
    return found


def pyright() -> Found:
    """Return the lines that pyright refuses."""
    found: Found = {name: set() for name in FILES}
    for one in json.loads(_run("pyright", "--outputjson"))["generalDiagnostics"]:
        if one["severity"] == "error":
            found[Path(one["file"]).name].add(one["range"]["start"]["line"] + 1)
    return found


def marked() -> Found:
    """Return the lines that say that they are wrong."""
    return {
        name: {
            number
            for number, line in enumerate((HERE / name).read_text().splitlines(), 1)
            if line.endswith("# wrong")
        }
        for name in FILES
    }


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_checker_refuses_what_is_wrong(checker: Callable[[], Found]) -> None:
    """The checker refuses exactly the lines that say so: own backends are accepted or caught."""
    expected = marked()
    assert not expected["right_uses.py"]
    assert len(expected["wrong_uses.py"]) > 20
    assert checker() == expected
