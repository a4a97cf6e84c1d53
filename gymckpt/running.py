"""
One open operation as the coordinator holds it: what went wrong with it, and the body that it runs.

The rules of which error leaves (DESIGN, S9) live here, once for all verbs and context managers:
the first error is the one raised, cleanup failures become notes on it, and cancellations and
interrupts leave as themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from gymckpt.calls import Calls, CheckpointCalls
from gymckpt.core.operation import OperationState
from gymckpt.core.settings import RESUME
from gymckpt.diagnosis.explain import explain as explained
from gymckpt.errors import (
    GymCheckpointOperationError,
    IllegalTransition,
    OperationDiscarded,
    TransitionRefused,
    sample,
    text_of,
)
from gymckpt.runtime.scheduler import Scheduler
from gymckpt.standins import note_on, text_of_failure

__all__ = ["BodyGuard", "Running"]

logger = logging.getLogger("gymckpt")

EXPLAIN_TIMEOUT_S, EXPLAINED_MAX = 2.0, 50_000
"""How long explaining a failed operation may take, and how many entries it may have for that."""

_OUTSIDE_CAUSES = frozenset({"lose_lease", "settle", "discard", "cancel"})
"""What can give an operation up while its body runs, without a verb of the body failing."""

_DONE = "the caller is done"
"""Why an operation ends whose body has ended well, or has itself let the instances go on."""

_INSIDE: ContextVar[Running | None] = ContextVar("inside", default=None)
"""Whose body runs: in its task, and in those that it has begun."""


class Running:
    """An operation that this coordinator drives, from its opening until it is released."""

    def __init__(self, scheduler: Scheduler, calls: Calls, cleanup_bound_s: float) -> None:
        """
        Hold an operation.

        Args:
            scheduler: What drives it.
            calls: Its wire, which keeps the replies.
            cleanup_bound_s: How long giving it up and reopening may take at the most.
        """
        self.scheduler = scheduler
        self.calls = calls
        self.verb_tasks: set[asyncio.Task[object] | None] = set()
        """The tasks in which a verb waits for the operation and will raise its error."""
        self._cleanup_bound_s = cleanup_bound_s
        self._summary = ""
        self.retired = False
        """Whether the caller has retired what the restore had installed, so that it cannot be kept.
        """
        self.ending = False
        """Whether it was told to end, so that what is left of it comes by itself."""
        self.ended_inside = False
        """Whether it was its own body that let the instances go on."""

    @property
    def operation(self) -> OperationState:
        """The operation's present state."""
        return self.scheduler.operation

    @property
    def wire_id(self) -> str:
        """The id that the caller and the instances know it by."""
        return self.operation.wire_id

    @property
    def lost_unseen(self) -> bool:
        """Whether it was given up in the background while no verb waited that is told why."""
        cause = self.operation.cause
        by_caller = cause is not None and cause.trigger in ("cancel", "discard")
        in_trouble = self.scheduler.fault is not None or cause is not None
        return in_trouble and not by_caller and not self.verb_tasks

    # --- verbs ----------------------------------------------------------------------------------

    async def advance(
        self,
        trigger: str,
        goal: str,
        facts: Mapping[str, object] | None = None,
        *,
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Bring a verb in and wait until the operation is where the verb leads.

        Args:
            trigger: The verb's trigger.
            goal: The state that it leads to when all goes well.
            facts: What the journal should keep of the verb.
            begun: Called once the verb's transition is durable.

        Raises:
            BaseException: What gave the operation up, after it was reopened; the caller's own
                cancellation leaves as itself.
        """
        with self.in_verb():
            try:
                await self.scheduler.request(trigger, facts)
                begun()
                if await self.scheduler.reached(goal):
                    return
            except (IllegalTransition, TransitionRefused):
                if not self.operation.cleaning:
                    raise  # else it was given up just before the verb came: that is the error
            except GeneratorExit:  # the coroutine is closed, and may await nothing any more
                raise
            except asyncio.CancelledError as error:
                await self.give_up("cancel", error)
                raise
            except BaseException as error:
                await self.give_up("discard", error)
                raise
            await self.end(self.error())

    @contextmanager
    def in_verb(self) -> Iterator[None]:
        """Let the current task raise the operation's error itself, instead of being cancelled."""
        task = asyncio.current_task()
        self.verb_tasks.add(task)
        try:
            yield
        finally:
            self.verb_tasks.discard(task)

    async def give_up(self, trigger: str, error: BaseException) -> None:
        """
        Give the operation up because of `error`, reopen, and note on it what could not be done.

        Args:
            trigger: `discard` or `cancel`.
            error: Why; it is not raised here.

        Raises:
            CancelledError: A cancellation came while an ordinary error was being cleaned up.
        """
        self.scheduler.post(trigger, {"reason": text_of_failure(error)})
        self.ending = True
        cancelled = await self._cleaned_up(may_leave=isinstance(error, asyncio.CancelledError))
        self._note_unconfirmed(error)
        if isinstance(error, Exception):
            self._raise_interrupt(error)
            if cancelled is not None:
                raise cancelled from error

    async def end(self, error: BaseException | None, *, stands: bool = False) -> None:
        """
        Wait until the operation is released, then raise `error` with what could not be done.

        Args:
            error: What the caller should be told; None where the operation ends well.
            stands: Whether it was to stand, so that it is an error if it was given up after all.

        Raises:
            BaseException: `error`, or a cancellation that came meanwhile.
        """
        cancelled = await self._cleaned_up(may_leave=False, explain=stands or error is not None)
        if error is None and stands and self.operation.cause is not None:
            error = self.error()  # it was given up just before the body had ended
        self._raise_interrupt(error)
        if error is None and self.scheduler.stopped:
            error = self.scheduler.fault  # fenced: whoever drives it now also reopens
        if error is None:
            if cancelled is not None:
                raise cancelled
            return
        self._note_unconfirmed(error)
        if self._summary:
            note_on(error, f"explained: {self._summary}")
        if cancelled is not None:
            raise cancelled from error
        raise error

    def _raise_interrupt(self, error: BaseException | None) -> None:
        """Let an interrupt that landed in a call leave, in place of any ordinary error."""
        interrupt = self.scheduler.interrupt
        if interrupt is not None and interrupt is not error:
            raise interrupt from error

    async def end_well(self) -> None:
        """Let the instances go on: the operation stands if it got that far, else is discarded."""
        legal = self.operation.declared.legal(self.operation.state)
        wanted = ("discard",) if self.retired else ("resume", "keep", "discard")
        trigger = next((t for t in wanted if t in legal), None)
        if trigger is not None:
            self.scheduler.post(trigger, {"reason": _DONE})
            self.ending = True
            self.ended_inside = _INSIDE.get() is self
        with self.in_verb():
            if trigger == "keep":
                await self._kept()
            await self.end(None, stands=trigger in ("resume", "keep"))

    async def _kept(self) -> None:
        """Wait until every instance has proven that it lost nothing, or has not (DESIGN, S5)."""
        try:
            await self.scheduler.left("restored")
            await self.scheduler.left("keeping")
        except asyncio.CancelledError as error:
            await self.give_up("cancel", error)
            raise

    async def after_body(self, guard: BodyGuard) -> None:
        """
        End the operation after a body that ended well.

        Args:
            guard: What watched over the body.

        Raises:
            BaseException: What gave the operation up while the body ran.
        """
        guard.release(None)
        if guard.lost:
            await self.end(self.error())
        await self.end_well()
        self._report_unconfirmed()

    async def after_failed_body(self, guard: BodyGuard, error: BaseException) -> None:
        """
        Give the operation up after its body failed.

        Args:
            guard: What watched over the body.
            error: What the body ended with; it is not raised here.

        Raises:
            BaseException: What must leave in place of `error`: the operation's own error where
                `error` is only the guard's cancellation, or a cancellation that came meanwhile.
        """
        if guard.release(error):
            await self.end(self.error())
        told = self.operation.cause.facts.get("reason") if self.operation.cause else None
        lost = self.error() if guard.lost and told != text_of_failure(error) else None
        if lost is not None and text_of(lost) != text_of(error):
            note_on(error, f"besides, the operation was given up: {text_of(lost)}")
        await self.give_up("discard" if isinstance(error, Exception) else "cancel", error)

    async def _cleaned_up(
        self, *, may_leave: bool, explain: bool = False
    ) -> asyncio.CancelledError | None:
        """
        Wait until cleaning up was sent everywhere, and then until it was answered.

        The first wait takes no cancellation, so that none leaves an instance without its resume;
        of the second the first cancellation is remembered and the next one ends it at once.
        """
        cancels = await self.scheduler.until_cleaning(self._cleanup_bound_s)
        cancelled = asyncio.CancelledError() if cancels else None
        waits_left = 1 - cancels if may_leave else 2 - cancels
        ending = asyncio.ensure_future(self._released(explain=explain))
        try:
            while waits_left > 0 and not ending.done():
                try:
                    done, _ = await asyncio.wait({ending}, timeout=self._cleanup_bound_s)
                except asyncio.CancelledError as error:
                    cancelled, waits_left = error, waits_left - 1
                else:
                    waits_left = 0 if not done else waits_left
        finally:
            ending.cancel()
        return cancelled

    async def _released(self, *, explain: bool) -> None:
        """Wait until nobody need wait any longer, and then have it explained."""
        await self.scheduler.until_released()
        worth = self.operation.cause is not None and self.scheduler.fault is None
        if explain and worth and self.operation.seq <= EXPLAINED_MAX:
            with suppress(Exception):  # an explanation that is slow, or fails, is none
                async with asyncio.timeout(EXPLAIN_TIMEOUT_S):
                    self._summary = await self.scheduler.look(lambda told: explained(told).summary)

    # --- what went wrong ------------------------------------------------------------------------

    def error(self) -> BaseException:
        """Return what gave the operation up: its first cause, with the other facts as notes."""
        cause = self.operation.cause
        interrupt = self.scheduler.interrupt
        if interrupt is not None and (cause is None or cause.trigger == "cancel"):
            return interrupt
        if self.scheduler.fault is not None:
            return self.scheduler.fault
        if cause is None:
            return OperationDiscarded(self.wire_id, f"it ended in {self.operation.state!r}")
        if cause.trigger == "seal_failed":
            failed = self.scheduler.file_errors.get("seal_failed")
            return failed or TimeoutError(cause.facts["failure"]["text"])
        if cause.call is None:
            reason = str(cause.facts.get("reason", cause.trigger))
            return OperationDiscarded(self.wire_id, reason)
        return self.call_error(cause.call)

    def call_error(self, call: str) -> BaseException:
        """Return the error of a call that could not succeed on every instance."""
        failures = self.scheduler.unconfirmed(call)
        not_ready = None
        if call == "prepare" and isinstance(self.calls, CheckpointCalls):
            not_ready = self.calls.not_ready()
        if not failures and not_ready is not None:
            return self._with_abandoned(not_ready, call)
        error = GymCheckpointOperationError(call, failures)
        if not_ready is not None:
            note_on(error, f"besides, {not_ready}")
        return self._with_abandoned(error, call)

    def _with_abandoned(self, error: BaseException, call: str) -> BaseException:
        unanswered = self.operation.in_state(call, "unanswered")
        waited = [instance for instance, found in unanswered if found.abandoned]
        if waited:
            note_on(
                error,
                f"{call} could no longer succeed, so {len(waited)} instance(s) that had not "
                f"answered were not waited for: {sample(waited)}",
            )
        return error

    def _note_unconfirmed(self, error: BaseException) -> None:
        """Note on `error` what cleaning up left unconfirmed and tries again, one note per step."""
        cause = self.operation.cause
        for call, what in (
            ("retire", "retiring restored attempts is unconfirmed"),
            (RESUME, "reopening is unconfirmed"),
        ):
            failures = self.scheduler.unconfirmed(call)
            if failures and call != (cause.call if cause else None):  # else it is `error` itself
                note_on(error, f"cleanup: {what}: {GymCheckpointOperationError(call, failures)}")
        unrecorded = self.scheduler.unrecorded
        if unrecorded is not None and unrecorded is not error:
            note_on(error, f"cleanup: not all of it is recorded: {text_of(unrecorded)}")
        if self.operation.file in ("pending", "failed"):
            failed = self.scheduler.file_errors.get("withdraw_failed", "the file system is silent")
            what = f"withdrawing the manifest from {self.operation.root} is unconfirmed"
            note_on(error, f"cleanup: {what}: {text_of(failed)}")

    def _report_unconfirmed(self) -> None:
        """Log, after a good end, which instances have not confirmed that they are open again."""
        failures = self.scheduler.unconfirmed(RESUME)
        if failures:
            logger.warning(
                "%s %r stands, but reopening is unconfirmed and is tried again every %g s until "
                "the lease reopens it: %s",
                text_of(self.operation.chart),
                self.wire_id,
                self.operation.settings.sweep_interval_s,
                GymCheckpointOperationError(RESUME, failures),
            )


class BodyGuard:
    """
    Cancel the body of a context manager when its operation is given up by someone else.

    As `asyncio.timeout` does, it cancels the task that entered the context manager and turns that
    one cancellation, and no other, into the operation's error.
    """

    def __init__(self, running: Running) -> None:
        """Be ready to watch `running` on behalf of the current task."""
        self._running = running
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task else 0
        self._struck = False
        self._outer = _INSIDE.get()

    def watch(self) -> None:
        """Begin, just before the body does."""
        _INSIDE.set(self._running)
        self._running.scheduler.on_moved = self._look
        self._look()

    @property
    def lost(self) -> bool:
        """Whether the operation was given up without a verb of the body failing."""
        scheduler, cause = self._running.scheduler, self._running.operation.cause
        fault = scheduler.fault or scheduler.interrupt
        if fault is not None or cause is None:
            return fault is not None
        ended_itself = self._running.ended_inside and cause.facts.get("reason") == _DONE
        return cause.trigger in _OUTSIDE_CAUSES and not ended_itself

    def _look(self) -> None:
        if self._struck or not self.lost or self._task is None:
            return
        self._struck = True
        if self._task not in self._running.verb_tasks:
            self._task.cancel()
        else:
            self._struck = False  # the verb raises the error itself

    def release(self, error: BaseException | None) -> bool:
        """
        End the watch.

        Args:
            error: What the body ended with.

        Returns:
            Whether `error` is only the cancellation that this guard sent.
        """
        self._running.scheduler.on_moved = lambda: None
        _INSIDE.set(self._outer)
        if not self._struck or self._task is None:
            return False
        outside = self._task.uncancel() > self._before
        return isinstance(error, asyncio.CancelledError) and not outside
