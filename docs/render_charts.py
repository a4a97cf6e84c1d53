"""
Write the charts into the documents that show them, or say which of them are stale.

A document marks where a chart belongs; what stands between the marks is generated and must not be
edited by hand:

    <!-- chart:checkpoint -->
    <!-- /chart -->

`<!-- chart:checkpoint diagram -->` gives the diagram alone, `<!-- chart:checkpoint table -->` the
table. Run `python docs/render_charts.py` after a change of a chart; with `--check` nothing is
written, and the exit code is 1 where something would be.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from gymckpt.chart import Chart, load_chart, to_markdown, to_mermaid

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("README.md", "docs/charts.md")

_OPEN = re.compile(r"<!-- chart:(?P<name>\S+)(?: (?P<part>\S+))? -->\n")
_CLOSE = "<!-- /chart -->"


def block(chart: Chart, part: str | None) -> str:
    """
    Return what stands between a chart's marks.

    Args:
        chart: The chart to show.
        part: `diagram`, `table`, or None for both.

    Raises:
        ValueError: There is no such part.
    """
    parts = {
        "diagram": f"```mermaid\n{to_mermaid(chart)}```\n",
        "table": to_markdown(chart),
    }
    if part is None:
        return "\n".join(parts.values())
    if part not in parts:
        raise ValueError(f"a chart has no {part!r}; it has {' and '.join(parts)}")
    return parts[part]


def rendered(text: str) -> str:
    """
    Return a document with every marked chart written anew.

    Args:
        text: The document.

    Raises:
        ValueError: A mark names no chart or no part of one, or is not closed before the next.
    """
    done: list[str] = []
    at = 0
    for mark in _OPEN.finditer(text):
        following = _OPEN.search(text, mark.end())
        end = text.find(_CLOSE, mark.end(), following.start() if following else len(text))
        if end < 0:
            raise ValueError(f"{mark.group().strip()} is not closed by {_CLOSE}")
        body = block(load_chart(mark["name"]), mark["part"])
        done += [text[at : mark.end()], f"\n{body}\n"]
        at = end
    return "".join([*done, text[at:]])


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """
    Render every document, or with `--check` only compare.

    Args:
        arguments: The command line without the program.
        root: The directory in which the documents stand.

    Returns:
        0 where all is well, 1 where a document is stale or wrong, 2 for a wrong command line.
    """
    if list(arguments) not in ([], ["--check"]):
        print("usage: python docs/render_charts.py [--check]", file=sys.stderr)
        return 2
    wrong = 0
    for name in DOCUMENTS:
        path = root / name
        before = path.read_text(encoding="utf-8")
        try:
            after = rendered(before)
        except ValueError as error:
            print(f"{name}: {error}", file=sys.stderr)
            wrong = 1
            continue
        if after == before:
            continue
        if arguments:
            print(f"{name} is stale; run: python docs/render_charts.py", file=sys.stderr)
            wrong = 1
        else:
            path.write_text(after, encoding="utf-8")
            print(f"{name} rewritten")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
