"""
A small training loop, written against the API document of `EnvironmentCheckpoint` alone.

It dispatches rollouts through handles, keeps a ledger, takes snapshots now and then and publishes
each by one rename. `Trainer` is also RL's side of the facade. What it published survives it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs

from gymckpt import (
    EnvironmentCheckpoint,
    EnvironmentEpisode,
    EnvironmentSnapshot,
    LedgerUnderCut,
    RolloutSource,
)

Specs = Mapping[str, Mapping[str, Any]]
"""Rollout id to its `instance` and what else it is dispatched with."""


class Cut:
    """The data plane between two mutations."""

    live = True


@attrs.define
class Rollout:
    """One line of the ledger."""

    attempt: int = 0
    running: bool = False
    reply: Any = None


class Trainer:
    """Dispatches, stores, saves, goes on."""

    def __init__(
        self,
        specs: Specs,
        handles: Mapping[str, Any],
        root: Path,
        environment: Callable[[RolloutSource], EnvironmentCheckpoint],
    ) -> None:
        """
        Begin with nothing done.

        Args:
            specs: What is to be done.
            handles: Instance id to handle.
            root: Where snapshots are published.
            environment: Makes the environment's checkpoint for this side of RL.
        """
        self.specs = specs
        self.handles = handles
        self.root = root
        self.env_checkpoint = environment(self)
        self.ledger = {name: Rollout() for name in specs}
        self.continued: set[str] = set()
        self.metrics: list[dict[str, float]] = []
        self.dispatched_while_closed = 0
        self._open = asyncio.Event()
        self._open.set()
        self._sorted_out = asyncio.Event()
        self._sorted_out.set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._later: frozenset[str] = frozenset()
        self._under_snapshot: frozenset[str] = frozenset()

    # --- RL's side --------------------------------------------------------------------------------

    @asynccontextmanager
    async def dispatch_closed(self) -> AsyncIterator[None]:
        self._open.clear()
        self._sorted_out.clear()
        self._under_snapshot = frozenset(self.running)
        try:
            yield
        finally:
            self._later = frozenset()
            self._sorted_out.set()
            self._open.set()

    def episodes_in_flight(self) -> Mapping[str, Collection[EnvironmentEpisode]]:
        found: dict[str, list[EnvironmentEpisode]] = {}
        for name in self.running:
            episode = EnvironmentEpisode(name, self.ledger[name].attempt)
            found.setdefault(self.specs[name]["instance"], []).append(episode)
        return found

    async def replies_landed(self, expected_later: Collection[EnvironmentEpisode]) -> None:
        self._later = frozenset(episode.rollout_id for episode in expected_later)
        self._sorted_out.set()
        landing = [self._tasks[name] for name in self.running if name not in self._later]
        if landing:
            await asyncio.wait(landing)

    def ledger_under(self, cut: Cut) -> LedgerUnderCut:
        sealed = frozenset(n for n in self._under_snapshot if self.ledger[n].reply is not None)
        return LedgerUnderCut(unfinished=self._under_snapshot, sealed=sealed)

    def attempts_refused(self, episodes: Collection[EnvironmentEpisode]) -> None:
        for episode in episodes:
            rollout = self.ledger[episode.rollout_id]
            rollout.attempt = max(rollout.attempt, episode.attempt + 1)

    @property
    def running(self) -> list[str]:
        """The rollouts that are waited for."""
        return [name for name, rollout in self.ledger.items() if rollout.running]

    # --- the loop ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Dispatch everything that is not done, and wait again for what was continued."""
        for name, rollout in self.ledger.items():
            if rollout.reply is None:
                self._tasks[name] = asyncio.create_task(self._run(name))

    async def _run(self, name: str) -> None:
        rollout, spec = self.ledger[name], dict(self.specs[name])
        handle = self.handles[spec.pop("instance")]
        if rollout.running:
            reply = await handle.attach.remote(name, rollout.attempt)
        else:
            await self._open.wait()
            rollout.running = True
            self.dispatched_while_closed += not self._open.is_set()
            reply = await handle.run.remote(name, rollout.attempt, **spec)
        await self._sorted_out.wait()  # a snapshot is sorting out which replies it waits for
        if name in self._later:
            await self._open.wait()
        rollout.running, rollout.reply = False, reply

    async def finish(self) -> None:
        """Wait until everything is done."""
        await asyncio.gather(*self._tasks.values())

    async def die(self) -> None:
        """Stop at once, as a process does that is killed between two snapshots."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # --- snapshots --------------------------------------------------------------------------------

    async def snapshot(self, name: str, plain: Callable[[Any], Any]) -> EnvironmentSnapshot | None:
        """
        Save everything as one directory.

        Args:
            name: What the directory is called.
            plain: Makes JSON of a reply.
        """
        unpublished = self.root / f"unpublished-{name}"
        began_s = asyncio.get_running_loop().time()
        async with self.env_checkpoint.snapshot(unpublished) as snapshot, self.checkpoint() as cut:
            if snapshot is not None:
                await snapshot.check_against_cut(cut)
            self._save(unpublished, plain)
        paused_s = asyncio.get_running_loop().time() - began_s
        os.replace(unpublished, self.root / name)
        if snapshot is not None:
            self.metrics.append(snapshot.metrics(paused_s))
        return snapshot

    @asynccontextmanager
    async def checkpoint(self) -> AsyncIterator[Cut]:
        """Hold the data plane between two mutations."""
        cut = Cut()
        try:
            yield cut
        finally:
            cut.live = False

    def _save(self, directory: Path, plain: Callable[[Any], Any]) -> None:
        directory.mkdir(exist_ok=True)
        ledger = {name: attrs.asdict(one, recurse=False) for name, one in self.ledger.items()}
        for one in ledger.values():
            one["reply"] = None if one["reply"] is None else plain(one["reply"])
        (directory / "ledger.json").write_text(json.dumps(ledger))

    async def restore(self, name: str) -> None:
        """Go back to a snapshot: continue what it holds, start the rest over."""
        saved = json.loads((self.root / name / "ledger.json").read_text())
        self.ledger = {name: Rollout(**one) for name, one in saved.items()}
        async with self.env_checkpoint.restored(self.root / name) as restored:
            continued = {rollout: attempt for _, rollout, attempt in restored.continued_attempts}
            for rollout_id, rollout in self.ledger.items():
                if rollout_id in continued:
                    assert rollout.running
                    assert rollout.attempt == continued[rollout_id]
                    rollout.attempt += 1
                elif rollout.running:
                    rollout.attempt += 1
                    rollout.running = False
        self.continued = set(continued)
