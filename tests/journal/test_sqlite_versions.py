"""Journals in SQLite of other releases, for readers only, and on network file systems."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from gymckpt.errors import JournalError, JournalUnavailable
from gymckpt.journal import open_journal
from gymckpt.journal import place as places
from gymckpt.journal.schema import MIGRATIONS
from gymckpt.journal.sqlite import SqliteStore
from tests.journal.conftest import SqliteHome
from tests.journal.files import digest, edit, filled
from tests.journal.processes import as_nobody, locking, require_fork, working
from tests.journal.samples import OPERATION, RUN, begun, entries, entry


@pytest.fixture
def closed(sqlite_home: SqliteHome) -> Path:
    """Give the file of a closed journal with one operation of six entries."""
    return filled(sqlite_home)


# --- versions of the schema ---------------------------------------------------------------------


def test_a_newer_schema_is_refused_with_the_way_out(closed: Path) -> None:
    """A journal of a newer release is not touched, and the error says to upgrade."""
    edit(closed, f"UPDATE meta SET schema_version = {len(MIGRATIONS) + 1}")
    before = digest(closed)
    for read_only in (False, True):
        with pytest.raises(JournalError, match="upgrade gymckpt") as caught:
            open_journal(closed, read_only=read_only)
        assert type(caught.value) is JournalError
    assert digest(closed) == before


def test_a_schema_that_is_raised_meanwhile_stops_the_older_release(
    sqlite_home: SqliteHome,
) -> None:
    """A journal that a newer release has taken over is not written in the old way any more."""
    journal = sqlite_home.open()
    begun(journal)
    edit(sqlite_home.path, f"UPDATE meta SET schema_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(JournalError, match="upgrade gymckpt"):
        journal.append([entry(2)], expected_seq=1, epoch=1)
    with pytest.raises(JournalError, match="upgrade gymckpt"):
        journal.read(RUN, OPERATION)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM meta",
        "INSERT INTO meta VALUES (1)",
        "UPDATE meta SET schema_version = 'x'",
        "DROP TABLE meta",
    ],
)
def test_a_schema_version_that_is_none_is_refused(closed: Path, statement: str) -> None:
    """A damaged meta table is a JournalError, when opening to write as well as to read."""
    edit(closed, statement)
    for read_only in (False, True):
        with pytest.raises(JournalError, match="journal"):
            open_journal(closed, read_only=read_only)


def _add_a_column(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE operations ADD COLUMN note TEXT"))


def _fail(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE operations ADD COLUMN other TEXT"))
    raise RuntimeError("the step is broken")


def _columns(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    found = [row[1] for row in connection.execute("PRAGMA table_info(operations)")]
    connection.close()
    return found


def test_an_older_schema_is_raised_step_by_step(closed: Path) -> None:
    """Opening to write runs exactly the missing steps, once; opening to read refuses to."""
    steps = (*MIGRATIONS, _add_a_column)
    version = "SELECT schema_version FROM meta"
    with pytest.raises(JournalError, match="open it once for writing"):
        SqliteStore(closed, read_only=True, migrations=steps)
    assert "note" not in _columns(closed)
    for _ in range(2):
        store = SqliteStore(closed, migrations=steps)
        with store.reading() as connection:
            assert connection.exec_driver_sql(version).scalar_one() == len(steps)
        store.close()
    assert _columns(closed).count("note") == 1


def test_a_journal_of_version_1_is_read_and_written_by_this_release(closed: Path) -> None:
    """What was written before runs were claimed is kept, and goes on in the epoch after it."""
    edit(closed, "DROP TABLE heartbeats")
    edit(closed, "DROP TABLE runs")
    for index in ("opening", "run", "id", "settled"):
        edit(closed, f"DROP INDEX operations_by_{index}")
    edit(closed, "UPDATE meta SET schema_version = 1")
    with open_journal(closed) as journal:
        assert len(journal.read(RUN, OPERATION)) == 6
        assert journal.silent_s(RUN) is None
        assert journal.claim(RUN, holder="host-b:2") == 2
        assert journal.silent_s(RUN) is not None


def test_a_new_journal_runs_every_step(tmp_path: Path) -> None:
    """A journal that is made by a later release has its whole schema at once."""
    path = tmp_path / "journal.sqlite3"
    SqliteStore(path, migrations=(*MIGRATIONS, _add_a_column)).close()
    assert "note" in _columns(path)


def test_a_step_that_fails_changes_nothing(closed: Path) -> None:
    """Steps run in one transaction: after a failure the journal is what it was."""
    with pytest.raises(RuntimeError, match="broken"):
        SqliteStore(closed, migrations=(*MIGRATIONS, _add_a_column, _fail))
    assert "note" not in _columns(closed)
    with open_journal(closed) as journal:
        assert len(journal.read(RUN, OPERATION)) == 6


# --- reading only -------------------------------------------------------------------------------


def test_reading_works_beside_a_writer(sqlite_home: SqliteHome) -> None:
    """A read-only journal follows a writer entry by entry, also while that holds its lock."""
    writer = sqlite_home.open()
    begun(writer)
    with open_journal(sqlite_home.path, read_only=True) as reader:
        for seq in range(2, 6):
            writer.append([entry(seq)], expected_seq=seq - 1, epoch=1)
            assert reader.read(RUN, OPERATION) == tuple(entries(1, seq))
        with locking(sqlite_home.path):
            assert len(reader.read(RUN, OPERATION)) == 5


def test_a_read_only_journal_writes_nothing(closed: Path) -> None:
    """Each write to a read-only journal is refused, and the file stays as it was."""
    before = digest(closed)
    with open_journal(closed, read_only=True) as journal:
        with pytest.raises(JournalUnavailable, match="read only"):
            journal.append([entry(7)], expected_seq=6, epoch=1)
        with pytest.raises(JournalUnavailable, match="read only"):
            journal.claim(RUN, holder="x", force=True)
        with pytest.raises(JournalUnavailable, match="read only"):
            begun(journal, operation_id="op-2")
        assert len(journal.read(RUN, OPERATION)) == 6
    assert digest(closed) == before


def test_reading_makes_no_journal(tmp_path: Path) -> None:
    """A journal that is not there cannot be opened to be read, and is not made."""
    with pytest.raises(JournalUnavailable, match="no such file"):
        open_journal(tmp_path / "a" / "journal.sqlite3", read_only=True)
    assert os.listdir(tmp_path) == []


@pytest.fixture
def foreign(closed: Path) -> Generator[Path, None, None]:
    """Give a journal that others may read, in a directory where they may make nothing."""
    require_fork()
    place = Path(tempfile.mkdtemp())
    path = place / "journal.sqlite3"
    shutil.copy(closed, path)
    path.chmod(0o444)
    place.chmod(0o555)
    yield path
    place.chmod(0o755)
    shutil.rmtree(place)


def _read_all(path: Path) -> str:
    with open_journal(path, read_only=True) as journal:
        return str(len(journal.read(RUN, OPERATION)))


def test_a_journal_at_rest_is_read_where_nothing_may_be_written(foreign: Path) -> None:
    """A reader without any write permission reads a closed journal, and leaves nothing there."""
    assert as_nobody(lambda: _read_all(foreign)) == "6"
    assert os.listdir(foreign.parent) == [foreign.name]


def test_a_journal_in_use_is_read_where_nothing_may_be_written(foreign: Path) -> None:
    """A reader without any write permission reads beside a live writer whose files it may read."""
    foreign.parent.chmod(0o755)
    foreign.chmod(0o644)
    with working("hold", foreign) as worker:
        assert worker.hear() == "ready"
        assert os.path.getsize(f"{foreign}-wal") > 0
        assert as_nobody(lambda: _read_all(foreign)) == "7"


def test_entries_that_cannot_be_reached_are_not_left_out(foreign: Path, tmp_path: Path) -> None:
    """What a dead writer left in its -wal is read where that is possible, else an error says so."""
    foreign.parent.chmod(0o755)
    foreign.chmod(0o644)
    with open_journal(foreign) as journal:
        journal.append([entry(7)], expected_seq=6, epoch=1)
        for suffix in ("", "-wal"):
            shutil.copy(f"{foreign}{suffix}", tmp_path / f"copy{suffix}")
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"copy{suffix}", f"{foreign}{suffix}")
    foreign.parent.chmod(0o555)
    found = as_nobody(lambda: _read_all(foreign))
    assert found.startswith("JournalUnavailable: ")
    assert "it cannot be opened" in found


def test_a_journal_that_may_only_be_read_is_not_opened_for_writing(foreign: Path) -> None:
    """Opening for writing without the permission is JournalUnavailable, and changes nothing."""

    def job() -> str:
        with open_journal(foreign) as journal:
            journal.append([entry(7)], expected_seq=6, epoch=1)
        return "written"

    before = digest(foreign)
    assert as_nobody(job).startswith("JournalUnavailable: ")
    assert digest(foreign) == before


# --- network file systems -----------------------------------------------------------------------

MOUNTS = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/root rw
30 22 0:5 / /proc rw - proc proc rw
41 22 0:40 / /data rw,relatime shared:1 master:2 - nfs4 server:/data rw,vers=4.2
42 41 0:41 / /data/me/local\040disk rw - xfs /dev/sdb rw
43 22 0:42 / /mnt/lustre rw - lustre mgs@tcp:/fs rw
44 22 0:43 / /mnt/ssh rw - fuse.sshfs user@host: rw
45 22 0:44 / /mnt/ssh rw - ext4 /dev/sdc rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/tmp/journal", "ext4"),
        ("/data/me/journal", "nfs4"),
        ("/datas/journal", "ext4"),
        ("/data/me/local disk/journal", "xfs"),
        ("/mnt/lustre/a/b", "lustre"),
        ("/mnt/ssh/journal", "ext4"),
    ],
)
def test_the_file_system_is_that_of_the_innermost_latest_mount(path: str, kind: str) -> None:
    """The kernel's list is read with its escapes, nested mounts and mounts over mounts."""
    assert places.filesystem_of(Path(path), MOUNTS) == kind


def test_nothing_is_known_without_mounts() -> None:
    """An empty list names no file system, so that no warning is made up."""
    assert places.filesystem_of(Path("/tmp/x"), "") == ""


def test_a_network_file_system_is_named_once_per_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A journal on NFS is warned about once, with the way out; one on a disk never is."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.replace("/mnt/lustre", str(tmp_path)))
    caplog.set_level(logging.WARNING, "gymckpt.journal")
    for _ in range(3):
        places.warn_of_network(tmp_path / "journal.sqlite3", mounts)
        places.warn_of_network(Path("/tmp/journal.sqlite3"), mounts)
        places.warn_of_network(tmp_path / "journal.sqlite3", tmp_path / "missing")
    assert [record.name for record in caplog.records] == ["gymckpt.journal"]
    assert "lustre" in caplog.text
    assert "PostgreSQL" in caplog.text
