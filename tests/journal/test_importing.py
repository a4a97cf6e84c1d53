"""
What is imported is checked, marked, and never driven.

The files are the golden histories, which real coordinators have lived, and edits of them with a
footer that fits, as somebody who means ill would make them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from gymckpt import GymCheckpointCoordinator, moves
from gymckpt.errors import JournalCorrupt, JournalError, OperationIdUsed, TransitionRefused
from gymckpt.journal import Journal, MemoryJournal
from gymckpt.journal.portable import (
    Export,
    export_operation,
    import_operation,
    read_export,
    row_of,
)
from gymckpt.recovery import recover
from tests.fakes import FakeActor, FakeShardSet

GOLDEN = sorted(Path(__file__).parents[1].joinpath("histories").glob("*/*.jsonl"))
EXPORTS = {path.stem: path.read_bytes() for path in GOLDEN if "cut-off" not in path.stem}


def named(*, chart: str, fact: str | None = None, settled: bool | None = None) -> str:
    """Return the first golden history that is of a kind."""
    for name, data in EXPORTS.items():
        export = read_export(data)
        facts = {key for entry in export.entries for key in entry.facts}
        meant = export.header.chart == chart and settled in (None, export.header.settled)
        if meant and (fact is None or fact in facts):
            return name
    raise AssertionError(f"there is no history of {chart} with {fact}")


def edited(
    data: bytes, edit: Callable[[dict[str, Any]], None], header: Mapping[str, Any] | None = None
) -> bytes:
    """Return an export with every entry edited, and with a footer that fits."""
    first, *lines, _footer = data.splitlines()
    rows = [orjson.loads(first) | dict(header or {})]
    for line in lines:
        row = orjson.loads(line)
        edit(row)
        rows.append(row)
    body = b"".join(orjson.dumps(row) + b"\n" for row in rows)
    digest = hashlib.sha256(body).hexdigest()
    end = {"end": "gymckpt-operation", "count": len(lines), "sha256": digest}
    return body + orjson.dumps(end) + b"\n"


def cut(name: str, count: int) -> Export:
    """Return a golden export that has only its first entries."""
    return read_export(b"".join(EXPORTS[name].splitlines(keepends=True)[: count + 1]))


# --- what is taken ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPORTS)
def test_what_releases_have_written_is_taken_and_marked(name: str) -> None:
    """Every golden history is imported as it is, but for the mark, and exported as it was."""
    journal, export = MemoryJournal(), read_export(EXPORTS[name])
    row = import_operation(journal, export)
    assert row.imported
    assert (row.owner, row_of(export).imported) == (f"imported:{export.header.owner}", False)
    assert journal.operations() == (row,)
    assert journal.read(row.run, row.operation_id) == export.entries
    again = b"".join(export_operation(journal, row.run, row.operation_id)).splitlines()[1:-1]
    assert again == EXPORTS[name].splitlines()[1:-1]


def test_an_import_of_an_export_of_an_import_is_the_same(journal: Journal) -> None:
    """From the first import on, every export is byte for byte what it was; no marks pile up."""
    first, second = MemoryJournal(), MemoryJournal()
    row = import_operation(first, read_export(EXPORTS[named(chart="checkpoint")]))
    exported = b"".join(export_operation(first, row.run, row.operation_id))
    for other in (second, journal):
        assert import_operation(other, read_export(exported)) == row
        assert b"".join(export_operation(other, row.run, row.operation_id)) == exported


@pytest.mark.parametrize("owner", ["imported:host:1", "imported:imported:host:1"])
def test_an_owner_that_looks_imported_is_marked_all_the_same(owner: str) -> None:
    """A file cannot say that it was not imported, nor hide who drove it."""
    data = edited(EXPORTS[named(chart="checkpoint")], lambda _: None, {"owner": owner})
    assert import_operation(MemoryJournal(), read_export(data)).imported


def test_an_incomplete_export_is_imported_only_if_that_is_allowed(journal: Journal) -> None:
    """A cut export is refused with what is missing, or taken as the unfinished history it is."""
    name = named(chart="checkpoint", settled=True)
    whole = read_export(EXPORTS[name]).entries
    with pytest.raises(ValueError, match=rf"3 of {len(whole)} entries.*allow"):
        import_operation(journal, cut(name, 3))
    assert journal.operations() == ()
    row = import_operation(journal, cut(name, 3), allow_incomplete=True)
    assert journal.operations(unfinished=True) == (row,)
    assert (row.last_seq, row.settled, row.imported) == (3, False, True)
    assert journal.read(row.run, row.operation_id) == whole[:3]


def test_an_export_without_its_footer_has_still_settled(journal: Journal) -> None:
    """Whether the operation had settled is known as soon as all its entries are there."""
    name = named(chart="checkpoint", settled=True)
    count = len(read_export(EXPORTS[name]).entries)
    assert import_operation(journal, cut(name, count), allow_incomplete=True).settled


def test_an_export_without_entries_cannot_be_imported(journal: Journal) -> None:
    """A header alone is no history."""
    with pytest.raises(ValueError, match="at least one entry"):
        import_operation(journal, cut(named(chart="checkpoint"), 0), allow_incomplete=True)
    assert journal.operations() == ()


def test_an_id_that_is_used_is_not_imported_over(journal: Journal) -> None:
    """An import never changes an operation that is there, be it the same one."""
    export = read_export(EXPORTS[named(chart="checkpoint")])
    row = import_operation(journal, export)
    with pytest.raises(OperationIdUsed):
        import_operation(journal, export)
    assert journal.operations() == (row,)


# --- what is refused ----------------------------------------------------------------------------


def opening_says(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return an edit that puts a value into the opening entry's facts; None takes one out."""

    def edit(row: dict[str, Any]) -> None:
        if row["seq"] == 1:
            row["facts"] = {key: at for key, at in row["facts"].items() if key != name}
            row["facts"] |= {} if value is None else {name: value}

    return edit


def wherever(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return an edit that replaces a fact wherever the operation's own entries have it."""

    def edit(row: dict[str, Any]) -> None:
        if row.get("inst") is None and name in row["facts"]:
            row["facts"][name] = value

    return edit


EPISODE = {"rollout_id": "r-1", "attempt": 0}
WRONG: dict[str, tuple[str, str, Callable[[dict[str, Any]], None]]] = {
    "root: relative": ("checkpoint", "root", wherever("root", "snapshots/7")),
    "root: up and down": ("checkpoint", "root", wherever("root", "/data/../etc")),
    "root: a number": ("checkpoint", "root", wherever("root", 7)),
    "root: empty": ("checkpoint", "root", wherever("root", "")),
    "root: a NUL": ("checkpoint", "root", wherever("root", "/data/\0")),
    "root: turned around": ("checkpoint", "root", wherever("root", "/data/\u202egnp")),
    "root: of a restore": ("restore", "root", opening_says("root", "here")),
    "root: none": ("restore", "root", opening_says("root", None)),
    "inventory: none": ("restore", "inventory", opening_says("inventory", None)),
    "inventory: a list": ("restore", "inventory", opening_says("inventory", [])),
    "inventory: unknown": (
        "restore", "inventory", opening_says("inventory", {"x/replica-9": [EPISODE]}),
    ),
    "source: a path": (
        "restore", "source_checkpoint_id", opening_says("source_checkpoint_id", "../x"),
    ),
    "source: none": (
        "restore", "source_checkpoint_id", opening_says("source_checkpoint_id", None),
    ),
    "wire id: a path": ("sweep", "wire_id", opening_says("wire_id", "../x")),
    "actors: numbers": ("checkpoint", "actors", opening_says("actors", {"x": 7})),
    "offered: negative": ("checkpoint", "offered", wherever("offered", {"x": -1})),
    "instances: none": ("checkpoint", "", opening_says("instances", [])),
    "instances: a text": ("checkpoint", "", opening_says("instances", "tools/replica-0")),
    "settings: none": ("checkpoint", "", opening_says("settings", None)),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_fact_that_no_controller_writes_is_refused(
    wrong: tuple[str, str, Callable[[dict[str, Any]], None]],
) -> None:
    """The error names the fact, and nothing is recorded."""
    chart, fact, edit = wrong
    name = named(chart=chart, fact=fact if fact in ("root", "offered") else None)
    journal, data = MemoryJournal(), edited(EXPORTS[name], edit)
    assert data != edited(EXPORTS[name], lambda _: None)
    said = rf"fact '{fact}'|{fact} is a text" if fact else "operation"
    with pytest.raises(JournalCorrupt, match=said):
        import_operation(journal, read_export(data))
    assert journal.operations() == ()


@pytest.mark.parametrize(
    "episode",
    [
        {"rollout_id": "../../etc", "attempt": 0},
        {"rollout_id": "r-1-a2", "attempt": 0},
        {"rollout_id": 7, "attempt": 0},
        {"rollout_id": "r-1", "attempt": -1},
        {"rollout_id": "r-1", "attempt": True},
        {"rollout_id": "r-1"},
        "r-1",
        None,
    ],
    ids=str,
)
def test_an_inventory_names_episodes(episode: Any) -> None:
    """Whatever a recovery would retire is an episode, or the file is refused."""
    data = EXPORTS[named(chart="restore")]
    [instance, *_] = read_export(data).entries[0].facts["instances"]
    wrong = edited(data, opening_says("inventory", {instance: [episode]}))
    with pytest.raises(JournalCorrupt, match="fact 'inventory'"):
        import_operation(MemoryJournal(), read_export(wrong))


@pytest.mark.parametrize("name", EXPORTS)
def test_a_renamed_fact_of_an_opening_is_refused_or_means_nothing(name: str) -> None:
    """As one flipped bit in a name does: what replays without it, replays to the same state."""
    export = read_export(EXPORTS[name])
    for fact, value in export.entries[0].facts.items():

        def edit(row: dict[str, Any], fact: str = fact, value: Any = value) -> None:
            opening_says(fact, None)(row)
            opening_says(f"{fact}x", value)(row)

        journal = MemoryJournal()
        try:
            row = import_operation(journal, read_export(edited(EXPORTS[name], edit)))
        except JournalCorrupt:
            assert journal.operations() == ()
        else:
            assert row.state == row_of(export).state
            required = {"chart", "instances", "settings", "inventory", "rollouts", "call"}
            assert fact not in required


@pytest.mark.parametrize(
    "header", [{"chart": "restore"}, {"chart_version": 7}, {"settled": False}], ids=str
)
def test_a_header_that_its_entries_belie_is_refused(header: dict[str, Any]) -> None:
    """What the row would say of an operation follows from its entries."""
    data = edited(EXPORTS[named(chart="checkpoint", settled=True)], lambda _: None, header)
    with pytest.raises(JournalCorrupt, match="the header says"):
        import_operation(MemoryJournal(), read_export(data))


@pytest.mark.parametrize("name", EXPORTS)
def test_a_history_that_no_chart_gives_is_refused(name: str) -> None:
    """One entry that leads elsewhere, and the whole file is none that a controller has written."""
    last = len(read_export(EXPORTS[name]).entries)

    def edit(row: dict[str, Any]) -> None:
        if row["seq"] == last:
            row["dst"] = "elsewhere"

    with pytest.raises(JournalCorrupt, match=r"follow its chart|cannot be replayed"):
        import_operation(MemoryJournal(), read_export(edited(EXPORTS[name], edit)))


# --- what is never driven -----------------------------------------------------------------------


def imported_unfinished(journal: Journal) -> list[tuple[str, str]]:
    """Import the beginnings of all golden histories; return their runs and ids."""
    rows = []
    for name, data in EXPORTS.items():

        def rename(row: dict[str, Any], run: str = name) -> None:
            row["run"] = run

        count = max(2, len(read_export(data).entries) * 2 // 3)
        lines = edited(data, rename, {"run": name}).splitlines(keepends=True)
        export = read_export(b"".join(lines[: count + 1]))
        rows.append(import_operation(journal, export, allow_incomplete=True))
    return [(row.run, row.operation_id) for row in rows if not row.settled]


def test_no_claim_and_no_append_moves_what_was_imported(journal: Journal) -> None:
    """Whoever asks, forced or not, the store says that it is for reading, and changes nothing."""
    found = imported_unfinished(journal)
    assert len(found) > 3
    before = journal.operations()
    for run, operation_id in found:
        entries = journal.read(run, operation_id)
        epoch = journal.claim(run, holder="host:1", force=True)
        following = attrs.evolve(entries[-1], seq=len(entries) + 1, epoch=epoch)
        with pytest.raises(JournalError, match=r"imported.*never driven"):
            journal.append([following], expected_seq=len(entries), epoch=epoch)
    assert journal.operations() == before


async def test_no_recovery_and_no_intervention_touches_what_was_imported(
    journal: Journal,
) -> None:
    """Nothing is sent and nothing is recorded; moves say why."""
    found = imported_unfinished(journal)
    before = journal.operations()
    actors = [FakeActor() for _ in range(4)]
    shards = FakeShardSet(*actors)
    handles = shards.checkpoint_handles
    by = moves.By(operator="ana@ops", reason="to see")
    for run, operation_id in found:
        assert await recover(journal, handles, run=run, force=True) == ()
        coordinator = GymCheckpointCoordinator(
            shards, control_timeout_s=1.0, prepare_timeout_s=1.0, journal=journal, run=run
        )
        assert await coordinator.recover(force=True) == ()
        asked = {"by": by, "handles": handles, "force": True}
        for move in (moves.discard, moves.sweep):
            with pytest.raises(TransitionRefused, match=r"imported.*never driven"):
                await move(journal, run, operation_id, **asked)
        with pytest.raises(TransitionRefused, match=r"imported.*never driven"):
            await moves.mark_gone(journal, run, operation_id, "tools/replica-0", **asked)
    assert [call for actor in actors for call in actor.calls] == []
    assert journal.operations() == before


def test_what_was_imported_may_be_removed_in_any_state(journal: Journal) -> None:
    """Nobody is waiting for it, so that it is no unfinished business."""
    for run, operation_id in imported_unfinished(journal):
        journal.remove(run, operation_id)
        assert journal.operation(run, operation_id) is None
