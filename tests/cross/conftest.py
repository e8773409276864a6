"""One broker for all tests that write by one protocol and read by another, and its clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.conformance.mqtt_brokers import GROUPS_AT_ONCE, Onelog
from tests.cross.clients import Clients


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[Onelog]:
    found = Onelog(tmp_path_factory.mktemp("cross"), GROUPS_AT_ONCE).start()
    yield found
    assert found.stop() == 0
    assert not found.errors()


@pytest.fixture(scope="session")
def clients(server) -> Iterator[Clients]:
    found = Clients(server.ports)
    yield found
    found.close()


@pytest.fixture
def channel(clients) -> Iterator[BlockingChannel]:
    """A channel of AMQP with confirms, for one test."""
    found = clients["amqp"].connection.channel()
    found.confirm_delivery()
    yield found
    if found.is_open:
        found.close()
