"""AMQP 0-9-1 for the command line: publish with confirms, read a queue or a binding.

Rules: a topic is a routing key of `amq.topic`, unless an exchange is named; then it is the key as
it stands. A reader makes a queue of its own, which ends with the reader, with history if the user
wants it; or it takes messages from an existing queue. It acknowledges a message when the message is
handed on. A broker that has no room blocks publishers; the command waits for a while, then fails
with that error.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from onelog.base.errors import (
    InvalidRequest,
    NotAuthenticated,
    NotAuthorized,
    NotFound,
    OnelogError,
    Timeout,
    Unavailable,
)
from onelog.cli.talk import amqp_wire as wire
from onelog.cli.talk.link import BrokerAddress, Link, Patience
from onelog.cli.talk.messages import Message, Start, Wanted
from onelog.protocols.amqp import frames
from onelog.protocols.amqp.correlation import to_correlation, to_correlation_id
from onelog.protocols.amqp.fields import PROPERTY_OF
from onelog.protocols.amqp.frames import PROTOCOL_HEADER, decode_content_head, decode_method
from onelog.protocols.amqp.properties import Properties, decode_properties
from onelog.queues.addresses import (
    DEFAULT_VHOST,
    ROOT_EXCHANGE,
    address_of,
    message_topic,
    reply_key,
    reply_topic,
)
from onelog.record.tables import change_table, header_value

WINDOW: Final = 64
BLOCKED_S: Final = 10.0
"""How long a broker may say that it takes no messages; what only limits a rate is over by then."""
PREFETCH: Final = 100
_PERSISTENT: Final = 2
_FRAME_BYTES_LEAST: Final = 4096
_FRAME_BYTES_MAX: Final = 16 << 20
_WAIT_S: Final = 30.0
_ERRORS: Final[dict[int, type[OnelogError]]] = {403: NotAuthorized, 404: NotFound}


class AmqpTalker:
    """A client of AMQP; `exchange` is where it writes and what it binds to."""

    def __init__(self, address: BrokerAddress, exchange: str | None = None) -> None:
        self._link = Link(address)
        self._exchange = exchange
        self._frame_bytes_max = _FRAME_BYTES_LEAST
        self._arrived: deque[tuple[Any, Properties, bytes]] = deque()
        self._content: list[Any] = []
        """A delivery or return whose content is not whole: method, head, body."""
        self._given = 0
        self._published = 0
        self._confirmed: set[int] = set()
        self._confirms = False
        self._blocked = ""
        """Why the broker takes no messages now."""
        self._is_lost = False
        """Whether nothing is to be expected from it any more."""
        try:
            self._log_in(address)
        except BaseException:
            self._link.close()
            raise

    def _log_in(self, address: BrokerAddress) -> None:
        self._link.send(PROTOCOL_HEADER)
        self._expect("Connection.Start")
        # A broker that accepts anonymous clients accepts guest as anonymous.
        self._link.send(wire.start_ok(address.user or "guest", address.password or "guest"))
        try:
            tune = self._expect("Connection.Tune")
        except (NotAuthorized, Unavailable) as error:
            raise NotAuthenticated(
                f"{address} does not let {address.user or 'guest'} in"
            ) from error
        self._frame_bytes_max = tune.frame_max or 1 << 17
        self._link.send(wire.tune_ok(tune.channel_max, self._frame_bytes_max))
        self._call(wire.open_connection("/"), "Connection.OpenOk")
        self._call(wire.open_channel(), "Channel.OpenOk")

    # -- frames

    def _call(self, request: bytes, answer: str) -> Any:
        self._link.send(request)
        return self._expect(answer)

    def _expect(self, name: str) -> Any:
        """The next method of a name; deliveries stay for later."""
        while True:
            for method in self._read_frames():
                if method.name == name:
                    return method
            self._link.receive_answer()

    def _read_frames(self) -> Iterator[Any]:
        """The methods of the buffer that are no content, one by one."""
        link = self._link
        while True:
            if link.buffer[:4] == b"AMQP":
                raise Unavailable(f"{link.address} does not speak AMQP 0-9-1")
            size = int.from_bytes(link.buffer[3:7], "big")
            if len(link.buffer) < 7 or len(link.buffer) < size + 8:
                if size > _FRAME_BYTES_MAX:
                    raise Unavailable(f"{link.address} does not speak AMQP")
                return
            frame = frames.one_frame(bytes(link.take(size + 8)))
            if frame.kind == frames.METHOD:
                method = decode_method(frame.payload)
                if self._took(method):
                    continue
                yield method
            elif frame.kind == frames.HEADER:
                head = decode_content_head(frame.payload)
                self._content += [head, bytearray()]
            elif frame.kind == frames.BODY:
                self._content[2] += frame.payload
            self._finish_content()

    def _took(self, method: Any) -> bool:
        """Deal with what may come at any time; whether it was that."""
        name = method.name
        if name in ("Connection.Close", "Channel.Close"):
            self._link.send(wire.close_ok(wire.CHANNEL if name == "Channel.Close" else 0))
            kind = _ERRORS.get(method.reply_code, Unavailable)
            raise kind(f"{self._link.address} refuses: {method.reply_text}")
        if name in ("Connection.Blocked", "Connection.Unblocked"):
            self._blocked = method.reason if name == "Connection.Blocked" else ""
            return True
        if name == "Basic.Cancel":
            raise NotFound("the queue was deleted")
        if name in ("Basic.Deliver", "Basic.Return"):
            self._content = [method]
            return True
        if name in ("Basic.Ack", "Basic.Nack"):
            if name == "Basic.Nack":
                raise InvalidRequest(f"message {method.delivery_tag} was refused by a queue")
            first = 1 if method.multiple else method.delivery_tag
            self._confirmed.difference_update(range(first, method.delivery_tag + 1))
            return True
        return False

    def _finish_content(self) -> None:
        if len(self._content) != 3:
            return
        method, head, body = self._content
        if len(body) < head.body_bytes:
            return
        self._content = []
        if method.name == "Basic.Return":
            raise NotFound(
                f"no queue takes {method.routing_key!r} of exchange {method.exchange!r}:"
                f" {method.reply_text}"
            )
        self._arrived.append((method, decode_properties(head.properties), bytes(body)))

    # -- publishing

    def publish(self, message: Message) -> None:
        """Send a message."""
        if not self._confirms:
            self._call(wire.select_confirms(), "Confirm.SelectOk")
            self._confirms = True
        while len(self._confirmed) >= WINDOW:
            self._wait_for_answer()
        exchange, key = self._exchange, message.topic
        if exchange is None:
            _vhost, exchange, key = address_of(message.topic)
        self._published += 1
        self._confirmed.add(self._published)
        frames_out = wire.publish(
            exchange, key, _to_properties(message), message.payload or b"",
            self._frame_bytes_max, mandatory=exchange != ROOT_EXCHANGE,
        )  # fmt: skip
        try:
            self._link.send(frames_out)
        except Timeout:
            self._wait_for_answer()  # it tells why, if the broker did
            self._is_lost = True
            raise

    def _wait_for_answer(self) -> None:
        """Return when at least one more publish is confirmed. Raises Timeout, Unavailable."""
        before, began = len(self._confirmed), time.monotonic()
        while True:
            for _method in self._read_frames():
                pass
            if len(self._confirmed) != before:
                return
            most_s = self._link.address.answer_s
            if self._blocked:
                most_s = min(most_s, BLOCKED_S)
            left_s = began + most_s - time.monotonic()
            if left_s <= 0:
                self._is_lost = True
                if self._blocked:
                    raise Unavailable(f"{self._link.address} takes no messages: {self._blocked}")
                raise Timeout(f"{self._link.address} does not answer")
            # In short steps, as a broker that blocks has less time.
            self._link.receive(min(left_s, BLOCKED_S))

    def flush(self) -> None:
        """Return when every publish is confirmed."""
        while self._confirmed:
            self._wait_for_answer()

    # -- reading

    def receive(self, wanted: Wanted, patience: Patience) -> Iterator[Message]:
        """Consume from a queue of ours, or from one that is there."""
        queue = wanted.queue or self._bind_queue(wanted)
        found = self._call(wire.declare_queue(queue, {}, passive=True), "Queue.DeclareOk")
        left = found.message_count if wanted.to_end else -1
        self._call(wire.set_prefetch(PREFETCH), "Basic.QosOk")
        if left:
            self._call(wire.consume(queue), "Basic.ConsumeOk")
        patience.refresh()
        while left:
            if self._arrived:
                method, properties, body = self._arrived.popleft()
                self._given = method.delivery_tag
                left -= 1
                patience.refresh()
                yield _to_message(method, properties, body)
                continue
            for _method in self._read_frames():
                pass
            if not self._arrived:
                wait_s = patience.left_s(_WAIT_S)
                if wait_s <= 0:
                    return
                self._link.receive(wait_s)

    def _bind_queue(self, wanted: Wanted) -> str:
        arguments = _history(wanted.start)
        queue = str(self._call(wire.declare_queue("", arguments), "Queue.DeclareOk").queue)
        exchange, key = self._exchange, wanted.filter
        if exchange is None:
            exchange, key = wire.binding_of(wanted.filter)
        self._call(wire.bind_queue(queue, exchange, key), "Queue.BindOk")
        return queue

    def settle(self) -> None:
        """Acknowledge the message that was given last."""
        if self._given:
            self._link.send(wire.acknowledge(self._given))
        self._given = 0

    def close(self) -> None:
        """Say goodbye, and wait until the broker has heard it, if it still listens."""
        try:
            if not self._is_lost:
                self._call(wire.close(), "Connection.CloseOk")
        finally:
            self._link.close()


def _history(start: Start) -> dict[str, Any]:
    if start.kind == "latest":
        return {}
    values = {"offset": start.value, "time": f"timestamp:{start.value}"}
    return {"x-onelog-from": values.get(start.kind, "earliest")}


def _to_properties(message: Message) -> Properties:
    found = Properties()
    for name, value in message.fields.items():
        if name == "qos":
            found.delivery_mode = _PERSISTENT if value else None
        elif name == "expires_ms":
            found.expiration = str(max(0, int(value) - time.time_ns() // 1_000_000))
        elif name == "reply_to":
            found.reply_to = reply_key(DEFAULT_VHOST, value)
        elif name == "correlation":
            found.correlation_id = to_correlation_id(value)
        elif name in PROPERTY_OF:
            setattr(found, PROPERTY_OF[name], value)
    rows = {name: header_value(value) for name, value in message.headers}
    found.headers = change_table(None, rows) if rows else None
    return found


def _to_message(method: Any, properties: Properties, body: bytes) -> Message:
    fields: dict[str, Any] = {}
    for name, property_ in PROPERTY_OF.items():
        value = getattr(properties, property_)
        if value is not None:
            fields[name] = value
    if "qos" in fields:
        fields["qos"] = 1 if properties.delivery_mode == _PERSISTENT else 0
    # The message has its lifetime as sent, but not the time of sending: a computed time of expiry
    # would be later at each reading.
    expires = fields.pop("expires_ms", "")
    if properties.correlation_id is not None:
        fields["correlation"] = to_correlation(properties.correlation_id)
    if properties.reply_to is not None:
        fields["reply_to"] = reply_topic(DEFAULT_VHOST, properties.reply_to)
    return Message(
        topic=message_topic(DEFAULT_VHOST, method.exchange, method.routing_key),
        payload=body,
        headers=[(name, _header(value)) for name, value in properties.table().items()],
        fields=fields,
        expires_in_ms=int(expires) if expires.isdecimal() and expires.isascii() else None,
        exchange=method.exchange,
        routing_key=method.routing_key,
        redelivered=True if method.redelivered else None,
    )


def _header(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes | bytearray):
        return None if value is None else bytes(value)
    return str(value).encode()
