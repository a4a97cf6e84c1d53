"""Ctrl-C in a real process, once and twice, and interrupts that land in a body or in a call."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymckpt.core.replay import replay
from gymckpt.journal import open_journal
from tests.fakes import Immediate
from tests.faults.conftest import NewWorld
from tests.faults.virtual import LoopClock, simulate
from tests.faults.world import World, new_id

PHASES = ("prepare", "renew", "commit", "body", "resume")
ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def started(directory: Path, phase: str, *, answers_s: float) -> Iterator[subprocess.Popen[str]]:
    """Run a controller whose call of one phase takes long."""
    journal = f"sqlite://{directory / 'journal.sqlite3'}"
    arguments = [str(directory), phase, journal, str(answers_s)]
    with subprocess.Popen(
        [sys.executable, "-X", "dev", "-m", "tests.faults.interrupted", *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            wait_for(lambda: reached(directory, phase))
            yield process
        finally:
            process.kill()


def calls(directory: Path) -> list[list[str]]:
    """Return the calls that reached the actors: actor, call and id."""
    path = directory / "calls"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(condition: Callable[[], object], *, bound_s: float = 20.0) -> None:
    """Wait until something is so in another process."""
    ends_s = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def reached(directory: Path, phase: str) -> bool:
    """Whether every actor has been called for a phase, or the body has begun."""
    if phase == "body":
        return (directory / "root" / "gym_checkpoint.json").exists()
    return {actor for actor, op, _ in calls(directory) if op == phase} == {
        f"actor-{number}" for number in range(3)
    }


def last_calls(directory: Path) -> dict[str, str]:
    """Return actor to its last call."""
    return {actor: op for actor, op, _ in calls(directory)}


RESUMED = {f"actor-{number}": "resume" for number in range(3)}


@pytest.mark.parametrize("phase", PHASES)
def test_b37_one_interrupt(phase: str, tmp_path: Path) -> None:
    """B37: one Ctrl-C in any phase: every actor is resumed, and KeyboardInterrupt leaves."""
    with started(tmp_path, phase, answers_s=1.5 if phase == "resume" else 60.0) as process:
        process.send_signal(signal.SIGINT)
        began_s = time.monotonic()
        _, said = process.communicate(timeout=30)
    assert time.monotonic() - began_s < 15
    assert last_calls(tmp_path) == RESUMED
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "GymCheckpoint" not in said.splitlines()[-1]
    assert "never retrieved" not in said
    assert "was destroyed" not in said
    assert process.returncode in (-signal.SIGINT, 130, 1)
    assert not (tmp_path / "finished").exists()
    with open_journal(tmp_path / "journal.sqlite3", read_only=True) as journal:
        operation = replay(journal.read("run", "interrupted"))
    assert operation.state == ("resumed" if phase == "resume" else "discarded")
    standing = (tmp_path / "root" / "gym_checkpoint.json").exists()
    assert standing == (phase == "resume")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("pause_s", [0.001, 0.2])
def test_b37_two_interrupts(phase: str, pause_s: float, thorough: bool, tmp_path: Path) -> None:
    """B37: a second Ctrl-C ends the process soon, with KeyboardInterrupt and a legal history."""
    if (PHASES.index(phase) % 2 == 0) == (pause_s > 0.1) and not thorough:
        pytest.skip("each phase is tried with one pause: run pytest with --thorough")
    with started(tmp_path, phase, answers_s=60.0) as process:
        process.send_signal(signal.SIGINT)
        time.sleep(pause_s)
        process.send_signal(signal.SIGINT)
        began_s = time.monotonic()
        _, said = _ended(process, max(pause_s, 0.5))
    assert time.monotonic() - began_s < 10
    assert "KeyboardInterrupt" in said
    assert not (tmp_path / "finished").exists()
    if pause_s > 0.1:  # the first one had its chance
        assert last_calls(tmp_path) == RESUMED
    with open_journal(tmp_path / "journal.sqlite3", read_only=True) as journal:
        replay(journal.read("run", "interrupted"))


def _ended(process: subprocess.Popen[str], again_s: float) -> tuple[str, str]:
    """Wait for a process; signals that come too close on each other have counted as one."""
    for _ in range(40):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=again_s)
        process.send_signal(signal.SIGINT)
    pytest.fail("the process does not end, however often it is interrupted")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("verb", ["prepare", "renew", "commit", "restore", "resume", "retire"])
@pytest.mark.parametrize("immediate", [False, True])
def test_b37_interrupt_in_a_call(
    interrupt: type[BaseException], verb: str, immediate: bool, tmp_path: Path
) -> None:
    """B37: an interrupt that lands in any call leaves as itself, after every actor is resumed."""

    async def main() -> None:
        world = World(3, clock=LoopClock(), root=tmp_path)
        raised = interrupt("in a call")
        world.actors[1].scripts[verb] = [Immediate(raised) if immediate else raised]
        kind = verb if verb in ("restore", "resume", "retire") else "checkpoint"
        if verb == "resume":
            kind = "checkpoint"
        with pytest.raises(interrupt) as caught:
            await world.operate(kind, new_id())
        assert caught.value is raised
        await asyncio.sleep(60)
        if verb != "retire":
            assert all(actor.calls[-1].op == "resume" for actor in world.actors)
        await world.examine()

    simulate(main)


async def test_b37_interrupt_while_cleaning_up(new_world: NewWorld) -> None:
    """B37: an interrupt that lands in a resume leaves in place of the error that came before."""
    world = new_world(2)
    world.actors[0].always["commit"] = RuntimeError("first")
    raised: Any = KeyboardInterrupt()
    world.actors[1].scripts["resume"] = [raised]
    with pytest.raises(KeyboardInterrupt) as caught:
        await world.operate("checkpoint", "both")
    assert caught.value is raised
    assert "first" in str(caught.value.__cause__)
