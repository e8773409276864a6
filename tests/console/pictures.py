"""Takes the pictures of docs/guide/console.md: `make console-pictures`.

`python -m tests.console.pictures FOLDER [PAGE…]` takes some of them: every page in light on a
screen; with `--all` also in the dark and on a phone, to look at. Pages that only administrators see
come last: from the first user on, the others are seen as a viewer sees them.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser

from onelog.pipelines.progress import Progress
from onelog.pipelines.state import State, Status
from tests.console.browsing import PHONE, WIDE, Visitor, build, chromium
from tests.console.scene import TOPIC, Scene
from tests.support.etcd import find_etcd
from tests.support.three_nodes import ThreeNodes

NAME = TOPIC.replace("/", "%2F")
PICTURES = {
    "overview": "overview",
    "picture": f"picture?topic={NAME}",
    "messages": "messages?filter=sensors%2F%23",
    "topics": "topics?search=sensors",
    "streams": "streams",
    "stream": "streams?name=telemetry",
    "storage": "storage",
    "cursors": "cursors",
    "cursor": "cursors?name=kafka%3Abilling",
    "connections": "connections",
    "mqtt": "sessions",
    "kafka": "groups",
    "amqp": "queues",
    "quotas": "quotas",
    "bans": "quotas?tab=bans",
    "backups": "backups",
    "pipelines": "pipelines",
    "nodes": "nodes",
}
FOR_ADMINISTRATORS = {
    "access": "access",
    "rules": "access?tab=rules",
    "tokens": "access?tab=tokens",
    "audit": "audit",
}
SETTLED_MS = 3500
PLOTTED_MS = 20_000
"""Lines over time need some."""
PLOTS = ("overview", "cursor")
SHAPES = ((WIDE, "light", ""), (WIDE, "dark", "-dark"), (PHONE, "light", "-phone"))
PASSWORD = "a long password"


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
        scene = Scene(Path(place), stored=True)
        try:
            scene.live()
            scene.keep("events", 400, tier="delta", local_bytes=0)
            scene.fill("events", 20)
            scene.wait()
            with chromium() as browser, piped(Path(place) / "data"):
                if is_wanted("cluster", "", wanted):
                    take_cluster(browser, folder, Path(place) / "nodes")
                for pages, user in ((PICTURES, ""), (FOR_ADMINISTRATORS, "ada")):
                    if user:
                        scene.people(user, PASSWORD)
                    for size, kind, shape in SHAPES:
                        names = [name for name in pages if is_wanted(name, shape, wanted)]
                        if names:
                            visitor = Visitor(browser, scene.url, size, kind)
                            look(
                                visitor, {name: pages[name] for name in names}, user, folder, shape
                            )
        finally:
            scene.close()


def take_cluster(browser: Browser, folder: Path, place: Path) -> None:
    """Three nodes, one of which is lost."""
    if find_etcd() is None:
        sys.stderr.write("etcd is missing: no picture of a cluster\n")
        return
    with ThreeNodes(place) as nodes:
        nodes.create("orders", 6)
        nodes.node(3).kill()
        nodes.until(lambda: "start node 3" in nodes.seen(1)["summary"], 60, "it is not missed")
        visitor = Visitor(
            browser, f"http://127.0.0.1:{nodes.node(1).ports['admin']}", WIDE, "light"
        )
        look(visitor, {"cluster": "nodes"}, "", folder, "")


def look(visitor: Visitor, pages: dict[str, str], user: str, folder: Path, shape: str) -> None:
    """Go to each of the pages and keep what is seen."""
    if user:
        page = visitor.go("access")
        if shape == "-phone":
            page.get_by_role("button", name="Menu").click()
        page.get_by_role("button", name="Log in").click()
        page.get_by_label("User").fill(user)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("table", name="Users").wait_for()
    for name, address in pages.items():
        page = visitor.go(address)
        page.wait_for_timeout(PLOTTED_MS if name in PLOTS else SETTLED_MS)
        keep(page.screenshot(), folder / f"{name}{shape}.png")
    for row in visitor.complaints:
        sys.stderr.write(f"{row}\n")
    visitor.close()


@contextlib.contextmanager
def piped(data: Path) -> Iterator[None]:
    """What a pipeline that runs writes down of itself."""
    progress = Progress(batch=412, rows=1_204_331, rows_per_s=2_940.0, lag=18, batch_ms=850)
    state = State(data / "pipelines" / "telemetry")
    status = Status(
        name="telemetry", file="telemetry.toml", master="local[2]", mode="continuous",
        pid=os.getpid(), started="2026-01-01T00:00:00", phase="running",
        targets={"bronze (Iceberg)": progress, "alerts (topic)": progress},
    )  # fmt: skip
    with state.held():
        state.save(status)
        yield


def keep(picture: bytes, path: Path) -> None:
    """Write a picture in few colours: a page has few, and the file is a third."""
    with Image.open(io.BytesIO(picture)) as found:
        found.convert("RGB").quantize(160, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    sys.stderr.write(build())
    take(Path(sys.argv[1]), sys.argv[2:])
