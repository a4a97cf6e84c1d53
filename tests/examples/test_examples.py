"""The examples run as they are, prove what they claim, and stay as short as they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 300
"""Each ends within half a minute on an idle machine; only one that hangs comes near it."""


def run(tmp_path: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an example in an empty directory, with a journal of its own."""
    places = {
        "TMPDIR": str(tmp_path),
        "RAY_TMPDIR": tempfile.gettempdir(),  # Ray's sockets do not fit into the long path
        "GYMCKPT_JOURNAL": str(tmp_path / "journal.sqlite3"),
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=tmp_path,
        env={**os.environ, **places},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    return done


def survived(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """Return what a small run of the main job says as JSON, after what must hold of any run."""
    small = ("--instances", "2", "--episodes", "2", "--json")
    result = json.loads(run(tmp_path, "survive_a_kill.py", *small, *arguments).stdout)
    assert result["rollouts"] == 12
    assert result["differing"] == result["steps_lost"] == result["steps_run_twice"] == []
    assert result["continued_mid_episode"] <= result["continued"]
    assert result["snapshots"] > 0
    assert 0 < result["parked_s_max"] <= result["parked_s_sum"]
    return result


@pytest.mark.ray
def test_survive_the_kill_of_all_actors(tmp_path: Path) -> None:
    """Every actor is killed in the middle; no trajectory differs from an uninterrupted one."""
    result = survived(tmp_path, "--kill", "actors", "--kill-at", "0.3", "--seed", "11")
    assert 0 <= result["finished_at_the_kill"] < 12
    assert result["finished_in_the_snapshot"] <= result["finished_at_the_kill"]


@pytest.mark.ray
def test_survive_the_kill_of_controllers(tmp_path: Path) -> None:
    """Controllers die in a checkpoint and in a restore; the next one recovers both and goes on."""
    result = survived(tmp_path, "--kill", "controller", "--seed", "12")
    assert result["controllers_killed_in"] == ["a checkpoint", "a restore"]
    assert result["recovered"] >= 2


@pytest.mark.parametrize(
    "arguments",
    [("--instances", "0"), ("--episodes", "0"), ("--kill-at", "1"), ("--kill", "everybody")],
)
def test_arguments_that_make_no_sense(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """They are refused with a usage message, before anything is started."""
    with pytest.raises(AssertionError, match="usage: survive_a_kill"):
        run(tmp_path, "survive_a_kill.py", *arguments)


@pytest.mark.ray
def test_facade_in_a_training_loop(tmp_path: Path) -> None:
    """Another framework's loop adopts the facade in under 80 lines, and its games are saved."""
    lines = (EXAMPLES / "facade_in_a_training_loop.py").read_text().splitlines()
    assert len(lines) < 80
    told = run(tmp_path, "facade_in_a_training_loop.py").stdout
    saved = [int(count) for count in re.findall(r"(\d+) rollouts saved mid-episode", told)]
    assert saved
    assert all(count > 0 for count in saved)
    assert "12 rollouts, mean reward" in told
    assert (tmp_path / "journal.sqlite3").exists()
