"""MQTT 5 for the command line.

Rules: publishes of QoS 1 and 2 are answered, some of them may be under way at once. A reader has a
session that ends with it; it acknowledges a message when the message is handed on. A publisher may
wait long for its input, so it promises no keep-alive; a reader pings, to notice when the broker is
gone.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from onelog.base.errors import InvalidRequest, NotAuthenticated, NotAuthorized, Unavailable
from onelog.cli.talk.link import BrokerAddress, Link, Patience
from onelog.cli.talk.messages import Message, Wanted
from onelog.protocols.mqtt.codec import decode_packet, encode_packet
from onelog.protocols.mqtt.packet_types import Side, Version
from onelog.protocols.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
)
from onelog.protocols.mqtt.properties import NO_PROPERTIES, Properties
from onelog.protocols.mqtt.reasons import ReasonCode

PING_S: Final = 30.0
WINDOW: Final = 64
_RECEIVE_MAXIMUM: Final = 65_535  # MQTT5 3.2.2.3.3: where a broker says nothing
_LENGTH_BYTES_MAX: Final = 4
_REFUSED: Final = ReasonCode.UNSPECIFIED_ERROR
_LOGIN: Final = (ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED)
_WORDS: Final = {
    ReasonCode.QUOTA_EXCEEDED: "quota exceeded (a quota, or the disk of the broker is full)",
}

P = TypeVar("P")


class MqttTalker:
    """A client of MQTT 5."""

    def __init__(self, address: BrokerAddress) -> None:
        self._link = Link(address)
        self._arrived: deque[Publish] = deque()
        self._given: Publish | None = None
        self._sent_at = 0.0
        self._open: dict[int, str] = {}
        """Packet ids that are not answered yet, and the topics of their messages."""
        self._next_id = 0
        try:
            self._log_in(address)
        except BaseException:
            self._link.close()
            raise

    def _log_in(self, address: BrokerAddress) -> None:
        self._send(
            Connect(
                client_id=f"onelog-cli-{secrets.token_hex(6)}",
                version=Version.V5,
                clean_start=True,
                keep_alive_s=0,
                username=address.user or None,
                password=address.password.encode() if address.user else None,
                properties=NO_PROPERTIES,
            )
        )
        answer = self._expect(Connack)
        if answer.reason in _LOGIN:
            raise NotAuthenticated(f"{address} does not let {address.user or 'a client'} in")
        if answer.reason:
            raise Unavailable(f"{address} refuses: {_words(answer)}")
        promised_s = answer.properties.server_keep_alive_s
        self._ping_s = min(PING_S, promised_s / 2) if promised_s else PING_S
        self.receive_maximum = answer.properties.receive_maximum or _RECEIVE_MAXIMUM
        """Publishes of QoS 1 and 2 that the broker takes before it answers."""
        self._window = min(WINDOW, self.receive_maximum)

    # -- packets

    def _send(self, packet: Packet) -> None:
        self._sent_at = time.monotonic()
        self._link.send(encode_packet(packet, Version.V5))

    def _take_packet(self) -> Packet | None:
        """A whole packet of the buffer."""
        buffer, size, shift = self._link.buffer, 0, 0
        for at in range(1, 1 + _LENGTH_BYTES_MAX):
            if at >= len(buffer):
                return None
            size |= (buffer[at] & 0x7F) << shift
            shift += 7
            if buffer[at] < 0x80:
                if len(buffer) < at + 1 + size:
                    return None
                head = self._link.take(at + 1)
                return decode_packet(head[0], self._link.take(size), Version.V5, sender=Side.SERVER)
        raise Unavailable(f"{self._link.address} does not speak MQTT")

    def _expect(self, kind: type[P]) -> P:
        """The next packet of a kind; messages stay for later."""
        while True:
            packet = self._take_packet()
            if packet is None:
                self._link.receive_answer()
            elif isinstance(packet, kind):
                return packet
            else:
                self._took(packet)

    def _took(self, packet: Packet) -> None:
        """A packet that no caller waits for now."""
        if isinstance(packet, Disconnect):
            raise Unavailable(f"{self._link.address} ended the connection: {_words(packet)}")
        if isinstance(packet, Publish):
            self._arrived.append(packet)
        elif isinstance(packet, Puback | Pubrec) and packet.reason >= _REFUSED:
            topic = self._open.pop(packet.packet_id, "")
            kind = NotAuthorized if packet.reason == ReasonCode.NOT_AUTHORIZED else InvalidRequest
            raise kind(f"the message to {topic} was refused: {_words(packet)}")
        elif isinstance(packet, Puback | Pubcomp):
            self._open.pop(packet.packet_id, None)
        elif isinstance(packet, Pubrec | Pubrel):
            done = Pubrel if isinstance(packet, Pubrec) else Pubcomp
            self._send(done(packet.packet_id))

    def _take_id(self) -> int:
        self._next_id = self._next_id % 65_535 + 1
        return self._next_id

    # -- publishing

    def publish(self, message: Message) -> None:
        """Send a message."""
        while len(self._open) >= self._window:
            self._wait_for_answer()
        qos = int(message.fields.get("qos", 0))
        packet_id = self._take_id() if qos else 0
        if qos:
            self._open[packet_id] = message.topic
        self._send(
            Publish(
                topic=message.topic,
                payload=message.payload or b"",
                qos=qos,
                retain=bool(message.fields.get("retain")),
                packet_id=packet_id,
                properties=_properties(message),
            )
        )

    def _wait_for_answer(self) -> None:
        packet = self._take_packet()
        if packet is None:
            self._link.receive_answer()
        else:
            self._took(packet)

    def flush(self) -> None:
        """Return when every publish is answered."""
        while self._open:
            self._wait_for_answer()

    # -- reading

    def receive(self, wanted: Wanted, patience: Patience) -> Iterator[Message]:
        """Subscribe; a start other than `latest` is a replay."""
        text = wanted.filter
        if wanted.start.kind != "latest":
            text = f"$replay/{wanted.start.text}/{text}"
        row = Subscription(
            text,
            wanted.qos,
            retain_as_published=True,
            retain_handling=0 if wanted.retained else 2,
        )
        self._send(Subscribe(self._take_id(), (row,)))
        answer = self._expect(Suback)
        if answer.reasons[0] >= _REFUSED:
            raise NotAuthorized(
                f"{wanted.filter} cannot be read: {_words(answer, answer.reasons[0])}"
            )
        patience.refresh()
        while True:
            if self._arrived:
                self._given = self._arrived.popleft()
                patience.refresh()
                yield _message(self._given)
                continue
            found = self._take_packet()
            if found is not None:
                self._took(found)
                continue
            left = patience.left_s(self._ping_s)
            if left <= 0:
                return
            self._link.receive(left)
            if time.monotonic() - self._sent_at >= self._ping_s:
                self._send(Pingreq())

    def settle(self) -> None:
        """Acknowledge the message that was given last."""
        given = self._given
        if given is not None and given.qos:
            self._send((Puback if given.qos == 1 else Pubrec)(given.packet_id))
        self._given = None

    def close(self) -> None:
        """Say goodbye."""
        try:
            self._send(Disconnect())
        finally:
            self._link.close()


def _properties(message: Message) -> Properties:
    fields = message.fields
    expires_ms = fields.get("expires_ms")
    left_s = None if expires_ms is None else _seconds_left(int(expires_ms))
    pairs = []
    for name, value in message.headers:
        try:
            pairs.append((name, (value or b"").decode()))
        except UnicodeDecodeError:
            raise InvalidRequest(
                f"MQTT headers are text, but the value of header {name} is not"
            ) from None
    return Properties(
        content_type=fields.get("content_type"),
        response_topic=fields.get("reply_to"),
        correlation_data=fields.get("correlation"),
        message_expiry_s=left_s,
        payload_format=fields.get("payload_format"),
        user_properties=tuple(pairs),
    )


def _seconds_left(expires_ms: int) -> int:
    return max(0, -(-(expires_ms - time.time_ns() // 1_000_000) // 1000))


def _message(packet: Publish) -> Message:
    properties = packet.properties
    fields: dict[str, Any] = {}
    if packet.qos:
        fields["qos"] = packet.qos
    if packet.retain:
        fields["retain"] = True
    if properties.message_expiry_s is not None:
        fields["expires_ms"] = time.time_ns() // 1_000_000 + properties.message_expiry_s * 1000
    fields |= {
        name: value
        for name, value in (
            ("content_type", properties.content_type),
            ("reply_to", properties.response_topic),
            ("correlation", properties.correlation_data),
            ("payload_format", properties.payload_format),
        )
        if value is not None
    }
    return Message(
        topic=packet.topic,
        payload=packet.payload,
        headers=[(name, value.encode()) for name, value in properties.user_properties],
        fields=fields,
        redelivered=True if packet.dup else None,
    )


def _words(packet: Any, reason: ReasonCode | None = None) -> str:
    chosen = packet.reason if reason is None else reason
    text: str | None = packet.properties.reason_string
    return text or _WORDS.get(chosen) or ReasonCode(chosen).name.lower().replace("_", " ")
