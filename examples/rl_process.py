"""
One life of the RL controller as a process of its own, which may kill itself at a chosen moment.

Started by `survive_a_kill.py --kill controller`. It finds the live actors by name, settles what a
dead controller left unfinished, goes back to the last published snapshot if there is one, and
works. With `--die-in STATE` it dies by SIGKILL the moment an operation's entry into that state is
durable, before anything of it is sent: no goodbye, no cleanup, the worst moment there is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import ray
from rl_job import Job, actor_name
from rl_loop import ACTOR_LOST, Controller, any_is_dead, outcome_of

from gymckpt import Journal, open_journal
from gymckpt.core.entry import Entry

LOST_AN_ACTOR = 3
"""The exit code that asks for new actors."""

PLANNED = "died-as-planned"
"""The file that a controller leaves which has killed itself where it was told to."""


def deadly(journal: Journal, state: str, times: int, note: Path) -> Journal:
    """
    Return a journal that kills this process once an entry into `state` is durable.

    Args:
        journal: The journal.
        state: A state of an operation's chart.
        times: At which such entry.
        note: A file that says afterwards that it was this death, and no other.
    """
    append, left = journal.append, times

    def append_and_maybe_die(entries: Sequence[Entry], **about: Any) -> None:
        nonlocal left
        append(entries, **about)
        if any(entry.instance is None and entry.dest == state for entry in entries):
            left -= 1
            if not left:
                note.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    journal.append = append_and_maybe_die  # type: ignore[method-assign]
    return journal


async def live(job: Job, options: argparse.Namespace) -> None:
    """Recover, go back, work to the end, and leave what the proof needs."""
    handles = {
        name: ray.get_actor(actor_name(job, name, options.incarnation)) for name in job.instance_ids
    }
    rows = ray.get_actor(f"{job.name}:rows")
    journal = open_journal(f"sqlite:///{options.root}/journal.sqlite3")
    if options.die_in:
        deadly(journal, options.die_in, options.times, options.root / PLANNED)

    def report(finished: int, total: int, what: str) -> None:
        (options.root / "progress.json").write_text(json.dumps([finished, total, what]))

    controller = Controller(job, handles, rows, options.root, report=report, journal=journal)
    in_snapshot = await controller.begin()
    await controller.work(lambda: False)
    outcome = outcome_of(controller, controller.snapshots, in_snapshot)
    (options.root / "result.json").write_text(json.dumps(attrs.asdict(outcome)))


def main() -> int:
    """Parse, connect, live."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", required=True, help="the job as JSON")
    parser.add_argument("--root", required=True, type=Path)
    parser.add_argument("--address", required=True, help="of the Ray cluster")
    parser.add_argument("--incarnation", type=int, default=0, help="which actors are live")
    parser.add_argument("--die-in", default="", help="a state of an operation's chart")
    parser.add_argument("--times", type=int, default=1, help="at which entry into it")
    options = parser.parse_args()
    job = Job(**json.loads(options.job))
    ray.init(
        address=options.address, namespace=job.name, log_to_driver=False, logging_level="error"
    )
    try:
        asyncio.run(live(job, options))
    except ACTOR_LOST as error:
        if not any_is_dead(error):
            raise
        return LOST_AN_ACTOR
    return 0


if __name__ == "__main__":
    sys.exit(main())
