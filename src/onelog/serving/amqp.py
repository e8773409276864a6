"""AMQP with RabbitMQ's management API beside it, which answers 503 until AMQP is served."""

from __future__ import annotations

from collections.abc import Iterable

from onelog.admin.rabbitmq.application import build_management
from onelog.admin.rabbitmq.desk import Desk
from onelog.admin.rabbitmq.requests import BODY_BOUND
from onelog.admin.server import HttpServer
from onelog.broker import Broker
from onelog.broker.showing import ProtocolDesk
from onelog.net import Listener, bind
from onelog.observe import Sample
from onelog.protocols.amqp.management.door import Management
from onelog.protocols.amqp.server import AmqpServer
from onelog.security.authenticator import Authenticator
from onelog.serving.protocol import Surroundings

MANAGEMENT = "amqp_management"
"""The listener of the management API, as the configuration names it."""


class AmqpServing:
    """The listeners of AMQP and the one of its management API."""

    def __init__(self, around: Surroundings) -> None:
        self._settings = around.config.listeners.amqp_management
        self._amqp = AmqpServer(around.config, around.clock)
        self._desk = Desk(around.health, around.info, around.troubles)
        self._listener: Listener | None = None
        self._http: HttpServer | None = None

    @property
    def listeners(self) -> list[tuple[Listener, str]]:
        """What is bound, and the address as people write it."""
        own = [(row, f"http://{row.address}/") for row in (self._listener,) if row is not None]
        return self._amqp.listeners + own

    def desk(self) -> ProtocolDesk | None:
        """What operators see and change; None while it is not served."""
        return self._amqp.desk()

    def bind(self) -> None:
        """Take every port, and answer for the management API; its users have to wait."""
        self._amqp.bind()
        if self._settings.enabled:
            self._listener = bind(MANAGEMENT, self._settings.host, self._settings.port)
            application = build_management(self._desk)
            self._http = HttpServer(
                self._listener, application, self._settings.connections_max, body=BODY_BOUND
            )
            self._http.start()

    async def start(self, broker: Broker, authenticator: Authenticator) -> None:
        """Serve AMQP, then its management."""

        def served(management: Management | None) -> None:
            if management is None:
                self._desk.close()
            else:
                self._desk.open(management, authenticator)

        self._amqp.when_served = served
        await self._amqp.start(broker, authenticator)

    async def close(self) -> None:
        """Let everybody go. Idempotent."""
        self._desk.close()
        await self._amqp.close()
        if self._http is not None:
            await self._http.close()
        if self._listener is not None:
            self._listener.close()

    def samples(self) -> Iterable[Sample]:
        """Numbers for the metrics."""
        yield from self._amqp.samples()
        if self._http is not None:
            yield from self._http.samples()
