"""
Ten ways in which an operation gets stuck: `explain` names the cause and what comes next.

Each fault is put into a run with a real coordinator; what is asserted is what somebody would read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gymckpt.core.entry import Entry
from gymckpt.diagnosis.explain import explain
from gymckpt.diagnosis.explanation import Explanation
from gymckpt.diagnosis.replay import replay
from gymckpt.errors import Fenced, GymCheckpointOperationError, GymCheckpointUnavailable
from gymckpt.replies import GymCheckpointPrepareSummary
from tests.diagnosis.stuck import BUSY, RUN, Scene, WaitingJournal, play
from tests.fakes import HANG, ActorDiedError, Apply, Late

RESET = ConnectionError("connection reset by peer")
"""A failure that may be gone at the next try."""


def not_ready(*rollouts: str) -> Late:
    """Answer, after a while, that rollouts of the agent are still moving."""
    return Late(5.0, GymCheckpointPrepareSummary(False, {"agent": rollouts}, ()))


def test_hung_actor(tmp_path: Path) -> None:
    """A prepare that never comes back: who, since when, until when, and where it leads."""

    async def scene(run: Scene) -> None:
        run.busy.always["prepare"] = HANG
        task = run.begun("cp")
        await asyncio.sleep(120.0)
        now = run.explain("cp")
        assert (now.state, now.problem, now.blocking_total) == ("preparing", False, 1)
        assert now.waits_for == "1 of 3 instances to answer prepare"
        [block] = now.blocking
        assert (block.instance, block.call, block.state) == (BUSY, "prepare", "asked")
        assert block.age_s == pytest.approx(120.0)
        assert now.next[0].kind == "expire"
        assert now.next[0].in_s == pytest.approx(185.0)
        assert now.next[0].leads_to == "discarding"
        assert f"look into {BUSY}" in now.advice
        assert "discard" in {move.name for move in now.moves if move.allowed}
        assert isinstance(await task, GymCheckpointOperationError)
        after = run.explain("cp")
        assert after.problem
        assert after.cause is not None
        assert after.cause.first_instance == BUSY
        assert "did not answer prepare within 5 min 5 s" in after.cause.words
        assert "does it hang?" in after.advice
        assert after.next == ()

    play(tmp_path, scene)


def test_agent_that_never_parks(tmp_path: Path) -> None:
    """Not ready time and again with other rollouts: the blockers, and that they change."""

    async def scene(run: Scene) -> None:
        for number in range(4):
            run.busy.always["prepare"] = not_ready(f"r-{number}", f"r-{number + 50}")
            await run.checkpoint(f"cp-{number}")
        found = run.explain("cp-3")
        assert found.cause is not None
        assert "refused prepare after 5 s: not ready, agent: 2 (r-3, r-53)" in found.cause.words
        [culprit] = found.cause.culprits
        assert culprit.instance == BUSY
        assert culprit.behaviour is not None
        assert (culprit.behaviour.asked, culprit.behaviour.refused) == (3, 3)
        assert culprit.behaviour.blockers == "changing"
        assert f"what agent of {BUSY} is busy with" in found.advice
        run.busy.always["prepare"] = not_ready("r-3", "r-99")
        await run.checkpoint("cp-4")
        again = run.explain("cp-4", history=[run.entries("cp-3")])
        assert again.cause is not None
        assert again.cause.culprits[0].behaviour.blockers == "same"  # type: ignore[union-attr]

    play(tmp_path, scene)


def test_dead_actor(tmp_path: Path) -> None:
    """An actor that died during the commit: that it is dead, and must be replaced."""

    async def scene(run: Scene) -> None:
        died = ActorDiedError("the node was lost")
        run.busy.always["commit"] = Late(2.0, died)
        run.busy.always["renew"] = run.busy.always["resume"] = died
        run.busy.scripts["renew"] = [Late(0.1)]
        await run.checkpoint("cp")
        found = run.explain("cp")
        assert found.state == "discarded"
        assert found.cause is not None
        assert (found.cause.in_state, found.cause.first_instance) == ("committing", BUSY)
        assert f"{BUSY} is dead, commit said so after 2 s: ActorDiedError" in found.cause.words
        assert f"replace {BUSY}" in found.advice

    play(tmp_path, scene)


def test_lost_commit_reply(tmp_path: Path) -> None:
    """A commit that was done and never answered: unknown, given up at its budget, new directory."""

    async def scene(run: Scene) -> None:
        run.busy.always["commit"] = Apply(HANG)
        task = run.begun("cp")
        await asyncio.sleep(20.0)
        now = run.explain("cp")
        assert (now.state, [one.instance for one in now.blocking]) == ("committing", [BUSY])
        expire = next(step for step in now.next if step.kind == "expire")
        assert expire.leads_to == "discarding"
        assert now.lease is not None
        await task
        found = run.explain("cp")
        assert found.cause is not None
        assert found.cause.call == "commit"
        assert "did not answer commit within 35 s" in found.cause.words
        assert "a new directory" in found.advice

    play(tmp_path, scene)


def test_full_disk_at_sealing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full when the manifest is written: the file system, not an instance."""

    def full(*_arguments: Any, **_keywords: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gymckpt.manifest.write_beside", full)

    async def scene(run: Scene) -> None:
        assert isinstance(await run.checkpoint("cp"), OSError)
        found = run.explain("cp")
        assert found.cause is not None
        assert (found.cause.trigger, found.cause.first_instance) == ("seal_failed", None)
        assert "No space left on device" in found.cause.words
        assert f"repair the file system of {tmp_path / 'cp'}" in found.advice

    play(tmp_path, scene)


def test_lost_lease(tmp_path: Path) -> None:
    """A renewal that is not answered any more: whose lease, since when, and when it is lost."""

    async def scene(run: Scene) -> None:
        run.busy.scripts["renew"] = [Late(0.1), Late(0.1)]
        run.busy.always["renew"] = RESET
        task = run.begun("cp", body_s=200.0)
        await asyncio.sleep(30.0)
        now = run.explain("cp")
        assert (now.state, now.problem) == ("parked", True)
        assert [one.instance for one in now.blocking] == [BUSY]
        lose = next(step for step in now.next if step.kind == "lose_lease")
        assert lose.leads_to == "discarding"
        error = await task
        assert isinstance(error, GymCheckpointOperationError)
        found = run.explain("cp")
        assert found.cause is not None
        assert (found.cause.trigger, found.cause.first_instance) == ("lose_lease", BUSY)
        assert f"the lease of {BUSY} is lost" in found.cause.words
        assert lose.at_ts == pytest.approx(found.cause.at_ts, abs=0.01)
        assert "find out why" in found.advice

    play(tmp_path, scene)


def test_controller_killed_in_each_state(tmp_path: Path) -> None:
    """Whatever the state in which its controller dies: that nobody drives it, and what recovers."""

    async def scene(run: Scene) -> None:
        assert await run.checkpoint("cp") is None
        whole = run.entries("cp")
        last_of = {state: seq for seq, state in enumerate(_states(whole), 1)}
        del last_of["resumed"]
        assert len(last_of) == 8
        for state, seq in last_of.items():
            cut = whole[:seq]
            now_ts = cut[-1].ts + 1200.0
            found = explain_cut(cut, now_ts)
            assert (found.state, found.controller.status, found.problem) == (state, "silent", True)
            assert "nobody drives it" in found.waits_for
            assert "recovers it at its start" in found.advice
            recover = next(move for move in found.moves if move.name == "recover")
            target = {"committed": "resuming", "open": "discarded"}.get(state, "discarding")
            reopening = state in ("resuming", "discarding")
            assert (target in recover.does) is not reopening
            assert "until a controller takes it over" in found.summary or "silent" in found.summary
            if state in ("open", "resuming"):  # nothing was sent, or everything is confirmed
                assert found.next == ()
            else:
                [horizon] = found.next
                assert horizon.kind == "lease_horizon"
                assert horizon.at_ts is not None
                assert horizon.at_ts > cut[-1].ts + 500.0

    play(tmp_path, scene)


def _states(entries: Sequence[Entry]) -> list[str]:
    """Return the operation's state after each entry."""
    return [state.state for state in replay(entries).states]


def explain_cut(entries: Sequence[Entry], now_ts: float) -> Explanation:
    """Explain a history that ends with the death of its controller."""
    return explain(entries, now_ts=now_ts, silent_s=now_ts - entries[-1].ts)


@pytest.mark.parametrize(
    ("owner", "silent_s", "status"),
    [
        ("host-a:1:30s", 3.0, "alive"),
        ("host-a:1:30s", 12.0, "unknown"),
        ("host-a:1:30s", 31.0, "silent"),
        ("host-a:1:5s", 1.5, "alive"),
        ("host-a:1:5s", 28.6, "unknown"),
        ("host-a:1:5s", 31.0, "silent"),
        ("host-a:1:300s", 60.0, "alive"),
        ("host-a:1:300s", 150.0, "unknown"),
        ("host-a:1", 3.0, "alive"),
        ("host-a:1", 12.0, "unknown"),
        ("", 31.0, "silent"),
        ("host-a:1:command", 4.0, "unknown"),
    ],
)
def test_who_is_merely_not_yet_gone_is_not_called_alive(
    tmp_path: Path, owner: str, silent_s: float, status: str
) -> None:
    """A controller is judged by how often it gives a heartbeat, which its token tells."""

    async def scene(run: Scene) -> None:
        run.busy.always["commit"] = HANG
        run.begun("cp")
        await asyncio.sleep(10.0)
        entries = run.entries("cp")
        now_ts = entries[-1].ts + silent_s
        found = explain(entries, now_ts=now_ts, owner=owner, silent_s=silent_s)
        assert found.controller.status == status
        assert ("is alive" in found.controller.words) is (status == "alive")
        assert ("may have ended" in found.controller.words) is (status == "unknown")
        assert ("it gives one every" in found.controller.words) is (
            status == "unknown" and owner != "host-a:1"
        )

    play(tmp_path, scene)


def test_what_was_due_long_ago_is_not_promised(tmp_path: Path) -> None:
    """Killed in a commit, with a short timeout of its own: what is known, and nothing of 0 ms."""

    async def scene(run: Scene) -> None:
        run.busy.always["commit"] = HANG
        run.begun("cp")
        await asyncio.sleep(9.0)
        later_s = run.explain("cp").next[0].in_s
        assert later_s is not None
        known = {"owner": "host-a:1:5s", "history": ()}
        now_ts = run.clock.wall_ts() + later_s
        soon = explain(run.entries("cp"), now_ts=now_ts + 0.5, silent_s=0.5, **known)
        assert soon.advice.startswith("wait: any moment now it goes on by itself")
        late = explain(run.entries("cp"), now_ts=now_ts + 20.0, silent_s=0.5, **known)
        assert late.advice.startswith("look into the controller's log: it was to go on by itself")
        gone = explain(run.entries("cp"), now_ts=now_ts + 20.0, silent_s=28.6, **known)
        assert gone.controller.words == (
            "controller host-a:1:5s may have ended: its last heartbeat is 28.6 s old, though it "
            "gives one every 833 ms; it counts as gone when that is 30 s old"
        )
        assert gone.advice.startswith("see whether its controller still runs: it was to go on")
        assert "20 s ago" in gone.advice
        codes = {finding.code: finding.words for finding in gone.findings}
        assert "no heartbeat for 28.6 s" in codes["overdue"]
        assert "it has ended, or it or its journal hangs" in codes["overdue"]
        assert "quiet" not in codes
        quiet = explain(run.entries("cp"), now_ts=now_ts + 6.0, silent_s=6.0, **known)
        [finding] = quiet.findings
        assert (finding.code, quiet.problem, gone.problem) == ("quiet", True, True)
        assert "within 5 s and gave none for 6 s" in finding.words
        assert {move.why_not for move in gone.moves if move.allowed} == {
            "refused until its controller has been silent for 30 s, unless --force is added"
        }

    play(tmp_path, scene)


def test_refusal_is_not_said_to_pass_by_itself(tmp_path: Path) -> None:
    """What an instance refuses may last for ever, such as for what was retired: its words count."""

    async def scene(run: Scene) -> None:
        run.busy.always["prepare"] = GymCheckpointUnavailable("r1-a0 was retired")
        await run.checkpoint("refused")
        assert "its own words say what has to change" in run.explain("refused").advice
        run.busy.always["prepare"] = RESET
        await run.checkpoint("reset")
        assert "it may pass by itself" in run.explain("reset").advice

    play(tmp_path, scene)


def test_two_controllers(tmp_path: Path) -> None:
    """A second controller that takes a living one's operation: who was overruled, and by whom."""

    async def scene(run: Scene) -> None:
        task = run.begun("cp", body_s=100.0)
        await asyncio.sleep(15.0)
        second = run.controller()
        await second.recover(force=True)
        assert isinstance(await task, Fenced)
        found = run.explain("cp")
        assert found.cause is not None
        assert found.cause.trigger == "settle"
        assert "took it over from a controller that had given a heartbeat" in found.cause.words
        assert (found.controller.epoch, found.controller.takeovers) == (2, 1)

    play(tmp_path, scene)


def test_controllers_that_fight(tmp_path: Path) -> None:
    """Controllers that take an operation from each other again and again are found out."""

    async def scene(run: Scene) -> None:
        for actor in run.actors:
            actor.always["resume"] = HANG
        run.begun("cp", body_s=100.0)
        await asyncio.sleep(15.0)
        for _ in range(3):
            contender = run.controller()
            run.loop.create_task(contender.recover(force=True))
            await asyncio.sleep(5.0)
        found = run.explain("cp")
        fight = next(finding for finding in found.findings if finding.code == "takeovers")
        assert fight.problem
        assert "more than one controller" in fight.words
        assert "3 times" in fight.words

    play(tmp_path, scene)


def test_clock_step(tmp_path: Path) -> None:
    """A controller's clock that is set back: the step is named as well as what it led to."""

    async def scene(run: Scene) -> None:
        start_ts = run.clock.wall_ts()
        for actor in run.actors:
            actor.fenced, actor.wall = True, lambda: start_ts + run.loop.time()
        task = run.begun("cp", body_s=20.0)
        await asyncio.sleep(10.0)
        run.clock.step_wall(-3600.0)
        await task
        found = run.explain("cp")
        step = next(finding for finding in found.findings if finding.code == "clock_step")
        assert "stepped back by 1 h" in step.words
        assert "too late" in step.words
        assert found.cause is not None
        assert "deadline_exceeded" in found.cause.words
        assert "stepped back by 1 h" in found.summary

    play(tmp_path, scene)


def test_slow_journal(tmp_path: Path) -> None:
    """A journal that takes seconds for every entry: the controller is slow, not the instances."""

    async def scene(run: Scene) -> None:
        run.coordinator = run.controller(WaitingJournal(run.journal.store))
        run.loop.job_s = lambda name: 4.0 if name == "gymckpt-journal" else 0.0
        assert await run.checkpoint("cp", body_s=60.0) is None
        found = run.explain("cp")
        slow = next(finding for finding in found.findings if finding.code == "slow_controller")
        assert slow.problem
        assert "its journal takes that long" in slow.words
        assert "4.1 s" in slow.words
        fast = Scene(run.loop, tmp_path / "fast")
        assert await fast.checkpoint("cp-2", body_s=60.0) is None
        assert fast.explain("cp-2").findings == ()

    play(tmp_path, scene)


def test_explanation_is_the_error_s_note(tmp_path: Path) -> None:
    """The error of a failed checkpoint carries the one-line summary of its explanation."""

    async def scene(run: Scene) -> None:
        run.busy.always["prepare"] = not_ready("r-7")
        error = await run.checkpoint("cp")
        assert error is not None
        notes = [note for note in error.__notes__ if note.startswith("explained: ")]
        assert notes == [f"explained: {run.explain('cp').summary}"]
        assert BUSY in notes[0]
        assert "r-7" in notes[0]
        assert run.journal.operation(RUN, "cp") is not None

    play(tmp_path, scene)
