"""Finds the ResourceManager of a YARN in the files of its configuration.

Rules: this only checks that the manager answers before Spark starts, because Spark itself would try
for a quarter of an hour. Values that the files do not give plainly (variables, included files) are
not guessed: then Spark looks for the manager itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from xml.etree import ElementTree

PREFIX: Final = "yarn.resourcemanager."
PORT: Final = 8032
FILE: Final = "yarn-site.xml"


def resource_managers(folder: Path) -> list[tuple[str, int]]:
    """Hosts and ports of all of them; none when the files do not say it."""
    told = _settings(folder / FILE)
    names = [name.strip() for name in told.get(f"{PREFIX}ha.rm-ids", "").split(",")]
    endings = [f".{name}" for name in names if name] or [""]
    found = []
    for ending in endings:
        host = told.get(f"{PREFIX}hostname{ending}", "")
        text = told.get(f"{PREFIX}address{ending}", f"{host}:{PORT}" if host else "")
        text = text.replace(f"${{{PREFIX}hostname}}", told.get(f"{PREFIX}hostname", "$"))
        name, _, port = text.rpartition(":")
        if name and port.isdecimal() and "$" not in name:
            found.append((name, int(port)))
    return found


def _settings(file: Path) -> dict[str, str]:
    try:
        root = ElementTree.parse(file).getroot()  # noqa: S314 - the user's own configuration
    except (OSError, ElementTree.ParseError):
        return {}  # Hadoop itself says what is wrong with it
    pairs = ((one.findtext("name"), one.findtext("value")) for one in root.iter("property"))
    return {name.strip(): text.strip() for name, text in pairs if name and text}
