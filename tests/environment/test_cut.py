"""`check_against_cut`: an unfinished rollout is in exactly one of continued, restarted, sealed."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt import (
    CutMismatch,
    EnvironmentEpisode,
    GymCheckpointCommitResult,
    GymCheckpointManifest,
    LedgerUnderCut,
)
from gymckpt.diagnosis.timeline import timeline_of
from gymckpt.snapshot import GymEnvironmentSnapshot
from tests.environment.conftest import NewScene
from tests.environment.source import Cut, Source, episode, only

INSTANCES = ("a/replica-0", "a/replica-1")
PLACES = ("continued", "restarted", "neither")


@attrs.frozen
class Known:
    """What both sides know of one rollout."""

    saved: str
    """Where the manifest has it, one of `PLACES`."""
    unfinished: bool
    sealed: bool

    @property
    def places(self) -> int:
        """In how many of continued, restarted and sealed it is."""
        return (self.saved != "neither") + self.sealed


@st.composite
def knowns(draw: st.DrawFn) -> dict[str, Known]:
    """Some rollouts; most agree, as in life, so that single faults are not drowned."""
    right = st.sampled_from(
        [
            Known("continued", True, False),
            Known("restarted", True, False),
            Known("neither", True, True),
            Known("neither", False, False),
        ]
    )
    anything = st.builds(Known, st.sampled_from(PLACES), st.booleans(), st.booleans())
    found = draw(st.lists(right, max_size=12)) + draw(st.lists(anything, max_size=8))
    return {f"rollout.{number}": known for number, known in enumerate(found)}


def snapshot_of(known: dict[str, Known], attempt: int = 0) -> GymEnvironmentSnapshot:
    """Return a snapshot whose manifest and ledger say this."""

    def inventory(place: str) -> dict[str, tuple[EnvironmentEpisode, ...]]:
        names = [name for name, one in known.items() if one.saved == place]
        return {
            instance: tuple(episode(name, attempt) for name in names[index :: len(INSTANCES)])
            for index, instance in enumerate(INSTANCES)
        }

    nothing: dict[str, Any] = dict.fromkeys(INSTANCES, ())
    manifest = GymCheckpointManifest(
        2,
        "snapshot-1",
        inventory("continued"),
        nothing,
        inventory("restarted"),
        dict.fromkeys(INSTANCES, ("agent",)),
    )
    source = Source({})
    source.ledger = LedgerUnderCut(
        unfinished=frozenset(name for name, one in known.items() if one.unfinished),
        sealed=frozenset(name for name, one in known.items() if one.sealed),
    )
    return GymEnvironmentSnapshot(
        result=GymCheckpointCommitResult(manifest, {}),
        rollouts=source,
        bytes_written=0,
        timeline=timeline_of(()),
    )


async def problem(snapshot: GymEnvironmentSnapshot, cut: Any) -> str | None:
    """Return what the check finds wrong."""
    try:
        await snapshot.check_against_cut(cut)
    except CutMismatch as error:
        return str(error)
    return None


@given(known=knowns(), attempt=st.integers(0, 3))
async def test_exactly_one_place(known: dict[str, Known], attempt: int) -> None:
    """It passes exactly if each unfinished rollout is in one place, and nothing else is saved."""
    nowhere = {name for name, one in known.items() if one.unfinished and not one.places}
    twice = {name for name, one in known.items() if one.places > 1}
    finished = {
        name for name, one in known.items() if one.saved != "neither" and not one.unfinished
    }
    found = await problem(snapshot_of(known, attempt), Cut())
    assert (found is None) is not (nowhere or twice or finished)
    if found is None:
        return
    parts = found.split("; ")
    expected = [(len(names), names) for names in (nowhere, twice, finished) if names]
    assert [int(part.split()[0]) for part in parts] == [count for count, _ in expected]
    for part, (count, names) in zip(parts, expected, strict=True):
        named = Counter(re.findall(r"rollout\.\d+", part))
        assert set(named) <= names
        assert len(named) == min(count, 5)


@given(known=knowns())
async def test_dead_cut(known: dict[str, Known]) -> None:
    """Whatever both sides know, a dead cut is refused, and RL's ledger is not even looked at."""
    snapshot = snapshot_of(known)
    assert "dead" in (await problem(snapshot, Cut(live=False)) or "")
    assert not isinstance(snapshot.rollouts, Source) or snapshot.rollouts.log == []


async def test_message_is_bounded() -> None:
    """Ten thousand rollouts that went missing make a short message with their number."""
    known = {f"rollout.{number}": Known("neither", True, False) for number in range(10_000)}
    found = await problem(snapshot_of(known), Cut())
    assert found is not None
    assert found.startswith("10000 rollout(s)")
    assert len(found) < 1_000


async def test_mismatch_is_not_transient(new_scene: NewScene) -> None:
    """A mismatch is a broken invariant, which a retry would only hide."""
    scene = new_scene()
    scene.source.ledger = LedgerUnderCut(unfinished=frozenset({"lost"}))
    with pytest.raises(CutMismatch) as caught:
        await _checked(scene)
    assert not scene.environment.is_unavailable(caught.value)


async def _checked(scene: Any) -> None:
    async with scene.environment.snapshot(scene.path) as snapshot:
        await snapshot.check_against_cut(Cut())


async def test_b26_a_rollout_that_got_lost(new_scene: NewScene, tmp_path: Path) -> None:
    """What is offered, but neither exported nor restarted nor sealed, is named (B26)."""
    first, lost, landed = episode("r0"), episode("r1"), episode("r2")
    scene = new_scene(1)
    instance = scene.world.ids[0]
    scene.source.in_flight = {instance: (first, lost, landed)}
    scene.world.actors[0].export = only(first)
    for sealed, named in (({"r2"}, "r1"), ({"r1", "r2"}, None), ({"r0", "r1", "r2"}, "r0")):
        scene.source.ledger = LedgerUnderCut(
            unfinished=frozenset({"r0", "r1", "r2"}), sealed=frozenset(sealed)
        )
        scene.path = tmp_path / "-".join(sorted(sealed))
        if named is None:
            await _checked(scene)
        else:
            with pytest.raises(CutMismatch, match=rf"1 rollout.*\b{named}\b"):
                await _checked(scene)
