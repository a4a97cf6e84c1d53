"""
What a check of the instance contract works with.

A `Case` holds instances of one id and makes the calls of the protocol with ordinary arguments
filled in. All deadlines are by the clock of the instance that is called. Each call is answered
within a bound of real time, and each of the hands' methods ends within it, or the contract is
broken.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from pathlib import Path
from typing import Any, cast

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointUnavailable, show
from gymckpt.replies import GymCheckpointCommitSummary, GymCheckpointPrepareSummary
from gymckpt.runtime.instances import cancel_remote
from gymckpt.testing.instance import ContractBroken, InstanceUnderTest, Make, NotOffered, expect

__all__ = [
    "DEADLINE_S",
    "END_S",
    "LATE_S",
    "Case",
    "CheckBody",
    "DoesNotApply",
    "files_below",
    "stamps_below",
]

DEADLINE_S = 30.0
"""How far ahead the deadlines of calls are whose deadline does not matter."""

ANSWER_S = 20.0
"""How long, in real time, a check waits for an answer that must come, and for the hands."""

END_S = 5.0
"""How long, in real time, the end of a check that has failed waits for the hands."""

LATE_S = 0.3
"""How long, in real time, a check waits for what must not come, not even later."""

HANDS = frozenset(
    name for name, method in vars(InstanceUnderTest).items() if inspect.iscoroutinefunction(method)
)
"""The methods that a user writes and a check awaits."""


class DoesNotApply(Exception):
    """The backend has nothing of what a check is about, so it owes nothing there."""


class _Hands:
    """What a user wrote, held to end within a bound of real time."""

    def __init__(self, mine: InstanceUnderTest) -> None:
        self._mine = mine

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._mine, name)
        return _within(ANSWER_S, name, found) if name in HANDS else found


def _within(
    limit_s: float, name: str, hand: Callable[..., Awaitable[Any]]
) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def ends(*args: Any, **kwargs: Any) -> Any:
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return await hand(*args, **kwargs)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ContractBroken(
                f"{name} of the hands did not end within {limit_s:g} s; an actor must take their "
                "calls while others wait (max_concurrency)"
            ) from error

    return ends


class Case:
    """
    One check under way.

    Attributes:
        one: The instance that is checked.
        root: An empty directory for its files.
    """

    one: InstanceUnderTest

    def __init__(self, make: Make, root: Path) -> None:
        self._make = make
        self._made: list[InstanceUnderTest] = []
        self._tasks: list[asyncio.Future[Any]] = []
        self.root = root

    async def __aenter__(self) -> Case:
        self.one = await self.another()
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        for task in self._tasks:
            task.cancel()
        limit_s = ANSWER_S if error is None else min(END_S, ANSWER_S)
        letting_go = (_let_go(one, limit_s) for one in self._made)
        ends = await asyncio.gather(*letting_go, return_exceptions=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)
        for end in ends:
            if end is not None and error is None:
                raise end

    async def another(self) -> InstanceUnderTest:
        """Make one more instance of the same id, as after a crash."""
        made: Any = self._make()
        if inspect.isawaitable(made):
            made = await made
        if not isinstance(made, InstanceUnderTest):
            raise ContractBroken(f"the factory gave {show(made)}, which is no InstanceUnderTest")
        self._made.append(made)
        return cast("InstanceUnderTest", _Hands(made))

    # --- the calls ----------------------------------------------------------------------------

    def in_s(self, by_s: float = DEADLINE_S, on: InstanceUnderTest | None = None) -> float:
        """Return the moment so many seconds from now."""
        return (on or self.one).now_ts() + by_s

    async def call(self, name: str, *args: Any, on: InstanceUnderTest | None, **kwargs: Any) -> Any:
        """Send one call and await its answer; no answer within a bound is a broken contract."""
        reference = _send((on or self.one).handle, f"checkpoint_{name}", args, kwargs)
        limit = asyncio.timeout(ANSWER_S)
        try:
            async with limit:
                return await reference
        except asyncio.CancelledError:
            cancel_remote(reference)  # as a controller does that goes away
            raise
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ContractBroken(f"{name} was not answered within {ANSWER_S:g} s") from error

    async def prepare(
        self, checkpoint_id: str = "c1", *, by_s: float = DEADLINE_S,
        on: InstanceUnderTest | None = None,
    ) -> GymCheckpointPrepareSummary:  # fmt: skip
        """Ask to park."""
        answer = await self.call("prepare", checkpoint_id, deadline_ts=self.in_s(by_s, on), on=on)
        if not isinstance(answer, GymCheckpointPrepareSummary):
            raise ContractBroken(
                f"prepare was answered with {show(answer)}, not with a GymCheckpointPrepareSummary"
            )
        return answer

    async def renew(
        self, checkpoint_id: str = "c1", *, by_s: float = DEADLINE_S,
        on: InstanceUnderTest | None = None,
    ) -> None:  # fmt: skip
        """Extend the lease."""
        await self.call("renew", checkpoint_id, deadline_ts=self.in_s(by_s, on), on=on)

    async def commit(
        self, *episodes: EnvironmentEpisode, checkpoint_id: str = "c1", root: Path | None = None,
        by_s: float = DEADLINE_S, on: InstanceUnderTest | None = None,
    ) -> GymCheckpointCommitSummary:  # fmt: skip
        """Ask to write these episodes."""
        answer = await self.call(
            "commit", checkpoint_id, str(root or self.root), episodes,
            deadline_ts=self.in_s(by_s, on), on=on,
        )  # fmt: skip
        if not isinstance(answer, GymCheckpointCommitSummary):
            raise ContractBroken(
                f"commit was answered with {show(answer)}, not with a GymCheckpointCommitSummary"
            )
        return answer

    async def resume(
        self, checkpoint_id: str = "c1", *, by_s: float = DEADLINE_S,
        on: InstanceUnderTest | None = None,
    ) -> None:  # fmt: skip
        """Ask to reopen."""
        await self.call("resume", checkpoint_id, deadline_ts=self.in_s(by_s, on), on=on)

    async def restore(
        self, *episodes: EnvironmentEpisode, restore_id: str = "x1", source: str = "c1",
        participants: Collection[str], by_s: float = DEADLINE_S,
        on: InstanceUnderTest | None = None,
    ) -> None:  # fmt: skip
        """Ask to install these saved episodes as their next attempts."""
        await self.call(
            "restore", restore_id, str(self.root), episodes, source_checkpoint_id=source,
            participants=tuple(participants), deadline_ts=self.in_s(by_s, on), on=on,
        )  # fmt: skip

    async def retire(
        self, *episodes: EnvironmentEpisode, sweep_id: str | None = None,
        by_s: float = DEADLINE_S, on: InstanceUnderTest | None = None,
    ) -> None:  # fmt: skip
        """Ask to stop these attempts and all before them."""
        name = sweep_id or f"sweep-{uuid.uuid4().hex}"
        await self.call("retire", name, episodes, deadline_ts=self.in_s(by_s, on), on=on)

    async def forget(
        self, *rollout_ids: str, by_s: float = DEADLINE_S, on: InstanceUnderTest | None = None
    ) -> None:
        """Ask to stop refusing attempts of these rollouts."""
        name = f"sweep-{uuid.uuid4().hex}"
        await self.call("forget", name, rollout_ids, deadline_ts=self.in_s(by_s, on), on=on)

    # --- what checks do again and again -------------------------------------------------------

    def begin(self, call: Awaitable[Any]) -> asyncio.Future[Any]:
        """Let a call be under way while the check goes on."""
        task = asyncio.ensure_future(call)
        self._tasks.append(task)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def park(
        self, *episodes: EnvironmentEpisode, checkpoint_id: str = "c1", by_s: float = DEADLINE_S,
        on: InstanceUnderTest | None = None,
    ) -> GymCheckpointPrepareSummary:  # fmt: skip
        """Park an instance whose only running episodes are these."""
        preparing = self.begin(self.prepare(checkpoint_id, by_s=by_s, on=on))
        await (on or self.one).settle()
        for episode in episodes:
            await (on or self.one).turn(episode)
        answer: GymCheckpointPrepareSummary = await preparing
        expect(answer.prepared, f"it did not park, though its turns ended: {answer.blockers}")
        return answer

    async def play(self, *episodes: EnvironmentEpisode, turns: int = 1) -> None:
        """Start episodes and let each play some turns."""
        for episode in episodes:
            await self.one.start(episode)
            for _ in range(turns):
                moved = await self.one.turn(episode)
                expect(moved, f"{episode.capture_key} does not run on an open instance")

    async def start_restart_only(self, episode: EnvironmentEpisode) -> None:
        """
        Start an episode that cannot be captured.

        Raises:
            DoesNotApply: The backend has none.
        """
        try:
            await self.one.start(episode, restart_only=True)
        except NotOffered as none:
            raise DoesNotApply(str(none)) from none

    async def saved(self, *episodes: EnvironmentEpisode) -> GymCheckpointCommitSummary:
        """Save episodes after two turns each as checkpoint `c1`, and reopen."""
        await self.play(*episodes)
        await self.park(*episodes)
        summary = await self.commit(*episodes)
        await self.resume()
        return summary

    async def participants(self) -> tuple[str, ...]:
        """Return the participants of the instance, from an empty checkpoint of another one."""
        other = await self.another()
        await self.park(checkpoint_id="names", on=other)
        answer = await self.commit(checkpoint_id="names", root=self.root / "names", on=other)
        return answer.participants

    async def expect_unpublished(
        self, *episodes: EnvironmentEpisode, participants: Collection[str], what: str
    ) -> None:
        """
        Pass if nothing can be restored from checkpoint `c1`, neither now nor a little later.

        Args:
            *episodes: What it was to save.
            participants: The participants of the instance.
            what: What the checkpoint is, for the text.
        """
        for wait_s, when in ((0.0, ""), (LATE_S, ", a little later")):
            await asyncio.sleep(wait_s)
            other = await self.another()  # the one before may have marked what it did not install
            restoring = self.restore(*episodes, participants=participants, on=other)
            await self.fails(restoring, f"restore of {what}{when}")

    async def refused(self, call: Awaitable[Any], what: str) -> GymCheckpointUnavailable:
        """
        Await a call that must be refused.

        Returns:
            The refusal.

        Raises:
            ContractBroken: It was answered, or ended with another error.
        """
        try:
            answer = await call
        except ContractBroken:
            raise
        except GymCheckpointUnavailable as refusal:
            return refusal
        except Exception as error:
            raise ContractBroken(
                f"{what} ended with {type(error).__name__} ({show(str(error))}); "
                "a refusal is a GymCheckpointUnavailable"
            ) from error
        raise ContractBroken(f"{what} was answered with {show(answer)}, it must be refused")

    async def fails(self, call: Awaitable[Any], what: str) -> Exception:
        """Await a call that must raise an error of whatever kind, and return the error."""
        try:
            answer = await call
        except ContractBroken:
            raise
        except Exception as error:
            return error
        raise ContractBroken(f"{what} was answered with {show(answer)}, it must fail")

    async def expect_running(
        self, episodes: Iterable[EnvironmentEpisode], when: str, on: InstanceUnderTest | None = None
    ) -> None:
        """Pass if each of these attempts plays a turn."""
        await (on or self.one).settle()
        for episode in episodes:
            moved = await (on or self.one).turn(episode)
            expect(moved, f"{episode.capture_key} does not run {when}")

    async def expect_still(
        self, episodes: Iterable[EnvironmentEpisode], when: str, on: InstanceUnderTest | None = None
    ) -> None:
        """Pass if none of these attempts plays a turn."""
        await (on or self.one).settle()
        for episode in episodes:
            moved = await (on or self.one).turn(episode)
            expect(not moved, f"{episode.capture_key} plays a turn {when}")

    async def expect_open(self, when: str, on: InstanceUnderTest | None = None) -> None:
        """Pass if a new episode runs."""
        episode = EnvironmentEpisode(f"probe-{uuid.uuid4().hex}", 0)
        await (on or self.one).start(episode)
        await self.expect_running([episode], when, on)

    async def expect_closed(self, when: str, on: InstanceUnderTest | None = None) -> None:
        """Pass if a new episode does not run."""
        episode = EnvironmentEpisode(f"probe-{uuid.uuid4().hex}", 0)
        await (on or self.one).start(episode)
        await self.expect_still([episode], when, on)


async def _let_go(one: InstanceUnderTest, limit_s: float) -> None:
    """Let go of an instance, of one whose writes still hang too."""
    try:
        await _within(limit_s, "free_storage", one.free_storage)()
    finally:
        await _within(limit_s, "close", one.close)()


def _send(handle: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
    """Send a call, and say in words where the handle is none that a coordinator could use."""
    method = getattr(handle, name, None)
    expect(method is not None, f"the handle has no method {name}")
    remote = getattr(method, "remote", None)
    expect(remote is not None, f"the handle's {name} has no .remote; handle_of(object) makes one")
    reference = cast("Callable[..., Any]", remote)(*args, **kwargs)
    awaited = f"{name}.remote(…) gave {show(reference)}, which cannot be awaited"
    expect(inspect.isawaitable(reference) or hasattr(reference, "__await__"), awaited)
    return cast("Awaitable[Any]", reference)


CheckBody = Callable[[Case], Awaitable[None]]
"""One check; its docstring is what it claims, and it raises where that is not so."""


def files_below(root: Path) -> dict[Path, bytes]:
    """Return every file below a directory with what it holds."""
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def stamps_below(root: Path) -> dict[Path, tuple[int, int]]:
    """Return of every file below a directory which one it is, and when it was written."""
    found = {path: path.stat() for path in root.rglob("*") if path.is_file()}
    return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in found.items()}
