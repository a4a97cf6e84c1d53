"""
What is to be done in the world, in the imperative.

The scheduler performs effects in order, and only after the entries of the same step are durable.
Each is idempotent under its key: a call by (instance, call, ask), a timer by its name, a file
effect by the operation.
"""

from __future__ import annotations

import attrs

from gymckpt.episodes import EnvironmentEpisode

__all__ = [
    "CancelCall",
    "Effect",
    "SendCall",
    "StartTimer",
    "StopTimer",
    "Tell",
    "WithdrawManifest",
    "WriteManifest",
]


@attrs.frozen
class SendCall:
    """Send one ask of a call to one instance."""

    instance: str
    call: str
    ask: int
    deadline_ts: float
    """The absolute deadline that goes on the wire."""
    left: tuple[EnvironmentEpisode, ...] | None = None
    """The attempts that a retire names, where it is not all that its operation names."""
    besides: bool = False
    """Whether it is sent besides the state's own call, after its operation's resume."""


@attrs.frozen
class CancelCall:
    """Stop waiting for every outstanding ask of a call to an instance, and say so remotely."""

    instance: str
    call: str


@attrs.frozen
class StartTimer:
    """Fire `TimerFired(timer)` after a delay; a timer of that name that runs already is kept."""

    timer: str
    delay_s: float


@attrs.frozen
class StopTimer:
    """Forget a timer, if it runs."""

    timer: str


@attrs.frozen
class WriteManifest:
    """Make the outer manifest durable; comes back as `sealed` or `seal_failed`."""


@attrs.frozen
class WithdrawManifest:
    """
    See to it that no manifest of the operation exists or appears.

    Comes back as `withdrawn` or `withdraw_failed`.
    """

    root: str
    """The directory that the commit was asked to write into."""


@attrs.frozen
class Tell:
    """Wake whoever waits for the operation: it has entered a state, or released its caller."""

    state: str
    released: bool
    """Whether the caller need not wait any longer: the operation has ended, or what is left of it
    goes on in the background."""


Effect = SendCall | CancelCall | StartTimer | StopTimer | WriteManifest | WithdrawManifest | Tell
