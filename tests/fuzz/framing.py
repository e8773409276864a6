"""The corpus: what clients said, and how it comes apart into packets and goes together again."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Protocol

from onelog.kernel import crc32c

CORPUS = Path(__file__).parent / "corpus"

MAGIC_AT = 16
CRC_AT = 17
CRC_FROM = 21
BATCH_HEAD_BYTES = 61


class Framing(Protocol):
    """How a protocol's bytes come apart."""

    def split(self, data: bytes) -> list[bytes]:
        """The packets of a connection; the rest, if there is one, is the last."""
        ...

    def kind(self, packet: bytes) -> bytes:
        """What two packets of one kind have in common."""
        ...

    def mend(self, packet: bytearray) -> None:
        """Make lengths and sums right again, in place, so that a change is looked at."""
        ...


class Mqtt:
    """A first byte, a length of one to four bytes, a body."""

    def split(self, data: bytes) -> list[bytes]:
        found, at = [], 0
        while at < len(data):
            end = self._end(data, at)
            found.append(data[at:end])
            at = end
        return found

    @staticmethod
    def _end(data: bytes, at: int) -> int:
        size = shift = 0
        for place in range(at + 1, min(at + 5, len(data))):
            size |= (data[place] & 0x7F) << shift
            shift += 7
            if data[place] < 0x80:
                return place + 1 + size
        return len(data)

    def kind(self, packet: bytes) -> bytes:
        return packet[:1]

    def mend(self, packet: bytearray) -> None:
        head = 2
        while head < min(5, len(packet)) and packet[head - 1] >= 0x80:
            head += 1
        size, length = max(0, len(packet) - head), bytearray()
        while True:
            size, low = size >> 7, size & 0x7F
            length.append(low | (0x80 if size else 0))
            if not size:
                break
        packet[1:head] = length


class Kafka:
    """A length of four bytes, a request. Record batches in it have sums of their own."""

    def split(self, data: bytes) -> list[bytes]:
        found, at = [], 0
        while at + 4 <= len(data):
            end = at + 4 + max(0, struct.unpack_from(">i", data, at)[0])
            found.append(data[at:end])
            at = end
        return found

    def kind(self, packet: bytes) -> bytes:
        return packet[4:8]

    def mend(self, packet: bytearray) -> None:
        if len(packet) >= 4:
            struct.pack_into(">i", packet, 0, len(packet) - 4)
        if packet[4:6] == b"\0\0":
            for at in range(8, len(packet) - BATCH_HEAD_BYTES):
                mend_batch(packet, at)


def mend_batch(data: bytearray, at: int) -> bool:
    """Set the sum of the record batch that begins here, if one does."""
    if data[at : at + 8] != bytes(8) or data[at + MAGIC_AT] != 2:
        return False
    (size,) = struct.unpack_from(">i", data, at + 8)
    end = at + 12 + size
    if size < BATCH_HEAD_BYTES - 12 or end > len(data):
        return False
    struct.pack_into(">I", data, at + CRC_AT, crc32c(bytes(data[at + CRC_FROM : end])))
    return True


class Amqp:
    """Eight bytes of greeting, then frames with a length and an end mark."""

    def split(self, data: bytes) -> list[bytes]:
        found, at = [data[:8]], 8
        while at + 7 <= len(data):
            end = at + 8 + struct.unpack_from(">I", data, at + 3)[0]
            found.append(data[at:end])
            at = end
        return found

    def kind(self, packet: bytes) -> bytes:
        return packet[:1] + packet[7:11]

    def mend(self, packet: bytearray) -> None:
        if len(packet) >= 8 and packet[:4] != b"AMQP":
            struct.pack_into(">I", packet, 3, len(packet) - 8)
            packet[-1] = 0xCE


class Websocket:
    """An upgrade, then masked frames."""

    def split(self, data: bytes) -> list[bytes]:
        at = data.find(b"\r\n\r\n") + 4
        found = [data[:at]] if at > 4 else [data]
        while 4 < at < len(data):
            size, head = data[at + 1] & 0x7F if at + 1 < len(data) else 0, 6
            if size == 126:
                size, head = int.from_bytes(data[at + 2 : at + 4]), 8
            elif size == 127:
                size, head = int.from_bytes(data[at + 2 : at + 10]), 14
            found.append(data[at : at + head + size])
            at += head + size
        return found

    def kind(self, packet: bytes) -> bytes:
        return packet[:2] if packet[:1] > b"\x7f" else b""

    def mend(self, packet: bytearray) -> None:
        if packet[:1] > b"\x7f" and 6 <= len(packet) < 132:
            packet[1] = 0x80 | len(packet) - 6


class Http:
    """Requests; their bodies have a length."""

    def split(self, data: bytes) -> list[bytes]:
        found, at = [], 0
        while at < len(data):
            head = data.find(b"\r\n\r\n", at) + 4
            if head < 4:
                head = len(data)
            size = 0
            for line in data[at:head].lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    size = int(line.partition(b":")[2])
            found.append(data[at : head + size])
            at = head + size
        return found

    def kind(self, packet: bytes) -> bytes:
        return packet.partition(b"\r\n")[0]

    def mend(self, packet: bytearray) -> None:
        head, gap, body = bytes(packet).partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        for number, line in enumerate(lines):
            if line.lower().startswith(b"content-length:"):
                lines[number] = b"Content-Length: %d" % len(body)
        packet[:] = b"\r\n".join(lines) + gap + body


class Link:
    """A length of four bytes, a frame of an inner link."""

    def split(self, data: bytes) -> list[bytes]:
        found, at = [], 0
        while at + 4 <= len(data):
            end = at + 4 + struct.unpack_from(">I", data, at)[0]
            found.append(data[at:end])
            at = end
        return found

    def kind(self, packet: bytes) -> bytes:
        return packet[4:5]

    def mend(self, packet: bytearray) -> None:
        if len(packet) >= 4:
            struct.pack_into(">I", packet, 0, len(packet) - 4)


FRAMINGS: dict[str, Framing] = {
    "mqtt": Mqtt(),
    "kafka": Kafka(),
    "amqp": Amqp(),
    "websocket": Websocket(),
    "http": Http(),
    "management": Http(),
    "link": Link(),
}


def load(name: str) -> list[list[bytes]]:
    """The connections of a protocol's corpus, each as its packets."""
    framing = FRAMINGS[name]
    return [framing.split(path.read_bytes()) for path in sorted((CORPUS / name).glob("*.bin"))]
