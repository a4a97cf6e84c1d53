"""What there is, and how it is: `ops`, `show`, `explain`, and where they look."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest

from gymckpt.diagnosis.explain import explain
from gymckpt.errors import Fenced, OperationIdUsed
from gymckpt.journal import open_journal
from gymckpt.journal.portable import write_export
from gymckpt.unread import UNREAD
from tests.cli.command import AGO_S, RUN, answer, run, unread, write_journal
from tests.diagnosis.stuck import BUSY, Scene
from tests.fakes import HANG

OPERATIONS = ["good", "refused", "idle", "good-again", "stuck"]


def ids(*arguments: str, code: int = 0) -> list[str]:
    """Return the operations that `ops` lists."""
    return [line["operation_id"] for line in answer("ops", *arguments, code=code)["operations"]]


# --- ops ----------------------------------------------------------------------------------------


def test_ops_lists_the_latest_last_and_finds_who_is_silent() -> None:
    """Every operation is there with its state; one without a controller is exit code 1."""
    found = answer("ops", code=1)
    assert found["schema"] == "gymckpt.ops/1"
    lines = {line["operation_id"]: line for line in found["operations"]}
    assert list(lines) == OPERATIONS
    assert {name: line["status"] for name, line in lines.items()} == {
        "good": "done",
        "refused": "failed",
        "idle": "ordinary",
        "good-again": "done",
        "stuck": "going_on",
    }
    stuck = lines["stuck"]
    assert (stuck["state"], stuck["answered"], stuck["instances"]) == ("preparing", 2, 3)
    assert (stuck["worst"]["instance"], stuck["worst"]["state"]) == (BUSY, "asked")
    assert stuck["alive"] is False
    assert lines["good"]["alive"] is None
    assert "prepare failed on 1 instance" in lines["refused"]["reason"]
    assert lines["refused"]["worst"]["instance"] == BUSY


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--open"], ["stuck"]),
        (["--failed"], ["refused"]),
        (["--limit", "2"], ["good-again", "stuck"]),
        (["--since", "30m"], ["stuck"]),
        (["--since", "1d", "-n", "1"], ["stuck"]),
        (["--run", RUN], OPERATIONS),
        (["--run", "run-9"], []),
    ],
)
def test_ops_leaves_out_what_is_not_asked_for(arguments: list[str], expected: list[str]) -> None:
    """Each option keeps exactly what it says."""
    assert ids(*arguments, code=int("stuck" in expected)) == expected


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_ops_fits_its_terminal(columns: int) -> None:
    """No line is longer than the terminal is wide, and every operation is named."""
    result = run("ops", columns=columns)
    assert max(map(len, result.stdout.splitlines())) <= columns
    assert [name for name in OPERATIONS if name not in result.stdout] == []
    assert "gymckpt explain stuck" in result.stderr


def test_ops_of_nothing_says_so(tmp_path: Path) -> None:
    """An empty journal is no error, and no table."""
    open_journal(tmp_path / "empty.sqlite3").close()
    result = run("ops", "-j", str(tmp_path / "empty.sqlite3"))
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no operation" in result.stderr


# --- show ---------------------------------------------------------------------------------------


def test_show_has_a_row_per_instance_the_worst_on_top() -> None:
    """The timeline names every instance, the critical path, and who cost most."""
    found = answer("show", "refused")
    assert found["schema"] == "gymckpt.show/1"
    assert found["instances"][0]["instance"] == BUSY
    assert found["instances"][0]["troubled"]
    outcomes = [ask["outcome"] for ask in found["instances"][0]["asks"]]
    assert outcomes == ["refused", "answered"]
    assert found["course"]["costliest"][0][0] == BUSY
    legs = {leg["state"]: leg for leg in found["course"]["legs"]}
    assert (legs["preparing"]["instance"], legs["preparing"]["outcome"]) == (BUSY, "refused")
    text = run("show", "refused").stdout
    assert "critical path" in text
    assert "is the cost of tools/replica-1 alone" in text
    assert "r-7, r-8" in text


def test_show_says_without_colours_who_was_no_longer_waited_for(tmp_path: Path) -> None:
    """After a controller died in a commit, nothing of it counts as answered or as the body's."""

    async def scene(run: Scene) -> None:
        for actor in run.actors:
            actor.always["commit"] = HANG
        task = run.begun("cp")
        await asyncio.sleep(10.0)
        await run.controller().recover(force=True)
        assert isinstance(await task, Fenced)

    path = write_journal(tmp_path / "killed.sqlite3", scene)
    legs = {leg["state"]: leg for leg in answer("show", "cp", "-j", str(path))["course"]["legs"]}
    assert (legs["committing"]["waits_on"], legs["committing"]["instance"]) == ("nothing", None)
    assert legs["parked"]["waits_on"] == "body"
    lines = run("show", "cp", "-j", str(path)).stdout.splitlines()
    rows = [line for line in lines if line.startswith("tools/replica-")]
    assert len(rows) == 3
    assert all(line.count("»") == 2 for line in rows)
    assert any("» given up" in line for line in lines)
    assert sum("(the body)" in line for line in lines) == 1
    out = tmp_path / "report.html"
    run("report", "cp", "-j", str(path), "-o", str(out))
    assert "3 no longer waited for" in out.read_text()
    assert "all well" not in out.read_text()


@pytest.mark.parametrize("columns", [80, 140])
@pytest.mark.parametrize("name", OPERATIONS)
def test_show_fits_its_terminal(name: str, columns: int) -> None:
    """No line is longer than the terminal is wide."""
    result = run("show", name, columns=columns)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= columns
    assert all(f"replica-{place}" in result.stdout for place in range(3))


def test_show_leaves_out_what_is_not_slow(tmp_path: Path) -> None:
    """Of many instances the slowest are shown, and the others counted."""

    async def scene(run: Scene) -> None:
        await run.checkpoint("many")

    path = write_journal(tmp_path / "many.sqlite3", scene, instances=40)
    text = run("show", "many", "-j", str(path)).stdout
    assert "20 more instances" in text
    assert "tools/replica-39" in text
    assert "tools/replica-1 " not in text
    assert "tools/replica-1 " in run("show", "many", "-j", str(path), "-n", "40").stdout


# --- explain ------------------------------------------------------------------------------------


def test_explain_says_what_the_library_says(journal: Path) -> None:
    """The JSON is the library's explanation of the same entries, row and moment."""
    with open_journal(journal, read_only=True) as opened:
        entries = opened.read(RUN, "refused")
        row = opened.operation(RUN, "refused")
        earlier = [opened.read_of(RUN, "good", [BUSY])]
    assert row is not None
    found = answer("explain", "refused", "--at", str(row.updated_ts + 60.0), code=1)
    expected = explain(
        entries,
        now_ts=row.updated_ts + 60.0,
        history=earlier,
        owner=row.owner,
        epoch=row.epoch,
    )
    assert found == json.loads(json.dumps(expected.to_json()))


def test_explain_of_nothing_takes_what_needs_it_most() -> None:
    """Without an id it is the unfinished operation that nobody drives."""
    result = run("explain")
    assert result.exit_code == 1
    undriven, way_out = "no process holds the run", "gymckpt recover --run run-1"
    for said in ("stuck", undriven, BUSY, way_out, "has not answered"):
        assert said in result.stdout
    assert answer("explain", code=1)["operation_id"] == "stuck"


@pytest.mark.parametrize(("name", "code"), [("good", 0), ("idle", 0), ("refused", 1), ("stuck", 1)])
def test_explain_s_exit_code_says_whether_to_look(name: str, code: int) -> None:
    """What ended as it should is 0; what failed or hangs is 1."""
    assert run("explain", name).exit_code == code
    assert run("explain", name, columns=80).exit_code == code


def test_explain_names_what_an_operator_may_do() -> None:
    """Each move is a command that can be copied, with what it does or why it is refused."""
    text = run("explain", "stuck", columns=300).stdout
    assert "gymckpt discard stuck --run run-1 --reason WHY" in text
    assert f"gymckpt mark-gone stuck {BUSY} --run run-1 --reason WHY" in text
    assert "not sweep: nothing is being reopened yet" in text


# --- where they look ----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["show", "explain", "replay", "export", "chart --of"])
def test_unknown_operation_exits_2_with_the_closest(command: str) -> None:
    """An id that is not there is exit code 2, and the one that was meant is named."""
    result = run(*command.split(), "stcuk")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "did you mean 'stuck'?" in result.stderr


def test_an_id_of_two_runs_needs_its_run(journal: Path) -> None:
    """Where two runs have the id, both are named, and --run chooses."""
    with open_journal(journal) as opened:
        row, entries = opened.operation(RUN, "good"), opened.read(RUN, "good")
        assert row is not None
        other = [attrs.evolve(entry, run="run-2") for entry in entries]
        opened.insert_operation(attrs.evolve(row, run="run-2"), other)
        with pytest.raises(OperationIdUsed):
            opened.insert_operation(attrs.evolve(row, run="run-2"), other)
    result = run("show", "good")
    assert result.exit_code == 2
    assert "run-1, run-2; add --run" in result.stderr
    assert run("show", "good", "--run", "run-2").exit_code == 0
    assert run("show", "good", "--run", "run-3").exit_code == 2


@pytest.mark.parametrize("command", ["ops", "show stuck", "explain stuck", "explain", "watch"])
@pytest.mark.parametrize(("content", "code"), [(None, 2), (b"", 1), (b"no journal at all", 1)])
def test_a_journal_that_is_none_is_said_so(
    tmp_path: Path, command: str, content: bytes | None, code: int
) -> None:
    """No file cannot be answered (2); a file that is no journal is a problem (1)."""
    path = tmp_path / "other.sqlite3"
    if content is not None:
        path.write_bytes(content)
    result = run(*command.split(), "-j", str(path))
    assert (result.exit_code, result.stdout) == (code, "")
    assert str(path) in result.stderr
    assert path.exists() == (content is not None)


def test_an_exported_file_serves_as_well(journal: Path, tmp_path: Path) -> None:
    """A file answers like its journal, as of its last entry, by its path or as the journal."""
    path = tmp_path / "stuck.jsonl"
    with open_journal(journal, read_only=True) as opened:
        write_export(opened, RUN, "stuck", path)
        last_ts = opened.read(RUN, "stuck")[-1].ts
    for arguments in ([str(path)], ["stuck", "-j", str(path)]):
        found = answer("explain", *arguments)
        assert (found["state"], found["as_of_ts"]) == ("preparing", last_ts)
        assert found["controller"]["status"] == "unknown"
        assert answer("show", *arguments)["state"] == "preparing"
        assert run("replay", *arguments).exit_code == 0
    assert ids("-j", str(path)) == ["stuck"]
    late = answer("explain", str(path), "--at", str(last_ts + AGO_S), code=1)
    assert late["controller"]["status"] == "silent"
    assert run("discard", "stuck", "-j", str(path), "--reason", "x").exit_code == 2


def test_reading_needs_neither_ray_nor_much_time(journal: Path) -> None:
    """A fresh process that explains imports no Ray, no Gymnasium and no coordinator."""
    script = (
        "import sys; sys.argv = ['gymckpt', 'explain', 'stuck', '-j', sys.argv[1]]\n"
        "from gymckpt.cli import app\n"
        "try:\n    app()\nexcept SystemExit as end:\n    print(end.code)\n"
        "print([name for name in ('ray', 'gymnasium', 'gymckpt.coordinator', 'psycopg')"
        " if name in sys.modules])"
    )
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script, str(journal)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-2:] == ["1", "[]"]
    assert time.monotonic() - began_s < 30.0


@pytest.mark.parametrize(
    "arguments",
    ["ops", "ops --json", "show good", "explain good", "export good", "watch", "chart checkpoint"],
)
def test_a_reader_that_went_away_is_no_problem_that_was_found(arguments: str) -> None:
    """`… | head` ends a command quietly, with the code that a shell gives for it."""
    script = "from gymckpt.cli import app; app()"
    assert unread("-c", script, *arguments.split()) == (UNREAD, b"")


def test_a_command_without_an_output() -> None:
    """A wrong command line is one also where the standard output is closed."""
    script = "import sys; sys.stdout = None; from gymckpt.cli import app; app()"
    command = [sys.executable, "-c", script, "no-command"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
