"""
A scripted deployment behind a handle, for tests beside those with real Ray actors.

It has the methods that a coordinator calls, each with a `.remote` that gives an awaitable, and logs
every call. Per call it answers, answers late, hangs, raises, or applies the effect and never
answers. It keeps what a real deployment keeps of the protocol: the fence of resumed ids and the
phase.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.replies import GymCheckpointCommitSummary, GymCheckpointPrepareSummary

HANG = "hang"
"""A script entry: the call is logged and never answered."""

Script = Any
"""An exception to raise, `HANG`, a float delay in seconds, a callable, or a reply."""


@attrs.frozen
class Call:
    """One call that reached an instance."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    at_s: float


class _Method:
    def __init__(self, actor: FakeActor, op: str) -> None:
        self._actor = actor
        self._op = op

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        self._actor.calls.append(Call(self._op, args, kwargs, time.monotonic()))
        script = self._actor.next_script(self._op)
        if isinstance(script, Immediate):
            raise script.error
        return self._actor.run(self._op, script, args, kwargs)


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


class FakeActor:
    """One scripted instance."""

    def __init__(self, *, fenced: bool = False) -> None:
        self.calls: list[Call] = []
        self.scripts: dict[str, list[Script]] = defaultdict(list)
        self.always: dict[str, Script] = {}
        self.fenced = fenced
        self.resumed: set[str] = set()
        self.holder: str | None = None
        self.restarts: tuple[EnvironmentEpisode, ...] = ()
        self.export: Callable[[Iterable[EnvironmentEpisode]], Any] = default_commit

    def __getattr__(self, name: str) -> _Method:
        if not name.startswith("checkpoint_"):
            raise AttributeError(name)
        return _Method(self, name.removeprefix("checkpoint_"))

    @property
    def ops(self) -> list[str]:
        """The names of the calls, without renewals: they come when they come."""
        return [call.op for call in self.calls if call.op != "renew"]

    def next_script(self, op: str) -> Script:
        queued = self.scripts[op]
        return queued.pop(0) if queued else self.always.get(op)

    async def run(self, op: str, script: Script, args: Any, kwargs: Any) -> Any:
        while True:
            if isinstance(script, Late):
                await asyncio.sleep(script.delay_s)
                script = script.then
            elif isinstance(script, Apply):
                self.apply(op, args)
                script = script.then
            elif isinstance(script, str) and script == HANG:
                await asyncio.Event().wait()
            elif isinstance(script, BaseException):
                raise script
            elif callable(script):
                script = script(*args, **kwargs)
            elif script is not None:
                return script
            else:
                return self.apply(op, args)

    def apply(self, op: str, args: Any) -> Any:
        """Do what a deployment does and return its answer."""
        wire_id = args[0] if args else ""
        if op == "resume":
            self.resumed.add(wire_id)
            if self.holder == wire_id:
                self.holder = None
            return None
        if self.fenced:
            self.require_allowed(op, wire_id)
        if op == "prepare":
            self.holder = wire_id
            return GymCheckpointPrepareSummary(True, {}, self.restarts)
        if op == "commit":
            return self.export(args[2])
        if op == "restore":
            self.holder = wire_id
        if op == "restart_only_servers":
            return ["tools"]
        return None

    def require_allowed(self, op: str, wire_id: str) -> None:
        if wire_id in self.resumed:
            raise GymCheckpointUnavailable(f"HTTP 409 stale_checkpoint {wire_id}")
        if op in ("prepare", "restore") and self.holder not in (None, wire_id):
            raise GymCheckpointUnavailable(f"HTTP 409 checkpoint_conflict {self.holder}")
        if op in ("renew", "commit") and self.holder != wire_id:
            raise GymCheckpointUnavailable(f"HTTP 409 invalid_phase {op}")
        if op in ("retire", "forget") and self.holder not in (None, wire_id):
            raise GymCheckpointUnavailable(f"HTTP 409 invalid_phase {op}")


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
