"""One browser and one broker with life in it for all tests of a file.

Rules: the browser is driven by an event loop that runs as long as the browser is open, so it closes
with the file: tests after it have loops of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.console.browsing import CHROMIUM, Visitor, build, chromium
from tests.console.scene import Scene

expect.set_options(timeout=30_000)  # a login alone takes seconds on a busy machine


@pytest.fixture(scope="session")
def built() -> None:
    """The console of this tree; a build that fails is a failure, a machine without npm is not."""
    problem = build()
    if "is missing: `pip install" in problem:
        pytest.skip(problem)
    assert not problem


@pytest.fixture(scope="module")
def browser(built: None) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("Chromium is missing: run 'apt-get install chromium' as root")
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def scene(built: None, tmp_path_factory) -> Iterator[Scene]:
    found = Scene(tmp_path_factory.mktemp("console"), stored=True)
    try:
        found.live()
        found.wait()
        yield found
    finally:
        code = found.close()
    assert code == 0


@pytest.fixture(scope="module")
def empty(built: None, tmp_path_factory) -> Iterator[Scene]:
    """A broker that nobody used yet."""
    found = Scene(tmp_path_factory.mktemp("empty"))
    yield found
    assert found.close() == 0


Visit = Callable[..., Visitor]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Send somebody to a console; what the browser complained about is an error."""
    visitors: list[Visitor] = []

    def send(scene: Scene, **more: object) -> Visitor:
        visitors.append(Visitor(browser, scene.url, **more))
        return visitors[-1]

    yield send
    complaints = [row for visitor in visitors for row in visitor.complaints]
    for visitor in visitors:
        visitor.close()
    assert not complaints
