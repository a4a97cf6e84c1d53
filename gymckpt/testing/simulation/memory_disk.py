"""
The disks of instances in memory: as much of `os` as a participant's records need.

The records are written and read by the product's own code, a few dozen file operations each time;
most of what they would cost is the kernel's. Only what lies below an instances directory is kept
here. All above it is real, since checkpoints' roots are shared with controllers, whose manifests
are real files. That a disk answers as a file system does is held by a test over any operations.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import stat
from typing import Any, NamedTuple

__all__ = ["BELOW", "MemoryDisk"]

BELOW = f"{os.sep}gym-instances"
"""How a path goes on below a checkpoint's root, to what is kept here."""

DESCRIPTOR_MIN = 1_000_000
"""Descriptors from here on are of files in memory."""

_DIRECTORY, _FILE = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o644


class _Node:
    """A file or a directory; a file may have several names."""

    __slots__ = ("data", "mode")

    def __init__(self, mode: int) -> None:
        self.mode = mode
        self.data = b""


class _Status(NamedTuple):
    st_mode: int
    st_size: int


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class _Paths:
    """What `os.path` is for such a disk."""

    dirname = staticmethod(os.path.dirname)

    def __init__(self, nodes: dict[str, _Node]) -> None:
        self._nodes = nodes

    def isdir(self, path: str) -> bool:
        """Whether there is a directory."""
        if BELOW not in path:
            return os.path.isdir(path)
        node = self._nodes.get(path)
        return node is not None and node.mode == _DIRECTORY

    def lexists(self, path: str) -> bool:
        """Whether there is anything."""
        return path in self._nodes if BELOW in path else os.path.lexists(path)

    def islink(self, path: str) -> bool:
        """Whether there is a symbolic link, of which this disk has none."""
        return BELOW not in path and os.path.islink(path)


class MemoryDisk:
    """
    Files and directories by their path; whatever is not here is `os`'s own.

    Attributes:
        path: Stands for `os.path`.
    """

    def __init__(self) -> None:
        """Make an empty disk."""
        self._nodes: dict[str, _Node] = {}
        self._opened: dict[int, _Node] = {}
        self._descriptors = itertools.count(DESCRIPTOR_MIN)
        self.path = _Paths(self._nodes)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    # --- names ----------------------------------------------------------------------------------

    def mkdir(self, path: str) -> None:
        """Make a directory."""
        if BELOW not in path:
            os.mkdir(path)
            return
        self._require_free(path)
        self._nodes[path] = _Node(_DIRECTORY)

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory."""
        if BELOW not in path:
            return os.listdir(path)
        if self._named(path).mode != _DIRECTORY:
            raise _error(errno.ENOTDIR, path)
        parents = (name.rpartition(os.sep) for name in self._nodes)
        return [name for parent, _, name in parents if parent == path]

    def link(self, source: str, target: str) -> None:
        """Give a file a second name."""
        node = self._named(source)
        self._require_free(target)
        self._nodes[target] = node

    def replace(self, source: str, target: str) -> None:
        """Give a file another name, and take that from what has it."""
        node = self._named(source)
        self._require_parent(target)
        if self._nodes.get(target) is not node:
            self._nodes[target] = self._nodes.pop(source)

    def unlink(self, path: str) -> None:
        """Take a name from a file."""
        self._named(path)
        del self._nodes[path]

    def _named(self, path: str) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    def _require_free(self, path: str) -> None:
        if path in self._nodes:
            raise _error(errno.EEXIST, path)
        self._require_parent(path)

    def _require_parent(self, path: str) -> None:
        if not self.path.isdir(path.rpartition(os.sep)[0]):
            raise _error(errno.ENOENT, path)

    # --- open files -----------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """Open a file or directory."""
        if BELOW not in path:
            return os.open(path, flags, mode)
        if flags & os.O_CREAT and path not in self._nodes:
            self._require_parent(path)
            self._nodes[path] = _Node(_FILE)
        elif flags & os.O_EXCL:
            raise _error(errno.EEXIST, path)
        node = self._named(path)
        if flags & os.O_DIRECTORY and node.mode != _DIRECTORY:
            raise _error(errno.ENOTDIR, path)
        descriptor = next(self._descriptors)
        self._opened[descriptor] = node
        return descriptor

    def fdopen(self, descriptor: int, mode: str) -> io.BytesIO:
        """Return a file object for an open file."""
        return _File(self, descriptor, self._opened[descriptor], writes="w" in mode)

    def fstat(self, descriptor: int) -> _Status:
        """Return what an open file is, and how large."""
        node = self._opened[descriptor]
        return _Status(node.mode, len(node.data))

    def ftruncate(self, descriptor: int, size: int) -> None:
        """Cut an open file short."""
        node = self._opened[descriptor]
        node.data = node.data[:size]

    def close(self, descriptor: int) -> None:
        """Close a file or directory."""
        if descriptor < DESCRIPTOR_MIN:
            os.close(descriptor)
        else:
            del self._opened[descriptor]

    def read(self, path: str) -> bytes:
        """Return what a file holds."""
        return self._named(path).data


class _File(io.BytesIO):
    """An open file; what is written is in it from the next flush on."""

    def __init__(self, disk: MemoryDisk, descriptor: int, node: _Node, *, writes: bool) -> None:
        super().__init__(b"" if writes else node.data)
        self._disk = disk
        self._descriptor = descriptor
        self._node = node
        self._unflushed = False

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._descriptor

    def write(self, data: Any, /) -> int:
        """Write something."""
        self._unflushed = True
        return super().write(data)

    def flush(self) -> None:
        """Put into the file what was written."""
        if self._unflushed:
            self._node.data = self.getvalue()
            self._unflushed = False

    def close(self) -> None:
        """Flush and close it."""
        if not self.closed:
            self.flush()
            self._disk.close(self._descriptor)
        super().close()
