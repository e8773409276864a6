"""The few Kafka requests that the command line needs, in versions without tagged fields.

Rules: bytes in, values out, no socket here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from onelog.base.errors import ProtocolViolation
from onelog.record import wire
from onelog.record.wire import Reader, array, text

PRODUCE, FETCH, LIST_OFFSETS, METADATA, SASL_HANDSHAKE, SASL_AUTHENTICATE = 0, 1, 2, 3, 17, 36
VERSIONS: Final = {
    PRODUCE: 8, FETCH: 11, LIST_OFFSETS: 2, METADATA: 4, SASL_HANDSHAKE: 1, SASL_AUTHENTICATE: 0,
}  # fmt: skip
EARLIEST, LATEST = -2, -1
READ_COMMITTED: Final = 1
NONE: Final = 0
UNKNOWN_TOPIC: Final = 3
NO_LEADER: Final = 5
OFFSET_OUT_OF_RANGE: Final = 1
ERRORS: Final = {
    -1: "the broker failed",
    1: "there is no such offset",
    2: "a damaged batch",
    3: "there is no such topic or partition",
    5: "the topic is being made",
    6: "another broker leads the partition",
    7: "the broker took too long",
    10: "the message is too large",
    17: "no topic can have this name",
    29: "not authorized for the topic",
    44: "the broker's rules forbid it",
    56: "the disk of the broker is full or fails",
    58: "the user or the password is wrong",
    87: "the records are not what the topic takes",
}
CLIENT_ID: Final = "onelog-cli"


def why(code: int) -> str:
    """An error code in words."""
    return f"{ERRORS.get(code, 'it was refused')} (error {code})"


def request(api: int, correlation_id: int, body: bytes) -> bytes:
    """A whole request."""
    return wire.request(api, VERSIONS[api], correlation_id, CLIENT_ID, body)


# -- requests and answers


def metadata_request(name: str, *, create: bool) -> bytes:
    """Ask for one topic."""
    return array([text(name)]) + struct.pack(">?", create)


def read_metadata(reader: Reader) -> tuple[int, list[int]]:
    """The error of the one topic that was asked for, and its partitions."""
    reader.number("i")
    reader.rows(lambda: (reader.number("i"), reader.string(), reader.number("i"), reader.string()))
    reader.string()
    reader.number("i")

    def partition() -> int:
        reader.number("h")
        number = reader.number("i")
        reader.number("i")
        for _ in range(2):
            reader.rows(lambda: reader.number("i"))
        return number

    def topic() -> tuple[int, list[int]]:
        code = reader.number("h")
        reader.string()
        reader.view(1)
        return code, reader.rows(partition)

    found = reader.rows(topic)
    return found[0] if found else (UNKNOWN_TOPIC, [])


def produce_request(name: str, partition: int, batch: bytes) -> bytes:
    """One batch for one partition, to be answered when it is durable."""
    rows = struct.pack(">ii", partition, len(batch)) + batch
    return struct.pack(">hhi", -1, -1, 30_000) + array([text(name) + array([rows])])


def read_produce(reader: Reader) -> tuple[int, str | None]:
    """The error of the one partition, and what the broker says of it."""

    def partition() -> tuple[int, str | None]:
        reader.number("i")
        code = reader.number("h")
        reader.view(24)
        told = [row for row in reader.rows(lambda: (reader.number("i"), reader.string())[1]) if row]
        return code, reader.string() or (told[0] if told else None)

    found = reader.rows(lambda: (reader.string(), reader.rows(partition))[1])
    return found[0][0]


def list_offsets_request(name: str, partitions: Iterable[int], timestamp_ms: int) -> bytes:
    """Ask where each partition is at a time."""
    rows = array(struct.pack(">iq", number, timestamp_ms) for number in partitions)
    return struct.pack(">ib", -1, READ_COMMITTED) + array([text(name) + rows])


def read_list_offsets(reader: Reader) -> dict[int, tuple[int, int]]:
    """Per partition the error and the offset."""
    reader.number("i")

    def partition() -> tuple[int, tuple[int, int]]:
        number, code = reader.number("i"), reader.number("h")
        reader.number("q")
        return number, (code, reader.number("q"))

    found = reader.rows(lambda: (reader.string(), reader.rows(partition))[1])
    return dict(found[0]) if found else {}


def fetch_request(name: str, positions: dict[int, int], wait_ms: int, bytes_max: int) -> bytes:
    """Ask for records of several partitions."""
    rows = array(
        struct.pack(">iiqqi", number, -1, offset, -1, bytes_max)
        for number, offset in positions.items()
    )
    head = struct.pack(">iiiibii", -1, wait_ms, 1, bytes_max, READ_COMMITTED, 0, -1)
    return head + array([text(name) + rows]) + array([]) + text("")


class Fetched(NamedTuple):
    """What a fetch brought of one partition."""

    partition: int
    error: int
    end: int
    """Where the committed records of the partition end."""
    aborted: list[tuple[int, int]]
    """(producer id, first offset) of transactions that were given up."""
    records: bytes


def read_fetch(reader: Reader) -> list[Fetched]:
    """What came, per partition."""
    reader.number("i")
    code = reader.number("h")
    reader.number("i")
    if code:
        raise ProtocolViolation(f"a fetch was refused: {why(code)}")

    def partition() -> Fetched:
        number, error = reader.number("i"), reader.number("h")
        reader.number("q")
        end = reader.number("q")
        reader.number("q")
        aborted = reader.rows(lambda: (reader.number("q"), reader.number("q")))
        reader.number("i")
        return Fetched(number, error, end, aborted, bytes(reader.blob()))

    return [
        row for rows in reader.rows(lambda: (reader.string(), reader.rows(partition))[1])
        for row in rows
    ]  # fmt: skip
