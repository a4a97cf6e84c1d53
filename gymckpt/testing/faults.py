"""
What happens to the calls of one instance: a script of faults, for fakes and for real instances.

A fault is of one call: it is late, it is lost before or after the instance acted, an error comes
back in place of the answer, or nothing ever does.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NoReturn

import attrs

from gymckpt.core.settings import CALLS

__all__ = [
    "FAULTS",
    "ActorDiedError",
    "FakeCall",
    "Fault",
    "FaultScript",
    "FaultyHandle",
    "UnpicklableError",
    "require_call",
]

_SCRIPTED = CALLS | {"restart_only_servers"}


class ActorDiedError(Exception):
    """Stands for Ray's error of that name, by which a controller knows that an actor is dead."""


class UnpicklableError(ConnectionError):
    """An error that cannot leave its process, since it holds a lock."""

    def __init__(self, text: str = "it holds a lock") -> None:
        super().__init__(text)
        self.held = threading.Lock()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lock cannot be pickled")


@attrs.frozen(kw_only=True)
class Fault:
    """
    What happens to one call.

    A fault that has neither `error` nor `hangs` only makes the call late.
    """

    late_s: float = 0.0
    """How long the call is on its way, by the clock of the event loop."""
    does: bool = True
    """Whether the instance does what it is asked, whatever becomes of the answer."""
    error: BaseException | None = None
    """What is raised instead of the answer."""
    hangs: bool = False
    """Whether nothing is ever answered."""


NO_FAULT = Fault()


@attrs.define
class FakeCall:
    """One call that reached an instance."""

    name: str
    operation_id: str
    outcome: Literal["pending", "answered", "raised", "cancelled"] = "pending"


class _Method:
    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    def remote(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Send the call."""
        return self._call(*args, **kwargs)


def require_call(call: str) -> None:
    """
    Pass if a script can be for this call.

    Raises:
        ValueError: It is none.
    """
    if call not in _SCRIPTED:
        raise ValueError(
            f"{call!r:.100} is no call that a script can be for; it is without 'checkpoint_' "
            f"one of {', '.join(sorted(_SCRIPTED))}"
        )


class FaultScript:
    """
    What happens to the calls of one instance, whatever the instance is.

    Attributes:
        calls: Every call that was sent to it, in order.
    """

    def __init__(self) -> None:
        """Let every call go well."""
        self.calls: list[FakeCall] = []
        self._scripts: defaultdict[str, list[Fault | None]] = defaultdict(list)
        self._always: dict[str, Fault] = {}
        self._dead = False
        self._calls_left: int | None = None

    def script(self, call: str, *faults: Fault | None) -> None:
        """
        Say what happens at the next times of a call.

        Args:
            call: Its name without `checkpoint_`.
            faults: One a call; None for a call that goes well.

        Raises:
            ValueError: There is no such call, so nothing would ever happen.
        """
        require_call(call)
        self._scripts[call] += faults

    def always(self, call: str, fault: Fault) -> None:
        """
        Say what happens at a call whenever nothing else is scripted.

        Raises:
            ValueError: There is no such call, so nothing would ever happen.
        """
        require_call(call)
        self._always[call] = fault

    def heal(self) -> None:
        """Forget every fault that was to come; who is dead stays dead."""
        self._scripts.clear()
        self._always.clear()

    @property
    def due(self) -> int:
        """How many faults of its script are still to come."""
        return sum(fault is not None for queued in self._scripts.values() for fault in queued)

    def die(self, *, after_calls: int = 0) -> None:
        """
        Answer every call from some moment on like an actor that is dead.

        Args:
            after_calls: How many more calls are answered before.
        """
        self._dead = after_calls == 0
        self._calls_left = after_calls

    @property
    def is_dead(self) -> bool:
        """Whether it has died."""
        return self._dead

    def method(self, name: str, does: Callable[..., Awaitable[Any]]) -> Any:
        """
        Return what a controller calls, `.remote` and all.

        Args:
            name: The call, with or without `checkpoint_`.
            does: What the instance does, given the arguments of the call.
        """

        def send(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            call = FakeCall(name.removeprefix("checkpoint_"), str(args[0]) if args else "")
            self.calls.append(call)
            if self._calls_left is not None:
                self._dead = self._dead or self._calls_left == 0
                self._calls_left -= 1
            return self._run(call, lambda: does(*args, **kwargs))

        return _Method(send)

    async def _run(self, call: FakeCall, does: Callable[[], Awaitable[Any]]) -> Any:
        try:
            answer = await self._follow(call, does)
        except asyncio.CancelledError:
            call.outcome = "cancelled"
            raise
        except BaseException:
            call.outcome = "raised"
            raise
        call.outcome = "answered"
        return answer

    async def _follow(self, call: FakeCall, does: Callable[[], Awaitable[Any]]) -> Any:
        queued = self._scripts[call.name]
        fault = (queued.pop(0) if queued else self._always.get(call.name)) or NO_FAULT
        if fault.late_s:
            await asyncio.sleep(fault.late_s)
        if self._dead:
            raise ActorDiedError("the instance is dead")
        answer = await does() if fault.does else None
        if fault.hangs:
            await asyncio.Event().wait()
        if fault.error is not None:
            raise fault.error
        return answer


class FaultyHandle(FaultScript):
    """A handle on any instance, with a script of faults between the controller and it."""

    def __init__(self, handle: Any) -> None:
        """
        Stand before a handle.

        Args:
            handle: Anything whose `checkpoint_*` methods have a `.remote`.
        """
        super().__init__()
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("checkpoint_"):
            raise AttributeError(name)

        async def does(*args: Any, **kwargs: Any) -> Any:
            return await getattr(self._handle, name).remote(*args, **kwargs)

        return self.method(name, does)


FAULTS: Mapping[str, Callable[[], Fault]] = {
    "the request is lost": lambda: Fault(does=False, hangs=True),
    "the reply is lost": lambda: Fault(hangs=True),
    "it is late": lambda: Fault(late_s=2.0),
    "it comes when nobody waits any more": lambda: Fault(late_s=25.0),
    "an error comes back, nothing was done": lambda: Fault(does=False, error=ConnectionError("no")),
    "an error comes back, though it was done": lambda: Fault(error=ConnectionError("lost")),
    "it breaks": lambda: Fault(does=False, error=ValueError("broken")),
    "an error that cannot be pickled": lambda: Fault(does=False, error=UnpicklableError()),
}
"""What may happen to a call, in words; each makes a new fault."""
