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
from onelog.kernel import (
    ATTR_CODEC_MASK,
    ATTR_TRANSACTIONAL,
    BatchInfo,
    check_produce_batch,
    encode_produce_response,
    parse_produce,
    validate_records,
)
from onelog.protocols.kafka.answers import Slot
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.record.batch import inflated_records

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer
    from onelog.protocols.kafka.connection import Connection
    from onelog.protocols.kafka.topics import TopicPartition

_ACKS: Final = (-1, 0, 1)
_NONE: Final = -1

Row = tuple[int, int, int, int, int, str | None]
"""(partition, error code, base offset, append time, log start, message), as the kernel takes it."""


class _Batch:
    """What a request brings for one partition, checked."""

    __slots__ = ("at", "data", "info", "rows", "target")

    def __init__(
        self, rows: list[Row], at: int, target: TopicPartition, data: memoryview, info: BatchInfo
    ) -> None:
        self.rows = rows
        self.at = at
        self.target = target
        self.data = data
        self.info = info

    def inflate(self) -> OnelogError | None:
        """Look into a compressed batch; runs in a thread."""
        try:
            validate_records(
                self.data, 0, inflated_records(self.data, self.info._replace(position=0))
            )
        except OnelogError as error:
            return error
        return None


class Produce(Slot):
    """One request in progress: its slot is filled when all of its partitions are settled."""

    __slots__ = (
        "_correlation_id",
        "_left",
        "_topics",
        "_transactional_id",
        "_version",
        "acks",
    )

    def __init__(
        self, connection: Connection, buffer: Buffer, start: int, end: int, header: tuple[int, int]
    ) -> None:
        super().__init__(connection, is_produce=True)
        self._version, self._correlation_id = header
        self._transactional_id, self.acks, _timeout_ms, topics = parse_produce(
            buffer, start, end, self._version
        )
        self._topics: list[tuple[str, list[Row]]] = []
        self._left = 1
        batches: list[_Batch] = []
        codecs = 0
        for name, partitions in topics:
            rows: list[Row] = []
            self._topics.append((name, rows))
            for number, first, last in partitions:
                rows.append((number, 0, _NONE, _NONE, _NONE, None))
                self._left += 1
                try:
                    batch = self._check(name, rows, buffer, first, last)
                except OnelogError as error:
                    self.refuse(rows, len(rows) - 1, number, error)
                    self.settle()
                    continue
                codecs |= batch.info.attributes
                batches.append(batch)
        if codecs & ATTR_CODEC_MASK:
            # What comes next from this client waits, so that its batches keep their order.
            self.is_produce = False
            connection.run(self, self._inflate_and_append(batches))
        else:
            self._append(batches)

    def _check(self, name: str, rows: list[Row], buffer: Buffer, first: int, last: int) -> _Batch:
        if self.acks not in _ACKS:
            raise KafkaError(
                ErrorCode.invalid_required_acks, f"acks is -1, 0 or 1, not {self.acks}"
            )
        target = self.connection.hub.topics.get(name).partition(rows[-1][0])
        if last < 0:
            raise KafkaError(ErrorCode.invalid_record, "there are no records to append")
        info = check_produce_batch(buffer, first, last, target.needs_keys)
        return _Batch(rows, len(rows) - 1, target, memoryview(buffer)[first:last], info)

    async def _inflate_and_append(self, batches: list[_Batch]) -> None:
        compressed = [batch for batch in batches if batch.info.attributes & ATTR_CODEC_MASK]

        def work() -> list[OnelogError | None]:
            return [batch.inflate() for batch in compressed]

        errors = await self.connection.hub.broker.in_thread(work)
        for batch, error in zip(compressed, errors, strict=True):
            if error is not None:
                self.refuse(batch.rows, batch.at, batch.target.number, error)
                self.settle()
                batches.remove(batch)
        self._append(batches)
        self.is_produce = True
        self.connection.answers_ready()

    def _append(self, batches: list[_Batch]) -> None:
        hub, principal = self.connection.hub, self.connection.principal
        assert principal is not None, "nothing is asked before the login"
        for batch in batches:
            info, target = batch.info, batch.target
            try:
                if info.attributes & ATTR_TRANSACTIONAL:
                    hub.transactions.verify(
                        self._transactional_id,
                        info.producer_id,
                        info.producer_epoch,
                        self._topic_of(batch.rows),
                        target.number,
                    )
                hub.appends.add((self, batch.rows, batch.at), target, batch.data, info, principal)
            except OnelogError as error:
                self.refuse(batch.rows, batch.at, target.number, error)
                self.settle()
        self.settle()

    def _topic_of(self, rows: list[Row]) -> str:
        return next(name for name, held in self._topics if held is rows)

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
