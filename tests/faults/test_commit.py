"""What the manifest holds and when it appears: never before, and never other than, the truth."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.coordinator import (
    GYM_CHECKPOINT_MANIFEST_FILENAME,
    GymCheckpointCommitResult,
    GymCheckpointCommitSummary,
    GymCheckpointOperationError,
    is_transient_gym_checkpoint_failure,
    load_gym_checkpoint_manifest,
    staging_keys_of,
)
from gymckpt.errors import GymCheckpointUnavailable, IllegalTransition
from gymckpt.journal import Journal
from tests.fakes import HANG, Ghost, Late
from tests.faults.conftest import NewWorld
from tests.faults.virtual import LoopClock, simulate
from tests.faults.world import World, episode, new_id

MANIFEST = GYM_CHECKPOINT_MANIFEST_FILENAME


def summary(
    exported: Iterable[Any] = (), rows: dict[Any, tuple[str, ...]] | None = None, **fields: Any
) -> GymCheckpointCommitSummary:
    """Return a summary whose staging keys are exactly its rows."""
    rows = rows or {}
    keys = tuple(sorted({key for names in rows.values() for key in names}))
    return GymCheckpointCommitSummary(
        tuple(exported), keys, fields.pop("participants", ("agent",)), rows, **fields
    )


async def test_b7_reply_on_the_wire_is_not_in_the_manifest(
    new_world: NewWorld, journal: Journal
) -> None:
    """B7: the manifest holds what was exported, with these episodes' rows only, shared ones too."""
    world = new_world(1, journal=journal)
    e0, e1, wire = episode("r0"), episode("r1"), episode("wire")
    rows = {e0: ("r0/c0",), e1: ("__cut__/c1", "carried/c0"), wire: ("carried/c0", "wire/c0")}
    world.actors[0].export = lambda _offered: summary((e0, e1), rows)
    instance = world.ids[0]
    async with world.coordinator.prepared("b7"):
        result = await world.coordinator.commit(
            "b7", world.root(), {instance: (e0, e1, wire)}, restarts={}
        )
    assert result.manifest.instances == {instance: (e0, e1)}
    assert result.manifest.staging_keys == {instance: ("__cut__/c1", "carried/c0", "r0/c0")}
    assert load_gym_checkpoint_manifest(world.root()) == result.manifest
    assert result.instances[instance].staging_keys_by_episode == rows


async def test_b7_nothing_exported(new_world: NewWorld) -> None:
    """B7: instances that export nothing of what was offered make a valid checkpoint."""
    world = new_world(2)
    for actor in world.actors:
        actor.export = lambda _offered: summary()
    async with world.coordinator.prepared("b7"):
        result = await world.coordinator.commit("b7", world.root(), world.offer(), restarts={})
    assert result.manifest.instances == dict.fromkeys(world.ids, ())
    assert result.manifest.staging_keys == dict.fromkeys(world.ids, ())


numbers = st.sets(st.integers(0, 6), max_size=5)


@given(offers=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=3), data=st.data())
def test_b7_any_part_may_be_exported(
    offers: list[tuple[set[int], set[int]]], data: st.DataObject, tmp_path_factory: Any
) -> None:
    """B7: for any offer and any exported part, the manifest has that part and its rows alone."""
    root = tmp_path_factory.mktemp("part")

    async def main() -> None:
        world = World(len(offers), clock=LoopClock(), root=root)
        offered, wanted, rows_of = {}, {}, {}
        for number, (instance, (kept, wire)) in enumerate(zip(world.ids, offers, strict=True)):
            named = [episode(f"i{number}.{n}", n) for n in sorted(kept | wire)]
            exported = [found for found in named if found.attempt in kept]
            rows = {found: (f"{found.capture_key}/c", f"shared{number}") for found in named}
            offered[instance], wanted[instance] = tuple(named), tuple(exported)
            rows_of[instance] = rows
            shuffled = data.draw(st.permutations(exported))
            world.actors[number].export = lambda _o, e=shuffled, r=rows: summary(e, r)
        async with world.coordinator.prepared(name := new_id()):
            result = await world.coordinator.commit(name, root / name, offered, restarts={})
        assert result.manifest.instances == wanted
        for instance, exported in wanted.items():
            keys = {key for found in exported for key in rows_of[instance][found]}
            assert result.manifest.staging_keys[instance] == tuple(sorted(keys))
            assert staging_keys_of(result.instances[instance], exported) == tuple(sorted(keys))
        assert load_gym_checkpoint_manifest(root / name) == result.manifest
        await world.examine()

    simulate(main)


BAD_COMMITS: dict[str, Any] = {
    "None": lambda _offered: None,
    "a dict": lambda _offered: {"exported_episodes": []},
    "exports a stranger": lambda offered: summary([*offered, episode("stranger")]),
    "exports another attempt": lambda offered: summary([found.next_attempt() for found in offered]),
    "a prepare summary": lambda _offered: object(),
    "raises": lambda _offered: (_ for _ in ()).throw(RuntimeError("ownership")).__next__(),
}


@pytest.mark.parametrize("bad", sorted(BAD_COMMITS))
@pytest.mark.parametrize("victim", [0, 2])
async def test_broken_commit_replies(new_world: NewWorld, bad: str, victim: int) -> None:
    """A commit reply that is no summary of the offer fails the checkpoint, never transiently."""
    world = new_world(3)
    world.actors[victim].export = BAD_COMMITS[bad]
    if bad == "None":
        world.actors[victim].always["commit"] = {}
    with pytest.raises(GymCheckpointOperationError) as caught:
        async with world.committed("bad", world.root()):
            pytest.fail("the commit succeeded")
    assert caught.value.operation == "commit"
    assert set(caught.value.failures) == {world.ids[victim]}
    assert not is_transient_gym_checkpoint_failure(caught.value)
    assert not (world.root() / MANIFEST).exists()


async def test_b13_slow_write_outlives_the_deadline(new_world: NewWorld, journal: Journal) -> None:
    """B13: a commit that timed out is dead: a late write and a late reply bring no manifest."""
    world = new_world(1, journal=journal, control_timeout_s=0.05)
    root = world.root()

    async def late_write() -> None:
        await asyncio.sleep(0.15)
        root.mkdir(exist_ok=True)
        (root / "records").write_text("late")

    def commit(*_args: Any, **_kwargs: Any) -> Any:
        writers.append(asyncio.ensure_future(late_write()))
        return Late(0.16)

    writers: list[asyncio.Future[None]] = []
    world.actors[0].scripts["commit"] = [commit]
    with pytest.raises(GymCheckpointOperationError) as caught:
        async with world.committed("b13", root):
            pytest.fail("the commit succeeded")
    assert caught.value.operation == "commit"
    await asyncio.wait(writers)
    await asyncio.sleep(0.1)
    assert [path.name for path in root.iterdir()] == ["records"]
    async with world.committed("again", world.root("another")):  # a new id, a new directory
        pass
    assert world.actors[0].resumed == {"b13", "again"}


@pytest.mark.parametrize("late_s", [0.5, 4.0, 11.0, 400.0])
def test_b13_any_late_commit_is_refused_by_the_fence(late_s: float, tmp_path: Path) -> None:
    """B13: a commit that runs at any time after it was given up is refused by the instance."""

    async def main() -> None:
        world = World(3, clock=LoopClock(), root=tmp_path, fenced=True, control_timeout_s=5.0)
        world.actors[1].scripts["commit"] = [Ghost(late_s)]
        world.actors[2].scripts["resume"] = [HANG]
        try:
            async with world.committed("late", tmp_path):
                pytest.fail("the commit succeeded")
        except GymCheckpointOperationError as error:
            assert error.operation == "commit"
        await asyncio.sleep(late_s + 30)
        refused = ("commit", "stale_checkpoint late") in world.actors[1].refusals
        assert refused == (late_s > 10.0)
        assert not (tmp_path / MANIFEST).exists()
        await world.examine()

    simulate(main)


async def test_b15_restarts_are_left_out_and_recorded(
    new_world: NewWorld, journal: Journal
) -> None:
    """B15: a reported restart is recorded; one that is offered as well is refused at once."""
    world = new_world(1, journal=journal)
    instance, coordinator = world.ids[0], world.coordinator
    r0, r1 = episode("r0"), episode("r1")
    world.actors[0].restarts = (r1,)
    async with coordinator.prepared("b15") as restarts:
        assert restarts == {instance: frozenset({r1})}
        for offered, left_out in [
            ((r0, r1), {instance: (r1,)}),  # in both
            ((r0, r1), {instance: ()}),  # offered though it was reported as a restart
            ((r0, r1), {}),
            ((r0, episode("r1", 1)), {instance: (r1,)}),  # another attempt of it
        ]:
            with pytest.raises(ValueError, match="r1"):
                await coordinator.commit(
                    "b15", world.root(), {instance: offered}, restarts=left_out
                )
        assert world.actors[0].of("commit") == []
        result = await coordinator.commit(
            "b15", world.root(), {instance: (r0,)}, restarts={instance: (r1,)}
        )
    assert result.manifest.restarts == {instance: (r1,)}
    assert world.actors[0].of("commit")[0].args[2] == (r0,)


async def test_b22_manifest_appears_after_the_last_reply(
    new_world: NewWorld, journal: Journal
) -> None:
    """B22: while any commit reply is outstanding the manifest does not exist."""
    world = new_world(3, journal=journal, control_timeout_s=2.0)
    seen: list[bool] = []

    def slow(*_args: Any, **_kwargs: Any) -> Any:
        return Late(0.05)

    world.actors[2].always["commit"] = slow

    async def watch() -> None:
        while True:
            if not any(call.outcome == "answered" for call in world.actors[2].of("commit")):
                seen.append((world.root() / MANIFEST).exists())
            await asyncio.sleep(0.001)

    watching = asyncio.create_task(watch())
    async with world.committed("b22", world.root()):
        assert (world.root() / MANIFEST).exists()
    watching.cancel()
    assert len(seen) >= 10
    assert not any(seen)


async def test_the_journal_has_the_digest_of_the_manifest(
    new_world: NewWorld, journal: Journal
) -> None:
    """What was published can be told, from the journal alone, from what stands there later."""
    world = new_world(2, journal=journal)
    async with world.committed("digest", world.root()):
        pass
    [sealed] = [one for one in journal.read(world.run, "digest") if one.trigger == "sealed"]
    published = (world.root() / MANIFEST).read_bytes()
    assert sealed.facts == {"sha256": hashlib.sha256(published).hexdigest()}


@given(
    count=st.integers(1, 5),
    delays=st.lists(st.sampled_from([0.0, 0.5, 3.0, 9.0]), min_size=5, max_size=5),
    failing=st.sets(st.integers(0, 4), max_size=2),
)
def test_b22_manifest_exists_exactly_if_every_commit_did(
    count: int, delays: list[float], failing: set[int], tmp_path_factory: Any
) -> None:
    """B22, B32: with any delays and failures, no manifest unless every reply came and was valid."""
    root = tmp_path_factory.mktemp("b22")

    async def main() -> None:
        world = World(count, clock=LoopClock(), root=root, control_timeout_s=5.0)
        for number, actor in enumerate(world.actors):
            error = RuntimeError("disk") if number in failing else None
            actor.always["commit"] = Late(delays[number], error)
        bad = any(number < count for number in failing)
        try:
            async with world.committed("any", root):
                assert (root / MANIFEST).exists()
        except GymCheckpointOperationError:
            assert bad
        assert (root / MANIFEST).exists() == (not bad)
        await world.examine()

    simulate(main)


async def test_b28_inputs_are_copied(new_world: NewWorld) -> None:
    """B28: what a caller or an actor changes afterwards changes neither manifest nor result."""
    world = new_world(1)
    instance = world.ids[0]
    offered: dict[str, Any] = {instance: [episode("r0"), episode("r1")]}
    restarts: dict[str, Any] = {instance: [episode("x")]}
    rows = {episode("r0"): ["r0/c0"], episode("r1"): []}
    reply = GymCheckpointCommitSummary([episode("r0")], ["r0/c0"], ["agent"], rows)
    world.actors[0].export = lambda _offered: reply
    async with world.coordinator.prepared("b28"):
        result = await world.coordinator.commit("b28", world.root(), offered, restarts=restarts)
        offered[instance].clear()
        restarts.clear()
        rows[episode("r0")].append("secret")
        assert result.manifest.instances == {instance: (episode("r0"),)}
        assert result.manifest.restarts == {instance: (episode("x"),)}
        assert load_gym_checkpoint_manifest(world.root()) == result.manifest
    assert world.actors[0].of("commit")[0].args[2] == (episode("r0"), episode("r1"))
    declared = {"schema_version", "checkpoint_id", "instances", "staging_keys"}
    written = json.loads((world.root() / MANIFEST).read_text())
    assert set(written) == declared | {"restarts", "participants"}


@pytest.mark.parametrize("verb", ["prepare", "renew", "commit", "resume"])
async def test_b28_secrets_stay_out(
    new_world: NewWorld, caplog: pytest.LogCaptureFixture, journal: Journal, verb: str
) -> None:
    """B28: a bearer token in an actor's error is in no message, log line, note or entry."""
    world = new_world(1, journal=journal)
    secret = "abc123secret"
    texts = f"401 Authorization: Bearer {secret} at https://user:{secret}@host/x"
    world.actors[0].always[verb] = GymCheckpointUnavailable(texts)
    said: list[str] = []
    with caplog.at_level(logging.DEBUG):
        try:
            async with world.committed("b28", world.root()):
                pass
        except GymCheckpointOperationError as error:
            said = [str(error), *getattr(error, "__notes__", ())]
    said += [record.getMessage() for record in caplog.records]
    assert any("401" in text for text in said)
    assert not any(secret in text for text in said)
    assert secret not in str(world.journal.read(world.run, "b28"))


async def test_second_commit_beside_the_first(new_world: NewWorld, journal: Journal) -> None:
    """S8: a commit that is refused changes nothing of the one that is under way."""
    world = new_world(2, journal=journal)
    await world.coordinator.prepare("two")
    first, second = (
        world.coordinator.commit("two", world.root(name), world.offer(), restarts={})
        for name in ("first", "second")
    )
    told = await asyncio.gather(first, second, return_exceptions=True)
    assert isinstance(told[0], GymCheckpointCommitResult)
    assert isinstance(told[1], IllegalTransition)
    asked = {str(call.args[1]) for actor in world.actors for call in actor.of("commit")}
    assert asked == {str(world.root("first"))}
    assert (world.root("first") / MANIFEST).exists()
    assert not world.root("second").exists()
    await world.coordinator.resume("two")
