"""
Use an installed gymckpt: import it, read its charts, save a deployment's episodes and go on.

`check_wheel.py` runs this in an environment that has the package and nothing else, away from the
source tree. The deployment is the shipped one with counters for episodes; the journal is SQLite.

    python -I use_installed.py CHART [CHART …]

The arguments are the charts that there should be; the exit code is 0 if all is well.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Any, cast

import gymckpt
from gymckpt import EnvironmentEpisode, GymCheckpointCoordinator, ShardSet
from gymckpt.chart import chart_names, load_chart
from gymckpt.participant.control import ControlPlane
from gymckpt.participant.deployment import Deployment
from gymckpt.participant.episodes import EpisodeBody, LiveEpisode
from gymckpt.participant.servers import Server
from gymckpt.participant.store import Record

SHARD = "counters"
INSTANCES = tuple(f"{SHARD}/replica-{index}" for index in range(2))
MORE = 3
"""How far a restored counter counts on; one that was not restored never ends."""


class Counter:
    """An episode that counts, one number a turn."""

    restart_only = False
    row_keys: Sequence[str] = ()

    def __init__(self, count: int, last: int | None) -> None:
        self.count = count
        self.last = last

    async def turn(self) -> bool:
        """Count, and return whether that was the end."""
        self.count += 1
        return self.count == self.last

    def reply(self) -> int:
        """Return what was counted."""
        return self.count

    def close(self) -> None:
        """Hold nothing, so let nothing go."""


class Counters(Deployment):
    """A deployment of counters, with one server."""

    def __init__(self, instance_id: str) -> None:
        server = Server(kind="environment", name="counter", control=ControlPlane("counter"))
        super().__init__(instance_id, [server], turn_pause_s=0.001)

    def records_of(self, server: Server, episodes: Sequence[LiveEpisode]) -> Iterable[Record]:
        """Save each episode's count."""
        for live in episodes:
            yield {
                **live.episode.to_dict(),
                "count": cast("Counter", live.body).count,
                "server": server.name,
            }

    def rebuild(
        self,
        records: Mapping[str, list[Record]],
        episodes: Sequence[EnvironmentEpisode],
        require_wanted: Callable[[], None],
    ) -> list[EpisodeBody]:
        """Count on from what was saved."""
        require_wanted()
        counts = {record["rollout_id"]: record["count"] for record in records["counter"]}
        found = [counts[episode.rollout_id] for episode in episodes]
        return [Counter(count, count + MORE) for count in found]


class Handle:
    """A deployment in this process, called as a Ray actor is."""

    def __init__(self, deployment: Counters) -> None:
        self._deployment = deployment

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._deployment, name)

        class Method:
            remote = staticmethod(method)

        return Method


def coordinator_of(deployments: Iterable[Counters], journal: Path) -> GymCheckpointCoordinator:
    """Return a coordinator that drives these deployments."""
    shards = ShardSet(handles={SHARD: [Handle(deployment) for deployment in deployments]})
    return GymCheckpointCoordinator(
        shards, control_timeout_s=10.0, prepare_timeout_s=10.0, journal=journal, run="wheel-check"
    )


async def save_and_go_on(directory: Path) -> None:
    """Save two running episodes, throw their deployments away, and finish them in new ones."""
    root, journal = directory / "step-1", directory / "journal.sqlite3"
    first = [Counters(instance) for instance in INSTANCES]
    saved = {
        instance: (EnvironmentEpisode(f"rollout-{index}", 0),)
        for index, instance in enumerate(INSTANCES)
    }
    bodies = [Counter(0, None) for _ in first]
    runs = [
        asyncio.ensure_future(deployment.begin(episode, body))
        for deployment, (episode,), body in zip(first, saved.values(), bodies, strict=True)
    ]
    coordinator = coordinator_of(first, journal)
    async with coordinator.prepared("step-1"):
        result = await coordinator.commit("step-1", root, saved, restarts={})
        parked = [body.count for body in bodies]
    require(result.manifest.instances == saved, "the manifest names what was saved")
    await asyncio.gather(*(deployment.close() for deployment in first))
    await asyncio.gather(*runs, return_exceptions=True)

    second = [Counters(instance) for instance in INSTANCES]
    async with coordinator_of(second, journal).restored("back-1", root, result.manifest):
        replies = [
            asyncio.ensure_future(deployment.attach(f"rollout-{index}", 1))
            for index, deployment in enumerate(second)
        ]
    counts = await asyncio.gather(*replies)
    expected = [count + MORE for count in parked]
    require(counts == expected, f"what was {parked} counts on to {expected}: {counts}")
    await asyncio.gather(*(deployment.close() for deployment in second))


def check_charts(expected: Sequence[str]) -> None:
    """Require that every chart is there, is sound, and is printed by the command."""
    require(list(chart_names()) == sorted(expected), f"charts {expected} are {chart_names()}")
    for name in expected:
        require(load_chart(name).name == name, f"chart {name} loads")
    command = Path(sysconfig.get_path("scripts")) / "gymckpt"
    done = subprocess.run(
        [command, "chart", "checkpoint"], capture_output=True, text=True, check=False
    )
    require(done.returncode == 0 and "committing" in done.stdout, f"gymckpt chart: {done}")


def require(holds: bool, claim: str) -> None:
    """Leave with the claim if it does not hold."""
    if not holds:
        sys.exit(f"not so: {claim}")


def main(expected: Sequence[str]) -> None:
    """Check everything."""
    for module in ("ray", "gymnasium"):
        require(util.find_spec(module) is None, f"{module} is absent")
    check_charts(expected)
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(save_and_go_on(Path(directory)))
    print(f"gymckpt works from {Path(gymckpt.__file__).parent}")


if __name__ == "__main__":
    main(sys.argv[1:])
