"""
Whoever calls the coordinator's verbs in a scenario: a task that does as it is told.

It enters the context of a checkpoint or a restore, or makes a sweep, and tells what the verbs
return and raise. Its body waits for orders: to commit, to end, to fail.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.scenarios.stage import Controller, Stage

__all__ = ["Caller"]


class Caller:
    """One caller of one operation."""

    def __init__(self, stage: Stage, controller: Controller, kind: str, name: str) -> None:
        """
        Begin the operation.

        Args:
            stage: Where.
            controller: Whose coordinator is called.
            kind: `checkpoint`, `restore`, `retire`, `unwanted`, `forget` or `resume`.
            name: The operation's id.
        """
        self.name = name
        self._stage, self._controller = stage, controller
        self._telling, self._coordinator = stage.telling, controller.coordinator
        self._orders: asyncio.Queue[str] = asyncio.Queue()
        does = {"checkpoint": self._checkpoint, "restore": self._restore}
        doing = does[kind]() if kind in does else self._sweep(kind)
        self.task = stage.loop.create_task(self._live(doing))

    def order(self, order: str) -> None:
        """Tell the body what to do, or cancel whatever the caller does."""
        if order == "cancel":
            self.task.cancel()
        else:
            self._orders.put_nowait(order)

    async def _live(self, doing: object) -> None:
        try:
            await doing  # type: ignore[misc]
        except BaseException as error:
            if self._controller.alive:
                self._telling.error("caller", error, f"{self.name} raised ")
            if not isinstance(error, Exception | asyncio.CancelledError) and self._controller.alive:
                raise
        else:
            self._say("returned")

    def _say(self, what: str) -> None:
        if self._controller.alive:
            self._telling.say("caller", f"{self.name} {what}")

    async def _checkpoint(self) -> None:
        async with self._coordinator.prepared(self.name) as restarts:
            left_out = sorted(one.rollout_id for found in restarts.values() for one in found)
            self._say("is parked" + (f", starts over: {' '.join(left_out)}" if left_out else ""))
            await self._body()

    async def _restore(self) -> None:
        stage = self._stage
        root, manifest = stage.base / "source", stage.manifest(self.name)
        async with self._coordinator.restored(self.name, root, manifest):
            self._say("is restored")
            await self._body()

    async def _sweep(self, call: str) -> None:
        if call == "resume":
            await self._coordinator.resume(self.name)
        elif call == "unwanted":
            attempts = self._stage.manifest(self.name).next_attempts()
            left = await self._coordinator.retire_unwanted(attempts)
            self._say(f"is told that {', '.join(left) or 'nothing'} is unconfirmed")
        elif call == "retire":
            await self._coordinator.retire(self.name, self._stage.offered())
        else:
            await self._coordinator.forget(self.name, self._stage.offered())

    async def _body(self) -> None:
        while (order := await self._orders.get()) != "end":
            if order == "raise":
                raise ValueError("the body failed")
            if not order.startswith("try "):
                await self._verb(order)
                continue
            try:
                await self._verb(order.removeprefix("try "))
            except Exception as error:
                self._telling.error("caller", error, f"{self.name} was told ")

    async def _verb(self, verb: str) -> None:
        if verb == "commit":
            root, offered = self._stage.base / self.name, self._stage.offered()
            await self._coordinator.commit(self.name, root, offered, restarts={})
        elif verb == "renew":
            await self._coordinator.renew(self.name)
        elif verb == "retire":
            await self._coordinator.retire_restored(self.name, self._stage.manifest(self.name))
        else:
            raise LookupError(f"a body has no verb {verb!r}")
        self._say(f"{verb} returned")
