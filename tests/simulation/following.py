"""Following: a live feed, tails and a table see what is written, while streams and topics move.

What is checked while the broker runs and after each start:
- the live feed hands out every committed record of its streams from where it began, in order, once:
  a position moves only when what lies before it is out, a gap is read from the log;
- a listener that raises loses nothing; a record that raises even alone is left out, told of, and
  the next ones come;
- a tail sees the same from where it was opened;
- each topic is seen in the order of its publishes, also when it moves to another stream, unless a
  crash came just when new partitions began to count (`log/moves.py`);
- a table holds the last record of every topic, also after a crash that took the end of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from onelog.broker import (
    LOCAL,
    Durability,
    LiveSource,
    Message,
    Record,
    StreamConfig,
    TailCursor,
)
from onelog.broker.live import LISTENER
from onelog.kernel import ATTR_CODEC_MASK, ATTR_CONTROL, ATTR_TRANSACTIONAL
from onelog.record.batch import Marker, build_batch, iterate_batches
from onelog.record.compression import ZSTD
from tests.logs import append_batches
from tests.simulation.world import SETTINGS, Work, World, number_of, read_all

FEED = StreamConfig(name="feed", captures=("feed/#",), partitions=2, segment_bytes=4096)
TXN = StreamConfig(name="txn", captures=("txn",), segment_bytes=4096)
TOPICS = ("feed/1", "feed/2", "feed/3")
SPECIAL = ATTR_CODEC_MASK | ATTR_CONTROL | ATTR_TRANSACTIONAL
UNSEEN_BYTES = 2000
"""What is held for feeds: so little that there are gaps."""

Key = tuple[str, int]
"""Stream and partition."""
Seen = dict[Key, list[int]]
Got = Mapping[Key, Collection[int]]


class Stumble(Exception):
    """What a listener raises."""


class Following(World):
    """Publishers, an operator, a listener that stumbles, tails and a table."""

    settings = msgspec.structs.replace(SETTINGS, flush_interval_s=0.5)

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.attempted: dict[bytes, str] = {}
        self.partitions = FEED.partitions
        """How many there were when an alter was answered."""
        self.is_in_order = True
        self.fed = self.stumbles = self.gaps = self.tailed = self.moved = 0

    def works(self) -> Sequence[Work]:
        """What somebody may do next."""
        return (
            self.publish, self.publish, self.publish, self.publish, self.clear, self.begin_txn,
            self.end_txn, self.alter, self.move, self.follow, self.look, self.look, self.rest,
            self.fail_disk,
        )  # fmt: skip

    async def begin(self) -> None:
        """Follow the end from now on; the table has caught up."""
        self.altering = False
        self.tails: list[tuple[TailCursor, dict[Key, int], Seen]] = []
        self.taken: Seen = {}
        self.left_out: set[tuple[Key, int]] = set()
        self.values: list[bytes] = []
        """What was fed, in this order. What is wrong is told later: whoever raises is isolated."""
        streams = self.broker.streams
        for config in (FEED, TXN):
            if streams.find(config.name) is None:
                await streams.create(config)
        self.partitions = len(streams.get("feed").partitions)
        streams.shared.unseen.limit = UNSEEN_BYTES
        for partition in streams.get("txn").partitions:
            for producer in partition.producers.open_transactions():
                partition.append_marker(Marker.ABORT, producer, 0)
        self.live = self.broker.new_live("listener")
        self.live.start(self)
        self.began = {
            (row.stream.name, int(row.partition.id)): row.position for row in self.live.sources()
        }
        self.open_txns: list[int] = []
        self.table = await self.broker.cursors.open_table("table", ["feed/#"], principal=LOCAL)
        self.check_table(self.everything()[1])

    async def end(self) -> None:
        """The feed stops before the log does."""
        self.gaps += self.broker.streams.shared.unseen.overflows
        self.live.stop()

    def last_words(self) -> None:
        """Where the new partitions counted and the store does not know since when, order may go."""
        grown = len(self.broker.streams.get("feed").partitions) > self.partitions
        self.is_in_order = self.is_in_order and not grown

    # -- the listener

    def deliver(self, source: LiveSource, data: bytes | bytearray) -> int:
        """Take batches up to the first one that the log has to tell of."""
        for info, slices in iterate_batches(data):
            if info.attributes & SPECIAL or self.chance.random() < 0.1:
                break
            for at in range(len(slices)):
                self.take(source, int(slices.offset(at)), slices.value(at) or b"")
        return source.position

    def deliver_records(self, source: LiveSource, records: list[Record]) -> None:
        """Take records that were read back."""
        for record in records:
            key = (record.stream, record.partition)
            if len(records) == 1:
                self.left_out.add((key, int(record.offset)))
            self.take(source, int(record.offset), record.value or b"")
            self.left_out.discard((key, int(record.offset)))

    def take(self, source: LiveSource, offset: int, value: bytes) -> None:
        if self.chance.random() < 0.08:
            source.position = offset
            self.stumbles += 1
            raise Stumble
        key = (source.stream.name, int(source.partition.id))
        self.taken.setdefault(key, []).append(offset)
        self.fed += 1
        if value:
            self.values.append(value)
        source.position = offset + 1

    def release(self, numbers: set[int]) -> set[int]:
        """Nothing is held."""
        del numbers
        return set()

    # -- what clients do

    async def publish(self, topics: Sequence[str] = TOPICS) -> None:
        messages = []
        for _ in range(self.chance.randint(1, 5)):
            topic, value = self.chance.choice(topics), self.next_value((0, 300, 900))
            self.attempted[value] = topic
            messages.append(Message(topic, value))
        self.later(lambda: self.send(messages))

    async def send(self, messages: list[Message]) -> None:
        await self.broker.publish_many(messages, principal=LOCAL)

    async def clear(self) -> None:
        """Publish an empty record: the topic leaves the table."""
        self.later(lambda: self.send([Message(self.chance.choice(TOPICS), b"")]))

    async def begin_txn(self) -> None:
        """Records of a transaction, or compressed ones: the feed has to read them back."""
        self.count += 1
        rows = []
        for _ in range(self.chance.randint(1, 3)):
            value = self.next_value((10, 300))
            self.attempted[value] = "txn"
            rows.append((None, b"k", value, (), self.clock.now_ms()))
        log = self.broker.streams.get("txn").partitions[0]
        if self.chance.random() < 0.4:
            data = bytearray(build_batch(rows, codec=ZSTD))
        else:
            producer = (self.count, 0, 0)
            data = bytearray(build_batch(rows, attributes=ATTR_TRANSACTIONAL, producer=producer))
            self.open_txns.append(self.count)
        append_batches(log, data)

    async def end_txn(self) -> None:
        if self.open_txns:
            producer = self.open_txns.pop(self.chance.randrange(len(self.open_txns)))
            marker = self.chance.choice((Marker.COMMIT, Marker.COMMIT, Marker.ABORT))
            self.broker.streams.get("txn").partitions[0].append_marker(marker, producer, 0)

    async def alter(self) -> None:
        """Another durability, or more partitions, while batches wait to be seen."""
        if self.altering:
            return
        config = self.broker.streams.get("feed").config
        if self.chance.random() < 0.3:
            wanted = msgspec.structs.replace(config, partitions=min(config.partitions + 1, 3))
        else:
            other = self.chance.choice((Durability.OS, Durability.FSYNC))
            wanted = msgspec.structs.replace(config, durability=other)
        self.altering = True

        async def change() -> None:
            await self.broker.streams.alter(wanted)
            self.partitions, self.altering = wanted.partitions, False

        self.later(change)

    async def move(self) -> None:
        """A topic gets a stream of its own while it is written to."""
        topic = self.chance.choice(TOPICS)
        name = topic.replace("/", "-")
        if self.chance.random() < 0.4 and self.broker.streams.find(name) is None:
            durability = self.chance.choice((Durability.OS, Durability.FSYNC))
            config = StreamConfig(
                name=name, captures=(topic,), segment_bytes=4096, durability=durability
            )
            await self.publish((topic,))
            await self.broker.streams.create(config)
            await self.publish((topic,))
            self.moved += 1

    async def follow(self) -> None:
        """A tail begins, or one of them reads on."""
        if not self.tails or self.chance.random() < 0.3:
            tail = self.broker.cursors.open_tail(["feed/#", "txn"], principal=LOCAL)
            ids = {row.record.id: row.name for row in self.broker.streams.streams()}
            began = {(ids[row.stream_id], row.partition): row.offset for row in tail.positions()}
            self.tails.append((tail, began, {}))
        tail, _began, seen = self.chance.choice(self.tails)
        for row in tail.fetch(self.chance.randint(1, 20)):
            seen.setdefault((row.stream, row.partition), []).append(int(row.offset))
            self.tailed += 1

    async def look(self) -> None:
        """Everybody who follows has come as far as they say."""
        for _ in range(3):
            await asyncio.sleep(0)
        if not self.sick:
            self.check()

    # -- what must hold

    def everything(self) -> tuple[dict[Key, list[int]], dict[str, bytes]]:
        """Every committed record by partition, and the last value of each topic."""
        found: dict[Key, list[int]] = {}
        last: dict[str, bytes] = {}
        values: list[bytes] = []
        for row in read_all(self.broker, ["feed/#", "txn"]):
            found.setdefault((row.stream, row.partition), []).append(int(row.offset))
            last[row.topic] = row.value or b""
            if row.value:
                values.append(row.value)
                assert self.attempted.get(row.value) == row.topic, f"{row} was never sent so"
        self.check_values(values, "a reader")
        return found, last

    def check(self) -> None:
        found, last = self.everything()
        self.check_values(self.values, "the feed")
        upto = {
            (row.stream.name, int(row.partition.id)): row.position for row in self.live.sources()
        }
        got = {key: set(offsets) for key, offsets in self.taken.items()}
        for key, offset in self.left_out:
            got.setdefault(key, set()).add(offset)
        for key, offsets in self.taken.items():
            assert offsets == sorted(set(offsets)), f"{key}: fed twice, or in another order"
        self.check_complete("the feed", found, self.began, upto, got)
        ids = {row.record.id: row.name for row in self.broker.streams.streams()}
        for tail, began, seen in self.tails:
            upto = {(ids[row.stream_id], row.partition): row.offset for row in tail.positions()}
            self.check_complete("a tail", found, began, upto, seen)
        self.check_table(last)

    def check_complete(
        self, who: str, found: Seen, began: dict[Key, int], upto: dict[Key, int], got: Got
    ) -> None:
        for key, end in upto.items():
            start = began.get(key, 0)
            wanted = [offset for offset in found.get(key, ()) if start <= offset < end]
            have = sorted(got.get(key, ()))
            assert have == wanted, f"{who} has {have} of {key}, and not {wanted}"

    def check_values(self, values: Iterable[bytes], who: str) -> None:
        """Each topic in the order of its publishes, and nothing that nobody sent."""
        order: dict[str, int] = {}
        for value in values:
            topic = self.attempted.get(value)
            assert topic is not None, f"{who} has {value[:9]!r}, which nobody sent"
            if not self.is_in_order:
                continue
            assert order.get(topic, 0) < number_of(value), f"{who}: {topic} in another order"
            order[topic] = number_of(value)

    def check_table(self, last: dict[str, bytes]) -> None:
        if not self.is_in_order:
            return
        for topic in TOPICS:
            record = self.table.get(topic)
            value = b"" if record is None else record.value
            wanted = last.get(topic, b"")
            assert record is None or record.topic == topic, f"{topic}: the table has {record}"
            assert value == wanted, f"{topic}: the table has {value!r:.30}, not {wanted!r:.30}"

    async def finish(self) -> None:
        """Everything comes to its end."""
        await self.publish()
        for _ in range(3):
            await self.rest()
        await self.look()
        for source in self.live.sources():
            end = source.partition.end_offset
            assert source.position == end, f"the feed stands at {source.position} of {end}"
        told = self.broker.troubles.count(LISTENER)
        assert told >= len(self.left_out), f"{told} are told of, not {self.left_out}"
