"""An AMQP client that says exactly what it is told to and hides nothing of what it gets."""

from __future__ import annotations

import secrets
import select
import socket
import ssl
import struct
import time
from types import TracebackType
from typing import Any, NamedTuple

from pamqp import commands, frame, header, heartbeat

DEADLINE_S = 30.0
QUIET_S = 0.25
"""How long nothing has to come until nothing comes."""
PROTOCOL = b"AMQP\x00\x00\x09\x01"
CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}

# pamqp refuses names that brokers take; what is sent here is what the test says.
for _kind in commands.INDEX_MAPPING.values():
    _kind.validate = lambda _method: None  # type: ignore[method-assign]

Basic, Channel, Confirm = commands.Basic, commands.Channel, commands.Confirm
Connection, Exchange, Queue, Tx = (
    commands.Connection,
    commands.Exchange,
    commands.Queue,
    commands.Tx,
)


def unique(word: str = "q") -> str:
    """A name that no other test uses."""
    return f"{word}-{secrets.token_hex(5)}"


class Ended(Exception):
    """The broker closed the connection."""


class Message(NamedTuple):
    """A method with a content."""

    method: Any
    properties: Any
    body: bytes

    @property
    def tag(self) -> int:
        return self.method.delivery_tag

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def headers(self) -> dict[str, Any]:
        return self.properties.headers or {}


class Refused(Exception):
    """The broker closed the channel or the connection, with a code."""

    def __init__(self, scope: str, code: int, text: str) -> None:
        super().__init__(f"{scope} {code} {text}")
        self.scope, self.code, self.text = scope, code, text

    @property
    def short(self) -> str:
        return f"{self.scope} {self.code}"


class Raw:
    """One connection, not yet open."""

    def __init__(
        self, port: int, tls: ssl.SSLContext | None = None, *, host: str = "127.0.0.1"
    ) -> None:
        self.socket: Any = socket.create_connection((host, port), DEADLINE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._bytes = bytearray()
        self._arrived: list[tuple[int, Any]] = []
        self.heartbeats = 0
        self.start: Any = None
        self.tune: Any = None
        self.frame_max = 131072
        self.channels: dict[int, RawChannel] = {}

    def __enter__(self) -> Raw:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    # -- bytes and frames

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, kind: int, channel: int, payload: bytes) -> None:
        self.send_bytes(struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce")

    def send(self, channel: int, method: Any) -> None:
        self.send_bytes(frame.marshal(method, channel))

    def _read_frame(self, wait_s: float) -> tuple[int, Any]:
        self.socket.settimeout(wait_s)
        while True:
            if self._bytes:
                consumed, channel, found = (
                    frame.unmarshal(bytes(self._bytes)) if self._is_whole() else (0, 0, None)
                )
                if consumed:
                    del self._bytes[:consumed]
                    if isinstance(found, heartbeat.Heartbeat):
                        self.heartbeats += 1
                        continue
                    assert channel is not None
                    return channel, found
            try:
                data = self.socket.recv(1 << 20)
            except (ConnectionError, ssl.SSLError) as error:
                raise Ended(str(error)) from None
            if not data:
                raise Ended("end of file")
            self._bytes += data

    def _is_whole(self) -> bool:
        if len(self._bytes) < 7:
            return False
        (size,) = struct.unpack_from(">I", self._bytes, 3)
        return len(self._bytes) >= size + 8

    def has_come(self, wait_s: float) -> bool:
        """Whether there is something to read, now or soon."""
        waits = self._arrived or self._bytes
        return bool(waits or select.select([self.socket], [], [], wait_s)[0])

    def read_method(self, channel: int, wait_s: float = DEADLINE_S) -> Any:
        """The next method or message of a channel."""
        for number, (known, found) in enumerate(self._arrived):
            if known == channel:
                del self._arrived[number]
                return found
        while True:
            came_on, found = self._read_frame(wait_s)
            if isinstance(found, (Basic.Deliver, Basic.GetOk, Basic.Return)):
                found = self._read_content(came_on, found, wait_s)
            if came_on == channel:
                return found
            if came_on == 0 and isinstance(found, Connection.Close):
                self._arrived.append((0, found))
                raise self._closed(found)
            self._arrived.append((came_on, found))

    def _read_content(self, channel: int, method: Any, wait_s: float) -> Message:
        number, head = self._read_frame(wait_s)
        assert number == channel
        assert isinstance(head, header.ContentHeader)
        body = bytearray()
        while len(body) < head.body_size:
            number, part = self._read_frame(wait_s)
            assert number == channel
            body += part.value
        return Message(method, head.properties, bytes(body))

    def _closed(self, method: Any) -> Refused:
        self.send(0, Connection.CloseOk())
        return Refused("connection", method.reply_code, method.reply_text)

    def expect(self, channel: int, kind: type[Any], wait_s: float = DEADLINE_S) -> Any:
        found = self.read_method(channel, wait_s)
        if isinstance(found, Connection.Close) and kind is not Connection.Close:
            raise self._closed(found)
        if isinstance(found, Channel.Close) and kind is not Channel.Close:
            self.send(channel, Channel.CloseOk())
            self.channels.pop(channel, None)
            raise Refused("channel", found.reply_code, found.reply_text)
        assert isinstance(found, kind), found
        return found

    def is_ended(self, wait_s: float = DEADLINE_S) -> bool:
        """Whether the broker ends the connection, whatever it says before."""
        try:
            while True:
                self._read_frame(wait_s)
        except Ended:
            return True
        except TimeoutError:
            return False

    # -- opening

    def begin(self) -> Any:
        self.send_bytes(PROTOCOL)
        self.start = self.expect(0, Connection.Start)
        return self.start

    def log_in(
        self,
        user: str = "guest",
        password: str = "guest",
        *,
        mechanism: str = "PLAIN",
        response: str | None = None,
        capabilities: dict[str, bool] | None = None,
        connection_name: str | None = None,
    ) -> Any:
        chosen = CAPABILITIES if capabilities is None else capabilities
        given = {"product": "test", "capabilities": chosen}
        if connection_name is not None:
            given["connection_name"] = connection_name
        text = f"\0{user}\0{password}" if response is None else response
        self.send(
            0,
            Connection.StartOk(
                client_properties=given,
                mechanism=mechanism,
                response=text,
                locale="en_US",
            ),
        )
        self.tune = self.expect(0, Connection.Tune)
        return self.tune

    def tune_ok(self, channel_max: int = 2047, frame_max: int = 131072, beat_s: int = 0) -> None:
        self.frame_max = frame_max
        self.send(0, Connection.TuneOk(channel_max, frame_max, beat_s))

    def open(self, vhost: str = "/", **options: Any) -> Raw:
        tune = {
            name: options.pop(name)
            for name in ("channel_max", "frame_max", "beat_s")
            if name in options
        }
        self.begin()
        self.log_in(**options)
        self.tune_ok(**tune)
        self.send(0, Connection.Open(virtual_host=vhost))
        self.expect(0, Connection.OpenOk)
        return self

    def channel(self, number: int | None = None) -> RawChannel:
        if number is None:
            number = max(self.channels, default=0) + 1
        self.send(number, Channel.Open())
        self.expect(number, Channel.OpenOk)
        found = self.channels[number] = RawChannel(self, number)
        return found

    def close(self) -> None:
        self.send(0, Connection.Close(200, "bye", 0, 0))
        self.expect(0, Connection.CloseOk)


class RawChannel:
    """One channel; it acknowledges nothing by itself."""

    def __init__(self, raw: Raw, number: int) -> None:
        self.raw = raw
        self.number = number
        self.sent = 0
        self.confirmed: set[int] = set()

    def send(self, method: Any) -> None:
        self.raw.send(self.number, method)

    def expect(self, kind: type[Any], wait_s: float = DEADLINE_S) -> Any:
        return self.raw.expect(self.number, kind, wait_s)

    def ask(self, method: Any, kind: type[Any]) -> Any:
        self.send(method)
        return self.expect(kind)

    def is_silent(self, wait_s: float = QUIET_S) -> bool:
        try:
            found = self.raw.read_method(self.number, wait_s)
        except TimeoutError:
            return True
        self.raw._arrived.insert(0, (self.number, found))
        return False

    # -- declaring

    def queue(self, name: str | None = None, **options: Any) -> str:
        """Declare a queue; its name."""
        chosen = unique() if name is None else name
        options.setdefault("arguments", {})
        return str(self.ask(Queue.Declare(queue=chosen, **options), Queue.DeclareOk).queue)

    def kept_queue(self, name: str | None = None, **arguments: Any) -> str:
        """Declare a durable queue with arguments (`max_length` is `x-max-length`)."""
        return self.queue(name, durable=True, arguments=x_arguments(arguments))

    def count(self, name: str) -> int:
        return int(self.ask(Queue.Declare(queue=name, passive=True), Queue.DeclareOk).message_count)

    def consumers(self, name: str) -> int:
        found = self.ask(Queue.Declare(queue=name, passive=True), Queue.DeclareOk)
        return int(found.consumer_count)

    def exchange(self, kind: str = "direct", name: str | None = None, **options: Any) -> str:
        chosen = unique("x") if name is None else name
        options.setdefault("arguments", {})
        self.ask(
            Exchange.Declare(exchange=chosen, exchange_type=kind, **options), Exchange.DeclareOk
        )
        return chosen

    def bind(self, queue: str, exchange: str, key: str = "", **arguments: Any) -> None:
        self.ask(
            Queue.Bind(queue=queue, exchange=exchange, routing_key=key, arguments=arguments),
            Queue.BindOk,
        )

    def unbind(self, queue: str, exchange: str, key: str = "", **arguments: Any) -> None:
        self.ask(
            Queue.Unbind(queue=queue, exchange=exchange, routing_key=key, arguments=arguments),
            Queue.UnbindOk,
        )

    def bind_exchange(self, target: str, source: str, key: str = "") -> None:
        self.ask(
            Exchange.Bind(destination=target, source=source, routing_key=key, arguments={}),
            Exchange.BindOk,
        )

    # -- publishing

    def publish(
        self,
        exchange: str,
        key: str,
        body: str | bytes = "",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        **properties: Any,
    ) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.sent += 1
        self.send(
            Basic.Publish(
                exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate
            )
        )
        self.raw.send_bytes(
            frame.marshal(
                header.ContentHeader(
                    body_size=len(data), properties=Basic.Properties(**properties)
                ),
                self.number,
            )
        )
        room = self.raw.frame_max - 8
        for start in range(0, len(data), room):
            self.raw.send_frame(3, self.number, data[start : start + room])

    def confirm(self) -> None:
        self.ask(Confirm.Select(), Confirm.SelectOk)
        self.sent, self.confirmed = 0, set()

    def put(self, exchange: str, key: str, *bodies: str, **properties: Any) -> None:
        """Publish and wait until it is confirmed; the channel confirms."""
        for body in bodies:
            self.publish(exchange, key, body, **properties)
        while len(self.confirmed) < self.sent:
            found = self.expect(Basic.Ack)
            first = 1 if found.multiple else found.delivery_tag
            self.confirmed |= set(range(first, found.delivery_tag + 1))

    # -- consuming

    def get(self, queue: str, *, no_ack: bool = True) -> Message | None:
        self.send(Basic.Get(queue=queue, no_ack=no_ack))
        found = self.raw.read_method(self.number)
        if isinstance(found, Channel.Close | Connection.Close):
            self.raw._arrived.insert(
                0, (0 if isinstance(found, Connection.Close) else self.number, found)
            )
            self.expect(Basic.GetOk) if isinstance(found, Channel.Close) else self.raw.expect(
                0, Basic.GetOk
            )
        return None if isinstance(found, Basic.GetEmpty) else found

    def all(self, queue: str) -> list[str]:
        """Everything that waits, taken."""
        found = []
        while (message := self.get(queue)) is not None:
            found.append(message.text)
        return found

    def consume(self, queue: str, tag: str = "", **options: Any) -> str:
        options.setdefault("arguments", {})
        method = Basic.Consume(queue=queue, consumer_tag=tag, **options)
        return str(self.ask(method, Basic.ConsumeOk).consumer_tag)

    def message(self, wait_s: float = DEADLINE_S) -> Message:
        found = self.raw.expect(self.number, Message, wait_s)
        assert isinstance(found, Message)
        return found

    def messages(self, count: int) -> list[Message]:
        return [self.message() for _ in range(count)]

    def texts(self, count: int) -> list[str]:
        return [found.text for found in self.messages(count)]

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.send(Basic.Ack(delivery_tag=tag, multiple=multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self.send(Basic.Nack(delivery_tag=tag, multiple=multiple, requeue=requeue))

    def reject(self, tag: int, *, requeue: bool = False) -> None:
        self.send(Basic.Reject(delivery_tag=tag, requeue=requeue))

    def qos(self, count: int, *, whole_channel: bool = False) -> None:
        self.ask(Basic.Qos(prefetch_count=count, global_=whole_channel), Basic.QosOk)

    def sync(self) -> None:
        """Return when the broker has done what was sent before."""
        self.ask(Basic.Qos(), Basic.QosOk)

    def close(self) -> None:
        self.ask(Channel.Close(200, "bye", 0, 0), Channel.CloseOk)
        self.raw.channels.pop(self.number, None)


def x_arguments(chosen: dict[str, Any]) -> dict[str, Any]:
    return {f"x-{name.replace('_', '-')}": value for name, value in chosen.items()}


def until_message(channel: Any, queue: str, wait_s: float = 5.0) -> Message:
    """The next message of a queue, when it is there."""
    deadline = time.monotonic() + wait_s
    while (message := channel.get(queue)) is None:
        assert time.monotonic() < deadline, f"nothing came to {queue}"
        time.sleep(0.02)
    found: Message = message
    return found
