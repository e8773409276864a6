"""How the tests are shared out among processes; `make test` has two for each core, up to four.

What one test breaks does not stay broken for the next.

Rules: a file stays whole, because its tests share brokers. Files that share what is slow to start
stay together, and they begin first, so that nobody waits for them at the end. A busy machine is
slow, and that is no finding of a property test. The collector of cycles leaves out what collecting
the tests made: it would walk through all of it again and again, for as long as the tests themselves
take.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from onelog.base import faults
from tests.support.cold import make_cold
from tests.support.turns import Others

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

TOGETHER = {
    "tests/spark/": "Spark",  # one session
    "tests/conformance/test_kafka_clients_": "clients of Kafka",  # two of them are JVMs
}

FOR_LONG = ("fault_long", "kafka_peer", "kafka_cluster", "rabbitmq_peer", "spark_slow", "package")
"""Marks of tests that may take as long as they need: `make test` has none of them."""

APART = ("tests/fuzz/", "tests/simulation/")
"""Each test is a share of its own: they share nothing and compute for long."""


def share_of(name: str) -> str:
    """Which tests run in the process that runs this one."""
    for start, share in TOGETHER.items():
        if name.startswith(start):
            return share
    if name.startswith(APART):
        return name
    return name.partition("::")[0]


class Shares(LoadScopeScheduling):
    """A process that is done with one share gets the next."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Shares:
    config.option.loadscopereorder = False  # else the share with most tests begins
    return Shares(config, log)


def freeze() -> None:
    """Keep what is there now from the collector of cycles, but for what may go."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        if Others.thawed:
            freeze()  # the brokers of the test went with it
            Others.thawed = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = list(TOGETHER.values())
    items.sort(
        key=lambda item: first.index(share) if (share := share_of(item.nodeid)) in first else 99
    )
    for item in items:
        if any(mark.name in FOR_LONG for mark in item.iter_markers()):
            item.add_marker(pytest.mark.timeout(0))


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """A fault that a test arms ends with it."""
    yield
    faults.disarm()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cold", action="store_true", help="every read of a log is cold at first")


@pytest.fixture(autouse=True)
def cold_logs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With `--cold`: no broker of a test reads cold bytes on its loop."""
    if not request.config.getoption("--cold"):
        yield
        return
    if request.node.get_closest_marker("warm"):
        pytest.skip("it says what holds of bytes that are at hand")
    engines = make_cold(monkeypatch)
    yield
    found = {row for engine in engines for row in engine.in_loop}
    assert not found, "cold bytes are read on the loop:\n" + "\n".join(sorted(found))
