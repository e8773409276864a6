"""Takes the pictures of docs/guide/console.md: `python -m tests.console.pictures FOLDER [PAGE…]`.

Every page in light on a screen; with `--all` also in the dark and on a phone, to look at.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.console.browsing import PHONE, WIDE, Visitor, build, chromium
from tests.console.scene import TOPIC, Scene

NAME = TOPIC.replace("/", "%2F")
PICTURES = {
    "overview": "overview",
    "picture": f"picture?topic={NAME}",
    "messages": "messages?filter=sensors%2F%23",
    "topics": "topics?search=sensors",
    "streams": "streams",
    "stream": "streams?name=telemetry",
    "cursors": "cursors",
    "cursor": "cursors?name=kafka%3Abilling",
    "connections": "connections",
    "mqtt": "sessions",
    "kafka": "groups",
    "amqp": "queues",
    "access": "access",
    "rules": "access?tab=rules",
    "quotas": "quotas",
    "bans": "quotas?tab=bans",
    "audit": "audit",
    "backups": "backups",
    "pipelines": "pipelines",
    "nodes": "nodes",
}
SETTLED_MS = 3500


def is_wanted(name: str, shape: str, wanted: list[str]) -> bool:
    if "--all" in wanted:
        return True
    if shape and name != "picture":
        return False
    return not wanted or name in wanted


def take(folder: Path, wanted: list[str]) -> None:
    """Take them."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        scene = Scene(Path(place))
        try:
            scene.live()
            scene.wait()
            with chromium() as browser:
                for size, kind in ((WIDE, "light"), (WIDE, "dark"), (PHONE, "light")):
                    visitor = Visitor(browser, scene.url, size, kind)
                    for name, address in PICTURES.items():
                        shape = "-phone" if size is PHONE else "-dark" if kind == "dark" else ""
                        if not is_wanted(name, shape, wanted):
                            continue
                        page = visitor.go(address)
                        page.wait_for_timeout(SETTLED_MS)
                        keep(page.screenshot(), folder / f"{name}{shape}.png")
                    for row in visitor.complaints:
                        sys.stderr.write(f"{row}\n")
                    visitor.close()
        finally:
            scene.close()


def keep(picture: bytes, path: Path) -> None:
    """Write a picture in few colours: a page has few, and the file is a third."""
    with Image.open(io.BytesIO(picture)) as found:
        found.convert("RGB").quantize(160, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    sys.stderr.write(build())
    take(Path(sys.argv[1]), sys.argv[2:])
