"""Simulated runs: what they hold, that one seed is one run, and what the command says."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import subprocess
import sys
from random import Random

import attrs
import pytest

from gymckpt.runtime.virtual import NothingLeft
from gymckpt.testing.simulate import main
from gymckpt.testing.simulation.loop import Process, SimulatedLoop, running_process
from gymckpt.testing.simulation.plan import KINDS, Plan, draw, require_kinds
from gymckpt.testing.simulation.run import Outcome, simulate
from gymckpt.testing.simulation.stepped import SteppedJob, pass_turn
from gymckpt.testing.simulation.sweep import SCENARIOS, crashes
from tests.testing.planted import PLANTED, in_place

SEEDS = range(60)

TELL = """
import hashlib, sys
from gymckpt.testing.simulation.plan import draw
from gymckpt.testing.simulation.run import simulate
for seed in map(int, sys.argv[1:]):
    told = "\\n".join(simulate(draw(seed), timeline=True).timeline)
    print(hashlib.sha256(told.encode()).hexdigest())
"""


def digest(seed: int) -> str:
    """Return what stands for the timeline of a seed."""
    told = "\n".join(simulate(draw(seed), timeline=True).timeline)
    return hashlib.sha256(told.encode()).hexdigest()


@pytest.mark.parametrize("seed", SEEDS)
def test_all_promises_hold(seed: int) -> None:
    """Whatever a seed brings about, S1 to S9, L1 and L2 hold, and all comes to rest."""
    outcome = simulate(draw(seed))
    assert not outcome.problems, "\n".join(outcome.timeline)
    assert outcome.operations > 0


def test_one_seed_is_one_run() -> None:
    """A seed gives the same timeline again, also in a process with another hash seed."""
    seeds = (3, 17, 145, 213)  # the last two took sets in the order of their addresses once
    here = [digest(seed) for seed in seeds]
    assert here == [digest(seed) for seed in seeds]
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    told = subprocess.run(
        [sys.executable, "-c", TELL, *map(str, seeds)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == here
    assert len(set(here)) == len(here)


def test_without_faults_everything_works() -> None:
    """Where no fault may happen, verbs end well and none is counted."""
    outcome = simulate(draw(5, kinds=(), instances=8), timeline=True)
    assert not outcome.problems
    assert not outcome.coverage.fired
    assert outcome.coverage.met


@pytest.mark.parametrize("seed", [2, 5])
def test_a_journal_in_a_file_is_simulated_too(seed: int) -> None:
    """With its journal in SQLite a seed is one run as well, and all promises hold."""
    plan = attrs.evolve(draw(seed), sqlite=True)
    first, again = simulate(plan, timeline=True), simulate(plan, timeline=True)
    assert not first.problems, "\n".join(first.timeline)
    assert first.timeline == again.timeline
    assert first.operations > 0


def test_slow_jobs_let_other_things_happen() -> None:
    """Between two steps of a job time passes; one that is ended unwinds where it is."""
    seen: list[str] = []

    def job() -> None:
        try:
            for number in range(3):
                seen.append(f"step {number}")
                pass_turn()
        finally:
            seen.append("job ends")

    async def main() -> None:
        whole = SteppedJob(loop, job, pause_s=2.0, after=lambda: seen.append("settled"))
        for _ in range(4):
            await asyncio.sleep(1.9)
            seen.append("tick")
        whole.end()
        cut = SteppedJob(loop, job, pause_s=2.0, after=lambda: seen.append("never"))
        cut.end()

    loop = SimulatedLoop(Random(1))
    try:
        loop.run_until_complete(main())
    finally:
        loop.bury()
        loop.close()
    steps = ["step 0", "tick", "step 1", "tick", "step 2", "tick", "job ends", "settled", "tick"]
    assert seen == [*steps, "step 0", "job ends"]


def test_no_other_kind_happens() -> None:
    """Only the kinds of faults that were chosen happen."""
    for seed in range(6):
        outcome = simulate(draw(seed, kinds=("crash", "lose-reply")))
        assert outcome.coverage.fired.keys() <= {"crash", "lose-reply"}


def test_unknown_kinds_are_named() -> None:
    """A kind of fault that there is not is refused with those that there are."""
    with pytest.raises(ValueError, match="no kind of fault: flood; known: delay, "):
        require_kinds(["crash", "flood"])
    assert require_kinds(KINDS) == frozenset(KINDS)


# --- the command --------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    """Return the exit code of the command, and what it printed."""
    out = io.StringIO()
    return main(arguments, out=out), out.getvalue()


def test_the_command_says_what_was_met() -> None:
    """It counts runs, operations and pairs of transition and fault, and the code is 0."""
    code, told = run("--seeds", "0:4", "--jobs", "1", "--coverage")
    assert code == 0
    assert "4 runs, " in told
    assert "operations/s" in told
    assert "checkpoint: open -prepare-> preparing" in told
    assert "transitions never taken: " in told
    assert told.rstrip().endswith("all promises held")


def test_the_command_reproduces_what_broke() -> None:
    """A broken run is told with its seed, the command that repeats it, and its timeline."""
    [planted] = [one for one in PLANTED if str(one) == "a_resume_is_skipped"]
    with in_place(planted):
        code, told = run("--seeds", "0:2", "--jobs", "1", "--faults", "crash")
        assert code == 1
        again = "python -m gymckpt.testing.simulate --seeds 0 --faults crash --timeline"
        assert f"again: {again}" in told
        assert "seed 0 broke S3: " in told
        assert "BROKEN" in told
        code, repeated = run(*again.split()[3:])
    assert code == 1
    first = told.partition("seed 1:")[0]
    assert first.split("seed 0:")[1].strip() in repeated


def test_the_command_sweeps_on_several_processes() -> None:
    """`--sweep` crashes in every scenario, and counts what all processes have met."""
    code, told = run("--sweep", "--no-pairs", "--every", "20", "--jobs", "2", "--json")
    found = json.loads(told)
    assert code == 0
    assert found["broke"] == []
    assert found["faults"]["crash"] >= len(SCENARIOS)
    assert found["faults"]["pause"] == found["faults"]["crash"]


def test_the_command_prints_json() -> None:
    """`--json` prints one object with the same numbers."""
    code, told = run("--seeds", "7", "--json", "--instances", "3")
    found = json.loads(told)
    assert code == 0
    assert found["schema"] == "gymckpt.simulate/1"
    assert found["runs"] == 1
    assert found["broke"] == []
    assert found["pairs"] > found["pairs_met"] > 0
    assert found["timeline"] == []
    _, told = run("--seeds", "7", "--json", "--timeline")
    assert "begins" in json.loads(told)["timeline"][0]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--seeds", "9:3"], "empty range"),
        (["--seeds", "many"], "neither a range A:B"),
        (["--seeds", "1:2:3"], "neither a range A:B"),
        (["--faults", "flood"], "no kind of fault"),
        (["--jobs", "0"], "the least is 1"),
        (["--crash", "lunch,crash,1,0"], "names no run"),
        (["--crash", "restore,crash,1"], "names no run"),
        (["--crash", "restore,crash,-1,0"], "names no run"),
        (["--sweep", "--seeds", "1:3"], "--seeds does not go with --sweep"),
        (["--sweep", "--faults", "crash"], "--faults does not go with --sweep"),
        (["--sweep", "--crash", "restore,crash,1,0"], "leave --sweep out"),
        (["--seeds", "1", "--every", "5"], "go with --sweep only"),
    ],
)
def test_senseless_arguments_are_refused(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They end with code 2 and the reason."""
    with pytest.raises(SystemExit) as refused:
        run(*arguments)
    assert refused.value.code == 2
    assert word in capsys.readouterr().err


def test_a_point_that_no_run_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A crash that never came is not told as one that was survived."""
    code, told = run("--crash", "retire,crash,9999,0")
    assert (code, told) == (2, "")
    assert "so many points: retire of 2: crash at point 9999" in capsys.readouterr().err


def test_what_was_found_before_an_interrupt_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the runs; those that were done are counted, and the code says which it was."""
    one = simulate(draw(7))

    def interrupted(plan: Plan, **_options: object) -> Outcome:
        if plan.seed == 25:
            raise KeyboardInterrupt
        return one

    monkeypatch.setattr("gymckpt.testing.simulate.simulate", interrupted)
    code, told = run("--seeds", "0:100", "--jobs", "1")
    assert code == 130
    assert "20 runs, " in told
    assert told.endswith("interrupted: the rest was not run\n")


# --- crash points -------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_crash_at_any_point_is_recovered(scenario: str) -> None:
    """Before and after each append, call and file job a crash or a pause leaves nothing broken."""
    runs = list(crashes(scenario, instances=2, pairs=False, every=5))
    points = runs[0][1].passed[0][-1]
    assert len(runs) == 1 + 2 * len(range(1, points + 1, 5))
    for crash, outcome in runs:
        assert not outcome.problems, f"{crash}: {outcome.problems}"
    assert all(len(outcome.passed) > 2 for crash, outcome in runs[1:] if crash.kind == "crash")


def test_two_crashes_are_recovered() -> None:
    """Where the recovering controller crashes as well, a third one ends what is left."""
    runs = list(crashes("checkpoint", instances=1, every=9))
    pairs = [outcome for crash, outcome in runs if crash.second]
    assert pairs
    assert all(len(outcome.passed) > 3 for outcome in pairs)
    assert not [(crash, outcome.problems) for crash, outcome in runs if outcome.problems]


def test_a_run_of_the_sweep_is_repeated_by_name() -> None:
    """`--crash` runs one of the sweep again and prints its timeline."""
    code, told = run("--crash", "checkpoint,crash,9,0")
    assert code == 0
    assert "fault          crash at " in told


def test_the_sweep_finds_what_is_planted() -> None:
    """A recovery that forgets an instance is found at some point of the sweep."""
    [planted] = [one for one in PLANTED if str(one) == "recovery_forgets_an_instance"]
    with in_place(planted):
        found = [one for _, one in crashes("checkpoint", pairs=False, every=5) if one.problems]
    assert found
    assert found[0].problems[0].startswith("S3: ")


# --- processes ----------------------------------------------------------------------------------


def test_processes_die_and_stand_still() -> None:
    """A killed process runs nothing, not even cleanup; a paused one finds its timers overdue."""
    seen: list[str] = []

    async def work(name: str) -> None:
        try:
            for number in range(3):
                await asyncio.sleep(1.0)
                process = running_process()
                assert process is not None
                seen.append(f"{process.name}{number}@{asyncio.get_running_loop().time():g}")
        finally:
            seen.append(f"{name} ends")

    async def main() -> None:
        killed, paused = Process("killed"), Process("paused")
        killed.start(work("killed"))
        paused.start(work("paused"))
        await asyncio.sleep(1.5)
        killed.kill()
        paused.pause()
        await asyncio.sleep(8.5)
        loop.go_on(paused)
        await asyncio.sleep(5.0)

    loop = SimulatedLoop(Random(1))
    try:
        loop.run_until_complete(main())
        lived = list(seen)
    finally:
        loop.bury()
        loop.close()
    assert sorted(lived[:2]) == ["killed0@1", "paused0@1"]
    assert lived[2:] == ["paused1@10", "paused2@11", "paused ends"]


def test_going_round_for_ever_is_an_error() -> None:
    """Where no time passes and there is always something to do, that is said."""

    async def main() -> None:
        while True:  # noqa: ASYNC110 - it is to go round
            await asyncio.sleep(0)

    loop = SimulatedLoop(Random(1))
    try:
        with pytest.raises(NothingLeft, match=r"no time passes: .*main of the world"):
            loop.run_until_complete(main())
    finally:
        loop.bury()
        loop.close()


def test_the_order_of_processes_is_drawn() -> None:
    """What is due together runs in an order that the seed draws; each process keeps its own."""

    def order(seed: int) -> list[str]:
        seen: list[str] = []

        async def main() -> None:
            for name in "abc":
                process = Process(name)
                for number in range(2):
                    loop.call_soon(seen.append, f"{name}{number}", context=process.context)
            await asyncio.sleep(1.0)

        loop = SimulatedLoop(Random(seed))
        try:
            loop.run_until_complete(main())
        finally:
            loop.close()
        return seen

    orders = [order(seed) for seed in range(20)]
    assert orders[4] == order(4)
    assert len({tuple(one) for one in orders}) > 5
    assert all(one.index(f"{name}0") < one.index(f"{name}1") for one in orders for name in "abc")
