"""
What became of each call to each instance, in one pass over a history.

A story is about the latest round of one call: from its first ask to whatever ended it, with the
reason in the words of the instance. It needs no chart and no state, so that it can be told of any
part of a history, also of one instance's entries alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from gymckpt.core.entry import Entry, JsonFacts
from gymckpt.diagnosis.facts import blockers_of
from gymckpt.wording import sample, text_of

__all__ = ["Blockers", "Story", "stories_of"]

REASON_MAX = 400
"""How many characters of a reason are kept."""

SERVERS_MAX = 5
"""How many servers' blockers are named in a reason."""


@attrs.frozen(kw_only=True)
class Blockers:
    """What kept one server of an instance from parking."""

    server: str
    count: int
    sample: tuple[str, ...]

    def in_words(self) -> str:
        """Say it in a few words."""
        named = sample(self.sample, self.count, width=60)
        return f"{self.server}: {self.count} ({named})" if named else f"{self.server}: {self.count}"


@attrs.frozen(kw_only=True)
class Story:
    """One round of one call to one instance."""

    instance: str
    call: str
    state: str
    """Where the call's machine stands: `asked`, `answered`, `refused`, …"""
    asks: int
    """How often it was sent in this round; more than 1 where it was tried again."""
    asked_at_s: float
    """When it was first sent in this round, by the operation's clock."""
    asked_ts: float
    deadline_ts: float
    ended_at_s: float | None = None
    """When the latest ask came to its end; None while it is waited for."""
    failure: Mapping[str, Any] | None = None
    """The latest failure as the journal keeps it: type, text, transient, dead."""
    failed_at_s: float | None = None
    """When the round first went wrong."""
    blockers: tuple[Blockers, ...] = ()
    abandoned: bool = False
    """Whether the wait was given up because the operation moved on."""
    stale: int = 0
    """How many replies came that no longer counted."""

    @property
    def took_s(self) -> float | None:
        """How long it took from the first ask to the end; None while it is waited for."""
        return None if self.ended_at_s is None else self.ended_at_s - self.asked_at_s

    @property
    def reason(self) -> str:
        """Why it is not answered, in the instance's own words where it said any."""
        if self.state == "refused":
            named = "; ".join(one.in_words() for one in self.blockers[:SERVERS_MAX])
            more = len(self.blockers) - SERVERS_MAX
            tail = f"; and {more} more servers" if more > 0 else ""
            return f"not ready, {named}{tail}" if named else "not ready, and it names no blocker"
        if self.failure is not None:
            kind, text = text_of(self.failure.get("type"), 100), self.failure.get("text", "")
            return f"{kind}: {text_of(text, REASON_MAX)}"
        if self.abandoned:
            return "it was no longer waited for"
        return "no answer yet" if self.state == "asked" else ""


def stories_of(entries: Iterable[Entry]) -> dict[tuple[str, str], Story]:
    """
    Return the latest round of every call.

    Args:
        entries: A history or a part of it, in order.

    Returns:
        (call, instance) to the story, in the order in which they began.
    """
    told: dict[tuple[str, str], Story] = {}
    for entry in entries:
        if entry.instance is None:
            continue
        key = (str(entry.call), entry.instance)
        before = told.get(key)
        after = _asked(before, entry) if entry.trigger in ("ask", "retry") else None
        if after is None and before is not None:
            after = _moved(before, entry)
        if after is not None:
            told[key] = after
    return told


def _asked(before: Story | None, entry: Entry) -> Story:
    deadline_ts = entry.facts.get("deadline_ts", entry.ts)
    if before is not None and entry.trigger == "retry":
        return attrs.evolve(
            before,
            state=entry.dest,
            asks=before.asks + 1,
            deadline_ts=deadline_ts,
            ended_at_s=None,
            abandoned=False,
        )
    return Story(
        instance=str(entry.instance),
        call=str(entry.call),
        state=entry.dest,
        asks=1,
        asked_at_s=entry.at_s,
        asked_ts=entry.ts,
        deadline_ts=deadline_ts,
    )


def _moved(before: Story, entry: Entry) -> Story:
    if entry.trigger == "stale":
        return attrs.evolve(before, stale=before.stale + 1)
    if entry.facts.get("abandoned"):
        return attrs.evolve(before, state=entry.dest, ended_at_s=entry.at_s, abandoned=True)
    if entry.dest == "answered":
        return attrs.evolve(before, state=entry.dest, ended_at_s=entry.at_s, failure=None)
    failed_at_s = entry.at_s if before.failed_at_s is None else before.failed_at_s
    return attrs.evolve(
        before,
        state=entry.dest,
        ended_at_s=entry.at_s,
        failure=entry.facts.get("failure") or before.failure,
        failed_at_s=failed_at_s,
        blockers=_blockers(entry.facts),
    )


def _blockers(facts: JsonFacts) -> tuple[Blockers, ...]:
    """Read what a refusal kept, the servers with the most first."""
    found = [
        Blockers(
            server=text_of(server, 100),
            count=count,
            sample=tuple(text_of(name, 100) for name in named),
        )
        for server, count, named in blockers_of(facts)
    ]
    return tuple(sorted(found, key=lambda one: -one.count))
