"""
The whole proof: every subject in the sizes that fit into some minutes, on two processes.

    python -m gymckpt.testing.prove
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import as_completed

from gymckpt.testing.commands import at_least, ended, processes
from gymckpt.testing.explore import Found, explore, missing_transitions, report

__all__ = ["SIZES", "main"]

SIZES: Sequence[tuple[str, int, int]] = (
    ("checkpoint", 1, 2),
    ("checkpoint", 3, 1),
    ("restore", 1, 2),
    ("checkpoint", 2, 1),
    ("restore", 3, 1),
    ("restore", 2, 1),
    ("retire", 3, 2),
    ("resume", 3, 2),
    ("forget", 3, 2),
    ("resume", 1, 3),
    ("retire", 1, 3),
    ("forget", 1, 3),
    ("retire", 2, 2),
    ("resume", 2, 2),
    ("forget", 2, 2),
)
"""Subject, instances and faults, the longest first."""

PROCESSES = 2


def _explore(size: tuple[str, int, int], seconds: float) -> Found:
    subject, instances, faults = size
    return explore(subject, instances=instances, faults=faults, seconds=seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore everything; return 0 where all was seen, taken and held."""
    parser = argparse.ArgumentParser(prog="python -m gymckpt.testing.prove")
    parser.add_argument(
        "--seconds", type=at_least(1), default=540, help="the time for each subject"
    )
    chosen = parser.parse_args(arguments)
    began_s = time.monotonic()
    runs: list[Found] = []
    with processes(PROCESSES) as pool:
        left = [pool.submit(_explore, size, chosen.seconds) for size in SIZES]
        for done in as_completed(left):
            runs.append(done.result())
            sys.stdout.write(f"{runs[-1]}\n")
            sys.stdout.flush()
    states = sum(run.states for run in runs)
    transitions = sum(run.transitions for run in runs)
    took_s = time.monotonic() - began_s
    sys.stdout.write(f"{states} states and {transitions} transitions in {took_s:.0f} s\n")
    sys.stdout.write(f"{report(runs)}\n")
    return int(bool(missing_transitions(runs)) or not all(run.complete for run in runs))


if __name__ == "__main__":
    sys.exit(ended(main))
