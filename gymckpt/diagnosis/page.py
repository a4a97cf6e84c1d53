"""
One self-contained HTML page: its shell, its safety, and how times are written on it.

A page runs only the style and the script that it carries: its policy names both by their digests,
so whatever text got into it, nothing else runs and nothing is fetched. Text from outside enters
markup only through `escaped`, and the script's data only as JSON in which nothing can end the
element. No attribute holds style or script.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import html
import importlib.resources
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from gymckpt.wording import visible

__all__ = ["Page", "Tile", "clock_text", "escaped", "foreign", "seconds_text", "tiles"]

_ASSETS = importlib.resources.files("gymckpt.diagnosis") / "assets"


@attrs.frozen(kw_only=True)
class Page:
    """What fills the shell."""

    title: str
    body: str
    """Markup; whatever is not the author's own went through `escaped`."""
    data: Any
    """Plain JSON data for the scripts."""
    scripts: Sequence[str]
    """Names of assets, in the order in which they run."""

    def html(self) -> str:
        """Return the whole document; it can always be written as UTF-8."""
        style = _asset("page.css")
        script = "\n".join(_asset(name) for name in self.scripts)
        policy = (
            f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        )
        return "\n".join(
            [
                "<!doctype html>",
                '<html lang="en">',
                "<head>",
                '<meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                '<meta name="color-scheme" content="light dark">',
                '<meta name="referrer" content="no-referrer">',
                '<link rel="icon" href="data:,">',
                f"<title>{escaped(self.title)}</title>",
                f"<style>{style}</style>",
                "</head>",
                "<body>",
                self.body,
                f'<script type="application/json" id="data">{_json(self.data)}</script>',
                f"<script>{script}</script>",
                "</body>",
                "</html>",
                "",
            ]
        )


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return how a policy names an inline element with this content."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _json(data: Any) -> str:
    """Return data as JSON that no HTML parser can leave: ASCII only, without any markup."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def escaped(text: object) -> str:
    """
    Return a text as markup that shows it, in any element and in any quoted attribute.

    Args:
        text: Anything.
    """
    return html.escape(visible(text), quote=True)


def foreign(text: object) -> str:
    """
    Return a text from outside as markup that cannot turn its surroundings around.

    Args:
        text: An id, an error, a reason: whatever somebody else wrote.
    """
    return f"<bdi>{escaped(text)}</bdi>"


@attrs.frozen(kw_only=True)
class Tile:
    """One fact at the top of a page."""

    name: str
    value: str
    """Markup."""
    detail: str = ""
    """Markup."""
    tone: str = ""
    """`good`, `bad`, `busy` or none."""


def tiles(facts: Iterable[Tile]) -> str:
    """
    Return the facts at the top of a page.

    Args:
        facts: In the order in which they should be read.
    """
    items: list[str] = []
    for fact in facts:
        detail = f'<span class="detail">{fact.detail}</span>' if fact.detail else ""
        tone = f" {fact.tone}" if fact.tone else ""
        items.append(
            f'<div class="tile{tone}"><dt>{escaped(fact.name)}</dt>'
            f'<dd><span class="value">{fact.value}</span>{detail}</dd></div>'
        )
    return f'<dl class="tiles">{"".join(items)}</dl>'


def seconds_text(seconds: float) -> str:
    """
    Return a duration as people write it, with three digits that matter; the scripts agree.

    Args:
        seconds: Any finite number.
    """
    if not math.isfinite(seconds):
        return "?"
    sign, size_s = ("-", -seconds) if seconds < 0 else ("", seconds)
    return sign + (_below_a_minute(size_s) if size_s < 59.95 else _from_a_minute(size_s))


def _below_a_minute(size_s: float) -> str:
    if size_s < 0.0995:
        return f"{math.floor(size_s * 1000 + 0.5)} ms" if size_s else "0 s"
    if size_s < 9.995:
        return f"{math.floor(size_s * 100 + 0.5) / 100:.2f} s"
    return f"{math.floor(size_s * 10 + 0.5) / 10:.1f} s"


def _from_a_minute(size_s: float) -> str:
    whole = math.floor(size_s + 0.5)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = math.floor(size_s / 60 + 0.5)
    if minutes < 60 * 48:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = math.floor(size_s / 3600 + 0.5)
    return f"{hours // 24} days {hours % 24} h"


def clock_text(ts: float) -> str:
    """
    Return a moment in UTC; the bare number where no calendar has it.

    Args:
        ts: Epoch seconds.
    """
    try:
        moment = datetime.datetime.fromtimestamp(ts, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return f"{ts!r} s since 1970"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
