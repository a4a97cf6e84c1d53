"""The history of a run in a real Chromium: graph, list and causes, also of ten thousand."""

import time
from collections.abc import Iterator

import pytest

from gymckpt.diagnosis.runs_report import runs_report
from gymckpt.journal import MemoryJournal
from tests.diagnosis.browsing import NARROW, WIDE, Browser, browser
from tests.diagnosis.many import fill, own

SLOW_MACHINE_S = 60.0
"""A bound for making, opening and using a page of 10,000 operations."""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Give one browser to all tests of this module."""
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def page_of(count: int) -> str:
    """Return the page of some operations."""
    journal = MemoryJournal()
    fill(journal, count, take=own)
    return runs_report(journal)


@pytest.fixture(scope="module")
def page() -> str:
    """Give the page of 230 operations, of which 40 were given up."""
    return page_of(230)


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_draws_without_complaint(chromium: Browser, page: str, dark: bool, width: int) -> None:
    """In both themes and widths there are dots and rows, no complaint, and no sideways scroll."""
    chromium.show(page, width=width, dark=dark)
    assert chromium.console() == []
    shown = chromium.run(
        "return [document.documentElement.scrollWidth, innerWidth, SHOWN.points.length,"
        " document.querySelectorAll('#list .listed').length,"
        " performance.getEntriesByType('resource').length]"
    )
    assert shown[0] <= shown[1] == width
    assert shown[2] == 230
    assert 10 < shown[3] < 40
    assert shown[4] == 0


def test_filters_leave_what_they_name(chromium: Browser, page: str) -> None:
    """Kind, end and words are joined, and the count says what is left."""
    chromium.show(page)
    chromium.click("input[name=tone][value=bad]")
    assert chromium.texts("#count") == ["40 of 230"]
    chromium.click("input[name=kind][value=restore]")
    assert chromium.texts("#count") == ["0 of 230"]
    assert chromium.texts("#sizer") == ["No operation is like that."]
    chromium.click("input[name=kind][value='']")
    chromium.write("#find", "No space left")
    assert chromium.texts("#count") == ["10 of 230"]


def test_cause_leads_to_its_operations(chromium: Browser, page: str) -> None:
    """A click on a cause leaves the operations that were given up because of it."""
    chromium.show(page)
    chromium.click("button.cause")
    assert chromium.texts("#count") == ["10 of 230"]
    causes = set(chromium.texts("#list .listed :last-child"))
    assert causes == {chromium.texts("button.cause")[0]}


def test_latest_operation_stands_first(chromium: Browser, page: str) -> None:
    """The list begins with the operation that was opened last, and arrows go down from there."""
    chromium.show(page)
    assert chromium.texts("#list .listed bdi")[:2] == ["step-229", "step-228"]
    chromium.run("document.getElementById('list').focus()")
    chromium.press("ArrowDown", "ArrowDown")
    assert "step-228" in chromium.texts("#say")[0]
    chromium.press("End")
    assert "step-0" in chromium.texts("#say")[0]


def test_hovering_tells_about_an_operation(chromium: Browser, page: str) -> None:
    """Over a row of the list there is what gave the operation up, in its own words."""
    chromium.show(page)
    chromium.click("input[name=tone][value=bad]")
    chromium.write("#find", "manifest")
    chromium.move_to("#list .listed")
    assert "No space left on device" in chromium.texts("#tip")[0]


def test_dots_lie_where_their_times_are(chromium: Browser, page: str) -> None:
    """The longer an operation parked, the higher its dot, for each of the measures."""
    chromium.show(page)
    for measure in ("parked", "working", "whole"):
        chromium.click(f"input[name=measure][value={measure}]")
        points = chromium.run(
            "return SHOWN.points.map(({ one, y }) => [one[arguments[0]], y])", measure
        )
        by_time = sorted(points, key=lambda point: point[0])
        heights = [y for _, y in by_time]
        assert heights == sorted(heights, reverse=True)


def test_ten_thousand_operations_are_quick(chromium: Browser) -> None:
    """The page of 10,000 operations is made, opened, filtered and scrolled to its end soon."""
    page = page_of(10_000)
    began = time.monotonic()
    chromium.show(page)
    assert chromium.texts("#count") == ["10000"]
    chromium.click("input[name=measure][value=working]")
    chromium.write("#find", "step-77")
    assert chromium.texts("#count") == ["111 of 10000"]
    chromium.write("#find", "")
    chromium.run("const list = document.getElementById('list'); list.scrollTop = list.scrollHeight")
    chromium.settle()
    chromium.settle()
    assert chromium.texts("#list .listed bdi")[-1] == "step-0"
    assert len(chromium.texts("#list .listed")) < 60
    assert chromium.console() == []
    assert time.monotonic() - began < SLOW_MACHINE_S
