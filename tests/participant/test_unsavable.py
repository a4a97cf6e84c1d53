"""An episode whose state cannot be saved starts over, and costs no other episode anything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.participant.episodes import LiveEpisode
from gymckpt.participant.servers import KINDS, Kind, Server
from gymckpt.participant.store import Record, RecordsStore
from gymckpt.replies import GymCheckpointCommitSummary
from tests.participant.support import (
    E0,
    E1,
    INSTANCE,
    CountingDeployment,
    Door,
    Make,
    ManualTime,
    Saved,
    commit,
    files_below,
    idle,
    manifests,
    prepared,
    restore,
    start,
    until,
)

E2 = EnvironmentEpisode("r2", 0)
Spoils = Callable[[LiveEpisode], Record]
"""Returns the record of an episode, or raises."""


def _raises(error: Exception) -> Spoils:
    def spoil(_live: LiveEpisode) -> Record:
        raise error

    return spoil


def _holds(value: Any) -> Spoils:
    return lambda live: {**live.episode.to_dict(), "state": value}


WAYS: dict[str, Spoils] = {
    "an object": _holds(object()),
    "a tuple": _holds((1, 2)),
    "a set, deep inside": _holds({"a": [{"b": {1, 2}}]}),
    "bytes": _holds(b"x"),
    "a key that is no text": _holds({1: 2}),
    "half a pair twice": _holds("\ud83d\ude00"),
    "endless digits": _holds(10**5_000),
    "an error of the backend": _raises(LookupError("its tool is gone")),
    "a disk of the backend": _raises(OSError("no space left on its device")),
    "no record": lambda _live: None,  # type: ignore[return-value]
}


class Spoiled(CountingDeployment):
    """Saves a record of each episode with each server, some of which cannot be saved."""

    spoils: dict[tuple[Kind, EnvironmentEpisode], Spoils]
    eager = False
    """Whether records are made when they are asked for, in the event loop."""
    asked = 0

    def records_of(self, server: Server, episodes: Sequence[LiveEpisode]) -> Iterable[Record]:
        self.asked += 1
        records = self._made(server, episodes)
        return list(records) if self.eager else records

    def _made(self, server: Server, episodes: Sequence[LiveEpisode]) -> Iterator[Record]:
        if server.kind == "environment":
            self.before_record()
        for live in episodes:
            spoil = self.spoils.get((server.kind, live.episode))
            rows = list(live.body.row_keys)
            made = {"turns": live.body.turns, "turns_max": 5, "row_keys": rows}
            yield {**live.episode.to_dict(), **made} if spoil is None else spoil(live)


@pytest.fixture
def spoiled(make: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Spoiled]:
    """Make deployments some of whose episodes cannot be saved; they are closed at the end."""

    def factory(**options: Any) -> Spoiled:
        monkeypatch.setattr("tests.participant.conftest.CountingDeployment", Spoiled)
        made = make(**options)
        assert isinstance(made, Spoiled)
        made.spoils = {}
        return made

    return factory


def saved_by(root: Path, kind: Kind) -> list[str]:
    records = RecordsStore(root, INSTANCE, kind, kind).read("c1")
    return [record["rollout_id"] for record in records]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", sorted(WAYS))
async def test_one_that_cannot_be_saved_costs_no_other(
    spoiled: Callable[..., Spoiled],
    time: ManualTime,
    tmp_path: Path,
    way: str,
    kind: Kind,
    eager: bool,
) -> None:
    """It is named with its reason, no server keeps anything of it, and the others are restored."""
    deployment = spoiled()
    deployment.eager = eager
    deployment.spoils = {(kind, E1): WAYS[way]}
    await prepared(deployment, time, "r0", "r1", "r2")
    summary: GymCheckpointCommitSummary = await commit(deployment, time, tmp_path, E0, E1, E2)
    assert summary.exported_episodes == (E0, E2)
    assert set(summary.staging_keys_by_episode) == {E0, E2}
    assert list(summary.unsavable) == [E1]
    assert "Error: " in summary.unsavable[E1]
    assert [saved_by(tmp_path, one) for one in KINDS] == [["r0", "r2"]] * 4
    assert await commit(deployment, time, tmp_path, E0, E1, E2) is summary
    assert not [name for name in files_below(tmp_path) if name.startswith(".")]
    entered = deployment.entered(E1)
    await deployment.checkpoint_resume("c1", deadline_ts=0)
    await until(lambda: deployment.entered(E1) == entered + 1)
    await deployment.checkpoint_retire("s1", [E0, E1, E2], deadline_ts=time.now_ts() + 5)
    other = spoiled()
    await restore(other, time, Saved(tmp_path), E0, E2)
    assert sorted(live.episode.capture_key for live in other._table) == ["r0-a1", "r2-a1"]


EPISODES = [EnvironmentEpisode(f"r{number}", 0) for number in range(4)]


@settings(max_examples=30)
@given(
    spoils=st.dictionaries(
        st.tuples(st.sampled_from(KINDS), st.sampled_from(EPISODES)),
        st.sampled_from(sorted(WAYS)),
        max_size=8,
    ),
    eager=st.booleans(),
)
def test_exactly_those_that_cannot_be_saved_start_over(
    tmp_path_factory: pytest.TempPathFactory,
    spoils: dict[tuple[Kind, EnvironmentEpisode], str],
    eager: bool,
) -> None:
    """Whatever fails at whichever servers, an episode is exported or named, and never both."""

    async def case(root: Path) -> None:
        time = ManualTime()
        deployment = Spoiled(time)
        async with deployment:
            deployment.eager = eager
            deployment.spoils = {place: WAYS[way] for place, way in spoils.items()}
            await prepared(deployment, time, *(one.rollout_id for one in EPISODES))
            summary = await commit(deployment, time, root, *EPISODES)
            lost = {episode for _kind, episode in spoils}
            assert set(summary.unsavable) == lost
            kept = [one for one in EPISODES if one not in lost]
            assert summary.exported_episodes == tuple(kept)
            names = [one.rollout_id for one in kept]
            assert [saved_by(root, kind) for kind in KINDS] == [names] * 4

    asyncio.run(case(tmp_path_factory.mktemp("root")))


def says(rows: Any) -> Any:
    """A property with this value, or that raises it."""

    def say(_body: object) -> Any:
        if isinstance(rows, Exception):
            raise rows
        return rows

    return property(say)


@pytest.mark.parametrize(
    "rows", [[float("nan")], [""], ["x", "x"], None, 5, ["\ud800"], LookupError("lost"), [["x"]]]
)
async def test_rows_that_are_none_are_a_state_that_cannot_be_saved(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path, rows: Any
) -> None:
    """An episode that cannot say which rows it needs starts over, and the other one is saved."""
    await prepared(deployment, time, "r0", "r1")
    body = deployment.bodies[E1]
    kind = type(body)
    body.__class__ = type("Odd", (kind,), {"row_keys": says(rows)})
    summary = await commit(deployment, time, tmp_path, E0, E1)
    assert (summary.exported_episodes, list(summary.unsavable)) == ((E0,), [E1])
    assert summary.staging_keys == ("r0/t00000", "r0/t00001")
    body.__class__ = kind


# --- what fails the commit ------------------------------------------------------------------------


@pytest.mark.parametrize("way", sorted(WAYS))
async def test_the_strict_way_fails_the_commit(
    spoiled: Callable[..., Spoiled], time: ManualTime, tmp_path: Path, way: str
) -> None:
    """With `unsavable="fail"` nothing is published, and the same commit may be tried again."""
    deployment = spoiled(unsavable="fail")
    deployment.spoils = {("agent", E1): WAYS[way]}
    await prepared(deployment, time, "r0", "r1")
    with pytest.raises((ValueError, LookupError, OSError)):
        await commit(deployment, time, tmp_path, E0, E1)
    assert manifests(tmp_path) == []
    assert files_below(tmp_path) == []
    deployment.spoils = {}
    assert (await commit(deployment, time, tmp_path, E0, E1)).exported_episodes == (E0, E1)


def test_an_unknown_way_is_refused(time: ManualTime) -> None:
    """A deployment is made with one of the two ways, or not at all."""
    with pytest.raises(ValueError, match="unsavable is 'restart' or 'fail', not 'skip'"):
        CountingDeployment(time, unsavable="skip")


async def test_what_is_no_single_episodes_fails_the_commit(
    deployment: CountingDeployment, time: ManualTime, tmp_path: Path
) -> None:
    """A backend that fails for all at once, and for none alone, blames no episode for it."""
    await prepared(deployment, time, "r0", "r1")
    failures = iter([LookupError("the server is away")])

    def fail() -> None:
        for error in failures:
            raise error

    deployment.before_record = fail
    with pytest.raises(LookupError, match="the server is away"):
        await commit(deployment, time, tmp_path, E0, E1)
    assert manifests(tmp_path) == []
    assert (await commit(deployment, time, tmp_path, E0, E1)).exported_episodes == (E0, E1)


async def test_a_record_of_nobody_fails_the_commit(
    spoiled: Callable[..., Spoiled], time: ManualTime, tmp_path: Path
) -> None:
    """What a server keeps besides its episodes and cannot save is an error of the commit."""
    deployment = spoiled()
    whole = deployment._made
    deployment._made = lambda server, episodes: iter([*whole(server, episodes), {"x": {1}}])  # type: ignore[method-assign]
    await prepared(deployment, time, "r0", "r1")
    with pytest.raises(ValueError, match="a record is not JSON data"):
        await commit(deployment, time, tmp_path, E0, E1)
    assert files_below(tmp_path) == []


async def test_a_full_disk_is_no_episodes_fault(
    spoiled: Callable[..., Spoiled],
    time: ManualTime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where files cannot be written the commit fails, though an episode could not be saved too."""
    deployment = spoiled()
    deployment.spoils = {("agent", E1): WAYS["bytes"]}
    await prepared(deployment, time, "r0", "r1")

    def full(*_arguments: Any, **_options: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("gymckpt.participant.store._flush", full)
        with pytest.raises(OSError, match="No space left"):
            await commit(deployment, time, tmp_path, E0, E1)
    assert manifests(tmp_path) == []


async def test_a_resume_while_culprits_are_looked_for_reads_no_moving_episode(
    spoiled: Callable[..., Spoiled], time: ManualTime, tmp_path: Path
) -> None:
    """Once the id is resumed no episode is asked for its state any more, and nothing appears."""
    deployment, door = spoiled(), Door()
    deployment.before_record = door
    deployment.spoils = {("environment", E1): WAYS["an error of the backend"]}
    await prepared(deployment, time, "r0", "r1")
    committing = start(commit(deployment, time, tmp_path, E0, E1))
    await until(door.reached.is_set)
    asked = deployment.asked
    resuming = start(deployment.checkpoint_resume("c1", deadline_ts=0))
    await idle()
    door.open.set()
    await resuming
    with pytest.raises(GymCheckpointUnavailable, match="stale_checkpoint"):
        await committing
    await deployment._workshop.quiet(10)
    assert deployment.asked == asked
    assert files_below(tmp_path) == []


async def test_states_are_read_in_threads_but_asked_for_in_the_loop(
    spoiled: Callable[..., Spoiled], time: ManualTime, tmp_path: Path
) -> None:
    """Also when a culprit is looked for, a slow record never holds up the event loop."""
    deployment = spoiled()
    threads: list[bool] = []
    deployment.before_record = lambda: threads.append(
        threading.current_thread() is threading.main_thread()
    )
    deployment.spoils = {("environment", E1): WAYS["an error of the backend"]}
    await prepared(deployment, time, "r0", "r1")
    await commit(deployment, time, tmp_path, E0, E1)
    assert len(threads) == 4, "all, each of two alone, and the one that is left"
    assert not any(threads)
