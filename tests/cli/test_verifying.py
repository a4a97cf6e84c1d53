"""`verify`: a snapshot is whole, or it is said what is damaged and what could still be restored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.manifest import GymCheckpointManifest, write_gym_checkpoint_manifest
from gymckpt.participant import RecordsStore
from tests.cli.command import answer, run

INSTANCES = ("tools/replica-0", "tools/replica-1")
CHECKPOINT = "step-120"
SERVERS = {"agent": "agent", "env": "environment"}


def episode(number: int) -> EnvironmentEpisode:
    """Return one episode."""
    return EnvironmentEpisode(f"r{number}", 0)


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """Write a snapshot of two instances with two servers and two episodes each."""
    root = tmp_path / "snapshot"
    for place, instance in enumerate(INSTANCES):
        for name, kind in SERVERS.items():
            records: list[dict[str, Any]] = [
                {"rollout_id": f"r{place * 2 + number}", "attempt": 0, "state": "x" * 50}
                for number in range(2)
            ]
            store = RecordsStore(root, instance, kind, name)  # type: ignore[arg-type]
            store.write(CHECKPOINT, records, stop=lambda: False)
    manifest = GymCheckpointManifest(
        schema_version=2,
        checkpoint_id=CHECKPOINT,
        instances={
            instance: (episode(place * 2), episode(place * 2 + 1))
            for place, instance in enumerate(INSTANCES)
        },
        staging_keys=dict.fromkeys(INSTANCES, ()),
        restarts=dict.fromkeys(INSTANCES, ()),
        participants=dict.fromkeys(INSTANCES, tuple(SERVERS)),
    )
    write_gym_checkpoint_manifest(root, manifest)
    return root


def records_of(root: Path, instance: str, kind: str, name: str) -> Path:
    """Return the file with a server's records."""
    shard, replica = instance.split("/")
    directory = root / "gym-instances" / shard / replica / "gym" / kind / name
    [path] = directory.glob("records-*.jsonl")
    return path


def test_a_whole_snapshot_is_0(snapshot: Path) -> None:
    """Nothing was touched: counts of everything, and exit code 0."""
    result = run("verify", str(snapshot))
    assert result.exit_code == 0
    assert "✓ whole: 2 instances, 4 episodes, 8 records" in result.stdout
    found = answer("verify", str(snapshot))
    assert (found["schema"], found["whole"], found["checkpoint_id"]) == (
        "gymckpt.verify/1",
        True,
        CHECKPOINT,
    )
    assert [one["records"] for one in found["instances"][0]["participants"]] == [2, 2]


def flip(path: Path) -> None:
    """Change one byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    """Leave out the last line."""
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
@pytest.mark.parametrize("server", SERVERS)
def test_damage_is_named_and_the_rest_is_counted(snapshot: Path, damage: Any, server: str) -> None:
    """One damaged file is exit code 1, names instance and server, and what is whole besides."""
    damage(records_of(snapshot, INSTANCES[1], SERVERS[server], server))
    result = run("verify", str(snapshot))
    assert result.exit_code == 1
    assert f"✗ {INSTANCES[1]}" in result.stdout
    assert f"{SERVERS[server]} {server}: " in result.stdout
    said = " ".join(result.stdout.split())
    assert "the other 1 are whole: 2 of 4 episodes could be restored, 2 would start over" in said
    found = answer("verify", str(snapshot), code=1)
    assert [one["whole"] for one in found["instances"]] == [True, False]


def test_a_saved_episode_without_a_record_is_damage(snapshot: Path) -> None:
    """What the manifest says is saved must be in an environment server's records."""
    directory = records_of(snapshot, INSTANCES[0], "environment", "env").parent
    for path in directory.iterdir():
        path.unlink()
    store = RecordsStore(snapshot, INSTANCES[0], "environment", "env")
    store.write(CHECKPOINT, [{"rollout_id": "r0", "attempt": 0}], stop=lambda: False)
    result = run("verify", str(snapshot))
    assert result.exit_code == 1
    assert "no environment server has a record of 1 saved episode(s): r1" in result.stdout


def test_a_missing_server_is_damage(snapshot: Path) -> None:
    """A participant of which nothing is there is named."""
    path = records_of(snapshot, INSTANCES[0], "agent", "agent")
    for file in path.parent.iterdir():
        file.unlink()
    path.parent.rmdir()
    assert "its records are missing" in run("verify", str(snapshot)).stdout


def test_records_of_another_kind_are_said_to_be_unknown(snapshot: Path) -> None:
    """A backend that keeps its state elsewhere is no damage, but nothing is claimed about it."""
    shard = snapshot / "gym-instances" / "tools" / "replica-1"
    (shard / "gym").rename(shard / "other")
    result = run("verify", str(snapshot))
    assert result.exit_code == 0
    assert f"keep no records that can be looked into: {INSTANCES[1]}" in result.stdout


def test_what_was_never_committed_cannot_be_verified(tmp_path: Path) -> None:
    """Without an outer manifest there is nothing to hold anything against."""
    result = run("verify", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "nothing here was ever committed" in result.stderr


def test_a_damaged_outer_manifest_is_a_problem(snapshot: Path) -> None:
    """A manifest that is no manifest any more is exit code 1."""
    path = snapshot / "gym_checkpoint.json"
    path.write_text(json.dumps({"schema_version": 2}))
    assert run("verify", str(snapshot)).exit_code == 1


@pytest.mark.parametrize("place", ["s3://bucket/snapshot", "~no-such-user/snapshot", "snapshot "])
def test_what_is_no_directory_cannot_be_looked_at(place: str) -> None:
    """A URL or an unsafe path is exit code 2 with the reason, not a damaged snapshot."""
    result = run("verify", place)
    assert result.exit_code == 2
    assert "a checkpoint's root" in " ".join(result.stderr.split())
