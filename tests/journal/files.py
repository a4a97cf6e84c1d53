"""Journals in files of SQLite, seen and changed behind their back."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

from tests.journal.conftest import SqliteHome
from tests.journal.samples import begun, call_entry


def edit(path: Path, *statements: str) -> None:
    """Change a journal's file behind its back."""
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def digest(path: Path) -> str:
    """Return what tells whether a file was changed."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def filled(home: SqliteHome) -> Path:
    """Return the file of a closed journal with one operation of six entries."""
    with home.open() as journal:
        begun(journal, 4)
        journal.append([call_entry(5), call_entry(6)], expected_seq=4, epoch=1)
    return home.path
