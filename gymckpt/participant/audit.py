"""
Look a committed snapshot over, as a restore would read it, without restoring anything.

The outer manifest says which instances and participants there are; every participant's records are
read whole and held against their digest and count. One damaged file is one finding: the rest is
looked at all the same, so that it is known what could still be restored.

All of it blocks. A backend whose participants do not keep records as `RecordsStore` does cannot be
looked into; its instances are reported as unknown, not as damaged.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from gymckpt.episodes import EnvironmentEpisode, instance_directory
from gymckpt.errors import sample, text_of
from gymckpt.manifest import load_gym_checkpoint_manifest
from gymckpt.manifest_schema import GymCheckpointManifest
from gymckpt.participant.servers import KINDS, Kind
from gymckpt.participant.store import Record, RecordsStore
from gymckpt.roots import require_root

__all__ = ["InstanceAudit", "ParticipantAudit", "SnapshotAudit", "audit_snapshot"]

RECORDS_BELOW = "gym"
"""The directory of an instance below which its participants keep their records."""

Progress = Callable[[int, int], None]
"""Told the bytes that were read and those that there are, each time a participant is done."""


@attrs.frozen(kw_only=True)
class ParticipantAudit:
    """One participant's records."""

    name: str
    kind: str
    """Empty where nothing of it was found."""
    records: int
    bytes: int
    problem: str
    """What is wrong with them; empty where they are whole."""


@attrs.frozen(kw_only=True)
class InstanceAudit:
    """One instance of a snapshot."""

    instance: str
    episodes: int
    """How many of its episodes the manifest says are saved."""
    known: bool
    """Whether its participants keep records in the way that can be looked into."""
    participants: tuple[ParticipantAudit, ...]
    problem: str
    """What is wrong with the instance as such; empty where nothing is."""

    @property
    def whole(self) -> bool:
        """Whether everything of it that can be looked into is as it was written."""
        return not self.problem and not any(one.problem for one in self.participants)


@attrs.frozen(kw_only=True)
class SnapshotAudit:
    """A whole snapshot."""

    root: str
    checkpoint_id: str
    instances: tuple[InstanceAudit, ...]

    @property
    def damaged(self) -> tuple[InstanceAudit, ...]:
        """The instances that could not be restored."""
        return tuple(one for one in self.instances if not one.whole)

    @property
    def unknown(self) -> tuple[InstanceAudit, ...]:
        """The instances that cannot be looked into."""
        return tuple(one for one in self.instances if one.whole and not one.known)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON data; `docs/cli.md` documents the shape."""
        return {
            "root": self.root,
            "checkpoint_id": self.checkpoint_id,
            "whole": not self.damaged,
            "instances": [attrs.asdict(one) | {"whole": one.whole} for one in self.instances],
        }


def audit_snapshot(root: str | Path, *, progress: Progress | None = None) -> SnapshotAudit:
    """
    Look a snapshot over.

    Args:
        root: Its directory, which holds the outer manifest.
        progress: Told from time to time how far it is.

    Raises:
        FileNotFoundError: There is no outer manifest: the snapshot was never committed.
        ValueError: The outer manifest is damaged.
        OSError: The directory cannot be read.
    """
    directory = Path(require_root(root))
    manifest = load_gym_checkpoint_manifest(directory)
    total = sum(_bytes_below(directory, instance) for instance in manifest.instances)
    done = 0

    def advance(read: int) -> None:
        nonlocal done
        done += read
        if progress is not None:
            progress(min(done, total), total)

    audits = [_audit(directory, manifest, instance, advance) for instance in manifest.instances]
    return SnapshotAudit(
        root=str(directory), checkpoint_id=manifest.checkpoint_id, instances=tuple(audits)
    )


def _bytes_below(root: Path, instance: str) -> int:
    below = instance_directory(root, instance) / RECORDS_BELOW
    try:
        return sum(path.stat().st_size for path in below.rglob("records-*.jsonl"))
    except OSError:
        return 0


def _audit(
    root: Path,
    manifest: GymCheckpointManifest,
    instance: str,
    advance: Callable[[int], None],
) -> InstanceAudit:
    below, episodes = instance_directory(root, instance), manifest.instances[instance]
    names = manifest.participants[instance]
    known = (below / RECORDS_BELOW).is_dir()
    problem = ""
    if names and not below.is_dir():
        problem = f"{below}: the instance's directory is missing"
    found: set[tuple[str, int]] = set()
    participants = tuple(
        _audit_participant(
            root, manifest.checkpoint_id, instance, name, found=found, advance=advance
        )
        for name in (names if known else ())
    )
    lost = [one for one in episodes if (one.rollout_id, one.attempt) not in found]
    environments = any(one.kind == "environment" for one in participants)
    if environments and lost and not any(one.problem for one in participants):
        problem = f"no environment server has a record of {_named(lost)}"
    return InstanceAudit(
        instance=instance,
        episodes=len(episodes),
        known=known,
        participants=participants,
        problem=problem,
    )


def _named(episodes: list[EnvironmentEpisode]) -> str:
    return f"{len(episodes)} saved episode(s): {sample(one.capture_key for one in episodes)}"


def _audit_participant(
    root: Path,
    checkpoint_id: str,
    instance: str,
    name: str,
    *,
    found: set[tuple[str, int]],
    advance: Callable[[int], None],
) -> ParticipantAudit:
    """Read one participant's records to their end, and note the episodes that own any."""
    kind = _kind_of(root, instance, name)
    if kind is None:
        problem = "it has no directory: its records are missing"
        return ParticipantAudit(name=name, kind="", records=0, bytes=0, problem=problem)
    count = 0

    def note(record: Record) -> bool:
        nonlocal count
        count += 1
        key = (record.get("rollout_id"), record.get("attempt"))
        if kind == "environment" and isinstance(key[0], str) and type(key[1]) is int:
            found.add((key[0], key[1]))
        return False

    problem, store = "", RecordsStore(root, instance, kind, name)
    try:
        store.read(checkpoint_id, wanted=note)
    except (ValueError, OSError) as error:
        problem = text_of(error, 500)
    size = _size_of(store.directory)
    advance(size)
    return ParticipantAudit(name=name, kind=kind, records=count, bytes=size, problem=problem)


def _kind_of(root: Path, instance: str, name: str) -> Kind | None:
    """Return the kind under whose directory a server keeps its records."""
    below = instance_directory(root, instance) / RECORDS_BELOW
    return next((kind for kind in KINDS if (below / kind / name).is_dir()), None)


def _size_of(directory: Path) -> int:
    try:
        return sum(path.stat().st_size for path in directory.glob("records-*.jsonl"))
    except OSError:
        return 0
