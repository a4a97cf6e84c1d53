"""
Deployments that outlive their controllers: real control planes, served over a socket.

`Ticking` deployments run episodes that never end, so that whatever a controller does there is
something to park, to save and to continue. `Station` stands for the hosts of one job: it takes
calls from other processes as well as from this one, and logs each with what became of it.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.participant.control import ControlPlane
from gymckpt.participant.deployment import Deployment
from gymckpt.participant.episodes import EpisodeBody, LiveEpisode
from gymckpt.participant.servers import KINDS, Server
from gymckpt.participant.store import Record

IDS = ("tools/replica-0", "tools/replica-1")
EPISODES = 2
"""How many episodes run on each instance."""

TURN_S = 0.001


class TickingBody:
    """An episode that counts turns and never ends."""

    restart_only = False

    def __init__(self, turns: int = 0) -> None:
        self.turns = turns

    @property
    def row_keys(self) -> Sequence[str]:
        """One row, whatever the turn."""
        return ("row",) if self.turns else ()

    async def turn(self) -> bool:
        await asyncio.sleep(TURN_S)
        self.turns += 1
        return False

    def reply(self) -> Any:
        raise AssertionError("it never ends")

    def close(self) -> None:
        """Hold nothing."""


class Ticking(Deployment):
    """A real deployment of such episodes."""

    def __init__(self, instance_id: str, *, grace_s: float = 600.0) -> None:
        super().__init__(
            instance_id,
            [
                Server(kind=kind, name=kind, control=ControlPlane(kind, grace_s=grace_s))
                for kind in KINDS
            ],
        )

    def start(self, episode: EnvironmentEpisode) -> asyncio.Task[Any]:
        """Dispatch one attempt, and leave it running."""
        task = asyncio.get_running_loop().create_task(self.begin(episode, TickingBody()))
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return task

    def records_of(self, server: Server, episodes: Sequence[LiveEpisode]) -> Iterable[Record]:
        if server.kind != "environment":
            return []
        return [{**live.episode.to_dict(), "turns": live.body.turns} for live in episodes]

    def rebuild(
        self,
        records: Mapping[str, list[Record]],
        episodes: Sequence[EnvironmentEpisode],
        require_wanted: Callable[[], None],
    ) -> list[EpisodeBody]:
        require_wanted()
        turns = {record["rollout_id"]: record["turns"] for record in records["environment"]}
        return [TickingBody(turns[episode.rollout_id]) for episode in episodes]

    @property
    def is_open(self) -> bool:
        """Whether no checkpoint or restore holds it."""
        return self._servers.is_open

    @property
    def live(self) -> frozenset[EnvironmentEpisode]:
        """The attempts that run here."""
        return frozenset(found.episode for found in self._table)


def offered(instance: str) -> tuple[EnvironmentEpisode, ...]:
    """Return the episodes of an instance, as they were first dispatched."""
    return tuple(EnvironmentEpisode(f"r{instance[-1]}.{index}", 0) for index in range(EPISODES))


@attrs.define
class Call:
    """One call that reached an instance."""

    tick: int
    instance: str
    op: str
    wire_id: str
    outcome: str = "pending"
    """`answered`, or the text of what was raised."""
    ended: int = 0


class Station:
    """The instances of one job, reachable from this process and, by a socket, from others."""

    def __init__(self, socket: Path, *, grace_s: float = 600.0, ids: Sequence[str] = IDS) -> None:
        self.socket = socket
        self.deployments = {instance: Ticking(instance, grace_s=grace_s) for instance in ids}
        self.calls: list[Call] = []
        self.unreachable: set[str] = set()
        """Instances that no call reaches at present."""
        self._ticks = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def handles(self) -> dict[str, Any]:
        """Handles for this process."""
        return {instance: Handle(self, instance) for instance in self.deployments}

    async def open(self, *, dispatch: bool) -> None:
        """Listen, and dispatch the first attempts if the job is to run."""
        self._server = await asyncio.start_unix_server(self._serve, self.socket)
        for instance, deployment in self.deployments.items():
            for episode in offered(instance) if dispatch else ():
                deployment.start(episode)

    async def close(self) -> None:
        """Stop everything."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        for deployment in self.deployments.values():
            await deployment.close()

    async def call(self, instance: str, method: str, args: Any, kwargs: Any) -> Any:
        """Make one call, and log what became of it."""
        op = method.removeprefix("checkpoint_")
        call = Call(next(self._ticks), instance, op, str(args[0]) if args else "")
        self.calls.append(call)
        try:
            if instance in self.unreachable:
                raise ConnectionError(f"{instance} is unreachable")
            reply = await getattr(self.deployments[instance], method)(*args, **kwargs)
        except asyncio.CancelledError:
            call.outcome, call.ended = "cancelled", next(self._ticks)
            raise
        except BaseException as error:
            call.outcome, call.ended = str(error), next(self._ticks)
            raise
        call.outcome, call.ended = "answered", next(self._ticks)
        return reply

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one call; it is made whether or not its caller still lives."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            instance, method, args, kwargs = await received(reader)
            try:
                answer: Any = (True, await self.call(instance, method, args, kwargs))
            except Exception as error:
                answer = (False, error)
            writer.write(packed(answer))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the caller has died
        finally:
            self._serving.discard(task)
            writer.close()


class Handle:
    """A handle on one instance of a station of this process."""

    def __init__(self, station: Station, instance: str) -> None:
        self._station = station
        self._instance = instance

    def __getattr__(self, method: str) -> Any:
        if not method.startswith("checkpoint_"):
            raise AttributeError(method)

        def remote(*args: Any, **kwargs: Any) -> asyncio.Future[Any]:
            call = self._station.call(self._instance, method, args, kwargs)
            return asyncio.ensure_future(call)

        return SimpleNamespace(remote=remote)


def packed(value: Any) -> bytes:
    """Return a value as it goes over a socket."""
    data = pickle.dumps(value)
    return struct.pack("!I", len(data)) + data


async def received(reader: asyncio.StreamReader) -> Any:
    """Read a value that `packed` made."""
    (size,) = struct.unpack("!I", await reader.readexactly(4))
    return pickle.loads(await reader.readexactly(size))
