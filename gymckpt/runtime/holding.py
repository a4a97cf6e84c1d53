"""
Which process this is, and which runs it holds (DESIGN, S7).

A run has one holder at a time, and the holder is a process: all its coordinators on one journal
share the epoch, and the run is given back when the last of them lets it go. A child that was forked
is another process. Where a holder's host is this one, and its process is not there any more, it is
known to be gone without any waiting.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import threading
import uuid
import weakref
from collections.abc import Hashable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from gymckpt.core.settings import COMMAND, bare_owner
from gymckpt.errors import Fenced
from gymckpt.journal.base import Journal, RunRow

__all__ = [
    "Driven",
    "Hold",
    "as_process",
    "become",
    "give_back",
    "holder_token",
    "is_gone",
    "renamed",
    "take",
]

_PRETENDED: ContextVar[str | None] = ContextVar("pretended", default=None)

_PROC = Path("/proc")


@contextlib.contextmanager
def as_process(name: str) -> Iterator[None]:
    """
    Let coordinators that are made in the body belong to another process than all others.

    Tests and simulations have several controllers in one process, which must not share a run.

    Args:
        name: Tells that process from others.
    """
    token = _PRETENDED.set(name)
    try:
        yield
    finally:
        _PRETENDED.reset(token)


def become(name: str) -> None:
    """
    Let everything that the running context makes from now on belong to another process.

    Args:
        name: Tells that process from others.
    """
    _PRETENDED.set(name)


def holder_token(*, command: bool = False) -> str:
    """
    Return the token of this process: the same for all its coordinators, and readable.

    Args:
        command: Whether it is an operator's command, no controller.
    """
    return f"{_PRETENDED.get() or _token_of(os.getpid())}{COMMAND if command else ''}"


def renamed(holder: str, pid: int) -> str:
    """
    Return the token of this process in place of that of its parent.

    Args:
        holder: The parent's token.
        pid: The parent's process id.
    """
    parent = _token_of(pid)
    mine = _token_of(os.getpid())
    return holder.replace(parent, mine) if parent in holder else f"{mine}-{holder}"[:200]


@functools.cache
def _token_of(pid: int) -> str:
    """Return what is said of this process while it has a process id; a child has another."""
    host = "".join(c if c.isalnum() or c in ".-" else "-" for c in socket.gethostname())
    began = _began(pid)
    told = f"{_place()}-{began}" if began else uuid.uuid4().hex[:12]
    return f"{host[:60]}:{pid}:{told}"


@functools.cache
def _place() -> str:
    """Return what tells where process ids mean the same: a host since its start, a container."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return uuid.uuid4().hex[:12]
    return hashlib.sha256(f"{boot} {space}".encode()).hexdigest()[:12]


def _began(pid: int) -> str | None:
    """Return when a process of this host began, in ticks; None where there is none, or it died."""
    try:
        told = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if not told or told[0] in "ZX" else told[19]


def is_gone(holder: str) -> bool:
    """
    Whether a holder's process has certainly ended: it ran here, and is not there any more.

    Args:
        holder: Its token.
    """
    _, _, told = holder.partition(":")
    pid, _, mark = told.partition(":")
    place, dash, began = mark.partition(":")[0].partition("-")
    if not dash or place != _place() or not pid.isdecimal():
        return False
    return _began(int(pid)) != began


class Driven(Protocol):
    """What drives an operation of a run."""

    @property
    def goes_on(self) -> bool:
        """Whether it is still to do something, in an event loop that is not closed."""
        ...

    @property
    def replaceable(self) -> bool:
        """Whether another recovery in this process may go on in its place."""
        ...

    def fence(self, error: Fenced) -> None:
        """Stop, since another process has the run; may be called on any thread."""
        ...

    def abandon(self) -> None:
        """Stop, and leave what is left to whoever goes on with it."""
        ...


class Hold:
    """A run that this process holds, in one journal."""

    def __init__(self, run: str, holder: str, epoch: int) -> None:
        """
        Hold a run that was claimed.

        Args:
            run: The run.
            holder: The token that claimed it.
            epoch: The epoch that this gave.
        """
        self.run = run
        self.holder = holder
        self.epoch = epoch
        self.pid = os.getpid()
        self.users = 0
        self.lost: Fenced | None = None
        """Set once another process has taken the run over."""
        self._driven: weakref.WeakValueDictionary[str, Driven] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def drive(self, operation_id: str, driven: Driven) -> None:
        """
        Know what drives an operation of the run.

        Args:
            operation_id: The operation.
            driven: What drives it.
        """
        with self._lock:
            self._driven[operation_id] = driven

    def own_ids(self) -> frozenset[str]:
        """Return the operations that this process goes on to drive, and leave the others alone."""
        own: set[str] = set()
        for name, one in self._all():
            if one.replaceable:
                one.abandon()
            elif one.goes_on:
                own.add(name)
        return frozenset(own)

    @property
    def busy(self) -> bool:
        """Whether this process drives any operation."""
        return any(one.goes_on for _, one in self._all())

    def fence(self, error: Fenced) -> None:
        """
        Let everything stop that goes on in the run.

        Args:
            error: Who has it now.
        """
        self.lost = error
        for _, one in self._all():
            one.fence(error)

    def _all(self) -> list[tuple[str, Driven]]:
        with self._lock:
            return list(self._driven.items())


_Key = tuple[Hashable, str, str, int]

_HOLDS: dict[_Key, Hold] = {}
_LOCKS: dict[_Key, threading.Lock] = {}
"""One for each run, so that a journal that hangs stops no other."""


def _key(journal: Journal, run: str, holder: str) -> _Key:
    return journal.shared_as, run, bare_owner(holder), os.getpid()


def take(journal: Journal, run: str, holder: str, *, unmoved: RunRow | None, force: bool) -> Hold:
    """
    Claim a run, and use it together with whoever uses it in this process.

    Args:
        journal: Where to claim it.
        run: The run.
        holder: The token of this process.
        unmoved: See `Journal.claim`.
        force: Likewise.

    Raises:
        RunHeld: Another process holds it.
        JournalError: The journal cannot be read or written.
    """
    key = _key(journal, run, holder)
    with _LOCKS.setdefault(key, threading.Lock()):
        epoch = journal.claim(run, holder=holder, unmoved=unmoved, force=force)
        hold = _HOLDS.get(key)
        if hold is None or hold.epoch != epoch or hold.lost is not None:
            hold = _HOLDS[key] = Hold(run, holder, epoch)
        hold.users += 1
        return hold


def give_back(journal: Journal, hold: Hold) -> None:
    """
    Use a run no longer; it is released with its last user in this process.

    Args:
        journal: Where it was claimed.
        hold: The run.

    Raises:
        JournalError: The journal cannot be written.
    """
    if hold.pid != os.getpid():
        return
    key = _key(journal, hold.run, hold.holder)
    with _LOCKS.setdefault(key, threading.Lock()):
        hold.users -= 1
        if hold.users > 0:
            return
        if _HOLDS.get(key) is hold:
            del _HOLDS[key]
        if hold.lost is None:
            journal.release(hold.run, epoch=hold.epoch)
