"""What a journal in PostgreSQL gives back, however the server is set up: texts, numbers, times."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import Connection, text

from gymckpt.errors import JournalError
from gymckpt.journal import Selection, open_journal
from gymckpt.journal.sql import SqlJournal
from gymckpt.journal.steps import steps_of
from tests.journal.conftest import PostgresqlHome
from tests.journal.samples import OPERATION, RUN, begun, entry
from tests.postgresql import Server

# --- texts, numbers and clocks ------------------------------------------------------------------

ODD = {
    "nul": "a\0b", "escapes": "\\u0000 \\x \x01\x1e\x1f", "line ends": "\r\n\u2028",
    "far": "\U0010ffff\U0001f9ea", "right to left": "\u202eabc", "no character": "\ufffe\uffff",
    "percent": "%s %(x)s %%", "quotes": "'\"$$",
    "nested": [{"\0": ["\0", 5e-324, -0.0, 2**63 - 1]}],
}  # fmt: skip

SETTINGS: list[dict[str, object]] = [
    {"extra_float_digits": -15},
    {"client_encoding": "LATIN1"},
    {"standard_conforming_strings": "off"},
    {"default_transaction_isolation": "serializable"},
    {"default_transaction_deferrable": "on"},
    {"statement_timeout": 1, "lock_timeout": 1, "idle_in_transaction_session_timeout": 1},
    {"datestyle": "German", "intervalstyle": "sql_standard", "timezone": "Asia/Kathmandu"},
    {"enable_indexscan": "off", "plan_cache_mode": "force_generic_plan"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda found: next(iter(found)))
def test_a_sessions_settings_change_nothing(
    pg_home: PostgresqlHome, settings: dict[str, object]
) -> None:
    """However a role or database is set up, odd entries come back equal and can be repeated."""
    journal = pg_home.open_with(**settings)
    begun(journal)
    odd = [
        entry(2, ts=1_700_000_000.123_456_7, at_s=0.1 + 0.2, trigger="ümläut ✓", facts=ODD),
        entry(3, ts=-1.797e308, at_s=5e-324),
    ]
    for _ in range(8):  # often enough for statements to be prepared by the driver
        journal.append(odd, expected_seq=1, epoch=1)
        assert repr(journal.read(RUN, OPERATION)) == repr((entry(1), *odd))
    assert journal.operation(RUN, OPERATION) is not None


def test_a_database_in_ascii_keeps_every_text_and_another_is_refused(postgresql: Server) -> None:
    """Where a database cannot hold each text, it is refused before anything is made in it."""
    for encoding in ("SQL_ASCII", "LATIN1"):
        name = f"text_{encoding.lower()}"
        postgresql.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' "
            "TEMPLATE template0"
        )
    with open_journal(postgresql.url(database="text_sql_ascii")) as journal:
        begun(journal)
        journal.append([entry(2, facts=ODD)], expected_seq=1, epoch=1)
        assert journal.read(RUN, OPERATION)[1].facts == ODD
    with pytest.raises(JournalError, match=r"LATIN1.*ENCODING 'UTF8'"):
        open_journal(postgresql.url(database="text_latin1"))


def test_a_text_that_none_can_hold_finds_nothing(pg_home: PostgresqlHome) -> None:
    """Looking for a run, chart or state that no operation can have is no error."""
    journal = pg_home.open()
    begun(journal)
    for odd in ("\0", "\ud800", "a\nb"):
        assert journal.operations(odd) == ()
        assert (
            journal.select(Selection(chart=odd)) == journal.select(Selection(states=(odd,))) == ()
        )
        assert steps_of(journal, odd) == ()


def test_heartbeats_are_by_the_servers_clock(
    pg_home: PostgresqlHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host whose clock is a year off is not said to be silent, nor for ever alive."""
    journal = pg_home.open()
    begun(journal)
    for shift_s in (3e7, -3e7):
        real = time.time
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda real=real, shift_s=shift_s: real() + shift_s)
            journal.heartbeat(RUN, epoch=1)
            silent_s = journal.silent_s(RUN)
        assert silent_s is not None
        assert 0.0 <= silent_s < 60.0
    pg_home.execute("UPDATE heartbeats SET beat_ts = beat_ts + 1000")  # the server's was set back
    assert (journal.silent_s(RUN) or 0.0) < 1.0
    pg_home.execute("UPDATE heartbeats SET beat_ts = beat_ts - 2000")
    assert (journal.silent_s(RUN) or 0.0) > 900.0


def test_every_transaction_of_a_store_is_bounded_and_durable(pg_home: PostgresqlHome) -> None:
    """The server is told how long it may wait, and never to answer before a commit is on disk."""
    journal = pg_home.open_with(busy_timeout_s=3.0, synchronous_commit="off")
    assert isinstance(journal, SqlJournal)

    def shown(connection: Connection) -> list[str]:
        names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
        names += ("synchronous_commit", "transaction_isolation", "transaction_read_only")
        return [connection.execute(text(f"SHOW {name}")).scalar_one() for name in names]

    found = journal._store.write(lambda connection, _again: shown(connection))
    assert found[2:] == ["1s", "on", "read committed", "off"]
    assert journal._store.read(shown)[1:] == ["0", "5min", "on", "repeatable read", "on"]
    for value in found[:2]:
        assert 1_000 <= int(value.removesuffix("ms")) <= 3_000 if "ms" in value else value == "3s"
