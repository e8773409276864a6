"""Access rules as one line of text, and a broker with every protocol to try them on."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec

from onelog.assembly import open_broker
from onelog.base.clock import SystemClock
from onelog.broker import Broker
from onelog.config import Config
from onelog.config.listeners import AmqpListener, KafkaListener, Listeners, MqttListener
from onelog.protocols.amqp.server import AmqpServer
from onelog.protocols.kafka.server import KafkaServer
from onelog.protocols.mqtt.server import MqttServer
from onelog.security.access.rules import Rule, make_rule
from onelog.security.authenticator import Authenticator
from onelog.security.identity import ANONYMOUS, Identity
from tests.support.brokers import FAST


def rule(text: str, name: str = "") -> Rule:
    """A rule of `allow user:ann publish topic:a`; without a name it gets a number when kept."""
    effect, who, actions, resource = text.split()
    made = make_rule(effect, who.split(","), actions, resource, name=name or "0")
    return msgspec.structs.replace(made, id=name)


class House:
    """One broker, and MQTT, Kafka and AMQP on it."""

    def __init__(
        self, broker: Broker, authenticator: Authenticator, servers: dict[str, Any]
    ) -> None:
        self.broker = broker
        self.authenticator = authenticator
        self.servers = servers
        self.ports = {name: row.listeners[0][0].port for name, row in servers.items()}
        self.at_end: list[Callable[[], object]] = []
        """Lets go of clients, before the servers stop."""

    async def only(self, *texts: str) -> None:
        """Have these rules and no others."""
        access = self.broker.access
        await access.change([rule(text) for text in texts], [row.id for row in access.rules])


@contextlib.asynccontextmanager
async def house(
    path: Path, peers: Identity = ANONYMOUS, groups: tuple[str, ...] = ()
) -> AsyncIterator[House]:
    """A house for the length of a block, on ports of its own.

    `peers`: the identity of who comes without a login, with these groups.
    """
    clock = SystemClock()
    path.mkdir(parents=True, exist_ok=True)
    listeners = Listeners(
        mqtt=MqttListener(port=0), kafka=KafkaListener(port=0), amqp=AmqpListener(port=0)
    )
    config = Config(listeners=listeners)
    async with contextlib.AsyncExitStack() as closing:
        broker = await open_broker(path, FAST, clock)
        closing.push_async_callback(broker.close)
        authenticator = await Authenticator.open(broker.store, clock)
        closing.push_async_callback(authenticator.close)
        broker.access.know_users(authenticator)
        if peers is not ANONYMOUS:
            authenticator.anonymous = lambda **_asked: peers  # type: ignore[method-assign]
            broker.access.groups_of = lambda name: groups if name == peers.name else ()
        servers: dict[str, Any] = {}
        for name, make in (("mqtt", MqttServer), ("kafka", KafkaServer), ("amqp", AmqpServer)):
            server = make(config, clock)
            closing.push_async_callback(server.close)
            server.bind()
            await server.start(broker, authenticator)
            servers[name] = server
        place = House(broker, authenticator, servers)
        try:
            yield place
        finally:
            for let_go in place.at_end:
                let_go()
