"""Kafka for the command line: produce, and read a topic or a view without a group.

Rules: the topic is written as everywhere, `a/b`, and so is a filter; its Kafka name is made of it
(docs/reference/names.md). Fields of a message are the reserved headers they are stored as. A
reader sees committed records only. A broker that does not answer is an error at once, because a
person waits. Among several nodes the leader of a partition is asked, also where it has moved to;
what is written there is numbered, so that it can be sent again.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from onelog.base.errors import (
    CorruptBatch,
    NotAuthorized,
    OffsetOutOfRange,
    OnelogError,
    OutOfOrderSequence,
    TopicNotFound,
    Unavailable,
)
from onelog.base.names import to_dotted
from onelog.base.topics import is_exact
from onelog.cli.failures import NotReachable
from onelog.cli.talk.link import BrokerAddress, Patience
from onelog.cli.talk.messages import FIELD_NAMES, Message, Start, Wanted
from onelog.kafka_client import (
    EARLIEST,
    LATEST,
    Access,
    Client,
    Fetched,
    Leaders,
    Part,
    Produced,
    Producer,
    committed,
    fetch_request,
    refusal,
)
from onelog.kafka_client.codes import OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC
from onelog.kafka_client.messages import only
from onelog.kernel import Slices, scan_valid
from onelog.record.batch import build_batch, decode
from onelog.record.headers import (
    TOPIC,
    Headers,
    application_name,
    find_header,
    is_reserved,
    stored_name,
)

WINDOW: Final = 64
NUMBERED_WINDOW: Final = 5
"""A broker knows so many of a producer's last batches again."""
NUMBERS: Final = 1 << 31
FIRST_NUMBER: Final = 0
"""A partition that does not know a producer takes any number: nothing follows the first batch
before the answer to it, or a later one might be taken in its place."""
NO_NUMBER: Final = (-1, -1, -1)
FETCH_WAIT_MS: Final = 1_000
FETCH_BYTES: Final = 1 << 20
CLIENT_ID: Final = "onelog-cli"
_MAKING_S: Final = 10.0
_BY_HEADER: Final = {row.header: row for row in FIELD_NAMES.values()}


class _Sent(NamedTuple):
    """A produce that is not answered."""

    client: Client | None
    """Who answers; None: nobody."""
    part: Part
    batch: bytes
    topic: str
    """As the user wrote it."""


class KafkaTalker:
    """A client of Kafka; `partition` is where it writes."""

    def __init__(self, address: BrokerAddress, partition: int | None = None) -> None:
        self._leaders = open_leaders(address)
        self._partition = partition
        self._open: deque[_Sent] = deque()
        """The oldest first."""
        self._partitions: dict[str, list[int]] = {}
        self._producer: Producer | None = None
        self._numbers: Counter[Part] = Counter()
        """The number of the next batch, for a producer that numbers them."""

    def _find(self, topic: str, *, create: bool) -> tuple[str, list[int]]:
        """The Kafka name of a topic or filter, and its partitions."""
        name = to_dotted(topic)
        known = self._partitions.get(name)
        if known is None:
            self.flush()
            rows = self._leaders.topics([name], create=create, timeout_s=_MAKING_S)
            if not rows or rows[0].code or not rows[0].partitions:
                code = rows[0].code if rows else UNKNOWN_TOPIC
                error = refusal(code, f"{topic} ({name} in Kafka)")
                if isinstance(error, NotAuthorized):
                    raise error
                raise TopicNotFound(str(error))
            known = self._partitions[name] = list(rows[0].partitions)
        return name, known

    # -- publishing

    def publish(self, message: Message) -> None:
        """Send a message."""
        name, partitions = self._find(message.topic, create=True)
        window = WINDOW if self._leaders.is_alone else NUMBERED_WINDOW
        while self._open and (len(self._open) >= window or self._has_answer()):
            self._read_answer()
        now_ms = message.timestamp_ms or time.time_ns() // 1_000_000
        row = (None, message.key, message.payload, _to_headers(message), now_ms)
        part = (name, self._choose(partitions, message.key))
        producer = self._number(part)
        batch = build_batch([row], producer=producer)
        client = self._post(part, batch)
        self._open.append(_Sent(client, part, batch, message.topic))
        if client is None or producer[-1] == FIRST_NUMBER:
            self.flush()

    def _number(self, part: Part) -> tuple[int, int, int]:
        """Who writes the next batch of a partition, and which one it is; a node on its own needs
        no numbers, because nothing is sent there again."""
        if self._leaders.is_alone:
            return NO_NUMBER
        if self._producer is None:
            self._producer = self._leaders.init_producer(part[0])
        number = self._numbers[part]
        self._numbers[part] = (number + 1) % NUMBERS
        return *self._producer, number

    def _post(self, part: Part, batch: bytes) -> Client | None:
        """Send a batch; None: it has to be sent again, after those before it."""
        client = None
        try:
            client = self._leaders.client(part)
            client.post({part: batch})
        except OnelogError as error:
            self._lose(client, error)
            return None
        return client

    def _lose(self, client: Client | None, error: OnelogError) -> None:
        """Nothing that was sent to a node is answered any more. Raises what no other may mend."""
        if not error.retriable or self._leaders.is_alone:
            raise error
        self._open = deque(
            row._replace(client=None) if row.client is client else row for row in self._open
        )

    def _choose(self, partitions: list[int], key: bytes | None) -> int:
        if self._partition is not None:
            return self._partition
        # The last one: of a view it is where the topic lives now.
        return partitions[-1] if key is None else partitions[murmur2(key) % len(partitions)]

    def _has_answer(self) -> bool:
        """Whether the answer of the oldest produce has come: it may have to be sent again, and
        nobody knows when the next message comes."""
        client = self._open[0].client
        return client is None or client.has_come()

    def _read_answer(self) -> None:
        """Of the oldest produce. If it has to be sent again, so have those behind it, in order."""
        sent = self._open.popleft()
        if self._is_done(sent, ()):
            return
        again = [sent]
        while self._open:
            later = self._open.popleft()
            if not self._is_done(later, again):
                again.append(later)
        for one in again:
            self._leaders.follow(one.part[0], partial(self._send_again, one))

    def _is_done(self, sent: _Sent, again: Sequence[_Sent]) -> bool:
        """Whether a produce was answered; if not, it may be sent again. Raises a refusal."""
        if sent.client is None:
            return False
        try:
            row = only(sent.client.posted(), sent.part)
        except OnelogError as error:
            self._lose(sent.client, error)
            return False
        try:
            _check(row, sent)
        except OutOfOrderSequence:
            if sent.part not in [one.part for one in again]:
                raise
            return False  # one before it is missing
        except OnelogError as error:
            if not error.retriable or self._leaders.is_alone:
                raise
            return False
        return True

    def _send_again(self, sent: _Sent) -> None:
        client = self._leaders.client(sent.part)
        _check(only(client.produce({sent.part: sent.batch}), sent.part), sent)

    def flush(self) -> None:
        """Return when every produce is answered."""
        while self._open:
            self._read_answer()

    # -- reading

    def receive(self, wanted: Wanted, patience: Patience) -> Iterator[Message]:
        """Read a topic, or every topic that a filter matches."""
        name, partitions = self._find(wanted.filter, create=False)
        parts = [(name, number) for number in partitions]
        positions = self._starts(parts, wanted.start)
        ends = self._offsets(parts, LATEST) if wanted.to_end else {}
        patience.refresh()
        while True:
            for part in [row for row in positions if wanted.to_end and positions[row] >= ends[row]]:
                del positions[part]
            left_s = patience.left_s(FETCH_WAIT_MS / 1000)
            if not positions or left_s <= 0:
                return
            asks = partial(
                fetch_request,
                bytes_max=FETCH_BYTES,
                part_bytes_max=FETCH_BYTES,
                wait_ms=int(left_s * 1000),
            )
            for answer in self._leaders.fetch(positions, asks, left_s):
                part = (answer.topic, answer.partition)
                if part not in positions:
                    continue  # another leader of it told the rest
                for offset, slices, index in _records(wanted.filter, answer, positions):
                    if offset < ends.get(part, offset + 1):
                        patience.refresh()
                        yield _to_message(wanted.filter, answer.partition, slices, index)

    def _starts(self, parts: list[Part], start: Start) -> dict[Part, int]:
        if start.kind == "offset":
            first, last = self._offsets(parts, EARLIEST), self._offsets(parts, LATEST)
            return {part: min(max(start.value, first[part]), last[part]) for part in parts}
        if start.kind != "time":
            return self._offsets(parts, EARLIEST if start.kind == "earliest" else LATEST)
        found, last = self._offsets(parts, start.value), self._offsets(parts, LATEST)
        return {part: last[part] if at < 0 else at for part, at in found.items()}

    def _offsets(self, parts: list[Part], timestamp_ms: int) -> dict[Part, int]:
        return self._leaders.offsets(dict.fromkeys(parts, timestamp_ms))

    def settle(self) -> None:
        """Does nothing: no group keeps a position."""

    def close(self) -> None:
        """Hang up."""
        self._leaders.close()


def open_leaders(address: BrokerAddress) -> Leaders:
    """Connect. Raises NotReachable."""
    leaders = Leaders(access_of(address))
    try:
        leaders.connect()
    except Unavailable as error:
        raise NotReachable(str(error)) from error
    return leaders


def _check(row: Produced, sent: _Sent) -> None:
    if row.code:
        raise refusal(row.code, f"the message to {sent.topic} was refused", row.said)


def access_of(address: BrokerAddress) -> Access:
    """The address as the client wants it: one try, because a person waits."""
    return Access(
        servers=((address.host, address.port),),
        user=address.user,
        password=address.password,
        tls=address.tls,
        ca_file=address.ca_file,
        ca_named="--ca-file",
        timeout_s=0.0,
        connect_s=address.answer_s,
        answer_s=address.answer_s,
        client_id=CLIENT_ID,
    )


def _records(
    wanted: str, answer: Fetched, positions: dict[Part, int]
) -> Iterator[tuple[int, Slices, int]]:
    """The committed records of a fetch; moves the position on."""
    part = (answer.topic, answer.partition)
    at = positions[part]
    if answer.code == OFFSET_OUT_OF_RANGE:
        raise OffsetOutOfRange(f"{wanted} has no offset {at} in partition {answer.partition}")
    if answer.code:
        raise refusal(answer.code, f"{wanted} cannot be read")
    # A copy: the caller may send requests to the broker between two messages.
    answer = answer._replace(records=memoryview(bytes(answer.records)))
    infos, _end, reason = scan_valid(answer.records)
    if answer.records and not infos:
        raise CorruptBatch(f"{wanted} cannot be read at offset {at}: {reason}")
    for info in committed(answer, infos):
        slices = decode(answer.records, info, check_crc=False)
        for index in range(len(slices)):
            if slices.offset(index) >= at:
                yield slices.offset(index), slices, index
    if infos:
        positions[part] = max(at, infos[-1].last_offset + 1)


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
