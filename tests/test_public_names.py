"""What `import gymckpt` offers, and what it does not bring along."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gymckpt


@pytest.mark.parametrize("name", gymckpt.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """Each name can be had, is the same each time, and is listed."""
    found = getattr(gymckpt, name)
    assert getattr(gymckpt, name) is found
    assert name in dir(gymckpt)


def test_explain_and_replay_are_functions_that_return_data() -> None:
    """The diagnosis of the library is not hidden behind its modules."""
    assert gymckpt.explain([]).problem
    assert gymckpt.replay([]).state is None
    assert isinstance(gymckpt.explain([]), gymckpt.Explanation)
    assert isinstance(gymckpt.replay([]), gymckpt.Replay)


def test_modules_are_reached_by_name() -> None:
    """A module of the package is an attribute of it; anything else is an AttributeError."""
    assert gymckpt.errors.Fenced is gymckpt.Fenced
    for name in ("nothing", "_nothing", "__nothing__"):
        with pytest.raises(AttributeError, match=name):
            getattr(gymckpt, name)


def test_importing_it_imports_nothing_heavy() -> None:
    """A bare import brings along neither Ray nor a database, nor even an event loop."""
    script = (
        "import sys, gymckpt; "
        "print([name for name in ('ray', 'gymnasium', 'sqlalchemy', 'asyncio') if name in "
        "sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
