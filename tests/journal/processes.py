"""Starting other processes in the tests, talking to them, and ending them whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOBODY = 65534


class Worker:
    """One process that runs a function of `tests.journal.workers`."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> str:
        """Return the next line that it prints; empty at its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def tell(self) -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Wait until it has ended, and return its exit code."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return self.process.wait(60)


@contextmanager
def working(name: str, *arguments: object) -> Generator[Worker, None, None]:
    """Run a worker for the time of the body."""
    with _ending(Worker("-m", "tests.journal.workers", name, *map(str, arguments))) as worker:
        yield worker


@contextmanager
def together(*workers: tuple[object, ...]) -> Generator[None, None, None]:
    """Run workers that are let go at the same moment, and check at the end that all end well."""
    with ExitStack() as stack:
        started = [stack.enter_context(working(*map(str, worker))) for worker in workers]
        assert [worker.hear() for worker in started] == ["ready"] * len(started)
        for worker in started:
            worker.tell()
        yield
        assert [worker.hear() for worker in started] == ["done"] * len(started)
        assert [worker.end() for worker in started] == [0] * len(started)


@contextmanager
def locking(path: Path) -> Generator[Worker, None, None]:
    """Hold SQLite's write lock in another process until that is told to let go."""
    with _ending(Worker("-c", _LOCK, str(path))) as worker:
        assert worker.hear() == "locked"
        yield worker


_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
connection.close()
print("let go", flush=True)
sys.stdin.readline()
"""


@contextmanager
def _ending(worker: Worker) -> Generator[Worker, None, None]:
    try:
        yield worker
    finally:
        worker.process.kill()
        worker.end()


def in_fork(job: Callable[[], str]) -> str:
    """Run `job` in a forked child of this process, and return the text that it returns."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            text = job()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    return text


def as_nobody(job: Callable[[], str]) -> str:
    """Run `job` in a child for which file permissions count, whoever runs the tests."""

    def drop_and_run() -> str:
        if os.getuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return job()

    return in_fork(drop_and_run)


def require_fork() -> None:
    """Skip a test where processes cannot be forked."""
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
