"""A clock that only tests move, and a deployment whose turns end when a test says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from gymckpt.episodes import EnvironmentEpisode, instance_directory
from gymckpt.participant.control import ControlPlane
from gymckpt.participant.deployment import Deployment
from gymckpt.participant.episodes import EpisodeBody, LiveEpisode
from gymckpt.participant.servers import KINDS, Server
from gymckpt.participant.store import Record

INSTANCE = "tools/replica-0"
START_TS = 1_000_000.0
STEPS_MAX = 20_000


@attrs.define(eq=False)
class ManualTimer:
    """One armed timer."""

    when_s: float
    callback: Callable[[], None]
    armed: bool = True

    def cancel(self) -> None:
        self.armed = False


class ManualTime:
    """Wall clock and timers of one host; `skew_s` is how far its clock is ahead of ours."""

    def __init__(self, skew_s: float = 0.0) -> None:
        self._elapsed_s = 0.0
        self.skew_s = skew_s
        self._timers: list[ManualTimer] = []

    def now_ts(self) -> float:
        """The host's clock."""
        return START_TS + self.skew_s + self._elapsed_s

    @property
    def ours_ts(self) -> float:
        """The controller's clock."""
        return START_TS + self._elapsed_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(self._elapsed_s + delay_s, callback)
        self._timers.append(timer)
        return timer

    @property
    def armed(self) -> int:
        return sum(timer.armed for timer in self._timers)

    def advance(self, by_s: float) -> None:
        """Let time pass; timers go off in their order, at their moment."""
        end_s = self._elapsed_s + by_s
        while due := [t for t in self._timers if t.armed and t.when_s <= end_s]:
            timer = min(due, key=lambda timer: timer.when_s)
            timer.armed = False
            self._elapsed_s = max(self._elapsed_s, timer.when_s)
            timer.callback()
        self._elapsed_s = end_s

    def step_clock(self, by_s: float) -> None:
        """Set the wall clock without time passing."""
        self.skew_s += by_s


async def until(condition: Callable[[], bool]) -> None:
    """Let everything run until `condition` holds; fail if it never does."""
    for step in range(STEPS_MAX):
        if condition():
            return
        await asyncio.sleep(0 if step < 100 else 0.0005)
    raise AssertionError("what the test waits for never happened")


async def idle() -> None:
    """Let everything run that can run without time or threads."""
    for _ in range(50):
        await asyncio.sleep(0)


class CountingBody:
    """Counts turns; each turn ends when a test allows it, the last at `turns_max`."""

    def __init__(
        self,
        episode: EnvironmentEpisode,
        *,
        turns: int = 0,
        turns_max: int = 3,
        restart_only: bool = False,
        row_keys: Iterable[str] = (),
    ) -> None:
        self.episode = episode
        self.turns = turns
        self.turns_max = turns_max
        self.restart_only = restart_only
        self.row_keys = list(row_keys)
        self.entered = 0
        self.closed = 0
        self.stubborn = False
        self.fails: BaseException | None = None
        self.close_fails = False
        self._allowed = asyncio.Semaphore(0)

    def allow(self, turns: int = 1) -> None:
        for _ in range(turns):
            self._allowed.release()

    async def turn(self) -> bool:
        self.entered += 1
        while True:
            try:
                await self._allowed.acquire()
                break
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise
        if self.fails is not None:
            raise self.fails
        self.row_keys.append(f"{self.episode.capture_key}/t{self.turns:05d}")
        self.turns += 1
        return self.turns >= self.turns_max

    def reply(self) -> Any:
        return (self.episode.capture_key, self.turns)

    def close(self) -> None:
        self.closed += 1
        if self.close_fails:
            raise OSError("it would not close")


class CountingDeployment(Deployment):
    """A deployment of counting bodies, with hooks to block its writer and name any blocker."""

    def __init__(self, time: ManualTime, *, grace_s: float = 600.0, **settings: Any) -> None:
        names = settings.pop("names", {kind: kind for kind in KINDS})
        restart_only = settings.pop("restart_only", False)
        super().__init__(
            settings.pop("instance_id", INSTANCE),
            [
                Server(
                    kind=kind,
                    name=names[kind],
                    control=ControlPlane(names[kind], grace_s=grace_s),
                    restart_only=restart_only and kind == "resources",
                )
                for kind in KINDS
            ],
            now_ts=time.now_ts,
            call_later=time.call_later,
            **settings,
        )
        self.bodies: dict[EnvironmentEpisode, CountingBody] = {}
        self.exports = 0
        self.extra_blockers: dict[str, tuple[str, ...]] = {}
        self.before_record: Callable[[], None] = lambda: None
        self.before_rebuild: Callable[[], None] = lambda: None
        self.after_rebuild: Callable[[], None] = lambda: None
        self.parking_error: Exception | None = None

    async def run(self, rollout_id: str, attempt: int = 0, **settings: Any) -> Any:
        body = CountingBody(EnvironmentEpisode(rollout_id, attempt), **settings)
        self.bodies[body.episode] = body
        return await self.begin(body.episode, body)

    def blockers_of(self, server: Server) -> Sequence[str]:
        if self.parking_error is not None:
            raise self.parking_error
        return self.extra_blockers.get(server.kind, ()) or super().blockers_of(server)

    def records_of(self, server: Server, episodes: Sequence[LiveEpisode]) -> Iterable[Record]:
        self.exports += 1
        if server.kind != "environment":
            return []
        rows = [
            {
                **live.episode.to_dict(),
                "turns": live.body.turns,
                "turns_max": live.body.turns_max,
                "row_keys": list(live.body.row_keys),
            }
            for live in episodes
        ]
        return self._slow(rows)

    def _slow(self, rows: list[Record]) -> Iterable[Record]:
        self.before_record()
        yield from rows

    def rebuild(
        self,
        records: Mapping[str, list[Record]],
        episodes: Sequence[EnvironmentEpisode],
        require_wanted: Callable[[], None],
    ) -> list[EpisodeBody]:
        self.before_rebuild()
        require_wanted()
        saved = {
            EnvironmentEpisode(record["rollout_id"], record["attempt"]): record
            for record in records[self._servers.all[0].name]
        }
        if missing := [episode.capture_key for episode in episodes if episode not in saved]:
            raise ValueError(f"not saved: {missing}")
        bodies = []
        for episode in episodes:
            record = saved[episode]
            body = CountingBody(
                episode.next_attempt(),
                turns=record["turns"],
                turns_max=record["turns_max"],
                row_keys=record["row_keys"],
            )
            self.bodies[body.episode] = body
            bodies.append(body)
        self.after_rebuild()
        return list(bodies)

    def entered(self, episode: EnvironmentEpisode) -> int:
        """How many turns the episode has begun; 0 if it is not here."""
        body = self.bodies.get(episode)
        return 0 if body is None else body.entered

    @property
    def phases(self) -> list[str]:
        return [server.control.state.phase for server in self._servers.all]


Make = Callable[..., CountingDeployment]
"""Makes deployments that are closed when the test ends."""


def manifests(root: Path, instance_id: str = INSTANCE) -> list[Path]:
    """The participant manifests that stand below a checkpoint's root."""
    return sorted(instance_directory(root, instance_id).glob("gym/*/*/manifest.json"))


def start(coroutine: Any) -> asyncio.Task[Any]:
    """Run something beside the test, which need not look at how it ends."""
    task = asyncio.get_running_loop().create_task(coroutine)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


E0 = EnvironmentEpisode("r0", 0)
E1 = EnvironmentEpisode("r1", 0)
N0, N1 = E0.next_attempt(), E1.next_attempt()
SERVERS = ("agent", "environment", "model", "resources")


async def inside_a_turn(deployment: CountingDeployment, rollout_id: str = "r0") -> asyncio.Task:
    """Return a running episode that is inside its first turn."""
    known = set(deployment.bodies)
    task = start(deployment.run(rollout_id))
    await until(lambda: any(b.entered for e, b in deployment.bodies.items() if e not in known))
    return task


def files_below(root: Path) -> list[str]:
    return [path.name for path in root.rglob("*") if not path.is_dir()]


class Door:
    """Holds a thread until a test opens it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.open.wait(10), "the test never opened the door"


async def prepared(deployment: CountingDeployment, time: ManualTime, *rollouts: str) -> None:
    """Let some rollouts play two turns each, and park at the end of the second."""
    for rollout_id in rollouts or ("r0",):
        start(deployment.run(rollout_id, turns_max=5))
        await idle()
        deployment.bodies[EnvironmentEpisode(rollout_id, 0)].allow(1)
    await idle()
    prepare = start(deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5))
    await idle()
    for body in deployment.bodies.values():
        body.allow(1)
    assert (await prepare).prepared


def commit(
    deployment: CountingDeployment, time: ManualTime, root: Path, *episodes: EnvironmentEpisode,
    checkpoint_id: str = "c1", in_s: float = 5.0,
) -> Any:  # fmt: skip
    return deployment.checkpoint_commit(
        checkpoint_id, str(root), episodes, deadline_ts=time.now_ts() + in_s
    )


@attrs.frozen
class Saved:
    """A checkpoint `c1` on the disk that holds r0 and r1 after two turns each."""

    root: Path


def restore(
    deployment: CountingDeployment, time: ManualTime, saved: Saved, *episodes: EnvironmentEpisode,
    **changes: Any,
) -> Any:  # fmt: skip
    arguments: dict[str, Any] = {
        "source_checkpoint_id": "c1",
        "participants": SERVERS,
        "deadline_ts": time.now_ts() + 5,
        **changes,
    }
    restore_id, root = arguments.pop("restore_id", "x1"), arguments.pop("root", saved.root)
    return deployment.checkpoint_restore(restore_id, str(root), episodes or (E0, E1), **arguments)


async def discarded(deployment: CountingDeployment, time: ManualTime) -> None:
    """Check that a failed restore left nothing running, nothing closed, and the marks raised."""
    await idle()
    assert deployment.phases == ["idle"] * 4
    assert not list(deployment._table)
    for rollout_id in ("r0", "r1"):
        for attempt in (0, 1):
            with pytest.raises(Exception, match="stale_attempt"):
                await deployment.run(rollout_id, attempt)
        del deployment.bodies[EnvironmentEpisode(rollout_id, 0)]
        del deployment.bodies[EnvironmentEpisode(rollout_id, 1)]
    start(deployment.run("r0", 2))
    await until(lambda: deployment.entered(EnvironmentEpisode("r0", 2)) == 1)
