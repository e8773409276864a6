"""Links between pages lead to pages and to headings, in the repository and on the site."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def text_of(page: Path) -> str:
    """A page without its examples."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub and the site give to the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        plain = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number, anchor = 0, plain
        while anchor in found:
            number += 1
            anchor = f"{plain}-{number}"
        found.add(anchor)
    return found


def broken(pages: list[Path], root: Path) -> list[str]:
    """Links that lead nowhere."""
    found = []
    for page in pages:
        for link in LINK.findall(text_of(page)):
            if "://" in link or link.startswith("mailto:"):
                continue
            place, _, anchor = link.partition("#")
            target = (page.parent / place).resolve() if place else page
            if not target.exists() or not target.is_relative_to(root):
                found.append(f"{page.relative_to(root)}: {link} is missing")
            elif anchor and anchor not in anchors_of(target):
                found.append(f"{page.relative_to(root)}: {link} has no such heading")
    return found


def test_every_link_leads_to_a_page_and_to_a_heading_of_it():
    assert not broken(PAGES, ROOT)


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page = tmp_path / "a.md"
    page.write_text(
        "# One\n## `x`, *two*\n[a](b.md) [b](#one) [c](#x-two) [d](#gone) `[e](e.md)`\n"
    )
    assert broken([page], tmp_path) == ["a.md: b.md is missing", "a.md: #gone has no such heading"]
    page.write_text("# One\n# One\n[a](#one-1) [b](#one-2)\n```\n# Two\n[c](c.md)\n```\n")
    assert broken([page], tmp_path) == ["a.md: #one-2 has no such heading"]


def load_site():
    spec = importlib.util.spec_from_file_location("site_builder", ROOT / "tools" / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages_in(rows: list[dict]) -> list[str]:
    """The pages of a navigation."""
    return [
        page
        for row in rows
        for value in row.values()
        for page in (pages_in(value) if isinstance(value, list) else [value])
    ]


def test_the_site_has_every_page_once_in_the_order_of_the_index_and_what_pages_link_to(tmp_path):
    site = load_site()
    target = tmp_path / "pages"
    site.assemble(target)
    listed = pages_in(site.navigation((ROOT / "docs" / "index.md").read_text()))
    pages = {path.relative_to(target).as_posix() for path in target.rglob("*.md")}
    assert set(listed) == pages - {"docs/index.md"}
    assert len(set(listed)) == len(listed)
    assert not broken(sorted(target.rglob("*.md")), target)
