"""
The instances of a scenario: shipped fakes that tell what reaches them and what they become.

A call that its controller no longer waits for goes on, as one does that is on a network: it
arrives late, and is then taken or refused. What the control plane takes is kept, so that a test can
say which edges of `statecharts/participant.toml` no scenario takes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from gymckpt.chart import Facts, load_chart
from gymckpt.errors import GymCheckpointUnavailable, ParticipantRefused
from gymckpt.participant.control import ControlPlane
from gymckpt.replies import GymCheckpointPrepareSummary
from gymckpt.testing.fakes import ActorDiedError, FakeInstance, Fault
from tests.core.steps import TAKEN
from tests.scenarios.telling import Telling

__all__ = ["StagedInstance", "fault_of", "seconds"]

PARTICIPANT_STATES = load_chart("participant").states

ERRORS: dict[str, Callable[[], BaseException]] = {
    "fails": lambda: ConnectionError("the answer was lost"),
    "fails for good": lambda: ValueError("the data is bad"),
    "dies": lambda: ActorDiedError("the actor is dead"),
}
"""What comes back instead of an answer: worth another try, not worth one, and the end."""


def seconds(text: str) -> float:
    """Return the seconds that a text such as `3s` stands for."""
    if not text.endswith("s"):
        raise ValueError(f"{text!r} is no duration: write it as 3s")
    return float(text[:-1])


def fault_of(text: str) -> Fault | None:
    """
    Return what a scenario says that happens to one call.

    Args:
        text: `ok`, or some of `late 3s`, `unheard`, `hangs`, `fails`, `fails for good`, `dies`,
            joined by commas.
    """
    given: dict[str, Any] = {}
    for word in (part.strip() for part in text.split(",")):
        if word == "ok":
            continue
        if word.startswith("late "):
            given["late_s"] = seconds(word.removeprefix("late "))
        elif word == "unheard":
            given["does"] = False
        elif word == "hangs":
            given["hangs"] = True
        elif word in ERRORS:
            given["error"] = ERRORS[word]()
            if word == "dies":
                given["does"] = False
        else:
            raise ValueError(f"{word!r} is no fault of a call")
    return Fault(**given) if given else None


class WatchedPlane(ControlPlane):
    """A control plane that tells each of its moves."""

    def __init__(self, instance: str, telling: Telling, *, grace_s: float) -> None:
        super().__init__("fake", grace_s=grace_s)
        self._instance, self._telling = instance, telling
        self.tells = False

    def _move(self, trigger: str, checkpoint_id: str, facts: Facts, **new: Any) -> None:
        source = self.state.phase
        try:
            super()._move(trigger, checkpoint_id, facts, **new)
        except ParticipantRefused as refused:
            if self.tells:
                head = f"{source} refuses {trigger} of {checkpoint_id}: {refused.code}"
                self._telling.say("instance", head, self._instance)
            raise
        if trigger not in PARTICIPANT_STATES[source].on:
            return
        dest = self.state.phase
        TAKEN.add(("participant", source, trigger, dest))
        if self.tells:
            head = f"{source} -> {dest} ({trigger} {checkpoint_id})"
            self._telling.say("instance", head, self._instance)


class _Told:
    """A method of a handle that tells of every call that leaves through it."""

    def __init__(
        self, send: Callable[..., Awaitable[Any]], tell: Callable[[float], None], kept: set[Any]
    ) -> None:
        self._send, self._tell, self._kept = send, tell, kept

    def remote(self, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        self._tell(kwargs["deadline_ts"])
        going = asyncio.ensure_future(self._send(*args, **kwargs))
        self._kept.add(going)
        going.add_done_callback(self._forget)
        return asyncio.shield(going)

    def _forget(self, gone: asyncio.Future[Any]) -> None:
        self._kept.discard(gone)
        if not gone.cancelled():
            gone.exception()  # of a call that nobody waits for any more


class StagedInstance(FakeInstance):
    """One instance of a scenario."""

    def __init__(
        self,
        name: str,
        telling: Telling,
        *,
        grace_s: float,
        now_ts: Callable[[], float],
        zero_ts: float,
    ) -> None:
        super().__init__(grace_s=grace_s, now_ts=now_ts)
        self.name, self._grace_s = name, grace_s
        self.plane = self._new_plane(telling, grace_s, tells=False)
        self.parks_s = 0.0
        """How long parking takes."""
        self.parking_fails = False
        self.not_ready = False
        self.tells_calls = True
        self._telling, self._zero_ts = telling, zero_ts
        self._going: set[Any] = set()
        """The calls that are on their way, whoever waits for them."""

    def _new_plane(self, telling: Telling, grace_s: float, *, tells: bool) -> WatchedPlane:
        plane = WatchedPlane(self.name, telling, grace_s=grace_s)
        plane.tells = tells
        self.control = plane
        return plane

    def restart(self) -> None:
        """Come back as an actor that remembers nothing."""
        self.plane = self._new_plane(self._telling, self._grace_s, tells=self.plane.tells)
        self.installed.clear()

    def __getattr__(self, name: str) -> Any:
        sent = super().__getattr__(name)
        call = name.removeprefix("checkpoint_")

        def tell(deadline_ts: float) -> None:
            if self.tells_calls:
                self._telling.call(call, round(deadline_ts - self._zero_ts, 1), self.name)

        return _Told(sent.remote, tell, self._going)

    async def _follow(self, call: Any, does: Callable[[], Any]) -> Any:
        answer = await super()._follow(call, does)
        return await answer if inspect.isawaitable(answer) else answer

    def _do_prepare(self, checkpoint_id: str, *, deadline_ts: float) -> Any:
        if not (self.parks_s or self.parking_fails or self.not_ready):
            return super()._do_prepare(checkpoint_id, deadline_ts=deadline_ts)
        now_ts = self._now_ts()
        recorded = self.control.prepare(checkpoint_id, deadline_ts=deadline_ts, now_ts=now_ts)
        return self._parked(checkpoint_id) if recorded is None else recorded

    async def _parked(self, checkpoint_id: str) -> GymCheckpointPrepareSummary:
        """Take time to park, and then park or not."""
        await asyncio.sleep(self.parks_s)
        try:
            if self.parking_fails:
                self.control.prepare_failed(checkpoint_id)
                raise RuntimeError("parking failed")
            if self.not_ready:
                return GymCheckpointPrepareSummary(False, {"agent": ("r0",)})
            self.control.ready(checkpoint_id)
        except ParticipantRefused as refused:
            raise GymCheckpointUnavailable(str(refused), code=refused.code) from refused
        answer = GymCheckpointPrepareSummary(True, {}, self.restarts)
        self.control.record("prepare", checkpoint_id, answer)
        return answer
