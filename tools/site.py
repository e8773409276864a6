"""Builds the documentation as a site with search: `python tools/site.py FOLDER`.

Rules: pages keep the places that they have in the repository, so a link that works in one works in
the other. The order of the pages is that of docs/index.md. A link that leads nowhere, to a page or
to a heading, fails the build. The site loads nothing from other machines.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIRST = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE")
WORKER = ROOT / "tools" / "site_worker.js"
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)[^)]*\)")


def assemble(target: Path) -> None:
    """Copy the pages, and the files of the repository that they link to."""
    shutil.copytree(ROOT / "docs", target / "docs")
    (target / "iframe-worker").mkdir()
    shutil.copy2(WORKER, target / "iframe-worker" / WORKER.name)
    for name in FIRST:
        shutil.copy2(ROOT / name, target / name)
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for _title, place in LINK.findall(page.read_text()):
            linked = (page.parent / place).resolve()
            if "://" not in place and linked.is_file() and linked.is_relative_to(ROOT):
                copy = target / linked.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(linked, copy)


def navigation(index: str) -> list[dict[str, Any]]:
    """The sections of docs/index.md with their pages; the first page is the README."""
    rows: list[dict[str, Any]] = [{"OneLog": "README.md"}]
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        pages = [
            {name: (Path("docs") / place).as_posix().replace("docs/../", "")}
            for name, place in LINK.findall(body)
        ]
        rows.append({title: pages})
    return rows


def settings(pages: Path, target: Path) -> dict[str, Any]:
    """What MkDocs is told; JSON is YAML."""
    return {
        "site_name": "OneLog",
        "site_description": "One broker for MQTT, Kafka and AMQP on one append-only log",
        "docs_dir": str(pages),
        "site_dir": str(target),
        "use_directory_urls": False,
        "nav": navigation((ROOT / "docs" / "index.md").read_text()),
        "not_in_nav": "/docs/index.md\n",
        "plugins": ["search", "offline"],  # it also works from a folder, without a server
        # The name keeps the plugin from a script of another machine.
        "extra": {"polyfills": [f"iframe-worker/{WORKER.name}"]},
        "theme": {
            "name": "material",
            "font": False,
            "features": [
                "content.code.copy",
                "navigation.footer",
                "navigation.indexes",
                "navigation.top",
                "search.highlight",
                "search.suggest",
                "toc.follow",
            ],
            "palette": [
                {"media": "(prefers-color-scheme: light)", "scheme": "default"},
                {"media": "(prefers-color-scheme: dark)", "scheme": "slate"},
            ],
        },
        "markdown_extensions": [
            "tables",
            "pymdownx.superfences",
            "pymdownx.highlight",
            {"toc": {"permalink": True, "slugify": "SLUGIFY"}},
        ],
        "validation": {
            "nav": {"omitted_files": "warn", "not_found": "warn", "absolute_links": "warn"},
            "links": {
                "not_found": "warn",
                "anchors": "warn",
                "absolute_links": "warn",
                "unrecognized_links": "warn",
            },
        },
    }


# The anchors of headings are those that GitHub gives them.
SLUGIFY = '!!python/object/apply:pymdownx.slugs.slugify {kwds: {case: "lower"}}'


def main() -> None:
    """Build the site into a folder, which is made anew."""
    target = Path(sys.argv[1]).resolve()
    scratch = target.with_name(f"{target.name}-pages")
    for folder in (target, scratch):
        shutil.rmtree(folder, ignore_errors=True)
    assemble(scratch)
    file = scratch.with_suffix(".yml")
    text = json.dumps(settings(scratch, target), indent=2)
    file.write_text(text.replace('"SLUGIFY"', SLUGIFY))
    # Not with --quiet: MkDocs would not count the warnings that --strict makes errors.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(file)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # news of the theme's authors
    done = subprocess.run(  # noqa: S603 - our own interpreter
        command, env=quiet, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if not line.startswith("INFO")]
        sys.exit("\n".join(told))
    sys.stdout.write(f"onelog: the site is in {target}: open {target / 'index.html'}\n")


if __name__ == "__main__":
    main()
