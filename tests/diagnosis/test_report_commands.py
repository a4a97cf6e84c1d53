"""`gymckpt report` and `gymckpt trace`, over journals and exported files."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gymckpt.cli import app
from gymckpt.journal import open_journal
from gymckpt.journal.portable import export_operation
from tests.diagnosis.many import fill
from tests.diagnosis.markup import data_in, faults_of, text_in


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a journal of eight operations."""
    place = tmp_path_factory.mktemp("journal") / "journal.sqlite3"
    with open_journal(place) as made:
        fill(made, 8)
    return place


def run(*arguments: object) -> tuple[int, str, str]:
    """Run a command; return its exit code and what it wrote to both outputs."""
    found = CliRunner().invoke(app, [str(one) for one in arguments])
    return found.exit_code, found.stdout, found.stderr


def test_report_of_an_operation_is_written(journal: Path, tmp_path: Path) -> None:
    """The page is in the file, and the standard output stays empty."""
    file = tmp_path / "step-7.html"
    code, out, _ = run("report", "step-7", "-o", file, "--journal", journal)
    assert (code, out) == (0, "")
    page = file.read_text(encoding="utf-8")
    assert faults_of(page) == []
    assert "step-7" in text_in(page)
    assert "ActorDiedError" in text_in(page)
    assert [one.name for one in tmp_path.iterdir()] == ["step-7.html"]


def test_report_goes_to_the_standard_output(journal: Path) -> None:
    """Without a file, and with the journal from the environment's variable, the page is printed."""
    found = CliRunner().invoke(app, ["report", "step-3"], env={"GYMCKPT_JOURNAL": str(journal)})
    assert found.exit_code == 0
    assert faults_of(found.stdout) == []


def test_report_of_all_runs(journal: Path, tmp_path: Path) -> None:
    """With --runs it is the history of all operations, or of those of one run."""
    file = tmp_path / "runs.html"
    assert run("report", "--runs", "-o", file, "--journal", journal)[0] == 0
    assert len(data_in(file.read_text(encoding="utf-8"))["operations"]) == 8
    arguments = ("report", "--runs", "--run", "no-such-run", "-o", file, "--journal", journal)
    assert run(*arguments)[0] == 0
    assert data_in(file.read_text(encoding="utf-8"))["operations"] == []


def test_trace_is_written(journal: Path, tmp_path: Path) -> None:
    """The trace is JSON with a process per instance and one for the operation."""
    file = tmp_path / "step-0.json"
    assert run("trace", "step-0", "-o", file, "--journal", journal)[0] == 0
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    assert sum(event["name"] == "process_name" for event in events) == 4
    assert json.loads(run("trace", "step-0", "--journal", journal)[1])["traceEvents"] == events


def test_file_that_was_cut_off_is_drawn(journal: Path, tmp_path: Path) -> None:
    """An export that is cut off in the middle has both pictures, and what is missing is said."""
    with open_journal(journal, read_only=True) as opened:
        whole = b"".join(export_operation(opened, "llama-grpo-7", "step-0"))
    file = tmp_path / "cut.jsonl"
    file.write_bytes(whole[: len(whole) // 2])
    for command in ("report", "trace"):
        code, out, err = run(command, file)
        assert code == 0
        assert "cut off" in err
        assert "step-0" in out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("report",), "--runs"),
        (("report", "step-0", "--runs"), "--runs"),
        (("report", "step-00"), "did you mean"),
        (("trace", "step-00"), "did you mean"),
        (("report", "step-0", "-o", "no/such/directory/x.html"), "No such file"),
    ],
)
def test_what_cannot_be_answered_is_said(
    journal: Path, arguments: tuple[str, ...], expected: str
) -> None:
    """A wrong command line, operation or place leaves with 2 and a message, and prints nothing."""
    code, out, err = run(*arguments, "--journal", journal)
    assert (code, out) == (2, "")
    assert expected in err


def test_file_that_cannot_be_written_is_left_as_it_was(journal: Path, tmp_path: Path) -> None:
    """Where the operation is not found, a report that was there stays."""
    file = tmp_path / "report.html"
    file.write_text("before", encoding="utf-8")
    assert run("report", "nothing", "-o", file, "--journal", journal)[0] == 2
    assert file.read_text(encoding="utf-8") == "before"
