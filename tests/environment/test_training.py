"""A training loop that knows the API document alone, over scripted, real and remote deployments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gymckpt import (
    GymCheckpointCoordinator,
    GymCheckpointOperationError,
    GymCheckpointUnavailable,
    GymEnvironmentCheckpoint,
    new_operation_id,
)
from gymckpt.journal import open_journal
from gymckpt.journal.memory import MemoryJournal
from gymckpt.participant.gymnasium import SERVER_NAMES, GymnasiumDeployment
from gymckpt.snapshot import METRIC_PREFIX
from tests.environment.playing import LocalHandle, PlayingActor, PlayingHandle
from tests.environment.trainer import Specs, Trainer
from tests.faults.world import until

IDS = ("tools/replica-0", "tools/replica-1")


class Boom(Exception):
    """What a body fails with."""


class Handles:
    """Handles as a coordinator takes them."""

    def __init__(self, handles: Mapping[str, Any]) -> None:
        self.checkpoint_handles = handles


def new_trainer(
    specs: Specs, handles: Mapping[str, Any], root: Path, journal: Any, **settings: Any
) -> Trainer:
    """Return a trainer and its facade over some handles."""
    coordinator = GymCheckpointCoordinator(
        Handles(handles), control_timeout_s=10.0, prepare_timeout_s=10.0, journal=journal, run="job"
    )
    return Trainer(
        specs,
        handles,
        root,
        lambda rollouts: GymEnvironmentCheckpoint(coordinator, rollouts, **settings),
    )


# --- scripted -----------------------------------------------------------------------------------


def playing_specs(count: int) -> dict[str, dict[str, Any]]:
    """Return rollouts of different lengths, dealt out to both instances."""
    return {
        f"r{number}": {"instance": IDS[number % 2], "turns": 5 + 7 * number}
        for number in range(count)
    }


async def test_scripted_deployments(tmp_path: Path) -> None:
    """A loop that is killed goes on from its last snapshot and ends with every turn, once each."""
    journal, specs = MemoryJournal(), playing_specs(10)
    actors = {instance: PlayingHandle(PlayingActor(instance[-1])) for instance in IDS}
    first = new_trainer(specs, actors, tmp_path, journal)
    await first.env_checkpoint.check_startup()
    first.begin()
    await until(lambda: first.ledger["r0"].reply is not None)
    for number in range(3):
        snapshot = await first.snapshot(f"snapshot-{number}", list)
        assert snapshot is not None
        await asyncio.sleep(0.005)
    assert first.dispatched_while_closed == 0
    assert all(metrics[METRIC_PREFIX + "continued"] > 0 for metrics in first.metrics)
    await first.die()
    for actor in actors.values():
        await actor.die()

    actors = {instance: PlayingHandle(PlayingActor(instance[-1])) for instance in IDS}
    second = new_trainer(specs, actors, tmp_path, journal)
    await second.env_checkpoint.check_startup()
    await second.restore("snapshot-2")
    assert second.continued
    second.begin()
    await until(lambda: any(actor.tasks for actor in actors.values()))
    await second.snapshot("snapshot-3", list)  # also one of restored episodes
    await second.finish()
    assert {name: rollout.reply for name, rollout in second.ledger.items()} == {
        name: list(range(spec["turns"])) for name, spec in specs.items()
    }
    assert {second.ledger[name].attempt for name in second.continued} == {1}
    assert await second.snapshot("done", list) is None


# --- Gymnasium, in this process -------------------------------------------------------------------

GAMES: tuple[dict[str, Any], ...] = (
    {"env_id": "FrozenLake-v1", "env_kwargs": {"map_name": "8x8", "is_slippery": True}},
    {"env_id": "CartPole-v1"},
    {"env_id": "Taxi-v4", "max_turns": 40},
)


def game_specs(count: int) -> dict[str, dict[str, Any]]:
    """Return games with seeds of their own, dealt out to both instances."""
    return {
        f"g{number}": {"instance": IDS[number % 2], "seed": number, **GAMES[number % len(GAMES)]}
        for number in range(count)
    }


async def uninterrupted(specs: Specs) -> dict[str, Any]:
    """Return every rollout's steps without any stop."""
    async with GymnasiumDeployment("alone/replica-0") as alone:
        return {
            name: (
                await alone.run(name, 0, **{k: v for k, v in spec.items() if k != "instance"})
            ).steps
            for name, spec in specs.items()
        }


def steps_of(reply: Any) -> Any:
    """Return what a trainer keeps of a reply."""
    return reply if isinstance(reply, list) else list(reply.steps)


Deploy = Callable[..., dict[str, LocalHandle]]


@pytest.fixture
async def deploy() -> AsyncIterator[Deploy]:
    """Make real deployments in this process, and close them after the test."""
    made: list[GymnasiumDeployment] = []

    def make(**settings: Any) -> dict[str, LocalHandle]:
        given = {"turn_pause_s": 0.004, **settings}
        fresh = {instance: GymnasiumDeployment(instance, **given) for instance in IDS}
        made.extend(fresh.values())
        return {instance: LocalHandle(deployment) for instance, deployment in fresh.items()}

    yield make
    for deployment in made:
        await deployment.close()


async def close(handles: Mapping[str, LocalHandle]) -> None:
    """Kill deployments."""
    for handle in handles.values():
        await handle.deployment.close()


async def saved(
    tmp_path: Path, handles: Mapping[str, LocalHandle], journal: Any, count: int = 6
) -> Trainer:
    """Run games for a moment, save them in the middle, and let the trainer die."""
    trainer = new_trainer(game_specs(count), handles, tmp_path, journal)
    trainer.begin()
    await until(lambda: len(trainer.running) == count)
    await asyncio.sleep(0.02)
    assert await trainer.snapshot("snapshot", steps_of) is not None
    await trainer.die()
    return trainer


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_real_deployments(tmp_path: Path, deploy: Deploy, kind: str) -> None:
    """Games that were saved in the middle end as if nothing had ever stopped them."""
    journal = MemoryJournal() if kind == "memory" else open_journal(tmp_path / "journal.sqlite3")
    specs = game_specs(9)
    handles = deploy()
    await saved(tmp_path, handles, journal, count=9)
    await close(handles)
    second = new_trainer(specs, deploy(), tmp_path, journal)
    await second.env_checkpoint.check_startup()
    await second.restore("snapshot")
    assert second.continued
    second.begin()
    await asyncio.sleep(0.01)
    await second.snapshot("again", steps_of)
    await second.finish()
    found = {name: steps_of(rollout.reply) for name, rollout in second.ledger.items()}
    assert found == await uninterrupted(specs)
    journal.close()


async def test_restart_only_deployments(tmp_path: Path, deploy: Deploy) -> None:
    """Games that cannot be captured are counted as restarts, and start over after a crash."""
    journal, specs = MemoryJournal(), game_specs(6)
    handles = deploy(resources_mode="restart-only", restart_only_env_ids=["CartPole-v1"])
    first = await saved(tmp_path, handles, journal)
    assert first.metrics[0][METRIC_PREFIX + "restarted"] == 2.0
    await close(handles)
    second = new_trainer(specs, deploy(), tmp_path, journal)
    await second.restore("snapshot")
    over = {name for name, spec in specs.items() if spec["env_id"] == "CartPole-v1"}
    assert second.continued == set(specs) - over
    assert {second.ledger[name].attempt for name in over} == {1}
    second.begin()
    await second.finish()
    found = {name: steps_of(rollout.reply) for name, rollout in second.ledger.items()}
    assert found == await uninterrupted(specs)


async def test_restart_only_deployments_at_startup(tmp_path: Path, deploy: Deploy) -> None:
    """A real deployment whose tools cannot be captured is known before the first snapshot."""
    handles = deploy(resources_mode="restart-only")
    trainer = new_trainer({}, handles, tmp_path, MemoryJournal(), restart_only="refuse")
    with pytest.raises(RuntimeError, match="resources of tools/replica-0"):
        await trainer.env_checkpoint.check_startup()


async def test_body_of_a_restore_that_fails(tmp_path: Path, deploy: Deploy) -> None:
    """After a discard the same deployments take each rollout as the attempt that RL was told."""
    journal, specs = MemoryJournal(), game_specs(6)
    handles = deploy()
    await saved(tmp_path, handles, journal)
    await close(handles)
    fresh = deploy()
    second = new_trainer(specs, fresh, tmp_path, journal)
    with pytest.raises(Boom):
        async with second.env_checkpoint.restored(tmp_path / "snapshot"):
            raise Boom
    refused = {name for name, rollout in second.ledger.items() if rollout.attempt}
    assert refused
    assert {second.ledger[name].attempt for name in refused} == {2}
    for name in refused:
        handle, spec = fresh[specs[name]["instance"]], dict(specs[name])
        del spec["instance"]
        with pytest.raises(GymCheckpointUnavailable, match="stale_attempt"):
            await handle.run.remote(name, 1, **spec)
    second.begin()
    await second.finish()
    found = {name: steps_of(rollout.reply) for name, rollout in second.ledger.items()}
    assert found == await uninterrupted(specs)


async def test_other_participants_than_recorded(tmp_path: Path, deploy: Deploy) -> None:
    """A deployment with another server installs nothing, and nothing stays on the others."""
    journal = MemoryJournal()
    handles = deploy()
    await saved(tmp_path, handles, journal)
    await close(handles)
    fresh, renamed = deploy(), deploy(server_names={**SERVER_NAMES, "agent": "agent_2"})
    mixed = {IDS[0]: fresh[IDS[0]], IDS[1]: renamed[IDS[1]]}
    second = new_trainer(game_specs(6), mixed, tmp_path, journal)
    with pytest.raises(GymCheckpointOperationError, match="agent_2") as caught:
        await second.restore("snapshot")
    assert list(caught.value.failures) == [IDS[1]]
    for handle in mixed.values():
        assert handle.deployment._servers.is_open
        assert not list(handle.deployment._table)


async def test_same_snapshot_on_the_same_deployments(tmp_path: Path, deploy: Deploy) -> None:
    """A restore that was given up can be done again on the same actors once they have forgotten."""
    journal, specs = MemoryJournal(), game_specs(6)
    handles = deploy()
    await saved(tmp_path, handles, journal)
    await close(handles)
    fresh = deploy()
    second = new_trainer(specs, fresh, tmp_path, journal)
    with pytest.raises(Boom):
        async with second.env_checkpoint.restored(tmp_path / "snapshot") as restored:
            raise Boom
    with pytest.raises(GymCheckpointOperationError, match="stale_attempt"):
        await second.restore("snapshot")
    coordinator = second.env_checkpoint._coordinator  # type: ignore[attr-defined]
    stopped: dict[str, tuple[Any, ...]] = dict.fromkeys(IDS, ())
    for instance, episode in restored.replacements():
        stopped[instance] += (episode,)
    await coordinator.forget(new_operation_id("forget"), stopped)
    await second.restore("snapshot")
    second.begin()
    await second.finish()
    found = {name: steps_of(rollout.reply) for name, rollout in second.ledger.items()}
    assert found == await uninterrupted(specs)


async def test_snapshot_before_rl_attaches(tmp_path: Path, deploy: Deploy) -> None:
    """A snapshot between a restore and RL's first list holds what was restored."""
    journal = MemoryJournal()
    handles = deploy(turn_pause_s=0.05)
    await saved(tmp_path, handles, journal)
    await close(handles)
    second = new_trainer(game_specs(6), deploy(turn_pause_s=0.05), tmp_path, journal)
    async with second.env_checkpoint.restored(tmp_path / "snapshot") as restored:
        pass
    async with second.env_checkpoint.snapshot(tmp_path / "next") as snapshot:
        assert snapshot is not None
        found = snapshot.metrics(0.0)
    assert found[METRIC_PREFIX + "continued"] == len(restored.continued_attempts) > 0


# --- Ray ------------------------------------------------------------------------------------------


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
async def test_ray_actors(tmp_path: Path) -> None:
    """Real actors are killed in the middle; with new ones every game ends as it would have."""
    import ray

    specs = game_specs(6)
    journal = f"sqlite:///{tmp_path}/journal.sqlite3"

    def actors() -> dict[str, Any]:
        return {
            instance: GymnasiumDeployment.as_actor(instance, turn_pause_s=0.02) for instance in IDS
        }

    handles = actors()
    first = new_trainer(specs, handles, tmp_path, journal)
    await first.env_checkpoint.check_startup()
    first.begin()
    await until(lambda: len(first.running) == len(specs))
    await asyncio.sleep(0.2)
    assert await first.snapshot("snapshot", steps_of) is not None
    await first.die()
    for handle in handles.values():
        ray.kill(handle)

    second = new_trainer(specs, actors(), tmp_path, journal)
    await second.env_checkpoint.check_startup()
    await second.restore("snapshot")
    assert second.continued
    second.begin()
    await second.finish()
    found = {name: steps_of(rollout.reply) for name, rollout in second.ledger.items()}
    assert found == await uninterrupted(specs)
