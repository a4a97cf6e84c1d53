"""What the documents of the repository say, taken apart: paths, links, commands, tables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)[^)]*\)")
_PATH = re.compile(
    r"(?:[\w.-]+/)+[\w.-]*\w\.(?:py|md|toml|json|typed)|[\w.]+\.(?:py|md|toml)"
    r"|(?:\.ci|docs|gymckpt|statecharts|tests|tools|examples|benchmarks)/[\w./-]*"
)
"""What is meant as a path of the repository: it has a known ending or begins in a known place."""

_FOREIGN = frozenset({"my.toml", "path/to/mine.toml"})
"""Paths that stand for a reader's own file."""

_RELEASE = re.compile(r"## (?P<version>\d+\.\d+\.\d+) \((?P<date>\d{4}-\d{2}-\d{2})\)")


def code_spans(text: str) -> list[str]:
    """Return what stands between backticks, outside of fenced blocks."""
    return _SPAN.findall(_FENCE.sub("", text))


def links_of(text: str) -> list[str]:
    """Return the targets of all links into the repository, without their fragments."""
    found = _LINK.findall(_FENCE.sub("", text))
    return [target for target in found if target and "://" not in target]


def missing_paths(root: Path, document: str, text: str) -> list[str]:
    """
    Return the paths that a document names and that do not exist.

    Args:
        root: The top of the repository.
        document: The document's path; links start in its directory, code spans at the top.
        text: What it says.
    """
    spans = [span for span in code_spans(text) if _PATH.fullmatch(span) and span not in _FOREIGN]
    home = Path(document).parent
    missing = [
        span for span in spans if not (root / span).exists() and not (root / home / span).exists()
    ]
    linked = [home / target for target in links_of(text)]
    return missing + [path.as_posix() for path in linked if not (root / path).exists()]


def make_targets(makefile: str) -> set[str]:
    """Return the names that can follow `make`."""
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


def commands_of(text: str, program: str) -> list[str]:
    """Return the command lines of a program that a document gives, in spans and shell blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()] + code_spans(text)
    return [line for line in lines if re.match(rf"{program} [a-z]", line)]


def between(text: str, mark: str) -> str:
    """Return what stands between a document's marks of that name."""
    return text.split(f"<!-- {mark} -->\n", 1)[1].split(f"<!-- /{mark} -->", 1)[0]


def rows_of(table: str) -> list[list[str]]:
    """Return the cells of a Markdown table, without its head."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def signature_of(name: str, method: Callable[..., Any]) -> str:
    """Return a method as a document shows it: its name and the names of its parameters."""
    shown: list[str] = []
    # Where a class was made an actor before, Ray has added private parameters of its own.
    own = [one for one in inspect.signature(method).parameters.values() if one.name[0] != "_"]
    for parameter in own[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        shown.append(parameter.name)
    return f"{name}({', '.join(shown)})"


def changelog_faults(text: str, version: str) -> Iterator[str]:
    """
    Yield what breaks the form of a changelog.

    Args:
        text: The changelog.
        version: The version that the package has now.
    """
    head, *parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    if not head.startswith("# Changelog\n"):
        yield "it begins with '# Changelog'"
    releases: list[tuple[tuple[int, ...], str]] = []
    for number, part in enumerate(parts):
        heading, _, body = part.partition("\n")
        release = _RELEASE.fullmatch(heading)
        if release:
            releases.append((tuple(map(int, release["version"].split("."))), release["date"]))
        elif number or heading != "## Unreleased":
            yield f"{heading!r} is no heading of a release: '## 1.2.3 (2026-01-31)'"
        yield from _entry_faults(heading, body)
    for (newer, newer_date), (older, older_date) in pairwise(releases):
        if newer <= older:
            yield f"{newer} stands above {older} but is not the later one"
        if newer_date < older_date:
            yield f"{older} was released after {newer}"
    present = tuple(map(int, version.split(".")))
    if releases and releases[0][0] != present and "## Unreleased" not in text:
        yield f"the newest release is {releases[0][0]}, the present version {present}"


def _entry_faults(heading: str, body: str) -> Iterator[str]:
    entries = [entry for entry in re.split(r"\n(?=\S)", body.strip("\n")) if entry]
    if not entries:
        yield f"{heading!r} says nothing"
    for entry in entries:
        words = entry.removeprefix("- ").strip()
        if not entry.startswith("- "):
            yield f"{entry!r} is no entry: '- A sentence.'"
        elif not re.match(r"[A-Z`]", words) or not words.endswith("."):
            yield f"{entry!r} is no sentence"
