"""AMQP on a real broker and a real socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx

from onelog.admin.rabbitmq.application import build_management
from onelog.admin.rabbitmq.desk import Desk
from onelog.assembly import open_broker
from onelog.base.clock import SystemClock
from onelog.broker import Broker, BrokerSettings
from onelog.config import Config
from onelog.config.amqp import Amqp, AmqpLimits
from onelog.config.streams import Defaults, StreamDefaults
from onelog.net import Gate, GateLimits, bind, start_listener
from onelog.observe import Health, Troubles
from onelog.protocols.amqp.connection import Connection
from onelog.protocols.amqp.hub import Hub
from onelog.protocols.amqp.management.door import Management
from onelog.security.authenticator import Authenticator
from tests.conformance.amqp_raw import Raw
from tests.support.admin import server_info
from tests.support.brokers import FAST


class Node:
    """A running hub."""

    def __init__(self, hub: Hub, port: int) -> None:
        self.hub = hub
        self.port = port

    @property
    def broker(self) -> Broker:
        return self.hub.broker


@contextlib.asynccontextmanager
async def serving(
    path: Path,
    limits: AmqpLimits | None = None,
    settings: BrokerSettings = FAST,
    vhosts: str = "",
    streams: StreamDefaults = StreamDefaults(),  # noqa: B008 - frozen
    **hooks: Any,
) -> AsyncIterator[Node]:
    """AMQP for the length of a block; nothing is saved by a timer."""
    clock = SystemClock()
    path.mkdir(parents=True, exist_ok=True)
    broker = await open_broker(path, settings, clock, **hooks)
    authenticator = await Authenticator.open(broker.store, clock)
    config = Config(
        amqp=Amqp(limits=limits or AmqpLimits(), vhosts=vhosts), defaults=Defaults(stream=streams)
    )
    hub = Hub(broker, authenticator, config, clock)
    await hub.open()
    listener = bind("amqp", "127.0.0.1", 0)
    gate = Gate(GateLimits(), clock)
    served = await start_listener(
        listener,
        lambda peer: Connection(hub, peer),
        gate,
        handshake_timeout_s=config.amqp.limits.login_timeout_ms / 1000,
    )
    try:
        yield Node(hub, listener.port)
    finally:
        served.close()
        await hub.close()
        await served.wait_closed()
        await authenticator.close()
        await broker.close()


@contextlib.asynccontextmanager
async def management(node: Node) -> AsyncIterator[httpx.AsyncClient]:
    """A client of RabbitMQ's management API of a hub."""
    desk = Desk(Health(), server_info, Troubles(SystemClock()))
    desk.open(Management(node.hub, {"amqp": ("127.0.0.1", node.port)}), node.hub.authenticator)
    transport = httpx.ASGITransport(build_management(desk), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def talk(port: int, work: Callable[[Raw], Any]) -> Any:
    """Run a client that waits, beside the loop that answers it."""

    def run() -> Any:
        with Raw(port) as raw:
            return work(raw.open())

    async with asyncio.timeout(30):
        return await asyncio.to_thread(run)
