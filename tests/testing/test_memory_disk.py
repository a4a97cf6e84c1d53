"""The disk of simulated instances answers as a file system does."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymckpt.testing.simulation.memory_disk import MemoryDisk

DIRECTORIES = st.sampled_from(["", "/d", "/d/e"])
FILES = st.sampled_from(["/f", "/g", "/d/f", "/d/e/f"])
NAMES = DIRECTORIES | FILES
DATA = st.binary(max_size=8)

OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(["mkdir"]), DIRECTORIES),
    st.tuples(st.sampled_from(["look", "list"]), NAMES),
    st.tuples(st.sampled_from(["read", "unlink"]), FILES),
    st.tuples(st.sampled_from(["create", "tear"]), FILES, DATA),
    st.tuples(st.sampled_from(["link", "replace"]), FILES, FILES),
)


class Actor:
    """Does the same things on one disk or another."""

    def __init__(self, disk: Any, root: str) -> None:
        self.disk = disk
        self.root = root

    def do(self, operation: str, *arguments: Any) -> Any:
        """Do one thing; return what it comes to, or the number of the error."""
        paths = [f"{self.root}{one}" if isinstance(one, str) else one for one in arguments]
        try:
            return getattr(self, operation)(*paths)
        except OSError as error:
            return f"error {error.errno}"

    def mkdir(self, path: str) -> None:
        self.disk.mkdir(path)

    def look(self, path: str) -> tuple[bool, ...]:
        paths = self.disk.path
        return paths.isdir(path), paths.lexists(path), paths.islink(path)

    def list(self, path: str) -> list[str]:
        self.disk.close(self.disk.open(path, os.O_RDONLY | os.O_DIRECTORY))
        return sorted(self.disk.listdir(path))

    def read(self, path: str) -> tuple[bytes, list[bytes], int]:
        descriptor = self.disk.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        status = self.disk.fstat(descriptor)
        assert stat.S_ISREG(status.st_mode)
        with self.disk.fdopen(descriptor, "rb") as file:
            return file.read(3), [file.readline(4), file.read()], status.st_size

    def unlink(self, path: str) -> None:
        self.disk.unlink(path)

    def create(self, path: str, data: bytes, *, cut: bool = False) -> int:
        descriptor = self.disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with self.disk.fdopen(descriptor, "wb") as file:
            file.write(data)
            if cut:
                file.flush()
                self.disk.ftruncate(file.fileno(), len(data) // 2)
            size: int = self.disk.fstat(file.fileno()).st_size
        return size

    def tear(self, path: str, data: bytes) -> int:
        return self.create(path, data, cut=True)

    def link(self, source: str, target: str) -> None:
        self.disk.link(source, target)

    def replace(self, source: str, target: str) -> None:
        self.disk.replace(source, target)


@settings(max_examples=100, deadline=None)
@given(operations=st.lists(OPERATIONS, max_size=30))
def test_it_agrees_with_a_file_system(
    tmp_path_factory: pytest.TempPathFactory, operations: list[Any]
) -> None:
    """Whatever is done to both, a real disk and one in memory answer alike, in errors too."""
    place = tmp_path_factory.mktemp("disk")
    real = Actor(os, f"{place}/real/gym-instances")
    memory = Actor(MemoryDisk(), f"{place}/memory/gym-instances")
    for name in ("real", "memory"):
        (place / name).mkdir()
    for operation in [("mkdir", ""), *operations]:
        assert memory.do(*operation) == real.do(*operation), operation


def test_what_is_above_the_instances_is_real(tmp_path: Path) -> None:
    """A checkpoint's root is made where its controller finds it, and nothing below is."""
    disk = MemoryDisk()
    root = f"{tmp_path}/root"
    assert not disk.path.isdir(root)
    disk.mkdir(root)
    assert disk.path.isdir(root)
    assert os.path.isdir(root)
    disk.close(disk.open(root, os.O_RDONLY | os.O_DIRECTORY))
    disk.mkdir(f"{root}/gym-instances")
    assert disk.path.isdir(f"{root}/gym-instances")
    assert os.listdir(root) == []
    with pytest.raises(FileNotFoundError):
        disk.mkdir(f"{root}/gym-instances/tools/replica-0")


def test_what_was_not_flushed_is_not_there_yet(tmp_path: Path) -> None:
    """Readers find in a file what was flushed, and all of it once the file is closed."""
    disk = MemoryDisk()
    path = f"{tmp_path}/gym-instances"
    disk.mkdir(path)
    descriptor = disk.open(f"{path}/f", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with disk.fdopen(descriptor, "wb") as file:
        file.write(b"one")
        assert disk.read(f"{path}/f") == b""
        file.flush()
        file.write(b"two")
        assert disk.read(f"{path}/f") == b"one"
    assert disk.read(f"{path}/f") == b"onetwo"
