"""Every section that a comment cites is there."""

from __future__ import annotations

import re

from tests.repo import house

_CITED = re.compile(r"DESIGN,?\s+(?:section\s+)?([SL]?\d+)|protocol facts,\s+(\d+)")


def _numbers(page: str, pattern: str) -> set[str]:
    return set(re.findall(pattern, (house.ROOT / "docs" / page).read_text(), re.MULTILINE))


def test_cited_sections_exist() -> None:
    """A citation of the design or of the protocol leads to a heading or a promise."""
    design = _numbers("design.md", r"^## (\d+)\.") | _numbers("design.md", r"^- \*\*([SL]\d)\*\*")
    protocol = _numbers("protocol.md", r"^## (\d+)\.")
    cited = [
        (path.name, match)
        for path in sorted((house.ROOT / "gymckpt").rglob("*.py"))
        for match in _CITED.findall(path.read_text())
    ]
    assert len(cited) > 20
    missing = [
        where
        for where in cited
        if (where[1][0] and where[1][0] not in design)
        or (where[1][1] and where[1][1] not in protocol)
    ]
    assert missing == []
