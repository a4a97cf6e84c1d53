"""
The outer manifest of one checkpoint as a file: loaded, published and withdrawn.

The manifest is the commit point: it appears last, whole or not at all, and a directory that holds
one never changes. Publishing and withdrawing exclude each other between threads and processes.
What is loaded is checked again, and the error names the file and the place in it. A flipped byte
inside a name gives another name, which no check of meaning can notice; whoever knows the file's
SHA-256 from its publication can ask for that too.

All of it blocks and belongs into a worker thread.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from gymckpt.episodes import require_operation_id
from gymckpt.errors import ManifestWithdrawn
from gymckpt.files import exclusive, flush_directory, flush_file, read_file, write_beside
from gymckpt.manifest_schema import (
    GYM_CHECKPOINT_SCHEMA_VERSION,
    GymCheckpointManifest,
    episodes_by_instance,
    require_schema_version,
)
from gymckpt.roots import require_root
from gymckpt.strict_json import located, parse_json
from gymckpt.wording import show, text_of

__all__ = [
    "GYM_CHECKPOINT_MANIFEST_FILENAME",
    "GYM_CHECKPOINT_SCHEMA_VERSION",
    "GymCheckpointManifest",
    "ManifestPublication",
    "load_gym_checkpoint_manifest",
    "withdraw_gym_checkpoint_manifest",
    "write_gym_checkpoint_manifest",
]

GYM_CHECKPOINT_MANIFEST_FILENAME = "gym_checkpoint.json"
"""The manifest's name in a checkpoint's root."""

MANIFEST_BYTES_MAX = 1 << 30
"""Far beyond any inventory; a larger file is something else, and would not fit into memory."""

_NO_DIRECTORY = (FileNotFoundError, NotADirectoryError)

_require_schema_version = require_schema_version
_episodes_by_instance = episodes_by_instance
"""The coordinator's API document names both here."""


# --- reading -------------------------------------------------------------------------------------


def load_gym_checkpoint_manifest(
    checkpoint_root: str | Path, *, sha256: str | None = None
) -> GymCheckpointManifest:
    """
    Load and check the manifest of one committed checkpoint.

    Args:
        checkpoint_root: The checkpoint's directory.
        sha256: What the file's SHA-256 must be, as `ManifestPublication.publish` returned it.

    Raises:
        FileNotFoundError: There is none.
        TypeError: The directory is not a path.
        ValueError: The manifest is broken, was written by another version, or is another file than
            the one whose digest is known; or the directory is a URL or unsafe.
        OSError: It cannot be read.
    """
    return _read(Path(require_root(checkpoint_root)), sha256)[0]


def _read(root: Path, sha256: str | None = None) -> tuple[GymCheckpointManifest, str]:
    """Return the manifest that stands in a directory, and its digest."""
    with located(str(root / GYM_CHECKPOINT_MANIFEST_FILENAME)):
        data = read_file(root, GYM_CHECKPOINT_MANIFEST_FILENAME, bytes_max=MANIFEST_BYTES_MAX)
        digest = hashlib.sha256(data).hexdigest()
        if sha256 is not None and digest != sha256:
            raise ValueError(f"has the SHA-256 {digest}, not {show(sha256)}")
        parsed: Any = parse_json(data)
        return GymCheckpointManifest.from_mapping(parsed), digest


# --- publishing ----------------------------------------------------------------------------------


def write_gym_checkpoint_manifest(
    checkpoint_root: str | Path, manifest: GymCheckpointManifest
) -> None:
    """
    Write a manifest into a checkpoint that is not published yet: whole or not at all.

    Args:
        checkpoint_root: The checkpoint's directory; made if there is none.
        manifest: What to write. Writing the same one again is fine.

    Raises:
        TypeError: The directory is not a path.
        ValueError: Another manifest stands there, or the directory is a URL or unsafe.
        ManifestWithdrawn: The checkpoint was given up by a process that recovered it.
        OSError: It cannot be written; what stood there is as it was.
    """
    make_checkpoint_root(checkpoint_root)
    ManifestPublication(checkpoint_root, manifest).publish()


def make_checkpoint_root(checkpoint_root: str | Path) -> None:
    """
    Make a checkpoint's directory durable; one that is there is left as it is.

    A controller does this before it records that it commits. Nothing makes the directory later, so
    that a checkpoint that was given up cannot appear in one that its withdrawal has not seen.

    Args:
        checkpoint_root: The checkpoint's directory.

    Raises:
        TypeError: The root is no path.
        ValueError: The root is a URL or unsafe.
        OSError: It cannot be made.
    """
    root = Path(require_root(checkpoint_root))
    if not root.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        flush_directory(root.parent)


def withdraw_gym_checkpoint_manifest(checkpoint_root: str | Path, checkpoint_id: str) -> bool:
    """
    See to it that no manifest of a checkpoint exists or appears, whichever process published it.

    A process that drove the checkpoint before and is only slow is stopped by a mark that stays in
    the directory, if there is room for one. A directory that is absent is not made: then nobody
    can publish there, since it is made before a commit is recorded and never afterwards.

    Args:
        checkpoint_root: The checkpoint's directory.
        checkpoint_id: The checkpoint that was given up.

    Returns:
        Whether a manifest was removed; False says that there was none.

    Raises:
        ValueError: What stands there is the manifest of another checkpoint, or no manifest; it is
            left as it is.
        OSError: The directory cannot be changed.
    """
    checkpoint_id = require_operation_id(checkpoint_id, "checkpoint_id")
    root = Path(require_root(checkpoint_root))
    try:
        with exclusive(root):
            with suppress(OSError):  # a full disk must not keep a checkpoint from being given up
                _withdrawal_mark(root, checkpoint_id).touch()
            return _withdraw(root, checkpoint_id)
    except _NO_DIRECTORY:
        return False


class ManifestPublication:
    """
    One manifest on its way into one directory: published at most once, and possibly withdrawn.

    `publish` may be busy in one thread while `withdraw` is called in another. Whichever of them
    enters the directory first has its way, and after `withdraw` has returned the manifest neither
    stands there nor appears later.
    """

    def __init__(self, checkpoint_root: str | Path, manifest: GymCheckpointManifest) -> None:
        self._root = Path(require_root(checkpoint_root))
        self._path = self._root / GYM_CHECKPOINT_MANIFEST_FILENAME
        self._manifest = manifest
        self._withdrawn = False

    def publish(self) -> str:
        """
        Write the manifest durably, unless it stands there already.

        Returns:
            The SHA-256 of the file, as hexadecimal digits.

        Raises:
            ValueError: Something else stands there: the manifest of another checkpoint, another
                manifest of this one, or no manifest.
            ManifestWithdrawn: The checkpoint was given up.
            OSError: It cannot be written, as where there is no such directory; nothing of it is
                left.
        """
        self._require_wanted()
        data = self._manifest.encode()
        temporary = write_beside(
            self._path, data, prefix=_temporary_prefix(self._manifest.checkpoint_id)
        )
        try:
            with exclusive(self._root):
                self._require_wanted()
                if os.path.lexists(self._path):
                    return self._confirm_standing()
                os.replace(temporary, self._path)
                self._flush_or_remove()
        finally:
            with suppress(OSError):
                temporary.unlink()
        return hashlib.sha256(data).hexdigest()

    def withdraw(self) -> bool:
        """
        See to it that this manifest neither stands in the directory nor appears there later.

        Returns:
            Whether a manifest of this checkpoint was removed. False says that none stood there:
            the directory is absent, empty, or holds something else, which is left as it is.

        Raises:
            OSError: The directory cannot be changed; call it again.
        """
        # Set before the directory is entered: a publication that waits to enter it gives up too.
        self._withdrawn = True
        try:
            with exclusive(self._root):
                return _withdraw(self._root, self._manifest.checkpoint_id)
        except (*_NO_DIRECTORY, ValueError):
            return False

    def _require_wanted(self) -> None:
        checkpoint_id = self._manifest.checkpoint_id
        if self._withdrawn or _withdrawal_mark(self._root, checkpoint_id).exists():
            raise ManifestWithdrawn(checkpoint_id, str(self._path))

    def _confirm_standing(self) -> str:
        """Return the digest of what stands there if it is this manifest, made durable."""
        wanted = self._manifest.checkpoint_id
        try:
            standing, digest = _read(self._root)
        except ValueError as error:
            raise ValueError(
                f"{error}; checkpoint {wanted!r} is not written over it, it needs a new directory"
            ) from error
        if standing != self._manifest:
            raise ValueError(
                f"{text_of(self._path)}: holds another manifest, of checkpoint "
                f"{standing.checkpoint_id!r}; checkpoint {wanted!r} is not written over it, it "
                "needs a new directory"
            )
        # The process that wrote it may have died before the disk had it.
        flush_file(self._path)
        flush_directory(self._root)
        return digest

    def _flush_or_remove(self) -> None:
        """Make the new name durable; where that fails, the manifest must not stand either."""
        try:
            flush_directory(self._root)
        except OSError:
            with suppress(OSError):
                self._path.unlink()
            raise


def _temporary_prefix(checkpoint_id: str) -> str:
    return f".{GYM_CHECKPOINT_MANIFEST_FILENAME}.{checkpoint_id}."


def _withdrawal_mark(root: Path, checkpoint_id: str) -> Path:
    return root / f".{GYM_CHECKPOINT_MANIFEST_FILENAME}.{checkpoint_id}.withdrawn"


def _withdraw(root: Path, checkpoint_id: str) -> bool:
    """Remove a checkpoint's manifest and its unfinished files; call it under `exclusive`."""
    unfinished = re.compile(re.escape(_temporary_prefix(checkpoint_id)) + r"[0-9a-f]{32}\.tmp")
    for name in os.listdir(root):
        if unfinished.fullmatch(name):
            (root / name).unlink(missing_ok=True)
    path = root / GYM_CHECKPOINT_MANIFEST_FILENAME
    if not os.path.lexists(path):
        return False
    standing, _digest = _read(root)
    if standing.checkpoint_id != checkpoint_id:
        raise ValueError(
            f"{text_of(path)}: is the manifest of checkpoint {standing.checkpoint_id!r}, not of "
            f"{checkpoint_id!r}; it is left as it is"
        )
    path.unlink()
    flush_directory(root)
    return True
