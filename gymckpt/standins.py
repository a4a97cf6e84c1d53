"""
Failures as values: text stand-ins for exceptions that cannot travel, and errors that can.

An instance's failure may be an object of any exception class. It is kept as it is while that works;
where it cannot be printed, handled as an ordinary exception or pickled, a `RemoteFailure` with its
text takes its place. Ray's own exceptions are classes made on the fly which only cloudpickle can
carry, so failures travel inside an error as bytes of cloudpickle, whichever pickler carries the
error itself.
"""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, cast

import attrs
import cloudpickle

from gymckpt.wording import guarded, lines_of, text_of, visible

__all__ = [
    "Legible",
    "PackedFailure",
    "Portable",
    "RemoteFailure",
    "cause_on_ray",
    "forbid_retry",
    "marks_of",
    "note_on",
    "pack",
    "said_by",
    "tame",
    "text_of_failure",
]

TRACEBACK_MAX = 16_000
"""How many characters of a traceback a stand-in keeps."""

_TYPE_NAME_MAX = 100

_ACTORS_MAX = 8
"""Through how many actors a failure is followed to the one that raised it."""

_LOST_NAMES = frozenset({"RayError", "UnserializableException"})
"""What Ray delivers in place of an exception that could not be pickled, or not be made again."""

_LAST_LINES = re.compile(r"\n(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*): (\S[^\0]*)\Z")
"""The end of a traceback, behind its last line of code: the class that was raised, and its text."""


_cloudpickle: Any = cloudpickle
"""cloudpickle declares no types."""


class Legible:
    """A mixin for exceptions whose text shows every character, whatever somebody put into it."""

    def __str__(self) -> str:
        return visible(super().__str__())


class Portable(Legible):
    """
    A mixin for exceptions that survive pickling with their fields, their message and their notes.

    An exception with more than one constructor argument cannot be unpickled by default, and a
    `__reduce__` of its own would drop the notes.
    """

    _fields: ClassVar[tuple[str, ...]]
    """The attributes that hold the constructor's arguments, in its order."""

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = tuple(getattr(self, name) for name in self._fields)
        return rebuild, (type(self), arguments, notes_of(self)), marks_of(self)


def forbid_retry(error: BaseException, note: str) -> None:
    """
    Mark an error as one that trying again cannot mend, whatever its class and its causes.

    Args:
        error: What is about to leave; the mark survives pickling.
        note: Why, and what does help.
    """
    guarded(lambda: setattr(error, "retryable", False), None)
    note_on(error, note)


def marks_of(error: object) -> dict[str, object] | None:
    """Return what pickling keeps of an error besides its arguments and notes."""
    lasting = guarded(lambda: getattr(error, "retryable", True), True) is False
    return {"retryable": False} if lasting else None


def notes_of(error: object) -> tuple[str, ...]:
    """Return the notes of an exception; whatever else somebody put in their place is left out."""
    notes: object = guarded(lambda: getattr(error, "__notes__", ()), ())
    if not isinstance(notes, list | tuple):
        return ()
    return tuple(note for note in cast("Iterable[object]", notes) if isinstance(note, str))


def rebuild(
    make: Callable[..., BaseException], arguments: tuple[Any, ...], notes: tuple[str, ...]
) -> BaseException:
    """Make an exception again on the other side; a stored name of every pickled error."""
    error = make(*arguments)
    for note in notes:
        error.add_note(note)
    return error


class RemoteFailure(Portable, RuntimeError):
    """
    A text stand-in for a failure that cannot travel or be handled as an ordinary exception.

    Exception groups, exceptions whose `str` raises, objects that cannot be pickled and bare
    `BaseException`s from an actor become one. It is never transient: a failure whose meaning was
    lost is not guessed to be harmless.

    Attributes:
        type_name: The class of the original failure.
        text: What it said.
        traceback_text: Its traceback as text, empty where there was none.
    """

    _fields = ("type_name", "text", "traceback_text")

    def __init__(self, type_name: str, text: str, traceback_text: str = "") -> None:
        super().__init__(f"{type_name}: {text}")
        self.type_name = type_name
        self.text = text
        self.traceback_text = traceback_text


def said_by(error: BaseException) -> tuple[str, str]:
    """
    Return the name of a failure's class and, in one line, what it said; both bounded.

    Args:
        error: What a call ended with. Of a stand-in it is the original that counts, and of what
            Ray delivered, which is a class made on the fly with a coloured traceback for its
            text, what the actor raised.
    """
    for _link in range(_ACTORS_MAX):
        error = cause_on_ray(error) or error
    if isinstance(error, RemoteFailure):
        return text_of(error.type_name)[:_TYPE_NAME_MAX], text_of(error.text)
    name, text = type(error).__name__, cast("object", error)
    if name in _LOST_NAMES:
        name, text = guarded(lambda: _last_lines(str(error)), None) or (name, text)
    return text_of(name)[:_TYPE_NAME_MAX], text_of(text)


def cause_on_ray(error: BaseException) -> BaseException | None:
    """Return what an actor raised, of an error that Ray delivered; None where it is no such one."""
    if not any(base.__name__ == "RayTaskError" for base in type(error).__mro__):
        return None
    cause: object = guarded(lambda: getattr(error, "cause", None), None)
    return cause if isinstance(cause, BaseException) else None


def _last_lines(trace: str) -> tuple[str, object] | None:
    """Return the class and the text at the end of a traceback; None where it is none."""
    found = _LAST_LINES.search(trace[trace.rfind("\n  ") + 1 :])
    return None if found is None else (found[1], found[2])


def text_of_failure(error: BaseException) -> str:
    """Say in one line what a failure is; the same for a failure and for its stand-in."""
    name, text = said_by(error)
    return f"{name}: {text}"


def tame(error: BaseException) -> BaseException:
    """
    Return `error` itself where it can be handled as an ordinary exception, else a stand-in.

    Args:
        error: What an actor's call ended with: any object of any exception class.
    """
    if isinstance(error, asyncio.CancelledError):
        return error
    if not isinstance(error, Exception) or _is_group(error):
        return _stand_in(error)
    printed = guarded(lambda: (str(error), repr(error)), None)
    return error if printed is not None else _stand_in(error)


def _is_group(error: BaseException) -> bool:
    return isinstance(error, BaseExceptionGroup)


def _stand_in(error: BaseException) -> RemoteFailure:
    if isinstance(error, RemoteFailure):
        return error
    trace = guarded(lambda: "".join(traceback.format_exception(error)), "")
    failure = RemoteFailure(*said_by(error), lines_of(trace, TRACEBACK_MAX))
    for note in notes_of(error):
        failure.add_note(note)
    return failure


@attrs.frozen
class PackedFailure:
    """One failure on its way between processes."""

    pickled: bytes
    """The failure itself by cloudpickle; empty where it cannot be pickled."""
    stand_in: RemoteFailure
    """What takes its place where it cannot be made again, for example where Ray is missing."""

    def unpack(self) -> BaseException:
        """Return the failure, or its stand-in where it cannot be made again here."""
        if not self.pickled:
            return self.stand_in
        failure: object = guarded(lambda: _cloudpickle.loads(self.pickled), None)
        return failure if isinstance(failure, BaseException) else self.stand_in


def pack(failure: BaseException) -> PackedFailure:
    """
    Return a form of `failure` that every pickler can carry.

    Args:
        failure: An object of any exception class.
    """
    pickled: bytes = guarded(lambda: _cloudpickle.dumps(failure), b"")
    return PackedFailure(pickled, _stand_in(failure))


def note_on(error: BaseException, note: str) -> None:
    """Add a note once; an error of the caller's own that takes no notes is left as it is."""
    note = visible(note)
    if note not in notes_of(error):
        guarded(lambda: error.add_note(note), None)
