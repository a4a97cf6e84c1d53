"""
Files that are either whole or absent, and a lock on a directory.

What is written here is written beside its place under a name of its own and flushed to the disk;
moving it to its place is the caller's, under `exclusive`, since only the caller knows what may
stand there already. All of it blocks and belongs into worker threads.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakValueDictionary

__all__ = ["exclusive", "flush_directory", "flush_file", "read_file", "write_beside"]

_UNSUPPORTED = frozenset(
    {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
)
"""How filesystems say that they cannot lock or flush a directory."""

_NOT_A_FILE = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO})
"""How opening fails where a symbolic link, a file as a directory or a socket is in the way."""


# --- reading -------------------------------------------------------------------------------------


def read_file(root: Path, name: str, *, bytes_max: int) -> bytes:
    """
    Return what a regular file below a directory holds.

    Args:
        root: The directory, which may itself be reached through symbolic links.
        name: The file's name in it.
        bytes_max: The most that it may hold.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is no regular file, too large, or a symbolic link that leaves the directory.
        OSError: It cannot be read.
    """
    resolved = os.path.realpath(root / name)
    if not Path(resolved).is_relative_to(os.path.realpath(root)):
        raise ValueError("is a symbolic link that leaves its directory")
    # Opening a pipe would wait for a writer without O_NONBLOCK.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(resolved, flags)
    except OSError as error:
        if error.errno in _NOT_A_FILE:
            raise ValueError(f"is no regular file: {error.strerror}") from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is no regular file")
        if status.st_size > bytes_max:
            raise ValueError(f"is larger than {bytes_max} bytes")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


# --- writing -------------------------------------------------------------------------------------


def write_beside(place: Path, data: bytes, *, prefix: str) -> Path:
    """
    Write a new file in the directory of `place`, flushed to the disk, and return its path.

    Args:
        place: Where the file is to be moved by the caller.
        data: What it holds.
        prefix: What its name begins with; a unique part and `.tmp` follow.

    Raises:
        OSError: It cannot be written; nothing is left of it.
    """
    path = place.parent / f"{prefix}{uuid.uuid4().hex}.tmp"
    # Not `tempfile`: its files may be read by their owner only, and so would the moved one.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    return path


def flush_file(path: Path) -> None:
    """
    Flush to the disk what somebody else wrote into a file.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be opened or flushed.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_directory(directory: Path) -> None:
    """
    Flush to the disk which files a directory holds, where the filesystem can.

    Args:
        directory: The directory.

    Raises:
        OSError: It cannot be opened, or the disk failed.
    """
    try:
        flush_file(directory)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


# --- exclusion -----------------------------------------------------------------------------------


class _Locks:
    """
    One lock per directory of this process, for filesystems that cannot lock between processes.

    Directories are told apart by device and inode, since one may be reached by several paths.
    """

    def __init__(self) -> None:
        self.forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Start anew: in a forked child nobody would release the locks that its parent held."""
        self._guard = threading.Lock()
        self._by_directory: WeakValueDictionary[tuple[int, int], threading.Lock] = (
            WeakValueDictionary()
        )

    def of(self, descriptor: int) -> threading.Lock:
        """Return the lock of an open directory; it lives as long as somebody holds it."""
        status = os.fstat(descriptor)
        with self._guard:
            return self._by_directory.setdefault((status.st_dev, status.st_ino), threading.Lock())


_LOCKS = _Locks()


@contextmanager
def exclusive(directory: Path) -> Generator[None]:
    """
    Keep every other thread and process that uses this function out of a directory.

    Args:
        directory: The directory. Where its filesystem cannot lock it, only the threads of this
            process are kept out.

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be opened or locked.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _LOCKS.of(descriptor):
            locked = _lock(descriptor)
            try:
                yield
            finally:
                if locked:
                    _unlock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock an open directory; False where there is no such lock, which nothing else can mean."""
    try:
        import fcntl  # noqa: PLC0415 - importing gymckpt must work where there are no such locks
    except ImportError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    return True


def _unlock(descriptor: int) -> None:
    """Unlock at once: a process that was forked meanwhile shares the descriptor and the lock."""
    import fcntl  # noqa: PLC0415 - importing gymckpt must work where there are no such locks

    fcntl.flock(descriptor, fcntl.LOCK_UN)
