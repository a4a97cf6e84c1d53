"""Two real controllers compete for one run: see `tests.recovery.rivals`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.postgresql import Server
from tests.recovery.rivals import Contest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="stops and continues processes")


async def test_two_rivals_break_no_promise(tmp_path: Path, thorough: bool) -> None:
    """However they are killed and stopped, what they do to a run is what one controller may do."""
    contest = Contest(tmp_path, f"sqlite://{tmp_path}/journal.sqlite3", seed=1)
    assert await contest.run(60.0 if thorough else 4.0) == []
    assert contest.account.lives >= 2


async def test_two_rivals_on_a_server(tmp_path: Path, thorough: bool, postgresql: Server) -> None:
    """The same over PostgreSQL, where who is stopped in a transaction locks nobody out for long."""
    contest = Contest(tmp_path, postgresql.url(postgresql.new_schema()), seed=2)
    assert await contest.run(60.0 if thorough else 4.0) == []
    assert contest.account.lives >= 2
