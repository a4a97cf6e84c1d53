"""A small disk that can really be full."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A file system of its own, with a file that takes all its room."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Leave no room for one byte."""
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            size = 65_536
            while size:
                try:
                    file.write(b"x" * size)
                except OSError:
                    size //= 2

    def free(self) -> None:
        """Give the room back."""
        self._filler.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(path: Path, *, kilobytes: int) -> Iterator[SmallDisk]:
    """
    Mount a small file system, or skip the test where that is not allowed.

    Args:
        path: A directory that does not exist yet.
        kilobytes: How large it is.
    """
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
