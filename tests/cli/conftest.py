"""A journal that all tests of the command line may read, and one for those that write."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.command import silence, write_journal


@pytest.fixture(scope="session")
def _sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_journal(tmp_path_factory.mktemp("journal") / "journal.sqlite3")
    silence(path)
    return path


@pytest.fixture(autouse=True)
def journal(_sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a journal of the test's own, which is the default one of the command line."""
    path = tmp_path / "journal.sqlite3"
    shutil.copy(_sample, path)
    monkeypatch.setenv("GYMCKPT_JOURNAL", str(path))
    return path
