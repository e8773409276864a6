"""The admin API over a real broker, asked in the process: no socket, no port."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx

from onelog.admin.api.desk import AdminDesk, Opened
from onelog.admin.application import build_application
from onelog.admin.contract import ListenerInfo, ServerInfo
from onelog.base.clock import Clock, ManualClock, SystemClock
from onelog.broker import Broker
from onelog.broker.showing import ProtocolDesk
from onelog.config import Config, load
from onelog.observe import Health, Registry, Troubles
from onelog.protocols.amqp.hub import Hub as AmqpHub
from onelog.protocols.amqp.showing import AmqpDesk
from onelog.protocols.kafka.hub import Hub as KafkaHub
from onelog.protocols.kafka.showing import KafkaDesk
from onelog.protocols.mqtt.hub import Hub as MqttHub
from onelog.protocols.mqtt.showing import MqttDesk
from onelog.security.api_tokens import ApiTokens
from onelog.security.authenticator import Authenticator, SecuritySettings
from tests.support.brokers import running


def server_info() -> ServerInfo:
    return ServerInfo(
        version="1",
        node_id=0,
        node_name="n",
        pid=1,
        python="3",
        event_loop="uvloop",
        kernel="compiled",
        data_dir=".",
        config_file=None,
        started_ms=1,
        uptime_s=1.0,
        listeners=(ListenerInfo(name="admin", address="127.0.0.1:8080"),),
    )


def new_desk(health: Health | None = None, troubles: Troubles | None = None) -> AdminDesk:
    """A desk of a process whose broker is not open."""
    return AdminDesk(health or Health(), server_info, troubles or Troubles(SystemClock()))


def client_of(
    desk: AdminDesk,
    host: str = "localhost",
    *,
    metrics: Registry | None = None,
    listener_is_loopback: bool = True,
    peer: str = "127.0.0.1",
    clock: Clock | None = None,
    **options: Any,
) -> httpx.AsyncClient:
    """A client of an application over this desk."""
    application = build_application(
        desk,
        metrics or Registry(desk.troubles),
        clock or SystemClock(),
        listener_is_loopback=listener_is_loopback,
    )
    transport = httpx.ASGITransport(
        app=application, raise_app_exceptions=False, client=(peer, 1234)
    )
    return httpx.AsyncClient(transport=transport, base_url=f"http://{host}", **options)


class Api:
    """A broker, its API, and who may come in."""

    def __init__(
        self,
        broker: Broker,
        desk: AdminDesk,
        authenticator: Authenticator,
        tokens: ApiTokens,
        clock: ManualClock,
    ) -> None:
        self.clock = clock
        """What logins and tokens end by."""
        self.broker = broker
        self.desk = desk
        self.authenticator = authenticator
        self.tokens = tokens
        self.client = client_of(desk, clock=clock)

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.client.get(f"/api/v1{path}", **options)

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        return await self.client.request(method, f"/api/v1{path}", **options)

    async def items(self, path: str, limit: int = 100) -> list[Any]:
        """Everything of a list, page by page."""
        found: list[Any] = []
        cursor = ""
        mark = "&" if "?" in path else "?"
        while True:
            answer = await self.get(f"{path}{mark}limit={limit}&cursor={cursor}")
            assert answer.status_code == 200, answer.text
            found += answer.json()["items"]
            cursor = answer.json()["next_cursor"]
            if cursor is None:
                return found


Desks = dict[str, Callable[[], ProtocolDesk | None]]


@contextlib.asynccontextmanager
async def whole_api(path: Path) -> AsyncIterator[Any]:
    """The API over a broker with the hubs of all three protocols open."""
    desks: dict[str, ProtocolDesk] = {}

    def make(_broker: Broker, _authenticator: Authenticator) -> Desks:
        return {name: lambda name=name: desks.get(name) for name in ("mqtt", "kafka", "amqp")}

    async with (
        admin_api(path, make_desks=make) as found,
        contextlib.AsyncExitStack() as closing,
    ):
        broker, who, config, clock = found.broker, found.authenticator, Config(), SystemClock()
        whole: Any = found
        whole.mqtt = MqttHub(broker, who, config.mqtt.limits, clock)
        whole.kafka = KafkaHub(broker, who, config, clock)
        whole.amqp = AmqpHub(broker, who, config, clock)
        for hub in (whole.mqtt, whole.kafka, whole.amqp):
            await hub.open()
            closing.push_async_callback(hub.close)
        desks["mqtt"] = MqttDesk(whole.mqtt)
        desks["kafka"] = KafkaDesk(whole.kafka)
        desks["amqp"] = AmqpDesk(whole.amqp)
        yield whole


@contextlib.asynccontextmanager
async def admin_api(
    path: Path,
    *,
    settings: SecuritySettings | None = None,
    make_desks: Callable[[Broker, Authenticator], Desks] = lambda _broker, _who: {},
    **hooks: Any,
) -> AsyncIterator[Api]:
    """The API over a broker, for the length of a block."""
    async with running(path, **hooks) as broker:
        clock = ManualClock()
        authenticator = await Authenticator.open(broker.store, clock, settings, broker.troubles)
        tokens = ApiTokens(broker.store, clock, broker.troubles)
        await tokens.open()
        desk = new_desk(troubles=broker.troubles)
        loaded = load(None, {}, [f'data_dir="{path}"'])
        desk.open(
            Opened(
                broker=broker,
                authenticator=authenticator,
                tokens=tokens,
                protocols=make_desks(broker, authenticator),
                loaded=loaded,
            )
        )
        api = Api(broker, desk, authenticator, tokens, clock)
        try:
            yield api
        finally:
            await api.client.aclose()
            await desk.close()
            await tokens.close()
            await authenticator.close()
