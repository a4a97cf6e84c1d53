"""What becomes of an operation whose chart this release does not have in that version."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import attrs
import pytest

from gymckpt import moves
from gymckpt.core.entry import Entry
from gymckpt.core.operation import machine_of
from gymckpt.diagnosis.explain import explain
from gymckpt.diagnosis.replay import replay
from gymckpt.errors import ReplayDiverged
from gymckpt.journal import MemoryJournal, Opening
from gymckpt.journal.portable import export_operation, read_export
from gymckpt.recovery import Recovered, recover
from gymckpt.testing.fakes import FakeInstance

HISTORY = Path(__file__).parent / "0.1.0" / "checkpoint-parked.jsonl"
SAID = "of version 2 when the operation was opened, this release has 1; use one that has that"


def newer(entries: tuple[Entry, ...], **facts: object) -> MemoryJournal:
    """Return a journal in which an unfinished operation was opened by a newer release."""
    first = attrs.evolve(entries[0], facts={**entries[0].facts, "chart_version": 2, **facts})
    opening = Opening(
        run=first.run,
        operation_id=first.operation_id,
        chart=str(first.facts["chart"]),
        chart_version=2,
    )
    journal = MemoryJournal()
    journal.claim(first.run, holder="newer")
    journal.open_operation(opening, [first])
    journal.append(entries[1:], expected_seq=1, epoch=1)
    return journal


def recovered(journal: MemoryJournal) -> tuple[Recovered, list[FakeInstance]]:
    """Let this release recover a journal, by force, and return what came of its one operation."""
    instances = [FakeInstance(), FakeInstance()]
    handles = {f"tools/replica-{index}": one for index, one in enumerate(instances)}
    (found,) = asyncio.run(recover(journal, handles, run="run", force=True))
    return found, instances


@pytest.mark.parametrize("chart", ["checkpoint", "a_new_one"])
def test_recovery_leaves_it_to_who_knows_it(chart: str, caplog: pytest.LogCaptureFixture) -> None:
    """What it cannot read it records nothing of, and fences where it knows what a resume means."""
    journal = newer(read_export(HISTORY).entries, chart=chart)
    before = journal.operation("run", "ckpt-1")
    with caplog.at_level(logging.ERROR, "gymckpt"):
        found, instances = recovered(journal)
    assert (found.outcome, found.state) == ("unreadable", "parked")
    assert (SAID if chart == "checkpoint" else "'a_new_one'") in found.reason
    assert "ckpt-1" in caplog.text
    assert journal.operation("run", "ckpt-1") == before
    known = chart == "checkpoint"
    sent = [[call.name for call in one.calls] for one in instances]
    assert sent == ([["resume"], ["resume"]] if known else [[], []])
    assert bool(found.fenced) == known


def test_operator_is_told() -> None:
    """A move by hand is refused with the versions, and changes nothing."""
    journal = newer(read_export(HISTORY).entries)
    before = journal.operation("run", "ckpt-1")
    by = moves.By(operator="ana@ops", reason="it hangs")
    with pytest.raises(ReplayDiverged, match=SAID):
        asyncio.run(moves.discard(journal, "run", "ckpt-1", by=by, force=True))
    assert journal.operation("run", "ckpt-1") == before


def test_it_is_exported_and_looked_at_all_the_same() -> None:
    """Its entries can be carried to the release that reads them; what is told says what to do."""
    journal = newer(read_export(HISTORY).entries)
    export = read_export(export_operation(journal, "run", "ckpt-1"))
    assert export.complete
    assert export.header.chart_version == 2
    divergence = replay(export.entries).divergence
    assert divergence is not None
    assert divergence.seq == 1
    assert SAID in divergence.found
    assert SAID in explain(export.entries).summary


def test_older_versions_are_refused_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chart whose version is raised no longer reads what was written before, and says so."""
    machine = machine_of("checkpoint")
    monkeypatch.setattr(machine, "chart", attrs.evolve(machine.chart, version=2))
    divergence = replay(read_export(HISTORY).entries).divergence
    assert divergence is not None
    assert "of version 1 when the operation was opened, this release has 2" in divergence.found
