"""`export`, `import`, `prune`: nothing is lost on the way, and nothing unfinished ever goes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import attrs
import pytest

from gymckpt.errors import OperationIdUsed
from gymckpt.journal import Opening, open_journal
from tests.cli.command import RUN, answer, run


def kept(journal: Path) -> list[str]:
    """Return the operations that a journal holds."""
    with open_journal(journal, read_only=True) as opened:
        return [row.operation_id for row in opened.operations()]


def test_an_export_comes_back_whole(journal: Path, tmp_path: Path) -> None:
    """What was exported is in the other journal entry for entry; a second time it is refused."""
    path, other = tmp_path / "good.jsonl", tmp_path / "other.sqlite3"
    assert run("export", "good", "-o", str(path)).exit_code == 0
    found = answer("import", str(path), "-j", str(other))
    assert (found["schema"], found["complete"], found["settled"]) == (
        "gymckpt.import/1",
        True,
        True,
    )
    with open_journal(journal) as first, open_journal(other) as second:
        assert second.read(RUN, "good") == first.read(RUN, "good")
        row, before = second.operation(RUN, "good"), first.operation(RUN, "good")
        assert row is not None
        assert before is not None
        assert row.imported
        assert row == attrs.evolve(before, owner=f"imported:{before.owner}")
    again = run("import", str(path), "-j", str(other))
    assert (again.exit_code, again.stdout) == (2, "")


def test_an_export_goes_to_the_standard_output_as_well(tmp_path: Path) -> None:
    """Without a file the very same bytes are printed."""
    path = tmp_path / "good.jsonl"
    run("export", "good", "-o", str(path))
    assert run("export", "good").stdout_bytes == path.read_bytes()


def test_a_file_that_was_cut_off_is_imported_only_when_told(tmp_path: Path) -> None:
    """An incomplete file is refused, or taken as far as it goes and said to be unfinished."""
    path, other = tmp_path / "good.jsonl", str(tmp_path / "other.sqlite3")
    run("export", "good", "-o", str(path))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:6]))
    refused = run("import", str(path), "-j", other)
    assert refused.exit_code == 2
    assert "cut off" in refused.stderr
    taken = run("import", str(path), "-j", other, "--incomplete")
    assert taken.exit_code == 0
    assert "5 entries" in taken.stdout
    assert "unfinished" in taken.stderr


def test_prune_keeps_the_last_and_whatever_is_unfinished(journal: Path) -> None:
    """Settled operations go, oldest first; the one that hangs stays, whatever is asked."""
    dry = answer("prune", "--keep-last", "0", "--dry-run")
    assert dry["schema"] == "gymckpt.prune/1"
    assert [one["operation_id"] for one in dry["removed"]] == [
        "good",
        "refused",
        "idle",
        "good-again",
    ]
    assert [one["operation_id"] for one in dry["unfinished"]] == ["stuck"]
    assert len(kept(journal)) == 5
    result = run("prune", "--keep-last", "2")
    assert "3 removed: settled, not among the last 2 of their run" in result.stdout
    assert kept(journal) == ["good-again", "stuck"]
    result = run("prune", "--keep-last", "0")
    assert kept(journal) == ["stuck"]
    assert "kept, it is unfinished: stuck" in result.stdout


def test_prune_by_age(journal: Path) -> None:
    """Only what has had no entry since then goes."""
    assert answer("prune", "--older-than", "3d")["removed"] == []
    assert len(answer("prune", "--older-than", "20m", "--run", "run-9")["removed"]) == 0
    found = answer("prune", "--older-than", "20m")
    assert len(found["removed"]) == 4
    assert kept(journal) == ["stuck"]


def test_a_pruned_id_stays_used(journal: Path) -> None:
    """Nobody can open an operation under an id that was pruned."""
    run("prune", "--keep-last", "0")
    opening = Opening(run=RUN, operation_id="good", chart="checkpoint", chart_version=1)
    with open_journal(journal) as opened:
        first = attrs.evolve(opened.read(RUN, "stuck")[0], operation_id="good")
        epoch = opened.claim(RUN, holder="me")
        with pytest.raises(OperationIdUsed):
            opened.open_operation(opening, [attrs.evolve(first, epoch=epoch)])


def test_prune_wants_to_know_what_to_keep(journal: Path) -> None:
    """Without a rule nothing is removed."""
    result = run("prune")
    assert result.exit_code == 2
    assert "--keep-last" in result.stderr
    assert len(kept(journal)) == 5


def test_what_was_imported_is_shown_as_that_and_left_alone(journal: Path, tmp_path: Path) -> None:
    """Each command says so; none counts it as without a controller, and none drives it."""
    path, other = tmp_path / "stuck.jsonl", str(tmp_path / "other.sqlite3")
    run("export", "stuck", "-o", str(path))
    assert answer("import", str(path), "-j", other)["imported"] is True
    [line] = answer("ops", "-j", other)["operations"]
    assert (line["imported"], line["alive"]) == (True, None)
    assert "preparing (imported)" in run("ops", "-j", other).stdout
    assert not any(one["imported"] for one in answer("ops", code=1)["operations"])
    shown = run("show", "stuck", "-j", other).stdout
    assert ", imported" in shown
    explained = answer("explain", "stuck", "-j", other)
    assert explained["moves"] == explained["next"] == []
    assert explained["controller"]["status"] == "ended"
    assert "imported" in [finding["code"] for finding in explained["findings"]]
    assert "imported, for reading" in run("explain", "stuck", "-j", other).stdout
    for move in ("discard", "sweep"):
        refused = run(move, "stuck", "-j", other, "--reason", "why", "--force")
        assert refused.exit_code == 2
        assert "never driven" in refused.stderr
    assert run("recover", "-j", other, "--force").stdout == "nothing is unfinished\n"
    assert "stuck" in run("watch", "stuck", "-j", other).stdout
    [removed] = answer("prune", "--keep-last", "0", "-j", other)["removed"]
    assert removed["operation_id"] == "stuck"


def test_a_file_with_a_wrong_fact_is_shown_but_not_imported(tmp_path: Path) -> None:
    """What no controller writes can be looked at where it is, and never gets into a journal."""
    path, other = tmp_path / "good.jsonl", tmp_path / "other.sqlite3"
    run("export", "good", "-o", str(path))
    header, *entries, _footer = path.read_bytes().splitlines()
    body = b"\n".join([header, *(line.replace(b'"root":"/', b'"root":"') for line in entries), b""])
    digest = hashlib.sha256(body).hexdigest()
    end = {"end": "gymckpt-operation", "count": len(entries), "sha256": digest}
    path.write_bytes(body + json.dumps(end).encode() + b"\n")
    assert run("show", str(path)).exit_code == 0
    refused = run("import", str(path), "-j", str(other))
    assert refused.exit_code == 1
    assert "fact 'root'" in refused.stderr
    assert kept(other) == []
