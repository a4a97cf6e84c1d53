"""
What is asked of an operation that comes from a file before a journal takes it.

A file may say anything. Its history must be one that its chart gives, and every fact that a later
reader would act on, or that a page would show as a name, must be of its type and keep its rule:
instance and operation ids, roots, episodes, counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any, cast

from gymckpt.core.entry import Entry
from gymckpt.core.operation import OperationState
from gymckpt.core.replay import replay
from gymckpt.episodes import (
    EnvironmentEpisode,
    require_instance_id,
    require_operation_id,
    require_rollout_id,
)
from gymckpt.errors import InvariantViolated, JournalCorrupt, ReplayDiverged, show, text_of
from gymckpt.journal.records import OperationRow
from gymckpt.wording import visible

__all__ = ["require_sound"]


def require_sound(row: OperationRow, entries: Sequence[Entry]) -> None:
    """
    Pass if an operation is one that this release could have written.

    Args:
        row: What is said of it.
        entries: Its entries; may end anywhere.

    Raises:
        JournalCorrupt: It is not; the error names the entry and the fact.
    """
    where = f"operation {entries[0].operation_id!r:.150}"
    try:
        operation = replay(entries)
    except (ReplayDiverged, InvariantViolated) as error:
        raise JournalCorrupt(
            f"{where} does not follow its chart: {text_of(error)[:600]}"
        ) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"{type(error).__name__}: {text_of(error)}"
        raise JournalCorrupt(f"{where} cannot be replayed: {said[:600]}") from error
    lived = (operation.chart, operation.chart_version, operation.settled)
    if lived != (row.chart, row.chart_version, row.settled):
        raise JournalCorrupt(
            f"{where}: its entries are of chart {lived[0]!r} v{lived[1]}, settled: {lived[2]}; the "
            f"header says {row.chart!r:.80} v{row.chart_version}, settled: {row.settled}"
        )
    for seq, name, check in _checks(operation, entries):
        try:
            check()
        except (TypeError, ValueError) as error:
            said = f"entry {seq}, fact {name!r}: {text_of(error)[:300]}"
            raise JournalCorrupt(f"{where}, {said}") from error


def _checks(
    operation: OperationState, entries: Sequence[Entry]
) -> Iterator[tuple[int, str, Callable[[], object]]]:
    """Yield (entry, fact, what raises TypeError or ValueError if it breaks its rule)."""
    opening, names = operation.opening, frozenset(operation.instances)
    call = opening.get("call")
    yield 1, "instances", lambda: [require_instance_id(name) for name in operation.instances]
    if "wire_id" in opening:
        yield 1, "wire_id", lambda: require_operation_id(opening["wire_id"], "wire id")
    if operation.chart == "restore" or "source_checkpoint_id" in opening:
        yield (
            1,
            "source_checkpoint_id",
            lambda: require_operation_id(
                opening.get("source_checkpoint_id"), "source checkpoint id"
            ),
        )
    if operation.chart == "restore" or call == "retire" or "inventory" in opening:
        yield (
            1,
            "inventory",
            lambda: _lists(opening.get("inventory"), names, EnvironmentEpisode.from_mapping),
        )
    if operation.chart == "restore":
        yield 1, "root", lambda: _root(opening.get("root"))
    if call == "forget" or "rollouts" in opening:
        yield 1, "rollouts", lambda: _lists(opening.get("rollouts"), names, require_rollout_id)
    if "actors" in opening:
        yield 1, "actors", lambda: _by_instance(opening["actors"], names, _text)
    for entry in entries:
        if entry.instance is None and "root" in entry.facts:
            yield entry.seq, "root", partial(_root, entry.facts["root"])
        if entry.instance is None and "offered" in entry.facts:
            yield entry.seq, "offered", partial(_by_instance, entry.facts["offered"], names, _count)


def _by_instance(value: object, names: frozenset[str], check: Callable[[Any], object]) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"is an object by instance, not {show(value)}")
    for instance, item in cast("Mapping[object, object]", value).items():
        if instance not in names:
            raise ValueError(f"names {show(instance)}, which is not an instance of the operation")
        check(item)


def _lists(value: object, names: frozenset[str], check: Callable[[Any], object]) -> None:
    def each(items: object) -> None:
        if not isinstance(items, list):
            raise TypeError(f"is a list for each instance, not {show(items)}")
        for item in cast("list[object]", items):
            check(item)

    _by_instance(value, names, each)


def _root(value: object) -> None:
    if not isinstance(value, str) or visible(value) != value or "\n" in value:
        raise ValueError(f"is a path of characters that can be seen, not {show(value)}")
    if not PurePath(value).is_absolute() or ".." in PurePath(value).parts:
        raise ValueError(f"is an absolute path, as a controller records it, not {show(value)}")


def _text(value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"is a text for each instance, not {show(value)}")


def _count(value: object) -> None:
    if type(value) is not int or value < 0:
        raise ValueError(f"is a count for each instance, not {show(value)}")
