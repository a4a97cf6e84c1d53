"""
What the instance contract needs from whoever tests a backend.

`InstanceUnderTest` is the one thing that a user writes: it starts episodes on an instance, lets
them play turns, and makes time pass there.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gymckpt.episodes import EnvironmentEpisode

__all__ = ["ContractBroken", "InstanceUnderTest", "Make", "NotOffered", "expect", "handle_of"]

SETTLE_S = 0.3
"""How long the default `settle` lets an instance in another process work."""


class ContractBroken(AssertionError):
    """The instance did not do what the contract says; the text says what it did."""


class NotOffered(Exception):
    """The adapter cannot arrange what a check needs, so the check is not tried."""


def expect(holds: object, otherwise: str) -> None:
    """
    Pass if something holds.

    Raises:
        ContractBroken: It does not; the text says what happens instead.
    """
    if not holds:
        raise ContractBroken(otherwise)


class InstanceUnderTest(abc.ABC):
    """
    One fresh instance of a backend, and the hands of the test on it.

    Attributes:
        handle: What a coordinator gets: each method has a `.remote`.
        instance_id: The instance's own id; all instances that a test makes have the same.
        grace_s: How long after the last deadline it reopens by itself.
    """

    handle: Any
    instance_id: str
    grace_s: float

    @abc.abstractmethod
    async def start(self, episode: EnvironmentEpisode, *, restart_only: bool = False) -> None:
        """
        Dispatch an attempt that has many turns before it, and do not wait for its reply.

        An attempt that may run is inside its first turn when this returns. One that may not waits
        or is refused, as the backend likes; a refusal is swallowed here.

        Args:
            episode: The attempt.
            restart_only: Whether it is of the kind that cannot be captured.

        Raises:
            NotOffered: The backend has no episodes that cannot be captured.
        """

    @abc.abstractmethod
    async def turn(self, episode: EnvironmentEpisode) -> bool:
        """
        Let an attempt end the turn that it is inside of, and return when that is done.

        Returns:
            Whether it was inside of one; False says that it is parked, stopped, or not here.
        """

    @abc.abstractmethod
    async def turns(self, episode: EnvironmentEpisode) -> int:
        """
        Return how many turns an attempt has behind it, those before a restore included.

        Asked only of attempts that have begun a turn here.
        """

    @abc.abstractmethod
    def now_ts(self) -> float:
        """Return the time by the instance's own clock, epoch seconds."""

    async def settle(self) -> None:
        """Return when all has happened that can happen without time passing."""
        await asyncio.sleep(SETTLE_S)

    async def advance(self, by_s: float) -> None:
        """
        Let time pass.

        Raises:
            NotOffered: It cannot be arranged.
        """
        raise NotOffered(f"time cannot be made to pass by {by_s:g} s")

    async def step_clock(self, by_s: float) -> None:
        """
        Set the instance's clock forward, or back, without time passing.

        Raises:
            NotOffered: It cannot be arranged.
        """
        raise NotOffered(f"the clock cannot be set by {by_s:g} s")

    async def hold_storage(self) -> None:
        """
        Let every write hang in its middle until `free_storage`.

        Raises:
            NotOffered: It cannot be arranged.
        """
        raise NotOffered("writes cannot be held")

    async def free_storage(self) -> None:  # noqa: B027 - who holds nothing has nothing to free
        """Let the writes that hang go on."""

    async def break_storage(self, error: Exception) -> None:
        """
        Let the next write fail in its middle.

        Raises:
            NotOffered: It cannot be arranged.
        """
        raise NotOffered(f"writes cannot be made to fail with {type(error).__name__}")

    async def hold_cleanup(self) -> None:
        """
        Let attempts that are told to stop clean up until `free_cleanup`, unless they are cut short.

        Raises:
            NotOffered: Attempts of this backend have nothing to clean up.
        """
        raise NotOffered("attempts have nothing to clean up when they are stopped")

    async def free_cleanup(self) -> None:  # noqa: B027 - who holds nothing has nothing to free
        """Let the attempts that clean up come to their end."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Let go of the instance."""


Make = Callable[[], InstanceUnderTest | Awaitable[InstanceUnderTest]]
"""Makes an instance that is open and has no episode; all that it makes have one id."""


class _Method:
    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, in this process."""
        return self._method(*args, **kwargs)


class _InProcess:
    def __init__(self, target: object) -> None:
        self._target = target

    def __getattr__(self, name: str) -> _Method:
        return _Method(getattr(self._target, name))


def handle_of(target: object) -> Any:
    """Return a handle on an object of this process whose methods are coroutines."""
    return _InProcess(target)
