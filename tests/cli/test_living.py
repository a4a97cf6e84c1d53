"""A journal that a controller writes, files cut off anywhere, and operations as they go on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from gymckpt.core.entry import Entry
from gymckpt.journal import Opening, open_journal
from tests.cli.command import RUN, answer, run
from tests.core.driver import START_TS, World


def _moved(entry: Entry, name: str) -> Entry:
    """Return an entry of another operation, as if it were made now."""
    by_s = time.time() - START_TS
    facts = dict(entry.facts)
    if "deadline_ts" in facts:
        facts["deadline_ts"] += by_s
    return attrs.evolve(entry, run="run-live", operation_id=name, ts=entry.ts + by_s, facts=facts)


@pytest.fixture
def written(journal: Path) -> Iterator[list[int]]:
    """Let another thread write operations into the journal as fast as it can, until the end."""
    count, over = [0], threading.Event()
    world = World("checkpoint", 3)
    world.verb("prepare")
    world.answer("prepare")

    def write() -> None:
        with open_journal(journal) as target:
            epoch = target.claim("run-live", holder="host:1")
            assert epoch == 1
            while not over.is_set():
                name = f"live-{count[0]}"
                entries = [_moved(entry, name) for entry in world.entries]
                opening = Opening(
                    run="run-live", operation_id=name, chart="checkpoint", chart_version=1
                )
                target.open_operation(opening, entries[:1])
                for entry in entries[1:]:
                    target.append([entry], expected_seq=entry.seq - 1, epoch=1)
                count[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    yield count
    over.set()
    thread.join()


def test_every_reading_command_works_while_a_controller_writes(written: list[int]) -> None:
    """Under write load each answer is whole, and the writer is never stopped by a reader."""
    before = written[0]
    for _ in range(3):
        assert run("ops", "-n", "5").exit_code in (0, 1)
        assert answer("show", "good")["state"] == "resumed"
        assert answer("explain", "stuck", code=1)["state"] == "preparing"
        assert run("replay", "good", "--verify").exit_code == 0
        assert run("export", "good").exit_code == 0
        assert run("chart", "--of", "good").exit_code == 0
        assert answer("prune", "--keep-last", "0", "--dry-run")["removed"]
        name = f"live-{max(0, written[0] - 1)}"
        found = answer("explain", name, "--run", "run-live", code=0)
        assert found["state"] in ("open", "preparing", "confirming")
    deadline_s = time.monotonic() + 20.0
    while written[0] <= before and time.monotonic() < deadline_s:
        run("ops", "--open", "-n", "3")
    assert written[0] > before


def test_files_cut_off_after_any_entry_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    """Whatever is left of a file, each command says what it holds and what is missing."""
    path = tmp_path / "refused.jsonl"
    run("export", "refused", "-o", str(path))
    lines = path.read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines)):
        for tail in (b"", lines[count][: len(lines[count]) // 2]):
            path.write_bytes(b"".join(lines[:count]) + tail)
            explained = run("explain", str(path), "--json")
            assert explained.exit_code == 1
            assert any(
                finding["code"] in ("cut_off", "unopened")
                for finding in json.loads(explained.stdout)["findings"]
            )
            nothing = count == 1
            for command in (["replay"], ["replay", "--step"], ["show"]):
                result = run(*command, str(path))
                assert result.exit_code == (2 if nothing else 1)
                assert "cut off" in result.stderr
                assert bool(result.stdout) is not nothing
    path.write_bytes(lines[0][:40])
    assert run("explain", str(path)).exit_code == 1


# --- watch --------------------------------------------------------------------------------------


def test_watch_follows_one_operation() -> None:
    """Each look is a line of JSON with n of m per call, blockers and leases; an end ends it."""
    result = run("watch", "good", "--json")
    [look] = [json.loads(line) for line in result.stdout.splitlines()]
    assert (look["schema"], look["state"], look["settled"]) == ("gymckpt.watch/1", "resumed", True)
    assert look["calls"]["prepare"] == {"total": 3, "answered": 3}
    result = run("watch", "stuck", "--json", "--interval", "0.1", "--for", "2")
    looks = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(looks) >= 2
    assert looks[0]["calls"]["prepare"] == {"total": 3, "answered": 2, "asked": 1}
    assert [one["instance"] for one in looks[0]["blocking"]] == ["tools/replica-1"]
    assert looks[0]["ts"] < looks[-1]["ts"]
    assert looks[0]["lease"]["instance"] == "tools/replica-0"


def test_watch_shows_what_is_open() -> None:
    """Without an id the open operations are listed; for people there is a bar per call."""
    looks = run("watch", "--json", "--for", "0").stdout.splitlines()
    [line] = json.loads(looks[0])["operations"]
    assert (line["operation_id"], line["run"]) == ("stuck", RUN)
    text = run("watch", "stuck", "--for", "0").stdout
    assert "2/3" in text
    assert "1 asked" in text
    assert "tools/replica-1" in text
    assert "stuck" in run("watch", "--for", "0").stdout
