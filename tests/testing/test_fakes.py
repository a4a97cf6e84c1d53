"""The shipped fakes: a controller meets the faults of a script, and crashes where it is told to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gymckpt import GymCheckpointCoordinator
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointOperationError, GymCheckpointUnavailable
from gymckpt.journal import Journal, MemoryJournal, MemoryStore
from gymckpt.testing.fakes import (
    ActorDiedError,
    CrashingJournal,
    FakeInstance,
    FakeShardSet,
    Fault,
    FaultyHandle,
    UnpicklableError,
    as_process,
)

A = EnvironmentEpisode("r-a", 0)
APPENDS_MAX = 60


def coordinator(journal: Journal, *instances: FakeInstance) -> GymCheckpointCoordinator:
    return GymCheckpointCoordinator(
        FakeShardSet(*instances),
        control_timeout_s=5.0,
        prepare_timeout_s=5.0,
        journal=journal,
        run="run-1",
        settle_s=0.01,
    )


def published(root: Path) -> bool:
    return (root / "gym_checkpoint.json").exists()


async def checkpoint(one: GymCheckpointCoordinator, root: Path) -> Any:
    async with one.prepared("c1") as restarts:
        running = {"tools/replica-0": (A,), "tools/replica-1": ()}
        return await one.commit("c1", root, running, restarts=restarts)


async def test_instances_without_faults_take_a_checkpoint(tmp_path: Path) -> None:
    """A whole checkpoint and restore go through, and both instances are open at the end."""
    pair = FakeInstance(), FakeInstance()
    one = coordinator(MemoryJournal(), *pair)
    saved = await checkpoint(one, tmp_path)
    assert all(instance.is_open for instance in pair)
    async with one.restored("x1", tmp_path, saved.manifest):
        assert not any(instance.is_open for instance in pair)
    assert all(instance.is_open for instance in pair)
    assert pair[0].installed == {A.next_attempt()}


async def test_a_fake_may_be_unable_to_save_an_episode() -> None:
    """What `unsavable` names is answered with its reason where it was offered, and not exported."""
    instance = FakeInstance()
    kept, lost = EnvironmentEpisode("r0", 0), EnvironmentEpisode("r1", 0)
    instance.unsavable = {lost: "it holds a socket", EnvironmentEpisode("r9", 0): "not offered"}
    await instance.checkpoint_prepare.remote("c1", deadline_ts=4e12)
    answer = await instance.checkpoint_commit.remote("c1", "/r", (kept, lost), deadline_ts=4e12)
    assert answer.exported_episodes == (kept,)
    assert answer.unsavable == {lost: "it holds a socket"}


async def test_an_error_is_raised_and_the_thing_is_done_or_not() -> None:
    """A scripted error comes once; `does` says whether the instance acted."""
    for does in (True, False):
        instance = FakeInstance()
        instance.script("prepare", Fault(does=does, error=ConnectionError("lost")), None)
        with pytest.raises(ConnectionError):
            await instance.checkpoint_prepare.remote("c1", deadline_ts=4e12)
        assert instance.control.is_open is not does
        assert (await instance.checkpoint_prepare.remote("c1", deadline_ts=4e12)).prepared
        assert [call.outcome for call in instance.calls] == ["raised", "answered"]


async def test_a_lost_answer_gives_the_checkpoint_up_and_reopens(tmp_path: Path) -> None:
    """When the answer to commit is lost on one instance, both are reopened, and no manifest is."""
    pair = FakeInstance(), FakeInstance()
    pair[1].script("commit", Fault(error=ConnectionError("lost")))
    with pytest.raises(GymCheckpointOperationError):
        await checkpoint(coordinator(MemoryJournal(), *pair), tmp_path)
    assert all(instance.is_open for instance in pair)
    assert not published(tmp_path)


async def test_a_dead_instance_is_known_to_be_dead(tmp_path: Path) -> None:
    """Its calls fail for good; the others are reopened."""
    pair = FakeInstance(), FakeInstance()
    pair[1].die()
    with pytest.raises(GymCheckpointOperationError, match="dead"):
        await checkpoint(coordinator(MemoryJournal(), *pair), tmp_path)
    assert pair[0].is_open


async def test_a_fake_refuses_what_a_deployment_refuses() -> None:
    """An id that was resumed is refused, by the shipped control plane."""
    instance = FakeInstance()
    await instance.checkpoint_resume.remote("c1", deadline_ts=0.0)
    with pytest.raises(GymCheckpointUnavailable, match="stale_checkpoint"):
        await instance.checkpoint_prepare.remote("c1", deadline_ts=4e12)


async def test_a_fake_reopens_when_its_lease_ends() -> None:
    """Its clock decides."""
    now_ts = [100.0]
    instance = FakeInstance(grace_s=10.0, now_ts=lambda: now_ts[0])
    await instance.checkpoint_prepare.remote("c1", deadline_ts=130.0)
    now_ts[0] = 139.0
    assert not instance.is_open
    now_ts[0] = 140.0
    assert instance.is_open


@pytest.mark.parametrize("stored", [False, True])
async def test_a_controller_that_crashes_at_any_append_is_recovered(
    tmp_path: Path, stored: bool
) -> None:
    """Wherever the journal crashes, a next controller reopens all and the manifest is true."""
    for at_append in range(1, APPENDS_MAX):
        store, pair = MemoryStore(), (FakeInstance(), FakeInstance())
        root = tmp_path / str(at_append)
        journal = CrashingJournal(store, at_append=at_append, stored=stored)
        first = coordinator(journal, *pair)
        try:
            await checkpoint(first, root)
        except Exception:
            assert journal.crashed  # nothing else may go wrong here
        if not journal.crashed:
            assert at_append > 5, "a checkpoint has more appends than that"
            return
        with as_process("the next controller's"):
            second = coordinator(MemoryJournal(store), *pair)
        await second.recover(force=True)
        assert all(instance.is_open for instance in pair), f"closed after append {at_append}"
        row = MemoryJournal(store).operation("run-1", "c1")
        state = row.state if row is not None else "never opened"
        assert state in {"never opened", "resumed", "discarded"}
        assert published(root) == (state == "resumed"), f"append {at_append}: {state}"
    raise AssertionError("the checkpoint never went through")


async def test_any_instance_may_have_a_script() -> None:
    """A handle with faults passes calls on, loses one that is to be lost, and tells of all."""
    instance = FakeInstance()
    handle = FaultyHandle(instance)
    handle.script("prepare", Fault(does=False, error=UnpicklableError()))
    with pytest.raises(UnpicklableError):
        await handle.checkpoint_prepare.remote("c1", deadline_ts=4e12)
    assert instance.is_open
    await handle.checkpoint_prepare.remote("c1", deadline_ts=4e12)
    assert not instance.is_open
    assert [(call.name, call.outcome) for call in handle.calls] == [
        ("prepare", "raised"),
        ("prepare", "answered"),
    ]
    with pytest.raises(AttributeError):
        handle.something_else.remote()


async def test_an_instance_may_die_later() -> None:
    """It answers as many calls as it is said to, and none after that, healed or not."""
    instance = FakeInstance()
    instance.die(after_calls=2)
    for number in range(2):
        assert not instance.is_dead
        await instance.checkpoint_resume.remote(f"c{number}", deadline_ts=0.0)
    instance.heal()
    with pytest.raises(ActorDiedError):
        await instance.checkpoint_resume.remote("c2", deadline_ts=0.0)
    assert instance.is_dead


async def test_a_healed_instance_has_no_faults_left() -> None:
    """Nothing of a script happens any more, nor what was always to happen."""
    instance = FakeInstance()
    instance.script("resume", None, Fault(error=ValueError("broken")))
    instance.always("resume", Fault(hangs=True))
    assert instance.due == 1
    instance.heal()
    assert instance.due == 0
    await instance.checkpoint_resume.remote("c1", deadline_ts=0.0)


@pytest.mark.parametrize("call", ["prepair", "checkpoint_prepare", ""])
def test_a_script_for_no_call_is_refused(call: str) -> None:
    """A fault that never comes would let a test pass that has tried nothing."""
    instance = FakeInstance()
    with pytest.raises(ValueError, match="one of commit, forget, prepare"):
        instance.script(call, Fault(hangs=True))
    with pytest.raises(ValueError, match="one of commit, forget, prepare"):
        instance.always(call, Fault(hangs=True))
    instance.script("restart_only_servers", Fault(hangs=True))


def test_a_crash_at_no_append_is_refused() -> None:
    """Appends count from 1."""
    with pytest.raises(ValueError, match="counts from 1"):
        CrashingJournal(MemoryStore(), at_append=0)
