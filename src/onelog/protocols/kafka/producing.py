"""Produce: a client's record batches, checked, appended as they came, answered when durable.

Rules:
- A batch is opaque: CRC, counts, offsets and sequence are checked, and its bytes are stored as
  they are, compressed ones too. Only to check what compression hides is it inflated: a small one
  at once, a large one off the loop. Only where its header tells a wrong latest time is it mended.
- Each partition of a request succeeds or fails alone; a refused one appends nothing.
- `acks` 0 gets no answer; then an error ends the connection, for there is no other way to tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from onelog.base.errors import MessageTooLarge, OnelogError
from onelog.base.limits import INFLATED_BYTES_MAX
from onelog.kernel import (
    ATTR_CODEC_MASK,
    ATTR_LOG_APPEND_TIME,
    ATTR_TRANSACTIONAL,
    BatchInfo,
    check_produce_batch,
    encode_produce_response,
    parse_produce,
    validate_records,
)
from onelog.protocols.kafka.answers import Slot
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.record.batch import inflated_records, set_latest_time

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer
    from onelog.protocols.kafka.connection import Connection
    from onelog.protocols.kafka.topics import TopicPartition

_ACKS: Final = (-1, 0, 1)
_NONE: Final = -1
_ABORTABLE_FROM: Final = 11
"""The version from which clients know that they may abort their transaction and go on."""

Row = tuple[int, int, int, int, int, str | None]
"""(partition, error code, base offset, append time, log start, message), as the kernel takes it."""

_OWN_TIME: Final = "the time of the append is the broker's to write"
_NO_RECORDS: Final = "there are no records to append"
INFLATED_HERE_BYTES: Final = 64 * 1024
"""A batch of no more bytes, inflated or not, is inflated on the loop."""
_SLICED_BYTES: Final = 4096
"""Up to so many bytes a copy costs less than a view."""


class _Compressed(NamedTuple):
    """A batch that has to be inflated to be checked, and where its row of the answer stands."""

    topic: str
    target: TopicPartition
    data: memoryview
    info: BatchInfo
    rows: list[Row]
    at: int

    def inflate(self, limit: int = INFLATED_BYTES_MAX) -> tuple[Buffer, BatchInfo]:
        """Look into it: the batch as its partition wants it. Raises OnelogError."""
        info = self.info._replace(position=0)
        records = inflated_records(self.data, info, limit)
        latest_ms = validate_records(self.data, 0, records, self.target.needs_keys)
        return self.target.unpack(*_timed(self.data, info, latest_ms), records)

    def try_inflate(self) -> tuple[Buffer, BatchInfo] | OnelogError:
        """The same in a thread: what is wrong is given, not raised."""
        try:
            return self.inflate()
        except OnelogError as error:
            return error.with_traceback(None)  # which holds what was inflated


class Produce(Slot):
    """One request in progress: its slot is filled when all of its partitions are settled."""

    __slots__ = ("_correlation_id", "_left", "_topics", "_transactional_id", "_version", "acks")

    def __init__(self, connection: Connection, version: int, correlation_id: int) -> None:
        super().__init__(connection, is_produce=True)
        self._version = version
        self._correlation_id = correlation_id
        self._transactional_id: str | None = None
        self.acks = 0
        self._left = 1
        self._topics: list[tuple[str, list[Row]]] = []

    def begin(self, buffer: bytes | bytearray, start: int, end: int) -> None:
        """Append what the request brings. Raises ProtocolViolation when it cannot be read."""
        find = self.connection.hub.topics.get
        self._transactional_id, acks, _timeout_ms, topics = parse_produce(
            buffer, start, end, self._version
        )
        self.acks = acks
        compressed: list[_Compressed] = []
        for name, partitions in topics:
            rows: list[Row] = []
            self._topics.append((name, rows))
            for at, (number, first, last) in enumerate(partitions):
                rows.append((number, 0, _NONE, _NONE, _NONE, None))
                self._left += 1
                try:
                    if acks not in _ACKS:
                        raise KafkaError(
                            ErrorCode.invalid_required_acks, f"acks is -1, 0 or 1, not {acks}"
                        )
                    target = find(name).partition(number)
                    if last < 0:
                        raise KafkaError(ErrorCode.invalid_record, _NO_RECORDS)
                    info, latest_ms = check_produce_batch(buffer, first, last, target.needs_keys)
                    if info.attributes & ATTR_LOG_APPEND_TIME:
                        raise KafkaError(ErrorCode.invalid_timestamp, _OWN_TIME)
                    if info.attributes & ATTR_CODEC_MASK:
                        data = memoryview(buffer)[first:last]
                        batch = _Compressed(name, target, data, info, rows, at)
                        if not self._append_small(batch):
                            compressed.append(batch)
                    elif latest_ms != info.max_timestamp_ms:
                        data = memoryview(buffer)[first:last]
                        self._append(name, target, *_timed(data, info, latest_ms), rows, at)
                    elif info.size_bytes <= _SLICED_BYTES:
                        self._append(name, target, buffer[first:last], info, rows, at)
                    else:
                        data = memoryview(buffer)[first:last]
                        self._append(name, target, data, info, rows, at)
                except OnelogError as error:
                    self.refuse(rows, at, number, error)
                    self._left -= 1
        if compressed:
            # What comes next from this client waits, so that its batches keep their order.
            self.is_produce = False
            self.connection.run(self, self._inflate_and_append(compressed))
        else:
            self.settle()

    def _append_small(self, batch: _Compressed) -> bool:
        """Append a batch that is inflated faster than a thread is asked; False when it is large.

        Raises OnelogError.
        """
        if batch.info.size_bytes > INFLATED_HERE_BYTES:
            return False
        try:
            data, info = batch.inflate(INFLATED_HERE_BYTES)
        except MessageTooLarge:
            return False
        self._append(batch.topic, batch.target, data, info, batch.rows, batch.at)
        return True

    async def _inflate_and_append(self, compressed: list[_Compressed]) -> None:
        def work() -> list[tuple[Buffer, BatchInfo] | OnelogError]:
            return [batch.try_inflate() for batch in compressed]

        found = await self.connection.hub.broker.in_thread(work)
        for (topic, target, _data, _info, rows, at), batch in zip(compressed, found, strict=True):
            refusal = batch if isinstance(batch, OnelogError) else None
            try:
                if not isinstance(batch, OnelogError):
                    self._append(topic, target, *batch, rows, at)
            except OnelogError as error:
                refusal = error
            if refusal is not None:
                self.refuse(rows, at, target.number, refusal)
                self._left -= 1
        self.settle()
        self.is_produce = True
        self.connection.answers_ready()

    def _append(
        self,
        topic: str,
        target: TopicPartition,
        data: Buffer,
        info: BatchInfo,
        rows: list[Row],
        at: int,
    ) -> None:
        connection = self.connection
        principal = connection.principal
        assert principal is not None, "nothing is asked before the login"
        if info.attributes & ATTR_TRANSACTIONAL:
            connection.hub.transactions.verify(
                self._transactional_id,
                info.producer_id,
                info.producer_epoch,
                topic,
                target.number,
                abortable=self._version >= _ABORTABLE_FROM,
            )
        connection.hub.appends.add((self, rows, at), target, data, info, principal)

    def refuse(self, rows: list[Row], at: int, number: int, error: OnelogError) -> None:
        """Nothing was appended for a partition."""
        rows[at] = (number, int(code_of(error)), _NONE, _NONE, _NONE, str(error))
        if self.acks == 0:
            self.connection.fail(error)

    def settle(self) -> bool:
        """One partition is done; True when the answer is there."""
        self._left -= 1
        if self._left:
            return False
        self.pieces = (
            [encode_produce_response(self._correlation_id, self._version, self._topics, 0)]
            if self.acks
            else []
        )
        self.cancel = None
        return True


def _timed(data: memoryview, info: BatchInfo, latest_ms: int) -> tuple[Buffer, BatchInfo]:
    """A batch whose header tells the latest time of its records: itself, or a mended copy."""
    if latest_ms == info.max_timestamp_ms:
        return data, info
    mended = bytearray(data)
    return mended, set_latest_time(mended, info._replace(position=0), latest_ms)
