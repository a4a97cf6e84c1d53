"""The controls of a page."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["choice"]


def choice(name: str, legend: str, options: Sequence[tuple[str, str]]) -> str:
    """
    Return a choice of one out of several; the first is chosen.

    Args:
        name: What the scripts call it.
        legend: What people call it.
        options: Value and words of each.
    """
    items = "".join(
        f'<label><input type="radio" name="{name}" value="{value}" autocomplete="off"'
        f"{' checked' if number == 0 else ''}><span>{text}</span></label>"
        for number, (value, text) in enumerate(options)
    )
    return f'<fieldset class="choice"><legend>{legend}</legend>{items}</fieldset>'
