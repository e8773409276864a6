"""The brokers that the scenarios run against, each started once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conformance.amqp_fixtures import (  # noqa: F401  (fixtures)
    amqp,
    call,
    channel,
    patience_s,
    rabbitmq_server,
    writer,
)
from tests.conformance.kafka_fixtures import (  # noqa: F401  (fixtures)
    kafka_apache,
    kafka_clients,
    kafka_cluster,
    kafka_node,
    kafka_onelog,
    kafka_ours,
    kafka_server,
)
from tests.conformance.mqtt_brokers import Mosquitto, Onelog, Server, find_mosquitto
from tests.conformance.mqtt_differences import DIFFERENCES
from tests.conformance.mqtt_raw import Raw

LACKS_MOSQUITTO = "Mosquitto is missing: run 'apt-get install mosquitto mosquitto-clients' as root"


@pytest.fixture(scope="session")
def onelog_server(tmp_path_factory) -> Iterator[Onelog]:
    server = Onelog(tmp_path_factory.mktemp("onelog")).start()
    yield server
    assert server.stop() == 0
    assert not server.errors()


@pytest.fixture(scope="session")
def mosquitto_server(tmp_path_factory) -> Iterator[Mosquitto]:
    if find_mosquitto() is None:
        pytest.skip(LACKS_MOSQUITTO)
    server = Mosquitto(tmp_path_factory.mktemp("mosquitto")).start()
    yield server
    server.stop()


@pytest.fixture(params=["onelog", "mosquitto"])
def broker(request) -> Server:
    """Ours, then Mosquitto; where Mosquitto is known to differ, the scenario must fail there."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    if server.name == "mosquitto":
        assert isinstance(server, Mosquitto)
        server.revive()
        name, _, rest = request.node.name.partition("[mosquitto")
        reason = DIFFERENCES.get(name) or DIFFERENCES.get(f"{name}[{rest.strip('-]')}]")
        if reason is not None:
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    return server


@pytest.fixture
def dial(request, broker) -> Iterator[Callable[..., Raw]]:
    """Open connections to the broker; they are closed at the end."""
    opened: list[Raw] = []
    differs = request.node.get_closest_marker("xfail") is not None

    def _dial(version: int = 5) -> Raw:
        opened.append(Raw(broker.port, version))
        if differs:  # what never comes need not be waited for that long
            opened[-1].socket.settimeout(2)
        return opened[-1]

    yield _dial
    for raw in opened:
        raw.socket.close()
