"""`gymckpt discard`, `sweep`, `mark-gone` and `recover`: what an operator does by hand."""

from __future__ import annotations

import typer

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
