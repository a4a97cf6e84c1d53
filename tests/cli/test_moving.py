"""`discard`, `sweep`, `mark-gone`, `recover`: journaled with who and why, refused when wrong."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from gymckpt.core.replay import replay
from gymckpt.core.settings import OWNER_TIMEOUT_S
from gymckpt.diagnosis.explain import explain
from gymckpt.errors import OperationHeld
from gymckpt.journal import open_journal
from tests.cli.command import RUN, answer, run, silence
from tests.diagnosis.stuck import BUSY
from tests.journal.files import edit

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
        silence(journal)
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


def test_a_living_controller_is_left_alone_unless_forced(journal: Path) -> None:
    """While its owner gives signs of life a move is refused; --force takes it away."""
    answer("discard", "stuck", "--reason", WHY, code=1)  # the command itself owns it now
    before = state_of(journal)
    refused = run("sweep", "stuck", "--reason", WHY)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert "discard" in run("discard", "stuck", "--reason", WHY).stderr
    assert state_of(journal) == before
    assert run("sweep", "stuck", "--reason", WHY, "--force").exit_code == 1
    assert state_of(journal)[1] == before[1] + 1


@pytest.mark.parametrize("first", [("discard", "stuck", "--reason", WHY), ("recover",)])
def test_whoever_comes_after_a_command_waits_a_few_seconds(
    journal: Path, first: tuple[str, ...]
) -> None:
    """An operation that a command has left is free soon, without force: the command is over."""
    later = "UPDATE heartbeats SET beat_ts = beat_ts - 5.1"
    if first == ("recover",):
        silence(journal)
    answer(*first, code=1)
    with open_journal(journal) as opened, pytest.raises(OperationHeld, match=":command"):
        opened.claim(RUN, "stuck", owner="controller:1", stale_s=OWNER_TIMEOUT_S)
    edit(journal, later)
    assert run("sweep", "stuck", "--reason", WHY).exit_code == 1
    edit(journal, later)
    with open_journal(journal) as opened:
        opened.claim(RUN, "stuck", owner="controller:1", stale_s=OWNER_TIMEOUT_S)
    edit(journal, later)
    refused = run("sweep", "stuck", "--reason", WHY)
    assert refused.exit_code == 2, "a controller is given longer"
    assert "controller:1" in refused.stderr


def test_a_command_that_is_over_drives_nothing(journal: Path) -> None:
    """What a move has left unconfirmed is not said to go on by itself: its command has ended."""
    answer("discard", "stuck", "--reason", WHY, code=1)
    with open_journal(journal, read_only=True) as opened:
        entries = opened.read(RUN, "stuck")
        owner = opened.operations()[-1].owner
    assert owner.endswith(":command")
    last_ts, epoch = entries[-1].ts, entries[-1].epoch
    told = explain(entries, now_ts=last_ts + 6.0, owner=owner, epoch=epoch, silent_s=6.0)
    assert told.controller.status == "silent"
    over = f"an operator's command, {owner}, which is over: its last sign of life is 6 s old"
    assert told.controller.words == over
    assert "nobody drives it any more" in told.waits_for
    told = explain(entries, now_ts=last_ts + 4.0, owner=owner, epoch=epoch, silent_s=4.0)
    assert told.controller.status == "unknown"
    told = explain(entries, now_ts=last_ts + 1.0, owner=owner, epoch=epoch, silent_s=1.0)
    assert told.controller.status == "alive"


def test_recover_settles_what_nobody_drives(journal: Path) -> None:
    """Recovery gives the hanging operation up; without handles that is said, as JSON too."""
    result = run("recover")
    assert result.exit_code == 1
    assert "stuck  preparing → discarding  unconfirmed" in result.stdout
    assert "for want of a handle" in result.stdout
    silence(journal)
    found = answer("recover", "--run", RUN, code=1)
    assert found["schema"] == "gymckpt.recover/1"
    assert [one["operation_id"] for one in found["operations"]] == ["stuck"]
    assert found["operations"][0]["missing"] == [f"tools/replica-{place}" for place in range(3)]
    held = answer("recover", code=1)
    assert held["operations"][0]["outcome"] == "held"


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
