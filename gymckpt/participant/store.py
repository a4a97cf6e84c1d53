"""
The records that one participant of one deployment writes for one checkpoint, as files.

`<root>/gym-instances/<shard>/replica-<i>/gym/<kind>/<server>/` holds `records-<sha256>.jsonl`, one
JSON object a line, and `manifest.json`, which is written last. The manifest is created by a hard
link and never replaced, so exactly one of several racing writers wins, and a directory that holds
a manifest never changes its meaning. Files and directories are flushed to the disk before anything
that names them appears.

Whatever is read back was possibly torn, edited or moved: the manifest must be byte for byte what
this module writes, the records must have the digest and count that it names, and no path leads
through a symbolic link. Every defect is a `ValueError` that names the file; trouble of the disk
itself stays an `OSError`. All functions block: call them in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import attrs

from gymckpt.episodes import instance_directory, require_instance_id, require_operation_id
from gymckpt.errors import ParticipantRefused, show
from gymckpt.participant.exact_json import RECORD_BYTES_MAX, Record, decode, encode_record
from gymckpt.participant.servers import KINDS, Kind, require_server_name
from gymckpt.strict_json import located, parse_json, require_object, require_types

__all__ = ["MANIFEST_FILE", "Record", "RecordsManifest", "RecordsStore", "Staged"]

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"

MANIFEST_BYTES_MAX = 65_536
"""No manifest that this module writes comes near it; a larger file is something else."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NO_SUCH_FILE = frozenset({errno.ENOENT, errno.ENOTDIR})


@attrs.frozen(kw_only=True)
class RecordsManifest:
    """What one participant's directory holds."""

    checkpoint_id: str
    kind: str
    server: str
    records_file: str
    records_sha256: str
    record_count: int
    schema_version: int = SCHEMA_VERSION

    def encode(self) -> bytes:
        """Return the one form in which this manifest is ever written."""
        fields = _INDENTED.encode({name: getattr(self, name) for name in _MANIFEST_TYPES})
        return f"{{\n  {fields[1:-1]}\n}}\n".encode()


_MANIFEST_TYPES: dict[str, type] = {
    field.name: int if field.name in {"record_count", "schema_version"} else str
    for field in attrs.fields(RecordsManifest)
}

_INDENTED = json.JSONEncoder(sort_keys=True, separators=(",\n  ", ": "))
"""Does for a flat object what `indent=2` does, for which the library has no fast encoder."""


@attrs.frozen
class Staged:
    """Records that are on the disk and count for nothing yet."""

    manifest: RecordsManifest
    """What is to make them count."""
    temporary: str
    """The file that holds them."""

    def discard(self) -> None:
        """Take them back; harmless after they were published."""
        _remove(self.temporary)


@attrs.frozen
class RecordsStore:
    """
    Where one participant of one deployment keeps its records below one checkpoint's root.

    Raises:
        TypeError: An id or name is not a string.
        ValueError: The instance id, kind or server name is no safe part of a path.
    """

    root: Path = attrs.field(converter=Path)
    instance_id: str = attrs.field(converter=require_instance_id)
    kind: Kind = attrs.field(validator=attrs.validators.in_(KINDS))
    server: str = attrs.field(converter=require_server_name)

    directory: Path = attrs.field(init=False)
    """The participant's own directory; no two participants share one."""

    def __attrs_post_init__(self) -> None:
        instance = instance_directory(self.root, self.instance_id)
        object.__setattr__(self, "directory", instance.joinpath("gym", self.kind, self.server))

    def write(
        self, checkpoint_id: str, records: Iterable[Record], *, stop: Callable[[], bool]
    ) -> RecordsManifest:
        """
        Write one checkpoint's records, and then the manifest that makes them count.

        Args:
            checkpoint_id: The checkpoint.
            records: What to write, taken one by one.
            stop: Asked after each record and immediately before the manifest appears; once it
                says True, this call publishes nothing.

        Returns:
            The manifest that stands: an older one if an equal write had already been published.

        Raises:
            ParticipantRefused: `stop` said so, or the directory holds another checkpoint or
                other records of this one.
            ValueError: A record is not JSON data, or what stands in the directory is damaged.
            OSError: The disk refused; what was not published stays unpublished.
        """
        return self.publish(self.stage(checkpoint_id, map(encode_record, records), stop=stop), stop)

    def stage(
        self, checkpoint_id: str, lines: Iterable[bytes], *, stop: Callable[[], bool]
    ) -> Staged:
        """
        Write one checkpoint's records, of which nothing counts before they are published.

        Args:
            checkpoint_id: The checkpoint.
            lines: What `encode_record` made of each record, taken one by one.
            stop: Asked after each record.

        Raises:
            ParticipantRefused: `stop` said so.
            OSError: The disk refused.
        """
        checkpoint_id = require_operation_id(checkpoint_id, "checkpoint id")
        self._make_directory()
        temporary = self._at(f".records-{uuid.uuid4().hex}.tmp")
        try:
            digest, count = _write_lines(temporary, lines, stop)
        except BaseException:
            _remove(temporary)
            raise
        manifest = RecordsManifest(
            checkpoint_id=checkpoint_id,
            kind=self.kind,
            server=self.server,
            records_file=_records_file(digest),
            records_sha256=digest,
            record_count=count,
        )
        return Staged(manifest, temporary)

    def publish(self, staged: Staged, stop: Callable[[], bool]) -> RecordsManifest:
        """
        Make staged records count.

        Args:
            staged: What `stage` returned; nothing temporary is left of it.
            stop: Asked immediately before the manifest appears.

        Raises:
            ParticipantRefused: `stop` said so, or the directory holds another checkpoint or
                other records of this one.
            ValueError: What stands in the directory is damaged.
            OSError: The disk refused.
        """
        manifest = staged.manifest
        try:
            if os.path.lexists(self._at(MANIFEST_FILE)):
                self._require_standing(manifest)
            os.replace(staged.temporary, self._at(manifest.records_file))
        except BaseException:
            staged.discard()
            raise
        _flush_directory(str(self.directory))
        self._link(manifest, stop)
        return manifest

    def read(
        self, checkpoint_id: str, *, wanted: Callable[[Record], bool] = lambda _: True
    ) -> list[Record]:
        """
        Return the records of one checkpoint after everything about them was checked.

        Args:
            checkpoint_id: The checkpoint that must have written them.
            wanted: Which records to keep in memory; all are checked.

        Raises:
            ValueError: Anything is missing, damaged, or written for another participant or
                checkpoint.
        """
        self._require_contained()
        manifest = self._read_manifest()
        path = self._at(MANIFEST_FILE)
        for name, found, expected in (
            ("kind", manifest.kind, self.kind),
            ("server", manifest.server, self.server),
            ("checkpoint_id", manifest.checkpoint_id, checkpoint_id),
        ):
            if found != expected:
                raise ValueError(f"{path}: {name} is {show(found)}, expected {show(expected)}")
        return self._read_records(manifest, wanted)

    def _at(self, name: str) -> str:
        """Return the path of one file of the directory; `pathlib` would parse it anew."""
        return f"{self.directory}{os.sep}{name}"

    # --- writing ----------------------------------------------------------------------------

    def _make_directory(self) -> None:
        absent: list[str] = []
        directory = str(self.directory)
        while not os.path.isdir(directory):
            absent.append(directory)
            directory = os.path.dirname(directory) or os.curdir
        for made in reversed(absent):
            with contextlib.suppress(FileExistsError):  # by another writer, or is no directory
                os.mkdir(made)
            _flush_directory(directory)
            directory = made
        self._require_contained()

    def _link(self, manifest: RecordsManifest, stop: Callable[[], bool]) -> None:
        """Create the manifest unless one stands; hard links decide between racing writers."""
        temporary = self._at(f".manifest-{uuid.uuid4().hex}.tmp")
        try:
            with _create(temporary) as file:
                file.write(manifest.encode())
                _flush(file)
            if stop():
                raise _stopped()
            try:
                os.link(temporary, self._at(MANIFEST_FILE))
            except FileExistsError:
                self._require_standing(manifest)
        finally:
            _remove(temporary)
        _flush_directory(str(self.directory))

    def _require_standing(self, manifest: RecordsManifest) -> None:
        """Pass if the manifest that stands is equal; else take back this write's records."""
        standing = self._read_manifest()
        if standing == manifest:
            return
        if standing.records_file != manifest.records_file:
            _remove(self._at(manifest.records_file))
        raise ParticipantRefused(
            "checkpoint_exists",
            f"{self.directory} already holds checkpoint {standing.checkpoint_id!r} with "
            f"{standing.record_count} record(s), which never changes; checkpoint "
            f"{manifest.checkpoint_id!r} needs another root",
        )

    # --- reading ----------------------------------------------------------------------------

    def _require_contained(self) -> None:
        """Refuse a path below the root that leads through a symbolic link."""
        step = str(self.root)
        for part in self.directory.parts[len(self.root.parts) :]:
            step = f"{step}{os.sep}{part}"
            if os.path.islink(step):
                raise ValueError(
                    f"{self.directory}: leads through a symbolic link to {self.directory.resolve()}"
                )

    def _read_manifest(self) -> RecordsManifest:
        path = self._at(MANIFEST_FILE)
        with _open(path) as file:
            raw = file.read(MANIFEST_BYTES_MAX + 1)
        if len(raw) > MANIFEST_BYTES_MAX:
            raise ValueError(f"{path}: is larger than {MANIFEST_BYTES_MAX} bytes, no manifest is")
        with located(path):
            parsed = parse_json(raw)
        fields = require_types(parsed, path, _MANIFEST_TYPES)
        manifest = RecordsManifest(**fields)
        if manifest.schema_version != SCHEMA_VERSION:
            raise ValueError(
                f"{path}: schema_version is {manifest.schema_version}, only {SCHEMA_VERSION} "
                "is known"
            )
        digest = manifest.records_sha256
        if not _DIGEST.fullmatch(digest) or manifest.records_file != _records_file(digest):
            raise ValueError(
                f"{path}: records_file {show(manifest.records_file)} must be "
                f"'records-<sha256>.jsonl' with records_sha256 {show(digest)}"
            )
        if manifest.record_count < 0 or manifest.encode() != raw:
            raise ValueError(f"{path}: is not as it was written")
        return manifest

    def _read_records(
        self, manifest: RecordsManifest, wanted: Callable[[Record], bool]
    ) -> list[Record]:
        path = self._at(manifest.records_file)
        kept: list[Record] = []
        count = 0
        digest = hashlib.sha256()
        with _open(path) as file:
            for count, line in enumerate(_lines(file, path), start=1):
                digest.update(line)
                where = f"{path}, line {count}"
                record = dict(require_object(decode(line, where), where))
                if wanted(record):
                    kept.append(record)
        if count != manifest.record_count:
            raise ValueError(
                f"{path}: holds {count} record(s), the manifest names {manifest.record_count}"
            )
        if digest.hexdigest() != manifest.records_sha256:
            raise ValueError(f"{path}: its SHA-256 is {digest.hexdigest()}, not the one it names")
        return kept


def _records_file(digest: str) -> str:
    return f"records-{digest}.jsonl"


def _stopped() -> ParticipantRefused:
    return ParticipantRefused(
        "stale_checkpoint", "the participant was resumed while its records were being written"
    )


def _write_lines(path: str, lines: Iterable[bytes], stop: Callable[[], bool]) -> tuple[str, int]:
    """Write one line a record and flush; return the digest and the count."""
    digest = hashlib.sha256()
    count = 0
    with _create(path) as file:
        for line in lines:
            if stop():
                raise _stopped()
            digest.update(line)
            file.write(line)
            count += 1
        _flush(file)
    return digest.hexdigest(), count


def _lines(file: BinaryIO, path: str) -> Iterator[bytes]:
    while line := file.readline(RECORD_BYTES_MAX + 1):
        if not line.endswith(b"\n"):
            raise ValueError(f"{path}: its last line was cut off or is no record")
        yield line


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _create(path: str) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb")


def _open(path: str) -> BinaryIO:
    """Open a regular file for reading; neither links nor pipes pass for one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _NO_SUCH_FILE:
            raise ValueError(f"{path}: is missing") from error
        if error.errno == errno.ELOOP:
            raise ValueError(f"{path}: is a symbolic link") from error
        raise
    file = os.fdopen(descriptor, "rb") if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    if file is None:
        os.close(descriptor)
        raise ValueError(f"{path}: is not a regular file")
    return file


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
