"""A client that says exactly what it is told to and hides nothing of what it gets."""

from __future__ import annotations

import secrets
import socket
import ssl
from types import TracebackType
from typing import Any, TypeVar

from onelog.protocols.mqtt.codec import decode_packet, encode_packet
from onelog.protocols.mqtt.packet_types import Side
from onelog.protocols.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from onelog.protocols.mqtt.properties import Properties
from onelog.protocols.mqtt.reasons import ReasonCode

DEADLINE_S = 30.0
P = TypeVar("P")


def unique(word: str = "t") -> str:
    """A name that no other test uses."""
    return f"{word}{secrets.token_hex(5)}"


class Ended(Exception):
    """The broker closed the connection."""


class Raw:
    """One connection; it acknowledges nothing by itself."""

    def __init__(self, port: int, version: int = 5, *, tls: ssl.SSLContext | None = None) -> None:
        self.version = version
        self.socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._bytes = bytearray()
        self._arrived: list[Packet] = []
        self._ids = 0
        self.connack = Connack()

    def __enter__(self) -> Raw:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.socket.close()

    # -- bytes and packets

    def send(self, *packets: Packet) -> None:
        self.socket.sendall(b"".join(encode_packet(packet, self.version) for packet in packets))

    def read(self) -> Packet:
        """The next packet on the wire. Raises Ended."""
        while True:
            packet = self._cut()
            if packet is not None:
                return packet
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError as error:
                raise Ended("reset") from error
            if not data:
                raise Ended("closed")
            self._bytes += data

    def _cut(self) -> Packet | None:
        size = shift = 0
        for at in range(1, min(len(self._bytes), 5)):
            byte = self._bytes[at]
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                end = at + 1 + size
                if len(self._bytes) < end:
                    return None
                first, body = self._bytes[0], bytes(self._bytes[at + 1 : end])
                del self._bytes[:end]
                return decode_packet(first, body, self.version, sender=Side.SERVER)
        return None

    def next_packet(self) -> Packet:
        """The next packet, which may have come before now."""
        return self._arrived.pop(0) if self._arrived else self.read()

    def get(self, kind: type[P]) -> P:
        """The first packet of a kind; others are kept for later."""
        for packet in self._arrived:
            if isinstance(packet, kind):
                self._arrived.remove(packet)
                return packet
        while True:
            packet = self.read()
            if isinstance(packet, kind):
                return packet
            self._arrived.append(packet)

    def messages(self) -> list[Publish]:
        """Every message that is on its way by now, in order."""
        for _ in range(2):
            self.send(Pingreq())
            self.get(Pingresp)
        found = [packet for packet in self._arrived if isinstance(packet, Publish)]
        self._arrived = [packet for packet in self._arrived if not isinstance(packet, Publish)]
        return found

    def end(self) -> Disconnect | None:
        """Read until the broker closes; its DISCONNECT, if it sent one."""
        try:
            while True:
                self._arrived.append(self.read())
        except Ended:
            pass
        return next((p for p in self._arrived if isinstance(p, Disconnect)), None)

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    # -- conversations

    def connect(
        self,
        client_id: str | None = None,
        *,
        clean: bool = True,
        keep_alive_s: int = 60,
        will: Will | None = None,
        username: str | None = None,
        password: bytes | None = None,
        **properties: Any,
    ) -> Raw:
        """CONNECT and the answer, which stays in `connack`."""
        self.client_id = unique("c") if client_id is None else client_id
        self.send(
            Connect(
                client_id=self.client_id,
                version=self.version,
                clean_start=clean,
                keep_alive_s=keep_alive_s,
                will=will,
                username=username,
                password=password,
                properties=Properties(**properties),
            )
        )
        self.connack = self.get(Connack)
        return self

    def subscribe(self, text: str, qos: int = 0, *, identifier: int = 0, **options: Any) -> int:
        properties = Properties(subscription_ids=(identifier,)) if identifier else Properties()
        row = Subscription(text, qos, **options)
        self.send(Subscribe(self.next_id(), (row,), properties))
        return int(self.get(Suback).reasons[0])

    def unsubscribe(self, *filters: str) -> tuple[int, ...]:
        self.send(Unsubscribe(self.next_id(), filters))
        return tuple(map(int, self.get(Unsuback).reasons))

    def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 1,
        *,
        retain: bool = False,
        **properties: Any,
    ) -> int:
        """Publish to the end of the conversation; the code of the answer."""
        packet_id = self.next_id() if qos else 0
        self.send(
            Publish(
                topic=topic,
                payload=payload,
                qos=qos,
                retain=retain,
                packet_id=packet_id,
                properties=Properties(**properties),
            )
        )
        if qos == 1:
            return int(self.get(Puback).reason)
        if qos == 2:
            answer = self.get(Pubrec)
            if answer.reason < 0x80:
                self.send(Pubrel(packet_id))
                assert self.get(Pubcomp).reason == 0
            return int(answer.reason)
        return 0

    def message(self) -> Publish:
        """The next message, not acknowledged."""
        return self.get(Publish)

    def take(self) -> Publish:
        """The next message, acknowledged to the end."""
        message = self.message()
        self.acknowledge(message)
        return message

    def acknowledge(self, message: Publish) -> None:
        if message.qos == 1:
            self.send(Puback(message.packet_id))
        elif message.qos == 2:
            self.send(Pubrec(message.packet_id))
            assert self.get(Pubrel).packet_id == message.packet_id
            self.send(Pubcomp(message.packet_id))

    def disconnect(self, reason: int = 0, **properties: Any) -> None:
        """Say goodbye and wait until the broker has closed."""
        self.send(Disconnect(ReasonCode(reason), Properties(**properties)))
        self.end()
        self.socket.close()

    def vanish(self) -> None:
        """Go without a goodbye."""
        self.socket.close()
