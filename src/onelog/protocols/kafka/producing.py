"""Produce: a client's record batches, checked, appended as they came, answered when durable.

Rules:
- A batch is opaque: CRC, counts, offsets and sequence are checked, and its bytes are stored as they
  are, compressed ones too. It is opened only to check what compression hides (`opening.py`): a
  small one at once, a large one off the loop. It is corrected only if its header has a wrong latest
  time, and compressed again only if its topic wants another codec.
- While there are access rules, reserved headers that say where a record goes or who sent it need
  rights (`queues/claims.py`). A batch without such headers costs one search through its bytes.
- Each partition of a request succeeds or fails alone; a refused one appends nothing.
- `acks` 0 gets no answer; then an error ends the connection, because there is no other way to
  report it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from onelog.base.errors import InvalidRecords, MessageTooLarge, OnelogError, Unavailable
from onelog.broker import Action
from onelog.broker.showing import note_written
from onelog.kernel import (
    ATTR_CODEC_MASK,
    ATTR_DELETE_HORIZON,
    ATTR_LOG_APPEND_TIME,
    ATTR_TRANSACTIONAL,
    BatchInfo,
    check_produce_batch,
    encode_produce_response,
    parse_produce,
)
from onelog.protocols.kafka.answers import AnswerSlot
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.opening import (
    Opened,
    RecordsRefused,
    Unopened,
    check_claims,
    check_without_keys,
    timed,
)
from onelog.protocols.kafka.rights import authorize
from onelog.protocols.kafka.topics import check_name
from onelog.protocols.kafka.transactions.coordinator import OUTSIDE
from onelog.protocols.kafka.transactions.state import Producer
from onelog.protocols.kafka.transactions.verifying import check_granted, verify_here
from onelog.queues.claims import Claims, find_claims

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer
    from onelog.protocols.kafka.connection import Connection
    from onelog.protocols.kafka.topics import TopicPartition
    from onelog.protocols.kafka.transactions.verifying import Grant

_ACKS: Final = (-1, 0, 1)
_NONE: Final = -1
_COUNT_AT: Final = 57
"""Where a batch has the number of its records."""
_PRODUCER_AT: Final = 43
_PRODUCER: Final = struct.Struct(">qh")
"""Where a batch has the id and the epoch of its producer."""
_ABORTABLE_FROM: Final = 11
"""The version from which clients know that they may abort their transaction and go on."""

Row = tuple[int, int, int, int, int, str | None, Sequence[tuple[int, str]]]
"""(partition, error code, base offset, append time, log start, message, bad records), in the
kernel's form."""
NO_BLAME: Final[tuple[tuple[int, str], ...]] = ()

_OWN_TIME: Final = "the time of the append is the broker's to write"
_OWN_HORIZON: Final = "how long a tombstone stays is the broker's to write"
_NO_RECORDS: Final = "there are no records to append"
INFLATED_HERE_BYTES: Final = 64 * 1024
"""A batch of at most so many bytes, inflated or not, is inflated on the loop."""
OPENED_HERE_BYTES: Final = 8 * 1024
"""The same where each record is checked, or where the batch is compressed again."""
WORK_OF_A_TURN: Final = 500
"""Partitions of a request that are served before others have their turn."""
_WORK_OF_A_STRANGER: Final = 10
"""The extra cost of finding out that a topic does not exist, in partitions."""
_OVER: Final = object()
_SLICED_BYTES: Final = 4096
"""Up to so many bytes, a copy costs less than a view."""


class Produce(AnswerSlot):
    """One request in progress: its slot is filled when all of its partitions are settled."""

    __slots__ = (
        "_correlation_id",
        "_grants",
        "_left",
        "_topics",
        "_transactional_id",
        "_version",
        "acks",
        "timeout_ms",
    )

    def __init__(self, connection: Connection, version: int, correlation_id: int) -> None:
        super().__init__(connection, is_produce=True)
        self._version = version
        self._correlation_id = correlation_id
        self._transactional_id: str | None = None
        self._grants: dict[tuple[str, int], Grant] | None = None
        """What another node said, which coordinates the transaction; None: this node does."""
        self.acks = 0
        self.timeout_ms = 0
        self._left = 1
        self._topics: list[tuple[str, list[Row]]] = []

    def begin(self, buffer: bytes | bytearray, start: int, end: int) -> None:
        """Append the batches of the request. Raises ProtocolViolation when it cannot be read."""
        self._transactional_id, self.acks, self.timeout_ms, topics = parse_produce(
            buffer, start, end, self._version
        )
        pacing = self.connection.pacing
        if pacing is not None:
            messages = sum(_counts(buffer, topics))
            self.delay(pacing.publish(messages, end - start, requests=1))
        unopened: list[Unopened] = []
        if self._transactional_id and not self.connection.hub.verifies(self._transactional_id):
            # Later requests of this client wait, so that its batches keep their order.
            self.is_produce = False
            self.connection.run(self, self._take_granted(buffer, list(topics)))
            return
        taking = self._take(buffer, topics, unopened)
        if next(taking, _OVER) is _OVER:
            self._take_unopened(unopened)
        else:
            # Later requests of this client wait, so that its batches keep their order.
            self.is_produce = False
            self.connection.run(self, self._take_in_turns(taking, unopened))

    async def _take_in_turns(self, taking: Iterator[None], unopened: list[Unopened]) -> None:
        for _turn in taking:
            await asyncio.sleep(0)
        self.is_produce = True
        self._take_unopened(unopened)
        self.connection.answers_ready()

    async def _take_granted(
        self, buffer: bytes | bytearray, topics: list[tuple[str, list[tuple[int, int, int]]]]
    ) -> None:
        """As `begin`, for a transaction of another node, which is asked first."""
        verifier = self.connection.hub.verifier
        assert self._transactional_id is not None
        self._grants = await verifier.ask_for(
            self._transactional_id,
            self._wishes(buffer, topics),
            abortable=self._version >= _ABORTABLE_FROM,
        )
        try:
            unopened: list[Unopened] = []
            for _turn in self._take(buffer, topics, unopened):
                await asyncio.sleep(0)
            if unopened:
                await self._open_and_append(unopened)
                return
        finally:
            verifier.give_back(self._grants.values())
        self.is_produce = True
        self.settle()
        self.connection.answers_ready()

    def _wishes(
        self,
        buffer: bytes | bytearray,
        topics: Iterable[tuple[str, list[tuple[int, int, int]]]],
    ) -> Iterator[tuple[str, TopicPartition, Producer]]:
        """Where transactional batches want to go; what else is wrong with them comes later."""
        for name, partitions in topics:
            for number, first, last in partitions:
                at = first + _PRODUCER_AT
                if at + _PRODUCER.size > last or first < 0:
                    continue
                producer = Producer(*_PRODUCER.unpack_from(buffer, at))
                with contextlib.suppress(OnelogError):
                    target = self.connection.hub.topics.get(name).partition(number)
                    yield name, target, producer

    def _take(
        self,
        buffer: bytes | bytearray,
        topics: Iterable[tuple[str, list[tuple[int, int, int]]]],
        unopened: list[Unopened],
    ) -> Iterator[None]:
        """Append batches that need not be opened elsewhere; stops where others have their turn."""
        find, work = self.connection.hub.topics.get, 0
        for name, partitions in topics:
            rows: list[Row] = []
            self._topics.append((name, rows))
            stranger: OnelogError | None = None
            for at, (number, first, last) in enumerate(partitions):
                work += 1
                if work >= WORK_OF_A_TURN:
                    work = 0
                    yield
                rows.append((number, 0, _NONE, _NONE, _NONE, None, NO_BLAME))
                self._left += 1
                try:
                    if stranger is not None:
                        raise stranger.with_traceback(None)  # which would grow with each row
                    if self.acks not in _ACKS:
                        raise self._bad_acks()
                    try:
                        topic = find(name)
                    except OnelogError as error:
                        stranger = self._unknown(name, error)
                        work += _WORK_OF_A_STRANGER
                        raise stranger from None
                    place = (name, topic.partition(number), rows, at)
                    batch = self._take_batch(place, buffer, first, last)
                    if batch is not None:
                        unopened.append(batch)
                except OnelogError as error:
                    self.refuse(rows, at, number, error)
                    self._left -= 1

    def _unknown(self, name: str, error: OnelogError) -> OnelogError:
        """Why a topic is not found: a client that may not write to it learns only that."""
        connection = self.connection
        try:
            authorize(connection.hub, connection.principal, Action.PUBLISH, check_name(name))
        except OnelogError as refusal:
            return refusal
        return error

    def _bad_acks(self) -> KafkaError:
        return KafkaError(ErrorCode.invalid_required_acks, f"acks is -1, 0 or 1, not {self.acks}")

    def _take_batch(
        self,
        place: tuple[str, TopicPartition, list[Row], int],
        buffer: bytes | bytearray,
        first: int,
        last: int,
    ) -> Unopened | None:
        """Append a batch, unless it has to be opened elsewhere. Raises OnelogError."""
        name, target, rows, at = place
        if last < 0:
            raise KafkaError(ErrorCode.invalid_record, _NO_RECORDS)
        needs_keys, opens = target.needs_keys, target.opens
        try:
            info, latest_ms = check_produce_batch(buffer, first, last, needs_keys)
        except InvalidRecords as error:
            info, latest_ms = check_without_keys(target, buffer, first, last, error)
            opens = True
        if info.attributes & ATTR_LOG_APPEND_TIME:
            raise KafkaError(ErrorCode.invalid_timestamp, _OWN_TIME)
        if info.attributes & ATTR_DELETE_HORIZON:
            raise KafkaError(ErrorCode.invalid_record, _OWN_HORIZON)
        hub = self.connection.hub
        if opens or info.attributes & ATTR_CODEC_MASK:
            data = memoryview(buffer)[first:last]
            now_ms = hub.clock.now_ms()
            batch = Unopened(name, target, data, info, now_ms, rows, at, hub.judges_claims)
            return None if self._append_small(batch, opens=opens) else batch
        if hub.judges_claims:
            self._check_claims(name, find_claims(buffer, first))
        if latest_ms != info.max_timestamp_ms:
            data = memoryview(buffer)[first:last]
            self._append(name, target, *timed(data, info, latest_ms), rows, at)
        else:
            source = buffer if info.size_bytes <= _SLICED_BYTES else memoryview(buffer)
            self._append(name, target, source[first:last], info, rows, at)
        return None

    def _take_unopened(self, unopened: list[Unopened]) -> None:
        """Open and append the batches that were left, or finish."""
        if unopened:
            self.is_produce = False  # later requests wait here, too
            self.connection.run(self, self._open_and_append(unopened))
        else:
            self.settle()

    def _append_small(self, batch: Unopened, *, opens: bool) -> bool:
        """Append a batch that is opened faster than a thread is asked. Returns False when it is
        large.

        Raises OnelogError.
        """
        limit = OPENED_HERE_BYTES if opens else INFLATED_HERE_BYTES
        if batch.info.size_bytes > limit:
            return False
        try:
            data, info, claims = batch.open(limit)
        except MessageTooLarge:
            return False
        self._check_claims(batch.topic, claims)
        self._append(batch.topic, batch.target, data, info, batch.rows, batch.at)
        return True

    async def _open_and_append(self, unopened: list[Unopened]) -> None:
        def work() -> list[Opened | OnelogError]:
            return [batch.try_open() for batch in unopened]

        hub = self.connection.hub
        found = await hub.broker.in_thread(work)
        if hub.judges_claims and not unopened[0].judges_claims:  # the first rule came meanwhile
            unopened = [batch._replace(judges_claims=True) for batch in unopened]
            found = await hub.broker.in_thread(work)
        for batch, opened in zip(unopened, found, strict=True):
            target, rows, at = batch.target, batch.rows, batch.at
            refusal = opened if isinstance(opened, OnelogError) else None
            try:
                if not isinstance(opened, OnelogError):
                    data, info, claims = opened
                    self._check_claims(batch.topic, claims)
                    self._append(batch.topic, target, data, info, rows, at)
            except OnelogError as error:
                refusal = error
            if refusal is not None:
                self.refuse(rows, at, target.number, refusal)
                self._left -= 1
        self.settle()
        self.is_produce = True
        self.connection.answers_ready()

    def _check_claims(self, name: str, claims: Claims) -> None:
        """Refuse headers that the client has no right to write. Raises OnelogError."""
        if claims:
            connection = self.connection
            assert connection.principal is not None
            authorizer = connection.hub.broker.authorizer
            check_claims(authorizer, connection.principal, check_name(name), claims)

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
            self._verify(topic, target, Producer(info.producer_id, info.producer_epoch))
        connection.hub.appends.add((self, rows, at), target, data, info, principal)
        if topic not in connection.written:
            note_written(connection.written, topic)

    def _verify(self, topic: str, target: TopicPartition, producer: Producer) -> None:
        """Refuse a batch outside its transaction, in the step that appends it. Raises
        KafkaError."""
        abortable = self._version >= _ABORTABLE_FROM
        if self._grants is None:
            hub, name = self.connection.hub, self._transactional_id
            verify_here(hub, name, producer, topic, target.number, abortable=abortable)
        else:
            check_granted(self._grants, producer, topic, target, OUTSIDE[abortable])

    def refuse(self, rows: list[Row], at: int, number: int, error: OnelogError) -> None:
        """Nothing was appended for a partition."""
        blamed = error.blamed if isinstance(error, RecordsRefused) else NO_BLAME
        rows[at] = (number, int(_code(error)), _NONE, _NONE, _NONE, str(error), blamed)
        if self.acks == 0:
            self.connection.fail(error)

    def settle(self) -> bool:
        """One partition is done. Returns whether the answer is ready."""
        self._left -= 1
        if self._left:
            return False
        self.pieces = (
            [
                encode_produce_response(
                    self._correlation_id, self._version, self._topics, self.throttle_ms
                )
            ]
            if self.acks
            else []
        )
        self.cancel = None
        return True


def _counts(
    buffer: bytes | bytearray, topics: Iterable[tuple[str, list[tuple[int, int, int]]]]
) -> Iterator[int]:
    """The records of each batch, as its header claims: a batch that lies is refused later."""
    for _name, partitions in topics:
        for _number, first, last in partitions:
            at = first + _COUNT_AT
            if at + 4 <= last:
                yield max(0, int.from_bytes(buffer[at : at + 4], "big", signed=True))


def _code(error: OnelogError) -> ErrorCode:
    """The code for a partition to which nothing was appended, or of which that is not known."""
    if isinstance(error, Unavailable):  # too few replicas are in sync: nothing was appended
        return ErrorCode.not_enough_replicas
    return code_of(error)
