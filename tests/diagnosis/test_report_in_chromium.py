"""The page of one operation in a real Chromium: it draws, filters, tells, and stays quick."""

import functools
import re
import time
from collections.abc import Iterator

import attrs
import pytest

from gymckpt.core.entry import Entry
from gymckpt.diagnosis.page import seconds_text
from gymckpt.diagnosis.report import report
from tests.diagnosis import pictured
from tests.diagnosis.browsing import NARROW, WIDE, Browser, browser
from tests.diagnosis.pictured import START_TS, STORIES, played
from tests.diagnosis.test_report import HOSTILE, poisoned

SLOW_MACHINE_S = 30.0
"""A bound that only a page which does work per instance and per pixel exceeds."""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Give one browser to all tests of this module."""
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@functools.cache
def history(name: str) -> tuple[Entry, ...]:
    """Return a story's history."""
    return played(STORIES[name]())


@functools.cache
def page(name: str) -> str:
    """Return a story's page, drawn until its end."""
    until_s = STORIES[name]().until_s
    return report(history(name), now_ts=START_TS + until_s if until_s < 5000 else None)


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", sorted(set(STORIES) - {"crowd"}))
def test_page_draws_without_complaint(
    chromium: Browser, name: str, dark: bool, width: int, thorough: bool
) -> None:
    """In both themes and widths there are bars, no word on the console, and no sideways scroll."""
    if dark == (width == WIDE) and not thorough:
        pytest.skip("each theme is tried in one width: run pytest with --thorough")
    chromium.show(page(name), width=width, dark=dark)
    assert chromium.console() == []
    assert len(chromium.texts(".row.lane")) == 12
    shown = chromium.run(
        "return [document.documentElement.scrollWidth, innerWidth,"
        " document.querySelectorAll('.bar').length,"
        " document.querySelector('svg.chart').getBoundingClientRect().width,"
        " performance.getEntriesByType('resource').length]"
    )
    assert shown[0] <= shown[1] == width
    assert shown[2] >= 12
    assert 200 < shown[3] < width
    assert shown[4] == 0


def test_bars_lie_where_their_times_are(chromium: Browser) -> None:
    """To scale, the bars of one call are as wide as they took, and begin at one place."""
    chromium.show(page("not_ready"))
    chromium.click("input[name=scale][value=true]")
    bars = chromium.run(
        "return [...document.querySelectorAll('.bar')]"
        ".filter((bar) => bar.span.call === 'prepare')"
        ".map((bar) => [bar.span.seconds, parseFloat(bar.style.width), parseFloat(bar.style.left)])"
    )
    assert len(bars) == 12
    per_s = {round(width / seconds, 2) for seconds, width, _ in bars if seconds > 1}
    assert max(per_s) - min(per_s) < 0.05
    assert {left for _, _, left in bars} == {0}


def test_filter_shows_who_is_in_trouble(chromium: Browser) -> None:
    """Each filter leaves exactly the instances that it names, and says how many."""
    chromium.show(page("dead"))
    chromium.click("input[name=filter][value=trouble]")
    assert chromium.texts(".row.lane .name bdi") == ["browser/replica-1"]
    assert chromium.texts("#count") == ["1 of 12 instances"]
    chromium.click("input[name=filter][value=all]")
    assert chromium.texts("#count") == ["12 instances"]
    assert len(chromium.texts(".row.group")) == 3


def test_filter_shows_who_is_slow_and_who_is_waited_for(chromium: Browser) -> None:
    """The instance that has not answered is the one that is slow and waited for."""
    chromium.show(page("hung"))
    for value in ("slow", "waiting"):
        chromium.click(f"input[name=filter][value={value}]")
        assert chromium.texts(".row.lane .name bdi") == ["swe/replica-2"]


def test_filter_without_anybody_cannot_be_chosen(chromium: Browser) -> None:
    """Where nobody is in trouble the filter for it is off, and says so."""
    chromium.show(page("good"))
    assert chromium.run("return document.querySelector('input[value=trouble]').disabled")
    assert "in trouble 0" in chromium.texts(".choice span")


def test_search_finds_ids_and_words_of_errors(chromium: Browser) -> None:
    """What is written into the field is looked for in ids and in failures, in any case."""
    chromium.show(page("not_ready"))
    chromium.write("#find", "MATH-18-a1")
    assert chromium.texts(".row.lane .name bdi") == ["swe/replica-2"]
    chromium.write("#find", "tools/")
    assert len(chromium.texts(".row.lane")) == 4
    chromium.write("#find", "nobody")
    assert chromium.texts("#sizer") == ["No instance is like that."]


def test_order_by_name_is_the_order_of_the_operation(chromium: Browser) -> None:
    """Worst first, trouble and then the slowest lead their group; by name they do not."""
    chromium.show(page("dead"))
    assert chromium.texts(".row.lane .name bdi")[0] == "browser/replica-1"
    chromium.click("input[name=order][value=name]")
    assert chromium.texts(".row.lane .name bdi")[:4] == [
        f"browser/replica-{number}" for number in range(4)
    ]


def test_hovering_tells_what_came_of_an_ask(chromium: Browser) -> None:
    """Over a bar there is the call, what it came to, how long it took and the failure's words."""
    chromium.show(page("dead"))
    chromium.move_to(".bar.gone")
    (words,) = chromium.texts("#tip")
    assert not chromium.run("return document.getElementById('tip').hidden")
    for expected in ("browser/replica-1", "commit, ask 1: gone, after 1.20 s", "ActorDiedError"):
        assert expected in words
    chromium.move_to("h1")
    assert chromium.run("return document.getElementById('tip').hidden")


def test_hovering_tells_the_blockers(chromium: Browser) -> None:
    """Over the bar of an instance that could not park there is what was in its way."""
    chromium.show(page("not_ready"), width=NARROW)
    chromium.move_to(".bar.refused")
    (words,) = chromium.texts("#tip")
    assert "agent: 3 in the way: math-17, math-18-a1, web-4" in words


def test_tip_stays_on_the_screen(chromium: Browser, thorough: bool) -> None:
    """However close to an edge its bar is, the box of details is inside the window."""
    for width in (WIDE, NARROW):
        chromium.show(page("unconfirmed"), width=width)
        for index in range(0, len(chromium.texts(".bar")), 1 if thorough else 3):
            chromium.move_to(".bar", index)
            box = chromium.run(
                "const box = document.getElementById('tip').getBoundingClientRect();"
                "return [box.left, box.top, innerWidth - box.right, innerHeight - box.bottom]"
            )
            assert min(box) >= 0


def test_keyboard_reaches_every_ask_and_says_it_aloud(chromium: Browser) -> None:
    """Arrows go to rows and along their asks, each is announced; Enter closes, Escape hides."""
    chromium.show(page("dead"))
    chromium.run("document.getElementById('rows').focus()")
    chromium.press("ArrowDown", "ArrowDown")
    assert (
        chromium.run("return document.activeElement.getAttribute('aria-activedescendant')")
        == "row-1"
    )
    assert "browser/replica-1" in chromium.texts("#say")[0]
    chromium.press("ArrowRight", "ArrowRight", "ArrowRight")
    assert "commit, ask 1: gone" in chromium.texts("#say")[0]
    assert len(chromium.texts(".bar.picked")) == 1
    chromium.press("Escape")
    assert chromium.run("return document.getElementById('tip').hidden")
    chromium.press("Home", "Enter")
    assert len(chromium.texts(".row.lane")) == 8
    assert (
        chromium.run("return document.getElementById('row-0').getAttribute('aria-expanded')")
        == "false"
    )
    chromium.press("ArrowRight")
    assert len(chromium.texts(".row.lane")) == 12


def test_everything_that_acts_can_be_reached_by_tab(chromium: Browser) -> None:
    """Choices, the search field, the rows and what opens are all in the order of the tabulator."""
    chromium.show(page("restore_discarded"))
    chromium.run("document.body.focus()")
    reached = set()
    for _ in range(12):
        chromium.press("Tab")
        reached.add(
            chromium.run(
                "const one = document.activeElement; return one.id || one.name || one.tagName"
            )
        )
    assert {"filter", "order", "scale", "find", "rows", "SUMMARY"} <= reached


def test_theme_follows_the_system_while_the_page_is_open(chromium: Browser) -> None:
    """Ground and writing change with the system's theme, and back."""
    chromium.show(page("crowd"))
    colours = []
    for dark in (False, True, False):
        chromium.theme(dark=dark)
        chromium.settle()
        colours.append(
            chromium.run(
                """
                const style = getComputedStyle(document.body);
                const canvas = document.querySelector(".row canvas");
                const context = canvas.getContext("2d");
                const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
                return [style.backgroundColor, style.color, data.reduce((a, b) => a + b, 0)];
                """
            )
        )
    assert colours[0] == colours[2]
    assert all(one != other for one, other in zip(colours[0], colours[1], strict=True))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_writing_can_be_read(chromium: Browser, dark: bool) -> None:
    """In both themes every text has a contrast of 4.5 to what it stands on."""
    chromium.show(page("not_ready"), dark=dark)
    pairs = chromium.run(
        """
        const flat = (element) => {
          for (let one = element; one; one = one.parentElement) {
            const colour = getComputedStyle(one).backgroundColor;
            if (/^rgb\\(/.test(colour)) return colour;
          }
          return "rgb(255, 255, 255)";
        };
        const speaks = (node) => node.nodeType === 3 && node.data.trim();
        const odd = "script, svg, :disabled + span";
        return [...document.querySelectorAll("body *")]
          .filter((one) => [...one.childNodes].some(speaks))
          .filter((one) => one.getClientRects().length && !one.closest(odd))
          .map((one) => [getComputedStyle(one).color, flat(one), one.className, one.textContent]);
        """
    )
    assert len(pairs) > 60
    for ink, ground, kind, text in pairs:
        assert contrast(ink, ground) >= 4.5, (kind, text, ink, ground)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG 2 defines it."""
    lights = sorted((_luminance(one), _luminance(other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(found) / 255 for found in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_hostile_words_run_nothing(chromium: Browser) -> None:
    """Markup in ids, failures, blockers and reasons is shown as text, in every place."""
    for name in ("dead", "not_ready"):
        for start in range(len(HOSTILE)):
            words = [HOSTILE[(start + shift) % len(HOSTILE)] for shift in range(4)]
            chromium.show(report(poisoned(history(name), words)))
            chromium.move_to(".bar.gone, .bar.refused")
            chromium.click(".row.lane")
            assert chromium.run("return window.pwned") is None
            assert chromium.run("return document.querySelectorAll('img, iframe').length") == 0
            assert chromium.console() == []


def test_policy_refuses_what_is_not_the_pages_own(chromium: Browser) -> None:
    """Even a script, a style or a picture that got into the page does nothing, by its policy."""
    chromium.show(page("good"))
    chromium.run(
        """
        const script = document.createElement("script");
        script.textContent = "window.pwned = 1";
        const style = document.createElement("style");
        style.textContent = "h1 { display: none !important }";
        const image = document.createElement("img");
        image.src = "page.html";
        document.body.append(script, style, image);
        """
    )
    chromium.settle()
    assert chromium.run("return window.pwned") is None
    assert chromium.run("return getComputedStyle(document.querySelector('h1')).display") == "flex"
    refused = [line for line in chromium.console() if "Content Security Policy" in line]
    assert len(refused) == 3


def test_durations_read_the_same_everywhere(chromium: Browser) -> None:
    """The scripts write a duration as the rest of the page does."""
    chromium.show(page("good"))
    seconds = [
        10**exponent * digits for exponent in range(-5, 8) for digits in (1, 1.5, 2.345, 5.95)
    ]
    seconds += [0, -3.2, 0.0994, 0.0996, 9.994, 9.996, 59.94, 59.96, 3599.4, 3599.6, 172770, 172830]
    assert chromium.run("return arguments[0].map(secondsText)", seconds) == [
        seconds_text(one) for one in seconds
    ]


def test_time_axis_goes_both_ways(chromium: Browser) -> None:
    """In both scales a moment's pixel leads back to the moment, and time never runs backwards."""
    for name in ("good", "parked_long", "unconfirmed"):
        chromium.show(page(name))
        for fitted in (True, False):
            found = chromium.run(
                """
                const scale = new Scale(DATA, 900, arguments[0]);
                const moments = [...Array(200).keys()].map((index) => (index / 199) * DATA.end);
                return moments.map((at) => [at, scale.x(at), scale.at(scale.x(at))]);
                """,
                fitted,
            )
            assert [x for _, x, _ in found] == sorted(x for _, x, _ in found)
            for at_s, _, back_s in found:
                assert back_s == pytest.approx(at_s, abs=0.01 * found[-1][0])


# --- two thousand instances ---------------------------------------------------------------------


def test_two_thousand_instances_are_quick(chromium: Browser) -> None:
    """The page opens, filters, and scrolls to its end soon, and never makes a row per instance."""
    began = time.monotonic()
    chromium.show(page("crowd"))
    rows = "return document.querySelectorAll('.row').length"
    assert chromium.texts("#count") == ["2000 instances"]
    assert chromium.texts(".row.group .name bdi")[0] == "look here first"
    assert chromium.texts(".row.lane .name bdi")[0] == "swe/replica-401"
    assert len(chromium.texts(".row canvas")) > 3
    chromium.click("input[name=filter][value=trouble]")
    assert chromium.texts("#count") == ["10 of 2000 instances"]
    chromium.click("input[name=filter][value=all]")
    chromium.write("#find", "replica-")
    assert chromium.texts("#count") == ["2000 instances"]
    assert chromium.run(rows) < 150
    chromium.run("const rows = document.getElementById('rows'); rows.scrollTop = rows.scrollHeight")
    chromium.settle()
    chromium.settle()
    assert chromium.run(rows) < 150
    last = chromium.run("return LANES.map((lane) => lane).sort(byWorst).at(-1).instance")
    assert chromium.texts(".row.lane .name bdi")[-1] == last
    assert chromium.console() == []
    assert time.monotonic() - began < SLOW_MACHINE_S


def test_groups_of_a_crowd_open(chromium: Browser) -> None:
    """A group opens to its instances, worst first, and closes again."""
    chromium.show(page("crowd"))
    before = len(chromium.texts(".row.lane"))
    group = chromium.texts(".row.group .name bdi").index("swe 0\u201399")
    chromium.click(".row.group", group)
    assert chromium.run("return PICTURE.rows.length") == 100 + 8 + 21
    chromium.click(".row.group", group)
    assert len(chromium.texts(".row.lane")) == before


def test_density_shows_the_few_in_trouble(chromium: Browser) -> None:
    """One instance of a hundred in trouble is to be seen in the row of its group."""
    story = attrs.evolve(
        pictured.crowd(200),
        answering=pictured.but(
            {("swe/replica-7", "commit"): pictured.Answer(5.0, "failed", failure=pictured.FULL)}
        ),
    )
    chromium.show(report(played(story)))
    coloured = """
        const groups = [...document.querySelectorAll(".row.group")];
        return Object.fromEntries(groups.filter((row) => row.querySelector("canvas")).map((row) => {
          const canvas = row.querySelector("canvas");
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          let red = 0;
          for (let at = 0; at < data.length; at += 4) {
            if (data[at] === 0xd5 && data[at + 1] === 0x5e && data[at + 2] === 0) red += 1;
          }
          return [row.querySelector("bdi").textContent, red];
        }));
    """
    found = chromium.run(coloured)
    assert found.pop("swe") > 20
    assert set(found.values()) == {0}
