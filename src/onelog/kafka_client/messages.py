"""The requests and answers of the client, each beside the other.

Rules: no socket here. A refusal inside an answer is kept as a code; the caller knows what it means.
A partition is named by (topic, number).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Final, NamedTuple, TypeVar

from onelog.base.errors import ProtocolViolation
from onelog.kafka_client import codes
from onelog.kafka_client.access import Address
from onelog.kafka_client.wire import Reader, array, blob, number, text

EARLIEST: Final = -2
LATEST: Final = -1
READ_COMMITTED: Final = 1
ALL_REPLICAS: Final = -1
PRODUCE_TIMEOUT_MS: Final = 30_000
NO_MEMBER: Final = ""
NO_GENERATION: Final = -1

Part = tuple[str, int]
"""A topic and the number of one of its partitions."""
T = TypeVar("T")


def _by_topic(rows: Iterable[tuple[Part, bytes]]) -> bytes:
    """Rows of partitions, under their topics."""
    ordered = sorted(rows, key=lambda row: row[0])
    return array(
        text(topic) + array(data for _part, data in found)
        for topic, found in groupby(ordered, key=lambda row: row[0][0])
    )


def _parts(reader: Reader, read: Callable[[], tuple[int, T]]) -> dict[Part, T]:
    """The same of an answer."""
    found: dict[Part, T] = {}

    def topic() -> None:
        name = reader.name()
        found.update({(name, index): value for index, value in reader.rows(read)})

    reader.rows(topic)
    return found


# -- topics


class Topic(NamedTuple):
    """What the broker says of a topic."""

    name: str
    code: int
    leaders: dict[int, int]
    """Per partition, in order, the node that leads it; -1: none at the moment."""
    internal: bool

    @property
    def partitions(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(self.leaders)


class Metadata(NamedTuple):
    """What the broker says of itself, of other nodes, and of topics."""

    nodes: dict[int, Address]
    topics: list[Topic]


def metadata_request(names: Iterable[str] | None, *, create: bool) -> bytes:
    """Ask for topics; None: all."""
    asked = number("i", -1) if names is None else array(text(name) for name in names)
    return asked + number("?", create)


def read_metadata(reader: Reader) -> Metadata:
    """The nodes, and the topics that were asked for."""
    reader.number("i")

    def node() -> tuple[int, Address]:
        number, host, port = reader.number("i"), reader.name(), reader.number("i")
        reader.string()
        return number, (host, port)

    nodes = dict(reader.rows(node))
    reader.string()
    reader.number("i")

    def partition() -> tuple[int, int]:
        reader.number("h")
        index, leader = reader.number("i"), reader.number("i")
        for _ in range(2):
            reader.rows(lambda: reader.number("i"))
        return index, leader

    def topic() -> Topic:
        code, name, internal = reader.number("h"), reader.name(), reader.number("?")
        return Topic(name, code, dict(sorted(reader.rows(partition))), bool(internal))

    return Metadata(nodes, reader.rows(topic))


# -- offsets


def list_offsets_request(asked: Mapping[Part, int]) -> bytes:
    """Ask per partition where it is at a time in milliseconds, EARLIEST or LATEST."""
    rows = ((part, number("iq", part[1], at)) for part, at in asked.items())
    return number("ib", -1, READ_COMMITTED) + _by_topic(rows)


def read_list_offsets(reader: Reader) -> dict[Part, tuple[int, int]]:
    """Per partition the code and the offset; -1 when none is so late."""
    reader.number("i")

    def partition() -> tuple[int, tuple[int, int]]:
        index, code = reader.number("i"), reader.number("h")
        reader.number("q")
        return index, (code, reader.number("q"))

    return _parts(reader, partition)


def commit_request(group: str, offsets: Mapping[Part, int]) -> bytes:
    """Remember offsets under the name of a group that has no members."""
    rows = ((part, number("iq", part[1], at) + text("")) for part, at in offsets.items())
    head = text(group) + number("i", NO_GENERATION) + text(NO_MEMBER) + number("q", -1)
    return head + _by_topic(rows)


def read_commit(reader: Reader) -> dict[Part, int]:
    """Per partition the code."""
    reader.number("i")
    return _parts(reader, lambda: (reader.number("i"), reader.number("h")))


def committed_request(group: str, parts: Iterable[Part]) -> bytes:
    """Ask which offsets a group has."""
    return text(group) + _by_topic((part, number("i", part[1])) for part in parts)


def read_committed(reader: Reader) -> tuple[int, dict[Part, int]]:
    """The code of the whole answer, and the offset of each partition; -1: none."""
    reader.number("i")

    def partition() -> tuple[int, tuple[int, int]]:
        index, offset = reader.number("i"), reader.number("q")
        reader.string()
        return index, (reader.number("h"), offset)

    found = _parts(reader, partition)
    code = reader.number("h") or next((row[0] for row in found.values() if row[0]), codes.NONE)
    return code, {part: offset for part, (_code, offset) in found.items()}


# -- reading


class Named(NamedTuple):
    """Which topic the records of a partition have that do not carry it."""

    topic: str | None
    """None: all of them carry theirs."""
    until: int | None
    """The offset from which they carry it; None: they never do."""


def names_request(topic: str) -> bytes:
    """Ask it of every partition of a topic (docs/reference/kafka.md, "The names request")."""
    return json.dumps({"topic": topic}).encode()


class StreamTopics(NamedTuple):
    """A topic or view, and which of its partitions are those of a stream."""

    name: str
    """Kafka's name of it."""
    address: str
    """The topic or filter that it shows."""
    partitions: tuple[int, ...]


def stream_request(stream: str) -> bytes:
    """Ask which topics show the records of a stream."""
    return json.dumps({"stream": stream}).encode()


def read_stream(reader: Reader) -> tuple[int, str | None, list[StreamTopics]]:
    """The code, what the broker says of it, and the topics."""
    try:
        answer = json.loads(bytes(reader.rest()))
        rows = [
            StreamTopics(name, address, tuple(numbers))
            for name, address, numbers in answer.get("topics", ())
        ]
        return int(answer["error"]), answer.get("message"), rows
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ProtocolViolation(
            "an answer of the broker is not the JSON that it should be"
        ) from None


def read_names(reader: Reader) -> tuple[int, str | None, list[Named]]:
    """The code, what the broker says of it, and the partitions in order."""
    try:
        answer = json.loads(bytes(reader.rest()))
        rows = [Named(topic, until) for topic, until in answer.get("partitions", ())]
        return int(answer["error"]), answer.get("message"), rows
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ProtocolViolation(
            "an answer of the broker is not the JSON that it should be"
        ) from None


class Fetched(NamedTuple):
    """What a fetch brought of one partition."""

    topic: str
    partition: int
    code: int
    stable_end: int
    """Where the committed records end."""
    log_start: int
    aborted: list[tuple[int, int]]
    """(producer id, first offset) of transactions that were given up."""
    records: memoryview
    """Stored batches, in the answer's own buffer; the last one may be cut short."""

    @property
    def is_coming(self) -> bool:
        """Whether records are there that the broker could not send in time: they lie in an object
        store, and the same fetch brings them later."""
        return self.code == codes.NONE and self.log_start < 0 and not len(self.records)


def fetch_request(
    wanted: Mapping[Part, int], *, bytes_max: int, part_bytes_max: int, wait_ms: int
) -> bytes:
    """Ask for committed records from an offset of each partition on."""
    rows = (
        (part, number("iiqqi", part[1], -1, offset, -1, part_bytes_max))
        for part, offset in wanted.items()
    )
    head = number("iiiibii", -1, wait_ms, 1, bytes_max, READ_COMMITTED, 0, -1)
    return head + _by_topic(rows) + array([]) + text("")


def read_fetch(reader: Reader) -> list[Fetched]:
    """What came, per partition."""
    reader.number("i")
    code = reader.number("h")
    reader.number("i")
    if code:
        raise codes.refusal(code, "a fetch was refused")

    def topic() -> list[Fetched]:
        name = reader.name()

        def partition() -> Fetched:
            index, code = reader.number("i"), reader.number("h")
            reader.number("q")
            stable_end, log_start = reader.number("q"), reader.number("q")
            aborted = reader.rows(lambda: (reader.number("q"), reader.number("q")))
            reader.number("i")
            return Fetched(name, index, code, stable_end, log_start, aborted, reader.blob())

        return reader.rows(partition)

    return [row for rows in reader.rows(topic) for row in rows]


# -- writing


class Producer(NamedTuple):
    """Who writes: the broker knows again what it has by id, epoch and sequence."""

    id: int
    epoch: int


def init_producer_request(transactional_id: str | None, timeout_ms: int) -> bytes:
    """Ask for a producer id; ends what an earlier holder of the transactional id left open."""
    return text(transactional_id) + number("i", timeout_ms)


def read_init_producer(reader: Reader) -> tuple[int, Producer]:
    """The code, and the producer."""
    reader.number("i")
    return reader.number("h"), Producer(reader.number("q"), reader.number("h"))


def add_partitions_request(
    transactional_id: str, producer: Producer, parts: Iterable[Part]
) -> bytes:
    """Say which partitions a transaction is going to write to."""
    rows = ((part, number("i", part[1])) for part in parts)
    return text(transactional_id) + number("qh", *producer) + _by_topic(rows)


def read_add_partitions(reader: Reader) -> dict[Part, int]:
    """Per partition the code."""
    reader.number("i")
    return _parts(reader, lambda: (reader.number("i"), reader.number("h")))


def produce_request(
    batches: Mapping[Part, bytes | memoryview], transactional_id: str | None
) -> bytes:
    """One batch for each partition, to be answered when all are durable."""
    rows = ((part, number("i", part[1]) + blob(batch)) for part, batch in batches.items())
    head = text(transactional_id) + number("hi", ALL_REPLICAS, PRODUCE_TIMEOUT_MS)
    return head + _by_topic(rows)


class Produced(NamedTuple):
    """How a batch fared."""

    code: int
    base_offset: int
    said: str | None
    """The broker's words on a refusal."""


def read_produce(reader: Reader) -> dict[Part, Produced]:
    """Per partition how its batch fared."""

    def partition() -> tuple[int, Produced]:
        index, code, base_offset = reader.number("i"), reader.number("h"), reader.number("q")
        reader.view(16)
        told = [row for row in reader.rows(lambda: (reader.number("i"), reader.string())[1]) if row]
        return index, Produced(code, base_offset, reader.string() or (told[0] if told else None))

    return _parts(reader, partition)


def end_request(transactional_id: str, producer: Producer, *, commit: bool) -> bytes:
    """End a transaction."""
    return text(transactional_id) + number("qh?", *producer, commit)


def read_end(reader: Reader) -> int:
    """The code."""
    reader.number("i")
    return reader.number("h")


def only(rows: Mapping[Part, T], part: Part) -> T:
    """The row of a partition that was asked for."""
    try:
        return rows[part]
    except KeyError:
        raise ProtocolViolation(f"the broker does not answer for {part[0]}-{part[1]}") from None
