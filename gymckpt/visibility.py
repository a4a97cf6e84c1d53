"""
Whether the controller sees what instances wrote, before a manifest names it.

An instance writes on its own host. Where the root is not the same directory there, its answer is
good and its files are out of reach, so that the manifest would name what no restore can find. What
is looked for is what `gymckpt.participant` writes, `gym/<kind>/<server>/manifest.json` in the
instance's directory, or a `manifest.json` in that directory itself, from a backend with a form of
its own. It must name this checkpoint: an older one may have left files in the root.

One look lists each shard's directory once and reads one small file an instance. Shared file systems
cache listings, so where some instances are seen and others are not, it is repeated a few times. All
of it blocks and belongs into worker threads.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal, get_args

from gymckpt.episodes import instance_directory
from gymckpt.failures import RecordsNotVisible
from gymckpt.replies import GymCheckpointCommitSummary
from gymckpt.strict_json import parse_json, require_object
from gymckpt.wording import sample, show

__all__ = ["Look", "Visibility", "Written", "require_written"]

logger = logging.getLogger("gymckpt")

Written = Literal["auto", "require", "ignore"]

PAUSES_S = (0.05, 0.15, 0.4, 0.9)
"""How long to wait before each further look."""

READERS_MAX = 16
INSTANCES_PER_READER = 250
"""On a remote file system it is latency that a look takes, so many instances are read at once."""

MANIFEST_BYTES_MAX = 65_536

MOUNT = "save into a directory that this host and every instance's mount at the same path"
IGNORE = "or pass written='ignore' if instances keep their state elsewhere"

_ABSENT = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO),
        *(errno.ENAMETOOLONG, errno.ESTALE),
    }
)
"""How opening fails where there is no such file, or something else in its place."""

_Read = Callable[[Sequence[tuple[str, str]]], None]
"""Reads what instances have in their directories."""

_Sight = Literal["seen", "absent", "older", "bare"]
"""`older`: there are files of another checkpoint only. `bare`: there is a directory, without
anything that `gymckpt.participant` would have written."""


def require_written(value: object) -> Written:
    """
    Return `value` if it says which instances must be seen.

    Args:
        value: What a coordinator was given as `written`.

    Raises:
        ValueError: It is none of the three words.
    """
    words: tuple[Written, ...] = get_args(Written)
    for word in words:
        if isinstance(value, str) and value == word:
            return word
    raise ValueError(f"written must be 'auto', 'require' or 'ignore', not {show(value)}")


class Visibility:
    """What one coordinator demands to see before it writes a manifest."""

    def __init__(self, written: Written = "ignore", *, bound_s: float = 0.0) -> None:
        """
        Set the rule.

        Args:
            written: `auto` demands to see the instances that say `written_below_root`; of the
                others all that exported something or none, and warns once about none. `require`
                demands to see all of them. `ignore` does not look.
            bound_s: Within which a further look may begin, in seconds after the first.
        """
        self.written = written
        self.bound_s = bound_s
        self.warned = False
        """Whether it was said that nothing is visible."""

    def look(
        self, root: str, checkpoint_id: str, committed: Mapping[str, GymCheckpointCommitSummary]
    ) -> Look:
        """
        Return the look at one checkpoint.

        Args:
            root: Its directory.
            checkpoint_id: Its id.
            committed: Instance to what it answered to `commit`.
        """
        return Look(self, root, checkpoint_id, committed)


class Look:
    """The looks at one checkpoint, one after the other."""

    def __init__(
        self,
        rule: Visibility,
        root: str,
        checkpoint_id: str,
        committed: Mapping[str, GymCheckpointCommitSummary],
    ) -> None:
        """Look at nothing yet; see `Visibility.look`."""
        self._rule = rule
        self._root = root
        self._checkpoint_id = checkpoint_id
        # A summary that another release has pickled may have no such field.
        claims = {
            instance
            for instance, summary in committed.items()
            if getattr(summary, "written_below_root", False)
        }
        others = {name for name, one in committed.items() if one.exported_episodes} - claims
        demanded = {"auto": claims, "require": claims | others, "ignore": set[str]()}
        self._claims = claims
        self._demanded: set[str] = demanded[rule.written]
        self._others: set[str] = others if rule.written == "auto" else set()
        self._unseen: dict[str, tuple[str, ...]] = {
            instance: summary.participants
            for instance, summary in committed.items()
            if instance in self._demanded | self._others
        }
        self._older: set[str] = set()
        self._pauses = iter(PAUSES_S)
        self._ends_s: float | None = None

    def once(self) -> float | None:
        """
        Look once.

        Returns:
            How long to wait before the next look, in seconds; None when it is good.

        Raises:
            RecordsNotVisible: Some instance must be seen and is not.
            OSError: The directory cannot be read.
        """
        if not self._unseen:
            return None
        if self._ends_s is None:
            self._ends_s = time.monotonic() + self._rule.bound_s
        finder = _Finder(self._root, self._checkpoint_id)
        for instance, sight in finder.sights(self._unseen).items():
            (self._older.add if sight == "older" else self._older.discard)(instance)
            if sight == "seen" or (sight == "bare" and instance not in self._claims):
                del self._unseen[instance]
        if self._partly(self._demanded) or self._partly(self._others):
            pause_s = next(self._pauses, None)
            if pause_s is not None and time.monotonic() + pause_s < self._ends_s:
                return pause_s
        self._judge()
        return None

    def _partly(self, instances: Collection[str]) -> bool:
        """Whether some of them are seen and some are not."""
        return 0 < sum(1 for one in instances if one in self._unseen) < len(instances)

    def _judge(self) -> None:
        others: set[str] = self._others if self._partly(self._others) else set()
        missing = (self._demanded | others) & self._unseen.keys()
        if missing:
            raise RecordsNotVisible(
                self._checkpoint_id,
                self._root,
                {instance: self._unseen[instance] for instance in sorted(missing)},
                len(self._demanded | others),
                len(self._older & missing),
                MOUNT if missing <= self._claims else f"{MOUNT}, {IGNORE}",
            )
        if self._unseen and not self._rule.warned:
            self._rule.warned = True
            logger.warning(
                "checkpoint %r: nothing that %d instance(s) saved is visible below %r (%s), so it "
                "is unknown whether a restore would find it; let instances that write there answer "
                "written_below_root=True, or pass written='require' or written='ignore'",
                self._checkpoint_id,
                len(self._unseen),
                self._root,
                sample(sorted(self._unseen)),
            )


class _Finder:
    """Finds instances below a root, as the file system shows it in this moment."""

    def __init__(self, root: str, checkpoint_id: str) -> None:
        self._root = root
        self._checkpoint_id = checkpoint_id
        self._kinds: dict[str, str] = {}
        """Server to the kind that it had in the instance before; deployments are alike."""

    def sights(self, wanted: Mapping[str, tuple[str, ...]]) -> dict[str, _Sight]:
        """Return what is seen of each instance; `wanted` has its servers."""
        sights: dict[str, _Sight] = {}
        listed: dict[str, tuple[str, frozenset[str]]] = {}
        present: list[tuple[str, str]] = []
        for instance in wanted:
            shard, _, replica = instance.partition("/")
            if shard not in listed:
                directory = str(instance_directory(self._root, instance).parent)
                listed[shard] = directory, frozenset(_names_in(directory) or ())
            directory, names = listed[shard]
            sights[instance] = "absent"
            if replica in names:
                present.append((instance, f"{directory}/{replica}"))

        def read(part: Sequence[tuple[str, str]]) -> None:
            for instance, directory in part:
                sights[instance] = self._sight(directory, wanted[instance])

        _in_parts(read, present)
        return sights

    def _sight(self, directory: str, servers: Collection[str]) -> _Sight:
        below = f"{directory}/gym"
        sight: _Sight = "absent"
        for server in servers:
            for kind in self._kinds_of(below, server):
                found = _checkpoint_in(f"{below}/{kind}/{server}/manifest.json")
                if found is None:
                    continue
                self._kinds[server] = kind
                if found == self._checkpoint_id:
                    return "seen"
                sight = "older"
        own = _checkpoint_in(f"{directory}/manifest.json")
        if own is not None:
            return "seen" if own == self._checkpoint_id else "older"
        return "bare" if sight == "absent" and _names_in(below) is None else sight

    def _kinds_of(self, below: str, server: str) -> Iterator[str]:
        """Yield the kinds that a server may have, the likely one first."""
        if "/" in server or "\0" in server or server in {".", ".."}:
            return  # a name of somebody else's, and of no directory
        likely = self._kinds.get(server)
        if likely is not None:
            yield likely
        yield from (kind for kind in _names_in(below) or () if kind != likely)


def _in_parts(read: _Read, present: Sequence[tuple[str, str]]) -> None:
    """Read all of them, with more threads the more there are."""
    count = min(READERS_MAX, -(-len(present) // INSTANCES_PER_READER))
    if count <= 1:
        read(present)
        return
    errors: list[BaseException] = []

    def run(part: Sequence[tuple[str, str]]) -> None:
        try:
            read(part)
        except BaseException as error:  # raised below, in the thread that waits
            errors.append(error)

    threads = [
        threading.Thread(
            target=run, args=(present[first::count],), name="gymckpt-visibility", daemon=True
        )
        for first in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _names_in(directory: str) -> list[str] | None:
    """List a directory; None where there is none."""
    try:
        return os.listdir(directory)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise


def _checkpoint_in(path: str) -> str | None:
    """Return which checkpoint a manifest of records names; None where there is no manifest."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    try:
        file = os.fdopen(descriptor, "rb")
    except OSError:  # a directory
        os.close(descriptor)
        return None
    with file:
        data = file.read(MANIFEST_BYTES_MAX)
    try:
        found = require_object(parse_json(data), path).get("checkpoint_id")
    except ValueError:  # `verify` says what is wrong with it
        return None
    return found if isinstance(found, str) else None
