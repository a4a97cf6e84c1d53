"""
A scripted deployment behind a handle, for tests beside those with real Ray actors.

It has the methods that a coordinator calls, each with a `.remote` that gives an awaitable, and logs
every call and what became of it. Per call it answers, answers late, hangs, raises, applies the
effect and never answers, or applies it long after its caller has gone. It keeps what a real
deployment keeps of the protocol: the fence of resumed ids, the phase, which attempts run and which
are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Literal

import attrs

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.replies import GymCheckpointCommitSummary, GymCheckpointPrepareSummary

HANG = "hang"
"""A script entry: the call is logged and never answered."""

Script = Any
"""An exception to raise, `HANG`, one of the classes below, a callable, or a reply."""

_ticks = itertools.count(1)
"""One order over the calls and answers of all actors."""


class RayActorError(Exception):
    """Stands for Ray's class of that name, which is recognised by its name."""


class ActorDiedError(RayActorError):
    """Stands for Ray's class of that name."""


@attrs.define
class Call:
    """One call that reached an instance, and what became of it."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    at_s: float
    """By the clock of the event loop."""
    tick: int
    outcome: Literal["pending", "answered", "raised", "cancelled"] = "pending"
    reply: Any = None
    ended_tick: int = 0
    reference: Any = None
    """What the caller was given to await."""

    @property
    def wire_id(self) -> str:
        """The operation id that the call carried."""
        return str(self.args[0]) if self.args else ""

    def end(self, outcome: Any, reply: Any = None) -> None:
        """Note what became of it."""
        self.outcome, self.reply, self.ended_tick = outcome, reply, next(_ticks)


class _Method:
    def __init__(self, actor: FakeActor, op: str) -> None:
        self._actor = actor
        self._op = op

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        call = Call(self._op, args, kwargs, loop.time(), next(_ticks))
        self._actor.calls.append(call)
        self._actor.on_call(call)
        script = self._actor.next_script(self._op)
        if isinstance(script, Immediate):
            call.end("raised")
            raise script.error
        running = self._actor.run(call, script)
        call.reference = loop.create_task(running) if self._actor.gives_futures else running
        return call.reference


@attrs.frozen
class Immediate:
    """A script entry: `.remote` itself raises."""

    error: BaseException


@attrs.frozen
class Late:
    """A script entry: wait, then do as `then` says, or answer."""

    delay_s: float
    then: Script = None


@attrs.frozen
class Apply:
    """A script entry: apply the effect, then do as `then` says instead of answering."""

    then: Script = HANG


@attrs.frozen
class Ghost:
    """A script entry: never answer, but apply the effect later, whoever waits or not."""

    delay_s: float


@attrs.frozen
class Stubborn:
    """A script entry: go on for a while whatever cancellations come, then do as `then` says."""

    delay_s: float
    then: Script = None


class FakeActor:
    """One scripted instance."""

    def __init__(self, *, fenced: bool = False, gives_futures: bool = False) -> None:
        """
        Make an instance that answers everything at once.

        Args:
            fenced: Whether it refuses what a real deployment refuses.
            gives_futures: Whether `.remote` gives futures, else coroutines.
        """
        self.calls: list[Call] = []
        self.scripts: dict[str, list[Script]] = defaultdict(list)
        """Call to what to do at its next times."""
        self.always: dict[str, Script] = {}
        """Call to what to do whenever no script is left."""
        self.fenced = fenced
        self.gives_futures = gives_futures
        self.resumed: set[str] = set()
        self.holder: str | None = None
        """The id that keeps it closed."""
        self.closings: list[str | None] = []
        """Every value that `holder` took."""
        self.refusals: list[tuple[str, str]] = []
        """Which calls of which ids it refused, and why."""
        self.restored: dict[str, set[EnvironmentEpisode]] = {}
        """Operation id to the attempts that it installed and that were not retired since."""
        self.running: set[EnvironmentEpisode] = set()
        """Restored attempts that go on since a resume."""
        self.retired: set[EnvironmentEpisode] = set()
        self.restarts: tuple[EnvironmentEpisode, ...] = ()
        self.export: Callable[[Iterable[EnvironmentEpisode]], Any] = default_commit
        self.on_call: Callable[[Call], None] = lambda _call: None
        """Told of every call as it leaves the coordinator."""
        self.wall: Callable[[], float] | None = None
        """Its own clock, where it checks deadlines."""

    def __getattr__(self, name: str) -> _Method:
        if not name.startswith("checkpoint_"):
            raise AttributeError(name)
        return _Method(self, name.removeprefix("checkpoint_"))

    @property
    def ops(self) -> list[str]:
        """The names of the calls, without renewals: they come when they come."""
        return [call.op for call in self.calls if call.op != "renew"]

    def of(self, op: str) -> list[Call]:
        """Return the calls of one kind."""
        return [call for call in self.calls if call.op == op]

    def fail_from(self, op: str | None, error: Script) -> None:
        """From now on do `error` on every call of a kind, or on every call."""
        for name in ALL_OPS if op is None else (op,):
            self.always[name] = error

    def next_script(self, op: str) -> Script:
        queued = self.scripts[op]
        return queued.pop(0) if queued else self.always.get(op)

    async def run(self, call: Call, script: Script) -> Any:
        """Do what a script says; the call knows afterwards what became of it."""
        try:
            reply = await self._run(call, script)
        except asyncio.CancelledError:
            call.end("cancelled")
            raise
        except BaseException:
            call.end("raised")
            raise
        call.end("answered", reply)
        return reply

    async def _run(self, call: Call, script: Script) -> Any:
        while True:
            if isinstance(script, Late):
                await asyncio.sleep(script.delay_s)
                script = script.then
            elif isinstance(script, Stubborn):
                await _unmoved(script.delay_s)
                script = script.then
            elif isinstance(script, Apply):
                self.apply(call)
                script = script.then
            elif isinstance(script, Ghost):
                asyncio.get_running_loop().call_later(script.delay_s, self._haunt, call)
                script = HANG
            elif isinstance(script, str) and script == HANG:
                await asyncio.Event().wait()
            elif isinstance(script, BaseException):
                raise script
            elif callable(script):
                script = script(*call.args, **call.kwargs)
            elif script is not None:
                return script
            else:
                return self.apply(call)

    def _haunt(self, call: Call) -> None:
        with contextlib.suppress(GymCheckpointUnavailable):  # it is among the refusals
            self.apply(call)

    # --- the deployment behind it ---------------------------------------------------------------

    def apply(self, call: Call) -> Any:
        """Do what a deployment does and return its answer."""
        op, wire_id = call.op, call.wire_id
        if self.fenced:
            self._require_allowed(call)
        if op == "resume":
            self._reopen(wire_id)
        elif op == "prepare":
            self._close(wire_id)
            return GymCheckpointPrepareSummary(True, {}, self.restarts)
        elif op == "commit":
            return self.export(call.args[2])
        elif op == "restore":
            installed = {episode.next_attempt() for episode in call.args[2]}
            if self.fenced and installed & self.retired:
                raise GymCheckpointUnavailable("HTTP 409 stale_attempt", code="stale_attempt")
            self._close(wire_id)
            self.restored[wire_id] = installed - self.retired
        elif op == "retire":
            self._retire(call.args[1])
        elif op == "forget":
            self.retired = {one for one in self.retired if one.rollout_id not in call.args[1]}
        elif op == "restart_only_servers":
            return ["tools"]
        return None

    def restart_empty(self) -> None:
        """Come back under the same handle with nothing of what was before."""
        self.holder = None
        self.resumed.clear()
        self.restored.clear()
        self.running.clear()
        self.retired.clear()

    def _close(self, wire_id: str) -> None:
        self.holder = wire_id
        self.closings.append(wire_id)

    def _reopen(self, wire_id: str) -> None:
        self.resumed.add(wire_id)
        self.running |= self.restored.pop(wire_id, set())
        if self.holder == wire_id:
            self.holder = None
            self.closings.append(None)

    def _retire(self, episodes: Iterable[EnvironmentEpisode]) -> None:
        stopped = {
            EnvironmentEpisode(episode.rollout_id, attempt)
            for episode in episodes
            for attempt in range(episode.attempt + 1)
        }
        self.retired |= stopped
        self.running -= stopped
        for installed in self.restored.values():
            installed.difference_update(stopped)

    def _require_allowed(self, call: Call) -> None:
        refusal = self._refusal(call.op, call.wire_id, call.kwargs)
        if refusal:
            self.refusals.append((call.op, refusal))
            raise GymCheckpointUnavailable(f"HTTP 409 {refusal}", code=refusal.split()[0])

    def _refusal(self, op: str, wire_id: str, kwargs: dict[str, Any]) -> str:
        if op in ("resume", "restart_only_servers"):
            return ""
        if wire_id in self.resumed:
            return f"stale_checkpoint {wire_id}"
        late = self.wall is not None and kwargs.get("deadline_ts", 0.0) <= self.wall()
        if late and op in ("commit", "restore", "retire", "forget"):
            return f"deadline_exceeded {op}"
        if op in ("prepare", "restore") and self.holder not in (None, wire_id):
            return f"checkpoint_conflict {self.holder}"
        if op in ("renew", "commit") and self.holder != wire_id:
            return f"invalid_phase {op}"
        if op in ("retire", "forget") and not self._may_retire(wire_id):
            return f"invalid_phase {op}"
        return ""

    def _may_retire(self, wire_id: str) -> bool:
        """Outside of every operation, or of the restore itself."""
        return self.holder is None or (self.holder == wire_id and wire_id in self.restored)


async def _unmoved(delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + delay_s
    while loop.time() < ends_s:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(ends_s - loop.time())


ALL_OPS = (
    "prepare",
    "renew",
    "commit",
    "retire",
    "forget",
    "restore",
    "resume",
    "restart_only_servers",
)
"""Every call that a coordinator can make."""


def default_commit(episodes: Iterable[EnvironmentEpisode]) -> GymCheckpointCommitSummary:
    """Export everything that was offered, with one row each."""
    exported = tuple(episodes)
    rows = {episode: (f"{episode.capture_key}/c0",) for episode in exported}
    keys = tuple(sorted(key for row in rows.values() for key in row))
    return GymCheckpointCommitSummary(exported, keys, ("agent", "environment"), rows)


class FakeShardSet:
    """Actors under the instance ids of one or more shards."""

    def __init__(self, *actors: FakeActor, shard: str = "tools") -> None:
        self.actors = actors
        self.checkpoint_handles = {
            f"{shard}/replica-{index}": actor for index, actor in enumerate(actors)
        }
