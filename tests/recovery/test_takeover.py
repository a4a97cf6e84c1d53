"""Two controllers at once: the living one keeps what it drives, a paused one is fenced."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from gymckpt import Fenced, RunHeld
from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.manifest import GYM_CHECKPOINT_MANIFEST_FILENAME
from gymckpt.runtime.holding import as_process
from tests.faults.world import until
from tests.recovery.conftest import NewStage
from tests.recovery.controller import WIRE_ID
from tests.recovery.deployments import IDS
from tests.recovery.stage import Stage

OWNER_TIMEOUT_S = 0.8

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


@pytest.mark.parametrize("scenario", ["wait_in_checkpoint", "wait_in_restore"])
async def test_living_controller_keeps_its_operation(new_stage: NewStage, scenario: str) -> None:
    """While its controller lives an operation is left alone, and the other is told who holds it."""
    async with new_stage() as stage:
        await stage.begin(scenario, owner_timeout_s=OWNER_TIMEOUT_S)
        await stage.inside()
        calls = len(stage.station.calls)
        for _ in range(3):  # over more than one timeout: its heartbeats count
            await asyncio.sleep(OWNER_TIMEOUT_S / 2)
            [found] = await stage.recovered(owner_timeout_s=OWNER_TIMEOUT_S)
            assert found.outcome == "held"
            assert not found.ended
            assert isinstance(found.held_by, RunHeld)
            assert stage.process is not None
            assert f":{stage.process.pid}:" in found.held_by.holder
            assert found.held_by.holder in found.reason
            assert found.held_by.age_s < OWNER_TIMEOUT_S
        assert {call.op for call in stage.station.calls[calls:]} <= {"renew"}
        row = stage.journal.operation(stage.run, WIRE_ID)
        assert row is not None
        assert row.epoch == 1
        stage.send(signal.SIGKILL)
        await stage.ended()
        began_s = asyncio.get_running_loop().time()
        [found] = await stage.recovered(owner_timeout_s=OWNER_TIMEOUT_S)
        assert found.ended
        assert asyncio.get_running_loop().time() - began_s < OWNER_TIMEOUT_S
        await stage.examine()


@pytest.mark.parametrize("scenario", ["wait_in_checkpoint", "wait_in_restore"])
async def test_paused_past_its_heartbeat(new_stage: NewStage, scenario: str) -> None:
    """A controller that was paused for too long is taken over, and its body is cancelled then."""
    async with new_stage() as stage:
        await stage.begin(scenario, owner_timeout_s=OWNER_TIMEOUT_S)
        await stage.inside()
        await stage.pause()
        began_s = asyncio.get_running_loop().time()
        [found] = await stage.recovered(owner_timeout_s=OWNER_TIMEOUT_S)
        assert found.ended
        assert asyncio.get_running_loop().time() - began_s >= OWNER_TIMEOUT_S
        calls = len(stage.station.calls)
        stage.send(signal.SIGCONT)
        assert await stage.ended() == 0
        [outcome] = stage.told("outcome")
        assert outcome.startswith("Fenced: ")
        assert "epoch 2" in outcome
        late = stage.station.calls[calls:]  # a renewal that was due may have left before its beat
        assert all(call.op == "renew" and call.outcome != "answered" for call in late)
        await stage.examine()


async def test_living_controller_that_is_overruled(new_stage: NewStage) -> None:
    """A forced takeover fences a living controller: its body is cancelled at its next beat."""
    async with new_stage() as stage:
        await stage.begin("wait_in_checkpoint", owner_timeout_s=OWNER_TIMEOUT_S)
        await stage.inside()
        [found] = await stage.recovered(force=True)
        assert (found.ended, found.found_in, found.state) == (True, "committed", "resumed")
        assert await stage.ended() == 0
        assert stage.told("outcome")[0].startswith("Fenced: ")
        await stage.examine()


CALLS = ("prepare", "renew", "commit")


@pytest.mark.parametrize("call", CALLS)
async def test_calls_of_a_paused_controller(new_stage: NewStage, call: str) -> None:
    """What a fenced controller was about to send is sent when it goes on, and is refused."""
    entered = {"prepare": "preparing", "renew": "confirming", "commit": "committing"}[call]
    async with new_stage() as stage:
        await stage.begin("checkpoint", f"appended {entered}", signal=int(signal.SIGSTOP))
        assert await stage.stopped()
        [found] = await stage.recovered(force=True)
        assert (found.found_in, found.state) == (entered, "discarded")
        stage.send(signal.SIGCONT)
        assert await stage.ended() == 0
        late = [one for one in stage.station.calls if one.op == call]
        assert [one.instance for one in late] == list(IDS)
        assert all("stale_checkpoint" in one.outcome for one in late)
        assert stage.told("outcome")[0].startswith("Fenced: ")
        await stage.examine()


async def test_restore_of_a_paused_controller(new_stage: NewStage) -> None:
    """A restore that a fenced controller sends at last installs nothing."""
    async with new_stage() as stage:
        await stage.begin("restore", "appended restoring", signal=int(signal.SIGSTOP))
        assert await stage.stopped()
        [found] = await stage.recovered(force=True)
        assert (found.found_in, found.state) == ("restoring", "discarded")
        stage.send(signal.SIGCONT)
        assert await stage.ended() == 0
        late = [one for one in stage.station.calls if one.op == "restore"]
        assert len(late) == len(IDS)
        assert all("stale" in one.outcome for one in late)
        await stage.examine()


@pytest.mark.parametrize("absent", [False, True])
async def test_manifest_of_a_paused_controller(new_stage: NewStage, absent: bool) -> None:
    """A manifest that a fenced controller was about to publish never appears (S2)."""
    async with new_stage() as stage:
        await stage.begin("checkpoint", "before job gymckpt-sealed", signal=int(signal.SIGSTOP))
        assert await stage.stopped()
        if absent:  # as where instances write elsewhere, and nobody has made the directory yet
            os.rename(stage.root, stage.root.with_name("elsewhere"))
        [found] = await stage.recovered(force=True)
        assert (found.found_in, found.state) == ("sealing", "discarded")
        stage.send(signal.SIGCONT)
        assert await stage.ended() == 0
        assert not (stage.root / GYM_CHECKPOINT_MANIFEST_FILENAME).exists()
        assert stage.told("outcome")[0].startswith("Fenced: ")
        await stage.examine()


async def test_paused_while_it_holds_the_directory(new_stage: NewStage) -> None:
    """Recovery waits only so long for who is paused in the directory, and ends when that goes."""
    async with new_stage() as stage:
        await stage.begin(
            "checkpoint",
            "inside job gymckpt-sealed",
            signal=int(signal.SIGSTOP),
            control_timeout_s=0.4,
        )
        assert await stage.stopped()
        [found] = await stage.recovered(force=True)
        assert (found.outcome, found.state, found.unconfirmed) == ("unconfirmed", "discarding", ())
        assert all(one.is_open for one in stage.station.deployments.values())
        stage.send(signal.SIGCONT)
        assert await stage.ended() == 0
        await until(lambda: stage.settled)
        assert not (stage.root / GYM_CHECKPOINT_MANIFEST_FILENAME).exists()
        await stage.examine()


async def test_recoveries_at_once(new_stage: NewStage) -> None:
    """Of recoveries that begin at once in one process, one drives each operation."""
    async with new_stage() as stage:
        await stage.begin("checkpoint", "appended committing")
        assert await stage.ended() == -signal.SIGKILL
        rounds = await asyncio.gather(*(stage.recovered(owner_timeout_s=5.0) for _ in range(4)))
        found = [one for round_ in rounds for one in round_]
        assert {one.outcome for one in found} == {"settled"}
        await until(lambda: stage.settled)
        await stage.examine()


async def test_error_of_a_fenced_verb(new_stage: NewStage) -> None:
    """A fenced controller's verbs fail with who drives the operation now, and send nothing more."""
    async with new_stage() as stage:
        await stage.station.open(dispatch=True)
        with pytest.raises(Fenced) as caught:
            await _commit_after_takeover(stage)
        row = stage.journal.operation(stage.run, WIRE_ID)
        assert row is not None
        assert (caught.value.epoch, caught.value.current_epoch) == (1, 2)
        assert caught.value.owner == ""  # it was given back by then
        assert not [call for call in stage.station.calls if call.op == "commit"]
        with pytest.raises(GymCheckpointUnavailable, match="stale"):
            await stage.station.handles[IDS[0]].checkpoint_prepare.remote(WIRE_ID, deadline_ts=9e9)
        await stage.examine()


async def _commit_after_takeover(stage: Stage) -> None:
    coordinator = stage.new_coordinator()
    async with coordinator.prepared(WIRE_ID):
        with as_process("another"):
            await stage.recovered(force=True)
        await coordinator.commit(WIRE_ID, stage.root, dict.fromkeys(IDS, ()), restarts={})
