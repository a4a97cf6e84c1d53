"""
Which way of awaiting many Ray references is fastest.

Each way turns references into futures that a loop can wait for; the first is what the scheduler
uses. Ways are run in turn, round after round in one process, so that noise hits all of them alike;
printed are medians and ratios to the plain `await` of each reference in a task of its own.

    python benchmarks/await_references.py [--references 2000] [--rounds 15]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

import ray

from gymckpt.runtime.instances import watch


async def in_a_task(reference: Any) -> Any:
    """Await one reference."""
    return await reference


WAYS: dict[str, Callable[[Any], asyncio.Future[Any]]] = {
    "a task that awaits": lambda reference: asyncio.ensure_future(in_a_task(reference)),
    "gymckpt.watch": watch,
    "as_future": lambda reference: reference.as_future(),
    "wrap_future(future())": lambda reference: asyncio.wrap_future(reference.future()),
}


async def measure(references: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every round of every way."""
    actor = ray.remote(num_cpus=0)(Echo).remote()
    await actor.echo.remote(0)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, wrap in WAYS.items():
            asked = [actor.echo.remote(number) for number in range(references)]
            began = time.perf_counter()
            await asyncio.wait([wrap(reference) for reference in asked])
            seconds[way].append(time.perf_counter() - began)
    return seconds


class Echo:
    """An actor that answers at once."""

    async def echo(self, number: int) -> int:
        """Return what came."""
        return number


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--references", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    seconds = asyncio.run(measure(options.references, options.rounds))
    ray.shutdown()
    base = statistics.median(seconds["a task that awaits"])
    for way, taken in seconds.items():
        median = statistics.median(taken)
        each_us = median / options.references * 1e6
        print(f"{way:<24} {each_us:8.1f} us each   {median / base:5.2f} of the baseline")


if __name__ == "__main__":
    main()
