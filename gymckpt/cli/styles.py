"""Colours, widths and small texts that several commands share."""

from __future__ import annotations

import datetime
import re

from rich.text import Text

__all__ = [
    "CALL_STATE_STYLES",
    "STATUS_STYLES",
    "WIDE",
    "instance_text",
    "moment_option",
    "since_option",
]

WIDE = 120
"""From how many columns on a table shows everything."""

STATUS_STYLES = {
    "done": "green",
    "failed": "bold red",
    "given_up": "bold yellow",
    "ordinary": "dim",
    "going_on": "bold cyan",
}
"""How an operation's state is shown."""

CALL_STATE_STYLES = {
    "answered": "green",
    "asked": "cyan",
    "refused": "yellow",
    "failed": "red",
    "unanswered": "magenta",
    "abandoned": "dim",
    "gone": "bold red",
    "lapsed": "blue",
}
"""How the state of a call is shown; no two are told apart by red and green alone, since a letter or
a word always stands with them."""

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
_UNIT_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def instance_text(instance: str) -> Text:
    """Return an instance's id with its shard held back."""
    shard, slash, replica = instance.rpartition("/")
    return Text.assemble((f"{shard}{slash}", "dim"), replica)


def since_option(text: str | None, now_ts: float) -> float | None:
    """
    Return the moment that an option names: an age such as `20m`, or a time.

    Raises:
        ValueError: It is neither.
    """
    if text is None:
        return None
    ago = _AGO.fullmatch(text.strip())
    if ago:
        return now_ts - float(ago[1]) * _UNIT_S[ago[2]]
    return moment_option(text)


def moment_option(text: str) -> float:
    """
    Return the epoch seconds that an option names, a number or a time in ISO form.

    Raises:
        ValueError: It is neither.
    """
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        raise ValueError(
            f"{text!r:.60} is no time; give an age (90s, 20m, 6h, 3d), epoch seconds, or a time "
            "such as 2026-01-31T03:00"
        ) from None
