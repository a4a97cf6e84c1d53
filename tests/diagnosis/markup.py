"""Read a page as a browser does, as far as its tests need it, and say what is wrong with it."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import attrs

VOID = frozenset({"meta", "link", "input", "br"})
DRAWN = frozenset({"path", "rect", "circle"})
"""SVG elements that end where they begin."""


@attrs.define
class Element:
    """One element with its attributes and its own text."""

    tag: str
    attributes: dict[str, str]
    text: str = ""


class Reader(HTMLParser):
    """Collect elements, and faults of the markup."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.faults: list[str] = []
        self._open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        for name, value in element.attributes.items():
            if name == "style" or name.startswith("on"):
                self.faults.append(f"<{tag}> has {name}={value!r}")
            if name in ("src", "href", "action") and not value.startswith(("data:,", "#")):
                self.faults.append(f"<{tag}> leads to {value!r}")
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1].tag != tag:
            self.faults.append(f"</{tag}> closes {self._open[-1].tag if self._open else 'nothing'}")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def close(self) -> None:
        super().close()
        self.faults += [f"<{element.tag}> is never closed" for element in self._open]


def read(page: str) -> Reader:
    """Return what a page consists of."""
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def of(reader: Reader, tag: str) -> list[Element]:
    """Return the elements of one kind."""
    return [element for element in reader.elements if element.tag == tag]


def data_in(page: str) -> Any:
    """Return the data that a page hands to its scripts."""
    found = [one for one in of(read(page), "script") if one.attributes.get("id") == "data"]
    assert len(found) == 1
    return json.loads(found[0].text)


def text_in(page: str) -> str:
    """Return everything that can be read in the body of a page, but for its scripts."""
    without = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return read(without).elements[0].text


def faults_of(page: str) -> list[str]:
    """Return everything that is wrong with a page as a self-contained and safe document."""
    reader = read(page)
    faults = list(reader.faults)
    policies = [
        element.attributes["content"]
        for element in of(reader, "meta")
        if element.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    if len(policies) != 1 or "default-src 'none'" not in policies[0] or "unsafe" in policies[0]:
        faults.append(f"the policy is {policies}")
    inline = [*of(reader, "style"), *of(reader, "script")]
    ran = [one for one in inline if one.attributes.get("type") != "application/json"]
    for element in ran:
        digest = base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        if f"{element.tag}-src 'sha256-{digest}'" not in policies[0]:
            faults.append(f"the policy does not allow the page's own <{element.tag}>")
    if [element.tag for element in ran] != ["style", "script"]:
        faults.append(f"there are {[element.tag for element in ran]}")
    outside = re.findall(r"(?i)\b(?:https?|wss?|ftp):|\bimport\(|@import|url\((?!#)", page)
    return faults + [f"it reaches out: {address}" for address in outside]
