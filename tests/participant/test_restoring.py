"""How a deployment installs saved episodes: all of them, parked, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gymckpt.episodes import EnvironmentEpisode, instance_directory
from gymckpt.errors import GymCheckpointUnavailable, ParticipantRefused
from tests.participant.support import (
    E0,
    E1,
    INSTANCE,
    N0,
    N1,
    SERVERS,
    CountingDeployment,
    Door,
    Make,
    ManualTime,
    Saved,
    commit,
    discarded,
    idle,
    restore,
    start,
    until,
)


async def test_restored_episodes_are_parked_until_resume(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """They stand as attempt+1 where they were, move only after resume, and keep their old rows."""
    await restore(deployment, time, saved)
    for body in deployment.bodies.values():
        body.allow(5)
    await idle()
    assert {e: body.turns for e, body in deployment.bodies.items()} == {N0: 2, N1: 2}
    assert deployment.phases == ["restored"] * 4
    reply = start(deployment.attach("r0", 1))
    await deployment.checkpoint_resume("x1", deadline_ts=0)
    assert await reply == ("r0-a1", 5)
    rows = ["r0/t00000", "r0/t00001", "r0-a1/t00002", "r0-a1/t00003", "r0-a1/t00004"]
    assert deployment.bodies[N0].row_keys == rows


async def test_a_part_of_a_checkpoint_may_be_restored(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """Only the episodes that are named come back."""
    await restore(deployment, time, saved, E1)
    assert set(deployment.bodies) == {N1}


async def test_a_restored_episode_can_be_saved_and_restored_again(
    make: Make, time: ManualTime, saved: Saved, tmp_path: Path
) -> None:
    """Attempt 1 is saved and continues as attempt 2, with the rows of attempt 0 and its own."""
    first, second = make(), make()
    await restore(first, time, saved, E0)
    await first.checkpoint_resume("x1", deadline_ts=0)
    prepare = start(first.checkpoint_prepare("c2", deadline_ts=time.now_ts() + 5))
    await idle()
    first.bodies[N0].allow()
    await prepare
    summary = await commit(first, time, tmp_path / "two", N0, checkpoint_id="c2")
    assert summary.staging_keys_by_episode == {N0: ("r0/t00000", "r0/t00001", "r0-a1/t00002")}
    await first.close()
    await restore(second, time, saved, N0, root=tmp_path / "two", source_checkpoint_id="c2")
    assert set(second.bodies) == {EnvironmentEpisode("r0", 2)}


async def test_a_restore_is_idempotent(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """The same restore again, late, repeats the answer and makes no second body."""
    await restore(deployment, time, saved)
    bodies = dict(deployment.bodies)
    await restore(deployment, time, saved, E1, E0, deadline_ts=time.now_ts() - 1)
    assert deployment.bodies == bodies
    assert [s.control.recorded("restore") for s in deployment._servers.all] == [True] * 4
    with pytest.raises(GymCheckpointUnavailable, match="checkpoint_conflict"):
        await restore(deployment, time, saved, E0)
    with pytest.raises(GymCheckpointUnavailable, match="checkpoint_conflict"):
        await restore(deployment, time, saved, root=saved.root / "other")


async def test_a_second_restore_waits_for_the_same_work(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """While the first one still reads, the same call joins it."""
    door = Door()
    deployment.before_rebuild = door
    first = start(restore(deployment, time, saved))
    await until(door.reached.is_set)
    second = start(restore(deployment, time, saved))
    await idle()
    door.open.set()
    await first
    await second
    assert set(deployment.bodies) == {N0, N1}


async def test_an_attempt_that_is_dispatched_while_a_restore_reads_is_not_doubled(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """The dispatch of the attempt came first, so the restore is refused, and installs nothing."""
    door = Door()
    deployment.before_rebuild = door
    restoring = start(restore(deployment, time, saved))
    await until(door.reached.is_set)
    dispatched = start(deployment.run("r0", 1))
    await idle()
    door.open.set()
    with pytest.raises(GymCheckpointUnavailable, match="stale_attempt"):
        await restoring
    with pytest.raises(ParticipantRefused, match="stale_attempt"):
        await dispatched
    await discarded(deployment, time)


async def test_a_restored_lease_that_runs_out_lets_the_attempts_go_on(
    make: Make, time: ManualTime, saved: Saved
) -> None:
    """A controller that vanished after a restore leaves a deployment that runs."""
    deployment = make(grace_s=20.0)
    await restore(deployment, time, saved)
    time.advance(25.0)
    await until(lambda: deployment.entered(N0) == 1)
    with pytest.raises(GymCheckpointUnavailable, match="stale_checkpoint"):
        await restore(deployment, time, saved)


# --- refused before anything moves ----------------------------------------------------------------


@pytest.mark.parametrize(
    "participants", [SERVERS[:3], (*SERVERS, "extra"), (), ("agent", "environment", "model", "r")]
)
async def test_the_participants_must_be_the_same(
    deployment: CountingDeployment, time: ManualTime, saved: Saved, participants: tuple[str, ...]
) -> None:
    """B8: a server that is missing or new is an error, never skipped."""
    with pytest.raises(ValueError, match="participants are not this deployment's"):
        await restore(deployment, time, saved, participants=participants)
    assert deployment.phases == ["idle"] * 4


async def test_a_refused_next_attempt_refuses_the_restore(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """What was retired as attempt 1 cannot be restored from attempt 0, and nothing is closed."""
    await deployment.checkpoint_retire("s1", [N1], deadline_ts=time.now_ts() + 5)
    with pytest.raises(GymCheckpointUnavailable, match="stale_attempt"):
        await restore(deployment, time, saved)
    assert deployment.phases == ["idle"] * 4
    assert deployment.bodies == {}


async def test_a_next_attempt_that_is_here_already_refuses_the_restore(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """A restore does not touch a running attempt of the same name."""
    start(deployment.run("r0", 1))
    await until(lambda: deployment.entered(N0) == 1)
    with pytest.raises(GymCheckpointUnavailable, match="dispatched here before"):
        await restore(deployment, time, saved)
    assert deployment.phases == ["idle"] * 4


async def test_a_restore_takes_over_from_the_attempt_that_still_runs(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """Attempt 0 that runs here is stopped when attempt 1 is installed."""
    run = start(deployment.run("r0"))
    await until(lambda: deployment.entered(E0) == 1)
    await restore(deployment, time, saved, E0)
    with pytest.raises(Exception, match="stale_attempt"):
        await run


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", SERVERS)
async def test_damage_on_one_server_discards_all(
    deployment: CountingDeployment, time: ManualTime, saved: Saved, server: str
) -> None:
    """A damaged file of any one server retires the next attempts and reopens every server."""
    [path] = instance_directory(saved.root, INSTANCE).glob(f"gym/*/{server}/manifest.json")
    path.write_text(path.read_text().replace("c1", "c2"))
    with pytest.raises(ValueError, match=f"{server}/manifest.json: checkpoint_id is 'c2'"):
        await restore(deployment, time, saved)
    await discarded(deployment, time)


async def test_the_source_must_be_the_checkpoint_that_wrote(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """Records of another checkpoint than the named one are refused."""
    with pytest.raises(ValueError, match="checkpoint_id is 'c1', expected 'c9'"):
        await restore(deployment, time, saved, source_checkpoint_id="c9")
    await discarded(deployment, time)


async def test_an_episode_that_was_not_saved_fails_the_restore(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """A manifest that names an episode without records restores none of the others."""
    with pytest.raises(ValueError, match="not saved"):
        await restore(deployment, time, saved, E0, E1, EnvironmentEpisode("r9", 0))
    await discarded(deployment, time)


async def test_a_restore_past_its_deadline_is_discarded(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """A rebuild that takes too long installs nothing, also when it ends at last."""
    door = Door()
    deployment.before_rebuild = door
    call = start(restore(deployment, time, saved))
    await until(door.reached.is_set)
    time.advance(5.0)
    with pytest.raises(GymCheckpointUnavailable, match="deadline_exceeded"):
        await call
    door.open.set()
    await deployment._workshop.quiet(10)
    deployment.before_rebuild = lambda: None
    await discarded(deployment, time)


async def test_a_restore_that_fails_after_its_lease_has_run_out_leaves_nothing_closed(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """Where the clock has jumped past the lease, cleaning up finds it gone and still reopens."""
    door = Door()
    deployment.before_rebuild = door
    call = start(restore(deployment, time, saved, E0, EnvironmentEpisode("r9", 0)))
    await until(door.reached.is_set)
    time.step_clock(10_000.0)
    door.open.set()
    with pytest.raises(GymCheckpointUnavailable, match="deadline_exceeded"):
        await call
    await idle()
    assert deployment.phases == ["idle"] * 4


async def test_a_later_deadline_of_the_same_restore_counts(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """Whoever asks again gives the work more time; the first caller is refused at its own."""
    door = Door()
    deployment.before_rebuild = door
    first = start(restore(deployment, time, saved))
    await until(door.reached.is_set)
    second = start(restore(deployment, time, saved, deadline_ts=time.now_ts() + 50))
    await idle()
    time.advance(6.0)
    with pytest.raises(GymCheckpointUnavailable, match="deadline_exceeded"):
        await first
    door.open.set()
    await second
    assert deployment.phases == ["restored"] * 4


async def test_a_resume_overtakes_a_restore(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """A resume while the restore still reads reopens at once; nothing is installed afterwards."""
    door = Door()
    deployment.before_rebuild = door
    call = start(restore(deployment, time, saved))
    await until(door.reached.is_set)
    resume = start(deployment.checkpoint_resume("x1", deadline_ts=0))
    await idle()
    assert deployment.phases == ["idle"] * 4
    with pytest.raises(GymCheckpointUnavailable, match="stale_checkpoint"):
        await call
    door.open.set()
    await resume
    assert not list(deployment._table)
    assert deployment.bodies == {}


async def test_bodies_that_nobody_wants_any_more_are_closed(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """A resume that comes when the episodes are rebuilt already installs none and leaks none."""
    door = Door()
    deployment.after_rebuild = door
    call = start(restore(deployment, time, saved))
    await until(door.reached.is_set)
    resume = start(deployment.checkpoint_resume("x1", deadline_ts=0))
    await idle()
    door.open.set()
    await resume
    with pytest.raises(GymCheckpointUnavailable, match="stale_checkpoint"):
        await call
    assert [body.closed for body in deployment.bodies.values()] == [1, 1]
    assert not list(deployment._table)


async def test_an_attempt_retired_during_its_restore_discards_the_restore(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """All or none: one next attempt that was retired meanwhile takes the others with it."""
    door = Door()
    deployment.after_rebuild = door
    call = start(restore(deployment, time, saved))
    await until(door.reached.is_set)
    await deployment.checkpoint_retire("x1", [N1], deadline_ts=time.now_ts() + 5)
    door.open.set()
    with pytest.raises(GymCheckpointUnavailable, match="stale_attempt"):
        await call
    assert [body.closed for body in deployment.bodies.values()] == [1, 1]
    deployment.after_rebuild = lambda: None
    await discarded(deployment, time)


async def test_cleaning_up_after_a_failed_restore_is_confirmed(
    deployment: CountingDeployment, time: ManualTime, saved: Saved
) -> None:
    """The controller's own retire and resume after a failure ask for nothing new, and succeed."""
    with pytest.raises(ValueError, match="expected 'c9'"):
        await restore(deployment, time, saved, source_checkpoint_id="c9")
    await deployment.checkpoint_retire("x1", [N0, N1], deadline_ts=time.now_ts() + 5)
    await deployment.checkpoint_resume("x1", deadline_ts=time.now_ts() + 5)
    with pytest.raises(GymCheckpointUnavailable, match="stale_checkpoint"):
        await deployment.checkpoint_retire(
            "x1", [EnvironmentEpisode("r5", 1)], deadline_ts=time.now_ts() + 5
        )
