"""
What the calls of one operation came to on its instances, as errors that carry all of it.

The messages are bounded, with totals and a sample; the fields are complete, however long. Users
find these classes in `gymckpt.errors`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gymckpt.standins import (
    Legible,
    PackedFailure,
    Portable,
    marks_of,
    notes_of,
    pack,
    rebuild,
    text_of_failure,
)
from gymckpt.wording import SAMPLE_MAX, sample, text_of

__all__ = [
    "GymCheckpointNotReady",
    "GymCheckpointOperationError",
    "GymCheckpointUnavailable",
    "RecordsNotVisible",
    "describe_blockers",
]

_INSTANCE_MAX = 300
_BLOCKER_MAX = 80
"""The widths that keep a message about five instances with five servers below 20,000 characters."""


def _and_more(total: int) -> str:
    return f"; and {total - SAMPLE_MAX} more" if total > SAMPLE_MAX else ""


class GymCheckpointUnavailable(Legible, RuntimeError):
    """
    A deployment refused one control call, or its control plane could not be reached.

    Raised inside an instance's actor. Nothing that RL holds has changed, and a later try may work,
    unless its code is one of `transience.LASTING_REFUSALS`. It carries text only, so that it
    crosses process boundaries.

    Attributes:
        code: The stable word of a refusal, such as `stale_checkpoint` (protocol facts, 12); empty
            where none is known.
    """

    def __init__(self, message: str = "", *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class GymCheckpointOperationError(Legible, RuntimeError):
    """
    One or more independent Gym deployments failed one operation.

    Attributes:
        operation: The call that failed: `prepare`, `renew`, `commit`, `retire`, `forget`,
            `restore` or `resume`.
        failures: Instance id to what that instance's call ended with; complete, however long.
    """

    def __init__(self, operation: str, failures: Mapping[str, BaseException]) -> None:
        self.operation = operation
        self.failures: dict[str, BaseException] = dict(failures)
        named = [
            f"{text_of(instance, _INSTANCE_MAX)}: {text_of_failure(failure)}"
            for instance, failure in sorted(self.failures.items())[:SAMPLE_MAX]
        ]
        super().__init__(
            f"Gym checkpoint {operation} failed on {len(self.failures)} instance(s): "
            f"{'; '.join(named)}{_and_more(len(self.failures))}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        failures = {instance: pack(failure) for instance, failure in self.failures.items()}
        arguments = (type(self), self.operation, failures, str(self))
        return rebuild, (_unpacked, arguments, notes_of(self)), marks_of(self)


def _unpacked(
    make: type[GymCheckpointOperationError],
    operation: str,
    failures: Mapping[str, PackedFailure],
    message: str,
) -> GymCheckpointOperationError:
    """Make an operation error again from failures that have travelled."""
    error = make(operation, {name: packed.unpack() for name, packed in failures.items()})
    # A class that makes its text from its arguments may word itself differently after the trip.
    error.args = (message,)
    return error


class GymCheckpointNotReady(Portable, RuntimeError):
    """
    Gym participants could not all park before the checkpoint deadline.

    Attributes:
        blockers: Instance id to server to what that server says is in the way: usually capture
            keys, but a server may name other things, so they are never parsed. Complete.
    """

    _fields = ("blockers",)

    def __init__(self, blockers: Mapping[str, Mapping[str, tuple[str, ...]]]) -> None:
        self.blockers: dict[str, dict[str, tuple[str, ...]]] = {
            instance: {server: tuple(names) for server, names in servers.items()}
            for instance, servers in blockers.items()
        }
        named = [
            f"{text_of(instance, _INSTANCE_MAX)}: {describe_blockers(servers)}"
            for instance, servers in sorted(self.blockers.items())[:SAMPLE_MAX]
        ]
        super().__init__(
            f"Gym checkpoint not ready on {len(self.blockers)} instance(s): "
            f"{'; '.join(named)}{_and_more(len(self.blockers))}"
        )


class RecordsNotVisible(Portable, RuntimeError):
    """
    Instances answered that their state is durable, and the controller does not see it.

    No manifest was written: it would have named what no restore can find. Not transient, since the
    same root looks the same the next time; that a shared file system shows files late was waited
    for.

    Attributes:
        checkpoint_id: The checkpoint.
        root: Where it was to be.
        servers: Instance that is not visible to its servers; complete.
        total: How many instances were looked for.
        older: How many of those that are not visible have files of another checkpoint there.
        hint: What helps.
    """

    _fields = ("checkpoint_id", "root", "servers", "total", "older", "hint")

    def __init__(  # noqa: PLR0917 - facts of one event
        self,
        checkpoint_id: str,
        root: str,
        servers: Mapping[str, Collection[str]],
        total: int,
        older: int,
        hint: str,
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.root = root
        self.servers = {instance: tuple(names) for instance, names in servers.items()}
        self.total = total
        self.older = older
        self.hint = hint
        stale = f"; {older} of them have only files of another checkpoint there" if older else ""
        super().__init__(
            f"{text_of(root, _INSTANCE_MAX)}: what {len(self.servers)} of {total} instance(s) "
            f"saved for checkpoint {text_of(checkpoint_id)!r} is not visible from the controller: "
            f"is the root shared? {sample(sorted(self.servers))}{stale}; {hint}"
        )


def describe_blockers(servers: Mapping[str, tuple[str, ...]]) -> str:
    """Say in one line what blocks one instance, with totals and a sample."""
    named = {server: names for server, names in servers.items() if names}
    if not named:
        return "no blocker named (a resume or the lease overtook the waiting prepare)"
    return ", ".join(
        f"{text_of(server, _BLOCKER_MAX)} has {len(names)} blocker(s) "
        f"({sample(names, width=_BLOCKER_MAX)})"
        for server, names in sorted(named.items())[:SAMPLE_MAX]
    ) + _and_more(len(named))
