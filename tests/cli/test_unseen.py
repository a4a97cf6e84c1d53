"""
What somebody else wrote into a failure reaches every place where people read, and commands none.

The text is put into what instances answer and into an operator's reason; the places are the errors
and their notes, the log, the journal, every command for people, the pages and the trace.
"""

from __future__ import annotations

import asyncio
import json
import logging
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from gymckpt.cli.common import print_json
from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.journal import open_journal
from gymckpt.replies import GymCheckpointPrepareSummary
from gymckpt.standins import notes_of
from tests.cli.command import RUN, run, silence, write_journal
from tests.diagnosis.stuck import Scene
from tests.fakes import HANG, Late

UNSEEN = "".join(
    char
    for char in map(chr, range(0x2100))
    if unicodedata.category(char) in {"Cc", "Cf", "Zl", "Zp"}
)
EVIL = f"\u202ebad\x1b[2J\x1b]0;owned\x07{UNSEEN}\ud800\U000e0041\ufeffnews"
ARGUMENT = EVIL.replace("\0", "").replace("\ud800", "\udcff")
"""The same as a command line can hold it."""
NAMES = ("failed", "blocked", "stuck")


def unseen(text: str, *, allowed: str = "\n") -> set[str]:
    """Return what a text holds that is no character to be seen."""
    odd = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return {char for char in text if unicodedata.category(char) in odd} - set(allowed)


async def evil_scene(run: Scene, told: list[BaseException | None]) -> None:
    """Let one operation fail with the text, one be blocked by it, and one hang."""
    run.busy.scripts["prepare"] = [GymCheckpointUnavailable(EVIL)]
    run.busy.scripts["resume"] = [ConnectionError(EVIL), ConnectionError(EVIL)]
    told.append(await run.checkpoint("failed"))
    summary = GymCheckpointPrepareSummary(False, {f"agent {EVIL}": (EVIL, "r-1")}, ())
    run.busy.scripts["prepare"] = [Late(5.0, summary)]
    told.append(await run.checkpoint("blocked"))
    run.busy.always["prepare"] = HANG
    run.begun("stuck")
    await asyncio.sleep(30.0)


@pytest.fixture
def told(journal: Path, caplog: pytest.LogCaptureFixture) -> list[BaseException | None]:
    """Play the scene into the default journal, give one operation up, and return the errors."""
    errors: list[BaseException | None] = []
    journal.unlink()
    with caplog.at_level(logging.DEBUG, "gymckpt"):
        write_journal(journal, lambda scene: evil_scene(scene, errors))
    silence(journal)
    assert run("discard", "stuck", "--reason", f"the node {EVIL.replace(chr(0xD800), '')}")
    return errors


def test_no_error_note_or_log_line_commands_a_terminal(
    told: list[BaseException | None], caplog: pytest.LogCaptureFixture
) -> None:
    """Errors name the failure with its text spelled out, and so do their notes and the log."""
    for error in told:
        assert error is not None
        said = "\n".join([str(error), *notes_of(error)])
        assert r"bad" in said
        assert r"\u202e" in said
        assert unseen(said, allowed="\n") == set()
    assert unseen("".join(record.getMessage() for record in caplog.records), allowed="") == set()


def test_no_failure_in_the_journal_holds_what_cannot_be_seen(
    told: list[BaseException | None], journal: Path
) -> None:
    """What an instance said is kept as it is shown."""
    del told
    with open_journal(journal, read_only=True) as opened:
        texts = [
            str(value)
            for name in ("failed", "blocked")
            for entry in opened.read(RUN, name)
            for value in texts_in(dict(entry.facts))
        ]
    assert any(r"\u202e" in text for text in texts)
    assert unseen("".join(texts), allowed="") == set()


def texts_in(value: Any) -> list[str]:
    """Return every text in plain data, keys included."""
    if isinstance(value, dict):
        return [text for pair in value.items() for one in pair for text in texts_in(one)]
    if isinstance(value, list | tuple):
        return [text for one in value for text in texts_in(one)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize(
    "command",
    [
        ["ops"],
        *(["show", name] for name in NAMES),
        *(["explain", name] for name in NAMES),
        *(["replay", name] for name in NAMES),
        *(["watch", name, "--for", "0"] for name in NAMES),
        ["watch", "--for", "0"],
        ["chart", "--of", "failed"],
        ["chart", "--of", "failed", "--format", "mermaid"],
        ["show", ARGUMENT],
        ["show", "failed", "--run", ARGUMENT],
        ["chart", ARGUMENT],
        ["chart", f"/{ARGUMENT}.toml"],
        ["verify", f"/{ARGUMENT}"],
        ["import", f"/{ARGUMENT}.jsonl"],
        ["ops", "--journal", f"sqlite:////{ARGUMENT}"],
    ],
)
@pytest.mark.parametrize("columns", [60, 160])
def test_no_command_prints_what_cannot_be_seen(
    told: list[BaseException | None], command: list[str], columns: int
) -> None:
    """Whatever a journal or the command line says, a terminal is told only what people can see."""
    del told
    result = run(*command, columns=columns)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.output
    assert unseen(result.output) == set()


@pytest.mark.parametrize("name", NAMES)
def test_pages_and_traces_hold_only_what_can_be_seen(
    told: list[BaseException | None], name: str
) -> None:
    """The page and the trace have the text spelled out, in their markup and in their data."""
    del told
    page, trace = run("report", name).stdout, json.loads(run("trace", name).stdout)
    assert unseen(page) == set()
    assert unseen("".join(texts_in(trace))) == set()
    runs = run("report").stdout
    assert unseen(runs) == set()


@pytest.mark.parametrize("command", ["ops", "show", "explain", "replay", "watch"])
def test_answers_for_programs_are_plain(told: list[BaseException | None], command: str) -> None:
    """What is printed as JSON has no character that a terminal would obey."""
    del told
    about = {"ops": [], "watch": ["stuck", "--for", "0"]}.get(command, ["stuck"])
    result = run(command, *about, "--json")
    assert result.stdout.isascii()
    assert unseen(result.stdout) == set()
    assert json.loads(result.stdout)["schema"].startswith("gymckpt.")


def test_json_keeps_the_text_and_escapes_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A program that parses an answer has every character back."""
    print_json({"reason": EVIL})
    printed = capsys.readouterr().out
    assert unseen(printed) == set()
    assert json.loads(printed) == {"reason": EVIL}
