"""
Who is using a store right now: closing it, or forking the process, waits until nobody is.

A connection of SQLite must not cross a fork. The child would believe that it holds locks which
the operating system left with the parent, and would go on writing into files that the parent may
have removed: entries vanish without an error. So before this process forks, every store lets its
connections go, and both sides open their own again when they need one. Where a store is busy for
longer than it may wait, the parent goes on and the child is refused that store.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Generator

from gymckpt.errors import JournalUnavailable

__all__ = ["Gate"]


class Gate:
    """Counts the users of one store; thread-safe."""

    def __init__(self, name: str, *, let_go: Callable[[], None], patience_s: float) -> None:
        """
        Open a gate.

        Args:
            name: The store, the same however often and however it is opened.
            let_go: Drops every connection of the store; called while nobody is inside.
            patience_s: How long closing and forking wait for those who are inside.

        Raises:
            JournalUnavailable: This process inherited the store in use from its parent.
        """
        self.name = name
        self._let_go = let_go
        self._patience_s = patience_s
        self._condition = threading.Condition()
        self._inside = 0
        self._held = False
        self._drained = True
        self._refusal = ""
        with _gates_lock:
            if name in _left_behind:
                raise JournalUnavailable(_LEFT_BEHIND.format(name))
            _gates.add(self)

    @contextlib.contextmanager
    def entered(self) -> Generator[None, None, None]:
        """
        Use the store inside the body.

        Raises:
            JournalUnavailable: The store was closed, or was in use while this process was forked.
        """
        with self._condition:
            self._condition.wait_for(lambda: not self._held)
            if self._refusal:
                raise JournalUnavailable(self._refusal)
            self._inside += 1
        try:
            yield
        finally:
            with self._condition:
                self._inside -= 1
                self._condition.notify_all()

    def shut(self, refusal: str) -> bool:
        """
        Refuse everybody from now on, and wait for those who are inside.

        Args:
            refusal: What later callers are told.

        Returns:
            Whether it was this call that shut the gate; False where it was shut before.
        """
        with self._condition:
            if self._refusal:
                return False
            self._refusal = refusal
            self._condition.wait_for(lambda: not self._inside, self._patience_s)
        with _gates_lock:
            _gates.discard(self)
        return True

    def hold(self) -> None:
        """Keep newcomers out until `release`; drop the connections once nobody is inside."""
        self._condition.acquire()
        self._held = True
        self._drained = self._condition.wait_for(lambda: not self._inside, self._patience_s)
        if self._drained:
            self._let_go()

    def release(self, *, forked: bool) -> None:
        """
        Let users in again; called by the thread that called `hold`.

        Args:
            forked: Whether this is the child's side of a fork.
        """
        if forked and not self._drained:
            self._refusal = _LEFT_BEHIND.format(self.name)
            _left_behind.add(self.name)
        self._held = False
        self._condition.notify_all()
        self._condition.release()


_LEFT_BEHIND = (
    "journal {}: this process was forked while its parent used the journal, whose locks stayed "
    "with the parent; start processes with 'spawn', or fork while the journal is idle"
)

# A fork concerns the whole process, so these are the process's own and not some store's.
_gates: weakref.WeakSet[Gate] = weakref.WeakSet()
_gates_lock = threading.Lock()
_held_gates: list[Gate] = []
_left_behind: set[str] = set()


def _before_fork() -> None:
    _gates_lock.acquire()
    _held_gates.extend(_gates)
    for gate in _held_gates:
        gate.hold()


def _after_fork(*, forked: bool) -> None:
    for gate in _held_gates:
        gate.release(forked=forked)
    _held_gates.clear()
    _gates_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork(forked=False),
        after_in_child=lambda: _after_fork(forked=True),
    )
