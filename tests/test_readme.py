"""The library example of the README runs as it is written, and prints what the README says."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")

TIMEOUT_S = 120
"""Ray starts within seconds; only a run that hangs comes near it."""


def blocks(language: str) -> list[str]:
    """Return the README's fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


EXAMPLE = blocks("python")[0]
EXPECTED = README.partition(EXAMPLE)[2].partition("```text\n")[2].partition("```")[0]


@pytest.mark.ray
def test_example_runs_as_written(tmp_path: Path) -> None:
    """The example, in an empty directory and a new process, exits well and prints its output."""
    script = tmp_path / "example.py"
    script.write_text(EXAMPLE, encoding="utf-8")
    journal = tmp_path / "journal.sqlite3"
    # Ray's sockets do not fit into the long path of a test's directory, so it keeps its own place.
    places = {"TMPDIR": str(tmp_path), "RAY_TMPDIR": tempfile.gettempdir()}
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env={**os.environ, **places, "GYMCKPT_JOURNAL": str(journal)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, EXPECTED), done.stderr
    assert journal.is_file()
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.glob("*/gym_checkpoint.json")] == ["gym_checkpoint.json"]


def test_example_has_about_twenty_lines() -> None:
    """The example is short enough to be read at once, and no line of it must be scrolled."""
    lines = [line for line in EXAMPLE.splitlines() if line]
    assert len(lines) <= 21
    assert max(map(len, lines)) <= 100


def test_other_python_blocks_are_python() -> None:
    """Every Python block of the README can be compiled where a coroutine may stand."""
    for block in blocks("python")[1:]:
        inside = "".join(f"    {line}\n" for line in block.splitlines())
        compile(f"async def f():\n{inside}", "README.md", "exec")
