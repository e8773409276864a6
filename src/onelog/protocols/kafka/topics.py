"""Which Kafka topic is which part of the log: a stream made for one topic, or a view.

Rules:
- A stream that was made for exactly one topic is the Kafka topic of that topic's name; its
  partitions are the stream's. Every other name that decodes to a known topic or to a filter is a
  view: it shows records that are stored elsewhere, with the offsets that they have there
  (`views/`).
- A name that is not canonical is refused (docs/reference/names.md), so two names never show one
  topic (I7).
- A topic's id derives from its stream's id, or from the view's filter: a topic that was deleted and
  made again has another one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from onelog.base.errors import InvalidName, MessageTooLarge, OffsetOutOfRange, OnelogError, again
from onelog.base.ids import Offset, TimestampMs
from onelog.base.names import from_dotted, to_dotted
from onelog.broker import (
    NO_BOUND_MS,
    Appended,
    Broker,
    Callback,
    Ends,
    PartitionHandle,
    Principal,
    Stream,
    StreamConfig,
    Timestamps,
    Waiter,
)
from onelog.kernel import ATTR_CODEC_MASK, BatchInfo, scan_batches
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.opening import TimeBounds
from onelog.protocols.kafka.readers import check_not_ahead
from onelog.record.batch import recompressed

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer

_ID_SPACE: Final = uuid.UUID("6f6e656c-6f67-5f6b-8fba-6b615f696473")
"""The name space of topic ids."""

NO_ABORTED: Final[list[tuple[int, int]]] = []


class Fetched:
    """The records of a partition for a fetch."""

    __slots__ = ("aborted", "filler", "reached", "records", "rest", "size_bytes")

    def __init__(
        self,
        records: list[Buffer],
        size_bytes: int,
        aborted: list[tuple[int, int]],
        reached: int = 0,
    ) -> None:
        self.records = records
        self.size_bytes = size_bytes
        self.aborted = aborted
        """For a reader of committed records: (producer id, first offset) of aborted
        transactions."""
        self.reached = reached
        """For a view: everything below was looked at."""
        self.rest: Rest | None = None
        """For a view: the rest of a look that would hold the loop."""
        self.filler: Callable[[int], bytes] | None = None
        """For a view that shows nothing: the batch that leads from an offset to the one it
        reached."""


class Rest(Protocol):
    """A look through a view that takes longer than the loop can wait."""

    def go_on(self, scan_bytes: int, max_bytes: int) -> int:
        """In a thread: look at up to `scan_bytes` more. Returns how many bytes it has found by
        now."""
        ...

    def fetched(self) -> Fetched:
        """On the loop: the records that it found. Raises OnelogError."""
        ...


NOTHING: Final = Fetched([], 0, NO_ABORTED)


class TopicPartition(Protocol):
    """One partition of a Kafka topic, stored or shown."""

    number: int
    log: PartitionHandle
    """The partition that holds its records."""

    def ends(self) -> Ends:
        """Where it begins and ends for readers, now."""
        ...

    def end(self, *, committed: bool) -> int:
        """The end for one kind of reader."""
        ...

    @property
    def needs_keys(self) -> bool:
        """Whether every record must have a key, because the stream is compacted."""
        ...

    @property
    def opens(self) -> bool:
        """Whether every batch has to be opened, compressed or not."""
        ...

    @property
    def time_bounds(self) -> TimeBounds | None:
        """The allowed times of records; None: any."""
        ...

    def append(
        self, data: bytearray, info: BatchInfo, principal: Principal
    ) -> tuple[Appended, PartitionHandle]:
        """Append one checked batch, now. Returns where it lies. Raises OnelogError."""
        ...

    def unpack(
        self, data: Buffer, info: BatchInfo, records: bytes | None
    ) -> tuple[Buffer, BatchInfo]:
        """May run in a thread: a batch with these inflated records, in the form to append."""
        ...

    def fetch(self, offset: int, max_bytes: int, committed: bool) -> Fetched:
        """Whole batches from `offset` on; at least one if there is any."""
        ...

    def when_news(self, offset: int, *, committed: bool, callback: Callback) -> Waiter | None:
        """Call back once there may be something at `offset`."""
        ...

    async def offset_for_time(self, timestamp_ms: TimestampMs) -> tuple[Offset, TimestampMs] | None:
        """The offset at which a consumer begins that wants records from this time on."""
        ...

    def max_timestamp(self) -> tuple[Offset, TimestampMs] | None:
        """In a thread: the record with the greatest timestamp. Raises KafkaError."""
        ...


class StreamPartition:
    """A partition of a stream that was made for this topic: stored bytes go out as they are."""

    __slots__ = (
        "_broker",
        "_compression",
        "_resource",
        "_stream",
        "ends",
        "log",
        "needs_keys",
        "number",
        "opens",
        "time_bounds",
    )

    def __init__(self, broker: Broker, stream: Stream, log: PartitionHandle) -> None:
        self._broker = broker
        self._stream = stream
        self.number = int(log.id)
        self.log = log
        self.ends = log.ends
        # When the configuration changes, this object is made again.
        config = stream.config
        self._resource = config.single_topic or config.name
        self.needs_keys = config.cleanup.compacts
        self.time_bounds = _time_bounds(config)
        self._compression = config.compression
        self.opens = self.time_bounds is not None or config.compression.wanted is not None

    def judge(self, info: BatchInfo, principal: Principal) -> Appended | None:
        """None when a batch may be written, or the append that it repeats. Raises OnelogError."""
        return self._broker.publisher.admit_batch(
            self._stream, self.log, info, principal, self._resource
        )

    def write(self, data: bytearray | memoryview) -> list[BatchInfo]:
        """Append checked batches, now. Returns them as stored. Raises OnelogError."""
        return self._broker.publisher.put_batches(self.log, data)

    def append(
        self, data: bytearray, info: BatchInfo, principal: Principal
    ) -> tuple[Appended, PartitionHandle]:
        """Append one checked batch, now. Returns where it lies. Raises OnelogError."""
        appended = self._broker.publisher.publish_batch(
            self._stream, self.log, data, info, principal=principal
        )
        return appended, self.log

    def unpack(
        self, data: Buffer, info: BatchInfo, records: bytes | None
    ) -> tuple[Buffer, BatchInfo]:
        """As it came, or in the codec that the topic wants."""
        codec = self._compression.wanted
        if codec is None or codec == info.attributes & ATTR_CODEC_MASK:
            return data, info
        made = recompressed(memoryview(data), info, records, codec, self._compression.level)
        if len(made) > self.log.message_bytes_max:
            raise MessageTooLarge(
                f"a batch has {len(made)} bytes as {self._compression.codec}, more than"
                f" {self.log.stream} takes (max.message.bytes = {self.log.message_bytes_max})"
            )
        return made, scan_batches(made, 0, False)[0]

    def end(self, *, committed: bool) -> int:
        """The end for one kind of reader."""
        return self.log.last_stable_offset if committed else self.log.high_watermark

    def fetch(self, offset: int, max_bytes: int, committed: bool) -> Fetched:
        """Whole batches from `offset` on; at least one if there is any."""
        log = self.log
        end = log.high_watermark
        if offset == end and log.stopped is None:
            return NOTHING  # at the end, as most partitions of a large fetch are
        if not log.start_offset <= offset <= end:
            if log.stopped is not None:
                raise again(log.stopped)
            if offset > end:
                check_not_ahead(log, offset)
                if offset <= log.end_offset:  # a leader of a moment: it will be seen again
                    return NOTHING
            raise OffsetOutOfRange(
                f"offset {offset} of {log.stream}/{log.id} is not in {log.start_offset} to {end}"
            )
        view = log.read_now(Offset(offset), max_bytes, committed)
        if not view:
            return NOTHING
        return Fetched([view], len(view), self._aborted(offset, view) if committed else NO_ABORTED)

    def _aborted(self, offset: int, view: memoryview) -> list[tuple[int, int]]:
        log = self.log
        if offset < log.aborted_from:  # the object store knows, piece by piece
            end = scan_batches(view, 0, False)[-1].last_offset
            found = log.aborted_between(offset, end + 1)
        else:
            found = log.aborted_between(offset, log.last_stable_offset)
            if not found:
                return NO_ABORTED
            end = scan_batches(view, 0, False)[-1].last_offset
        return [(txn.producer_id, txn.first_offset) for txn in found if txn.first_offset <= end]

    def when_news(self, offset: int, *, committed: bool, callback: Callback) -> Waiter | None:
        """Call back once there may be something at `offset`."""
        if committed:
            return self.log.when_stable(Offset(offset), callback)
        return self.log.when_visible(Offset(offset), callback)

    async def offset_for_time(self, timestamp_ms: TimestampMs) -> tuple[Offset, TimestampMs] | None:
        """The offset at which a consumer begins that wants records from this time on."""
        return await self.log.find_time(timestamp_ms)

    def max_timestamp(self) -> tuple[Offset, TimestampMs] | None:
        """In a thread: the record with the greatest timestamp."""
        return self.log.max_timestamp()


def _time_bounds(config: StreamConfig) -> TimeBounds | None:
    bounds = TimeBounds(config.timestamp_before_max_ms, config.timestamp_after_max_ms)
    if config.timestamps is Timestamps.APPEND or bounds == (NO_BOUND_MS, NO_BOUND_MS):
        return None
    return bounds


class KafkaTopic(Protocol):
    """One topic as Kafka clients see it."""

    name: str
    address: str
    """The topic or filter that it shows."""
    id: uuid.UUID
    stream: Stream | None
    """The stream that is this topic; None for a view."""

    @property
    def partition_count(self) -> int:
        """How many partitions clients see."""
        ...

    def partition(self, number: int) -> TopicPartition:
        """A partition by number. Raises KafkaError."""
        ...


class StreamTopic:
    """A topic with a stream of its own."""

    __slots__ = ("_config", "_partitions", "address", "id", "name", "stream")

    def __init__(self, broker: Broker, name: str, stream: Stream) -> None:
        self.name = name
        self._config = stream.config
        self.address = stream.config.single_topic or stream.name
        self.stream: Stream | None = stream
        self.id = topic_id(f"stream {stream.record.id}")
        self._partitions = [
            StreamPartition(broker, stream, partition) for partition in stream.partitions
        ]

    def is_current(self, stream: Stream) -> bool:
        """Whether this object still describes a stream."""
        return (
            self.stream is stream
            and self._config is stream.config
            and len(self._partitions) == len(stream.partitions)
            and all(
                known.log is log
                for known, log in zip(self._partitions, stream.partitions, strict=True)
            )
        )

    @property
    def partition_count(self) -> int:
        """How many partitions clients see."""
        return len(self._partitions)

    def partition(self, number: int) -> StreamPartition:
        """A partition by number. Raises KafkaError."""
        if not 0 <= number < len(self._partitions):
            raise no_partition(self.name, number, len(self._partitions))
        return self._partitions[number]


def no_partition(name: str, number: int, count: int) -> KafkaError:
    """The error for a partition that a topic does not have."""
    return KafkaError(
        ErrorCode.unknown_topic_or_partition,
        f"the topic {name} has partitions 0 to {count - 1}, not {number}",
    )


def topic_id(text: str) -> uuid.UUID:
    """The id of a text, the same after every restart."""
    return uuid.uuid5(_ID_SPACE, text)


def kafka_name(stream: Stream) -> str | None:
    """The Kafka topic that a stream is; None: it holds many topics or is internal.

    A stream that holds a single topic, but not from its beginning, is part of a view.
    """
    topic = stream.config.single_topic
    if stream.is_internal or topic is None or stream.tags_topics:
        return None
    try:
        return to_dotted(topic)
    except InvalidName:
        return None  # too long for Kafka


class ViewTopics(Protocol):
    """Topics that show records of other streams."""

    def find(self, name: str) -> KafkaTopic | None:
        """The view of this name, if it is one."""
        ...

    def by_id(self, wanted: uuid.UUID) -> KafkaTopic | None:
        """The view of this id, if a client got the id lately."""
        ...

    def listed(self) -> Iterator[KafkaTopic]:
        """Views that have a name."""
        ...


class Topics:
    """Every topic that Kafka clients may name."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.views: ViewTopics | None = None
        self._streams: dict[str, StreamTopic] = {}
        self._ids: dict[uuid.UUID, KafkaTopic] = {}
        self._names: dict[str, str] = {}
        """Stream → the Kafka topic that it is."""
        self.changes = 0
        """Counts changes of streams."""
        for stream in broker.streams.streams():
            self._look_at(stream.name)
        broker.streams.on_change.append(self._refresh)

    def close(self) -> None:
        """Stop listening for changes."""
        self._broker.streams.on_change.remove(self._refresh)

    def _refresh(self) -> None:
        self.changes += 1
        for name in self._broker.streams.changed:
            self._look_at(name)

    def _look_at(self, stream_name: str) -> None:
        stream = self._broker.streams.find(stream_name)
        name = None if stream is None else kafka_name(stream)
        before = self._names.pop(stream_name, None)
        known = None if before is None else self._streams.get(before)
        if known is not None and known.stream is not None:
            if stream is not None and before == name and known.is_current(stream):
                self._names[stream_name] = known.name
                return
            if known.stream.name == stream_name:
                del self._streams[known.name]
                self._ids.pop(known.id, None)
        if stream is not None and name is not None:
            topic = StreamTopic(self._broker, name, stream)
            self._names[stream_name] = name
            self._streams[name] = topic
            self._ids[topic.id] = topic

    def is_made(self, name: str) -> bool:
        """Whether a stream was made for this name: it needs no look at records."""
        return name in self._streams

    def find(self, name: str) -> KafkaTopic | None:
        """The topic of a name; None: there is none. Raises KafkaError for a bad name."""
        found: KafkaTopic | None = self._streams.get(name)
        if found is None:
            check_name(name)
            found = self.views.find(name) if self.views is not None else None
        return found

    def get(self, name: str) -> KafkaTopic:
        """The topic of a name. Raises KafkaError."""
        found = self._streams.get(name) or self.find(name)
        if found is None:
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r} here"
            )
        return found

    def by_id(self, wanted: uuid.UUID) -> KafkaTopic | None:
        """The topic of an id that a client got."""
        found = self._ids.get(wanted)
        return self.views.by_id(wanted) if found is None and self.views is not None else found

    def listed(self) -> Iterator[KafkaTopic]:
        """Every topic with a stream of its own, and every view that has a name."""
        yield from self._streams.values()
        if self.views is not None:
            # A stream that was made for the name since then comes first, as in `find`.
            yield from (view for view in self.views.listed() if view.name not in self._streams)


def check_name(name: str) -> str:
    """The topic or filter of a name. Raises KafkaError for a bad name."""
    try:
        return from_dotted(name)
    except OnelogError as error:
        raise KafkaError(ErrorCode.invalid_topic_exception, str(error)) from None
