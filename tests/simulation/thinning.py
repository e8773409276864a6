"""Retention and thinning: what a queue has not settled stays, however old; the rest may leave.

A routed queue is told of every record by a live feed, as AMQP's are, and settles most of them.
What is checked after each start and while the broker runs:
- every record that the queue has not settled is at its offset, byte for byte (pins);
- after a crash the queue holds every record that it did not ask to settle, and none whose
  settlement was answered (I3): what it was told of since it was saved is routed to it again;
- retention takes the oldest only, and leaves as many bytes as the stream may keep;
- nothing is there that nobody sent, offsets never move.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from onelog.broker import (
    LOCAL,
    LiveSource,
    Message,
    Record,
    Retention,
    RoutedCursor,
    StreamConfig,
)
from onelog.kernel import scan_batches
from onelog.record.batch import iterate_batches
from tests.simulation.world import Work, World, rows_of

RING = StreamConfig(
    name="ring",
    captures=("ring/#",),
    segment_bytes=4096,
    retention=Retention(age_ms=-1, bytes=8192),
)
TAKEN = "ring/1"
"""The topic that the queue takes."""


class Thinning(World):
    """A writer, a queue that settles most, and an operator who changes the retention."""

    steps = (12, 30)

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.attempted: dict[bytes, str] = {}
        self.acknowledged: dict[int, bytes] = {}
        self.settling: set[int] = set()
        self.settled: set[int] = set()
        self.config = RING
        self.asked: list[StreamConfig] = []
        self.least_bytes = RING.retention.bytes
        """The least that the stream was ever told to keep."""
        self.thinned = self.trimmed = 0

    def works(self) -> Sequence[Work]:
        """What somebody may do next."""
        return (
            self.publish, self.publish, self.publish, self.publish, self.settle, self.settle,
            self.alter, self.rest, self.rest, self.rest, self.look, self.fail_disk,
        )  # fmt: skip

    async def begin(self) -> None:
        """Give the queue its places again, as AMQP's recovery does, and check them."""
        self.altering = False
        if self.broker.streams.find("ring") is None:
            await self.broker.streams.create(RING)
        found = self.broker.streams.get("ring").config
        assert found in (self.config, *self.asked), f"the stream is {found}, nobody asked for that"
        self.config, self.asked = found, []
        self.live = self.broker.new_live("routed")
        kept = self.broker.cursors.kept("queue")
        if kept is None:
            self.queue = RoutedCursor("queue", (TAKEN,))
        else:
            self.queue = RoutedCursor.restore(kept, self.broker.cursors.parts("queue"))
        self.live.start(self)
        self.route_again()
        self.queue.position_of = self.position_of
        await self.broker.cursors.adopt(self.queue)
        self.check()

    async def end(self) -> None:
        """The feed stops before the log does."""
        counters = self.broker.maintenance.counters
        self.thinned += counters.thinnings
        self.trimmed += counters.segments_deleted
        self.live.stop()

    # -- routing

    def source(self) -> LiveSource:
        stream = self.broker.streams.get("ring")
        source = self.live.find((stream.record.id, 0))
        assert source is not None
        return source

    def position_of(self, key: tuple[str, int]) -> int | None:
        source = self.live.find(key)
        return None if source is None else source.position

    def route_again(self) -> None:
        """What came after the position that the queue kept."""
        source = self.source()
        position, end = self.queue.routed_to(source.key) or 0, source.position
        self.queue.set_routed_to(source.key, end)
        while position < end:
            records, position = self.live.read(source, position, end)
            for record in records:
                if record.topic == TAKEN and not self.queue.holds(source.key, record.offset):
                    self.queue.note(source.key, record.offset)

    def deliver(self, source: LiveSource, data: bytes | bytearray) -> int:
        """Route batches that became visible."""
        for _info, slices in iterate_batches(data):
            for at in range(len(slices)):
                value = slices.value(at) or b""
                if self.attempted.get(value) == TAKEN:
                    self.queue.note(source.key, int(slices.offset(at)))
        return scan_batches(data)[-1].last_offset + 1

    def deliver_records(self, source: LiveSource, records: list[Record]) -> None:
        """Route records that were read back."""
        for record in records:
            if record.topic == TAKEN:
                self.queue.note(source.key, record.offset)

    def release(self, numbers: set[int]) -> set[int]:
        """Nothing is held."""
        del numbers
        return set()

    # -- what clients do

    async def publish(self) -> None:
        messages = []
        for _ in range(self.chance.randint(1, 4)):
            topic = self.chance.choice((TAKEN, TAKEN, "ring/2"))
            value = self.next_value((10, 800, 1500))
            self.attempted[value] = topic
            messages.append(Message(topic, value))

        async def tell() -> None:
            places = await self.broker.publish_many(messages, principal=LOCAL)
            for row, message in zip(places, messages, strict=True):
                self.acknowledged[int(row.offset)] = message.value or b""

        self.later(tell)

    async def settle(self) -> None:
        """Settle most of what there is, and wait until that is durable."""
        key = self.source().key
        chosen = [at for at in self.queue.offsets(key) if self.chance.random() < 0.8]
        for offset in chosen:
            assert offset not in self.settled, f"{offset} was settled, and comes again"
            self.queue.settle(key, offset)
        self.settling.update(chosen)
        await self.broker.cursors.save(self.queue)
        self.settled.update(chosen)

    async def alter(self) -> None:
        """Keep more, or less, or what is not consumed."""
        if self.altering:
            return
        retention = Retention(
            age_ms=-1,
            bytes=self.chance.choice((4096, 8192, 16384)),
            consumed=self.chance.random() < 0.2,
        )
        wanted = msgspec.structs.replace(self.config, retention=retention)
        self.altering, self.asked = True, [wanted]
        self.least_bytes = min(self.least_bytes, 0 if retention.consumed else retention.bytes)

        async def change() -> None:
            await self.broker.streams.alter(wanted)
            self.config, self.asked, self.altering = wanted, [], False

        self.later(change)

    async def look(self) -> None:
        self.check()

    # -- what must hold

    def check(self) -> None:
        partition = self.broker.streams.get("ring").partitions[0]
        if partition.stopped is not None:
            return
        start, end = int(partition.start_offset), int(partition.high_watermark)
        held = {offset: value or b"" for offset, (_key, value) in rows_of(partition).items()}
        strange = [value[:9] for value in held.values() if value not in self.attempted]
        assert not strange, f"nobody sent {strange[:3]}"
        for offset, value in self.acknowledged.items():
            if offset in held:
                assert held[offset] == value, f"{offset} is another record now"
                continue
            assert offset < end, f"{offset} was acknowledged, and the end is {end}"
            needed = self.attempted[value] == TAKEN and offset not in self.settling
            assert not needed, f"{offset} is gone, and the queue needs it"
        if start or len(held) < end:
            size = partition.log.size_bytes
            assert size >= self.least_bytes, f"only {size} bytes are left"
        self.check_queue(held)

    def check_queue(self, held: dict[int, bytes]) -> None:
        source = self.source()
        places = set(self.queue.offsets(source.key))
        assert not places & self.settled, f"settled records are back: {places & self.settled}"
        taken = {at for at, value in held.items() if self.attempted[value] == TAKEN}
        lost = {at for at in taken if at < source.position} - places - self.settling
        assert not lost, f"the queue has lost {sorted(lost)[:5]}"
        # What was settled and not saved yet may have left: an open queue pins as it stands.
        strange = places - taken - self.settling
        assert not strange, f"the queue holds {sorted(strange)[:5]}, which is nothing"
        assert self.queue.count == len(places), "the queue counts wrongly"

    async def finish(self) -> None:
        """Once more when maintenance has had its time."""
        for _ in range(5):
            await self.rest()
        assert self.source().position == self.source().partition.end_offset, "the feed stands still"
        self.check()
