"""A controller process for the tests of interrupts: run with a phase, it says when it is there."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from gymckpt.coordinator import GymCheckpointCoordinator, GymCheckpointPrepareSummary
from gymckpt.episodes import EnvironmentEpisode
from tests.fakes import default_commit


class LoggingActor:
    """Writes every call to a file at once; the call of one kind hangs, or interrupts."""

    def __init__(self, name: str, log: Path, hangs: str, answers_s: float) -> None:
        self.name, self.log, self.hangs, self.answers_s = name, log, hangs, answers_s

    def __getattr__(self, method: str) -> Any:
        if not method.startswith("checkpoint_"):
            raise AttributeError(method)
        return _Method(self, method.removeprefix("checkpoint_"))

    async def run(self, op: str, args: Any) -> Any:
        """Answer, unless this is the call that hangs."""
        if op == self.hangs:
            await asyncio.sleep(self.answers_s)
        if op == "prepare":
            return GymCheckpointPrepareSummary(True, {})
        return default_commit(args[2]) if op == "commit" else None


class _Method:
    def __init__(self, actor: LoggingActor, op: str) -> None:
        self.actor, self.op = actor, op

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        with self.actor.log.open("a") as log:
            log.write(f"{self.actor.name} {self.op} {args[0]}\n")
        return self.actor.run(self.op, args)


class Shards:
    """The actors under their instance ids."""

    def __init__(self, *actors: LoggingActor) -> None:
        self.checkpoint_handles = {
            f"tools/replica-{number}": actor for number, actor in enumerate(actors)
        }


async def main(directory: Path, phase: str, journal: str, answers_s: float) -> None:
    """Do a checkpoint whose call of one phase hangs for a while, or whose body does."""
    hangs = "" if phase == "body" else phase
    actors = [
        LoggingActor(f"actor-{number}", directory / "calls", hangs, answers_s)
        for number in range(3)
    ]
    coordinator = GymCheckpointCoordinator(
        Shards(*actors), control_timeout_s=20.0, prepare_timeout_s=20.0, journal=journal, run="run"
    )
    offered = {
        instance: (EnvironmentEpisode(f"r{instance[-1]}", 0),)
        for instance in coordinator.instance_ids
    }
    async with coordinator.prepared("interrupted"):
        await coordinator.commit("interrupted", directory / "root", offered, restarts={})
        if phase == "body":
            await asyncio.sleep(answers_s)
    (directory / "finished").touch()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])))
