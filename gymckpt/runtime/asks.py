"""
The asks of one operation that are on their way: sent, watched, judged, given up.

An ask is known by (call, instance, number). What comes back for one that is no longer watched is
looked at and dropped, so that no late exception is reported as lost and no late answer counts
(failure case B29).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from gymckpt.core.effects import SendCall
from gymckpt.core.events import FailureRecord
from gymckpt.errors import (
    MissingHandle,
    is_actor_dead,
    is_transient_failure,
    tame,
    text_of,
)
from gymckpt.runtime.instances import Interrupted, send, watch
from gymckpt.runtime.wire import Judgement, Wire
from gymckpt.standins import said_by

__all__ = ["AskKey", "Asks", "record_of"]

logger = logging.getLogger("gymckpt")

LINGER_S = 1.0
"""How long a call in this process may take to notice that it was cancelled."""


@attrs.frozen
class AskKey:
    """Which ask an answer belongs to."""

    call: str
    instance: str
    ask: int


@attrs.frozen
class _Outstanding:
    reference: Any
    future: asyncio.Future[Any]


class Asks:
    """Send asks and report what comes of each, exactly once, unless it is cancelled before."""

    def __init__(
        self,
        *,
        handles: Mapping[str, Any],
        wire: Wire,
        cancel_reference: Callable[[Any], None],
        on_judged: Callable[[AskKey, Judgement], None],
        on_failed: Callable[[AskKey, BaseException], None],
        on_interrupted: Callable[[BaseException], None],
    ) -> None:
        """
        Prepare to send.

        Args:
            handles: Instance id to handle.
            wire: What calls look like and how replies are judged.
            cancel_reference: Told, best effort, of every reference that is given up.
            on_judged: Called with a valid reply's judgement.
            on_failed: Called with what an ask ended with instead; always an ordinary exception.
            on_interrupted: Called with a `KeyboardInterrupt` or `SystemExit` that landed in a
                call, before `on_failed`.
        """
        self._handles = handles
        self._wire = wire
        self._cancel_reference = cancel_reference
        self._on_judged = on_judged
        self._on_failed = on_failed
        self._on_interrupted = on_interrupted
        self._outstanding: dict[tuple[str, str], dict[int, _Outstanding]] = {}
        """(call, instance) to its asks by number: giving up ten thousand calls is no search."""
        self._lingering: set[asyncio.Future[Any]] = set()

    def send(self, effect: SendCall) -> None:
        """Send one ask; a failure to send is reported like any other."""
        key = AskKey(effect.call, effect.instance, effect.ask)
        try:
            message = self._wire.message(effect)
            handle = self._handles.get(effect.instance)
            if handle is None:
                raise MissingHandle(f"there is no handle for instance {effect.instance!r}")
            reference = send(handle, message.method, message.args, message.kwargs)
            future = watch(reference)
        except BaseException as error:
            self._fail(key, error)
            return
        asks = self._outstanding.setdefault((key.call, key.instance), {})
        asks[key.ask] = _Outstanding(reference, future)
        future.add_done_callback(lambda done: self._take(key, done))

    def cancel(self, call: str, instance: str) -> None:
        """Give up every outstanding ask of one call to one instance, and say so remotely."""
        for outstanding in self._outstanding.pop((call, instance), {}).values():
            self._give_up(outstanding)
            try:
                self._cancel_reference(outstanding.reference)
            except Exception as error:
                logger.debug("cancelling %r of %r: %s", call, instance, text_of(error))

    def drop_all(self) -> None:
        """Stop watching everything, and tell nobody: another controller acts now."""
        for asks in self._outstanding.values():
            for outstanding in asks.values():
                self._give_up(outstanding)
        self._outstanding.clear()

    def forget_all(self) -> None:
        """Forget what was under way in a loop that is closed: nothing can come of it any more."""
        self._outstanding.clear()
        self._lingering.clear()

    async def quiet(self) -> None:
        """Wait a moment until calls in this process have noticed that they were given up."""
        if self._lingering:
            await asyncio.wait(set(self._lingering), timeout=LINGER_S)

    def _give_up(self, outstanding: _Outstanding) -> None:
        future = outstanding.future
        future.cancel()
        if not future.done():
            self._lingering.add(future)
            future.add_done_callback(self._lingering.discard)

    def _take(self, key: AskKey, future: asyncio.Future[Any]) -> None:
        """One reference has come to something."""
        asks = self._outstanding.get((key.call, key.instance), {})
        if asks.pop(key.ask, None) is None:
            if not future.cancelled():
                future.exception()
            return
        if future.cancelled():
            self._fail(key, asyncio.CancelledError("the call was cancelled"))
            return
        error = future.exception()
        if error is not None:
            self._fail(key, error)
            return
        try:
            judgement = self._wire.judge(key.call, key.instance, future.result())
        except Exception as wrong:
            self._fail(key, wrong)
            return
        self._on_judged(key, judgement)

    def _fail(self, key: AskKey, error: BaseException) -> None:
        if isinstance(error, Interrupted):
            self._on_interrupted(error.original)
            error = error.original
        self._on_failed(key, tame(error))


def record_of(error: BaseException) -> FailureRecord:
    """Return what the journal keeps of what a call or a file effect ended with."""
    name, text = said_by(error)
    return FailureRecord(
        type=name,
        text=text,
        transient=is_transient_failure(error),
        dead=is_actor_dead(error),
    )
