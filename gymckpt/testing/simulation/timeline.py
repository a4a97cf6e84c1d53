"""
What happened in a run, in the order in which it happened, as lines that a person can read.

The same seed gives the same bytes. What is not of the seed (directories, host names, process ids)
is replaced when a timeline is rendered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from gymckpt.core.entry import Entry

__all__ = ["Timeline", "told"]

_OWNER = re.compile(r"[A-Za-z0-9.-]+:\d+:([0-9a-f]{12})")
"""A controller's token: host, process id, unique part."""

FACTS_MAX = 160
"""How much of an entry's facts a line has."""


class Timeline:
    """
    The events of one run.

    Attributes:
        events: (seconds, who, what) in order; what is a text, or makes one when it is asked for.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        """
        Begin an empty one.

        Args:
            now_s: The time of the run, in seconds.
        """
        self.events: list[tuple[float, str, str | Callable[[], str]]] = []
        self._now_s = now_s

    def note(self, who: str, what: str | Callable[[], str]) -> None:
        """Note an event."""
        self.events.append((self._now_s(), who, what))

    def note_entries(self, who: str, entries: Iterable[Entry], outcome: str) -> None:
        """Note entries that were given to the journal, and what it did with them."""
        listed = tuple(entries)
        for entry in listed:
            self.events.append((self._now_s(), who, _Told(entry, outcome)))

    def lines(self, *, without: Iterable[str] = ()) -> list[str]:
        """
        Return the events as lines.

        Args:
            without: Texts that stand for this host, such as a directory; they are left out.
        """
        found: list[str] = []
        for at_s, who, what in self.events:
            line = f"{at_s:12.6f}  {who:<14} {what if isinstance(what, str) else what()}"
            for text in without:
                line = line.replace(text, "")
            found.append(_OWNER.sub(r"controller:\1", line))
        return found


class _Told:
    """One entry as a line, made when it is asked for."""

    __slots__ = ("_entry", "_outcome")

    def __init__(self, entry: Entry, outcome: str) -> None:
        self._entry = entry
        self._outcome = outcome

    def __call__(self) -> str:
        return f"journal {self._outcome}: {told(self._entry)}"


def told(entry: Entry) -> str:
    """Return one journal entry in a line."""
    about = f" {entry.call} #{entry.ask} {entry.instance}:" if entry.instance else ""
    facts = _facts(entry.facts)
    return (
        f"{entry.operation_id} e{entry.epoch}/{entry.seq}{about} "
        f"{entry.source or '-'} -{entry.trigger}-> {entry.dest}{facts}"
    )


def _facts(facts: Any) -> str:
    if not facts:
        return ""
    text = ", ".join(f"{name}={value!r}" for name, value in dict(facts).items())
    return f"  ({text if len(text) <= FACTS_MAX else text[:FACTS_MAX] + '…'})"
