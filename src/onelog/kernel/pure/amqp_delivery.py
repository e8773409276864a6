"""AMQP's way out, interpreted: records of a batch to runs for queues, and to basic.deliver frames.

Rules:
- Records that follow each other and go to the same target are one run. A record that a queue has to
  treat singly (it expires, or has several routing keys) is a run of its own with its marks.
- A delivery's names and properties follow from the record's topic and headers (its envelope), which
  the caller gives once; a record without a known envelope, or whose key is not its topic, ends the
  run of deliveries.
- Batches that are compressed, transactional or control are left to the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onelog.base.errors import CorruptBatch
from onelog.kernel.pure.amqp_wire import encode_delivery, encode_headers
from onelog.kernel.pure.records import Batch, Span, open_batch
from onelog.kernel.pure.scan import batch_at
from onelog.kernel.types import ATTR_CODEC_MASK, ATTR_CONTROL, ATTR_TRANSACTIONAL, BatchInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from onelog.kernel.types import Buffer

EXPIRES, MORE_KEYS = 1, 2
RUN_MAX = 512
_SPECIAL = ATTR_CODEC_MASK | ATTR_CONTROL | ATTR_TRANSACTIONAL
_MARKS = {b"~ex": EXPIRES, b"~bc": MORE_KEYS, b"~nq": MORE_KEYS}

Row = tuple[Any, bytes | None, int, int, int]


def _batches(buf: Buffer) -> Iterator[BatchInfo]:
    view = memoryview(buf).cast("B")
    position = 0
    while position < len(view):
        info = batch_at(view, position, len(view))
        yield info
        position += info.size_bytes


def topic_runs(
    data: Buffer,
    fixed: bytes | None,
    known: dict[bytes, Any],
    resolve: Callable[[bytes], Any],
) -> tuple[list[Row], int]:
    """Runs of records for the same targets: (target, topic, first offset, count, marks), and the
    offset of the first batch that is not plain, or the end.

    `known` maps topics to targets; `resolve` finds and remembers a missing one. A target of False
    is no queue. Records with a target of None, and records with marks, come one by one.
    """
    rows: list[Row] = []
    end = -1
    for info in _batches(data):
        if info.attributes & _SPECIAL:
            return rows, info.base_offset
        batch = open_batch(data, info.position, None)
        for span in batch.spans:
            topic = fixed if fixed is not None else batch.topic(span)
            if topic is None:
                continue
            target = known[topic] if topic in known else resolve(topic)
            marks = 0
            for name, _value in batch.headers(span):
                marks |= _MARKS.get(name, 0)
            if target is not False or marks & MORE_KEYS:
                _add(rows, (target, topic, info.base_offset + span.offset_delta, 1, marks))
        end = info.last_offset + 1
    return rows, end


def _add(rows: list[Row], row: Row) -> None:
    if rows and not row[4] and row[0] is not None:
        target, topic, first, count, marks = rows[-1]
        if target is row[0] and not marks and first + count == row[2]:
            rows[-1] = (target, topic, first, count + 1, 0)
            return
    rows.append(row)


ENVELOPE_OVERHEAD = 256
"""About how much an envelope takes beside its bytes: objects, and its slot in the dict."""


class AmqpEnvelopes:
    """Names and properties of deliveries by the record's topic and headers, for
    `encode_deliveries`.

    The number of entries is bounded in bytes, including `ENVELOPE_OVERHEAD` for each.
    """

    __slots__ = ("_known", "bytes_max", "held_bytes")

    def __init__(self, bytes_max: int) -> None:
        self._known: dict[tuple[bytes, bytes], tuple[bytes, bytes]] = {}
        self.bytes_max = bytes_max
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def add(
        self,
        topic: bytes,
        headers: Sequence[tuple[bytes, bytes | None]],
        names: bytes,
        properties: bytes,
    ) -> None:
        """Records of a topic with these headers are delivered with these names and properties."""
        key = (topic, encode_headers(headers))
        size = 4 + len(topic) + len(key[1]) + len(names) + len(properties) + ENVELOPE_OVERHEAD
        if key in self._known or self.held_bytes + size > self.bytes_max:
            # The old size of an entry that is added again is not known: begin anew.
            self._known.clear()
            self.held_bytes = 0
        if size <= self.bytes_max:
            self._known[key] = (names, properties)
            self.held_bytes += size

    def find(self, batch: Batch, span: Span) -> tuple[bytes, bytes] | None:
        """The envelope of a record; None: it is not known."""
        key = batch.key(span)
        raw = bytes(batch.view[span.headers : span.end])
        return None if key is None else self._known.get((key, raw))


def encode_deliveries(  # noqa: PLR0913, PLR0917 - a method has as many fields
    data: Buffer,
    first: int,
    count: int,
    channel: int,
    consumer_tag: bytes,
    delivery_tag: int,
    frame_bytes_max: int,
    envelopes: AmqpEnvelopes,
    bytes_max: int,
) -> tuple[bytes, int]:
    """The frames of basic.deliver for records that follow each other, and how many records those
    are.

    It ends before a record that is missing, is not plain or has no known envelope, and after the
    record with which the frames reach the limit of bytes.
    """
    out: list[bytes] = []
    total = 0
    for offset, batch, span in _from(data, first):
        if offset != first + len(out) or len(out) >= min(count, RUN_MAX) or total >= bytes_max:
            break
        envelope = envelopes.find(batch, span)
        if envelope is None:
            break
        names, properties = envelope
        exchange, key = names[1 : 1 + names[0]], names[2 + names[0] :]
        out.append(
            encode_delivery(
                channel,
                consumer_tag,
                delivery_tag + len(out),
                False,
                exchange,
                key,
                properties,
                batch.value(span) or b"",
                frame_bytes_max,
            )
        )
        total += len(out[-1])
    return b"".join(out), len(out)


def _from(data: Buffer, first: int) -> Iterator[tuple[int, Batch, Span]]:
    """Records of plain batches from an offset on; a damaged or special batch ends them."""
    try:
        for info in _batches(data):
            if info.last_offset < first:
                continue
            if info.attributes & _SPECIAL:
                return
            batch = open_batch(data, info.position, None)
            for span in batch.spans:
                if info.base_offset + span.offset_delta >= first:
                    yield info.base_offset + span.offset_delta, batch, span
    except CorruptBatch:
        return
