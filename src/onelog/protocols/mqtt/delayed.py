"""Delayed publishes: `$delayed/<seconds>/<topic>` and `$delayed/@<epoch seconds>/<topic>`.

Rules:
- The message is durable in the internal stream `~delayed` before it is answered (I4), with its
  properties, QoS, retain flag and publisher. At its time it is published to its topic as that
  principal: if the principal may no longer publish there, it is dropped. Its expiry counts from
  then on.
- A timer runs for the nearest one. Memory holds the nearest `nearest_max` messages and one bit for
  each other; the others are read from the log when their turn comes (I8).
- After a message is published, a tombstone is written for it, and compaction removes both. When the
  broker dies after the publish and before the tombstone, the next start looks for the message in
  its topic: it is published again only if retention has removed it there.
- On several nodes, the leader of partition 0 of `~delayed` takes and publishes them; any other
  refuses them. After an election each message is looked for in its topic as after a crash. One goes
  out twice only if a deposed leader published it after the next one had looked.
"""

from __future__ import annotations

import asyncio
import heapq
import secrets
from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base import faults
from onelog.base.errors import (
    InvalidName,
    InvalidRequest,
    MessageTooLarge,
    NotAuthorized,
    NotLeader,
    OnelogError,
    QuotaExceeded,
    StateLoading,
    again,
)
from onelog.base.ids import Offset
from onelog.base.topics import check_topic
from onelog.broker import (
    Broker,
    Cleanup,
    Cold,
    Home,
    Message,
    Notice,
    OffsetSet,
    PartitionHandle,
    Position,
    Principal,
    Record,
    Retention,
    Source,
    Start,
    Stream,
    StreamConfig,
    kept_batches,
    rows_there,
)
from onelog.kernel import BatchBuilder, Slices
from onelog.observe import get_logger
from onelog.protocols.mqtt.mapping import to_headers
from onelog.record.batch import iterate_batches
from onelog.record.headers import TOPIC, Headers, find_header
from onelog.record.reserved import OFFSET_MAX, read_number, read_text

if TYPE_CHECKING:
    from onelog.base.clock import Clock
    from onelog.protocols.mqtt.packets import Publish, Will

PREFIX: Final = "$delayed/"
STREAM: Final = "~delayed"
STREAM_CONFIG: Final = StreamConfig(
    name=STREAM,
    cleanup=Cleanup.COMPACT,
    retention=Retention(age_ms=-1),
    segment_bytes=16 * 1024 * 1024,
)

DUE: Final = b"~du"
"""When to publish: milliseconds since the Unix epoch."""
BY: Final = b"~by"
"""The publisher's name."""
PROOF: Final = b"~bp"
"""Other facts of the publisher for access rules: the client id, a certificate, a token's claims."""
DONE: Final = b"~do"
"""In a tombstone: the offset of the message that is done."""
NAME: Final = b"~di"
"""In the message as published: its name while it waited."""

PASS_RECORDS: Final = 256
_READ_BYTES: Final = 1024 * 1024
_LOOK_AGAIN_S: Final = 3600.0
"""The longest timer: a wall clock may jump."""
_RETRY_MS: Final = 1_000
_NUMBER_CHARS_MAX: Final = 12
_NEVER: Final = 2**62
HOPELESS: Final = (NotAuthorized, InvalidRequest, InvalidName, MessageTooLarge)

_log = get_logger("mqtt")


class DelayedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of delayed publishes."""

    delay_max_s: int = 366 * 24 * 3600
    pending_max: int = 1_000_000
    nearest_max: int = 50_000
    """How many are held in memory."""


def parse_delayed(topic: str, now_ms: int, delay_max_s: int) -> tuple[int, str]:
    """When and where to publish. Raises InvalidName when the topic has another form."""
    when, slash, inner = topic[len(PREFIX) :].partition("/")
    number = when.removeprefix("@")
    if not (number.isascii() and number.isdigit() and len(number) <= _NUMBER_CHARS_MAX and slash):
        raise InvalidName(
            f"{topic[:60]!r} must be $delayed/<seconds>/<topic> or $delayed/@<epoch>/<topic>"
        )
    due_ms = int(number) * 1000 + (0 if when.startswith("@") else now_ms)
    if due_ms - now_ms > delay_max_s * 1000:
        raise InvalidName(f"{topic[:60]!r}: a delay is at most {delay_max_s} seconds")
    check_topic(inner)
    if inner.startswith("$"):
        raise NotAuthorized(f"clients may not publish to {inner}")
    return due_ms, inner


class Delayed:
    """The messages that wait for their time."""

    def __init__(self, broker: Broker, clock: Clock, settings: DelayedSettings) -> None:
        self._broker = broker
        self._clock = clock
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._stream: Stream
        self._partition: PartitionHandle
        self._pending = OffsetSet()
        self._going: set[int] = set()
        """Offsets that are being published."""
        self._nearest: list[tuple[int, int]] = []
        self._horizon_ms = _NEVER
        """All messages that are due before this time are among the nearest."""
        self._done: list[tuple[bytes, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._opened_ms = 0
        self._opened_end = 0
        self._is_following = False
        self._is_elected = False
        self._closed = True

    async def open(self, *, is_elected: bool) -> None:
        """Find out where messages wait. They wait for `begin`."""
        # Partition 0 has all messages. With a partition per shard, it is led with shard 0.
        count = len(self._broker.shards) if is_elected else 1
        config = msgspec.structs.replace(STREAM_CONFIG, partitions=count)
        found = await self._broker.own_stream(config)
        self._stream, self._partition = found, found.partitions[0]
        self._is_elected = is_elected

    async def begin(self) -> None:
        """Find waiting messages; overdue ones go out soon. Raises Unavailable when the stream is
        damaged."""
        await rows_there(self._partition)
        self._closed = False
        self._opened_ms = self._clock.now_ms()
        self._opened_end = int(self._partition.ends().high_watermark)
        async for _info, slices in kept_batches(self._partition):
            self._note(slices)
        self._partition.follow(self._appended)
        self._is_following = True
        self.look_again()

    def __len__(self) -> int:
        return len(self._pending)

    # -- taking messages in

    def take(
        self, publish: Publish | Will, topic: str, principal: Principal, own: Headers = ()
    ) -> tuple[Home, Message]:
        """The message to put, and where. Raises when it could not be published in the end."""
        if self._is_elected:
            self._check_led()
        now_ms = self._clock.now_ms()
        due_ms, inner = parse_delayed(topic, now_ms, self._settings.delay_max_s)
        if len(self._pending) >= self._settings.pending_max:
            raise QuotaExceeded(f"more than {self._settings.pending_max} messages are delayed")
        headers = (*to_headers(publish, now_ms=max(due_ms, now_ms)), *own)
        known = ((DUE, b"%d" % due_ms), (BY, principal.name.encode()), *_proof_headers(principal))
        message = Message(inner, publish.payload, secrets.token_bytes(12), (*known, *headers))
        _stream, _target, encoded = self._broker.publisher.admit(message, principal)
        return (self._stream, self._partition, encoded), message

    def _check_led(self) -> None:
        refusal = self._partition.refusal
        if isinstance(refusal, NotLeader):  # the owner hears of it when the leader has it
            if self._broker.publisher.is_elsewhere(self._stream, self._partition):
                return
            raise again(refusal)
        if not self._is_following:
            raise StateLoading("the messages that wait are being read; try again")

    def _appended(self, data: bytes | bytearray) -> None:
        for _info, slices in iterate_batches(data):
            self._note(slices)
        self.look_again()

    def _note(self, slices: Slices) -> None:
        """Read the rows of a batch."""
        for index in range(len(slices)):
            offset, _time, _key, value, headers = slices.record(index)
            done = read_number(headers, DONE, OFFSET_MAX)
            if value is None and done is not None:
                self._pending.discard(done)
            elif value is not None:
                self._pending.add(offset)
                self._remember(read_number(headers, DUE) or 0, offset)

    def _remember(self, due_ms: int, offset: int) -> None:
        if due_ms >= self._horizon_ms:
            return
        heapq.heappush(self._nearest, (due_ms, offset))
        most = self._settings.nearest_max
        if len(self._nearest) > most + most // 4:
            self._nearest.sort()
            # Either all messages of one time are in memory or none; those of the first time always
            # are.
            self._horizon_ms = max(self._nearest[most][0], self._nearest[0][0] + 1)
            del self._nearest[bisect_left(self._nearest, (self._horizon_ms, 0)) :]

    # -- publishing

    def look_again(self) -> None:
        """Set the timer for the next message by the current clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed or self._task is not None:
            return
        if not self._nearest and self._horizon_ms != _NEVER:
            self._start()
        elif self._nearest:
            left_s = (self._nearest[0][0] - self._clock.now_ms()) / 1000
            delay_s = min(max(0.0, left_s), _LOOK_AGAIN_S)
            self._timer = self._loop.call_later(delay_s, self._due)

    def _due(self) -> None:
        self._timer = None
        doubtful = False
        for due_ms, offset in self._take_due():
            if offset < self._opened_end and (self._is_elected or due_ms <= self._opened_ms):
                doubtful = True
                heapq.heappush(self._nearest, (due_ms, offset))
                break
            try:
                record = self._record(offset)
            except Cold:  # a task reads it
                doubtful = True
                heapq.heappush(self._nearest, (due_ms, offset))
                break
            self._publish(offset, record)
        if doubtful:
            self._start()
        else:
            self.look_again()

    def _take_due(self) -> Iterator[tuple[int, int]]:
        now_ms = self._clock.now_ms()
        for _ in range(PASS_RECORDS):
            if not self._nearest or self._nearest[0][0] > now_ms:
                return
            due_ms, offset = heapq.heappop(self._nearest)
            if offset in self._pending and offset not in self._going:
                yield due_ms, offset

    def _record(self, offset: int) -> Record | None:
        source = Source(self._stream, self._partition)
        return self._broker.cursors.record_now(source, offset)

    def _publish(self, offset: int, record: Record | None) -> None:
        if record is None:  # retention took it
            self._pending.discard(offset)
            return
        name = record.key or b""
        own = (TOPIC, DUE, BY, PROOF)
        headers = tuple(pair for pair in record.headers if pair[0] not in own)
        due_ms = read_number(record.headers, DUE) or 0
        by = read_text(record.headers, BY)
        # The time is never before the due one, because the next start looks from there on.
        message = Message(
            record.topic,
            record.value,
            headers=(*headers, (NAME, name)),
            timestamp_ms=max(due_ms, self._clock.now_ms()),
        )
        self._going.add(offset)

        def done(error: OnelogError | None) -> None:
            faults.hit("mqtt.delayed_published")
            self._going.discard(offset)
            if error is None or isinstance(error, HOPELESS):
                if error is not None:
                    _log.warning("a delayed message is dropped", reason=str(error))
                self._finish(name, offset)
            else:
                self._remember(self._clock.now_ms() + _RETRY_MS, offset)
                self.look_again()

        try:
            principal = Principal(by, "mqtt", *_read_proof(record.headers))
            self._broker.publisher.publish((message,), Notice(done), principal=principal)
        except OnelogError as error:
            done(error)

    def _finish(self, name: bytes, offset: int) -> None:
        """Write that a message is done; all of a pass in one batch."""
        self._pending.discard(offset)
        self._done.append((name, offset))
        if len(self._done) == 1:
            self._loop.call_soon(self._write_done)

    def _write_done(self) -> None:
        done, self._done = self._done, []
        if not done:
            return
        builder = BatchBuilder(False)
        now_ms = self._clock.now_ms()
        builder.extend(
            [(None, name, None, ((DONE, b"%d" % offset),), now_ms) for name, offset in done]
        )
        try:
            self._partition.append_built(builder, index_topics=False)
        except OnelogError as error:
            _log.error("delayed messages may be published again", reason=str(error))

    # -- work that takes time

    def _start(self) -> None:
        if self._task is None and not self._closed:
            self._task = self._loop.create_task(self._work())

    async def _work(self) -> None:
        """Read more from the log, and look for messages that an earlier run may have published."""
        try:
            if not self._nearest:
                await self._reload()
            await self._publish_doubtful()
        except OnelogError as error:
            _log.error("delayed messages cannot be read", reason=str(error))
        finally:
            self._task = None
        self.look_again()

    async def _reload(self) -> None:
        self._horizon_ms = _NEVER
        partition = self._partition
        offset, _stable, end = map(int, partition.ends())
        while offset < end:
            read = partial(partition.read_now, Offset(offset), _READ_BYTES)
            data = await partition.until_here(read)
            for info, slices in iterate_batches(data):
                for index in range(len(slices)):
                    place, _time, _key, value, headers = slices.record(index)
                    if value is not None and place in self._pending and place < end:
                        self._remember(read_number(headers, DUE) or 0, place)
                offset = info.last_offset + 1
            await asyncio.sleep(0)

    async def _publish_doubtful(self) -> None:
        """Publish overdue messages from before the start, unless their topic has them."""
        due = list(self._take_due())
        try:
            while due:
                await self._publish_careful(due[0][1])
                del due[0]
        finally:
            for row in due:  # they could not be read: another try
                heapq.heappush(self._nearest, row)

    async def _publish_careful(self, offset: int) -> None:
        record = await self._partition.until_here(partial(self._record, offset))
        name = b"" if record is None else record.key or b""
        is_old = record is not None and offset < self._opened_end
        if is_old and record is not None and await self._is_published(record, name):
            self._finish(name, offset)
        else:
            self._publish(offset, record)

    async def _is_published(self, record: Record, name: bytes) -> bool:
        cursors = self._broker.cursors
        start = Start("time", read_number(record.headers, DUE) or 0)
        filters = (record.topic,)
        sources = cursors.sources(filters).sources
        start = await start.settled(sources)
        places = [Position(*source.key, start.offset_in(source)) for source in sources]
        reading = cursors.reading(filters, places)
        try:
            while True:
                for _index, found in reading.read(PASS_RECORDS):
                    if find_header(found.headers, NAME) == name:
                        return True
                if not reading.is_behind():
                    return False
                await reading.turn()
        finally:
            reading.close()

    async def end(self) -> None:
        """Another node leads: it publishes what waits."""
        self._done.clear()
        await self.close()
        self._pending, self._horizon_ms = OffsetSet(), _NEVER
        self._going.clear()
        self._nearest.clear()

    async def close(self) -> None:
        """Publish no more; waiting messages go out after the next start."""
        self._closed = True
        if self._is_following:
            self._partition.unfollow(self._appended)
            self._is_following = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            await self._task
        self._write_done()


Proof = tuple[str, bool, tuple[str, ...]]


def _proof_headers(principal: Principal) -> Headers:
    proof: Proof = (principal.client_id, principal.certificate, principal.claims)
    return ((PROOF, msgspec.json.encode(proof)),) if any(proof) else ()


def _read_proof(headers: Headers) -> Proof:
    found = find_header(headers, PROOF)
    return ("", False, ()) if found is None else msgspec.json.decode(found, type=Proof)
