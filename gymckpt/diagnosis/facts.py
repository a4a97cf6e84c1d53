"""What the facts of an entry say in words; they may be any JSON, also hostile one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from gymckpt.chart import Chart, load_chart
from gymckpt.core.entry import Entry
from gymckpt.diagnosis.words import count_of
from gymckpt.errors import ChartError, sample, text_of

__all__ = [
    "Facts",
    "blockers_of",
    "chart_of",
    "note_of",
    "number_of",
    "strings_of",
    "unsavable_of",
    "unsavable_words",
]

Facts = Mapping[str, Any]

NOTE_MAX = 600


def chart_of(opening: Entry) -> Chart | None:
    """
    Return the chart that an operation runs; None where this release ships none of its name.

    Args:
        opening: The first entry of its history.
    """
    try:
        return load_chart(str(opening.facts.get("chart", "")))
    except (ChartError, ValueError):
        return None


def note_of(facts: Facts) -> str:
    """
    Return what came of an ask in words: a failure, what is in the way, or what is not saved.

    Args:
        facts: Those of the entry.
    """
    failure = facts.get("failure")
    if isinstance(failure, dict):
        found = cast("dict[str, Any]", failure)
        return text_of(f"{found.get('type', 'error')}: {found.get('text', '')}", NOTE_MAX)
    blocked = [
        f"{server}: {count} in the way: {sample(named, count)}"
        for server, count, named in blockers_of(facts)
    ]
    if blocked:
        return text_of("; ".join(blocked), NOTE_MAX)
    count, named = unsavable_of(facts)
    if count:
        return text_of(f"{count} cannot be saved and start over: {sample(named, count)}", NOTE_MAX)
    return text_of(facts["outcome"], NOTE_MAX) if "outcome" in facts else ""


def unsavable_of(facts: Facts) -> tuple[int, tuple[str, ...]]:
    """
    Return how many episodes a commit could not save, and some of them with the reason.

    Args:
        facts: Those of the entry.
    """
    unsavable = facts.get("unsavable")
    found = cast("dict[str, Any]", unsavable) if isinstance(unsavable, dict) else {}
    listed = found.get("sample")
    items = cast("list[object]", listed) if isinstance(listed, list) else []
    fields = [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]
    named = tuple(f"{one.get('episode')}: {one.get('reason')}" for one in fields)
    count = found.get("count")
    return count if type(count) is int else len(named), named


def blockers_of(facts: Facts) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """
    Yield each server that a refusal names, with how many things are in the way and some of them.

    Args:
        facts: Those of the entry.
    """
    blockers = facts.get("blockers")
    if not isinstance(blockers, dict):
        return
    for server, raw in cast("dict[str, Any]", blockers).items():
        found = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
        named = strings_of(found.get("sample"))
        count = found.get("count")
        yield server, count if type(count) is int else len(named), named


def unsavable_words(entries: Iterable[Entry]) -> str:
    """
    Say which episodes the instances of an operation could not save; empty where there is none.

    Args:
        entries: Its history.
    """
    total, reasons = 0, list[str]()
    for entry in entries:
        if entry.call == "commit" and entry.trigger == "answer":
            count, named = unsavable_of(entry.facts)
            total += count
            reasons += (f"{entry.instance}: {one}" for one in named)
    what = f"{count_of(total, 'episode')} could not be saved and start over after a crash"
    return text_of(f"{what}: {sample(reasons, total)}", 1_000) if total else ""


def strings_of(value: object) -> tuple[str, ...]:
    """
    Return the strings in a list; nothing where it is no list.

    Args:
        value: A part of some facts.
    """
    items = cast("list[object]", value) if isinstance(value, list) else []
    return tuple(item for item in items if isinstance(item, str))


def number_of(value: object) -> float | None:
    """
    Return a number; None where it is none, or not finite.

    Args:
        value: A part of some facts.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
