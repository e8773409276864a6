"""The ends of a Kafka load: a topic of one pair each, a batch for each burst, no compression.

Rules: the broker keeps a batch as it came, so the time stands at the same place in it, and the
number of records is in its head. A consumer asks for more as soon as it has an answer. Both stay
with the leader that they begin with.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from functools import partial
from typing import Final

from onelog.base.errors import TopicNotFound
from onelog.base.names import to_dotted
from onelog.cli.bench.load import STAMP_BYTES, Times
from onelog.cli.talk.kafka import open_leaders
from onelog.cli.talk.link import BrokerAddress
from onelog.kafka_client import LATEST, Part, fetch_request, refusal
from onelog.kafka_client.messages import only
from onelog.record.batch import build_batch

BATCH_BYTES: Final = 16_384
FETCH_BYTES: Final = 1 << 20
FETCH_WAIT_MS: Final = 500
MAKING_S: Final = 20.0
REQUESTS_MAX: Final = 5
SAMPLE_BYTES: Final = 65_536
_MARK: Final = b"\xfe\xdc\xba\x98\x76\x54\x32\x10"
_HEAD: Final = struct.Struct(">qi11xi30xi")
"""Of a batch: base offset, length of what follows, last offset delta, count of records."""
_LENGTH_AT: Final = 12
"""Bytes before what the length counts."""


def batch_of(count: int, size: int, mark: bytes) -> bytes:
    """Records that all begin with the mark."""
    now_ms = time.time_ns() // 1_000_000
    value = mark + b"x" * (size - STAMP_BYTES)
    return build_batch([(None, None, value, (), now_ms)] * count)


class KafkaWriter:
    """A producer."""

    def __init__(self, address: BrokerAddress, topic: str, size: int) -> None:
        self._leaders = open_leaders(address)
        name = to_dotted(topic)
        rows = self._leaders.topics([name], create=True, timeout_s=MAKING_S)
        if not rows or rows[0].code or not rows[0].partitions:
            self._leaders.close()
            raise TopicNotFound(f"{name} could not be made")
        self.part: Part = (name, rows[0].partitions[-1])
        self._client = self._leaders.follow(name, partial(self._leaders.client, self.part))
        self._size = size
        self._open = 0
        self.burst_max = max(1, BATCH_BYTES // size)

    def fileno(self) -> int:
        """Of the socket."""
        return self._client.fileno()

    def room(self) -> int:
        """As many requests at a time as Kafka's own producers have."""
        return self.burst_max if self._open < REQUESTS_MAX else 0

    def encode(self, count: int, now_ns: int) -> bytes:
        """A batch."""
        return batch_of(count, self._size, now_ns.to_bytes(STAMP_BYTES, "big"))

    def send(self, data: bytes | bytearray, count: int) -> None:
        """A request."""
        self._client.post({self.part: memoryview(data)})
        self._open += 1

    def take_answers(self) -> None:
        """An answer, and all that came with it."""
        while self._open:
            row = only(self._client.posted(), self.part)
            self._open -= 1
            if row.code:
                raise refusal(row.code, f"records for {self.part[0]} were refused", row.said)
            if not self._client.has_more():
                return

    def close(self) -> None:
        """Hang up."""
        self._leaders.close()


class KafkaReader:
    """A consumer without a group, from the end on."""

    def __init__(self, address: BrokerAddress, part: Part, size: int) -> None:
        self._leaders = open_leaders(address)
        self._leaders.topics([part[0]])
        self._client = self._leaders.follow(part[0], partial(self._leaders.client, part))
        self._part = part
        self._offset = self._client.offsets({part: LATEST})[part]
        self._at = batch_of(1, size, _MARK).index(_MARK)
        self.sample = b""
        self._ask()

    def fileno(self) -> int:
        """Of the socket."""
        return self._client.fileno()

    def _ask(self) -> None:
        self._request = fetch_request(
            {self._part: self._offset},
            bytes_max=FETCH_BYTES,
            part_bytes_max=FETCH_BYTES,
            wait_ms=FETCH_WAIT_MS,
        )
        self._client.fetch_ahead(self._request)

    def take(self) -> Times:
        """The records of an answer."""
        came: Times = Counter()
        for answer in self._client.fetch(self._request, FETCH_WAIT_MS / 1000):
            if answer.code:
                raise refusal(answer.code, f"{self._part[0]} cannot be read")
            data = bytes(answer.records)
            found, end = self._walk(data)
            came += found
            self._offset = max(self._offset, end)
            if found and len(self.sample) < len(data) <= SAMPLE_BYTES:
                self.sample = data
        self._ask()
        return came

    def _walk(self, data: bytes) -> tuple[Times, int]:
        """The records of whole batches, and where the next one begins."""
        came: Times = Counter()
        at = end = 0
        while len(data) - at >= _HEAD.size:
            base, behind, last, count = _HEAD.unpack_from(data, at)
            if at + _LENGTH_AT + behind > len(data):
                break  # the last batch of an answer may be cut short
            stamped = data[at + self._at : at + self._at + STAMP_BYTES]
            came[int.from_bytes(stamped, "big")] += count
            end = base + last + 1
            at += _LENGTH_AT + behind
        return came, end

    def parse(self, data: bytes) -> Times:
        """The records of a sample."""
        return self._walk(data)[0]

    def close(self) -> None:
        """Hang up."""
        self._leaders.close()
