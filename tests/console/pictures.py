"""Takes the pictures of docs/guide/console.md: `python -m tests.console.pictures FOLDER`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.console.browsing import PHONE, WIDE, Visitor, build, chromium
from tests.console.scene import TOPIC, Scene

NAME = TOPIC.replace("/", "%2F")
PICTURES = {
    "overview": "overview",
    "picture": f"picture?topic={NAME}",
    "messages": "messages?filter=sensors%2F%23",
    "topics": "topics?prefix=sensors",
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
    "pipelines": "pipelines",
    "nodes": "nodes",
}
SETTLED_MS = 3500


def take(folder: Path, *wanted: str) -> None:
    """Every page in light, on a screen; the most used ones in the dark and on a phone, too."""
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
                        if wanted and name not in wanted:
                            continue
                        page = visitor.go(address)
                        page.wait_for_timeout(SETTLED_MS)
                        shape = "phone" if size is PHONE else kind
                        page.screenshot(path=folder / f"{name}-{shape}.png")
                    for row in visitor.complaints:
                        sys.stderr.write(f"{row}\n")
                    visitor.close()
        finally:
            scene.close()


if __name__ == "__main__":
    sys.stderr.write(build())
    take(Path(sys.argv[1]), *sys.argv[2:])
