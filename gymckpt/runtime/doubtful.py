"""
Operations that may have been opened although their callers were told that they were not.

The answer to an opening can be lost, and then nothing is sent for the operation. Where it was
recorded all the same, nobody would ever end it while its controller lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator

from gymckpt.core.events import Moment, Triggered
from gymckpt.core.operation import OperationState
from gymckpt.core.step import Step, step
from gymckpt.errors import JournalError, JournalOutcomeUnknown, JournalUnavailable, text_of

__all__ = ["Doubtful"]

logger = logging.getLogger("gymckpt")


class Doubtful:
    """Those of one controller."""

    def __init__(self) -> None:
        """Begin without any."""
        self._kept: dict[tuple[str, str], OperationState] = {}

    @contextlib.contextmanager
    def opening(self, operation: OperationState) -> Iterator[None]:
        """
        Keep an operation where the body, which opens it, ends without knowing whether it did.

        Args:
            operation: Its first state.
        """
        key = operation.run, operation.operation_id
        before = self._kept.pop(key, None)  # its id was free, if it can be opened again
        try:
            yield
        except BaseException as error:
            unknown = isinstance(error, JournalOutcomeUnknown | asyncio.CancelledError)
            kept = operation if unknown else before
            if kept is not None:
                self._kept[key] = kept
            raise

    async def give_up(self, append: Callable[[OperationState, Step], Awaitable[None]]) -> None:
        """
        End them; one that the journal cannot take now is kept.

        Args:
            append: Records a step of an operation, after its first entries.
        """
        doubtful, self._kept = self._kept, {}
        for key, operation in doubtful.items():
            moment = Moment(operation.opened_ts, operation.at_s)
            facts = {"reason": "the answer to its opening was lost"}
            ended = step(operation, Triggered(moment=moment, trigger="cancel", facts=facts))
            try:
                await append(operation, ended)
            except JournalUnavailable:
                self._kept.setdefault(key, operation)
            except JournalError as error:  # it was not opened, or somebody else has settled it
                logger.debug("operation %r: %s", operation.operation_id, text_of(error))
