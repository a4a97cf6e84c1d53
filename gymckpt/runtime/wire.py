"""
What an operation says to its instances and how it reads their answers.

The scheduler runs any chart; what is particular to a chart is one `Wire`: the arguments of its
calls, the judgement of the replies, and the outer manifest where it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import attrs

from gymckpt.core.effects import SendCall

__all__ = ["Again", "Judgement", "Message", "Wire"]


@attrs.frozen(kw_only=True)
class Message:
    """One call as it leaves: an actor method with its arguments."""

    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Judgement:
    """What a reply means."""

    outcome: Literal["answered", "refused"]
    facts: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """What the journal keeps of it: counts and samples, never all."""


@attrs.frozen
class Again:
    """What a file job returns that is to be begun once more, after a pause without a thread."""

    pause_s: float


class Wire(Protocol):
    """The particulars of one operation; used from the event loop only."""

    def message(self, ask: SendCall) -> Message:
        """Return what to send for one ask."""
        ...

    def judge(self, call: str, instance: str, reply: object) -> Judgement:
        """
        Validate a reply and keep it for the operation's result.

        Raises:
            Exception: The reply breaks the protocol; that is the instance's failure.
        """
        ...

    def publish(self) -> Callable[[], Mapping[str, Any] | Again]:
        """
        Return the blocking job that makes the manifest durable and returns facts about it.

        While it returns `Again` it is run again.

        Raises:
            Exception: No valid manifest can be made of the replies.
        """
        ...

    def withdraw(self, root: str) -> Callable[[], Mapping[str, Any]]:
        """Return the blocking job after which no manifest of the operation exists or appears."""
        ...
