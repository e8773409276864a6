"""A real Chromium that looks at the console; what it complains about fails the test."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
WIDE = ViewportSize(width=1360, height=860)
PHONE = ViewportSize(width=390, height=844)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def build() -> str:
    """Build the console; why that is not possible, or nothing."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "console.py"], capture_output=True, text=True, check=False
    )
    return done.stderr if done.returncode else ""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The system's browser."""
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """One reader of the console, with cookies of its own."""

    def __init__(
        self, browser: Browser, url: str, viewport: ViewportSize = WIDE, theme: str = "light"
    ) -> None:
        dark = "dark" if theme == "dark" else "light"
        self._context = browser.new_context(
            viewport=viewport, color_scheme=dark, has_touch=viewport is PHONE
        )
        self.page: Page = self._context.new_page()
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on(
            "console",
            lambda row: self.complaints.append(row.text) if row.type == "error" else None,
        )
        self.url = url

    def go(self, place: str) -> Page:
        """Go to a page of the console, by the part of its address after #."""
        self.page.goto(f"{self.url}/console/#/{place}")
        self.page.wait_for_selector("main h1")
        return self.page

    def overflows(self) -> int:
        """By how many pixels the page is wider than the window."""
        found = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        main = self.page.evaluate(
            "(() => { const m = document.querySelector('main');"
            " return m.scrollWidth - m.clientWidth; })()"
        )
        return max(int(found), int(main))

    def close(self) -> None:
        self._context.close()
