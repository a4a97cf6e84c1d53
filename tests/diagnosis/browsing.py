"""A real Chromium for the tests of pages; where there is none they are skipped, with the reason."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DRIVERS = ("chromedriver", "chromium.chromedriver")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)

WIDE, NARROW = 1280, 390


def _first(names: tuple[str, ...]) -> str | None:
    return next((found for name in names if (found := shutil.which(name))), None)


class Browser:
    """One page at a time, as a person sees it."""

    def __init__(self, driver: Any, directory: Path) -> None:
        self.driver = driver
        self._directory = directory

    def show(self, page: str, *, width: int = WIDE, dark: bool = False) -> None:
        """Load a page and wait until its script has drawn, or fail with what the console says."""
        self.theme(dark=dark)
        self._command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        file = self._directory / "page.html"
        file.write_text(page, encoding="utf-8")
        self.driver.get(file.as_uri())
        assert self.run("return document.documentElement.dataset.drawn") == "yes", self.console()
        self.settle()

    def theme(self, *, dark: bool) -> None:
        """Prefer one of the two themes."""
        value = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        self._command("Emulation.setEmulatedMedia", features=features)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script as the body of a function, and return what it returns."""
        return self.driver.execute_script(script, *arguments)

    def settle(self) -> None:
        """Wait until everything that was due in the next two frames has been drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0];"
            "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)));"
        )

    def texts(self, selector: str) -> list[str]:
        """Return the text of every element that matches."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)",
            selector,
        )

    def move_to(self, selector: str, index: int = 0) -> None:
        """Move the pointer over the middle of an element."""
        x, y = self.run(
            "const one = document.querySelectorAll(arguments[0])[arguments[1]];"
            "one.scrollIntoView({ block: 'center' });"
            "const box = one.getBoundingClientRect();"
            "return [box.left + Math.min(box.width, innerWidth) / 2, box.top + box.height / 2]",
            selector,
            index,
        )
        self.settle()
        self._command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def click(self, selector: str, index: int = 0) -> None:
        """Click an element as its page hears it."""
        self.run("document.querySelectorAll(arguments[0])[arguments[1]].click()", selector, index)
        self.settle()

    def press(self, *keys: str) -> None:
        """Press keys, by their names, on whatever has the focus."""
        for key in keys:
            for kind in ("keyDown", "keyUp"):
                self._command("Input.dispatchKeyEvent", type=kind, key=key)
        self.settle()

    def write(self, selector: str, text: str) -> None:
        """Put a text into a field, as if it had been written."""
        self.run(
            "const field = document.querySelector(arguments[0]);"
            "field.value = arguments[1];"
            "field.dispatchEvent(new Event('input', { bubbles: true }))",
            selector,
            text,
        )
        self.settle()

    def console(self) -> list[str]:
        """Return what the console has said since it was last asked."""
        return [f"{one['level']}: {one['message']}" for one in self.driver.get_log("browser")]

    def _command(self, name: str, **arguments: Any) -> None:
        self.driver.execute_cdp_cmd(name, arguments)


@contextmanager
def browser(directory: Path) -> Iterator[Browser]:
    """
    Give a browser with an empty profile.

    Args:
        directory: An empty directory for the profile and the pages.
    """
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program, driver_program = _first(BROWSERS), _first(DRIVERS)
    if program is None or driver_program is None:
        missing = "Chromium" if program is None else "chromedriver"
        pytest.skip(f"there is no {missing} on the PATH; install chromium and chromium-driver")
    options = selenium.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={directory / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = selenium.ChromeService(executable_path=driver_program)
    driver = selenium.Chrome(options=options, service=service)
    try:
        driver.set_script_timeout(60)
        driver.set_page_load_timeout(120)
        yield Browser(driver, directory)
    finally:
        driver.quit()
