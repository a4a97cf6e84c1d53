"""What has come in for one operation and is not taken yet, and who waits to be told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import attrs

from gymckpt.chart import Ignored, Refused
from gymckpt.core.events import Event, TakenOver, TimerFired, Triggered
from gymckpt.core.operation import OperationState

__all__ = ["Answer", "Arrival", "answer", "is_needed"]

Answer = Ignored | Refused | BaseException | None
"""What a verb that brought a trigger in is told: None where it was taken."""


@attrs.frozen
class Arrival:
    """An event, and the verb that brought it in, if one waits."""

    event: Event
    accepted: asyncio.Future[Ignored | Refused | None] | None


def is_needed(event: Event, operation: OperationState) -> bool:
    """Whether an operation ends only if it can take an event, as no reply and no verb is."""
    settles = isinstance(event, Triggered) and event.trigger == "settle"
    ends = isinstance(event, TimerFired) and operation.cleaning
    return settles or ends or isinstance(event, TakenOver)


def answer(answers: Iterable[tuple[Arrival, Answer]]) -> None:
    """Tell verbs what came of the triggers that they brought in."""
    for queued, outcome in answers:
        accepted = queued.accepted
        if accepted is None or accepted.done():
            continue
        if isinstance(outcome, BaseException):
            accepted.set_exception(outcome)
        else:
            accepted.set_result(outcome)
