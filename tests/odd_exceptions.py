"""Exceptions that nobody would write on purpose, and that some library raises all the same."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import ray
import ray.exceptions
from hypothesis import strategies as st

from gymckpt.errors import (
    GymCheckpointUnavailable,
    RemoteFailure,
)
from tests.test_wording import TEXTS


class StrRaises(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class StrPanics(Exception):
    def __str__(self) -> str:
        raise BaseOnly("a library in another language gave up")


class ReprRaises(Exception):
    def __repr__(self) -> str:
        raise ValueError("no repr")


class BaseOnly(BaseException):
    pass


class ArgsProperty(Exception):
    @property
    def args(self) -> Any:
        raise AttributeError("args")


class CauseProperty(Exception):
    @property
    def __cause__(self) -> Any:
        raise RuntimeError("cause")


class CauseText(Exception):
    __cause__: Any = "not an exception"


class NotesProperty(Exception):
    @property
    def __notes__(self) -> Any:
        raise RuntimeError("notes")


class NotesNumber(Exception):
    __notes__: Any = 5


class TwoArguments(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")


class HoldsLock(TimeoutError):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class LoadsOther(Exception):
    def __reduce__(self) -> Any:
        return (str, ("no exception at all",))


class ReduceRaises(Exception):
    def __reduce__(self) -> Any:
        raise BaseOnly("cannot be pickled, and says so rudely")


class ClientResponseError(Exception):
    """Stands for aiohttp's class, which is recognised by its name."""

    def __init__(self, status: Any) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class StatusProperty(ClientResponseError):
    status: Any = property(lambda _self: 1 / 0, lambda _self, _value: None)


def nested_group(depth: int) -> BaseExceptionGroup[BaseException]:
    group: BaseExceptionGroup[BaseException] = ExceptionGroup("group", [TimeoutError("slow")])
    for _level in range(depth):
        group = BaseExceptionGroup("group", [group, BaseOnly("odd")])
    return group


ODD_EXCEPTIONS = st.one_of(
    st.builds(
        lambda make, text: make(text),
        st.sampled_from([
            StrRaises, StrPanics, ReprRaises, BaseOnly, ArgsProperty, CauseProperty, CauseText,
            NotesProperty, NotesNumber, HoldsLock, LoadsOther, ReduceRaises, StatusProperty,
            ValueError, KeyError, TimeoutError, ConnectionResetError, KeyboardInterrupt,
            SystemExit, GeneratorExit, asyncio.CancelledError, GymCheckpointUnavailable,
            ray.exceptions.RaySystemError, ray.exceptions.UnserializableException,
        ]),
        TEXTS,
    ),
    st.builds(TwoArguments, st.integers(), TEXTS),
    st.builds(ClientResponseError, st.one_of(st.integers(), st.none(), st.text())),
    st.builds(nested_group, st.integers(0, 12)),
    st.builds(RemoteFailure, st.text(), TEXTS, TEXTS),
    st.builds(type("E" * 500, (Exception,), {}), TEXTS),
)  # fmt: skip


def with_cause(error: BaseException, cause: BaseException | None) -> BaseException:
    if not isinstance(error, CauseProperty):
        error.__cause__ = cause
    return error


FAILURES = st.builds(with_cause, ODD_EXCEPTIONS, st.none() | ODD_EXCEPTIONS)
