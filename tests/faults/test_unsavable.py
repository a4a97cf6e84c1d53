"""Episodes whose state an instance cannot save: recorded as restarts, told to whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt import (
    EnvironmentEpisode,
    GymCheckpointCommitSummary,
    GymCheckpointCoordinator,
    GymCheckpointOperationError,
    ShardSet,
    load_gym_checkpoint_manifest,
)
from gymckpt.diagnosis.explain import explain
from gymckpt.journal import Journal
from gymckpt.journal.portable import write_export
from gymckpt.participant.gymnasium import GymnasiumDeployment
from gymckpt.participant.policies import POLICIES, RandomPolicy
from gymckpt.testing.instance import handle_of
from tests.cli.command import run
from tests.fakes import default_commit
from tests.faults.conftest import NewWorld
from tests.faults.virtual import LoopClock, simulate
from tests.faults.world import World, episode, new_id


def losing(*lost: EnvironmentEpisode, why: str = "ValueError: no JSON") -> Any:
    """Return an export that cannot save some episodes."""

    def export(offered: Collection[EnvironmentEpisode]) -> GymCheckpointCommitSummary:
        kept = default_commit([found for found in offered if found not in lost])
        return attrs.evolve(kept, unsavable=dict.fromkeys(lost, why))

    return export


async def test_the_manifest_the_result_and_the_journal_tell_it(
    new_world: NewWorld, journal: Journal
) -> None:
    """It is a restart of the manifest after those left out, and its reason is in the journal."""
    world = new_world(2, journal=journal)
    kept, lost, left_out = episode("r0"), episode("r1", 3), episode("r2")
    here = world.ids[0]
    world.actors[0].restarts = (left_out,)
    world.actors[0].export = losing(lost, why="LookupError: its tool\n is gone")
    async with world.coordinator.prepared("c"):
        result = await world.coordinator.commit(
            "c",
            world.root(),
            {here: (lost, kept), world.ids[1]: ()},
            restarts={here: (left_out,)},
        )
    assert result.unsavable == {here: {lost: "LookupError: its tool\n is gone"}}
    assert result.manifest.instances[here] == (kept,)
    assert result.manifest.restarts[here] == (left_out, lost)
    assert result.manifest.staging_keys[here] == ("r0/c0",)
    assert load_gym_checkpoint_manifest(world.root()) == result.manifest
    [found] = [
        entry.facts for entry in world.journal.read(world.run, "c") if "unsavable" in entry.facts
    ]
    [named] = found["unsavable"]["sample"]
    assert (found["unsavable"]["count"], named["episode"]) == (1, "r1-a3")
    assert "its tool" in named["reason"]


async def test_explain_and_show_name_them(new_world: NewWorld, tmp_path: Path) -> None:
    """`explain` finds them worth knowing, no problem; `show` names them below the timeline."""
    world = new_world(1)
    lost = [episode(f"lost{number}") for number in range(12)]
    world.actors[0].export = losing(*lost, why="ValueError: it holds a file handle")
    async with world.coordinator.prepared("c"):
        await world.coordinator.commit("c", world.root(), {world.ids[0]: lost}, restarts={})
    await world.quiet()
    explanation = explain(world.journal.read(world.run, "c"))
    exported = tmp_path / "c.jsonl"
    write_export(world.journal, world.run, "c", exported)
    [finding] = [one for one in explanation.findings if one.code == "unsavable"]
    assert not finding.problem
    assert not explanation.problem
    assert finding.words.startswith("12 episodes could not be saved and start over after a crash")
    assert finding.words.count("it holds a file handle") == 5
    assert "and 7 more" in finding.words
    shown = run("show", str(exported))
    assert shown.exit_code == 0, shown.output
    assert "12 cannot be saved and start over: lost0: ValueError: it holds a file" in shown.output


async def test_what_was_not_offered_is_no_restart(new_world: NewWorld) -> None:
    """An instance that cannot save what nobody offered has broken its word: no manifest appears."""
    world = new_world(2)
    world.actors[1].export = losing(episode("stranger"))
    with pytest.raises(GymCheckpointOperationError, match=r"cannot save 1 episode\(s\)") as caught:
        async with world.coordinator.prepared("c"):
            await world.coordinator.commit("c", world.root(), world.offer(), restarts={})
    assert [type(error) for error in caught.value.failures.values()] == [RuntimeError]
    assert not (world.root() / "gym_checkpoint.json").exists()


FATES = st.sampled_from(["exported", "lost", "on the wire", "left out"])


@given(instances=st.lists(st.lists(FATES, max_size=6), min_size=1, max_size=3))
def test_every_episode_is_in_the_one_place_that_is_true(
    instances: list[list[str]], tmp_path_factory: Any
) -> None:
    """Whatever becomes of whom, exactly what was exported continues and what was lost restarts."""
    root = tmp_path_factory.mktemp("fates")

    async def main() -> None:
        world = World(len(instances), clock=LoopClock(), root=root)
        by_fate: dict[str, dict[str, tuple[EnvironmentEpisode, ...]]] = {}
        for number, (name, fates) in enumerate(zip(world.ids, instances, strict=True)):
            named = {episode(f"i{number}.{n}"): fate for n, fate in enumerate(fates)}
            by_fate[name] = {
                fate: tuple(one for one, found in named.items() if found == fate)
                for fate in ("exported", "lost", "on the wire", "left out")
            }
            world.actors[number].restarts = by_fate[name]["left out"]
            exported, lost = by_fate[name]["exported"], by_fate[name]["lost"]
            summary = attrs.evolve(default_commit(exported), unsavable=dict.fromkeys(lost, "why"))
            world.actors[number].export = lambda _offered, answer=summary: answer
        offered = {
            name: (*found["exported"], *found["lost"], *found["on the wire"])
            for name, found in by_fate.items()
        }
        restarts = {name: found["left out"] for name, found in by_fate.items()}
        async with world.coordinator.prepared(name := new_id()):
            result = await world.coordinator.commit(name, root / name, offered, restarts=restarts)
        for instance, found in by_fate.items():
            assert result.manifest.instances[instance] == found["exported"]
            assert result.manifest.restarts[instance] == (*found["left out"], *found["lost"])
            assert tuple(result.unsavable.get(instance, {})) == found["lost"]
        await world.examine()

    simulate(main)


class Forgetful(RandomPolicy):
    """A policy that cannot say its state once it has acted."""

    def to_state(self) -> dict[str, Any]:
        raise LookupError("the policy keeps its state in a socket")


async def test_a_real_deployment_saves_the_others_and_plays_on(tmp_path: Path) -> None:
    """With real environments the rest is committed, and the one that was lost goes on at resume."""
    policies = {**POLICIES, "forgetful": Forgetful}
    name = "tools/replica-0"
    async with GymnasiumDeployment(name, policies=policies, turn_pause_s=0.001) as deployment:
        shards = ShardSet(handles={"tools": [handle_of(deployment)]})
        coordinator = GymCheckpointCoordinator(
            shards, control_timeout_s=5.0, prepare_timeout_s=5.0, journal="memory://"
        )
        arguments: dict[str, Any] = {"env_id": "Taxi-v4", "seed": 7, "max_turns": 150}
        runs = [
            asyncio.create_task(deployment.run(rollout, policy=policy, **arguments))
            for rollout, policy in (("good", "random"), ("lost", "forgetful"))
        ]
        await asyncio.sleep(0)
        async with coordinator.prepared("c") as restarts:
            assert restarts == {name: frozenset()}
            offered = {name: (episode("good"), episode("lost"))}
            result = await coordinator.commit("c", tmp_path / "c", offered, restarts={})
        assert result.manifest.instances == {name: (episode("good"),)}
        assert result.manifest.restarts == {name: (episode("lost"),)}
        [reason] = result.unsavable[name].values()
        assert reason == "LookupError: the policy keeps its state in a socket"
        assert {(await one).ended_by for one in runs} <= {"truncated", "max_turns", "terminated"}
