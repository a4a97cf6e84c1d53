"""`replay` and `chart --of`: the way an operation took, and the way it would have taken."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from gymckpt.core.entry import Entry
from gymckpt.journal import MemoryJournal, open_journal
from gymckpt.journal.portable import write_export
from tests.cli.command import RUN, answer, run
from tests.diagnosis.stuck import BUSY


def entries(journal: Path, name: str) -> tuple[Entry, ...]:
    """Return the history of an operation of the sample."""
    with open_journal(journal, read_only=True) as opened:
        return opened.read(RUN, name)


def test_replay_tells_where_it_leads(journal: Path) -> None:
    """Without options: the state after the last entry, every call's tally, and the verdict."""
    result = run("replay", "good")
    assert result.exit_code == 0
    for said in ("resumed", "3 answered", "✓", f"{len(entries(journal, 'good'))} entries follow"):
        assert said in result.stdout
    found = answer("replay", "good")
    assert (found["schema"], found["divergence"]) == ("gymckpt.replay/1", None)
    assert found["state"]["state"] == "resumed"
    assert found["entries"] == found["taken"] == len(entries(journal, "good"))


def test_replay_stops_where_it_is_told(journal: Path) -> None:
    """--to N gives the state after entry N, whichever it is."""
    for entry in entries(journal, "good"):
        found = answer("replay", "good", "--to", str(entry.seq))
        assert (found["taken"], found["state"]["seq"]) == (entry.seq, entry.seq)
    assert "1 of" in run("replay", "good", "--to", "1").stdout


def test_steps_are_the_entries_with_the_states_after_them(journal: Path) -> None:
    """--step shows each entry; as JSON with the whole state after it."""
    found = answer("replay", "refused", "--step")
    assert [step["seq"] for step in found["steps"]] == list(
        range(1, len(entries(journal, "refused")) + 1)
    )
    assert found["steps"][-1]["after"]["settled"]
    text = run("replay", "refused", "--step").stdout
    assert f"{BUSY} prepare #1 refused" in text


def test_verify_finds_the_first_entry_that_does_not_fit(journal: Path, tmp_path: Path) -> None:
    """A forged history is exit code 1, with both sides of the first entry that no chart gives."""
    whole = list(entries(journal, "good"))
    place = next(entry.seq for entry in whole if entry.dest == "sealing") - 1
    whole[place] = attrs.evolve(whole[place], trigger="discard", dest="sealing")
    with open_journal(journal, read_only=True) as opened:
        row = opened.operation(RUN, "good")
    assert row is not None
    forged, path = MemoryJournal(), tmp_path / "forged.jsonl"
    forged.insert_operation(row, whole)
    write_export(forged, RUN, "good", path)
    result = run("replay", str(path), "--verify")
    assert result.exit_code == 1
    assert f"entry {place + 1} of {len(whole)} is the first that does not fit" in result.stdout
    assert "committing -> discarding by discard" in result.stdout
    assert "discard: committing → sealing" in result.stdout
    found = answer("replay", str(path), code=1)
    assert found["divergence"]["seq"] == place + 1
    assert found["taken"] == place
    assert run("explain", str(path)).exit_code == 1
    assert run("show", str(path)).exit_code == 0


def test_what_if_shows_both_ways(journal: Path) -> None:
    """A dropped commit reply leads to discarded, and what was so before stays as it was."""
    answered = [
        entry.seq
        for entry in entries(journal, "good")
        if (entry.call, entry.trigger) == ("commit", "answer")
    ]
    found = answer("replay", "good", "--what-if", f"drop={answered[0]}")
    assert found["schema"] == "gymckpt.whatif/1"
    assert [phase["state"] for phase in found["was"]][-1] == "resumed"
    assert [phase["state"] for phase in found["becomes"]][-3:] == [
        "committing",
        "discarding",
        "discarded",
    ]
    assert found["entries_after"][0]["seq"] == found["from_seq"] + 1 == answered[0]
    text = run("replay", "good", "--what-if", f"drop={answered[0]}").stdout
    assert "never comes" in text
    assert "did not answer commit within 35 s" in text
    late = run("replay", "good", "--what-if", f"delay={answered[0]}:20").stdout
    assert "committing 20" in late
    crash = run("replay", "good", "--what-if", f"crash={answered[0]}:60").stdout
    assert "1 min later another one goes on" in crash
    assert "discarded" in crash


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ("drop", "is no edit"),
        ("drop=x", "is no edit"),
        ("drop=1:5", "is no edit"),
        ("delay=5", "is no edit"),
        ("delay=5:-1", "is no edit"),
        ("delay=5:nan", "is no edit"),
        ("explode=5", "is no edit"),
        ("drop=1", "records no reply"),
        ("drop=999", "there is no entry 999"),
        ("crash=0", "there is no entry 0"),
    ],
)
def test_impossible_edits_are_refused(edit: str, said: str) -> None:
    """What cannot be changed is exit code 2 with the reason."""
    result = run("replay", "good", "--what-if", edit)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_nothing_comes_after_the_end(journal: Path) -> None:
    """A crash after the last entry of a settled operation is refused."""
    last = entries(journal, "good")[-1].seq
    assert "had settled" in run("replay", "good", "--what-if", f"crash={last}").stderr


# --- chart --of ---------------------------------------------------------------------------------


def test_chart_of_an_operation_marks_its_path() -> None:
    """The states that it was in are marked, and the present one apart."""
    table = run("chart", "--of", "refused").stdout
    assert "▶ discarded" in table
    assert "● preparing" in table
    assert "● committing" not in table
    mermaid = run("chart", "checkpoint", "--of", "refused", "--format", "mermaid").stdout
    assert "class open,preparing,discarding visited" in mermaid
    assert "class discarded current" in mermaid
    found = json.loads(run("chart", "--of", "stuck", "--format", "json").stdout)
    assert found["of"]["current"] == "preparing"
    assert [visit["trigger"] for visit in found["of"]["path"]] == ["open", "prepare"]


def test_chart_of_another_operation_is_refused() -> None:
    """A chart that the operation does not run cannot show its path."""
    result = run("chart", "restore", "--of", "good")
    assert result.exit_code == 2
    assert "runs chart 'checkpoint', not 'restore'" in result.stderr
