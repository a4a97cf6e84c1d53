"""
A backend that has nothing of the shipped one: plain asyncio, a file, and the protocol.

Its episodes count their turns. It stands for what a stranger may write who has read the README's
table of calls and `docs/testing.md`, and it keeps the whole contract.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import attrs

from gymckpt import (
    EnvironmentEpisode,
    GymCheckpointCommitSummary,
    GymCheckpointPrepareSummary,
    GymCheckpointUnavailable,
)
from gymckpt.episodes import instance_directory, require_operation_id

SERVER = "tally"
STALE_IDS_MAX = 64


@attrs.define(eq=False)
class Run:
    """An attempt: how many turns it has behind it, and the turn that it is inside of."""

    turns: int = 0
    restart_only: bool = False
    in_turn: asyncio.Event | None = None
    task: asyncio.Task[None] | None = None


class Tally:
    """One instance."""

    def __init__(self, instance_id: str, grace_s: float, now_ts: Callable[[], float]) -> None:
        self.directory_of = lambda root: instance_directory(Path(root), instance_id)
        self.grace_s, self.now_ts = grace_s, now_ts
        self.before_publishing: Callable[[], None] = lambda: None  # where a test breaks the disk
        self.holder: str | None = None
        self.phase = "open"
        self.lease_ts = 0.0
        self.stale: list[str] = []
        self.marks: dict[str, int] = {}
        self.newest: dict[str, int] = {}
        self.runs: dict[EnvironmentEpisode, Run] = {}
        self.asked: dict[str, Any] = {}
        self.work: dict[str, asyncio.Task[Any]] = {}
        self.stop = threading.Event()
        self.changed = asyncio.Event()

    # --- episodes -------------------------------------------------------------------------------

    def require_current(self, episode: EnvironmentEpisode) -> None:
        rollout = episode.rollout_id
        retired, newest = self.marks.get(rollout, -1), self.newest.get(rollout, 0)
        if episode.attempt <= retired or episode.attempt < newest:
            raise GymCheckpointUnavailable(f"{episode.capture_key} was retired or overtaken")

    async def run(self, episode: EnvironmentEpisode, *, restart_only: bool) -> None:
        self.require_current(episode)
        while self.holder is not None:
            await self.wait()
        self.require_current(episode)
        self.install(episode, Run(restart_only=restart_only))

    def install(self, episode: EnvironmentEpisode, run: Run) -> None:
        self.end([episode], through=episode.attempt - 1)
        self.newest[episode.rollout_id] = episode.attempt
        self.runs[episode] = run
        run.task = asyncio.get_running_loop().create_task(self.play(run))

    async def play(self, run: Run) -> None:
        while True:
            while self.holder is not None and not run.restart_only:
                await self.wait()
            run.in_turn = asyncio.Event()
            await run.in_turn.wait()
            run.turns, run.in_turn = run.turns + 1, None
            self.beat()

    def end(self, episodes: Any, *, through: int | None = None) -> None:
        for episode in episodes:
            last = episode.attempt if through is None else through
            for live in [one for one in self.runs if one.rollout_id == episode.rollout_id]:
                if live.attempt <= last:
                    task = self.runs.pop(live).task
                    if task is not None:
                        task.cancel()

    def beat(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def wait(self) -> None:
        await self.changed.wait()

    # --- who holds it ---------------------------------------------------------------------------

    def look_at_clock(self) -> float:
        """Reopen if the lease is over; called by every call, and by a timer."""
        if self.holder is not None and self.now_ts() >= self.lease_ts:
            self.release(self.holder)
        self.beat()
        return self.now_ts()

    def release(self, name: str) -> None:
        self.stale = [*(one for one in self.stale if one != name), name][-STALE_IDS_MAX:]
        if self.holder == name:
            self.stop.set()
            self.holder, self.phase, self.asked = None, "open", {}
            self.work, self.stop = {}, threading.Event()
        self.beat()

    def enter(self, call: str, name: str, deadline_ts: float, phases: str) -> None:
        """Refuse what is stale, foreign, late or out of turn; else extend the lease."""
        require_operation_id(name, "id")
        now_ts = self.look_at_clock()
        if name in self.stale:
            raise GymCheckpointUnavailable(f"stale: {name} was resumed")
        if self.holder not in {None, name}:
            raise GymCheckpointUnavailable(f"conflict: {self.holder} holds this instance")
        if self.phase not in phases.split():
            raise GymCheckpointUnavailable(f"out of turn: {call} while {self.phase}")
        if call not in {"prepare", "renew"} and now_ts >= deadline_ts:
            raise GymCheckpointUnavailable(f"late: {call} after its deadline")
        if self.holder is not None or call in {"prepare", "restore"}:
            self.lease_ts = max(self.lease_ts if self.holder else 0.0, deadline_ts + self.grace_s)

    async def worked(
        self, call: str, deadline_ts: float, work: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Any:
        """Wait for work that goes on when its caller does not, and is begun again if it failed."""
        task = self.work.get(call)
        if task is None or (task.done() and task.exception() is not None):
            task = self.work[call] = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(self.ended)
        while not task.done():
            if self.now_ts() >= deadline_ts:
                raise GymCheckpointUnavailable(f"late: {call} goes on; ask again")
            await self.wait()
        return task.result()

    def ended(self, work: asyncio.Task[Any]) -> None:
        """Look at what work came to, whoever may still wait for it."""
        if not work.cancelled():
            work.exception()
        self.beat()

    # --- the calls ------------------------------------------------------------------------------

    async def checkpoint_prepare(self, name: str, *, deadline_ts: float) -> Any:
        self.enter("prepare", name, deadline_ts, "open parking parked saved")
        if self.holder is None:
            self.holder, self.phase = name, "parking"
        while self.phase == "parking" and self.holder == name:
            inside = [e.capture_key for e, one in self.runs.items() if self.blocks(one)]
            if not inside:
                left_out = tuple(sorted(e for e, one in self.runs.items() if one.restart_only))
                self.asked["prepare"] = GymCheckpointPrepareSummary(True, {}, left_out)
                self.phase = "parked"
            elif self.now_ts() >= deadline_ts:
                return GymCheckpointPrepareSummary(False, {SERVER: tuple(inside)})
            else:
                await self.wait()
        if self.holder != name:
            raise GymCheckpointUnavailable(f"stale: {name} was resumed while it was preparing")
        return self.asked["prepare"]

    def blocks(self, run: Run) -> bool:
        return run.in_turn is not None and not run.restart_only

    async def checkpoint_renew(self, name: str, *, deadline_ts: float) -> None:
        self.enter("renew", name, deadline_ts, "parking parked saved restored")

    async def checkpoint_commit(
        self, name: str, root: str, episodes: Any, *, deadline_ts: float
    ) -> Any:
        self.enter("commit", name, deadline_ts, "parked saved")
        asked = (root, tuple(sorted(episodes)))
        if self.asked.get("commit", asked) != asked:
            raise GymCheckpointUnavailable("conflict: committed before with other arguments")
        for episode in asked[1]:
            run = self.runs.get(episode)
            if run is None or run.restart_only:
                raise GymCheckpointUnavailable(f"{episode.capture_key} cannot be saved here")
        self.asked["commit"], self.phase = asked, "saved"
        kept = [[e.rollout_id, e.attempt, self.runs[e].turns] for e in asked[1]]
        stop = self.stop

        async def work() -> GymCheckpointCommitSummary:
            target = self.directory_of(root) / "tally.json"
            await asyncio.to_thread(self.write, target, name, kept, stop)
            rows = {episode: (f"{episode.capture_key}/row",) for episode in asked[1]}
            keys = tuple(key for row in rows.values() for key in row)
            return GymCheckpointCommitSummary(asked[1], keys, (SERVER,), rows)

        return await self.worked("commit", deadline_ts, work)

    def write(self, target: Path, name: str, kept: Any, stop: threading.Event) -> None:
        body = json.dumps({"checkpoint_id": name, "episodes": kept})
        text = f"{hashlib.sha256(body.encode()).hexdigest()} {body}\n"
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.before_publishing()
        except Exception as error:
            raise OSError(str(error)) from None  # what the disk raises may not travel
        if stop.is_set():
            raise GymCheckpointUnavailable(f"stale: {name} was resumed while it was written")
        draft = target.with_name(f".{threading.get_ident()}")
        draft.write_text(text, encoding="utf-8")
        try:
            os.link(draft, target)
        except FileExistsError:
            if target.read_text(encoding="utf-8") != text:
                raise GymCheckpointUnavailable("conflict: another checkpoint is there") from None
        finally:
            draft.unlink()

    async def checkpoint_resume(self, name: str, *, deadline_ts: float) -> None:
        require_operation_id(name, "id")
        self.look_at_clock()
        left = list(self.work.values()) if self.holder == name else []
        self.release(name)
        if left:
            await asyncio.wait(left)  # nothing of it may appear when this is answered

    async def checkpoint_restore(
        self, name: str, root: str, episodes: Any, *, source_checkpoint_id: str,
        participants: Any, deadline_ts: float,
    ) -> None:  # fmt: skip
        self.enter("restore", name, deadline_ts, "open restored")
        asked = (root, tuple(sorted(episodes)), source_checkpoint_id)
        if self.phase == "restored":
            if self.asked["restore"] != asked:
                raise GymCheckpointUnavailable("conflict: restored before with other arguments")
            return
        if tuple(participants) != (SERVER,):
            raise ValueError(f"this is {SERVER}, not {participants}")
        found = self.read(self.directory_of(root) / "tally.json", source_checkpoint_id)
        for episode in asked[1]:
            following = episode.next_attempt()
            self.require_current(following)
            if following in self.runs or episode not in found:
                raise GymCheckpointUnavailable(f"{following.capture_key} cannot be installed")
        self.holder, self.phase = name, "restored"
        self.asked["restore"] = asked
        for episode in asked[1]:
            self.install(episode.next_attempt(), Run(found[episode]))

    def read(self, target: Path, source: str) -> dict[EnvironmentEpisode, int]:
        digest, _, rest = target.read_bytes().partition(b" ")
        if rest[-1:] != b"\n" or hashlib.sha256(rest[:-1]).hexdigest().encode() != digest:
            raise ValueError(f"{target} is damaged")
        kept = json.loads(rest)
        if kept["checkpoint_id"] != source:
            raise ValueError(f"{target} is of another checkpoint")
        return {EnvironmentEpisode(name, n): turns for name, n, turns in kept["episodes"]}

    async def checkpoint_retire(self, name: str, episodes: Any, *, deadline_ts: float) -> None:
        self.enter("retire", name, deadline_ts, "open restored")
        for episode in episodes:
            marked = self.marks.get(episode.rollout_id, -1)
            self.marks[episode.rollout_id] = max(marked, episode.attempt)
        self.end(episodes)

    async def checkpoint_forget(self, name: str, rollout_ids: Any, *, deadline_ts: float) -> None:
        self.enter("forget", name, deadline_ts, "open")
        for rollout_id in rollout_ids:
            self.marks.pop(rollout_id, None)
            self.newest.pop(rollout_id, None)

    async def checkpoint_restart_only_servers(self) -> list[str]:
        return [SERVER]
