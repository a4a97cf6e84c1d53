"""What the tutorial of the kit shows can be run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
MARKED = re.compile(r"<!-- run -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

PROGRAMS = MARKED.findall(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_tutorial_runs(number: int) -> None:
    """Each program that is marked so on the page runs to its end, its assertions included."""
    exec(compile(PROGRAMS[number], f"{PAGE.name}:{number}", "exec"), {"__name__": "tutorial"})


def test_the_tutorial_has_programs() -> None:
    """The fakes, the machine and the strategies each have one."""
    shown = "".join(PROGRAMS)
    for name in ("FakeInstance", "CoordinatorMachine", "histories", "fault_plans"):
        assert name in shown
