"""A broker with every protocol, fed by hand, and what must never happen there.

Rules: no socket and no second process, so that an input is a call. The three protocols share one
log, and each has a follower of everything: what one lets in has to come out of the others. Whatever
is raised into the loop, raised by `data_received`, or logged as an error is a finding (I10).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvicorn
from pamqp import commands, frame
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from onelog.admin.api.desk import AdminDesk, Opened
from onelog.admin.application import build_application
from onelog.admin.contract import ServerInfo
from onelog.admin.rabbitmq.application import build_management
from onelog.admin.rabbitmq.desk import Desk
from onelog.assembly import open_broker
from onelog.base.clock import SystemClock
from onelog.broker import Broker
from onelog.config import Config, load
from onelog.net import Gate, GateLimits, Listener, ServedListener
from onelog.net.accepting import Arrival
from onelog.net.peer import ProtocolFactory
from onelog.net.server import _Guard
from onelog.net.websocket import WebSocketSettings
from onelog.observe import Health, Registry, Troubles
from onelog.protocols.amqp.connection import Connection as AmqpConnection
from onelog.protocols.amqp.hub import Hub as AmqpHub
from onelog.protocols.amqp.management.door import Management
from onelog.protocols.amqp.showing import AmqpDesk
from onelog.protocols.kafka.connection import Connection as KafkaConnection
from onelog.protocols.kafka.hub import Hub as KafkaHub
from onelog.protocols.kafka.showing import KafkaDesk
from onelog.protocols.mqtt import packets as p
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.connection import Connection as MqttConnection
from onelog.protocols.mqtt.hub import Hub as MqttHub
from onelog.protocols.mqtt.showing import MqttDesk
from onelog.security.api_tokens import ApiTokens
from onelog.security.authenticator import Authenticator
from tests.support.brokers import FAST

UNREAD_BYTES_MAX = 64 * 1024
"""What a socket takes for a peer that does not read."""
OUTPUT_BYTES_MAX = 64 * 1024 * 1024
PATIENCE_S = 0.1
"""How long what is under way is waited for; a fetch may wait for ever."""
IDLE_PASSES = 8
"""Passes of the loop without news after which nothing more will come."""


class Line(asyncio.Transport):
    """A connection's transport: keeps what is written, and says when it is full."""

    def __init__(self, *, is_read: bool = True) -> None:
        super().__init__()
        self.protocol: Any = None
        self.written = bytearray()
        self.is_read = is_read
        self.is_reading_on = True
        self.closed = False
        self.lost = False
        self._high = UNREAD_BYTES_MAX
        self._full = False

    def write(self, data: Any) -> None:
        if self.lost:
            return  # as sockets do
        self.written += data
        if not self.is_read and not self._full and len(self.written) > self._high:
            self._full = True
            self.protocol.pause_writing()

    def writelines(self, chunks: Any) -> None:
        self.write(b"".join(chunks))

    def close(self) -> None:
        self._end()

    def abort(self) -> None:
        self._end()

    def _end(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.lose)

    def lose(self) -> None:
        if not self.lost:
            self.closed = self.lost = True
            self.protocol.connection_lost(None)

    def write_eof(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.is_reading_on = False

    def resume_reading(self) -> None:
        self.is_reading_on = True

    def is_reading(self) -> bool:
        return self.is_reading_on

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_write_buffer_size(self) -> int:
        return 0 if self.is_read else len(self.written)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return 0, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del low
        self._high = UNREAD_BYTES_MAX if high is None else high

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 4711) if name in ("sockname", "peername") else default


class Finding(Exception):
    """Something happened that must not."""

    def __init__(self, text: str) -> None:
        # What it tells of came from anywhere: test processes hand on only text that can be encoded.
        super().__init__(text.encode("ascii", "backslashreplace").decode())


class World:
    """The broker and its protocols."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._problems: list[str] = []
        self._factories: dict[str, Callable[[], Any]] = {}
        self._followers: list[Line] = []

    async def open(self) -> None:
        """Start on what the folder holds."""
        self._watch()
        self._folder.mkdir(parents=True, exist_ok=True)
        clock = SystemClock()
        config = Config()
        broker = self.broker = await open_broker(self._folder, FAST, clock)
        self._authenticator = await Authenticator.open(broker.store, clock)
        self._tokens = ApiTokens(broker.store, clock, Troubles(clock))
        await self._tokens.open()
        mqtt = MqttHub(broker, self._authenticator, config.mqtt.limits, clock)
        kafka = KafkaHub(broker, self._authenticator, config, clock)
        amqp = AmqpHub(broker, self._authenticator, config, clock)
        self._hubs = (mqtt, kafka, amqp)
        for hub in self._hubs:
            await hub.open()
        self._management = Management(amqp, {"amqp": ("127.0.0.1", 5672)})
        frames = WebSocketSettings(subprotocols=("mqtt", "mqttv3.1"))
        self._factories = {
            "mqtt": _guarded(lambda peer: MqttConnection(mqtt, peer)),
            "kafka": _guarded(lambda peer: KafkaConnection(kafka, peer, config.listeners.kafka)),
            "amqp": _guarded(lambda peer: AmqpConnection(amqp, peer)),
            "websocket": _guarded(lambda peer: MqttConnection(mqtt, peer), frames),
            **self._http(broker),
        }
        self._own_tasks = asyncio.all_tasks()
        await self._follow()
        self._own_tasks = asyncio.all_tasks()

    def _http(self, broker: Broker) -> dict[str, Callable[[], Any]]:
        health = Health()
        clock, troubles = SystemClock(), Troubles(SystemClock())
        mqtt, kafka, amqp = self._hubs
        admin = AdminDesk(health, _info, troubles)
        admin.open(
            Opened(
                broker=broker,
                authenticator=self._authenticator,
                tokens=self._tokens,
                protocols={
                    "mqtt": lambda: MqttDesk(mqtt),
                    "kafka": lambda: KafkaDesk(kafka),
                    "amqp": lambda: AmqpDesk(amqp),
                },
                loaded=load(None, {}, [f'data_dir="{self._folder}"']),
            )
        )
        desk = Desk(health, _info, Troubles(SystemClock()))
        desk.open(self._management, self._authenticator)
        made = {}
        applications = {
            "http": build_application(admin, Registry(troubles), clock),
            "management": build_management(desk),
        }
        for name, application in applications.items():
            config = uvicorn.Config(
                application, loop="none", http="httptools", lifespan="off", log_config=None,
                access_log=False, ws="none",
            )  # fmt: skip
            config.load()
            made[name] = lambda config=config: HttpToolsProtocol(config, ServerState(), {})
        return made

    def _watch(self) -> None:
        """Whatever nobody caught, and whatever is logged as an error, is a problem."""
        loop = self._loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: self._problems.append(_words(context)))

        def note(_logger: Any, level: str, event: Any) -> Any:
            if level in ("error", "critical", "exception"):
                self._problems.append(_words(event))
            raise structlog.DropEvent

        structlog.configure(
            processors=[structlog.processors.format_exc_info, note], cache_logger_on_first_use=False
        )
        logging.getLogger().handlers = [_Errors(self._problems)]

    async def _follow(self) -> None:
        """One follower of everything for MQTT and for AMQP; Kafka's is asked in `check`."""
        subscribe = p.Subscribe(1, (p.Subscription("#", 1), p.Subscription("+/#", 0)))
        connect = p.Connect(client_id="follower", version=5, clean_start=True, keep_alive_s=0)
        line = await self.talk("mqtt", [encode_packet(row, 5) for row in (connect, subscribe)])
        self._followers.append(line)
        name = "follower"
        methods = (
            commands.Queue.Declare(queue=name, auto_delete=True),
            commands.Queue.Bind(queue=name, exchange="amq.topic", routing_key="#"),
            commands.Basic.Consume(queue=name, no_ack=True),
        )
        said = [*amqp_opening(), *(frame.marshal(row, 1) for row in methods)]
        self._followers.append(await self.talk("amqp", said))

    def connect(self, kind: str, *, is_read: bool = True) -> Line:
        """A new connection."""
        line = Line(is_read=is_read)
        line.protocol = self._factories[kind]()
        line.protocol.connection_made(line)
        return line

    async def talk(self, kind: str, reads: list[bytes], *, is_read: bool = True) -> Line:
        """Let a connection read; returns when nothing more comes of it. Raises Finding."""
        line = self.connect(kind, is_read=is_read)
        try:
            for data in reads:
                if not await self._until_reading(line):
                    break
                line.protocol.data_received(data)
                await asyncio.sleep(0)
            await self.until_quiet(line)
        except Finding:
            raise
        except Exception as error:
            raise Finding(traceback.format_exc()) from error
        self.check()
        if len(line.written) > OUTPUT_BYTES_MAX:
            raise Finding(f"{len(line.written)} bytes were written to one peer")
        return line

    async def hang_up(self, line: Line) -> None:
        """The peer goes away."""
        try:
            if not line.closed:
                line.protocol.eof_received()
            line.lose()
            await self.until_quiet(line)
        except Exception as error:
            raise Finding(traceback.format_exc()) from error
        self.check()

    async def _until_reading(self, line: Line) -> bool:
        """Whether the connection wants the next bytes; what it does not want is not read."""
        deadline = self._loop.time() + PATIENCE_S
        while not (line.is_reading_on or line.closed or self._loop.time() > deadline):  # noqa: ASYNC110
            await asyncio.sleep(0.0002)
        return line.is_reading_on and not line.closed

    async def until_quiet(self, line: Line) -> None:
        """Until some passes bring nothing and nothing is under way, or for a while."""
        deadline = self._loop.time() + PATIENCE_S
        quiet, size = 0, len(line.written)
        while quiet < IDLE_PASSES:
            working = asyncio.all_tasks() - self._own_tasks
            is_busy = len(line.written) != size or bool(working)
            quiet = 0 if is_busy else quiet + 1
            size = len(line.written)
            if self._loop.time() > deadline:
                self._own_tasks |= working  # they live long: nobody waits for them again
                return
            await asyncio.sleep(0.0005 if working else 0)

    def check(self) -> None:
        """Raise what was seen."""
        for line in self._followers:
            line.written.clear()
            if line.closed:
                raise Finding(f"a follower was cut off: {line.protocol}")
        if self._problems:
            problems, self._problems = list(self._problems), []
            raise Finding("\n".join(problems))

    async def close(self) -> None:
        """Stop cleanly; the folder can be opened again."""
        for line in self._followers:
            line.lose()
        self._followers.clear()
        for hub in reversed(self._hubs):
            await hub.close()
        await self._tokens.close()
        await self._authenticator.close()
        await self.broker.close()
        self.check()


class _Errors(logging.Handler):
    """What libraries log as an error."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._problems = problems

    def emit(self, record: logging.LogRecord) -> None:
        """Take it down."""
        trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
        self._problems.append(f"{record.getMessage()}\n{trace}")


def amqp_opening() -> list[bytes]:
    """What a client says until its first channel is open."""
    return [
        b"AMQP\x00\x00\x09\x01",
        frame.marshal(
            commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"),
            0,
        ),
        frame.marshal(commands.Connection.TuneOk(2047, 131072, 0), 0)
        + frame.marshal(commands.Connection.Open("/"), 0),
        frame.marshal(commands.Channel.Open(), 1),
    ]


def _guarded(
    factory: ProtocolFactory, websocket: WebSocketSettings | None = None
) -> Callable[[], Any]:
    """What the network makes of a connection: limits, pace and frames in front of a protocol."""
    listener = Listener("fuzz", "127.0.0.1", 1, [])
    gate = Gate(GateLimits(), SystemClock())
    served = ServedListener(
        listener, factory, gate, tls=None, websocket=websocket, proxy=None,
        handshake_timeout_s=10.0, write_timeout_s=10.0, backend="loop", speaks_first=True,
        opening=None,
    )  # fmt: skip

    def come() -> Any:
        arrival = Arrival(-1, None, ("127.0.0.1", 1), 0.0)
        assert served._admits(arrival)
        return _Guard(served, arrival)

    return come


def _info() -> ServerInfo:
    return ServerInfo(
        version="", node_id=0, node_name="", pid=0, python="", event_loop="", kernel="",
        data_dir="", config_file=None, started_ms=0, uptime_s=0.0, listeners=(),
    )  # fmt: skip


def _words(facts: Any) -> str:
    error = facts.get("exception")
    trace = "".join(traceback.format_exception(error)) if isinstance(error, Exception) else ""
    with contextlib.suppress(Exception):
        return "\n".join((*(f"{k}={v}" for k, v in facts.items()), trace))
    return msgspec.json.encode(str(facts)).decode()
