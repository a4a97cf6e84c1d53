"""The manifest as a file: published once, whole or not at all, and withdrawn for good."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gymckpt import files
from gymckpt import manifest as manifest_module
from gymckpt.errors import ManifestWithdrawn, is_transient_failure
from gymckpt.manifest import (
    GYM_CHECKPOINT_MANIFEST_FILENAME,
    GymCheckpointManifest,
    ManifestPublication,
    load_gym_checkpoint_manifest,
    withdraw_gym_checkpoint_manifest,
    write_gym_checkpoint_manifest,
)
from tests.test_manifest import INTRUDERS, a_manifest, digest_of, path_in

WAIT_S = 30.0
"""The longest that a test waits for another thread or process before it fails."""


def names_in(root: Path) -> list[str]:
    return sorted(os.listdir(root))


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


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


def test_a_missing_root_is_made(tmp_path: Path) -> None:
    """The first file of a snapshot may be its manifest."""
    root = tmp_path / "snapshots" / "step-1"

    write_gym_checkpoint_manifest(str(root), a_manifest())

    assert load_gym_checkpoint_manifest(root) == a_manifest()


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

    def fsync(descriptor: int, real: Callable[[int], None] = os.fsync) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
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


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    """Run all works at once and return what each returned or raised."""
    outcomes: list[Any] = [None] * len(works)
    barrier = threading.Barrier(len(works))

    def run(index: int, work: Callable[[], Any]) -> None:
        barrier.wait(WAIT_S)
        try:
            outcomes[index] = work()
        except Exception as error:
            outcomes[index] = error

    threads = [
        threading.Thread(target=run, args=(index, work), daemon=True)
        for index, work in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    return outcomes


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


TRY_TO_ENTER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("kept out", end="")
else:
    print("entered", end="")
"""


def test_other_processes_are_kept_out_while_one_is_in(tmp_path: Path) -> None:
    """Another process finds the directory locked inside, and free before and after."""

    def said() -> str:
        command = [sys.executable, "-c", TRY_TO_ENTER, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert said() == "entered"
    with files.exclusive(tmp_path):
        assert said() == "kept out"
    assert said() == "entered"


FORK_INSIDE = """
import os, sys
from pathlib import Path
from gymckpt.files import exclusive
root = Path(sys.argv[1])
here, there = os.pipe()
with exclusive(root):
    child = os.fork()
    if child == 0:
        os.close(there)
        os.read(here, 1)  # the parent has left and entered once more
        with exclusive(root):
            os._exit(0)
with exclusive(root):
    os.write(there, b"x")
assert os.waitpid(child, 0)[1] == 0
with exclusive(root):
    print("done", end="")
"""


def test_a_forked_child_neither_inherits_nor_keeps_the_exclusion(tmp_path: Path) -> None:
    """Forked inside, a child keeps nobody out by its copy of the lock, and enters in its turn."""
    command = [sys.executable, "-c", FORK_INSIDE, str(tmp_path)]

    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)

    assert done.stdout == "done"


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF])
def test_a_directory_that_cannot_be_locked_is_still_kept_from_threads(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a filesystem refuses the lock, the process has one of its own for the directory."""

    def flock(_descriptor: int, _operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)

    def somebody_is_in() -> bool:
        descriptor = os.open(tmp_path, os.O_RDONLY)
        lock = files._LOCKS.of(descriptor)
        os.close(descriptor)
        return lock.locked()

    with files.exclusive(tmp_path):
        assert somebody_is_in()
    assert not somebody_is_in()


def test_a_lock_that_fails_otherwise_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing disk is not taken for a filesystem without locks."""

    def flock(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.EIO, "the disk failed")

    monkeypatch.setattr(fcntl, "flock", flock)

    with pytest.raises(OSError, match="the disk failed"), files.exclusive(tmp_path):
        pass


# --- withdrawing ---------------------------------------------------------------------------------


def test_a_withdrawn_manifest_is_gone_for_good(tmp_path: Path) -> None:
    """S2: it is removed once, and neither this publication nor a repetition brings it back."""
    publication = ManifestPublication(tmp_path, a_manifest())
    publication.publish()

    assert publication.withdraw() is True
    assert publication.withdraw() is False
    with pytest.raises(ManifestWithdrawn, match="'step-1' was withdrawn") as caught:
        publication.publish()

    assert not is_transient_failure(caught.value)
    assert names_in(tmp_path) == []


def test_withdrawing_before_publishing_keeps_the_manifest_from_appearing(tmp_path: Path) -> None:
    """B40: a publication that was withdrawn first makes neither a file nor a directory."""
    root = tmp_path / "absent"
    publication = ManifestPublication(root, a_manifest())

    assert publication.withdraw() is False
    with pytest.raises(ManifestWithdrawn):
        publication.publish()

    assert not root.exists()


def test_withdrawing_leaves_another_checkpoints_manifest(tmp_path: Path) -> None:
    """What another checkpoint published is none of this one's business."""
    write_gym_checkpoint_manifest(tmp_path, a_manifest("step-2"))

    assert ManifestPublication(tmp_path, a_manifest()).withdraw() is False
    with pytest.raises(ValueError, match="of checkpoint 'step-2', not of 'step-1'"):
        withdraw_gym_checkpoint_manifest(tmp_path, "step-1")

    assert load_gym_checkpoint_manifest(tmp_path).checkpoint_id == "step-2"


class SlowReplace:
    """An `os.replace` that stops before, in or after the move until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, before: bool) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self._before, self._real = before, os.replace
        monkeypatch.setattr(os, "replace", self)

    def __call__(self, source: Any, target: Any) -> None:
        if not self._before:
            self._real(source, target)
        self.reached.set()
        assert self.go.wait(WAIT_S)
        if self._before:
            self._real(source, target)


@pytest.mark.parametrize("before", [True, False])
def test_withdrawing_waits_for_a_publication_that_is_in_the_directory(
    before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B40: a slow move is waited for and undone; after `withdraw` nothing stands or appears."""
    slow = SlowReplace(monkeypatch, before=before)
    publication = ManifestPublication(tmp_path, a_manifest())
    withdrawing = threading.Event()

    def withdraw() -> bool:
        assert slow.reached.wait(WAIT_S)
        withdrawing.set()
        return publication.withdraw()

    def let_go() -> None:
        assert withdrawing.wait(WAIT_S)
        wait_until(lambda: publication._withdrawn)
        slow.go.set()

    published, withdrawn, _ = in_threads(publication.publish, withdraw, let_go)

    assert isinstance(published, str)
    assert withdrawn is True
    assert names_in(tmp_path) == []


def test_a_publication_that_waits_to_enter_gives_up_when_it_is_withdrawn(tmp_path: Path) -> None:
    """B40: withdrawn while it waited for the directory, a publication does not move its file."""
    publication = ManifestPublication(tmp_path, a_manifest())
    outcomes: list[Any] = []

    def publish() -> None:
        with pytest.raises(ManifestWithdrawn) as caught:
            publication.publish()
        outcomes.append(caught.value.checkpoint_id)

    threads = [
        threading.Thread(target=publish, daemon=True),
        threading.Thread(target=publication.withdraw, daemon=True),
    ]
    with files.exclusive(tmp_path):
        threads[0].start()
        wait_until(lambda: names_in(tmp_path))  # the temporary file: it is about to enter
        threads[1].start()
        wait_until(lambda: publication._withdrawn)
    for thread in threads:
        thread.join(WAIT_S)

    assert outcomes == ["step-1"]
    assert names_in(tmp_path) == []


def test_publishing_and_withdrawing_at_once_ends_without_a_manifest(tmp_path: Path) -> None:
    """S2: in whatever order the threads run, nothing stands after the last `withdraw`."""
    for turn in range(50):
        publication = ManifestPublication(tmp_path / str(turn), a_manifest())

        published, removed, again = in_threads(
            publication.publish, publication.withdraw, publication.withdraw
        )

        assert isinstance(published, str | ManifestWithdrawn)
        assert (removed, again) in {(False, False), (True, False), (False, True)}
        assert isinstance(published, str) is (removed or again)
        root = tmp_path / str(turn)
        assert not root.exists() or names_in(root) == []


def test_a_recovering_process_removes_only_its_checkpoints_manifest(tmp_path: Path) -> None:
    """The manifest is removed once; an absent root and an empty one are fine."""
    assert withdraw_gym_checkpoint_manifest(tmp_path / "absent", "step-1") is False
    assert not (tmp_path / "absent").exists()
    write_gym_checkpoint_manifest(tmp_path, a_manifest())

    assert withdraw_gym_checkpoint_manifest(str(tmp_path), "step-1") is True
    assert withdraw_gym_checkpoint_manifest(tmp_path, "step-1") is False

    assert not path_in(tmp_path).exists()


def test_a_recovering_process_stops_a_slow_one(tmp_path: Path) -> None:
    """S2: a controller that was fenced while it slept cannot publish what was given up since."""
    slow = ManifestPublication(tmp_path, a_manifest())
    leftover = files.write_beside(
        path_in(tmp_path), b"half", prefix=manifest_module._temporary_prefix("step-1")
    )
    others = files.write_beside(
        path_in(tmp_path), b"half", prefix=manifest_module._temporary_prefix("step-1.b")
    )

    withdraw_gym_checkpoint_manifest(tmp_path, "step-1")

    with pytest.raises(ManifestWithdrawn):
        slow.publish()
    assert not path_in(tmp_path).exists()
    assert not leftover.exists()
    assert others.exists()


def test_another_checkpoint_may_use_the_directory_afterwards(tmp_path: Path) -> None:
    """A withdrawal stops one checkpoint, not the directory."""
    withdraw_gym_checkpoint_manifest(tmp_path, "step-1")

    write_gym_checkpoint_manifest(tmp_path, a_manifest("step-2"))

    assert load_gym_checkpoint_manifest(tmp_path).checkpoint_id == "step-2"


def test_a_recovering_process_leaves_what_it_cannot_read(tmp_path: Path) -> None:
    """A file that is no manifest is reported with its path and left as it is."""
    path_in(tmp_path).write_bytes(b"torn")

    with pytest.raises(ValueError, match=r"gym_checkpoint\.json: is not JSON"):
        withdraw_gym_checkpoint_manifest(tmp_path, "step-1")

    assert path_in(tmp_path).read_bytes() == b"torn"


@pytest.mark.parametrize("checkpoint_id", ["", "../x", "a/b"])
def test_an_unsafe_id_is_refused_before_any_file_is_touched(
    checkpoint_id: str, tmp_path: Path
) -> None:
    """B46: the id becomes part of a file name only after it was checked."""
    with pytest.raises(ValueError, match="checkpoint_id"):
        withdraw_gym_checkpoint_manifest(tmp_path, checkpoint_id)

    assert names_in(tmp_path) == []


def test_a_full_disk_does_not_keep_a_checkpoint_from_being_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: without room for the mark the manifest is removed all the same."""
    write_gym_checkpoint_manifest(tmp_path, a_manifest())

    def touch(_path: Path) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "touch", touch)

    assert withdraw_gym_checkpoint_manifest(tmp_path, "step-1") is True
    assert names_in(tmp_path) == []


def test_a_file_in_place_of_the_root_holds_no_manifest(tmp_path: Path) -> None:
    """Nothing can stand below a file: withdrawing is done, loading and publishing are errors."""
    root = tmp_path / "file"
    root.touch()
    publication = ManifestPublication(root, a_manifest())

    with pytest.raises(OSError, match="file"):
        publication.publish()
    with pytest.raises(ValueError, match="is no regular file"):
        load_gym_checkpoint_manifest(root)
    assert withdraw_gym_checkpoint_manifest(root, "step-1") is False
    assert publication.withdraw() is False


def test_a_disk_that_fails_while_withdrawing_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that a repetition may mend is raised, and the repetition succeeds."""
    publication = ManifestPublication(tmp_path, a_manifest())
    publication.publish()

    def unlink(_path: Path, **_options: Any) -> None:
        raise OSError(errno.EIO, "the disk failed")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink)
        with pytest.raises(OSError, match="the disk failed"):
            publication.withdraw()

    assert publication.withdraw() is True
