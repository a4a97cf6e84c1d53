"""
The wires between controllers and instances, and an account of what went over them.

A call that has left its controller goes on whatever becomes of that controller, as one does that
is on a network. What leaves is held against S1, S4, S5 and S6 by the account of its operation
(`gymckpt.testing.account`) and by what the journal holds at that moment. What is found wrong is
kept, since an error that were raised here would look like a failure of the instance.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs

from gymckpt.core.entry import Entry
from gymckpt.core.events import Moment, Replied
from gymckpt.episodes import late_retire_id
from gymckpt.journal import Journal
from gymckpt.runtime.asks import record_of
from gymckpt.runtime.clock import Clock
from gymckpt.testing.account import Account, Broken, Notes, note_cancel, note_reply, note_send
from gymckpt.testing.processes import Process, ProcessLoop

__all__ = ["Judged", "Line", "Watch", "wire_id_of"]

DRIVING = frozenset({"prepare", "renew", "commit", "restore"})
COUNTED = frozenset({"prepare", "renew", "commit", "restore", "retire", "forget", "resume"})


def wire_id_of(entries: tuple[Entry, ...]) -> str:
    """Return the id that instances were told, which for a sweep may not be that of its log."""
    return str(entries[0].facts.get("wire_id", entries[0].operation_id))


@attrs.define
class _Story:
    """What is known of the calls under one id."""

    account: Account
    driver: int
    """Which controller drives it, by its number: later ones have taken over from earlier ones."""
    asks: Counter[tuple[int, str]]
    out: dict[tuple[int, str], asyncio.Future[Any]]
    failed: list[tuple[float, int, Replied]]
    """Bad news that a controller may not have taken in at this very instant."""


class _Recorded:
    """The asks of one operation that the journal holds, as far as they were read."""

    def __init__(self) -> None:
        self.last_seq = 0
        self.wire_id = ""
        self.asks: Counter[tuple[str | None, str | None]] = Counter()

    def read(self, entries: tuple[Entry, ...]) -> None:
        """Take what has come since."""
        self.wire_id = self.wire_id or wire_id_of(entries)
        self.last_seq += len(entries)
        for entry in entries:
            self.asks[entry.instance, entry.call] += entry.trigger in ("ask", "retry")


class Watch:
    """
    What has gone over all wires.

    Attributes:
        broken: What was found wrong, in order.
        sent: (instance, call, id) to how often it left.
    """

    def __init__(
        self, loop: ProcessLoop, clock: Clock, journal: Journal, run: str, names: tuple[str, ...]
    ) -> None:
        """
        Begin to watch.

        Args:
            loop: Where everything runs.
            clock: Its clock.
            journal: Where the controllers record.
            run: The training run.
            names: The instance ids.
        """
        self.broken: list[Exception] = []
        self.sent: Counter[tuple[str, str, str]] = Counter()
        self.loop = loop
        self._clock = clock
        self._journal = journal
        self._run = run
        self._names = names
        self._stories: dict[str, _Story] = {}
        self._recorded: dict[str, _Recorded] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    def keep(self, sending: asyncio.Task[None]) -> None:
        """Hold a call that is on its way: a loop forgets what nobody holds."""
        self._under_way.add(sending)
        sending.add_done_callback(self._under_way.discard)

    def account_of(self, wire_id: str) -> Account | None:
        """Return what is known of an id, if anything was ever sent with it."""
        story = self._stories.get(wire_id)
        if story is None:
            return None
        self._take_failures(story, before_s=math.inf)
        return story.account

    def history(self, operation_id: str) -> tuple[Entry, ...]:
        """Return what the journal holds of an operation."""
        return tuple(self._journal.read(self._run, operation_id))

    def left(
        self, driver: int, number: int, call: str, wire_id: str, deadline_ts: float
    ) -> Callable[[asyncio.Future[Any]], None]:
        """
        Note that a call leaves a controller, after holding it against the promises.

        Args:
            driver: The controller's number.
            number: The instance's place.
            call: Its name without `checkpoint_`.
            wire_id: The id in it.
            deadline_ts: The deadline in it.

        Returns:
            To be given the future that stands for its answer.
        """
        name = self._names[number]
        self.sent[name, call, wire_id] += 1
        try:
            self._hold_recorded(name, call, wire_id)
            return self._told(driver, number, call, wire_id, deadline_ts)
        except Broken as broken:
            self.broken.append(broken)
            return lambda _future: None

    def _hold_recorded(self, name: str, call: str, wire_id: str) -> None:
        recorded, left = 0, self.sent[name, call, wire_id]
        for row in self._journal.operations(self._run):
            known = self._recorded.setdefault(row.operation_id, _Recorded())
            if known.last_seq < row.last_seq:
                new = self._journal.read(self._run, row.operation_id, after_seq=known.last_seq)
                known.read(new)
            ids = (known.wire_id, late_retire_id(known.wire_id))
            if wire_id in ids:
                recorded += known.asks[name, call]
                left = sum(self.sent[name, call, one] for one in ids)
        if recorded < left:
            raise Broken("S6", f"{call} of {wire_id} is sent to {name} before it is recorded")

    def _told(
        self, driver: int, number: int, call: str, wire_id: str, deadline_ts: float
    ) -> Callable[[asyncio.Future[Any]], None]:
        story = self._story(driver, wire_id)
        if driver < story.driver:
            return lambda _future: None  # it was entitled to it; the instance judges it
        now_s = self.loop.time()
        self._take_failures(story, before_s=now_s if call == "commit" else math.inf)
        key = (number, call)
        before = story.out.get(key)
        if before is not None and before.cancelled():
            story.account = note_cancel(story.account, number, call)
        if call == "resume" and story.account.sent("restore"):
            kept = any(entry.trigger == "keep" for entry in self.history(wire_id))
            story.account = story.account._replace(kept=kept)
        story.asks[key] += 1
        ask, ends_s = story.asks[key], now_s + deadline_ts - self._clock.wall_ts()
        story.account = note_send(story.account, number, call, ask, (now_s, ends_s))
        return partial(self._waits, story, driver, key, ask)

    def _story(self, driver: int, wire_id: str) -> _Story:
        story = self._stories.get(wire_id)
        if story is None:
            story = _Story(Account((Notes(),) * len(self._names)), driver, Counter(), {}, [])
            self._stories[wire_id] = story
        elif driver > story.driver:  # what the earlier one waits for will not reach this one
            notes = tuple(one._replace(waiting=()) for one in story.account.notes)
            story.account = story.account._replace(notes=notes)
            self._take_failures(story, before_s=math.inf)  # it may be recorded who is dead
            story.driver = driver
            story.out.clear()
        return story

    def _waits(
        self,
        story: _Story,
        driver: int,
        key: tuple[int, str],
        ask: int,
        future: asyncio.Future[Any],
    ) -> None:
        story.out[key] = future
        future.add_done_callback(lambda done: self._came(story, driver, key, ask, done))

    def _came(
        self,
        story: _Story,
        driver: int,
        key: tuple[int, str],
        ask: int,
        future: asyncio.Future[Any],
    ) -> None:
        if future.cancelled() or story.driver != driver:
            return
        number, call = key
        error = future.exception()
        refused = error is None and call == "prepare" and not future.result().prepared
        reply = Replied(
            moment=Moment(self._clock.wall_ts(), self.loop.time()),
            instance=self._names[number],
            call=call,
            ask=ask,
            outcome="failed" if error else "refused" if refused else "answered",
            failure=None if error is None else record_of(error),
        )
        if reply.outcome == "answered":
            self._take_failures(story, before_s=math.inf)
            story.account = note_reply(story.account, number, reply)
        else:
            story.failed.append((self.loop.time(), number, reply))

    def _take_failures(self, story: _Story, *, before_s: float) -> None:
        left: list[tuple[float, int, Replied]] = []
        for at_s, number, reply in story.failed:
            if at_s < before_s:
                story.account = note_reply(story.account, number, reply)
            else:
                left.append((at_s, number, reply))
        story.failed = left


class _Sender:
    def __init__(self, send: Callable[..., Any]) -> None:
        self._send = send

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Let the call leave."""
        return self._send(*args, **kwargs)


class Line:
    """What one controller holds of one instance: its calls go on when the controller does not."""

    def __init__(
        self, watch: Watch, process: Process, driver: int, number: int, targets: Mapping[str, Any]
    ) -> None:
        """
        Lead from a controller to an instance.

        Args:
            watch: Who is told of all calls.
            process: The controller's process; it can be cut off from everything.
            driver: The controller's number.
            number: The instance's place.
            targets: Instance id to the handle that it has at the moment.
        """
        self._watch = watch
        self._process = process
        self._driver = driver
        self._number = number
        self._targets = targets

    def __getattr__(self, name: str) -> _Sender:
        if not name.startswith("checkpoint_"):
            raise AttributeError(name)
        return _Sender(partial(self._send, name))

    def _send(self, name: str, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        loop, call = self._watch.loop, name.removeprefix("checkpoint_")
        if self._process.cut_off:
            raise ConnectionError("this controller is cut off")
        future: asyncio.Future[Any] = loop.create_future()
        if call in COUNTED:
            deadline_ts = kwargs["deadline_ts"]
            self._watch.left(self._driver, self._number, call, str(args[0]), deadline_ts)(future)
        target = tuple(self._targets.values())[self._number]
        self._watch.keep(loop.start_outside(_carry(target, name, args, kwargs, future)))
        return future


class Judged:
    """A handle on an instance that is judged: it may do nothing for an id that it has resumed."""

    def __init__(self, handle: Any, name: str, broken: list[Exception]) -> None:
        """
        Stand directly before an instance.

        Args:
            handle: The instance's own.
            name: Its id.
            broken: Where to put what it does wrong.
        """
        self._handle = handle
        self._name = name
        self._broken = broken
        self._resumed: set[str] = set()

    def __getattr__(self, name: str) -> _Sender:
        if not name.startswith("checkpoint_"):
            raise AttributeError(name)
        return _Sender(partial(self._answer, name))

    async def _answer(self, name: str, *args: Any, **kwargs: Any) -> Any:
        call, wire_id = name.removeprefix("checkpoint_"), str(args[0]) if args else ""
        stale = wire_id in self._resumed
        answer = await getattr(self._handle, name).remote(*args, **kwargs)
        if call == "resume":
            self._resumed.add(wire_id)
        if stale and call in DRIVING:
            what = f"{self._name} has answered a {call} of {wire_id}, which it had resumed before"
            self._broken.append(Broken("S4", what))
        return answer


async def _carry(
    target: Any, name: str, args: Any, kwargs: Any, future: asyncio.Future[Any]
) -> None:
    """Bring a call to its instance, and what comes back to whoever still waits."""
    try:
        answer = await getattr(target, name).remote(*args, **kwargs)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        if not future.done():
            future.set_exception(error)
            future.exception()  # a controller that was killed never looks at it
    else:
        if not future.done():
            future.set_result(answer)
