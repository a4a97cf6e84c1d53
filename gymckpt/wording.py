"""
How foreign values get into a message: bounded, printable, without secrets, and never by raising.

Every error, log line, page and journal entry that quotes something from outside goes through here.
The module owns the bounds, the redaction and `visible`, the one rule for which characters a text
that people read may hold; it knows nothing of what is being reported.
"""

from __future__ import annotations

import difflib
import re
import reprlib
import unicodedata
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = [
    "SAMPLE_MAX",
    "TEXT_MAX",
    "clipped",
    "did_you_mean",
    "guarded",
    "lines_of",
    "redacted",
    "sample",
    "show",
    "text_of",
    "visible",
]

_Result = TypeVar("_Result")

SAMPLE_MAX = 5
"""How many items of any list an error or a log line names; the rest are counted."""

TEXT_MAX = 2_000
"""How many characters of one failure's text an error or a journal entry keeps."""

ITEM_MAX = 200
"""How many characters of one item of a sample, or of one quoted value, are kept."""

_SCAN_MAX = 64_000
"""Longer texts lose their middle before they are searched for secrets, which takes time."""

# Every pattern is linear in the text: what may repeat is either bounded or cannot overlap with
# the next place where the pattern could begin.
_SECRETS = (
    (
        re.compile(
            r"(?i)\b(authorization[\\'\"]*\s*[:=]\s*[\\'\"]*)"
            r"(?:(?:basic|bearer|digest|negotiate|token)\s+)?[^\s,;&'\"\\}]+"
        ),
        r"\1[redacted]",
    ),
    (re.compile(r"(?i)\b(bearer)\s+[^\s,;&'\"\\}]+"), r"\1 [redacted]"),
    (
        re.compile(
            r"(?i)(?<![a-z0-9])((?:api|access|secret)[_-]?key|token|password|passwd|secret)"
            r"([\\'\"]*\s*[=:]\s*[\\'\"]*)[^\s,;&'\"\\}]+"
        ),
        r"\1\2[redacted]",
    ),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,30}://)[^\s/]+@"), r"\1[redacted]@"),
    (
        re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,30}://)[^\s/:@]{0,100}:[^\s@]{1,200}@"),
        r"\1[redacted]@",
    ),
)

_MARK = re.compile(r"[:=\s]")
"""Every pattern needs one of these; most names and ids have none and are not searched further."""

_COLOURS = re.compile(r"\x1b\[[0-9;]{0,20}m")

_BRIEF = reprlib.Repr()
_BRIEF.maxlevel = 3
_BRIEF.maxstring = _BRIEF.maxother = ITEM_MAX // 2


def guarded(foreign: Callable[[], _Result], otherwise: _Result) -> _Result:
    """
    Run code of a foreign object, which may raise anything, while a failure is being reported.

    Args:
        foreign: Calls for example the `__str__` of an exception that an actor raised.
        otherwise: What to return when it raises.
    """
    try:
        return foreign()
    except (KeyboardInterrupt, SystemExit):  # not the object's doing: the process is to stop
        raise
    except BaseException:  # a library in another language may panic with a bare BaseException
        return otherwise


def redacted(text: str) -> str:
    """
    Return `text` without authorization headers, tokens, passwords and credentials in URLs.

    Args:
        text: Anything that goes into an error, a log line or the journal.
    """
    if _MARK.search(text) is None:
        return text
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def clipped(text: str, limit: int = TEXT_MAX) -> str:
    """
    Return `text` in at most `limit` characters, without its middle where it is longer.

    Args:
        text: Any text. Its end is kept as well as its beginning: the last line of a traceback is
            the one that says what happened.
        limit: The most characters to return; at least 50.
    """
    if len(text) <= limit:
        return text
    gap = f" … ({len(text)} characters) … "
    tail = (limit - len(gap)) // 3
    return f"{text[: limit - len(gap) - tail]}{gap}{text[-tail:]}"


def visible(text: object) -> str:
    """
    Return a text with every character spelled out that does not show as itself.

    That are controls (a terminal obeys them), format characters (some turn the direction of
    writing around, some are there and cannot be seen), line and paragraph separators, halves of a
    character pair, and what Unicode leaves unassigned or private. Only new lines and blanks stay; a
    tab becomes a space, and colours are left out.

    Args:
        text: Anything.
    """
    said = str(text)
    if said.isprintable():
        return said
    said = _COLOURS.sub("", said).replace("\r\n", "\n").replace("\t", " ")
    return "".join(char if char == "\n" or _shows(char) else _spelled(char) for char in said)


def _shows(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) == "Zs"


def _spelled(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _presentable(text: str, limit: int, separator: str) -> str:
    """Redact and bound a text without colours, and spell out what not every reader can bear."""
    if len(text) <= limit and text.isascii() and text.isprintable() and not _MARK.search(text):
        return text  # as most names and ids are, of which a manifest has thousands
    lines = _COLOURS.sub("", clipped(text, _SCAN_MAX)).splitlines()
    if separator != "\n":
        lines = [line.strip() for line in lines if line.strip()]
    # A secret is found before its characters are spelled, and what then looks like one after it.
    return clipped(redacted(visible(redacted(separator.join(lines)))), limit)


def _unreadable(value: object) -> str:
    return f"<{visible(type(value).__name__[:ITEM_MAX])} whose text could not be read>"


def text_of(value: object, limit: int = TEXT_MAX) -> str:
    """
    Return `str(value)` in one line, redacted, bounded and printable.

    Args:
        value: Any object; one whose `str` raises gives its type name.
        limit: The most characters to return.
    """
    return _text(value, limit, " ")


def lines_of(value: object, limit: int = TEXT_MAX) -> str:
    """
    Return what `text_of` returns, with the lines of the text, as a traceback has them.

    Args:
        value: Any object.
        limit: The most characters to return.
    """
    return _text(value, limit, "\n")


def _text(value: object, limit: int, separator: str) -> str:
    if type(value) is str:
        return _presentable(value, limit, separator)
    return guarded(lambda: _presentable(str(value), limit, separator), _unreadable(value))


def show(value: object) -> str:
    """
    Return a short `repr` of any value, to quote it in an error.

    Args:
        value: Any object, for example a field of a parsed file: however large, however deeply
            nested, with a `repr` that raises.
    """
    return guarded(lambda: _presentable(_BRIEF.repr(value), ITEM_MAX, " "), _unreadable(value))


def sample(items: Iterable[object], total: int | None = None, *, width: int = ITEM_MAX) -> str:
    """
    Name the first few of `items` and count the rest, so that no message grows with the inventory.

    Args:
        items: What to name, in the order in which it should be read.
        total: How many there are where `items` is only a part of them.
        width: The most characters of one item.
    """
    listed = list(items)
    count = len(listed) if total is None else total
    named = listed[:SAMPLE_MAX]
    shown = ", ".join(text_of(item, width) for item in named)
    return f"{shown} and {count - len(named)} more" if count > len(named) else shown


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """
    Return the end of a message about an unknown name: the closest known one, else a sample.

    Args:
        word: The name that is not known.
        known: The names that are, in the order in which a sample should show them.
    """
    options = list(known)
    close = difflib.get_close_matches(word[:100], options, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {sample(options)}" if options else ""
