"""
The network between controllers and instances: what becomes of each message.

A handle is what a coordinator gets; each of its calls is a message that travels to the instance,
is served there, and whose answer travels back. On the way a message may be late, lost, doubled or
overtaken; a partition cuts an instance or a controller off. The death of an actor is told to
whoever waits for it, as Ray does, whatever the network does.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs

from gymckpt.testing.fakes import ActorDiedError
from gymckpt.testing.simulation.hosts import SimulatedInstance
from gymckpt.testing.simulation.loop import Killed, Process
from gymckpt.testing.simulation.timeline import Timeline

__all__ = ["ActorUnavailableError", "Message", "Network", "Unpicklable", "Witness"]

LATENCY_S = 0.001
"""How long a message is on its way when nothing is wrong."""

DEATH_S = 0.05
"""How long it takes until a death is known to those who wait for the actor."""


class ActorUnavailableError(Exception):
    """Stands for Ray's error of that name: the actor has restarted and is empty now."""


class Unpicklable(Exception):
    """An error that no other process can make again, and that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("this error has no text")

    def __reduce__(self) -> Any:
        raise TypeError("this error cannot be pickled")


@attrs.define(eq=False)
class Message:
    """One call on its way, with whoever waits for its answer."""

    number: int
    sender: Process
    instance: SimulatedInstance
    call: str
    wire_id: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    answer: asyncio.Future[Any]
    life: int
    """Which life of the instance it was sent to: no later one receives it."""

    def __str__(self) -> str:
        return f"#{self.number} {self.call} {self.wire_id} {self.instance.instance_id}"


class Witness(Protocol):
    """Whoever watches what leaves and what comes back."""

    def sends(self, message: Message) -> None:
        """Take note of a call that leaves."""
        ...

    def comes_back(self, message: Message, result: Any, error: BaseException | None) -> None:
        """Take note of an answer that reaches its controller."""
        ...

    def served(self, message: Message, error: BaseException | None) -> None:
        """Take note that an instance has done what it was asked, or refused."""
        ...

    def point(self, what: str) -> None:
        """Pass a point at which a fault may happen; raises `Killed` where it kills this process."""
        ...


class Network:
    """
    Carries messages.

    Attributes:
        faults: Kind of fault of messages to its probability.
        fired: Told of every fault of a message that happens.
        cut_off: The instances and controllers that nothing reaches.
        on_the_way: How many requests have not arrived yet and may still do so.
    """

    def __init__(
        self,
        *,
        rng: random.Random,
        timeline: Timeline,
        witness: Witness,
        fired: Callable[[str], None],
    ) -> None:
        """
        Begin without messages.

        Args:
            rng: Draws what becomes of messages.
            timeline: Where they are noted.
            witness: Told of them.
            fired: Told of every fault that happens to one.
        """
        self.faults: dict[str, float] = {}
        self.fired = fired
        self.cut_off: set[str] = set()
        self.closed = False
        self.on_the_way = 0
        self._rng = rng
        self._timeline = timeline
        self._witness = witness
        self._context = contextvars.Context()
        self._sent = 0
        self._underway: dict[Message, None] = {}

    def handle(self, sender: Process, instance: SimulatedInstance) -> Handle:
        """Return what one controller holds of one instance."""
        return Handle(self, sender, instance)

    # --- there ------------------------------------------------------------------------------

    def send(
        self, sender: Process, instance: SimulatedInstance, method: str, args: Any, kwargs: Any
    ) -> asyncio.Future[Any]:
        """Send one call; the future has its answer, if any comes."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if sender.dead or self.closed:
            return answer  # what a dead process does has no effect
        self._witness.point("send.before")
        self._sent += 1
        call = method.removeprefix("checkpoint_")
        wire_id = str(args[0]) if args else ""
        message = Message(
            self._sent, sender, instance, call, wire_id, args, kwargs, answer, instance.life
        )
        self._timeline.note(sender.name, lambda: f"sends {message}")
        self._witness.sends(message)
        self._underway[message] = None
        fates = self._fates("request")
        if not fates:
            self._timeline.note("network", lambda: f"loses the request {message}")
        self.on_the_way += len(fates)
        for delay_s in fates:
            self._after(delay_s, self._arrive, message)
        self._witness.point("send.after")
        return answer

    def _after(self, delay_s: float, callback: Callable[..., None], *args: Any) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(delay_s, callback, *args, context=self._context)

    def _fates(self, part: str) -> list[float]:
        """Draw how long each copy of a message is on its way; none is a lost one."""
        if not self.faults:
            return [LATENCY_S]
        if self._hits(f"lose-{part}"):
            return []
        delays_s = [LATENCY_S]
        if self._hits("duplicate"):
            delays_s.append(LATENCY_S + self._rng.uniform(0.0, 20.0))
        if self._hits("reorder"):
            delays_s = [delay_s + self._rng.uniform(0.0, 1.0) for delay_s in delays_s]
        if self._hits("delay"):
            delays_s[0] += 10 ** self._rng.uniform(-1.0, 1.5)
        return delays_s

    def _hits(self, kind: str) -> bool:
        probability = self.faults.get(kind)
        if probability is None or self._rng.random() >= probability:
            return False
        self.fired(kind)
        return True

    def _reaches(self, message: Message) -> bool:
        return self.cut_off.isdisjoint((message.sender.name, message.instance.instance_id))

    def _arrive(self, message: Message) -> None:
        instance = message.instance
        self.on_the_way -= 1
        if not self._reaches(message):
            self._timeline.note("network", lambda: f"cuts off the request {message}")
            return
        if instance.dead:
            self._after(LATENCY_S, self._tell, message, None, ActorDiedError("the actor is dead"))
            return
        if instance.life != message.life:
            self._timeline.note("network", lambda: f"drops {message}: its actor is no more")
            return
        self._timeline.note(instance.process.name, lambda: f"receives {message}")
        instance.process.start(self._serve(message))

    async def _serve(self, message: Message) -> None:
        instance, life = message.instance, message.instance.life
        result, error = None, None
        try:
            method = getattr(instance.deployment, f"checkpoint_{message.call}")
            result = await method(*message.args, **message.kwargs)
        except Killed:
            raise
        except BaseException as raised:
            error = raised
        if instance.life != life or instance.dead:
            return
        self._witness.served(message, error)
        if self._hits("garble"):
            result, error = None, Unpicklable()
        what = "answers" if error is None else f"raises {type(error).__name__} to"
        self._timeline.note(instance.process.name, lambda: f"{what} {message}")
        delays_s = self._fates("reply")
        if not delays_s:
            self._timeline.note("network", lambda: f"loses the reply to {message}")
        for delay_s in delays_s:
            self._after(delay_s, self._return, message, result, error)

    # --- and back ---------------------------------------------------------------------------

    def _return(self, message: Message, result: Any, error: BaseException | None) -> None:
        if not self._reaches(message):
            self._timeline.note("network", lambda: f"cuts off the reply to {message}")
            return
        self._tell(message, result, error)

    def _tell(self, message: Message, result: Any, error: BaseException | None) -> None:
        self._underway.pop(message, None)
        if message.sender.dead or self.closed:
            return
        self._witness.comes_back(message, result, error)
        if message.answer.done():
            return
        self._timeline.note(
            message.sender.name,
            lambda: f"gets {'an answer' if error is None else type(error).__name__} to {message}",
        )
        if error is None:
            message.answer.set_result(result)
        else:
            message.answer.set_exception(error)
            message.answer.exception()

    # --- deaths -----------------------------------------------------------------------------

    def died(self, instance: SimulatedInstance) -> None:
        """Tell all who wait for an instance that the life that has just ended is over."""
        lost: Callable[[], BaseException] = (
            (lambda: ActorDiedError("the actor has died"))
            if instance.dead
            else (lambda: ActorUnavailableError("the actor has restarted"))
        )
        for message in list(self._underway):
            if message.instance is instance and (instance.dead or message.life < instance.life):
                self._after(DEATH_S, self._tell, message, None, lost())


@attrs.frozen
class _Method:
    handle: Handle
    name: str

    def remote(self, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Send the call."""
        handle = self.handle
        return handle.network.send(handle.sender, handle.instance, self.name, args, kwargs)


class Handle:
    """What a controller holds of an instance."""

    def __init__(self, network: Network, sender: Process, instance: SimulatedInstance) -> None:
        self.network = network
        self.sender = sender
        self.instance = instance

    def __getattr__(self, name: str) -> _Method:
        if not name.startswith("checkpoint_"):
            raise AttributeError(name)
        method = _Method(self, name)
        setattr(self, name, method)
        return method
