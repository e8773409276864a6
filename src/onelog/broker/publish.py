"""Publishing: messages from everywhere become one batch and one write per partition and loop pass.

Rules:
- A message is appended once, to the home of its topic (I1), whoever reads it.
- All messages that arrive in one pass of the loop for one partition share a batch; the pass ends
  with one tick that writes every dirty partition. No timer, no added latency.
- Messages published together are checked together before any of them is staged.
- The answer comes when every record of the call is visible, i.e. durable as its stream says (I4).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from onelog.base.clock import Clock
from onelog.base.errors import (
    InvalidRequest,
    MessageTooLarge,
    NotAuthorized,
    OnelogError,
    StorageError,
)
from onelog.base.ids import Offset
from onelog.base.limits import HEADERS_PER_RECORD_MAX
from onelog.base.topics import check_topic
from onelog.broker.hooks import Action, Authorizer, Principal, Quotas, Unlimited
from onelog.broker.ticks import Call, Done, Published, Single, Target, Tick, Ticket, finish_rows
from onelog.kernel import (
    ATTR_CODEC_MASK,
    TIMESTAMP_MS_MAX,
    BatchBuilder,
    BatchInfo,
    Stage,
    scan_batches,
    validate_records,
)
from onelog.log.catalog import Catalog
from onelog.log.partition import Appended, Partition
from onelog.log.stream import Stream
from onelog.log.syncer import Syncer
from onelog.record.batch import decode, inflated_records, set_latest_time
from onelog.record.headers import TOPIC
from onelog.record.record import Message

STAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Staged bytes of a partition that are written before the pass ends."""

_RECORD_OVERHEAD_BYTES: Final = 64
_TOPIC_CACHE_MAX: Final = 100_000


class Publisher:
    """The way into the log."""

    def __init__(
        self,
        catalog: Catalog,
        syncer: Syncer,
        clock: Clock,
        authorizer: Authorizer,
        quotas: Quotas,
    ) -> None:
        self._catalog = catalog
        self._syncer = syncer
        self._clock = clock
        self._authorizer = authorizer
        self._quotas = quotas
        self._stages: dict[Partition, Stage] = {}
        self.dirty: list[Stage] = []
        """Stages with records that this pass has to write, in the order they were touched."""
        self._ticks: deque[Tick] = deque()
        self._ticking = False
        self._homes: dict[str, tuple[Stream, Partition, bytes]] = {}
        self._loop = asyncio.get_running_loop()
        self.messages = 0
        self.ticks = 0
        self.on_tick: list[Callable[[Tick], None]] = []
        """Called after each pass that wrote: who staged by itself says what it waits for."""
        catalog.before_change.append(self.tick)
        catalog.on_change.append(self._streams_changed)

    def _streams_changed(self) -> None:
        # What is staged was resolved with the old captures: it goes to its old home first.
        self.tick()
        self._homes.clear()
        self._stages.clear()

    # -- publishing messages

    async def publish(
        self, message: Message, *, principal: Principal, partition: int | None = None
    ) -> Published:
        """Publish one message; returns when it is durable."""
        home = self._home(message.topic, partition)
        self._admit(message, principal, home)
        single = Single(self._loop.create_future())
        self._add(home, message, self._clock.now_ms(), single, 0)
        self.tick_soon()
        return await single.future

    async def publish_many(
        self,
        messages: Sequence[Message],
        *,
        principal: Principal,
        partition: int | None = None,
    ) -> list[Published]:
        """Publish messages, in order; returns when all of them are durable."""
        if not messages:
            return []
        future: asyncio.Future[list[Published]] = self._loop.create_future()

        def done(published: list[Published] | None, error: OnelogError | None) -> None:
            if future.done():
                return
            if published is None:
                future.set_exception(error or StorageError("the publish failed"))
            else:
                future.set_result(published)

        self.publish_soon(messages, done, principal=principal, partition=partition)
        return await future

    def publish_soon(
        self,
        messages: Sequence[Message],
        done: Done,
        *,
        principal: Principal,
        partition: int | None = None,
    ) -> None:
        """Stage messages for the end of this loop pass; `done` is called when they are durable.

        Raises at once, with nothing staged, when one of them cannot be published.
        """
        count, size_bytes = len(messages), 0
        homes = []
        for message in messages:
            stream, target, topic = home = self._home(message.topic, partition)
            homes.append(home)
            size_bytes += self._check(message, principal, stream, target, len(topic))
        self._quotas.take_publish(principal, count, size_bytes)
        now_ms = self._clock.now_ms()
        ticket = Ticket(count, done)
        for number, message in enumerate(messages):
            self._add(homes[number], message, now_ms, ticket, number)
        self.tick_soon()

    def publish_for(self, message: Message, call: Call, *, principal: Principal) -> None:
        """Stage one message for the end of this loop pass; `call` is told when it is durable.

        Raises at once, with nothing staged, when it cannot be published.
        """
        home = self._home(message.topic, None)
        self._admit(message, principal, home)
        self._add(home, message, self._clock.now_ms(), call, 0)
        self.tick_soon()

    def await_stage(self, stage: Stage, call: Call, count: int) -> None:
        """Tell `call` when the last `count` records, which the kernel has staged, are durable."""
        stage.owner.rows.append((call, 0, stage.builder.count - 1))
        self.messages += count
        self.tick_soon()

    def stage(self, message: Message, *, principal: Principal) -> Stage:
        """Stage one message without an answer: who stages waits for the tick by itself."""
        home = self._home(message.topic, None)
        self._admit(message, principal, home)
        stage = self._add(home, message, self._clock.now_ms(), None, 0)
        self.tick_soon()
        return stage

    def _admit(
        self, message: Message, principal: Principal, home: tuple[Stream, Partition, bytes]
    ) -> None:
        size_bytes = self._check(message, principal, home[0], home[1], len(home[2]))
        self._quotas.take_publish(principal, 1, size_bytes)

    def _add(
        self,
        home: tuple[Stream, Partition, bytes],
        message: Message,
        now_ms: int,
        ticket: Call | None,
        place: int,
    ) -> Stage:
        """Stage a message that may be published; whoever holds the ticket is told."""
        stream, target, topic = home
        stage = self._stages.get(target) or self.stage_of(stream, target)
        key = message.key
        if key is None and not message.keyless:
            key = topic
        timestamp_ms = message.timestamp_ms if message.timestamp_ms >= 0 else now_ms
        index = stage.builder.add(topic, key, message.value, message.headers, timestamp_ms)
        if ticket is not None:
            stage.owner.rows.append((ticket, place, index))
        stage.touch()
        self.messages += 1
        if stage.builder.size_bytes >= STAGE_BYTES_MAX:
            self.tick()
        return stage

    def route(self, topic: str, principal: Principal) -> tuple[Stage, int] | None:
        """Where plain messages of a topic are staged and how large they may be.

        None when each message needs a look: the principal may not publish there, the partition
        is stopped, or quotas count.
        """
        stream, target, _topic = self._home(topic, None)
        if (
            target.stopped is not None
            or not isinstance(self._quotas, Unlimited)
            or not self._authorizer.allows(principal, Action.PUBLISH, topic)
        ):
            return None
        limit = target.message_bytes_max - len(topic.encode()) - _RECORD_OVERHEAD_BYTES
        return self.stage_of(stream, target), limit

    def _check(
        self,
        message: Message,
        principal: Principal,
        stream: Stream,
        target: Partition,
        topic_bytes: int,
    ) -> int:
        """The message's size, if it may be published."""
        if not self._authorizer.allows(principal, Action.PUBLISH, message.topic):
            raise NotAuthorized(f"{principal.name} may not publish to {message.topic}")
        if target.stopped is not None:
            raise target.stopped
        if message.timestamp_ms > TIMESTAMP_MS_MAX:
            raise InvalidRequest(f"a timestamp is at most {TIMESTAMP_MS_MAX} ms")
        size = topic_bytes + len(message.value or b"") + len(message.key or b"")
        if message.headers:
            size += _check_headers(message)
        if size + _RECORD_OVERHEAD_BYTES > target.message_bytes_max:
            raise MessageTooLarge(
                f"a message of {size} bytes is larger than stream {stream.name} takes"
                f" (message_bytes_max = {target.message_bytes_max})"
            )
        return size

    def _home(self, topic: str, partition: int | None) -> tuple[Stream, Partition, bytes]:
        home = self._homes.get(topic)
        if home is None:
            check_topic(topic)
            stream, encoded = self._catalog.home(topic), topic.encode()
            home = stream, stream.partition_of(encoded), encoded
            if len(self._homes) >= _TOPIC_CACHE_MAX:
                self._homes.clear()
            self._homes[topic] = home
        return home if partition is None else _chosen(home, partition)

    # -- the tick

    def stage_of(self, stream: Stream, partition: Partition) -> Stage:
        """Where records of a partition are staged; the kernel stages there too."""
        stage = self._stages.get(partition)
        if stage is None:
            builder = BatchBuilder(stream.tags_topics)
            stage = Stage(Target(stream, partition), builder, self.dirty)
            self._stages[partition] = stage
        return stage

    def tick_soon(self) -> None:
        """See that what is staged is written at the end of this pass."""
        if self.dirty and not self._ticking:
            self._ticking = True
            self._loop.call_soon(self.tick)

    def tick(self) -> None:
        """Write every dirty partition: one batch, one append each."""
        self._ticking = False
        if not self.dirty:
            return
        dirty = self.dirty.copy()
        self.dirty.clear()
        self.ticks += 1
        tick = Tick(self, len(dirty) + 1)  # one more, so that it ends after `on_tick`
        self._ticks.append(tick)
        for stage in dirty:
            stage.number = -1
        for number, stage in enumerate(dirty):
            self._write(stage, tick, number)
        for callback in self.on_tick:
            callback(tick)
        tick.finish(len(dirty), None)

    def release_ticks(self) -> None:
        """Answer for finished ticks, in their order."""
        while self._ticks and self._ticks[0].left == 0:
            self._ticks.popleft().run()

    def _write(self, stage: Stage, tick: Tick, number: int) -> None:
        target, builder = stage.owner, stage.builder
        partition, rows = target.partition, target.rows
        target.rows = []  # also when it is empty: who comes next waits for what comes next
        if not builder.count:  # a callback staged more while an earlier stage was written
            _finish(rows, tick, number, None)
            return
        try:
            appended = partition.append_built(builder, index_topics=target.index_topics)
        except Exception as error:  # noqa: BLE001 - the callers of this stage get it, no other does
            failure = error if isinstance(error, OnelogError) else StorageError(str(error))
            _finish(rows, tick, number, failure)
            return
        if rows:
            name, partition_id, base = target.stream.name, partition.id, appended.base_offset
            for ticket, place, index in rows:
                ticket.results[place] = Published(name, partition_id, Offset(base + index))
        if appended.end_offset <= partition.high_watermark:
            _finish(rows, tick, number, None)
            return

        def finish(error: OnelogError | None) -> None:
            _finish(rows, tick, number, error)

        partition.when_visible(Offset(appended.end_offset - 1), finish)

    # -- messages of an idempotent producer

    def admit(self, message: Message, principal: Principal) -> tuple[Stream, Partition]:
        """Check a message and count it as `publish` does; where `append_once` is to put it."""
        stream, target, topic = self._home(message.topic, None)
        size_bytes = self._check(message, principal, stream, target, len(topic))
        self._quotas.take_publish(principal, 1, size_bytes)
        return stream, target

    def append_once(
        self,
        stream: Stream,
        target: Partition,
        message: Message,
        producer: tuple[int, int, int],
        done: Callable[[OnelogError | None], None],
    ) -> None:
        """Append a message of a producer (id, epoch, sequence); `done` when it is durable.

        The same sequence again is answered and not appended again.
        """
        topic = message.topic.encode()
        key = topic if message.key is None and not message.keyless else message.key
        timestamp_ms = message.timestamp_ms if message.timestamp_ms >= 0 else self._clock.now_ms()
        builder = BatchBuilder(stream.tags_topics)
        builder.add(topic, key, message.value, message.headers, timestamp_ms)
        data = bytearray(builder.seal(0, 0, 0, *producer))
        self.tick()  # what came first goes first
        appended = target.append_batches(data, scan_batches(data, 0, False))
        self.messages += 1
        target.when_visible(Offset(appended.end_offset - 1), done)

    # -- batches that a client built

    async def publish_batches(
        self, stream: Stream, partition: int, data: bytearray, *, principal: Principal
    ) -> Appended:
        """Append whole record batches as they came, compressed or not; returns when durable.

        Raises CorruptBatch (nothing is appended) when CRC, counts or offsets are wrong.
        """
        self._check_writer(stream, principal)
        target = stream.partition(partition)
        infos = scan_batches(data)
        if not infos:
            raise InvalidRequest("there is no record batch to append")
        if any(info.attributes & ATTR_CODEC_MASK for info in infos):
            await self._syncer.run(lambda: _validate(data))  # inflating holds no loop
        else:
            _validate(data)
        if stream.tags_topics:
            self._check_topics(stream, target, data, infos)
        appended = self.append_batches(stream, target, data, infos, principal=principal)
        await target.wait_visible(Offset(appended.end_offset - 1))
        return appended

    def append_batches(
        self,
        stream: Stream,
        target: Partition,
        data: bytearray,
        infos: Sequence[BatchInfo],
        *,
        principal: Principal,
        topic: str = "",
    ) -> Appended:
        """Append batches that the caller has checked, now; who calls waits for them to be durable.

        `topic` is what the records are for, when that is not all of the stream. Raises when the
        principal may not, and when the partition refuses them.
        """
        self.admit_batches(stream, infos, principal, topic)
        if self.dirty:
            self.tick()  # what came first goes first
        appended = target.append_batches(data, infos)
        self.messages += sum(info.count for info in infos)
        return appended

    def admit_batches(
        self, stream: Stream, infos: Sequence[BatchInfo], principal: Principal, topic: str = ""
    ) -> None:
        """Count batches that are to be appended; raises when the principal may not."""
        self._check_writer(stream, principal, topic)
        for info in infos:
            self._quotas.take_publish(principal, info.count, info.size_bytes)

    def _check_writer(self, stream: Stream, principal: Principal, topic: str = "") -> None:
        # A stream that was made for one topic is asked for by that topic, as its readers are.
        resource = topic or stream.config.single_topic or stream.name
        if not self._authorizer.allows(principal, Action.PUBLISH, resource):
            raise NotAuthorized(f"{principal.name} may not publish to {resource}")
        if stream.config.internal:
            raise NotAuthorized(f"the stream {stream.name} belongs to the broker")

    def append_admitted(self, target: Partition, data: bytearray) -> list[BatchInfo]:
        """Append batches that were admitted, and judged by the partition, as one write."""
        if self.dirty:
            self.tick()  # what came first goes first
        placed = target.append_checked(data)
        self.messages += placed[-1].last_offset + 1 - placed[0].base_offset
        return placed

    def _check_topics(
        self, stream: Stream, target: Partition, data: bytearray, infos: list[BatchInfo]
    ) -> None:
        """Refuse records that would lie where no cursor looks for their topic."""
        for info in infos:
            slices = decode(data, info, check_crc=False)
            for index in range(len(slices)):
                topic = (slices.topic(index) or b"").decode(errors="replace")
                if self._home(topic, None)[1] is not target:
                    raise InvalidRequest(
                        f"the topic {topic!r} does not live in partition {target.id} of stream"
                        f" {stream.name}; a record of a stream with many topics names its topic"
                        " in the header ~t, or has it as its key"
                    )

    def close(self) -> None:
        """Write what is staged."""
        self.tick()


def _finish(
    rows: list[tuple[Call, int, int]],
    tick: Tick,
    number: int,
    error: OnelogError | None,
) -> None:
    """A stage of a tick is visible, or never will be."""
    if rows:
        finish_rows(rows, error)
    tick.finish(number, error)


_Home = tuple[Stream, Partition, bytes]


def _chosen(home: _Home, number: int) -> _Home:
    """The partition that the producer picked."""
    stream, usual, topic = home
    target = stream.partition(number)
    if target is not usual and stream.record.fixed_topic is None:
        # A cursor on the topic looks in its own partition only.
        raise InvalidRequest(
            f"{topic.decode()} lives in partition {usual.id} of stream {stream.name}; only a"
            " stream made for one topic lets its producers choose the partition"
        )
    return stream, target, topic


def _check_headers(message: Message) -> int:
    if len(message.headers) >= HEADERS_PER_RECORD_MAX:  # one is ours: the topic
        raise InvalidRequest(
            f"a message has at most {HEADERS_PER_RECORD_MAX - 1} headers,"
            f" not {len(message.headers)}"
        )
    size = 0
    for name, value in message.headers:
        if name == TOPIC:
            raise InvalidRequest("the header ~t belongs to OneLog; it names the record's topic")
        size += len(name) + len(value or b"") + 8
    return size


def _validate(data: bytearray) -> None:
    for info in scan_batches(data, 0, False):
        latest_ms = validate_records(data, info.position, inflated_records(data, info))
        if latest_ms != info.max_timestamp_ms:
            set_latest_time(data, info, latest_ms)
