"""Publishing: the way into the log, for records and for batches that a client built.

All ways in keep one order. Each step may refuse; then nothing of the later steps was done:
1. the home: where the topic lives (InvalidName). A batch comes with its stream and partition;
2. the hook: whether the principal may publish there (NotAuthorized);
3. the partition: whether it takes anything (PartitionStopped, NotLeader);
4. the shape: time, headers, size; of a batch also what it claims, and whether it is a repeat;
5. the quota: one count per call, of what passed all checks (QuotaExceeded);
6. the place: staged in the partition's outlet, or appended behind what is staged there;
7. the answer: when the records are visible, i.e. durable as their stream says (I4).

- Records: `publish` is 1 to 7. A caller that writes something down in between takes `admit` (1 to
  5) and then `put`, or `put_once` (6 and 7). The kernel stages plain messages of a topic itself:
  `route` does 1 to 3 for all of them, the kernel 4 and 6, `charge` does 5 for a whole read after it
  was staged (`meter.py`), `await_stage` 7.
- Batches: `publish_batch` is 2 to 6. A caller that writes many at once takes `admit_batch` (2 to 5)
  and then `put_batches` (6). The caller waits for the partition (7).

Rules:
- A message is appended once, to the home of its topic (I1), whoever reads it.
- All messages that arrive in one pass of the loop for one partition share a batch; the pass ends
  with one tick that writes every dirty partition. No timer, no added latency.
- Messages published together are checked together before any of them is staged.
- An answer waits for the partitions of its own records, and for no other.
- A tick may come at any time, also in the middle of a pass or of another tick. It first takes all
  staged records together with the calls that wait for them, then it writes, in the order in which
  it took them. So no call ever waits for the write of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from onelog.base.clock import Clock
from onelog.base.errors import (
    DuplicateSequence,
    NotAuthorized,
    OnelogError,
    QuotaExceeded,
    Timeout,
    again,
)
from onelog.base.ids import Offset
from onelog.base.topics import check_topic
from onelog.broker.answers import Call
from onelog.broker.checks import RECORD_OVERHEAD_BYTES, Home, check_shape, chosen_home
from onelog.broker.hooks import Action, Authorizer, Principal, Quotas, Unlimited
from onelog.broker.meter import Meter
from onelog.broker.nodes import Forwards
from onelog.broker.outlets import LocalOutlet, SharedOutlet, Writing, drop_stale
from onelog.kernel import (
    BatchBuilder,
    BatchInfo,
    PartitionEnd,
    Stage,
    Ticker,
    pass_of,
    scan_batches,
)
from onelog.log.catalog import Catalog
from onelog.log.handle import Appended, PartitionHandle
from onelog.log.stream import Stream
from onelog.log.touched import TopicCache
from onelog.observe.troubles import Troubles
from onelog.record.batch import append_time_of
from onelog.record.record import Message
from onelog.storage.engine import PartitionKey

STAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Staged bytes of a partition that are written before the pass ends."""
STAGES_MAX: Final = 65_536
"""Partitions that may be dirty at once: the kernel's acknowledgements have 16 bits for them."""

_TOPIC_CACHE_MAX: Final = 100_000


class Publisher:
    """The way into the log."""

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        authorizer: Authorizer,
        quotas: Quotas,
        troubles: Troubles,
        forwards: Forwards | None = None,
    ) -> None:
        """`forwards` writes to partitions that other nodes lead; None: there are none."""
        self._troubles = troubles
        self._forwards = forwards
        self._catalog = catalog
        self._clock = clock
        self._authorizer = authorizer
        self._meter = Meter(quotas)
        self.is_metered = not isinstance(quotas, Unlimited)
        """Whether code that stages records itself must report them (`charge`)."""
        self._take_publish = self._meter.take_publish if self.is_metered else quotas.take_publish
        self._stages: dict[PartitionHandle, Stage] = {}
        self.dirty: list[Stage] = []
        """Stages with records that this pass has to write, in the order of their first record."""
        self._writing = Writing(troubles)
        passing = pass_of(asyncio.get_running_loop())
        self._ticker = Ticker(self.dirty, passing.call_soon, self._writing)
        self.tick_soon = self._ticker.tick_soon
        """Makes sure that staged records are written at the end of this pass."""
        self.on_tick = self._ticker.on_tick
        self._topics: TopicCache[Home] = TopicCache(_TOPIC_CACHE_MAX)
        self._homes = self._topics.known
        self._batched = 0
        catalog.before_change.append(self.tick)
        catalog.on_change.append(self._streams_changed)

    @property
    def messages(self) -> int:
        """Messages that were written."""
        return self._ticker.messages + self._writing.messages + self._batched

    @property
    def ticks(self) -> int:
        """Passes of the loop that wrote."""
        return self._ticker.ticks

    @property
    def batched_messages(self) -> int:
        """Of those: messages that came in batches which their clients built."""
        return self._batched

    def _streams_changed(self) -> None:
        # Staged records were resolved with the old captures: they go to their old home first.
        self.tick()
        self._topics.drop(self._catalog.touched)
        for name in self._catalog.changed:
            drop_stale(self._stages, self._catalog.find(name))

    # -- records

    def publish(
        self,
        messages: Sequence[Message],
        call: Call | None,
        *,
        principal: Principal,
        partition: int | None = None,
    ) -> None:
        """Stage messages for the end of this pass; `call` gets its answer when they are durable.

        Raises at once, with nothing staged, when one of them cannot be published.
        """
        homes = self._admit(messages, principal, partition)
        now_ms = self._clock.now_ms()
        for place, message in enumerate(messages):
            self._stage(homes[place], message, now_ms, call, place)
        self.tick_soon()

    def admit(self, message: Message, principal: Principal) -> Home:
        """Check a message and count it, as `publish` does. Returns the home for `put`."""
        return self._admit((message,), principal, None)[0]

    def put(self, home: Home, message: Message, call: Call | None) -> Stage:
        """Stage a message that was admitted; `call` gets its answer when it is durable."""
        stage = self._stage(home, message, self._clock.now_ms(), call, 0)
        self.tick_soon()
        return stage

    def put_once(
        self,
        home: Home,
        message: Message,
        producer: tuple[int, int, int],
        done: Callable[[OnelogError | None], None],
    ) -> None:
        """Append a message that was admitted, now, as a batch of a producer (id, epoch, sequence).

        The same sequence again gets the same answer, and nothing is appended. `done` is called when
        the message is durable. Raises, with nothing appended, when the partition refuses it.
        """
        stream, target, topic = home
        key = topic if message.key is None and not message.keyless else message.key
        timestamp_ms = message.timestamp_ms if message.timestamp_ms >= 0 else self._clock.now_ms()
        builder = BatchBuilder(stream.tags_topics)
        builder.add(topic, key, message.value, message.headers, timestamp_ms)
        sealed = builder.seal(0, 0, 0, *producer)
        if self.is_elsewhere(stream, target):
            self._put_elsewhere(stream.key(target.id), sealed, done)
            return
        data = bytearray(sealed)
        try:
            repeated = target.check_batch(scan_batches(data, 0, False)[0])
        except DuplicateSequence:  # appended, and followed by so many that its place is forgotten
            target.when_visible(Offset(target.end_offset - 1), done)
            return
        appended = repeated or _appended(self.put_batches(target, data))

        def shown(error: OnelogError | None) -> None:
            if isinstance(error, Timeout) and self._forwards is not None:  # another node leads now
                key = stream.key(target.id)
                self._put_elsewhere(key, sealed, done, is_doubtful=True)
            else:
                done(error)

        target.when_visible(Offset(appended.end_offset - 1), shown)

    def is_elsewhere(self, stream: Stream, target: PartitionHandle) -> bool:
        """Whether another node leads, or led a moment ago and has not answered everything."""
        forwards = self._forwards
        if forwards is None:
            return False
        return (
            target.refusal is not None and self._may_forward(stream, target)
        ) or forwards.is_busy(stream.key(target.id))

    def is_crowded(self, stream: Stream, target: PartitionHandle) -> bool:
        """Whether so much waits for the leader of a partition that its publishers should wait,
        too."""
        forwards = self._forwards
        if forwards is None or target.refusal is None:
            return False
        return forwards.is_full(stream.key(target.id))

    def _put_elsewhere(
        self,
        key: PartitionKey,
        data: bytes,
        done: Callable[[OnelogError | None], None],
        *,
        is_doubtful: bool = False,
    ) -> None:
        assert self._forwards is not None
        if self.dirty:
            self.tick()  # records that came first are written first
        # Its sequence makes it safe to send it again, as often as it takes.

        def told(_base: Offset, error: OnelogError | None) -> None:
            done(None if isinstance(error, DuplicateSequence) else error)

        self._forwards.put(
            key,
            data,
            told,
            lambda _error: True,
            is_doubtful=is_doubtful,
        )

    def route(self, topic: str, principal: Principal) -> tuple[Stage, int] | None:
        """Where the kernel stages plain messages of a topic, and how large they may be.

        None when each message needs a check: the principal may not publish there, the partition
        refuses appends, or the principal's quota is used up.
        """
        stream, target, encoded = self._home(topic, None)
        if (
            (target.refusal is not None and not self._may_forward(stream, target))
            or self.is_crowded(stream, target)
            or stream.is_internal
            or not self._authorizer.allows(principal, Action.PUBLISH, topic)
            or self.owes(principal) is not None
        ):
            return None
        limit = target.message_bytes_max - len(encoded) - RECORD_OVERHEAD_BYTES
        return self._stage_of(stream, target), limit

    def await_stage(self, stage: Stage, call: Call, count: int) -> None:
        """Answer `call` when the last `count` records, which the kernel has staged, are durable."""
        assert stage.builder.count >= count, "they were written before anybody waited for them"
        stage.owner.rows.append((call, 0, stage.builder.count - 1))
        self.tick_soon()

    def charge(self, principal: Principal, messages: int, size_bytes: int) -> QuotaExceeded | None:
        """Count messages that the kernel has staged. Returns an error when the quota cannot take
        them.

        Then the caller forgets the routes of the principal.
        """
        return self._meter.charge(principal, messages, size_bytes)

    def owes(self, principal: Principal) -> QuotaExceeded | None:
        """The error for a principal whose staged messages exceed its quota; None: it may
        publish."""
        return self._meter.debt_of(principal)

    # -- the steps

    def _may_forward(self, stream: Stream, target: PartitionHandle) -> bool:
        """Whether a partition that refuses appends here may be written through its leader."""
        forwards, refusal = self._forwards, target.refusal
        if forwards is None or refusal is None:
            return False
        return forwards.takes(stream.key(target.id), refusal)

    def _admit(
        self, messages: Sequence[Message], principal: Principal, partition: int | None
    ) -> list[Home]:
        """Steps 1 to 5."""
        homes, size_bytes = [], 0
        for message in messages:
            home = self._home(message.topic, partition)
            if not self._authorizer.allows(principal, Action.PUBLISH, message.topic):
                raise NotAuthorized(f"{principal.name} may not publish to {message.topic}")
            if home[0].is_internal:
                raise NotAuthorized(f"the stream {home[0].name} belongs to the broker")
            if home[1].refusal is not None and not self._may_forward(home[0], home[1]):
                raise again(home[1].refusal)
            size_bytes += check_shape(message, home)
            homes.append(home)
        self._take_publish(principal, len(homes), size_bytes)
        return homes

    def _home(self, topic: str, partition: int | None) -> Home:
        home = self._homes.get(topic)
        if home is None:
            check_topic(topic)
            stream, encoded = self._catalog.home(topic), topic.encode()
            home = stream, stream.partition_of(encoded), encoded
            self._topics.keep(topic, home)
        return home if partition is None else chosen_home(home, partition)

    def _stage(
        self, home: Home, message: Message, now_ms: int, call: Call | None, place: int
    ) -> Stage:
        stream, target, topic = home
        stage = self._stages.get(target) or self._stage_of(stream, target)
        if stage.builder.size_bytes >= STAGE_BYTES_MAX or len(self.dirty) >= STAGES_MAX:
            self.tick()
        key = message.key
        if key is None and not message.keyless:
            key = topic
        timestamp_ms = message.timestamp_ms if message.timestamp_ms >= 0 else now_ms
        index = stage.builder.add(topic, key, message.value, message.headers, timestamp_ms)
        if call is not None:
            stage.owner.rows.append((call, place, index))
        stage.touch()
        return stage

    def _stage_of(self, stream: Stream, partition: PartitionHandle) -> Stage:
        stage = self._stages.get(partition)
        if stage is None:
            builder = BatchBuilder(stream.tags_topics)
            end = partition if isinstance(partition, PartitionEnd) else None
            forwards = self._forwards
            outlet = (
                LocalOutlet(stream, partition)
                if forwards is None
                else SharedOutlet(stream, partition, forwards)
            )
            stage = Stage(outlet, builder, self.dirty, end)
            self._stages[partition] = stage
        return stage

    # -- the tick

    def tick(self) -> None:
        """Write every dirty partition: one batch, one append each."""
        self._ticker.tick()

    def when_written(self, callback: Callable[[], None]) -> None:
        """Call back when all records that are staged now, or were before, are visible or have
        failed."""
        self._ticker.tick()
        self._ticker.write_all()
        self._writing.when_done(callback)

    # -- batches that a client built

    def publish_batch(
        self,
        stream: Stream,
        target: PartitionHandle,
        data: bytearray,
        info: BatchInfo,
        *,
        principal: Principal,
        topic: str = "",
    ) -> Appended:
        """Append a batch that the caller has checked, now. The caller waits until it is durable.

        Raises when it is refused. A repeated batch gets the answer of the earlier append.
        """
        repeated = self.admit_batch(stream, target, info, principal, topic)
        return repeated or _appended(self.put_batches(target, data))

    def admit_batch(
        self,
        stream: Stream,
        target: PartitionHandle,
        info: BatchInfo,
        principal: Principal,
        topic: str = "",
    ) -> Appended | None:
        """Check a batch and count it. Returns None when it may be put, or the append that it
        repeats.

        `topic` is the topic of the records, when that is not all of the stream.
        """
        # The right to write to a stream made for one topic is that of the topic, as for its
        # readers.
        resource = topic or stream.config.single_topic or stream.name
        if not self._authorizer.allows(principal, Action.PUBLISH, resource):
            raise NotAuthorized(f"{principal.name} may not publish to {resource}")
        if stream.is_internal:
            raise NotAuthorized(f"the stream {stream.name} belongs to the broker")
        repeated = target.check_batch(info)
        if repeated is None:
            self._take_publish(principal, info.count, info.size_bytes)
        return repeated

    def put_batches(self, target: PartitionHandle, data: bytearray | memoryview) -> list[BatchInfo]:
        """Append batches that were admitted, no two of one producer, as one write, now."""
        if self.dirty:
            self.tick()  # records that came first are written first
        placed = target.append_checked(data)
        self._batched += placed[-1].last_offset + 1 - placed[0].base_offset
        return placed

    def close(self) -> None:
        """Write staged records."""
        self.tick()


def _appended(placed: list[BatchInfo]) -> Appended:
    first, end = placed[0], Offset(placed[-1].last_offset + 1)
    return Appended(Offset(first.base_offset), end, append_time_ms=append_time_of(first))
