"""
How many checkpoints without faults one core simulates in a second.

Three ways of having the same checkpoints (prepare, renewal, commit with manifest, resume), in one
process and in turn, round after round, so that noise hits all of them alike. `whole` is the
simulation as seeds run it: real deployments with every operation on their files, which are in
memory, a network, a journal with an entry for each transition, and every promise held on the way.
`fakes` has the shipped fake instances in place of deployments, and nothing that watches. `loop` is
what remains without the library: as many messages on the same event loop. Printed are medians of
the process's own CPU time.

    python benchmarks/simulated_checkpoints.py [--instances 8] [--checkpoints 40] [--rounds 7]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from gymckpt.coordinator import GymCheckpointCoordinator
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.journal import MemoryJournal
from gymckpt.runtime.virtual import VirtualClock, VirtualLoop, run_virtually
from gymckpt.testing.fakes import FakeInstance, FakeShardSet
from gymckpt.testing.simulation.loop import SimulatedLoop
from gymckpt.testing.simulation.plan import Plan, Verb
from gymckpt.testing.simulation.run import MEMORY, simulate

CALLS = 4
"""Prepare, renew, commit, resume."""


def whole(instances: int, checkpoints: int) -> None:
    """Run a plan without faults; the end of a run, with all its checks, is a part of it."""
    verb = Verb(kind="checkpoint", body_s=0.0, choice=7)
    plan = Plan(
        seed=1,
        instances=instances,
        rollouts=1,
        turn_s=1.0,
        message_faults={},
        verbs=(verb,) * checkpoints,
        takeover_s=1.0,
        forced=False,
    )
    outcome = simulate(plan)
    if outcome.problems or outcome.operations != checkpoints + 1:
        raise RuntimeError(f"{outcome.operations} operations, {outcome.problems}")


def fakes(instances: int, checkpoints: int) -> None:
    """Drive fake instances on a virtual loop."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as base:

        async def main(loop: VirtualLoop) -> None:
            clock = VirtualClock(loop, wall_ts=1_700_000_000.0)
            shards = FakeShardSet(*(FakeInstance(now_ts=clock.wall_ts) for _ in range(instances)))
            coordinator = GymCheckpointCoordinator(
                shards,
                control_timeout_s=5.0,
                prepare_timeout_s=5.0,
                journal=MemoryJournal(),
                run="bench",
                clock=clock,
            )
            offer = {
                name: (EnvironmentEpisode(f"r{number}", 0),)
                for number, name in enumerate(shards.checkpoint_handles)
            }
            for number in range(checkpoints):
                wire_id = f"c{number}"
                async with coordinator.prepared(wire_id):
                    await coordinator.commit(wire_id, Path(base) / wire_id, offer, restarts={})

        run_virtually(main)


def loop(instances: int, checkpoints: int) -> None:
    """Send as many messages and answers, and wait for each round of them."""
    bare = SimulatedLoop(Random(1))

    async def main() -> None:
        for _ in range(checkpoints * CALLS):
            answers = [bare.create_future() for _ in range(instances)]
            for answer in answers:
                bare.call_later(0.001, bare.call_later, 0.001, answer.set_result, None)
            await asyncio.wait(answers)

    bare.run_until_complete(main())
    bare.bury()
    bare.close()


WAYS: Mapping[str, Callable[[int, int], None]] = {"loop": loop, "fakes": fakes, "whole": whole}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument("--checkpoints", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for run in WAYS.values():
        run(options.instances, 2)  # what is made once is made
    for _ in range(options.rounds):
        for way, run in WAYS.items():
            began_s = time.process_time()
            run(options.instances, options.checkpoints)
            seconds[way].append(time.process_time() - began_s)
    base_s = statistics.median(seconds["loop"])
    print(f"{options.instances} instances; per checkpoint, by CPU time of one core")
    for way, taken in seconds.items():
        median_s = statistics.median(taken)
        each_ms = median_s / options.checkpoints * 1e3
        print(
            f"{way:<6} {each_ms:8.2f} ms  {1e3 / each_ms:8.0f} a second  "
            f"{median_s / base_s:6.1f} of the bare loop"
        )


if __name__ == "__main__":
    main()
