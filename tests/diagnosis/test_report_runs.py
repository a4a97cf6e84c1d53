"""The history of a run: what it counts, and that it agrees with the reports of its operations."""

import pytest

from gymckpt.diagnosis.headline import cause_words
from gymckpt.diagnosis.picture import parked_s, picture_of
from gymckpt.diagnosis.runs_report import passages_of, runs_report
from gymckpt.journal import Journal, MemoryJournal
from tests.diagnosis.many import fill, own
from tests.diagnosis.markup import data_in, faults_of, of, read, text_in

COUNT = 46


@pytest.fixture(scope="module")
def journal() -> Journal:
    """Give a journal of some operations, some of which were given up."""
    made = MemoryJournal()
    fill(made, COUNT)
    return made


def test_page_is_whole_and_reaches_nowhere(journal: Journal) -> None:
    """The page is well-formed and safe, and holds every operation in order."""
    page = runs_report(journal)
    assert faults_of(page) == []
    assert [row[0] for row in data_in(page)["operations"]] == [f"step-{n}" for n in range(COUNT)]


def test_passages_agree_with_the_pictures(journal: Journal) -> None:
    """Read without their calls, operations last and park as long as read with them."""
    for passage in passages_of(journal, "llama-grpo-7"):
        row = passage.row
        picture = picture_of(journal.read(row.run, row.operation_id))
        held_s = parked_s(picture.chart, picture.states, picture.end_at_s)
        assert passage.parked_s == pytest.approx(held_s)
        assert passage.whole_s == pytest.approx(picture.states[-1].entered_at_s)
        assert passage.words == (cause_words(picture.cause) if picture.cause else "")


def test_failures_are_counted_by_cause(journal: Journal) -> None:
    """Each cause stands once, with how often it came, the most frequent first."""
    rows = [row.text for row in of(read(runs_report(journal)), "tr")[1:]]
    counted = {row[: row.index("2")]: row[row.index("2")] for row in rows}
    assert counted == dict.fromkeys(
        (
            "cancel · CancelledError",
            "commit · gone · ActorDiedError",
            "manifest · OSError",
            "prepare · refused",
        ),
        "2",
    )


def test_summary_counts(journal: Journal) -> None:
    """The tiles count operations, good ends and the others."""
    words = text_in(runs_report(journal))
    assert f"Operations{COUNT}" in words
    assert f"Ended well{100 * 38 / COUNT:.1f} %38 of them" in words
    assert "Given up80 have not ended" in words


def test_run_that_is_not_there_has_a_page(journal: Journal) -> None:
    """A run without operations has a page that says so."""
    page = runs_report(journal, "run-9")
    assert faults_of(page) == []
    assert "holds no operation" in text_in(page)


def test_several_runs_are_told_apart(journal: Journal) -> None:
    """Over all runs, operations carry the name of their run; over one they do not."""
    both = MemoryJournal()
    fill(both, 2)
    fill(both, 2, run="llama-grpo-8")
    named = {row[0] for row in data_in(runs_report(both))["operations"]}
    assert named == {f"llama-grpo-{run} / step-{number}" for run in (7, 8) for number in (0, 1)}
    only = {row[0] for row in data_in(runs_report(both, "llama-grpo-8"))["operations"]}
    assert only == {"step-0", "step-1"}


def test_calls_cost_nothing(journal: Journal) -> None:
    """The page of a journal is the same as if no operation had made a call."""
    bare = MemoryJournal()
    fill(bare, COUNT, take=own)
    assert data_in(runs_report(bare)) == data_in(runs_report(journal))
