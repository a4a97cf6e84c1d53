"""What a snapshot tells the training logger."""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymckpt import JournalUnavailable, RetryPolicy
from gymckpt.journal import Journal, open_journal
from gymckpt.journal.memory import MemoryJournal
from gymckpt.manifest import GYM_CHECKPOINT_MANIFEST_FILENAME
from gymckpt.snapshot import METRIC_PREFIX, GymEnvironmentSnapshot
from tests.environment.conftest import NewScene
from tests.environment.source import Scene, episode, only
from tests.fakes import Late
from tests.faults.virtual import LoopClock, running_loop, simulate

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")

NAMES = (
    "paused_s",
    "prepare_s",
    "commit_s",
    "manifest_s",
    "resume_s",
    "slowest_prepare_s",
    "slowest_commit_s",
    "continued",
    "restarted",
    "staging_keys",
    "retries",
    "bytes",
)


def test_scripted_run(tmp_path: Path) -> None:
    """Every number is what a run whose every duration is known makes it."""
    inside: dict[str, float] = {}

    async def main() -> dict[str, float]:
        scene = Scene(
            tmp_path,
            control_timeout_s=100.0,
            prepare_timeout_s=100.0,
            clock=LoopClock(),
            retry={"commit": RetryPolicy(attempts=2, pause_s=0.5)},
        )
        running_loop().job_s = lambda name: 0.25 if name == "gymckpt-sealed" else 0.0
        quick, slow = scene.world.actors
        first, second = scene.world.ids
        scene.source.in_flight = {
            first: (episode("r0"), episode("r1"), episode("r2")),
            second: (episode("r3"), episode("r4")),
        }
        quick.scripts["prepare"].append(Late(1.0))
        slow.scripts["prepare"].append(Late(3.0))
        slow.scripts["renew"].append(Late(2.0))
        quick.scripts["commit"] += [ConnectionError(), Late(1.0)]
        slow.scripts["commit"].append(Late(4.0))
        slow.scripts["resume"].append(Late(0.125))
        quick.restarts = (episode("r2"),)
        slow.export = only(episode("r3"))
        async with scene.environment.snapshot(scene.path) as snapshot:
            assert isinstance(snapshot, GymEnvironmentSnapshot)
            inside.update(snapshot.metrics(7.0))
            await asyncio.sleep(5.0)
        return snapshot.metrics(8.5)

    found = simulate(main)
    bytes_written = (tmp_path / "snapshot" / GYM_CHECKPOINT_MANIFEST_FILENAME).stat().st_size
    expected = {
        "paused_s": 8.5,
        "prepare_s": 5.0,
        "commit_s": 4.0,
        "manifest_s": 0.25,
        "resume_s": 0.125,
        "slowest_prepare_s": 3.0,
        "slowest_commit_s": 4.0,
        "continued": 3.0,
        "restarted": 1.0,
        "staging_keys": 3.0,
        "retries": 1.0,
        "bytes": float(bytes_written),
    }
    assert found == pytest.approx({METRIC_PREFIX + name: value for name, value in expected.items()})
    before = {**expected, "paused_s": 7.0, "resume_s": 0.0}
    assert inside == pytest.approx({METRIC_PREFIX + name: value for name, value in before.items()})


async def test_every_number_is_documented(new_scene: NewScene) -> None:
    """All numbers are there, flat and finite; method and page explain each of them, in order."""
    scene = new_scene()
    async with scene.environment.snapshot(scene.path) as snapshot:
        assert isinstance(snapshot, GymEnvironmentSnapshot)
    found = snapshot.metrics(1.0)
    assert tuple(found) == tuple(METRIC_PREFIX + name for name in NAMES)
    assert all(type(value) is float and math.isfinite(value) for value in found.values())
    words = set(re.findall(r"`(\w+)`", GymEnvironmentSnapshot.metrics.__doc__ or ""))
    assert words == set(NAMES)
    table = PAGE.partition("<!-- metrics -->")[2].partition("<!-- /metrics -->")[0]
    assert re.findall(r"^\| `(\w+)` \| \w", table, re.MULTILINE) == list(NAMES)
    assert f"`{METRIC_PREFIX}`" in PAGE


async def test_bytes_of_what_instances_wrote(new_scene: NewScene) -> None:
    """`bytes` is the size of the manifest and of everything beside it that instances wrote."""
    scene = new_scene(1)
    records = scene.path / "gym-instances" / "tools" / "records.jsonl"
    records.parent.mkdir(parents=True)
    records.write_bytes(b"x" * 1234)
    (scene.path / "of RL's own").write_bytes(b"y" * 99)
    async with scene.environment.snapshot(scene.path) as snapshot:
        assert snapshot is not None
        found = snapshot.metrics(0.0)[METRIC_PREFIX + "bytes"]
    manifest = (scene.path / GYM_CHECKPOINT_MANIFEST_FILENAME).stat().st_size
    assert found == 1234 + manifest


async def test_metrics_are_never_worth_a_snapshot(
    new_scene: NewScene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A journal that cannot be read and a tree that cannot be walked cost numbers, and no more."""

    def unreadable(*_: Any, **__: Any) -> Any:
        raise JournalUnavailable("locked")

    def unwalkable(*_: Any, **__: Any) -> Any:
        raise PermissionError("no entry")

    scene = new_scene()
    monkeypatch.setattr(MemoryJournal, "read", unreadable)
    monkeypatch.setattr(Path, "rglob", unwalkable)
    async with scene.environment.snapshot(scene.path) as snapshot:
        assert snapshot is not None
    monkeypatch.undo()
    found = snapshot.metrics(2.0)
    assert found[METRIC_PREFIX + "paused_s"] == 2.0
    assert found[METRIC_PREFIX + "continued"] == 2.0
    assert found[METRIC_PREFIX + "prepare_s"] == found[METRIC_PREFIX + "bytes"] == 0.0
    assert "no metrics of snapshot" in caplog.text
    assert "no entry" in caplog.text


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Journal]:
    """Give a journal whose calls block; it is closed after everything is examined."""
    with open_journal(tmp_path / "journal.sqlite3") as journal:
        yield journal


async def test_a_long_reading_holds_up_no_renewal(
    stored: Journal, new_scene: NewScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the timeline of a snapshot is read, what happens to it goes on being recorded."""
    scene = new_scene(1, journal=stored, control_timeout_s=0.3, journal_timeout_s=5.0)
    renewed = threading.Event()

    def read(*given: Any, whole: Any = stored.read, **span: Any) -> Any:
        assert renewed.wait(4.0), "no renewal was recorded beside the reading"
        return whole(*given, **span)

    def append(entries: Any, *given: Any, whole: Any = stored.append, **rest: Any) -> None:
        whole(entries, *given, **rest)
        if any((one.call, one.trigger, one.ask) == ("renew", "answer", 2) for one in entries):
            renewed.set()

    monkeypatch.setattr(stored, "read", read)
    monkeypatch.setattr(stored, "append", append)
    async with scene.environment.snapshot(scene.path) as snapshot:
        assert snapshot is not None
    monkeypatch.undo()
