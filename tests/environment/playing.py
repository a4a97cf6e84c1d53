"""Deployments for a training loop: a scripted one whose episodes really run, and real ones."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gymckpt.episodes import EnvironmentEpisode
from tests.fakes import Call, FakeActor, default_commit


class LocalHandle:
    """A handle on a deployment in this process: every method has a `.remote`."""

    def __init__(self, deployment: Any) -> None:
        self.deployment = deployment

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.deployment, name)
        return SimpleNamespace(remote=lambda *args, **kwargs: _begun(method(*args, **kwargs)))


def _begun(call: Any) -> asyncio.Future[Any]:
    return asyncio.ensure_future(call)


class PlayingActor(FakeActor):
    """A scripted instance whose episodes take turns while nothing holds it."""

    def __init__(self, name: str, turn_s: float = 0.001) -> None:
        super().__init__(fenced=True)
        self.name = name
        self.turn_s = turn_s
        self.turns: dict[EnvironmentEpisode, list[int]] = {}
        self.goals: dict[EnvironmentEpisode, int] = {}
        self.tasks: dict[EnvironmentEpisode, asyncio.Task[list[int]]] = {}

    def play(self, rollout_id: str, attempt: int, *, turns: int) -> asyncio.Future[list[int]]:
        """Begin an episode; its reply lists its turns."""
        episode = EnvironmentEpisode(rollout_id, attempt)
        assert episode not in self.retired, f"{episode.capture_key} is refused"
        assert self.holder is None, f"{episode.capture_key} was dispatched to a closed instance"
        self._begin(episode, 0, turns)
        return asyncio.shield(self.tasks[episode])

    def attach(self, rollout_id: str, attempt: int) -> asyncio.Future[list[int]]:
        """Wait again for an episode."""
        return asyncio.shield(self.tasks[EnvironmentEpisode(rollout_id, attempt)])

    def _begin(self, episode: EnvironmentEpisode, done: int, goal: int) -> None:
        self.turns[episode] = list(range(done))
        self.goals[episode] = goal
        self.tasks[episode] = asyncio.get_running_loop().create_task(self._play(episode))

    async def _play(self, episode: EnvironmentEpisode) -> list[int]:
        turns = self.turns[episode]
        while len(turns) < self.goals[episode]:
            await asyncio.sleep(self.turn_s)
            if self.holder is None:
                turns.append(len(turns))
        return turns

    def apply(self, call: Call) -> Any:
        reply = super().apply(call)
        if call.op == "commit":
            unfinished = [found for found in call.args[2] if not self.tasks[found].done()]
            done = {
                found.capture_key: (len(self.turns[found]), self.goals[found])
                for found in unfinished
            }
            self._records(call.args[1]).write_text(json.dumps(done))
            return default_commit(unfinished)
        if call.op == "restore":
            saved = json.loads(self._records(call.args[1]).read_text())
            for found in call.args[2]:
                self._begin(found.next_attempt(), *saved[found.capture_key])
        if call.op == "retire":
            for episode, task in self.tasks.items():
                if episode in self.retired:
                    task.cancel()
        return reply

    def _records(self, root: str) -> Path:
        return Path(root) / f"{self.name}.json"

    async def die(self) -> None:
        """Stop everything, as a killed process does."""
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


class PlayingHandle:
    """A handle on a playing actor, with the two calls that a trainer makes."""

    def __init__(self, actor: PlayingActor) -> None:
        self.actor = actor
        self.run = SimpleNamespace(remote=actor.play)
        self.attach = SimpleNamespace(remote=actor.attach)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.actor, name)
