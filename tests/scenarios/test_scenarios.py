"""
Scenario files that a reviewer can read: each is played, and what comes of it is what it says.

`pytest tests/scenarios --rewrite` writes what really happens into the files instead. Read the
difference then, and commit it only if you can explain it.
"""

from __future__ import annotations

import difflib
import logging
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gymckpt.chart import chart_names
from tests.core.steps import TAKEN, Transition, all_transitions
from tests.scenarios.scripts import INPUTS, BadScenario, parsed, played, written

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*.txt"))

TINY = """\
# Shows nothing.

1 instance
checkpoint ckpt-1
hide renew
----
(nothing)
"""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What controllers log is not part of any scenario."""
    caplog.set_level(logging.CRITICAL + 1, "gymckpt")


@cache
def replayed(path: Path) -> tuple[str, frozenset[Transition]]:
    """Return what a file should say, and every transition that was taken in it."""
    before = frozenset(TAKEN)
    TAKEN.clear()
    try:
        with TemporaryDirectory() as base:
            text = written(played(parsed(path.read_text()), Path(base)))
        return text, frozenset(TAKEN)
    finally:
        TAKEN.update(before)


def difference(path: Path, expected: str, found: str) -> str:
    """Return what differs between a file and what happens, for the message of a failed test."""
    lines = difflib.unified_diff(
        expected.splitlines(),
        found.splitlines(),
        f"{path.name}: what the file says",
        f"{path.name}: what happens",
        lineterm="",
        n=4,
    )
    hint = "if this is meant, run: python -m pytest tests/scenarios --rewrite"
    return "\n".join([*lines, hint])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario_plays_as_it_says(path: Path, rewrites: bool) -> None:
    """What happens in a scenario is, line by line, what its file says."""
    found, _ = replayed(path)
    expected = path.read_text()
    if rewrites and found != expected:
        path.write_text(found)
    else:
        assert found == expected, difference(path, expected, found)


@pytest.mark.parametrize("chart", chart_names())
def test_every_transition_is_taken(chart: str) -> None:
    """Every transition of every chart is taken by some scenario; those that are not are listed."""
    taken = frozenset[Transition]().union(*(replayed(path)[1] for path in FILES))
    missing = sorted(all_transitions(chart) - taken)
    assert missing == [], "no scenario takes these (chart, state, trigger, state)"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_header_says_what_is_shown(path: Path) -> None:
    """Each file opens with what it shows, and names the promise or the section of the design."""
    header = parsed(path.read_text()).header
    assert re.search(r"\b[SL][1-9]\b|DESIGN, \d", " ".join(header)), "which promise is it about?"
    assert re.fullmatch(r"# [A-Z].+", header[0])
    assert max(map(len, header)) <= 100


def test_every_promise_is_shown() -> None:
    """Each promise of the design is named by some scenario that shows it."""
    headers = " ".join(line for path in FILES for line in parsed(path.read_text()).header)
    promised = [f"S{number}" for number in range(1, 10)] + ["L1", "L2", "L3"]
    assert [name for name in promised if not re.search(rf"\b{name}\b", headers)] == []


def test_every_input_is_used() -> None:
    """No input of the language is there for nothing."""
    lines = {line for path in FILES for line in parsed(path.read_text()).inputs}
    unused = [pattern.pattern for pattern, _ in INPUTS if not any(map(pattern.fullmatch, lines))]
    assert unused == []


def test_readme_has_every_input() -> None:
    """Each row of the table of inputs is written as one of them, and none is left out."""
    table = (HERE / "README.md").read_text().partition("## Inputs")[2]
    rows = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    examples = [row.replace("\\|", "|") for row in rows]
    meant = [[p.pattern for p, _ in INPUTS if p.fullmatch(example)] for example in examples]
    assert [one for one in meant if len(one) != 1] == []
    assert {one[0] for one in meant} == {pattern.pattern for pattern, _ in INPUTS}


# --- the net can fail -----------------------------------------------------------------------------


def test_changed_expectation_is_told(tmp_path: Path) -> None:
    """An expectation that was changed by hand is shown with both sides, and the way out."""
    path = HERE / "checkpoint_goes_well.txt"
    found = written(played(parsed(path.read_text()), tmp_path))
    stale = found.replace("parked -> committing (commit)", "parked -> sealing (commit)")
    told = difference(path, stale, found)
    assert "-     0s  journal  ckpt-1: parked -> sealing (commit)" in told
    assert "+     0s  journal  ckpt-1: parked -> committing (commit)" in told
    assert told.endswith("--rewrite")


def test_playing_twice_gives_the_same(tmp_path: Path) -> None:
    """What is played again from what was written comes out the same, word by word."""
    first = written(played(parsed(TINY), tmp_path))
    assert "ckpt-1 is parked" in first
    assert written(played(parsed(first), tmp_path)) == first


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 instance\n----\n", "begins with comments"),
        ("# Shows.\n\n1 instance\n", "has no ----"),
        ("# Shows.\n\n1 instnace\n----\n", "no input is written like '1 instnace'"),
        ("# Shows.\n\n1 instance\nreplica-0 prepare: late 3\n----\n", "write it as 3s"),
        ("# Shows.\n\n1 instance\nreplica-0 prepare: hangz\n----\n", "'hangz' is no fault"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, text: str, said: str) -> None:
    """A file that is no scenario is refused with the line that is wrong."""
    with pytest.raises(ValueError, match=said) as caught:
        played(parsed(text), tmp_path)
    assert isinstance(caught.value, BadScenario) or "write it" in said or "no fault" in said
