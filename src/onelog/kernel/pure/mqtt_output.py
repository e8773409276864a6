"""MQTT's way out, interpreted: a subscriber's window of packet ids, its waiting bytes, PUBLISH.

Rules:
- A packet id is in flight until the peer has answered; the order of delivery is kept.
- Bytes leave in the order in which they were queued, shared or not.
- The first topics of a connection get its aliases and keep them: the peer always knows each alias.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onelog.base.errors import InvalidRequest
from onelog.kernel.pure.wire import encode_remaining_length, encode_utf8_field

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer

PACKET_IDS = 65_535
PUBACK, PUBREC, PUBCOMP = 4, 5, 7
ALIAS_BYTES = 3
"""A topic alias as a property; a topic that is no longer than that needs none."""


class MqttOutput:
    """What goes to one subscriber: its window of packet ids, and bytes that wait for its socket."""

    __slots__ = (
        "_aliases",
        "_chunks",
        "_in_flight",
        "_next_id",
        "alias_maximum",
        "kept",
        "live",
        "owner",
        "packet_bytes_max",
        "touched",
        "version",
        "window",
        "writer",
    )

    def __init__(self, owner: Any, version: int, window: int) -> None:
        self.owner = owner
        self.version = version
        self.window = window
        self.live = False
        """Whether `deliver` gives it records; False while its owner reads the log."""
        self.touched = False
        self.writer: Callable[[bytes], None] | None = None
        """Writes its bytes; None: its owner takes them."""
        self.kept = False
        """Whether its owner has to know of each delivery, because it keeps the state.

        Then the owner does all of QoS 2.
        """
        self.packet_bytes_max = 0
        """Larger packets are dropped (MQTT-3.1.2-24), 0 is no limit; set it before subscribing."""
        self.alias_maximum = 0
        """Topics that may have an alias (MQTT5 3.1.2.11.5); set it before subscribing."""
        self._aliases: dict[bytes, int] = {}
        self._chunks: list[bytes] = []
        self._in_flight: dict[int, tuple[int, int, int, int]] = {}
        self._next_id = 1

    @property
    def room(self) -> int:
        """Records that still fit its window."""
        return max(0, min(self.window, PACKET_IDS) - len(self._in_flight))

    @property
    def pending(self) -> int:
        """Records in flight."""
        return len(self._in_flight)

    @property
    def next_id(self) -> int:
        """The packet id that is tried next."""
        return self._next_id

    def take_id(self, partition: int, offset: int, qos: int) -> int:
        """A packet id for a record; 0: the window is full.

        A negative partition marks a record that the caller settles itself: it gets the PUBACK.
        """
        if self.room == 0:
            return 0
        packet_id = self._next_id
        while packet_id in self._in_flight:
            packet_id = packet_id % PACKET_IDS + 1
        self._next_id = packet_id % PACKET_IDS + 1
        self._in_flight[packet_id] = (partition, offset, qos, 0)
        return packet_id

    def alias_of(self, topic: bytes) -> int:
        """The alias of a topic that the peer knows; 0: it knows none."""
        return self._aliases.get(topic, 0)

    def next_alias(self, topic: bytes) -> int:
        """The alias that a topic may get; 0: all are taken, or the topic is too short to gain."""
        taken = len(self._aliases)
        return taken + 1 if taken < self.alias_maximum and len(topic) > ALIAS_BYTES else 0

    def give_alias(self, topic: bytes) -> None:
        """The packet with the next alias is queued: from now on the peer knows it."""
        self._aliases[topic] = len(self._aliases) + 1

    def ack(self, packet_id: int) -> bool:
        """The peer has completed it (PUBACK, PUBCOMP)."""
        return self._in_flight.pop(packet_id, None) is not None

    def settle(self, packet_id: int) -> bool:
        """The peer sent PUBACK. Returns False when the caller has to handle it.

        That is so when the caller settles the record itself, and when its QoS is not 1.
        """
        entry = self._in_flight.get(packet_id)
        if entry is not None and (entry[0] < 0 or entry[2] != 1):
            return False
        self._in_flight.pop(packet_id, None)
        return True

    def awaits(self, packet_id: int) -> int:
        """The type of the packet that its next step waits for; 0: it is not in flight."""
        entry = self._in_flight.get(packet_id)
        if entry is None:
            return 0
        if entry[2] != 2:
            return PUBACK
        return PUBCOMP if entry[3] else PUBREC

    def receive(self, packet_id: int) -> bool:
        """The peer has it (PUBREC). Returns False when it is not in flight with QoS 2."""
        entry = self._in_flight.get(packet_id)
        if entry is None or entry[2] != 2:
            return False
        self._in_flight[packet_id] = (*entry[:3], 1)
        return True

    def in_flight(self) -> list[tuple[int, int, int, int, int]]:
        """(packet id, partition, offset, QoS, stage), in the order of delivery."""
        return [(packet_id, *entry) for packet_id, entry in self._in_flight.items()]

    def restore(self, rows: list[tuple[int, int, int, int, int]], next_id: int) -> None:
        """Take over the packet ids that were in flight in an earlier connection."""
        for packet_id in (next_id, *(row[0] for row in rows)):
            if not 1 <= packet_id <= PACKET_IDS:
                raise InvalidRequest(f"{packet_id} is no packet id (1 to {PACKET_IDS})")
        self._in_flight = {row[0]: row[1:] for row in rows}
        self._next_id = next_id

    def push(self, data: bytes) -> None:
        """Queue bytes behind waiting ones."""
        self._chunks.append(data)

    def take(self) -> list[bytes]:
        """All bytes that wait for the socket."""
        chunks, self._chunks = self._chunks, []
        self.touched = False
        return chunks


def encode_alias(alias: int) -> bytes:
    """A topic alias as a property; nothing for 0."""
    return b"\x23" + alias.to_bytes(2, "big") if alias else b""


def encode_publish(
    version: int,
    topic: bytes,
    payload: Buffer,
    flags: int,
    packet_id: int = 0,
    properties: bytes = b"",
) -> bytes:
    """A PUBLISH packet; `flags` are DUP, QoS and RETAIN as in its first byte."""
    body = [encode_utf8_field(topic)]
    if flags & 6:
        body.append(packet_id.to_bytes(2, "big"))
    if version == 5:
        body += (encode_remaining_length(len(properties)), properties)
    size = sum(map(len, body)) + len(payload)
    return b"".join((bytes((0x30 | flags,)), encode_remaining_length(size), *body, bytes(payload)))
