"""Publishing: messages from everywhere become one batch and one write per partition and loop pass.

Rules:
- A message is appended once, to the home of its topic (I1), whoever reads it.
- All messages that arrive in one pass of the loop for one partition share a batch; the pass ends
  with one tick that writes every dirty partition. No timer, no added latency.
- Messages published together are checked together before any of them is staged.
- The answer comes when every record of the call is visible, i.e. durable as its stream says (I4).
- A tick may come at any time, also in the middle of a pass or of another tick: it first takes away
  everything that is staged together with everybody who waits for it, then it writes. What is taken
  is written in the order in which it was taken, so nobody ever waits for the write of another.
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
    again,
    without_frames,
)
from onelog.base.ids import Offset
from onelog.base.topics import check_topic
from onelog.broker.checks import (
    RECORD_OVERHEAD_BYTES,
    Home,
    check_headers,
    check_records,
    chosen_home,
)
from onelog.broker.hooks import Action, Authorizer, Principal, Quotas, Unlimited
from onelog.broker.ticks import (
    Call,
    Done,
    Published,
    Single,
    Target,
    Tick,
    Ticket,
    Write,
    drop_stale,
    finish_rows,
)
from onelog.kernel import (
    ATTR_CODEC_MASK,
    TIMESTAMP_MS_MAX,
    BatchBuilder,
    BatchInfo,
    Stage,
    scan_batches,
)
from onelog.log.catalog import Catalog
from onelog.log.handle import Appended
from onelog.log.handle import PartitionHandle as Partition
from onelog.log.pool import Pool
from onelog.log.stream import Stream
from onelog.log.touched import TopicCache
from onelog.observe.troubles import Troubles
from onelog.record.batch import decode
from onelog.record.record import Message

STAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Staged bytes of a partition that are written before the pass ends."""

_TOPIC_CACHE_MAX: Final = 100_000


class Publisher:
    """The way into the log."""

    def __init__(
        self,
        catalog: Catalog,
        chores: Pool,
        clock: Clock,
        authorizer: Authorizer,
        quotas: Quotas,
        troubles: Troubles,
    ) -> None:
        self._troubles = troubles
        self._catalog = catalog
        self._chores = chores
        self._clock = clock
        self._authorizer = authorizer
        self._quotas = quotas
        self._stages: dict[Partition, Stage] = {}
        self.dirty: list[Stage] = []
        """Stages with records that this pass has to write, in the order they were touched."""
        self._ticks: deque[Tick] = deque()
        self._writes: deque[Write] = deque()
        """What ticks took and did not write yet."""
        self._ticking = False
        self._topics: TopicCache[Home] = TopicCache(_TOPIC_CACHE_MAX)
        self._homes = self._topics.known
        self._loop = asyncio.get_running_loop()
        self.messages = 0
        self.ticks = 0
        self.on_tick: list[Callable[[Tick], None]] = []
        """Called when a tick took what is staged: who staged by itself says what it waits for."""
        catalog.before_change.append(self.tick)
        catalog.on_change.append(self._streams_changed)

    def _streams_changed(self) -> None:
        # What is staged was resolved with the old captures: it goes to its old home first.
        self.tick()
        self._topics.drop(self._catalog.touched)
        for name in self._catalog.changed:
            drop_stale(self._stages, self._catalog.find(name))

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
        assert stage.builder.count >= count, "they were written before anybody waited for them"
        stage.owner.rows.append((call, 0, stage.builder.count - 1))
        self.tick_soon()

    def stage(self, message: Message, *, principal: Principal) -> Stage:
        """Stage one message without an answer: who stages waits for the tick by itself."""
        home = self._home(message.topic, None)
        self._admit(message, principal, home)
        stage = self._add(home, message, self._clock.now_ms(), None, 0)
        self.tick_soon()
        return stage

    def _admit(self, message: Message, principal: Principal, home: Home) -> None:
        size_bytes = self._check(message, principal, home[0], home[1], len(home[2]))
        self._quotas.take_publish(principal, 1, size_bytes)

    def _add(
        self,
        home: Home,
        message: Message,
        now_ms: int,
        ticket: Call | None,
        place: int,
    ) -> Stage:
        """Stage a message that may be published; whoever holds the ticket is told."""
        stream, target, topic = home
        stage = self._stages.get(target) or self.stage_of(stream, target)
        if stage.builder.size_bytes >= STAGE_BYTES_MAX:
            self.tick()
        key = message.key
        if key is None and not message.keyless:
            key = topic
        timestamp_ms = message.timestamp_ms if message.timestamp_ms >= 0 else now_ms
        index = stage.builder.add(topic, key, message.value, message.headers, timestamp_ms)
        if ticket is not None:
            stage.owner.rows.append((ticket, place, index))
        stage.touch()
        return stage

    def route(self, topic: str, principal: Principal) -> tuple[Stage, int] | None:
        """Where plain messages of a topic are staged and how large they may be.

        None when each message needs a look: the principal may not publish there, the partition
        takes none, or quotas count.
        """
        stream, target, _topic = self._home(topic, None)
        if (
            target.refusal is not None
            or not isinstance(self._quotas, Unlimited)
            or not self._authorizer.allows(principal, Action.PUBLISH, topic)
        ):
            return None
        limit = target.message_bytes_max - len(topic.encode()) - RECORD_OVERHEAD_BYTES
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
        if target.refusal is not None:
            raise again(target.refusal)
        if message.timestamp_ms > TIMESTAMP_MS_MAX:
            raise InvalidRequest(f"a timestamp is at most {TIMESTAMP_MS_MAX} ms")
        size = topic_bytes + len(message.value or b"") + len(message.key or b"")
        if message.headers:
            size += check_headers(message)
        if size + RECORD_OVERHEAD_BYTES > target.message_bytes_max:
            raise MessageTooLarge(
                f"a message of {size} bytes is larger than stream {stream.name} takes"
                f" (message_bytes_max = {target.message_bytes_max})"
            )
        return size

    def _home(self, topic: str, partition: int | None) -> Home:
        home = self._homes.get(topic)
        if home is None:
            check_topic(topic)
            stream, encoded = self._catalog.home(topic), topic.encode()
            home = stream, stream.partition_of(encoded), encoded
            self._topics.keep(topic, home)
        return home if partition is None else chosen_home(home, partition)

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
        tick = Tick(self, len(self.dirty))
        self._ticks.append(tick)
        self.ticks += 1
        for number, stage in enumerate(self.dirty):
            target = stage.owner
            self._writes.append(Write(tick, number, stage, stage.take(), target.rows))
            target.rows = []
        self.dirty.clear()
        for listener in self.on_tick:
            try:
                listener(tick)
            except Exception as error:  # noqa: BLE001 - what is staged is written nevertheless
                self._troubles.note("tick-listener", "tick", error)
        while self._writes:  # of an outer tick, too: whom a write wakes may publish and tick
            self._write(self._writes.popleft())

    def when_written(self, callback: Callable[[], None]) -> None:
        """Call back when what is staged now is visible or has failed, and all before it."""
        self.tick()
        if self._ticks:
            self._ticks[-1].when_done(lambda _tick: callback())
        else:
            callback()

    def release_ticks(self) -> None:
        """Answer for finished ticks, in their order."""
        while self._ticks and self._ticks[0].left == 0:
            self._ticks.popleft().run(self._troubles)

    def _write(self, write: Write) -> None:
        stage, builder, rows = write.stage, write.builder, write.rows
        target, count = stage.owner, builder.count
        partition = target.partition
        try:
            appended = partition.append_built(builder, index_topics=target.index_topics)
        except Exception as error:  # noqa: BLE001 - the callers of this stage get it, no other does
            failure = error if isinstance(error, OnelogError) else StorageError(str(error))
            self._finish(write, without_frames(failure))
            return
        finally:
            if not builder.count:
                stage.give_back(builder)
        self.messages += count
        if rows:
            name, partition_id, base = target.stream.name, partition.id, appended.base_offset
            for ticket, place, index in rows:
                ticket.results[place] = Published(name, partition_id, Offset(base + index))
        if appended.end_offset <= partition.high_watermark:
            if rows:
                finish_rows(rows, None, self._troubles)
            write.tick.finish(write.number, None)
        else:
            partition.when_visible(
                Offset(appended.end_offset - 1), lambda error: self._finish(write, error)
            )

    def _finish(self, write: Write, error: OnelogError | None) -> None:
        """A stage of a tick is visible, or never will be."""
        if write.rows:
            finish_rows(write.rows, error, self._troubles)
        write.tick.finish(write.number, error)

    # -- messages whose place is known

    def admit(self, message: Message, principal: Principal) -> tuple[Stream, Partition]:
        """Check a message and count it as `publish` does; where it is to be put."""
        stream, target, topic = self._home(message.topic, None)
        size_bytes = self._check(message, principal, stream, target, len(topic))
        self._quotas.take_publish(principal, 1, size_bytes)
        return stream, target

    def append_soon(
        self,
        stream: Stream,
        target: Partition,
        message: Message,
        done: Callable[[OnelogError | None], None],
    ) -> None:
        """Stage a message that `admit` let in, at a place of its own; `done` when it is durable."""
        ticket = Ticket(1, lambda _at, error: done(error))
        home = stream, target, message.topic.encode()
        self._add(home, message, self._clock.now_ms(), ticket, 0)
        self.tick_soon()

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
            await self._chores.run(lambda: check_records(data))  # inflating holds no loop
        else:
            check_records(data)
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
