"""What the commands of the kit share: they can be stopped, and say so by their exit code."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from gymckpt.testing import explore
from gymckpt.testing.commands import INTERRUPTED, at_least, ended, processes
from gymckpt.unread import UNREAD
from tests.cli.command import unread


@pytest.mark.parametrize("text", ["0", "-1", "nan", "1.5", "", "many"])
def test_numbers_that_make_no_sense_are_refused(text: str) -> None:
    """They are no argument, rather than an exploration of nothing that looks like a proof."""
    with pytest.raises(argparse.ArgumentTypeError):
        at_least(1)(text)
    assert at_least(1)("1") == 1


def test_exploration_of_no_instance_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is that of a bad argument, not that of a broken promise."""
    with pytest.raises(SystemExit) as refused:
        explore.main(["--instances", "0"])
    assert refused.value.code == 2
    assert "0 is too small, the least is 1" in capsys.readouterr().err


def _stay(*_: object) -> None:
    """Stand for a program that wants to end its own way, as Ray does."""
    raise SystemExit


@pytest.fixture
def stays() -> Iterator[None]:
    """A process whose handler of SIGTERM is inherited by those that it forks."""
    before = signal.signal(signal.SIGTERM, _stay)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("stays")
def test_an_interrupt_ends_the_processes() -> None:
    """Whoever is interrupted does not wait for work that has hours before it."""
    working: list[Future[None]] = []

    def command() -> None:
        with processes(1) as pool:
            working.extend(pool.submit(signal.pause) for _ in range(3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        command()
    assert working
    assert all(one.done() for one in working)


def test_processes_that_are_done_give_their_results() -> None:
    """Where nothing goes wrong it is an ordinary pool."""
    with processes(2) as pool:
        assert list(pool.map(abs, [-1, 2])) == [1, 2]


def test_workers_leave_ctrl_c_to_the_command() -> None:
    """A worker that heard it would take it for the error of its job, and begin the next one."""
    with processes(1) as pool:
        assert pool.submit(signal.getsignal, signal.SIGINT).result() == signal.SIG_IGN


def test_an_interrupt_has_an_exit_code_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """It is neither success nor a broken promise, and comes without a traceback."""

    def interrupted() -> int:
        raise KeyboardInterrupt

    assert ended(interrupted) == INTERRUPTED == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_reader_that_went_away_is_no_broken_promise() -> None:
    """`… | head` ends the command quietly, with the code that a shell gives for it."""
    assert unread("-m", "gymckpt.testing.simulate", "--seeds", "7") == (UNREAD, b"")
