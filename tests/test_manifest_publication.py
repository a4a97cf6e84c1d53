"""The manifest is published once, whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gymckpt import files
from gymckpt.errors import is_transient_failure
from gymckpt.manifest import (
    GYM_CHECKPOINT_MANIFEST_FILENAME,
    GymCheckpointManifest,
    ManifestPublication,
    load_gym_checkpoint_manifest,
    write_gym_checkpoint_manifest,
)
from tests.racing import WAIT_S, in_threads
from tests.test_manifest import a_manifest, digest_of, names_in, path_in
from tests.test_manifest_broken import INTRUDERS

# --- publishing ----------------------------------------------------------------------------------


def test_publishing_returns_the_files_digest(tmp_path: Path) -> None:
    """The digest is that of the file, and the file is there alone, for everyone to read."""
    digest = ManifestPublication(tmp_path, a_manifest()).publish()

    assert digest == digest_of(tmp_path)
    assert load_gym_checkpoint_manifest(tmp_path, sha256=digest) == a_manifest()
    assert names_in(tmp_path) == [GYM_CHECKPOINT_MANIFEST_FILENAME]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path_in(tmp_path).stat().st_mode) == 0o666 & ~mask


def test_a_missing_root_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first file of a snapshot may be its manifest; its directory is made durable too."""
    root = tmp_path / "snapshots" / "step-1"
    flushed: list[int] = []

    def fsync(descriptor: int, real: Callable[[int], None] = os.fsync) -> None:
        flushed.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)

    write_gym_checkpoint_manifest(str(root), a_manifest())

    assert load_gym_checkpoint_manifest(root) == a_manifest()
    assert root.parent.stat().st_ino in flushed


def test_the_same_manifest_again_changes_nothing(tmp_path: Path) -> None:
    """B14: an equal manifest is fine, by the same publication or another; the file stays."""
    publication = ManifestPublication(tmp_path, a_manifest())
    digest = publication.publish()
    before = path_in(tmp_path).stat()

    assert publication.publish() == digest
    assert ManifestPublication(tmp_path, a_manifest()).publish() == digest

    assert path_in(tmp_path).stat() == before
    assert names_in(tmp_path) == [GYM_CHECKPOINT_MANIFEST_FILENAME]


def test_an_equal_manifest_in_another_layout_keeps_its_file(tmp_path: Path) -> None:
    """What counts is what the file says; the digest returned is that of the file that stands."""
    data = json.dumps(a_manifest().to_dict()).encode()
    path_in(tmp_path).write_bytes(data)

    assert ManifestPublication(tmp_path, a_manifest()).publish() == hashlib.sha256(data).hexdigest()
    assert path_in(tmp_path).read_bytes() == data


@pytest.mark.parametrize(
    "other", [a_manifest("step-2"), a_manifest(restarts={"a/replica-0": (), "a/replica-1": ()})]
)
def test_another_manifest_is_refused(other: GymCheckpointManifest, tmp_path: Path) -> None:
    """B14: of another checkpoint or of the same one, it is refused with both ids in the error."""
    write_gym_checkpoint_manifest(tmp_path, a_manifest())

    with pytest.raises(ValueError, match="another manifest, of checkpoint 'step-1'") as caught:
        write_gym_checkpoint_manifest(tmp_path, other)

    assert repr(other.checkpoint_id) in str(caught.value)
    assert load_gym_checkpoint_manifest(tmp_path) == a_manifest()
    assert names_in(tmp_path) == [GYM_CHECKPOINT_MANIFEST_FILENAME]


@pytest.mark.parametrize("leave", [Path.touch, Path.mkdir])
def test_what_a_crashed_run_left_does_not_disturb(
    leave: Callable[[Path], None], tmp_path: Path
) -> None:
    """B43: a stale temporary file or directory neither breaks the next write nor is loaded."""
    stale = tmp_path / f"{GYM_CHECKPOINT_MANIFEST_FILENAME}.tmp"
    leave(stale)
    with pytest.raises(FileNotFoundError):
        load_gym_checkpoint_manifest(tmp_path)

    write_gym_checkpoint_manifest(tmp_path, a_manifest())

    assert load_gym_checkpoint_manifest(tmp_path) == a_manifest()
    assert stale.exists()


def test_the_disk_has_the_file_before_its_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B43: the file is flushed, moved to its place, and the directory flushed, in this order."""
    steps: list[str] = []

    size = len(a_manifest().encode())

    def fsync(descriptor: int, real: Callable[[int], None] = os.fsync) -> None:
        status = os.fstat(descriptor)
        is_directory = stat.S_ISDIR(status.st_mode)
        assert is_directory or status.st_size == size
        steps.append("flush directory" if is_directory else "flush file")
        real(descriptor)

    def replace(source: Any, target: Any, real: Callable[..., None] = os.replace) -> None:
        assert Path(source).parent == Path(target).parent
        steps.append("replace")
        real(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)

    ManifestPublication(tmp_path, a_manifest()).publish()
    assert steps == ["flush file", "replace", "flush directory"]

    ManifestPublication(tmp_path, a_manifest()).publish()
    assert steps[3:] == ["flush file", "flush file", "flush directory"]


@pytest.mark.parametrize("place", ["replace", "fsync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_leaves_nothing(
    place: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B43: a failing disk is the error that is raised, not transient, and nothing is left."""

    def fail(*_arguments: Any) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, place, fail)
        with pytest.raises(OSError, match=os.strerror(code)) as caught:
            ManifestPublication(tmp_path, a_manifest()).publish()

    assert not is_transient_failure(caught.value)
    assert names_in(tmp_path) == []
    write_gym_checkpoint_manifest(tmp_path, a_manifest())


def test_a_name_that_the_disk_does_not_keep_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B43: when the directory cannot be flushed the manifest does not stand as if it were safe."""

    def fsync(descriptor: int, real: Callable[[int], None] = os.fsync) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "the disk failed")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)

    with pytest.raises(OSError, match="the disk failed"):
        ManifestPublication(tmp_path, a_manifest()).publish()

    assert names_in(tmp_path) == []


def test_a_filesystem_that_cannot_flush_directories_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where flushing a directory is not supported, publishing does without."""

    def fsync(descriptor: int, real: Callable[[int], None] = os.fsync) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not supported")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)

    ManifestPublication(tmp_path, a_manifest()).publish()

    assert load_gym_checkpoint_manifest(tmp_path) == a_manifest()


IN_A_PROCESS = """
import resource, signal, sys
from pathlib import Path
from gymckpt.manifest import *
manifest = GymCheckpointManifest.from_mapping(__import__("json").loads(sys.argv[2]))
if sys.argv[3] == "no-room":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
else:
    sys.stdin.readline()
try:
    print(ManifestPublication(sys.argv[1], manifest).publish())
except Exception as error:
    print(type(error).__name__, error)
"""


def publishing_process(
    root: Path, manifest: GymCheckpointManifest, mode: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", IN_A_PROCESS, root, json.dumps(manifest.to_dict()), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_disk_that_is_full_half_way_leaves_nothing(tmp_path: Path) -> None:
    """B43: when the system stops the file at its hundredth byte, no part of it remains."""
    with publishing_process(tmp_path, a_manifest(), "no-room") as process:
        said, _ = process.communicate(timeout=WAIT_S)

    assert said.startswith("OSError")
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("put", INTRUDERS)
def test_what_is_no_manifest_is_neither_replaced_nor_removed(
    put: Callable[[Path], None], tmp_path: Path
) -> None:
    """S8: publishing over something strange is refused, withdrawing leaves it, nothing is left."""
    root = tmp_path / "root"
    root.mkdir()
    put(path_in(root))
    before = path_in(root).lstat()
    publication = ManifestPublication(root, a_manifest())

    with pytest.raises(ValueError, match="'step-1' is not written over it"):
        publication.publish()
    assert publication.withdraw() is False

    after = path_in(root).lstat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert names_in(root) == [GYM_CHECKPOINT_MANIFEST_FILENAME]


# --- racing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lockable", [True, False])
def test_of_racing_threads_one_wins(
    lockable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B14: the file equals one of the manifests, all the others are refused, nothing else is left.

    Also where the filesystem has no locks: then the process's own lock decides.
    """
    if not lockable:
        monkeypatch.setattr(files, "_lock", lambda _descriptor: False)
    for turn in range(20):
        root = tmp_path / str(turn)
        root.mkdir()
        publications = [ManifestPublication(root, a_manifest(f"step-{it}")) for it in range(4)]

        outcomes = in_threads(*(it.publish for it in publications))

        winner = load_gym_checkpoint_manifest(root).checkpoint_id
        won = [it for it in range(4) if isinstance(outcomes[it], str)]
        assert won == [int(winner.removeprefix("step-"))]
        assert all(isinstance(it, str | ValueError) for it in outcomes)
        assert names_in(root) == [GYM_CHECKPOINT_MANIFEST_FILENAME]


def test_of_racing_processes_one_wins(tmp_path: Path) -> None:
    """B14: the same holds between processes."""
    processes = [
        publishing_process(tmp_path, a_manifest(f"step-{index}"), "race") for index in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=WAIT_S)[0].strip() for process in processes]

    assert said.count(digest_of(tmp_path)) == 1
    assert sum(it.startswith("ValueError") for it in said) == 3
    assert names_in(tmp_path) == [GYM_CHECKPOINT_MANIFEST_FILENAME]
