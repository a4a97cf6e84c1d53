"""`discard`, `sweep`, `mark-gone`, `recover`: journaled with who and why, refused when wrong."""

from __future__ import annotations

import contextlib
import getpass
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gymckpt.core.replay import replay
from gymckpt.errors import Fenced
from gymckpt.journal import open_journal
from tests.cli.command import RUN, answer, run
from tests.diagnosis.stuck import BUSY

WHY = "the node of replica-1 was drained"


def state_of(journal: Path, name: str = "stuck") -> tuple[str, int, int]:
    """Return an operation's state, its epoch, and how many entries it has."""
    with open_journal(journal, read_only=True) as opened:
        row = opened.operation(RUN, name)
        assert row is not None
        replay(opened.read(RUN, name))
        return row.state, row.epoch, row.last_seq


def reasons(journal: Path) -> list[tuple[str, str, str]]:
    """Return (trigger, who, why) of every entry that a hand has made."""
    with open_journal(journal, read_only=True) as opened:
        return [
            (
                entry.trigger,
                entry.facts["operator"],
                entry.facts.get("why") or entry.facts["reason"],
            )
            for entry in opened.read(RUN, "stuck")
            if "operator" in entry.facts
        ]


def test_moves_to_the_end(journal: Path) -> None:
    """Discard, mark every instance gone: the operation ends, and the journal says who and why."""
    found = answer("discard", "stuck", "--reason", WHY, code=1)
    assert (found["schema"], found["found_in"], found["state"]) == (
        "gymckpt.move/1",
        "preparing",
        "discarding",
    )
    assert len(found["missing"]) == len(found["unconfirmed"]) == 3
    for place in range(3):
        found = answer(
            "mark-gone", "stuck", f"tools/replica-{place}", "--reason", WHY, code=int(place < 2)
        )
        assert len(found["unconfirmed"]) == 2 - place
    assert found["settled"]
    assert state_of(journal)[:2] == ("discarded", 5)
    made = reasons(journal)
    assert {why for _, _, why in made} == {WHY}
    assert {who.partition("@")[0] for _, who, _ in made} == {getpass.getuser()}
    assert [trigger for trigger, _, _ in made if trigger in ("discard", "die")] == [
        "discard",
        *["die"] * 3,
    ]
    text = run("explain", "stuck").stdout
    assert "gave it up by hand" in text
    assert WHY in " ".join(text.split())


def test_a_move_needs_a_reason(journal: Path) -> None:
    """Without --reason, or with one that is empty or no text, nothing is done."""
    before = state_of(journal)
    assert run("discard", "stuck").exit_code == 2
    assert run("discard", "stuck", "--reason", "  ").exit_code == 2
    assert run("discard", "stuck", "--reason", "why \udcff", "--force").exit_code == 2
    assert state_of(journal) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["discard", "good"], "has ended in 'resumed'"),
        (["sweep", "refused"], "has ended in 'discarded'"),
        (["mark-gone", "idle", BUSY], "has ended"),
        (["sweep", "stuck"], "nothing is being reopened"),
        (["mark-gone", "stuck", "tools/replica-9"], "did you mean"),
        (["discard", "nobody"], "there is no operation"),
    ],
)
def test_moves_that_make_no_sense_change_nothing(
    journal: Path, arguments: list[str], said: str
) -> None:
    """What is refused is exit code 2, says why, and leaves epoch and entries alone."""
    names = ["good", "refused", "idle", "stuck"]
    before = [state_of(journal, name) for name in names]
    result = run(*arguments, "--reason", WHY)
    assert result.exit_code == 2
    assert said in result.stderr
    assert [state_of(journal, name) for name in names] == before


@contextlib.contextmanager
def held(journal: Path, holder: str = "host-b:7:controller:1s") -> Iterator[None]:
    """Let another process hold the run, with a heartbeat every few hundredths of a second."""
    ended = threading.Event()
    with open_journal(journal) as opened:
        epoch = opened.claim(RUN, holder=holder, force=True)

        def beat() -> None:
            with contextlib.suppress(Fenced):
                while not ended.wait(0.03):
                    opened.heartbeat(RUN, epoch=epoch)

        beating = threading.Thread(target=beat)
        beating.start()
        try:
            yield
        finally:
            ended.set()
            beating.join()


def test_a_living_controller_is_left_alone_unless_forced(journal: Path) -> None:
    """While another process holds the run and is alive a move is refused; --force takes it away."""
    with held(journal):
        before = state_of(journal)
        refused = run("discard", "stuck", "--reason", WHY)
        assert refused.exit_code == 2
        assert "host-b:7" in refused.stderr
        assert "--force" in refused.stderr
        assert state_of(journal) == before
        forced = run("discard", "stuck", "--reason", WHY, "--force")
        assert forced.exit_code == 1, "no instance was asked"
        assert "ends every verb of that trainer" in " ".join(forced.stderr.split())
    assert state_of(journal)[0] == "discarding"
    assert state_of(journal)[1] == before[1] + 2, "the other process had claimed the run"


def test_a_silent_controller_is_taken_over(journal: Path) -> None:
    """A holder that gives no heartbeat for its own time is gone, and no force is needed."""
    with open_journal(journal) as opened:
        opened.claim(RUN, holder="host-b:7:controller:0.2s")
    assert run("discard", "stuck", "--reason", WHY).exit_code == 1
    assert state_of(journal)[0] == "discarding"


@pytest.mark.parametrize("first", [("discard", "stuck", "--reason", WHY), ("recover",)])
def test_a_command_gives_the_run_back(journal: Path, first: tuple[str, ...]) -> None:
    """Whoever comes after a command need not wait for it, and nothing is said to be driven."""
    answer(*first, code=1)
    [row] = answer("runs")["runs"]
    assert (row["run"], row["status"], row["holder"]) == (RUN, "free", "")
    told = answer("explain", "stuck", code=1)
    assert told["controller"]["status"] == "silent"
    assert told["controller"]["words"] == "nobody: no process holds the run"
    assert "nobody drives it any more" in told["waits_for"]
    with open_journal(journal) as opened:
        opened.claim(RUN, holder="host-b:7:controller")


def test_runs_says_who_holds_a_run(journal: Path) -> None:
    """Each run is listed with its holder, the moment of the claim and the last heartbeat."""
    assert "no process has ever held" in run("runs").stdout
    with held(journal):
        found = answer("runs")
        assert found["schema"] == "gymckpt.runs/1"
        [row] = found["runs"]
        assert (row["status"], row["holder"]) == ("held", "host-b:7:controller:1s")
        assert 0 <= row["silent_s"] < 5.0
        table = run("runs").stdout
        assert RUN in table
        assert "host-b:7:controller" in table
        told = answer("explain", "stuck", code=1)["controller"]["words"]
        assert "host-b:7:controller:1s holds the run now" in told


def test_release_gives_a_run_back(journal: Path) -> None:
    """A run whose holder is gone is released; a living holder keeps it, unless it is forced."""
    assert run("release", RUN).exit_code == 2
    with held(journal):
        refused = run("release", RUN)
        assert (refused.exit_code, "--force" in refused.stderr) == (2, True)
        found = answer("release", RUN, "--force", code=1)
    assert found["schema"] == "gymckpt.release/1"
    assert (found["was_held_by"], found["unfinished"]) == ("host-b:7:controller:1s", 1)
    assert answer("runs")["runs"][0]["status"] == "free"
    again = run("release", RUN)
    assert (again.exit_code, "nobody holds it" in again.stdout) == (1, True)
    assert "gymckpt recover --run" in again.stdout


def test_recover_settles_what_nobody_drives(journal: Path) -> None:
    """Recovery gives the hanging operation up; without handles that is said, as JSON too."""
    result = run("recover")
    assert result.exit_code == 1
    assert "stuck  preparing → discarding  unconfirmed" in result.stdout
    assert "there is no handle" in result.stdout
    found = answer("recover", "--run", RUN, code=1)
    assert found["schema"] == "gymckpt.recover/1"
    assert [one["operation_id"] for one in found["operations"]] == ["stuck"]
    assert found["operations"][0]["missing"] == [f"tools/replica-{place}" for place in range(3)]
    with held(journal):
        left = answer("recover", code=1)
    assert left["operations"][0]["outcome"] == "held"


def test_recovery_of_nothing_is_well(journal: Path) -> None:
    """Where everything has settled there is nothing to do, and exit code 0."""
    run("discard", "stuck", "--reason", WHY)
    for place in range(3):
        run("mark-gone", "stuck", f"tools/replica-{place}", "--reason", WHY, "--force")
    assert state_of(journal)[0] == "discarded"
    result = run("recover")
    assert (result.exit_code, result.stdout.strip()) == (0, "nothing is unfinished")


@pytest.mark.parametrize("actor", ["replica-1", "tools/replica-1=", "no instance=actor"])
def test_malformed_actors_are_refused(journal: Path, actor: str) -> None:
    """--actor wants INSTANCE=NAME, and says so before anything is touched."""
    before = state_of(journal)
    result = run("discard", "stuck", "--reason", WHY, "--actor", actor)
    assert result.exit_code == 2
    assert state_of(journal) == before
