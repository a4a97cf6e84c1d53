"""
Controllers as a test drives them: each in a process of its own, its body told what to do next.

A body is the inside of `async with coordinator.prepared(...)` or `restored(...)`, as in a trainer.
It waits for deeds, does one at a time, and ends when a deed says so or raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

from gymckpt.coordinator import GymCheckpointCoordinator
from gymckpt.testing.processes import Process

__all__ = ["Body", "Controller", "Deed", "Deliberate"]


class Deliberate(Exception):
    """What a body raises on purpose."""


Deed = Callable[[], Awaitable[bool]]
"""What a body does next; returns whether the body ends with it."""


class Body:
    """
    One open checkpoint or restore, and the code inside of it.

    Attributes:
        kind: Which of the two.
        wire_id: Its id.
        given: What the context manager yielded.
        raised: What the body has raised on purpose.
        cancelled: Whether its task was cancelled from outside.
        task: What runs it.
    """

    def __init__(
        self,
        process: Process,
        kind: Literal["checkpoint", "restore"],
        wire_id: str,
        manager: AbstractAsyncContextManager[Any],
    ) -> None:
        """
        Begin to enter it.

        Args:
            process: The controller's.
            kind: Which of the two.
            wire_id: Its id.
            manager: What the coordinator gave.
        """
        self.kind = kind
        self.wire_id = wire_id
        self.given: Any = None
        self.raised: Deliberate | None = None
        self.cancelled = False
        self._manager = manager
        self._deeds: asyncio.Queue[Deed] = asyncio.Queue()
        self._idle = False
        self._changed = asyncio.Event()
        self.task = process.start(self._live())

    @property
    def is_idle(self) -> bool:
        """Whether it waits inside for what to do next."""
        return self._idle and not self.task.done() and not self.task.cancelling()

    @property
    def due(self) -> int:
        """How many deeds are still to come."""
        return self._deeds.qsize()

    def do(self, deed: Deed) -> None:
        """Let it do something, after what it was told before; also before it is inside."""
        self._idle = False
        self._changed.clear()
        self._deeds.put_nowait(deed)

    def fail(self) -> None:
        """Let it raise."""

        async def deed() -> bool:
            self.raised = Deliberate(self.wire_id)
            raise self.raised

        self.do(deed)

    def cancel(self) -> None:
        """Cancel whoever runs it."""
        self.cancelled = True
        self.task.cancel()

    def end(self) -> None:
        """Let it end well."""

        async def deed() -> bool:
            return True

        self.do(deed)

    async def settled(self) -> None:
        """Wait until it is idle or over."""
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({changed, self.task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    async def _live(self) -> None:
        async with self._manager as self.given:
            while True:
                if self._deeds.empty():
                    self._idle = True
                    self._changed.set()
                deed = await self._deeds.get()
                if await deed():
                    return


class Controller:
    """
    One incarnation of the controller.

    Attributes:
        number: Which one, from 0.
        process: Where it lives.
        coordinator: What it drives the instances with.
        body: Its open checkpoint or restore, until what came of it was looked at.
        verb: The sweep or recovery that it is busy with, likewise.
    """

    def __init__(
        self, number: int, process: Process, coordinator: GymCheckpointCoordinator
    ) -> None:
        """Begin with nothing open."""
        self.number = number
        self.process = process
        self.coordinator = coordinator
        self.body: Body | None = None
        self.verb: asyncio.Task[Any] | None = None

    @property
    def is_free(self) -> bool:
        """Whether it has nothing open and is busy with nothing."""
        return self.body is None and self.verb is None

    @property
    def is_busy(self) -> bool:
        """Whether a verb of it is under way."""
        entering = self.body is not None and not self.body.is_idle
        return entering or self.verb is not None

    def start(self, verb: Coroutine[Any, Any, Any]) -> None:
        """Let it be busy with a verb outside of any body."""
        self.verb = self.process.start(verb)

    async def settled(self) -> None:
        """Wait until no verb of it is under way."""
        if self.body is not None:
            await self.body.settled()
        if self.verb is not None:
            await asyncio.wait({self.verb})
