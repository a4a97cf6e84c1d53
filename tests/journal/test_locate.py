"""Where a journal is looked for, and what is no place for one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gymckpt.episodes import require_operation_id
from gymckpt.errors import JournalUnavailable
from gymckpt.journal import MemoryJournal, default_run, open_journal
from tests.journal.samples import begun


@pytest.mark.parametrize("form", ["{}", "sqlite://{}", "sqlite:///{}"])
def test_every_form_of_a_path_leads_to_the_file(tmp_path: Path, form: str) -> None:
    """A bare path, a URL with three slashes and SQLAlchemy's with four open the same file."""
    path = tmp_path / "journal.sqlite3"
    with open_journal(form.format(path)) as journal:
        begun(journal)
        assert journal.blocks
        assert journal.url == f"sqlite://{path}"
    with open_journal(path) as again:
        assert len(again.operations()) == 1


def test_escapes_are_undone_in_urls_only(tmp_path: Path) -> None:
    """`%20` is a space in a URL and itself in a path."""
    open_journal(f"sqlite://{tmp_path}/a%20b").close()
    open_journal(f"{tmp_path}/c%20d").close()
    assert sorted(found.name for found in tmp_path.iterdir()) == ["a b", "c%20d"]


def test_memory_is_a_new_journal_each_time() -> None:
    """Two journals in memory share nothing, and never block."""
    first, second = open_journal("memory://"), open_journal("memory://")
    begun(first)
    assert (len(first.operations()), len(second.operations())) == (1, 0)
    assert not first.blocks
    assert first.url == "memory://"


def test_an_open_journal_is_returned_as_it_is() -> None:
    """Whoever takes a URL may be given a journal."""
    journal = MemoryJournal()
    assert open_journal(journal) is journal
    with pytest.raises(ValueError, match="open already"):
        open_journal(journal, read_only=True)


@pytest.mark.parametrize("name", ["url", "blocks"])
def test_a_journal_that_says_nothing_of_itself_is_refused(name: str) -> None:
    """A journal of one's own without `url` or `blocks` is named before anything uses it."""
    silent = type("Silent", (MemoryJournal,), {name: None})
    with pytest.raises(TypeError, match=f"Silent has to give `{name}`"):
        open_journal(silent())


def test_an_empty_journal_in_memory_is_nothing_to_read() -> None:
    """Opening memory to be read only is refused, since nothing can be in it."""
    with pytest.raises(ValueError, match="nothing to read"):
        open_journal("memory://", read_only=True)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://user:hunter2@host/db",
        "PostgreSQL://host/db",
        "memory://name",
        "sqlite://",
        "sqlite:///",
        "sqlite://host/path",
        "sqlite:///a?mode=ro",
        "sqlite:///a#b",
        "sqlite:///a%00b",
        "://x",
        "",
        ":memory:",
        "a\0b",
    ],
)
def test_a_url_that_names_no_journal_is_refused(url: str) -> None:
    """The refusal shows the URL without its password, and what would be accepted."""
    with pytest.raises(ValueError, match="sqlite") as caught:
        open_journal(url)
    assert "hunter2" not in str(caught.value)
    if "//user" in url:
        known = ("memory://", "sqlite:///", "postgresql+psycopg://user@host/database")
        assert all(form in str(caught.value) for form in known)


def test_the_environment_names_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument, $GYMCKPT_JOURNAL decides; an argument wins over it."""
    monkeypatch.setenv("GYMCKPT_JOURNAL", str(tmp_path / "named"))
    open_journal().close()
    open_journal(tmp_path / "given").close()
    assert sorted(found.name for found in tmp_path.iterdir()) == ["given", "named"]


@pytest.mark.parametrize("value", [None, ""])
def test_the_default_is_in_the_users_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """With nothing named, the journal is in the platform's state directory, which is made."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GYMCKPT_JOURNAL", raising=False)
    if value is not None:
        monkeypatch.setenv("GYMCKPT_JOURNAL", value)
    open_journal().close()
    assert [found.name for found in tmp_path.rglob("*.sqlite3")] == ["journal.sqlite3"]
    assert next(tmp_path.rglob("*.sqlite3")).parent.name == "gymckpt"


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path from a variable that no shell has expanded leads home, not into a directory `~`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    open_journal("~/journal.sqlite3").close()
    assert (tmp_path / "journal.sqlite3").is_file()


def test_a_relative_path_is_that_of_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changing the directory later does not lead a journal to another file."""
    monkeypatch.chdir(tmp_path)
    journal = open_journal("journal.sqlite3")
    monkeypatch.chdir("/")
    begun(journal)
    journal.close()
    assert [found.name for found in tmp_path.iterdir()] == ["journal.sqlite3"]


def test_a_missing_timeout_is_five_seconds(tmp_path: Path) -> None:
    """The busy timeout is a parameter of opening, five seconds unless given."""
    with (
        open_journal(tmp_path / "a") as first,
        open_journal(tmp_path / "b", busy_timeout_s=0.5) as other,
    ):
        timeouts: list[Any] = [one._store._busy_timeout_s for one in (first, other)]  # type: ignore[attr-defined]
    assert timeouts == [5.0, 0.5]


# --- runs ---------------------------------------------------------------------------------------


def test_the_environment_names_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """$GYMCKPT_RUN is the run's name, if it may be one."""
    monkeypatch.setenv("GYMCKPT_RUN", "ppo-7")
    assert default_run() == "ppo-7"
    monkeypatch.setenv("GYMCKPT_RUN", "a b")
    with pytest.raises(ValueError, match=r"the run in \$GYMCKPT_RUN"):
        default_run()


@pytest.mark.parametrize("value", [None, ""])
def test_a_run_without_a_name_gets_a_new_one(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """Generated runs carry their date, are legal ids and never the same."""
    monkeypatch.delenv("GYMCKPT_RUN", raising=False)
    if value is not None:
        monkeypatch.setenv("GYMCKPT_RUN", value)
    runs = {default_run() for _ in range(100)}
    assert len(runs) == 100
    for run in runs:
        assert re.fullmatch(r"run-\d{4}-\d\d-\d\d-[0-9a-f]{12}", require_operation_id(run))


def test_databases_are_imported_on_demand() -> None:
    """Opening a journal in memory imports no database library."""
    script = (
        "import sys; from gymckpt.journal import open_journal; open_journal('memory://'); "
        "assert not {'sqlalchemy', 'psycopg', 'ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_journal_that_is_gone_is_unavailable_not_a_crash(tmp_path: Path) -> None:
    """A path through a dangling link is refused as JournalUnavailable."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "journal.sqlite3")
    with pytest.raises(JournalUnavailable):
        open_journal(tmp_path / "link", read_only=True)
