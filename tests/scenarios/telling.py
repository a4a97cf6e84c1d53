"""
What happens in a scenario, in few words: one line a happening, in the order in which it happened.

Lines that say the same of several instances at one moment are one line that names them. Whatever
differs from run to run, such as a directory, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from gymckpt.core.entry import Entry
from gymckpt.wording import text_of

__all__ = ["Telling", "short"]

KIND_WIDTH = 8
TIME_WIDTH = 7
TEXT_MAX = 110
"""How much of an error is told."""


def short(instance: str) -> str:
    """Return an instance's id without the shard, which is the same everywhere."""
    return instance.rpartition("/")[2]


@attrs.define
class _Line:
    at_s: float
    kind: str
    head: str
    instances: list[str] | None


class Telling:
    """The lines of one scenario, until they are taken."""

    def __init__(self, now_s: Callable[[], float], clean: Callable[[str], str]) -> None:
        """
        Begin with nothing.

        Args:
            now_s: Seconds since the scenario began.
            clean: Takes out of a text what differs from run to run.
        """
        self.muted = False
        self.hidden: set[str] = set()
        """The calls that are not told."""
        self.everybody = 0
        """How many instances there are."""
        self._now_s, self._clean = now_s, clean
        self._lines: list[_Line] = []

    def say(self, kind: str, head: str, instance: str | None = None) -> None:
        """Tell one thing, of an instance or of none."""
        if self.muted:
            return
        at_s = round(self._now_s(), 2)
        last = self._lines[-1] if self._lines else None
        if (
            last
            and instance
            and last.instances
            and (last.at_s, last.kind, last.head)
            == (
                at_s,
                kind,
                head,
            )
        ):
            last.instances.append(short(instance))
            return
        named = [short(instance)] if instance else None
        self._lines.append(_Line(at_s, kind, head, named))

    def call(self, name: str, deadline_s: float, instance: str) -> None:
        """Tell that a call has left."""
        if name not in self.hidden:
            self.say("call", f"{name} by {deadline_s:g}s", instance)

    def entries(self, entries: Iterable[Entry]) -> None:
        """Tell what became durable."""
        for entry in entries:
            arrow = f"{entry.source or 'nothing'} -> {entry.dest} ({entry.trigger})"
            if entry.instance is None:
                self.say("journal", f"{entry.operation_id}: {arrow}{_why(entry)}")
            elif entry.call not in self.hidden:
                head = f"{entry.call}#{entry.ask} {arrow}{_failure(entry)}"
                self.say("journal", head, entry.instance)

    def error(self, who: str, error: BaseException, how: str = "") -> None:
        """Tell an error that reached somebody, with its notes."""
        text = self._text(text_of(error))
        self.say(who, f"{how}{type(error).__name__}" + (f": {text}" if text else ""))
        for note in getattr(error, "__notes__", ()):
            self.say("", f"  note: {self._text(note)}")

    def take(self) -> list[str]:
        """Return what was told since the last time, as text."""
        lines: list[str] = []
        before_s: float | None = None
        for line in self._lines:
            time = "" if line.at_s == before_s else f"{line.at_s:g}s"
            before_s = line.at_s
            text = f"{time:>{TIME_WIDTH}}  {line.kind:<{KIND_WIDTH}} {line.head}"
            lines.append((text + self._named(line.instances)).rstrip())
        self._lines.clear()
        return lines

    def _named(self, instances: list[str] | None) -> str:
        if instances is None:
            return ""
        everybody = len(instances) == self.everybody > 1
        return ": " + ("all" if everybody else " ".join(instances))

    def _text(self, text: str) -> str:
        words = " ".join(self._clean(text).split())
        return words if len(words) <= TEXT_MAX else words[:TEXT_MAX].rstrip() + " ..."


def _why(entry: Entry) -> str:
    """Return whose fault an entry says that its move is."""
    if "call" in entry.facts and "failed" in entry.facts:
        facts = entry.facts
        return f", {facts['call']} failed on {facts['failed']} of {facts['instances']}"
    return _failure(entry)


def _failure(entry: Entry) -> str:
    failure = entry.facts.get("failure")
    if failure:
        return f" {failure['type']}"
    return " given up" if entry.facts.get("abandoned") else ""
