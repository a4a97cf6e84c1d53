"""
The file under a journal: created whole or not at all, recognised again, on a disk or a network.

A journal never appears half made under its name: it is built beside it and linked into place,
which two processes can try at once and one of them wins. While it is open its files are told
apart by device and inode, so that nothing is written into a file that nobody can find any more.

Nothing here opens a journal's own file: closing any descriptor of it would drop the locks that
SQLite holds for the whole process.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import stat
import uuid
from collections.abc import Callable, Generator
from pathlib import Path

from gymckpt.errors import JournalCorrupt, JournalUnavailable, text_of
from gymckpt.files import flush_directory

__all__ = [
    "Files",
    "create",
    "files_of",
    "filesystem_of",
    "is_at_rest",
    "is_there",
    "os_errors",
    "require_same",
    "warn_of_network",
]

logger = logging.getLogger("gymckpt.journal")

Files = tuple[tuple[int, int] | None, ...]
"""Device and inode of the journal, its -wal and its -shm; None for one that is not there."""

SUFFIXES = ("", "-wal", "-shm")
"""What SQLite keeps beside a journal in WAL mode; all three belong together."""

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "fuse.sshfs", "9p", "gpfs", "ceph"}
)
"""File systems whose locks or shared memory SQLite cannot rely on between hosts."""

_WARNED: set[str] = set()
"""The files about which this process has warned: a log line each, however often one is opened."""

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


@contextlib.contextmanager
def os_errors(path: Path) -> Generator[None, None, None]:
    """Turn what the operating system refuses about `path` into JournalUnavailable."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or text_of(error)
        raise JournalUnavailable(
            f"journal {path}: {reason}; check the path and its disk"
        ) from error


PAGE_BYTES_MIN = 512
"""A database is a whole number of pages, none smaller than this. The size is taken from the
directory: to open the file here would drop SQLite's locks on it when it is closed again."""


def is_there(path: Path) -> bool:
    """
    Whether a file that may be a journal is at `path`.

    Raises:
        JournalUnavailable: Something else is there, or it cannot be looked at.
        JournalCorrupt: The file is empty, or was cut off.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise JournalUnavailable(f"journal {path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "no regular file"
        raise JournalUnavailable(
            f"journal {path}: this is {kind}; name a file, for example {path / 'journal.sqlite3'}"
        )
    if not found.st_size:
        raise JournalCorrupt(
            f"journal {path}: the file is empty, which a journal never is: it was truncated or "
            "made by something else; move it away and a new journal is made"
        )
    if found.st_size % PAGE_BYTES_MIN:
        raise JournalCorrupt(
            f"journal {path}: its {found.st_size} bytes are no whole number of pages: it was cut "
            "off, or is no journal; restore it from a copy, or move it away"
        )
    return True


def is_at_rest(path: Path) -> bool:
    """Return whether everything is in the journal's main file, nothing in its -wal."""
    try:
        return not path.with_name(f"{path.name}-wal").stat().st_size
    except FileNotFoundError:
        return True
    except OSError:
        return False


def create(path: Path, build: Callable[[Path], None]) -> None:
    """
    Make a journal file, or leave the one that another process made meanwhile.

    Args:
        path: Where it is to be; missing parents are made, private to the user.
        build: Fills an existing empty file at the path that it is given, and closes it.

    Raises:
        JournalUnavailable: The directory cannot be written or cannot hold hard links.
    """
    temporary = path.with_name(f".gymckpt-{uuid.uuid4().hex}.tmp")
    with os_errors(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            temporary.chmod(0o600)  # whatever the umask; SQLite gives the others the same mode
            build(temporary)
            _link(temporary, path)
        finally:
            for suffix in SUFFIXES:
                temporary.with_name(temporary.name + suffix).unlink(missing_ok=True)
        flush_directory(path.parent)


def _link(temporary: Path, path: Path) -> None:
    """Give the finished file its name, unless the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise JournalUnavailable(
            f"journal {path}: its file system has no hard links, so it is none on which SQLite "
            "can be trusted; take a local disk"
        ) from error


def files_of(path: Path) -> Files:
    """Return what tells the journal's files apart from others of the same names."""
    return tuple(_identity(f"{path}{suffix}") for suffix in SUFFIXES)


def _identity(name: str) -> tuple[int, int] | None:
    try:
        found = os.stat(name)  # on the path of every append, where Path costs double
    except OSError:
        return None
    return found.st_dev, found.st_ino


def require_same(path: Path, opened: Files) -> None:
    """
    Check that the names still lead to the files that were opened.

    Raises:
        JournalUnavailable: One was deleted or replaced: what is written now would be lost.
    """
    found = files_of(path)
    if found == opened:
        return
    for suffix, before, now in zip(SUFFIXES, opened, found, strict=True):
        if before != now:
            fate = "deleted" if now is None else "replaced"
            raise JournalUnavailable(
                f"journal {path}: the file {path.name}{suffix} was {fate} while it was open; "
                "nothing more is written, put it back or open another journal"
            )


# --- where it is --------------------------------------------------------------------------------


def warn_of_network(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """
    Say once per file, in the log, that SQLite does not belong on a network file system.

    Args:
        path: The journal.
        mounts: Where the kernel lists what is mounted; nothing is said where it does not.
    """
    try:
        kind = filesystem_of(Path(os.path.realpath(path)), mounts.read_text("utf-8", "replace"))
    except OSError:
        return
    if kind not in NETWORK_FILESYSTEMS or str(path) in _WARNED:
        return
    _WARNED.add(str(path))
    logger.warning(
        "journal %s is on a network file system (%s): SQLite's locks are not reliable there, and "
        "controllers on two hosts can destroy it; use a local disk, or PostgreSQL for several "
        "hosts",
        text_of(path),
        text_of(kind),
    )


def filesystem_of(path: Path, mountinfo: str) -> str:
    """
    Return the type of the file system that holds `path`; empty where it is not listed.

    Args:
        path: An absolute path without symbolic links.
        mountinfo: The text of the kernel's list, see proc_pid_mountinfo(5).
    """
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4]))
        depth = len(point.parts)
        if path.is_relative_to(point) and depth >= best:
            best, kind = depth, after.split(" ")[0]
    return kind
