"""
Kill everything in the middle of the work, and lose nothing that was saved.

Real Ray actors host real Gymnasium environments; a small RL controller dispatches rollouts and
takes checkpoints while they run. In the middle every actor is killed and the controller thrown
away. A new one with new actors restores the last published snapshot and finishes. At the end every
trajectory is held against an uninterrupted run, step for step; the exit code is 1 if any differs.

    python examples/survive_a_kill.py [--instances 4] [--episodes 8] [--seed 0] [--kill-at 0.4]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import ray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from rl_job import Job, RowStore, actor_name
from rl_loop import ACTOR_LOST, Controller, Outcome, any_is_dead, outcome_of
from rl_process import LOST_AN_ACTOR, PLANNED

from gymckpt import open_journal
from gymckpt.participant.gymnasium import GymnasiumDeployment

Report = Callable[[int, int, str], None]

TURN_PAUSE_S = 0.03
RESTART_ONLY_INSTANCE = 3
"""Which instance's resources server cannot be captured, so that restarts are exercised."""


class RowSink:
    """What a deployment stores its turns with."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    async def __call__(self, key: str, row: dict[str, Any]) -> None:
        """Store one row, and return when it is stored."""
        await self.rows.put.remote(key, row)


def start_actors(job: Job, rows: Any, incarnation: int, **options: Any) -> dict[str, Any]:
    """
    Start one deployment per instance.

    Args:
        job: What is to be done.
        rows: The row store's handle.
        incarnation: Part of the actors' names.
        **options: For Ray.
    """
    make = GymnasiumDeployment.remote_class()
    return {
        instance: make.options(name=actor_name(job, instance, incarnation), **options).remote(
            instance,
            row_sink=RowSink(rows),
            turn_pause_s=TURN_PAUSE_S,
            resources_mode="restart-only" if index == RESTART_ONLY_INSTANCE else "stateless",
        )
        for index, instance in enumerate(job.instance_ids)
    }


# --- the proof ----------------------------------------------------------------------------------


async def uninterrupted(job: Job) -> dict[str, list[dict[str, Any]]]:
    """Run every rollout from its first turn to its last, in this process and without a stop."""
    found: dict[str, list[dict[str, Any]]] = {}
    async with GymnasiumDeployment("alone/replica-0") as deployment:
        for name, spec in job.rollouts.items():
            arguments = {key: value for key, value in spec.items() if key != "instance"}
            found[name] = (await deployment.run(name, 0, **arguments)).steps
    return found


def proof(
    job: Job,
    outcome: Outcome,
    expected: dict[str, list[dict[str, Any]]],
    rows: dict[str, dict[str, Any]],
    history: list[tuple[int, str]],
) -> dict[str, Any]:
    """
    Hold the finished run against the uninterrupted one.

    Args:
        job: What was to be done.
        outcome: What the controllers left.
        expected: Rollout to its steps without any stop.
        rows: The row store at the end.
        history: (session, key) of every row that ever came.
    """
    last = max(session for session, _ in history)
    again = Counter(key for session, key in history if session == last)
    saved_rows = frozenset(outcome.saved_rows)
    differing, lost, twice, in_the_middle = [], [], [], 0
    for name, rollout in outcome.ledger.items():
        reply = rollout["reply"] or {"steps": [], "row_keys": []}
        keys = reply["row_keys"]
        stored = [step_of(rows.get(key, {}), name) for key in keys]
        if reply["steps"] != expected[name] or stored != expected[name]:
            differing.append(name)
        if name in outcome.continued:
            saved = [key for key in keys if key in saved_rows]
            later = [key for key in keys if key not in saved_rows]
            in_the_middle += bool(saved)
            lost += [key for key in later if not again[key]]
            twice += [key for key in later if again[key] > 1] + [key for key in saved if again[key]]
    return {
        "rollouts": len(job.rollouts),
        "steps": sum(len(steps) for steps in expected.values()),
        "differing": differing,
        "continued": len(outcome.continued),
        "continued_mid_episode": in_the_middle,
        "started_over": len(outcome.started_over),
        "steps_lost": lost,
        "steps_run_twice": twice,
    }


def step_of(row: dict[str, Any], rollout: str) -> dict[str, Any]:
    """Return the step that a row of a rollout holds, without the row's own names."""
    names = {"rollout_id", "attempt", "capture_key"}
    return {key: row[key] for key in row if key not in names and row["rollout_id"] == rollout}


# --- the run ------------------------------------------------------------------------------------


LIVES_MAX = 10
"""How many times a job is taken up again before the example gives up."""


async def kill_actors(
    job: Job, kill_at: float, root: Path, rows: Any, report: Report
) -> tuple[Outcome, dict[str, Any]]:
    """Work, kill every actor and forget the controller, then go on with new ones."""
    at_the_kill, snapshots = None, []
    for incarnation in range(LIVES_MAX):
        handles = start_actors(job, rows, incarnation)
        controller = Controller(job, handles, rows, root, report=report)
        try:
            in_snapshot = await controller.begin()
            if at_the_kill is None:
                await work_until(controller, kill_at)
                at_the_kill = controller.finished
                report(at_the_kill, len(controller.ledger), "killing every actor")
            else:
                await controller.work(lambda: False)
        except ACTOR_LOST as error:
            if not any_is_dead(error):
                raise
            report(controller.finished, len(controller.ledger), "lost an actor, going back")
        snapshots += controller.snapshots
        if controller.done and incarnation:
            return outcome_of(controller, snapshots, in_snapshot), {
                "finished_at_the_kill": at_the_kill
            }
        for handle in handles.values():
            ray.kill(handle)
        del controller
    raise RuntimeError(f"actors were lost in each of {LIVES_MAX} lives; see what kills them")


async def work_until(controller: Controller, kill_at: float) -> None:
    """Let a controller work until it is time to kill."""
    wanted = round(kill_at * len(controller.ledger))
    await controller.work(lambda: controller.finished >= wanted and controller.latest is not None)
    if controller.latest is None:
        raise RuntimeError("everything finished before the first snapshot; ask for more episodes")


PLANNED_DEATHS = (("committing", 2, "a checkpoint"), ("restoring", 1, "a restore"))
"""In which state each controller kills itself, at which entry into it, and what that is."""


async def kill_controllers(
    job: Job, root: Path, rows: Any, report: Report
) -> tuple[Outcome, dict[str, Any]]:
    """Kill one controller in the middle of a checkpoint, the next in a restore; the third ends."""
    address = ray.get_runtime_context().gcs_address
    planned, killed = list(PLANNED_DEATHS), list[str]()
    incarnation = 0
    handles = start_actors(job, rows, incarnation)  # held: an actor without a handle is stopped
    for _ in range(LIVES_MAX):
        state, times, what = planned[0] if planned else ("", 1, "")
        command = [sys.executable, str(Path(__file__).parent / "rl_process.py")]
        command += ["--job", json.dumps(attrs.asdict(job)), "--root", str(root)]
        command += ["--address", address, "--incarnation", str(incarnation)]
        command += ["--die-in", state, "--times", str(times)]
        process = await asyncio.create_subprocess_exec(*command)
        await progress_of(process, root, report)
        if process.returncode == -signal.SIGKILL and (root / PLANNED).exists():
            (root / PLANNED).unlink()
            killed.append(what)
            planned = planned[1:]
        elif process.returncode == -signal.SIGKILL:  # by somebody else, at any moment
            killed.append("its work")
        elif process.returncode == LOST_AN_ACTOR:
            for handle in handles.values():
                ray.kill(handle)
            incarnation += 1
            handles = start_actors(job, rows, incarnation)
        elif process.returncode == 0:
            outcome = Outcome(**json.loads((root / "result.json").read_text()))
            return outcome, {"controllers_killed_in": killed}
        else:
            raise RuntimeError(f"a controller ended with exit code {process.returncode}")
    raise RuntimeError(f"the work did not end in {LIVES_MAX} lives; see what kills them")


async def progress_of(process: asyncio.subprocess.Process, root: Path, report: Report) -> None:
    """Report what a controller's process does, until it ends."""
    while process.returncode is None:
        with contextlib.suppress(OSError, ValueError):
            report(*json.loads((root / "progress.json").read_text()))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 0.2)


async def run(job: Job, kill: str, kill_at: float, root: Path, report: Report) -> dict[str, Any]:
    """Work, kill, restore, finish, prove."""
    rows = ray.remote(num_cpus=0)(RowStore).options(name=f"{job.name}:rows").remote()
    if kill == "actors":
        outcome, killed = await kill_actors(job, kill_at, root, rows, report)
    else:
        outcome, killed = await kill_controllers(job, root, rows, report)
    report(len(job.rollouts), len(job.rollouts), "comparing")
    found = proof(
        job,
        outcome,
        await uninterrupted(job),
        await rows.dump.remote(),
        await rows.history.remote(),
    )
    parked = [metrics["gym_checkpoint/paused_s"] for metrics in outcome.snapshots]
    return (
        killed
        | found
        | {
            "finished_in_the_snapshot": outcome.finished_in_the_snapshot,
            "recovered": recovered_of(job, root),
            "snapshots": len(outcome.snapshots),
            "parked_s_max": round(max(parked, default=0.0), 4),
            "parked_s_sum": round(sum(parked), 4),
        }
    )


def recovered_of(job: Job, root: Path) -> int:
    """Return how many operations another controller than their first one has ended."""
    with open_journal(f"sqlite:///{root}/journal.sqlite3", read_only=True) as journal:
        return sum(row.epoch > 1 for row in journal.operations(job.name))


def table_of(result: dict[str, Any]) -> Table:
    """Return the result as people read it."""
    table = Table(title="Survive a kill", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    killed = result.get("controllers_killed_in")
    first = (
        ("controllers killed in", ", ".join(killed) or "nothing, they were too quick")
        if killed is not None
        else ("finished when everything was killed", result["finished_at_the_kill"])
    )
    for what, value in (
        ("rollouts", result["rollouts"]),
        ("steps", result["steps"]),
        first,
        ("operations recovered from the journal", result["recovered"]),
        ("finished in the snapshot restored", result["finished_in_the_snapshot"]),
        ("episodes continued", result["continued"]),
        ("  of them in the middle", result["continued_mid_episode"]),
        ("episodes started over (restart-only)", result["started_over"]),
        ("snapshots published", result["snapshots"]),
        ("parked, longest", f"{result['parked_s_max'] * 1000:.0f} ms"),
        ("parked, all together", f"{result['parked_s_sum'] * 1000:.0f} ms"),
        ("trajectories that differ", len(result["differing"])),
        ("steps of continued episodes lost", len(result["steps_lost"])),
        ("steps of continued episodes run twice", len(result["steps_run_twice"])),
    ):
        table.add_row(what, str(value))
    return table


def failed(result: dict[str, Any]) -> bool:
    """Whether anything differs from an uninterrupted run."""
    return bool(result["differing"] or result["steps_lost"] or result["steps_run_twice"])


def main() -> int:
    """Parse, run, report."""
    parser = argparse.ArgumentParser(description="Kill everything; lose nothing that was saved.")
    parser.add_argument("--instances", type=int, default=4, help="environment deployments")
    parser.add_argument("--episodes", type=int, default=8, help="episodes in flight on each")
    parser.add_argument("--seed", type=int, default=0, help="for environments and policies")
    parser.add_argument("--kill-at", type=float, default=0.4, help="after which share of rollouts")
    parser.add_argument(
        "--kill",
        choices=("actors", "controller"),
        default="actors",
        help="kill every actor, or the controller's process in a checkpoint and in a restore",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    if options.instances < 1 or options.episodes < 1 or not 0 <= options.kill_at < 1:
        parser.error("--instances and --episodes are at least 1, --kill-at is in [0, 1)")
    job = Job(
        name=f"survive-{os.getpid()}-{int(time.time())}",
        instances=options.instances,
        in_flight=options.episodes,
        waves=3,
        seed=options.seed,
    )
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    console = Console(stderr=True)
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        namespace=job.name,
    )
    try:
        with (
            contextlib.redirect_stdout(sys.stderr),  # Ray reports dead workers there
            tempfile.TemporaryDirectory(prefix="survive-a-kill-") as root,
            Progress(
                TextColumn("{task.description:<32}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
                disable=not console.is_terminal,
            ) as progress,
        ):
            bar = progress.add_task("starting", total=len(job.rollouts))

            def report(finished: int, total: int, what: str) -> None:
                progress.update(bar, completed=finished, total=total, description=what)

            result = asyncio.run(run(job, options.kill, options.kill_at, Path(root), report))
    finally:
        ray.shutdown()
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        Console().print(table_of(result))
    return 1 if failed(result) else 0


if __name__ == "__main__":
    sys.exit(main())
