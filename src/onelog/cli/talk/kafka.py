"""Kafka for the command line: produce, and read a topic or a view without a group.

Rules: the topic is written as everywhere, `a/b`, and so is a filter; its Kafka name is made of it
(docs/reference/names.md). Fields of a message are the reserved headers they are stored as. A
reader sees committed records only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from onelog.base.errors import (
    InvalidRequest,
    NotAuthenticated,
    OffsetOutOfRange,
    TopicNotFound,
    Unavailable,
)
from onelog.base.names import to_kafka
from onelog.base.topics import is_exact
from onelog.cli.talk import kafka_wire as wire
from onelog.cli.talk.link import Link, Patience, Place
from onelog.cli.talk.messages import FIELD_NAMES, Message, Start, Wanted
from onelog.kernel import ATTR_CONTROL, ATTR_TRANSACTIONAL, Slices
from onelog.record.batch import Marker, build_batch, iterate_batches, read_marker
from onelog.record.headers import (
    TOPIC,
    Headers,
    application_name,
    find_header,
    is_reserved,
    stored_name,
)
from onelog.record.wire import Reader, text

WINDOW: Final = 64
FETCH_WAIT_MS: Final = 1_000
FETCH_BYTES: Final = 1 << 20
ANSWER_BYTES_MAX: Final = 256 << 20
_MAKING_S: Final = 10.0
_BY_HEADER: Final = {row.header: row for row in FIELD_NAMES.values()}


class KafkaTalker:
    """A client of Kafka; `partition` is where it writes."""

    def __init__(self, place: Place, partition: int | None = None) -> None:
        self._link = Link(place)
        self._partition = partition
        self._next_id = 0
        self._open: deque[tuple[int, str]] = deque()
        """Produces that are not answered, oldest first, and their topics."""
        self._partitions: dict[str, list[int]] = {}
        if place.user:
            self._log_in(place)

    def _log_in(self, place: Place) -> None:
        reader = self._ask(wire.SASL_HANDSHAKE, text("PLAIN"))
        code = reader.number("h")
        if not code:
            secret = f"\0{place.user}\0{place.password}".encode()
            reader = self._ask(wire.SASL_AUTHENTICATE, len(secret).to_bytes(4, "big") + secret)
            code = reader.number("h")
        if code:
            raise NotAuthenticated(f"{place} does not let {place.user} in: {wire.why(code)}")

    # -- requests

    def _send(self, api: int, body: bytes) -> int:
        self._next_id += 1
        self._link.send(wire.request(api, self._next_id, body))
        return self._next_id

    def _answer(self, wanted: int) -> Reader:
        """The next answer, which is to this request: a broker answers in order."""
        ends = time.monotonic() + self._link.place.answer_s
        buffer = self._link.buffer
        while True:
            size = int.from_bytes(buffer[:4], "big") if len(buffer) >= 4 else -1
            if size > ANSWER_BYTES_MAX:
                raise Unavailable(f"{self._link.place} does not speak Kafka")
            if 0 <= size <= len(buffer) - 4:
                self._link.take(4)
                reader = Reader(self._link.take(size))
                if reader.number("i") != wanted:
                    raise Unavailable(f"{self._link.place} answers what was not asked")
                return reader
            if not self._link.receive(max(0.0, ends - time.monotonic())):
                raise Unavailable(f"{self._link.place} does not answer")

    def _ask(self, api: int, body: bytes) -> Reader:
        return self._answer(self._send(api, body))

    def _find(self, topic: str, *, create: bool) -> tuple[str, list[int]]:
        """The Kafka name of a topic or filter, and its partitions."""
        name = to_kafka(topic)
        known = self._partitions.get(name)
        ends = time.monotonic() + _MAKING_S
        while known is None:
            self.flush()
            code, found = wire.read_metadata(
                self._ask(wire.METADATA, wire.metadata_request(name, create=create))
            )
            if code == wire.NONE and found:
                known = self._partitions[name] = sorted(found)
            elif code != wire.NO_LEADER or time.monotonic() > ends:
                raise TopicNotFound(f"{topic} ({name} in Kafka): {wire.why(code)}")
        return name, known

    # -- publishing

    def publish(self, message: Message) -> None:
        """Send a message."""
        name, partitions = self._find(message.topic, create=True)
        while len(self._open) >= WINDOW:
            self._read_answer()
        now_ms = message.timestamp_ms or time.time_ns() // 1_000_000
        row = (None, message.key, message.payload, _to_headers(message), now_ms)
        chosen = self._choose(partitions, message.key)
        body = wire.produce_request(name, chosen, build_batch([row]))
        self._open.append((self._send(wire.PRODUCE, body), message.topic))

    def _choose(self, partitions: list[int], key: bytes | None) -> int:
        if self._partition is not None:
            return self._partition
        # The last one: of a view it is where the topic lives now.
        return partitions[-1] if key is None else partitions[murmur2(key) % len(partitions)]

    def _read_answer(self) -> None:
        number, topic = self._open.popleft()
        code, said = wire.read_produce(self._answer(number))
        if code:
            raise InvalidRequest(f"the message to {topic} was refused: {said or wire.why(code)}")

    def flush(self) -> None:
        """Return when every produce is answered."""
        while self._open:
            self._read_answer()

    # -- reading

    def receive(self, wanted: Wanted, patience: Patience) -> Iterator[Message]:
        """Read a topic, or every topic that a filter matches."""
        name, partitions = self._find(wanted.filter, create=False)
        positions = self._starts(name, partitions, wanted.start)
        ends = self._offsets(name, partitions, wire.LATEST) if wanted.to_end else {}
        skipped: dict[int, set[int]] = {}
        patience.refresh()
        while True:
            for number in [
                row for row in positions if wanted.to_end and positions[row] >= ends[row]
            ]:
                del positions[number]
            left_s = patience.left_s(FETCH_WAIT_MS / 1000)
            if not positions or left_s <= 0:
                return
            body = wire.fetch_request(name, positions, int(left_s * 1000), FETCH_BYTES)
            for row in wire.read_fetch(self._ask(wire.FETCH, body)):
                if row.error == wire.OFFSET_OUT_OF_RANGE:
                    raise OffsetOutOfRange(
                        f"{wanted.filter} has no offset {positions[row.partition]} in partition"
                        f" {row.partition}"
                    )
                if row.error:
                    raise Unavailable(f"{wanted.filter} cannot be read: {wire.why(row.error)}")
                open_ones = skipped.setdefault(row.partition, set())
                for offset, slices, index in _committed(row, positions, open_ones):
                    end = ends.get(row.partition, offset + 1)
                    if offset < end:
                        patience.refresh()
                        yield _to_message(wanted.filter, row.partition, slices, index)

    def _starts(self, name: str, partitions: list[int], start: Start) -> dict[int, int]:
        if start.kind == "offset":
            first = self._offsets(name, partitions, wire.EARLIEST)
            last = self._offsets(name, partitions, wire.LATEST)
            return {row: min(max(start.value, first[row]), last[row]) for row in partitions}
        if start.kind != "time":
            at = wire.EARLIEST if start.kind == "earliest" else wire.LATEST
            return self._offsets(name, partitions, at)
        found = self._offsets(name, partitions, start.value)
        last = self._offsets(name, partitions, wire.LATEST)
        return {row: last[row] if at < 0 else at for row, at in found.items()}

    def _offsets(self, name: str, partitions: list[int], timestamp_ms: int) -> dict[int, int]:
        body = wire.list_offsets_request(name, partitions, timestamp_ms)
        found = wire.read_list_offsets(self._ask(wire.LIST_OFFSETS, body))
        for code, _offset in found.values():
            if code:
                raise Unavailable(f"the offsets of {name} cannot be read: {wire.why(code)}")
        return {number: offset for number, (_code, offset) in found.items()}

    def settle(self) -> None:
        """Nothing: nobody remembers what was read."""

    def close(self) -> None:
        """Hang up."""
        self._link.close()


def _committed(
    row: wire.Fetched, positions: dict[int, int], skipped: set[int]
) -> Iterator[tuple[int, Slices, int]]:
    """The records of a fetch that are not of aborted transactions; moves the position on."""
    aborted = sorted(row.aborted, key=lambda pair: pair[1])
    for info, slices in iterate_batches(row.records):
        while aborted and aborted[0][1] <= info.last_offset:
            skipped.add(aborted.pop(0)[0])
        if info.attributes & ATTR_CONTROL:
            if read_marker(row.records, info) is Marker.ABORT:
                skipped.discard(info.producer_id)
        elif not (info.attributes & ATTR_TRANSACTIONAL and info.producer_id in skipped):
            for index in range(len(slices)):
                if slices.offset(index) >= positions[row.partition]:
                    yield slices.offset(index), slices, index
        positions[row.partition] = max(positions[row.partition], info.last_offset + 1)


def _to_headers(message: Message) -> Headers:
    rows: list[tuple[bytes, bytes | None]] = []
    for name, value in message.fields.items():
        field = FIELD_NAMES[name]
        if field.form == "mark":
            if value:
                rows.append((field.header, b"1"))
        elif field.name != "qos" or value:
            data = value if isinstance(value, bytes) else str(value).encode()
            rows.append((field.header, data))
    rows += [(stored_name(name.encode()), value) for name, value in message.headers]
    return tuple(rows)


def _to_message(wanted: str, partition: int, slices: Slices, index: int) -> Message:
    offset, timestamp_ms, key, value, headers = slices.record(index)
    fields: dict[str, Any] = {}
    for name, data in headers:
        field = _BY_HEADER.get(name)
        if field is not None and data is not None and field.name not in fields:
            fields[field.name] = _value(field.form, data)
    return Message(
        topic=_topic_of(wanted, key, headers),
        payload=value,
        key=key,
        headers=[
            (application_name(name).decode(errors="backslashreplace"), data)
            for name, data in headers
            if not is_reserved(name)
        ],
        fields=fields,
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
    )


def _value(form: str, data: bytes) -> Any:
    if form == "bytes":
        return data
    if form == "mark":
        return data == b"1"
    if form in ("number", "time_ms") and data.isdigit() and len(data) <= 19:
        return int(data)
    return data.decode(errors="backslashreplace")


def _topic_of(wanted: str, key: bytes | None, headers: Headers) -> str:
    """Which topic a record is of: a view's records say so in a header, or their key is it."""
    said = find_header(headers, TOPIC)
    if said is None and not is_exact(wanted):
        said = key
    return wanted if said is None else said.decode(errors="backslashreplace")


def murmur2(data: bytes) -> int:
    """How Kafka's clients spread keys over partitions: MurmurHash2, positive."""
    mask, m = 0xFFFF_FFFF, 0x5BD1_E995
    h = 0x9747_B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFF_FFFF
