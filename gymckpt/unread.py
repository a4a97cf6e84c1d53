"""What a command does when nobody reads its output any more, as in `… | head`."""

from __future__ import annotations

import os
import sys

__all__ = ["UNREAD", "let_go"]

UNREAD = 141
"""The exit code of a command whose output nobody reads any more: 128 and the number of SIGPIPE."""


def let_go() -> int:
    """Return that exit code; what is still buffered would fail again as the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return UNREAD
