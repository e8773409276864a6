"""The brokers of the AMQP scenarios: ours, which other protocols use too, and RabbitMQ."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conformance.amqp_brokers import LACKS_RABBITMQ, RabbitMq, find_rabbitmq
from tests.conformance.amqp_differences import DIFFERENCES
from tests.conformance.amqp_raw import DEADLINE_S, Raw, RawChannel
from tests.conformance.mqtt_brokers import Onelog, Server


class AmqpPort:
    """A broker as an AMQP client sees it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.name = server.name
        self.port = server.ports["amqp"]

    @property
    def is_ours(self) -> bool:
        return isinstance(self.server, Onelog)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"


@pytest.fixture(scope="session")
def rabbitmq_server(tmp_path_factory) -> Iterator[RabbitMq]:
    if find_rabbitmq() is None:
        pytest.skip(LACKS_RABBITMQ)
    server = RabbitMq(tmp_path_factory.mktemp("rabbitmq")).start()
    yield server
    server.stop()


@pytest.fixture(params=["onelog", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq_peer)])
def amqp(request) -> AmqpPort:
    """Ours, then RabbitMQ; where RabbitMQ is known to differ, the scenario must fail there."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    if server.name == "rabbitmq":
        name, _, rest = request.node.name.partition("[rabbitmq")
        reason = DIFFERENCES.get(name) or DIFFERENCES.get(f"{name}[{rest.strip('-]')}]")
        if reason is not None:
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    return AmqpPort(server)


@pytest.fixture
def patience_s(request, amqp) -> float:
    """How long to wait for an answer; what is known not to come is not waited for that long."""
    return 0.5 if request.node.get_closest_marker("xfail") is not None else DEADLINE_S


@pytest.fixture
def call(amqp) -> Iterator[Callable[..., Raw]]:
    """Open connections to the broker; they are closed at the end."""
    opened: list[Raw] = []

    def _call(*, ready: bool = True, **options) -> Raw:
        raw = Raw(amqp.port)
        opened.append(raw)
        return raw.open(**options) if ready else raw

    yield _call
    for raw in opened:
        raw.socket.close()


@pytest.fixture
def channel(call) -> RawChannel:
    """A channel on a connection of its own."""
    return call().channel()


@pytest.fixture
def writer(call) -> RawChannel:
    """A channel with confirms, on a connection of its own."""
    found = call().channel()
    found.confirm()
    return found
