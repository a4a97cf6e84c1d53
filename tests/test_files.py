"""A directory is entered by one thread of one process at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gymckpt import files
from tests.racing import WAIT_S

TRY_TO_ENTER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("kept out", end="")
else:
    print("entered", end="")
"""


def test_other_processes_are_kept_out_while_one_is_in(tmp_path: Path) -> None:
    """Another process finds the directory locked inside, and free before and after."""

    def said() -> str:
        command = [sys.executable, "-c", TRY_TO_ENTER, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert said() == "entered"
    with files.exclusive(tmp_path):
        assert said() == "kept out"
    assert said() == "entered"


FORK_INSIDE = """
import os, sys
from pathlib import Path
from gymckpt.files import exclusive
root = Path(sys.argv[1])
here, there = os.pipe()
with exclusive(root):
    child = os.fork()
    if child == 0:
        os.close(there)
        os.read(here, 1)  # the parent has left and entered once more
        with exclusive(root):
            os._exit(0)
with exclusive(root):
    os.write(there, b"x")
assert os.waitpid(child, 0)[1] == 0
with exclusive(root):
    print("done", end="")
"""


def test_a_forked_child_neither_inherits_nor_keeps_the_exclusion(tmp_path: Path) -> None:
    """Forked inside, a child keeps nobody out by its copy of the lock, and enters in its turn."""
    command = [sys.executable, "-c", FORK_INSIDE, str(tmp_path)]

    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)

    assert done.stdout == "done"


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF])
def test_a_directory_that_cannot_be_locked_is_still_kept_from_threads(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a filesystem refuses the lock, the process has one of its own for the directory."""

    def flock(_descriptor: int, _operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)

    def somebody_is_in() -> bool:
        descriptor = os.open(tmp_path, os.O_RDONLY)
        lock = files._LOCKS.of(descriptor)
        os.close(descriptor)
        return lock.locked()

    with files.exclusive(tmp_path):
        assert somebody_is_in()
    assert not somebody_is_in()


def test_a_lock_that_fails_otherwise_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing disk is not taken for a filesystem without locks."""

    def flock(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.EIO, "the disk failed")

    monkeypatch.setattr(fcntl, "flock", flock)

    with pytest.raises(OSError, match="the disk failed"), files.exclusive(tmp_path):
        pass
