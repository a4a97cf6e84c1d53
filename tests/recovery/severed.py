"""
Controllers that crash within one process: severed from journal, instances and files at a point.

A severed controller's tasks go on, but nothing of it leaves any more: an append never returns, an
effect is not performed, a file job does nothing, no heartbeat is given. To everybody else that
is what a crash is, and many crashes can be lived through in virtual time.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gymckpt.core.effects import Effect, SendCall
from gymckpt.runtime import file_jobs
from gymckpt.runtime.scheduler import Scheduler
from gymckpt.runtime.worker import Recorder

_acting: contextvars.ContextVar[Edge | None] = contextvars.ContextVar("acting", default=None)


class Edge:
    """Where one controller touches the world, and the point at which it is severed."""

    def __init__(self, point: int = 0) -> None:
        """Be severed at the point of this number; 0 is never."""
        self.point = point
        self.reached = 0
        self.dead = False
        self.died = asyncio.Event()

    def reach(self) -> None:
        """Reach a point, after which nothing may happen any more."""
        self.reached += 1
        if self.reached == self.point:
            self.dead = True
            self.died.set()

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Let recorders that are made in the body, and in tasks that it begins, be this one's."""
        token = _acting.set(self)
        try:
            yield
        finally:
            _acting.reset(token)


def _edge_of(recorder: Recorder) -> Edge:
    edge: Edge = recorder.__dict__.setdefault("edge", _acting.get() or Edge())
    return edge


@contextmanager
def severable() -> Iterator[None]:
    """Make the edges of all controllers severable while the body runs."""
    opening, appending, running = Recorder.open, Recorder.append, Recorder.run
    performing, beating = Scheduler._perform, Recorder._beat
    effects_module: Any = file_jobs
    detaching = effects_module.run_detached

    async def open_(self: Recorder, operation: Any, entries: Any) -> None:
        await _living(self)
        await opening(self, operation, entries)
        await _reached(self)

    async def append(self: Recorder, entries: Any, **about: Any) -> None:
        await _living(self)
        await appending(self, entries, **about)
        await _reached(self)

    async def run(self: Recorder, job: Any) -> Any:
        await _living(self)
        return await running(self, job)

    def beat(self: Recorder) -> None:
        if not _edge_of(self).dead:
            beating(self)

    def perform(self: Scheduler, effect: Effect) -> None:
        edge = _edge_of(self._ledger._recorder)
        if edge.dead:
            return
        with edge.acting():
            performing(self, effect)
        if isinstance(effect, SendCall):
            edge.reach()

    def detach(job: Callable[[], Any], name: str, then: Any) -> None:
        edge = _acting.get()

        def reaching() -> Any:
            if edge is not None and edge.dead:
                return {}
            result = job()
            if edge is not None:
                edge.reach()
            return result

        detaching(reaching, name, then)

    Recorder.open, Recorder.append, Recorder.run = open_, append, run  # type: ignore[method-assign]
    Scheduler._perform = perform  # type: ignore[method-assign]
    Recorder._beat = beat  # type: ignore[method-assign]
    effects_module.run_detached = detach
    try:
        yield
    finally:
        Recorder.open, Recorder.append, Recorder.run = opening, appending, running  # type: ignore[method-assign]
        del Scheduler._perform
        Recorder._beat = beating  # type: ignore[method-assign]
        effects_module.run_detached = detaching


async def _living(recorder: Recorder) -> None:
    if _edge_of(recorder).dead:
        await asyncio.Event().wait()


async def _reached(recorder: Recorder) -> None:
    _edge_of(recorder).reach()
    await _living(recorder)
