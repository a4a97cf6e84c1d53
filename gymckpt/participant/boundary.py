"""
The edge of a deployment: what may leave it.

Whatever a method raises crosses a process boundary to a host that may have none of our
dependencies. Refusals of the control plane become `GymCheckpointUnavailable` with their code in
the text; Python's own exceptions and the library's leave as they are where they can be pickled;
everything else leaves as a text stand-in.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from gymckpt.errors import GymCheckpointUnavailable, ParticipantRefused
from gymckpt.standins import pack, tame

__all__ = ["Hosted", "answers"]

_HOME = ("builtins", "gymckpt.")
"""The modules whose exceptions the other side is sure to know."""


class Hosted(Protocol):
    """Anything that has an instance id to name in a refusal."""

    @property
    def instance_id(self) -> str:
        """The deployment's id."""
        ...


_Self = TypeVar("_Self", bound=Hosted)
_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


def answers(
    call: str,
) -> Callable[
    [Callable[Concatenate[_Self, _Arguments], Awaitable[_Answer]]],
    Callable[Concatenate[_Self, _Arguments], Coroutine[Any, Any, _Answer]],
]:
    """
    Make a method safe to be called from another process.

    Args:
        call: What to call the method in a refusal.
    """

    def decorate(
        method: Callable[Concatenate[_Self, _Arguments], Awaitable[_Answer]],
    ) -> Callable[Concatenate[_Self, _Arguments], Coroutine[Any, Any, _Answer]]:
        async def answer(
            self: _Self, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
        ) -> _Answer:
            try:
                return await method(self, *args, **kwargs)
            except ParticipantRefused as refused:
                raise GymCheckpointUnavailable(
                    f"{call} on {self.instance_id}: {refused.code} {refused.detail}",
                    code=refused.code,
                ) from refused
            except Exception as error:  # the one place where any error of a backend passes
                if (plain := _plain(error)) is error:
                    raise
                raise plain from error

        functools.update_wrapper(answer, method)
        return answer

    return decorate


def _plain(error: Exception) -> BaseException:
    """Return the error itself if every process can make it again, else its stand-in."""
    if not type(error).__module__.startswith(_HOME):
        return pack(error).stand_in
    kept = tame(error)
    packed = pack(kept)
    return kept if type(packed.unpack()) is type(kept) else packed.stand_in
