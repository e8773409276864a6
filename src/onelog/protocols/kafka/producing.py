"""Produce: a client's record batches, checked, appended as they came, answered when durable.

Rules:
- A batch is opaque: CRC, counts, offsets and sequence are checked, and its bytes are stored as
  they are, compressed ones too. Only to check what compression hides is it inflated, off the loop.
- Each partition of a request succeeds or fails alone; a refused one appends nothing.
- `acks` 0 gets no answer; then an error ends the connection, for there is no other way to tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError
from onelog.base.ids import Offset
from onelog.kernel import (
    ATTR_CODEC_MASK,
    ATTR_TRANSACTIONAL,
    BatchInfo,
    check_produce_batch,
    encode_produce_response,
    parse_produce,
    validate_records,
)
from onelog.log.wakeup import Callback
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.record.batch import inflated_records

if TYPE_CHECKING:
    from onelog.protocols.kafka.connection import Connection, Frame, Slot
    from onelog.protocols.kafka.topics import TopicPartition

_ACKS: Final = (-1, 0, 1)
_NONE: Final = -1

Row = tuple[int, int, int, int, int, str | None]
"""(partition, error code, base offset, append time, log start, message), as the kernel takes it."""


class _Part:
    """One partition of a request."""

    __slots__ = ("data", "error", "info", "number", "row", "target", "topic")

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.target: TopicPartition | None = None
        self.data = bytearray()
        self.info: BatchInfo | None = None
        self.error: OnelogError | None = None
        self.row: Row = (number, 0, _NONE, _NONE, _NONE, None)

    def refuse(self, error: OnelogError) -> None:
        """Nothing is appended for this partition."""
        self.error = error
        self.row = (self.number, int(code_of(error)), _NONE, _NONE, _NONE, str(error))

    def inflate(self) -> None:
        """Look into a compressed batch; runs in a thread."""
        assert self.info is not None
        try:
            validate_records(self.data, 0, inflated_records(self.data, self.info))
        except OnelogError as error:
            self.refuse(error)


class _Produce:
    """One request in progress."""

    __slots__ = (
        "_connection",
        "_correlation_id",
        "_left",
        "_slot",
        "_version",
        "acks",
        "parts",
        "transactional_id",
    )

    def __init__(
        self, connection: Connection, slot: Slot, frame: Frame, version: int, correlation_id: int
    ) -> None:
        self._connection = connection
        self._slot = slot
        self._version = version
        self._correlation_id = correlation_id
        buffer, start, end = frame
        request = parse_produce(buffer, start, end, version)
        self.acks = request.acks
        self.transactional_id = request.transactional_id
        self.parts = [
            self._check(name, number, buffer, first, last)
            for name, partitions in request.topics
            for number, first, last in partitions
        ]
        self._left = 1

    def _check(self, name: str, number: int, buffer: bytearray, first: int, last: int) -> _Part:
        part = _Part(name, number)
        try:
            if self.acks not in _ACKS:
                raise KafkaError(
                    ErrorCode.invalid_required_acks, f"acks is -1, 0 or 1, not {self.acks}"
                )
            part.target = self._connection.hub.topics.get(name).partition(number)
            if last < 0:
                raise KafkaError(ErrorCode.invalid_record, "there are no records to append")
            info = check_produce_batch(buffer, first, last, part.target.needs_keys)
            part.data = buffer[first:last]
            part.info = info._replace(position=0)
        except OnelogError as error:
            part.refuse(error)
        return part

    @property
    def compressed(self) -> list[_Part]:
        """Parts that have to be looked into."""
        return [part for part in self.parts if part.info and part.info.attributes & ATTR_CODEC_MASK]

    def append(self) -> None:
        """Append every part; the answer goes when all of them are durable."""
        for part in self.parts:
            if part.error is None:
                self._append(part)
            if part.error is not None and self.acks == 0:
                self._connection.fail(part.error)
        self._settle()

    def _append(self, part: _Part) -> None:
        hub, principal = self._connection.hub, self._connection.principal
        target, info = part.target, part.info
        assert target is not None and info is not None and principal is not None
        try:
            if info.attributes & ATTR_TRANSACTIONAL:
                hub.transactions.verify(
                    self.transactional_id,
                    info.producer_id,
                    info.producer_epoch,
                    part.topic,
                    part.number,
                )
            appended = target.append(part.data, info, principal)
        except OnelogError as error:
            part.refuse(error)
            return
        log = target.log
        part.row = (part.number, 0, appended.base_offset, _NONE, int(log.start_offset), None)
        if self.acks and appended.end_offset > log.high_watermark:
            self._left += 1
            log.when_visible(Offset(appended.end_offset - 1), self._visible(part))

    def _visible(self, part: _Part) -> Callback:
        def done(error: OnelogError | None) -> None:
            if error is not None:
                part.refuse(error)
            self._settle()

        return done

    def _settle(self) -> None:
        """One part is done; the last one answers."""
        self._left -= 1
        if self._left:
            return
        if self.acks == 0:
            self._slot.finish([])
            return
        rows: list[tuple[str, list[Row]]] = []
        for part in self.parts:
            if rows and rows[-1][0] == part.topic:
                rows[-1][1].append(part.row)
            else:
                rows.append((part.topic, [part.row]))
        self._slot.finish([encode_produce_response(self._correlation_id, self._version, rows, 0)])


def begin_produce(
    connection: Connection, slot: Slot, frame: Frame, version: int, correlation_id: int
) -> None:
    """Append what a Produce request brings; its slot is filled when all of it is durable."""
    produce = _Produce(connection, slot, frame, version, correlation_id)
    compressed = produce.compressed
    if not compressed:
        produce.append()
        return
    # What comes next from this client waits, so that its batches keep their order.
    slot.is_produce = False
    connection.run(slot, _inflate_and_append(connection, slot, produce, compressed))


async def _inflate_and_append(
    connection: Connection, slot: Slot, produce: _Produce, compressed: list[_Part]
) -> None:
    def work() -> None:
        for part in compressed:
            part.inflate()

    await connection.hub.broker.in_thread(work)
    slot.is_produce = True
    produce.append()
    connection.answers_ready()
