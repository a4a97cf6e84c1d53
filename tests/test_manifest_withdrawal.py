"""A manifest that was withdrawn is gone for good, whoever is slow."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from gymckpt import files
from gymckpt import manifest as manifest_module
from gymckpt.errors import ManifestWithdrawn, is_transient_failure
from gymckpt.manifest import (
    ManifestPublication,
    load_gym_checkpoint_manifest,
    withdraw_gym_checkpoint_manifest,
    write_gym_checkpoint_manifest,
)
from tests.racing import WAIT_S, in_threads, wait_until
from tests.test_manifest import a_manifest, names_in, path_in


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


def test_the_disk_knows_of_a_withdrawal_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is flushed after the name is gone, so that no crash brings it back."""
    publication = ManifestPublication(tmp_path, a_manifest())
    publication.publish()
    flushed: list[list[str]] = []

    def fsync(_descriptor: int) -> None:
        flushed.append(names_in(tmp_path))

    monkeypatch.setattr(os, "fsync", fsync)

    publication.withdraw()

    assert flushed == [[]]


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
    assert not path_in(tmp_path / "absent").exists()
    write_gym_checkpoint_manifest(tmp_path, a_manifest())

    assert withdraw_gym_checkpoint_manifest(str(tmp_path), "step-1") is True
    assert withdraw_gym_checkpoint_manifest(tmp_path, "step-1") is False

    assert not path_in(tmp_path).exists()


def test_withdrawing_makes_no_directory_and_nor_does_a_slow_publication(tmp_path: Path) -> None:
    """S2: where there is no directory nothing is published, now or after it was given up."""
    root = tmp_path / "deep" / "absent"
    slow = ManifestPublication(root, a_manifest())
    assert withdraw_gym_checkpoint_manifest(root, "step-1") is False
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        slow.publish()
    assert list(tmp_path.iterdir()) == []


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
