"""
Golden histories: what each release has written replays, and is explained, by every later one.

`pytest tests/histories --rewrite` adds the histories of new recipes and writes the summaries anew.
It never writes a history again: see README.md.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path

import pytest

from gymckpt.chart import chart_names
from gymckpt.diagnosis.explain import explain
from gymckpt.diagnosis.replay import replay
from gymckpt.errors import JournalCorrupt
from gymckpt.journal.portable import Export, read_export
from tests.cli.command import run as gymckpt
from tests.core.planted import planted
from tests.core.steps import Transition, all_transitions, transitions_of
from tests.histories.recipes import RECIPES, made

HERE = Path(__file__).parent
HISTORIES = sorted(HERE.glob("*/*.jsonl"))
DIGESTS = HERE / "DIGESTS.txt"
SUMMARIES = HERE / "SUMMARIES.txt"

MEANING = (
    "this history was written by a released gymckpt and does not follow today's charts and "
    "invariants any more: operations in the field could be neither recovered nor explained. Undo "
    "the change, or raise the chart's version and let the old one be read as it was; see "
    "tests/histories/README.md"
)


def name_of(path: Path) -> str:
    """Return the release and the name of a history."""
    return path.relative_to(HERE).with_suffix("").as_posix()


def lines_of(path: Path) -> dict[str, str]:
    """Return what a file of `name: text` lines says."""
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(line.split(": ", 1) for line in lines)


def write_lines(path: Path, lines: dict[str, str]) -> None:
    """Write a file of `name: text` lines."""
    path.write_text("".join(f"{name}: {text}\n" for name, text in sorted(lines.items())))


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def problem_of(export: Export) -> str:
    """Return where a history leaves today's charts and what that means; empty if it does not."""
    diverged = replay(export.entries).divergence
    if diverged is None:
        return ""
    where = f"entry {diverged.seq}: {diverged.rule} gives {diverged.expected}, not {diverged.found}"
    return f"{where}\n{MEANING}"


def summary_of(export: Export) -> str:
    """Return where a history ends, and how it is explained in one line."""
    state = replay(export.entries).state
    assert state is not None
    header = export.header
    told = explain(
        export.entries, owner=header.owner, epoch=header.epoch, cut=export.problem
    ).summary
    return f"{len(export.entries)} entries, {state.state}. {told}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let every test that takes a history be run with each of them."""
    if "history" in metafunc.fixturenames:
        metafunc.parametrize("history", HISTORIES, ids=map(name_of, HISTORIES))


# --- writing ------------------------------------------------------------------------------------


def test_every_recipe_has_its_history(rewrites: bool) -> None:
    """Each recipe has a history of some release; only `--rewrite` makes the ones that lack."""
    known = {path.stem for path in HERE.glob("*/*.jsonl")}
    for name in sorted(RECIPES.keys() - known) if rewrites else ():
        path = HERE / importlib.metadata.version("gymckpt") / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(made(RECIPES[name]))
        write_lines(DIGESTS, lines_of(DIGESTS) | {name_of(path): digest_of(path)})
        export = read_export(path)
        write_lines(SUMMARIES, lines_of(SUMMARIES) | {name_of(path): summary_of(export)})
    assert {path.stem for path in HERE.glob("*/*.jsonl")} == RECIPES.keys()


def test_histories_stay_as_they_were_written() -> None:
    """No history was changed, removed or written again since it was added."""
    found = {name_of(path): digest_of(path) for path in HERE.glob("*/*.jsonl")}
    assert found == lines_of(DIGESTS), "a golden history stays for ever: take it back"


# --- reading ------------------------------------------------------------------------------------


def test_history_replays(history: Path) -> None:
    """A history of any release follows today's charts and invariants, entry by entry."""
    assert problem_of(read_export(history)) == ""


def test_history_cut_anywhere_replays(history: Path) -> None:
    """A history that ends after any of its entries is a legal one, and can be explained (S6)."""
    entries = read_export(history).entries
    states = replay(entries).states
    for count in range(1, len(entries) + 1):
        told = explain(entries[:count])
        assert told.state == states[count - 1].state
        assert told.summary


def test_history_is_explained(history: Path, rewrites: bool) -> None:
    """What is said in one line of a history is what SUMMARIES.txt says."""
    name, found = name_of(history), summary_of(read_export(history))
    known = lines_of(SUMMARIES)
    if rewrites and known.get(name) != found:
        write_lines(SUMMARIES, known | {name: found})
    else:
        assert found == known.get(name), "if this is meant, run: pytest tests/histories --rewrite"


def test_command_verifies_the_history(history: Path) -> None:
    """`gymckpt replay FILE --verify` says the same; of a file that was cut off, that it was."""
    result = gymckpt("replay", str(history), "--verify")
    assert "entries follow today's charts and invariants" in result.output
    assert ("cut off" in result.output) == (not read_export(history).complete)
    assert result.exit_code == (0 if read_export(history).complete else 1)


@pytest.mark.parametrize("chart", [name for name in chart_names() if name != "participant"])
def test_histories_tell_of_most_transitions(chart: str) -> None:
    """The histories of all releases hold most transitions of each chart that is journaled."""
    taken = set[Transition]()
    for path in HISTORIES:
        entries = read_export(path).entries
        state = replay(entries).state
        assert state is not None
        taken |= transitions_of(state, entries[1:])
    every = all_transitions(chart)
    assert len(taken & every) > len(every) / 2


# --- the net can fail ---------------------------------------------------------------------------


def test_changed_chart_is_told_what_it_breaks() -> None:
    """Without an edge that a release has taken a history breaks, and is told what that means."""
    with planted("edge_missing"):
        problems = {name_of(path): problem_of(read_export(path)) for path in HISTORIES}
    broken = {name: problem for name, problem in problems.items() if problem}
    assert {name.split("/")[1] for name in broken} == {
        "checkpoint-lease-lost",
        "checkpoint-lease-presumed-lost",
    }
    for problem in broken.values():
        assert "cannot take 'lose_lease' in state 'parked'" in problem
        assert problem.endswith(MEANING)


def test_changed_history_is_refused(tmp_path: Path) -> None:
    """A history in which one byte was changed is no history."""
    data = HISTORIES[0].read_bytes()
    path = tmp_path / "changed.jsonl"
    path.write_bytes(data.replace(b"replica-1", b"replica-7", 1))
    with pytest.raises(JournalCorrupt, match="it was changed"):
        read_export(path)
