"""
What a rollout attempt is called: episodes, capture keys and the rules for ids.

Every id is checked by full match before a path is built or a call is sent, also ids that were
read from a file: each may become a directory name or a key that another system splits.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import attrs

from gymckpt.values import plain, plain_text
from gymckpt.wording import show

__all__ = [
    "EnvironmentEpisode",
    "GymCheckpointEpisode",
    "instance_directory",
    "late_retire_id",
    "new_operation_id",
    "require_instance_id",
    "require_new_id",
    "require_operation_id",
    "require_rollout_id",
    "require_shard",
]

_ROLLOUT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RESERVED_SUFFIX = re.compile(r".*-a[1-9][0-9]*")
_CAPTURE_KEY = re.compile(r"(?P<rollout_id>.+)-a(?P<attempt>[1-9][0-9]*)")
_OPERATION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_INSTANCE_ID = re.compile(r"(?P<shard>[^/]+)/replica-(?P<index>0|[1-9][0-9]{0,8})")

_ATTEMPT_DIGITS_MAX = 9
"""An attempt is a small count; longer digit runs are somebody's text, not an attempt."""

_LATE_RETIRE = ".late-retire"
"""How the ids end under which discarded restores retire what is unconfirmed after their resume."""

_ID_LENGTH_MAX = 240
"""A file name holds 255 bytes on every common filesystem, suffixes such as `-a<N>` included."""

_INSTANCES_DIRECTORY = "gym-instances"
"""Where the instances' own files are, below a checkpoint's root (protocol facts, 1)."""


def _require_string(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} is a str, not {type(value).__name__}: {show(value)}")
    return plain(value)


def require_rollout_id(value: object) -> str:
    """
    Return `value` if it is a rollout id that keys cannot confuse with another attempt.

    Args:
        value: Any object, for example a field of a parsed file.

    Raises:
        TypeError: It is not a string.
        ValueError: It breaks the pattern or ends in `-a<N>`, which is reserved for attempt N's
            capture key.
    """
    value = _require_string(value, "a rollout id")
    if len(value) > _ID_LENGTH_MAX or not _ROLLOUT_ID.fullmatch(value):
        raise ValueError(
            f"rollout id {show(value)} must start with an ASCII letter or digit and hold only "
            f"letters, digits, '.', '_' and '-', at most {_ID_LENGTH_MAX} of them"
        )
    if _RESERVED_SUFFIX.fullmatch(value):
        raise ValueError(
            f"rollout id {show(value)} ends in '-a<N>', which is reserved: it would share the "
            "capture key of attempt N of another rollout"
        )
    return value


def require_operation_id(value: object, what: str = "operation id") -> str:
    """
    Return `value` if it may name an operation on the wire and in the journal.

    Args:
        value: Any object.
        what: What to call it in the error.

    Raises:
        TypeError: It is not a string.
        ValueError: It is not 1 to 128 characters of the wire's pattern (protocol facts, 1).
    """
    value = _require_string(value, what)
    if not _OPERATION_ID.fullmatch(value):
        raise ValueError(
            f"{what} {show(value)} must be 1 to 128 letters, digits, '.', '_' or '-', and start "
            "with a letter or digit"
        )
    return value


def require_new_id(value: object, what: str) -> str:
    """
    Return `value` if a caller may name an operation by it.

    Args:
        value: Any object.
        what: What to call it in the error.

    Raises:
        TypeError: It is not a string.
        ValueError: It breaks the wire's pattern, or ends in `.late-retire`, which is reserved.
    """
    value = require_operation_id(value, what)
    if value.endswith(_LATE_RETIRE):
        raise ValueError(
            f"{what} {show(value)} ends in {_LATE_RETIRE!r}, which is reserved for what a "
            "discarded restore retires after its resume; take another id"
        )
    return value


def late_retire_id(restore_id: str) -> str:
    """
    Return the id under which a restore retires attempts after its own id was resumed.

    It is the same for every controller that goes on with the restore, and of no other operation.

    Args:
        restore_id: The restore's own id; at most 128 characters, as the result.
    """
    derived = f"{restore_id}{_LATE_RETIRE}"
    if _OPERATION_ID.fullmatch(derived):
        return derived
    return f"{hashlib.sha256(restore_id.encode()).hexdigest()}{_LATE_RETIRE}"


def require_shard(value: object) -> str:
    """
    Return `value` if it is a shard name that is safe as one path component.

    Raises:
        TypeError: It is not a string.
        ValueError: It is empty, has a separator, or is no plain name.
    """
    value = _require_string(value, "a shard name")
    if len(value) > _ID_LENGTH_MAX or not _SHARD.fullmatch(value):
        raise ValueError(
            f"shard name {show(value)} must be one plain path component: letters, digits, '_', "
            "'.' and '-', starting with a letter or digit"
        )
    return value


def require_instance_id(value: object) -> str:
    """
    Return `value` if it is `<shard>/replica-<index>` with a safe shard name.

    Raises:
        TypeError: It is not a string.
        ValueError: It has another form, or its shard is no plain path component.
    """
    value = _require_string(value, "an instance id")
    match = _INSTANCE_ID.fullmatch(value)
    if match is None:
        raise ValueError(f"instance id {show(value)} must have the form '<shard>/replica-<index>'")
    require_shard(match["shard"])
    return value


def new_operation_id(prefix: str) -> str:
    """
    Return an id that no controller has used or will use.

    Args:
        prefix: A short word that a reader of the journal will recognise, for example `snapshot`.

    Raises:
        ValueError: The prefix cannot begin an operation id.
    """
    return require_operation_id(f"{prefix}-{uuid.uuid4().hex}")


def instance_directory(root: str | Path, instance_id: str) -> Path:
    """
    Return where one instance keeps its files below a checkpoint's root.

    Args:
        root: The checkpoint's root, or the root of live capture.
        instance_id: `<shard>/replica-<index>`; two ids never share a directory.

    Raises:
        TypeError: The id is not a string.
        ValueError: It is no instance id, or its shard is no plain path component.
    """
    shard, _, replica = require_instance_id(instance_id).partition("/")
    return Path(root, _INSTANCES_DIRECTORY, shard, replica)


def _check_rollout_id(_episode: object, _attribute: object, value: Any) -> None:
    require_rollout_id(value)


def _check_attempt(episode: EnvironmentEpisode, _attribute: object, value: Any) -> None:
    if type(value) is not int:
        raise TypeError(f"an attempt is an int, not {type(value).__name__}: {show(value)}")
    if not 0 <= value < 10**_ATTEMPT_DIGITS_MAX:
        raise ValueError(
            f"attempt {show(value)} of rollout {episode.rollout_id!r} is out of range: attempts "
            f"count from 0 and have at most {_ATTEMPT_DIGITS_MAX} digits"
        )


@attrs.frozen(order=True)
class EnvironmentEpisode:
    """
    One physical attempt of one rollout.

    Raises:
        TypeError: A field has the wrong type; `True` is no attempt number.
        ValueError: The rollout id is unsafe or reserved, or the attempt is negative.
    """

    rollout_id: str = attrs.field(converter=plain_text, validator=_check_rollout_id)
    """The rollout's base id, the same for every attempt."""

    attempt: int = attrs.field(validator=_check_attempt)
    """How many times the backend restored this rollout: 0 is the first run."""

    @property
    def capture_key(self) -> str:
        """The attempt's key on stored rows: the bare rollout id for attempt 0."""
        return f"{self.rollout_id}-a{self.attempt}" if self.attempt else self.rollout_id

    def next_attempt(self) -> EnvironmentEpisode:
        """Return the attempt that a backend creates when it restores this one."""
        return EnvironmentEpisode(self.rollout_id, self.attempt + 1)

    @classmethod
    def from_capture_key(cls, key: str) -> EnvironmentEpisode:
        """
        Return the one episode whose capture key is `key`.

        Raises:
            TypeError: The key is not a string.
            ValueError: No episode has this key.
        """
        key = _require_string(key, "a capture key")
        match = _CAPTURE_KEY.fullmatch(key)
        if match is None:
            return cls(key, 0)
        if len(match["attempt"]) > _ATTEMPT_DIGITS_MAX:
            raise ValueError(f"capture key {show(key)} names an attempt that is out of range")
        return cls(match["rollout_id"], int(match["attempt"]))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, exactly two fields."""
        return {"rollout_id": self.rollout_id, "attempt": self.attempt}

    @classmethod
    def from_mapping(cls, raw: object) -> EnvironmentEpisode:
        """
        Parse the JSON form.

        Raises:
            ValueError: It is not an object with exactly `rollout_id` and `attempt`, or either is
                wrong.
        """
        is_object = isinstance(raw, Mapping)
        fields = cast("Mapping[str, Any]", raw)
        if not is_object or set(fields) != {"rollout_id", "attempt"}:
            raise ValueError(
                f"an episode is an object with exactly rollout_id and attempt, not {show(fields)}"
            )
        try:
            return cls(fields["rollout_id"], fields["attempt"])
        except TypeError as error:
            raise ValueError(str(error)) from error


GymCheckpointEpisode = EnvironmentEpisode
"""The name that the coordinator's API document uses for the same class."""
