"""What the facts of an entry say in words; they may be any JSON, also hostile one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

from gymckpt.chart import Chart, load_chart
from gymckpt.core.entry import Entry
from gymckpt.errors import ChartError, sample, text_of

__all__ = ["Facts", "blockers_of", "chart_of", "note_of", "number_of", "strings_of"]

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
    Return what came of an ask in words: a failure, or what is in the way.

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
    return text_of(facts["outcome"], NOTE_MAX) if "outcome" in facts else ""


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
