"""What may be found where a journal in PostgreSQL is to be, and who may open it."""

from __future__ import annotations

import logging
import time
import traceback
from pathlib import Path
from typing import Any

import attrs
import pytest
from sqlalchemy import Connection, text

from gymckpt.errors import JournalCorrupt, JournalError, JournalUnavailable
from gymckpt.journal import open_journal
from gymckpt.journal.postgresql import PostgresqlStore
from gymckpt.journal.schema import MIGRATIONS
from tests.journal.conftest import PostgresqlHome
from tests.journal.samples import HOLDER, OPERATION, RUN, begun, entries, entry, opening
from tests.postgresql import PASSWORD, Server


def everything(home: PostgresqlHome) -> list[tuple[Any, ...]]:
    """Return what the schema holds: columns, row counts and the schema version's rows."""
    columns = home.execute(
        "SELECT table_name, column_name, data_type, collation_name, is_nullable "
        f"FROM information_schema.columns WHERE table_schema = '{home.schema}' ORDER BY 1, 2"
    )
    tables = sorted({row[0] for row in columns})
    return columns + [(name, home.execute(f"SELECT * FROM {name}")) for name in tables]


@pytest.fixture
def closed(pg_home: PostgresqlHome) -> PostgresqlHome:
    """Give the home of a closed journal with one operation of six entries."""
    with pg_home.open() as journal:
        begun(journal, 6)
    return pg_home


# --- URLs and secrets ---------------------------------------------------------------------------


def whole(error: BaseException) -> str:
    """Return all that a log shows of an error, without this file's own lines."""
    lines = traceback.format_exception(error)
    return "".join(line for line in lines if Path(__file__).name not in line)


SECRET = "hunter" + "3/x"
MALFORMED = [
    "postgresql://user:{}@host:port/db",
    "postgresql://user:{}/db",
    "postgresql://user:a@{}@host/db",
    "postgresql://user:{}@host",
    "postgresql://user:{}@host/",
    "postgresql://user:{}@host/db?nonsense=1",
    "postgresql+psycopg://host/db?password={}&nonsense=1",
    "postgres://user:{}@host/db",
    "postgresql+psycopg2://user:{}@host/db",
    "postgresql+asyncpg://user:{}@host/db",
]


@pytest.mark.parametrize("url", MALFORMED)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_malformed_url_is_refused_without_its_secret(url: str, read_only: bool) -> None:
    """What is no URL of a database is a ValueError at once, with the form and without a secret."""
    with pytest.raises(ValueError, match=r"postgresql\+psycopg://user@host") as caught:
        open_journal(url.format(SECRET), read_only=read_only)
    said = whole(caught.value)
    assert "hunter3" not in said
    assert "/x" not in said


@pytest.mark.parametrize(
    "place",
    ["locked:{}@127.0.0.1:{}/postgres?{}", "locked@127.0.0.1:{1}/postgres?{2}&password={0}"],
)
def test_a_password_is_used_and_never_shown(
    pg_home: PostgresqlHome,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: str,
) -> None:
    """The right password opens the journal; its URL, without it, opens it again from elsewhere."""
    options = f"options=-csearch_path%3D{pg_home.schema}"
    url = f"postgresql://{place.format(PASSWORD, pg_home.server.port, options)}"
    caplog.set_level(logging.DEBUG)
    with open_journal(url) as journal:
        begun(journal)
        assert PASSWORD not in journal.url
        assert "***" not in journal.url
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
        with open_journal(journal.url, read_only=True) as again:
            assert len(again.operations()) == 1
    monkeypatch.setenv("PGPASSWORD", f"not {PASSWORD}")
    with pytest.raises(JournalUnavailable, match="the password was refused") as caught:
        open_journal(journal.url)
    monkeypatch.delenv("PGPASSWORD")
    with pytest.raises(JournalUnavailable, match="asks for a password"):
        open_journal(journal.url)
    assert PASSWORD not in whole(caught.value) + caplog.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"user": "nobody-knows"}, "no such role"),
        ({"database": "nowhere"}, "no such database"),
        ({"user": "refused"}, "not in from this host"),
        ({"schema": "nowhere"}, "no such schema"),
    ],
)
def test_who_is_turned_away_is_told_at_once(
    postgresql: Server, changes: dict[str, Any], said: str
) -> None:
    """A wrong role, database, host or schema is not tried again, and the error says which it is."""
    began_s = time.monotonic()
    with pytest.raises(JournalUnavailable, match=said) as caught:
        open_journal(postgresql.url(**changes), busy_timeout_s=20.0)
    assert time.monotonic() - began_s < 10
    assert len(str(caught.value)) < 800
    assert type(caught.value) is JournalUnavailable


def test_a_server_that_has_moved_is_found_among_several_hosts(pg_home: PostgresqlHome) -> None:
    """Of the hosts that a URL names the first that answers is taken; the journal names all."""
    hosts = f"host=127.0.0.1:1&host=127.0.0.1:{pg_home.server.port}"
    options = f"options=-csearch_path%3D{pg_home.schema}"
    with open_journal(f"postgresql://gymckpt@/postgres?{hosts}&{options}") as journal:
        begun(journal)
        assert journal.url.count("host=") == 2
    with open_journal(journal.url) as again:
        assert len(again.operations()) == 1


def test_a_role_without_rights_is_told_so(closed: PostgresqlHome) -> None:
    """A role that may only read is refused each write; one with four rights needs no more."""
    schema = closed.schema
    closed.execute(f"GRANT USAGE ON SCHEMA {schema} TO reader")
    url = closed.server.url(schema, user="reader")
    with pytest.raises(JournalUnavailable, match="grant this role"):
        open_journal(url, read_only=True)
    closed.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader")
    with open_journal(url) as journal:
        assert len(journal.read(RUN, OPERATION)) == 6
        with pytest.raises(JournalUnavailable, match="grant this role"):
            journal.append([entry(7)], expected_seq=6, epoch=1)
        closed.execute(f"GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO reader")
        journal.append([entry(7)], expected_seq=6, epoch=1, settled=True)
        assert journal.claim(RUN, holder="host-b:2", force=True) == 2
        journal.heartbeat(RUN, epoch=2)
        journal.release(RUN, epoch=2)
        journal.remove(RUN, OPERATION)
        first = attrs.evolve(entry(1, operation_id="op-2"), epoch=journal.claim(RUN, holder=HOLDER))
        journal.open_operation(opening("op-2"), [first])


# --- what is there already ----------------------------------------------------------------------


def test_a_new_journal_has_these_tables(closed: PostgresqlHome) -> None:
    """The migrations make exactly what release 0.1 made, keys compared byte by byte."""
    found = {
        (table, column): (kind, collation) for table, column, kind, collation, _ in
        (row for row in everything(closed) if len(row) == 5)
    }  # fmt: skip
    assert {table for table, _ in found} == {
        "entries",
        "heartbeats",
        "meta",
        "operations",
        "removed",
        "runs",
    }
    keyed = {key for key, (_, collation) in found.items() if collation == "C"}
    assert keyed == {
        *((table, "run") for table in ("entries", "heartbeats", "operations", "removed", "runs")),
        *((table, "op") for table in ("entries", "operations", "removed")),
    }
    assert {key[1]: kind for key, (kind, _) in found.items() if key[0] == "entries"} == {
        "v": "integer", "run": "text", "op": "text", "seq": "bigint", "ep": "bigint",
        "ts": "double precision", "at": "double precision", "inst": "text", "call": "text",
        "ask": "bigint", "trig": "text", "src": "text", "dst": "text", "facts": "text",
    }  # fmt: skip


def test_two_schemas_are_two_journals(postgresql: Server) -> None:
    """The search path of the URL says where the tables are, and nothing leaks between two."""
    first, second = (postgresql.url(postgresql.new_schema()) for _ in range(2))
    with open_journal(first) as one, open_journal(second) as other:
        begun(one)
        assert (len(one.operations()), len(other.operations())) == (1, 0)
    with open_journal(first) as again:
        assert len(again.operations()) == 1


FOREIGN = [
    ["CREATE TABLE meta (key text, value text)"],
    ["CREATE TABLE meta (schema_version int)", "INSERT INTO meta VALUES (1)"],
    ["CREATE TABLE meta (schema_version int)", "INSERT INTO meta VALUES (2)"],
    ["CREATE TABLE meta (schema_version int)"],
    ["CREATE TABLE meta (schema_version int)", "INSERT INTO meta VALUES (NULL)"],
    ["CREATE TABLE meta (schema_version int)", "INSERT INTO meta VALUES (0)"],
    ["CREATE TABLE meta (schema_version int)", "INSERT INTO meta VALUES (2), (2)"],
    ["CREATE TABLE meta (schema_version text)", "INSERT INTO meta VALUES ('2')"],
    ["CREATE TABLE entries (id int)"],
    ["CREATE TABLE removed (run text, op text)", "INSERT INTO removed VALUES ('a', 'b')"],
    ["CREATE VIEW operations AS SELECT 1 AS one"],
]


@pytest.mark.parametrize("statements", FOREIGN, ids=range(len(FOREIGN)))
def test_tables_of_something_else_are_left_as_they_are(
    pg_home: PostgresqlHome, statements: list[str]
) -> None:
    """Tables of the same names that are no journal's are refused, and nothing of them changes."""
    for statement in statements:
        pg_home.execute(statement)
    before = everything(pg_home)
    with pytest.raises(JournalCorrupt, match="no journal"):
        pg_home.open()
    with pytest.raises((JournalCorrupt, JournalUnavailable), match="no journal"):
        open_journal(pg_home.url, read_only=True)
    assert everything(pg_home) == before


def test_reading_makes_no_journal(pg_home: PostgresqlHome) -> None:
    """A journal that is not there cannot be opened to be read, and is not made."""
    with pytest.raises(JournalUnavailable, match="no journal to read"):
        open_journal(pg_home.url, read_only=True)
    assert everything(pg_home) == []


def test_a_read_only_journal_writes_nothing(closed: PostgresqlHome) -> None:
    """Each write to a read-only journal is refused; reading goes on beside a writer."""
    before = everything(closed)
    writer = closed.open()
    with open_journal(closed.url, read_only=True) as journal:
        for write in (
            lambda: journal.append([entry(7)], expected_seq=6, epoch=1),
            lambda: journal.claim(RUN, holder="x", force=True),
            lambda: journal.heartbeat(RUN, epoch=1),
            lambda: journal.remove(RUN, OPERATION),
            lambda: begun(journal, operation_id="op-2"),
        ):
            with pytest.raises(JournalUnavailable, match="read only"):
                write()
        assert everything(closed) == before
        writer.append([entry(7)], expected_seq=6, epoch=1)
        assert journal.read(RUN, OPERATION) == tuple(entries(1, 7))


def test_a_server_that_is_read_only_is_named(closed: PostgresqlHome) -> None:
    """A session that may not write opens the journal, and the first write says why it fails."""
    journal = closed.open_with(default_transaction_read_only="on")
    assert len(journal.read(RUN, OPERATION)) == 6
    with pytest.raises(JournalUnavailable, match="is read only"):
        begun(journal, operation_id="op-2")


def test_tables_that_are_dropped_meanwhile_are_missed(closed: PostgresqlHome) -> None:
    """A journal whose tables are dropped while it is open is unavailable, and says so."""
    journal = closed.open()
    closed.execute("DROP TABLE heartbeats, runs, entries, operations, removed, meta")
    for call in (journal.operations, lambda: journal.append([entry(7)], expected_seq=6, epoch=1)):
        with pytest.raises(JournalUnavailable, match="a table of it is gone"):
            call()


# --- versions of the schema ---------------------------------------------------------------------


def set_version(home: PostgresqlHome, version: int) -> None:
    """Let a journal be of another release."""
    home.execute(f"UPDATE meta SET schema_version = {version}")


def test_a_newer_schema_is_refused_with_the_way_out(closed: PostgresqlHome) -> None:
    """A journal of a newer release is not touched, and the error says to upgrade."""
    set_version(closed, len(MIGRATIONS) + 1)
    closed.execute("ALTER TABLE heartbeats RENAME TO signs")  # as a newer release may do
    before = everything(closed)
    for read_only in (False, True):
        with pytest.raises(JournalError, match="upgrade gymckpt") as caught:
            open_journal(closed.url, read_only=read_only)
        assert type(caught.value) is JournalError
    assert everything(closed) == before


def test_a_schema_that_is_raised_meanwhile_stops_the_older_release(closed: PostgresqlHome) -> None:
    """A journal that a newer release has taken over is not used in the old way any more."""
    journal = closed.open()
    set_version(closed, len(MIGRATIONS) + 1)
    with pytest.raises(JournalError, match="upgrade gymckpt"):
        journal.append([entry(7)], expected_seq=6, epoch=1)
    with pytest.raises(JournalError, match="upgrade gymckpt"):
        journal.read(RUN, OPERATION)
    set_version(closed, len(MIGRATIONS))
    assert len(journal.read(RUN, OPERATION)) == 6


def _add_a_column(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE operations ADD COLUMN note TEXT"))


def _fail(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE operations ADD COLUMN other TEXT"))
    raise RuntimeError("the step is broken")


def test_an_older_schema_is_raised_step_by_step(closed: PostgresqlHome) -> None:
    """Opening to write runs exactly the missing steps, once; opening to read refuses to."""
    steps = (*MIGRATIONS, _add_a_column)
    with pytest.raises(JournalError, match="open it once for writing"):
        PostgresqlStore(closed.url, read_only=True, migrations=steps)
    before = everything(closed)
    with pytest.raises(RuntimeError, match="broken"):
        PostgresqlStore(closed.url, migrations=(*steps, _fail))
    assert everything(closed) == before
    for _ in range(2):
        PostgresqlStore(closed.url, migrations=steps).close()
    assert closed.execute("SELECT schema_version FROM meta") == [(len(steps),)]
    assert closed.execute("SELECT note FROM operations") == [(None,)]


def test_a_journal_of_version_1_is_read_and_written_by_this_release(closed: PostgresqlHome) -> None:
    """What was written before runs were claimed is kept, and goes on in the epoch after it."""
    closed.execute("DROP TABLE heartbeats, runs")
    for index in ("opening", "run", "id", "settled"):
        closed.execute(f"DROP INDEX operations_by_{index}")
    set_version(closed, 1)
    with closed.open() as journal:
        assert len(journal.read(RUN, OPERATION)) == 6
        assert journal.silent_s(RUN) is None
        assert journal.claim(RUN, holder="host-b:2") == 2
        assert journal.silent_s(RUN) is not None
