"""`make site`: every page of the documentation is in the site, and the search knows it."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.site import ROOT, assemble, navigation

INDEX = (ROOT / "docs" / "index.md").read_text()
LOADED = re.compile(r"<(?:script|img|iframe)[^>]*\ssrc=\"([^\"]+)|<link[^>]*\shref=\"([^\"]+)")
needs_mkdocs = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("mkdocs", "material"))),
    reason="MkDocs is not here: `make site` installs it",
)


def pages() -> list[str]:
    """The sources of the pages that the site's menu shows."""
    return [
        place
        for section in navigation(INDEX)
        for rows in section.values()
        for place in (
            [rows] if isinstance(rows, str) else [next(iter(row.values())) for row in rows]
        )
    ]


def test_the_menu_has_the_pages_of_the_index_and_each_is_there(tmp_path):
    assemble(tmp_path)
    assert len(pages()) > 40
    assert [name for name in pages() if not (tmp_path / name).is_file()] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("site") / "built"
    tool = [sys.executable, str(ROOT / "tools" / "site.py"), str(target)]
    done = subprocess.run(tool, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return target


def built(site: Path, name: str) -> Path:
    if name == "README.md":
        return site / "index.html"
    return (site / name).with_suffix(".html") if name.endswith(".md") else site / name


@needs_mkdocs
def test_every_page_is_built_and_found_by_the_search(site):
    rows = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    found = {row["location"].partition("#")[0] or "index.html" for row in rows if row["text"]}
    for name in pages():
        page = built(site, name)
        assert page.is_file(), name
        if name.endswith(".md"):
            assert page.relative_to(site).as_posix() in found, name
    words = {row["location"] for row in rows if "onelog doctor" in row["text"]}
    assert words, "the search does not know the text of pages"


@needs_mkdocs
def test_the_site_loads_nothing_from_other_machines(site):
    foreign = {
        place
        for page in site.rglob("*.html")
        for match in LOADED.finditer(page.read_text())
        if 'rel="canonical"' not in match.group(0)
        for place in match.groups()
        if place and re.match(r"(?:https?:)?//", place)
    }
    assert not foreign


@needs_mkdocs
@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not here")
def test_the_search_finds_pages_of_a_site_that_lies_in_a_folder(site):
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "docs" / "guide" / "cli.html").as_uri())
        page.fill("input.md-search__input", "doctor", force=True)
        page.wait_for_selector(".md-search-result__item a", state="attached")
        browser.close()
    assert all(place.startswith("file:") for place in asked)
