"""How durations and numbers read in a sentence, and what stands for nothing special."""

from __future__ import annotations

__all__ = ["ORDINARY_END", "count_of", "duration", "listed"]

ORDINARY_END = "the caller is done"
"""What the coordinator gives as the reason where a body ends well without a commit."""


def duration(seconds: float) -> str:
    """
    Say a duration with two significant units.

    Args:
        seconds: May be negative, which is said with a minus.
    """
    sign, left_s = ("-", -seconds) if seconds < 0 else ("", seconds)
    if left_s < 1:
        return f"{sign}{left_s * 1000:.0f} ms"
    if left_s < 59.95:
        return f"{sign}{left_s:.1f}".removesuffix(".0") + " s"
    whole = round(left_s)
    minutes, rest_s = divmod(whole, 60)
    if minutes < 60:
        return f"{sign}{minutes} min" + (f" {rest_s} s" if rest_s else "")
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{sign}{hours} h" + (f" {minutes} min" if minutes else "")
    days, hours = divmod(hours, 24)
    return f"{sign}{days} d" + (f" {hours} h" if hours else "")


def count_of(number: int, noun: str) -> str:
    """Say how many there are of something, with a plural that takes an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(parts: list[str]) -> str:
    """Join parts of a sentence as a person would."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
