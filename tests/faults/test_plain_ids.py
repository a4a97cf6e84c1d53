"""
An id that is a subclass of `str` is its text, wherever it comes in.

A member of `class P(str, Enum)` is equal to its text, but hashes by its name and prints as
`P.MEMBER`; a `numpy.str_` prints otherwise than it reads. What reaches instances, the journal and
files is the plain text.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from gymckpt.coordinator import GymCheckpointManifest, load_gym_checkpoint_manifest
from gymckpt.core.replay import replay
from gymckpt.core.settings import RetryPolicy
from gymckpt.environment import GymEnvironmentCheckpoint
from gymckpt.episodes import (
    EnvironmentEpisode,
    require_instance_id,
    require_operation_id,
    require_rollout_id,
    require_shard,
)
from gymckpt.errors import ParticipantRefused
from gymckpt.journal import MemoryJournal, Opening
from gymckpt.participant.control import ControlPlane
from gymckpt.recovery import recover
from gymckpt.replies import GymCheckpointCommitSummary, GymCheckpointPrepareSummary
from gymckpt.runtime.instances import ShardSet
from gymckpt.snapshot import LedgerUnderCut
from gymckpt.values import plain
from tests.environment.source import Source
from tests.fakes import FakeActor
from tests.faults.virtual import LoopClock, simulate
from tests.faults.world import World


class Shouting(str):
    """A text that is another one wherever it is formatted, and hashes as nothing else does."""

    __slots__ = ()

    def __str__(self) -> str:
        return "SHOUTED"

    def __repr__(self) -> str:
        return "SHOUTED"

    def __format__(self, spec: str) -> str:
        return "SHOUTED"

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True


def member(text: str) -> str:
    """Return a member of an enumeration of texts."""
    return enum.Enum("P", {"MEMBER": text}, type=str).MEMBER  # type: ignore[no-any-return]


KINDS: dict[str, Callable[[str], str]] = {"enum": member, "numpy": np.str_, "subclass": Shouting}

each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def odd_texts(value: Any) -> Iterator[str]:
    """Yield every text in a value that is of a subclass of `str`."""
    if isinstance(value, str):
        if type(value) is not str:
            yield f"{type(value).__name__}: {str.__str__(value)}"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from odd_texts(key)
            yield from odd_texts(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from odd_texts(item)
    elif attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            yield from odd_texts(getattr(value, field.name))


def kept(world: World) -> None:
    """Hold what instances were sent, and what the journal and its operations say, against it."""
    sent = [(call.op, call.args, call.kwargs) for actor in world.actors for call in actor.calls]
    rows = world.journal.operations(world.run)
    entries = [entry for row in rows for entry in world.journal.read(row.run, row.operation_id)]
    assert list(odd_texts([sent, list(rows), entries])) == []
    assert all(row.settled for row in rows)
    for row in rows:
        replay(world.journal.read(row.run, row.operation_id))
    assert {actor.holder for actor in world.actors} == {None}


def odd_world(kind: Callable[[str], str], root: Path) -> World:
    """Return a world whose run, shard and calls are named by odd texts."""
    actors = (FakeActor(fenced=True), FakeActor(fenced=True))
    world = World(root=root, clock=LoopClock())
    world.actors, world.run = actors, kind(world.run)
    world.shards = ShardSet(handles={kind("tools"): actors})  # type: ignore[assignment]
    world.settings["retry"] = {kind("resume"): RetryPolicy(attempts=2, pause_s=0.1)}
    return world


def odd(kind: Callable[[str], str], inventory: Mapping[str, Any]) -> dict[str, Any]:
    """Return an inventory with odd instance ids and rollout ids."""
    return {
        kind(instance): tuple(EnvironmentEpisode(kind(one.rollout_id), one.attempt) for one in some)
        for instance, some in inventory.items()
    }


# --- the verbs ----------------------------------------------------------------------------------


@each_kind
def test_a_checkpoint_under_any_kind_of_text_ends_as_under_its_plain_one(
    kind: Callable[[str], str], tmp_path: Path
) -> None:
    """Parking, renewing, committing and reopening work, and only plain text leaves."""

    async def scene() -> None:
        world = odd_world(kind, tmp_path)
        coordinator, root = world.coordinator, tmp_path / "snapshot"
        offered = {"tools/replica-0": (), "tools/replica-1": (EnvironmentEpisode("r-1", 0),)}
        left = {kind("tools/replica-0"): [EnvironmentEpisode(kind("r-2"), 0)]}
        async with coordinator.prepared(kind("it")) as restarts:
            assert list(odd_texts(restarts)) == []
            await coordinator.renew(kind("it"))
            result = await coordinator.commit(kind("it"), root, odd(kind, offered), restarts=left)
            assert list(odd_texts([result.manifest, result.instances])) == []
        assert world.operation("it").state == "resumed"
        assert load_gym_checkpoint_manifest(root) == result.manifest
        await coordinator.prepare(kind("more"))
        await coordinator.resume(kind("more"))
        assert coordinator.has_opened(kind("more"))
        assert await coordinator.history(kind("it")) == world.journal.read(plain(world.run), "it")
        kept(world)

    simulate(scene)


@each_kind
def test_a_restore_and_what_is_retired_and_forgotten_are_plain(
    kind: Callable[[str], str], tmp_path: Path
) -> None:
    """Restore, retire, forget and a lone resume work, and only plain text leaves."""

    async def scene() -> None:
        world = odd_world(kind, tmp_path)
        coordinator = world.coordinator
        inventory = odd(kind, {name: world.offer()[name] for name in world.ids})
        names = {kind(name): [kind("agent"), kind("environment")] for name in world.ids}
        keys = {kind(name): [kind(f"row-{name[-1]}")] for name in world.ids}
        nothing: dict[str, Any] = {kind(name): () for name in world.ids}
        manifest = GymCheckpointManifest(2, kind("source"), inventory, keys, nothing, names)
        assert list(odd_texts(manifest)) == []
        async with coordinator.restored(kind("it"), tmp_path, manifest):
            pass
        assert world.operation("it").state == "resumed"
        await coordinator.restore(kind("kept"), tmp_path, _later(manifest))
        await coordinator.retire_restored(kind("kept"), _later(manifest))
        await coordinator.resume(kind("kept"))
        await coordinator.retire(kind("swept"), inventory)
        await coordinator.forget(kind("forgotten"), inventory)
        await coordinator.resume(kind("unknown"))
        await coordinator.recover()
        kept(world)

    simulate(scene)


def _later(manifest: GymCheckpointManifest) -> GymCheckpointManifest:
    """Return the manifest of what a restore of another one left running."""
    return attrs.evolve(manifest, instances=manifest.next_attempts())


@each_kind
def test_the_facade_knows_odd_ids_by_their_text(kind: Callable[[str], str], tmp_path: Path) -> None:
    """RL's list and ledger agree with what was saved, whatever kind of text they hold."""

    async def scene() -> None:
        world = odd_world(kind, tmp_path)
        source = Source(odd(kind, world.offer()))
        rollouts = {one.rollout_id for some in world.offer().values() for one in some}
        source.ledger = LedgerUnderCut(unfinished=frozenset(map(kind, rollouts)))
        assert source.ledger.unfinished == rollouts
        facade = GymEnvironmentCheckpoint(world.coordinator, source)
        async with facade.snapshot(tmp_path / "snapshot") as snapshot:
            assert snapshot is not None

            @attrs.define
            class Cut:
                live: bool = True

            await snapshot.check_against_cut(Cut())
        kept(world)

    simulate(scene)


@each_kind
async def test_a_command_recovers_a_run_by_any_kind_of_text(kind: Callable[[str], str]) -> None:
    """The run is found by its text."""
    assert await recover(MemoryJournal(), {}, run=kind("run")) == ()


# --- values -------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize(
    ("require", "text"),
    [
        (require_operation_id, "it"),
        (require_rollout_id, "r-1"),
        (require_shard, "tools"),
        (require_instance_id, "tools/replica-0"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_rule_for_ids_returns_plain_text(
    kind: Callable[[str], str], require: Callable[[object], str], text: str
) -> None:
    """The text itself passes, never what its class makes of it."""
    found = require(kind(text))
    assert (type(found), found) == (str, text)


@each_kind
def test_values_hold_plain_text(kind: Callable[[str], str]) -> None:
    """Episodes, summaries and openings keep the text, and are equal to those made of it."""
    episode = EnvironmentEpisode(kind("r-1"), 2)
    made = [
        episode,
        EnvironmentEpisode.from_capture_key(kind("r-1-a2")),
        GymCheckpointPrepareSummary(False, {kind("agent"): {kind("r-1")}}, (episode,)),
        GymCheckpointCommitSummary(
            [episode], [kind("row")], {kind("agent")}, {episode: [kind("row")]}
        ),
        Opening(
            run=kind("run"), operation_id=kind("it"), chart=kind("checkpoint"), chart_version=1
        ),
    ]
    assert list(odd_texts(made)) == []
    assert made[0] == made[1] == EnvironmentEpisode("r-1", 2)
    assert hash(made[0]) == hash(EnvironmentEpisode("r-1", 2))
    assert str(episode.capture_key) == "r-1-a2"


@each_kind
def test_a_text_that_is_there_twice_is_refused(kind: Callable[[str], str]) -> None:
    """Two keys that are one text would hide each other, so that neither is taken."""
    if hash(kind("tools")) == hash("tools"):
        pytest.skip("such keys are one key already")
    with pytest.raises(ValueError, match="twice: tools"):
        ShardSet(handles={kind("tools"): (), "tools": ()})
    with pytest.raises(ValueError, match="twice: agent"):
        GymCheckpointPrepareSummary(False, {kind("agent"): (), "agent": ()}, ())


@each_kind
def test_a_control_plane_fences_the_text_of_an_id(kind: Callable[[str], str]) -> None:
    """An id that was resumed under one kind of text is stale under every other."""
    control = ControlPlane("agent")
    control.prepare(kind("it"), deadline_ts=10.0, now_ts=1.0)
    assert type(control.state.checkpoint_id) is str
    control.resume(kind("it"), now_ts=2.0)
    assert list(odd_texts(control.state.stale_ids)) == []
    with pytest.raises(ParticipantRefused, match="stale_checkpoint"):
        control.prepare("it", deadline_ts=10.0, now_ts=3.0)


@each_kind
def test_a_journal_takes_odd_holders_as_their_text(kind: Callable[[str], str]) -> None:
    """The token of who holds a run is kept as plain text."""
    journal = MemoryJournal()
    journal.claim("train", holder=kind("other"), force=True)
    held = journal.held("train")
    assert held is not None
    assert (type(held.holder), held.holder) == (str, "other")
