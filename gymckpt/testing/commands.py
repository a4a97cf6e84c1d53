"""
What the commands of this package share: arguments, processes that end with it, and its own end.

Ctrl-C must stop a command that has hours of work before it, and a reader that went away must not
be taken for a broken promise, which is what the exit code 1 says.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from gymckpt.unread import let_go

__all__ = ["INTERRUPTED", "at_least", "ended", "processes"]

INTERRUPTED = 128 + signal.SIGINT
"""The exit code of a command that was interrupted, as a shell has it."""


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of an argument of the command line that is a whole number."""

    def number(text: str) -> int:
        if not text.removeprefix("-").isdecimal():
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{value} is too small, the least is {least}")
        return value

    return number


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """
    Give work to some processes; they are ended at once where the body does not end well.

    Args:
        count: How many.
    """
    others = set(multiprocessing.active_children())
    # The command alone hears Ctrl-C: a worker would take it for an error of its present job.
    pool = ProcessPoolExecutor(
        count, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
    )
    try:
        yield pool
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.kill()  # a handler of SIGTERM that this process has would be its own as well
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def ended(command: Callable[[], int]) -> int:
    """
    Run a command of the shell and return its exit code, without a traceback where it was stopped.

    Args:
        command: Does the work, prints, and returns an exit code.
    """
    try:
        code = command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        return let_go()
    return code
