"""One seed: a broker is used from all sides, dies a few times, and must have kept its promises.

What is checked after each start, against what the clients of this run were told:
- I4, I5: every acknowledged record of a stream with `fsync` is at its offset, offsets are dense,
  per topic the order is that of the attempts, and nothing is there twice or that nobody sent (I1);
- ADR 2: what any reader ever saw is there;
- what was trimmed stays trimmed, and no more than was asked for;
- a committed position is not behind what was answered, nor ahead of what was committed;
- what a queue or a session settled with an answer does not come again, and the rest does (I3);
- streams whose creation or deletion was answered are there or gone;
- a stream with `os` has lost nothing to a kill, and to a power cut only its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onelog.broker import (
    EARLIEST,
    LOCAL,
    Durability,
    Message,
    QueueSettings,
    StreamConfig,
)
from tests.simulation.world import Work, World, number_of, rows_of

LOOSE = StreamConfig(
    name="loose", captures=("loose/#",), durability=Durability.OS, segment_bytes=4096
)
Place = tuple[str, int]
"""Stream and offset; each has one partition."""


class Life(World):
    """Publishers, a reader, a queue, a session, and an operator."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.attempted: dict[bytes, str] = {}
        """Value → topic."""
        self.acknowledged: dict[Place, bytes] = {}
        self.seen: dict[Place, bytes] = {}
        self.trim_asked = self.trimmed = 0
        self.committed = self.commit_asked = 0
        self.settling: dict[str, set[int]] = {"queue": set(), "session": set()}
        self.settled: dict[str, set[int]] = {"queue": set(), "session": set()}
        self.made: set[str] = set()
        self.unmaking: set[str] = set()
        self.gone: set[str] = set()

    def works(self) -> Sequence[Work]:
        """What somebody may do next."""
        return (
            self.publish, self.publish, self.publish, self.publish, self.rest, self.read,
            self.take_queue, self.take_session, self.trim, self.make_stream, self.fail_disk,
        )  # fmt: skip

    async def begin(self) -> None:
        """Check what was kept, and go on."""
        if self.broker.streams.find("loose") is None:
            await self.broker.streams.create(self.on_engine(LOOSE))
        self.check_streams()
        for name in ("main", "loose"):
            self.check_log(name)
        cursors = self.broker.cursors
        self.reader = await cursors.open_offset("reader", ["#"], start=EARLIEST, principal=LOCAL)
        self.check_committed()
        self.queue = await cursors.open_queue(
            "queue", ["keep/#"], start=EARLIEST, settings=QueueSettings(in_flight_max=100),
            principal=LOCAL,
        )  # fmt: skip
        self.session = await cursors.open_session(
            "session", ["keep/#"], start=EARLIEST, window=100, principal=LOCAL
        )
        self.held = {row.packet_id: row.record for row in self.session.redeliver()}

    # -- what clients do

    async def publish(self) -> None:
        messages = []
        for _ in range(self.chance.randint(1, 4)):
            topic = self.chance.choice(("keep/1", "keep/2", "loose/1"))
            value = self.next_value()
            self.attempted[value] = topic
            messages.append(Message(topic, value))

        async def tell() -> None:
            places = await self.broker.publish_many(messages, principal=LOCAL)
            for place, message in zip(places, messages, strict=True):
                self.acknowledged[place.stream, int(place.offset)] = message.value or b""

        self.later(tell)

    async def read(self) -> None:
        for record in self.reader.fetch(20):
            self.see(record)
        self.reader.commit_read()
        asked = {row.stream_id: row.offset for row in self.reader.committed()}
        main = self.broker.streams.get("main").record.id
        offset = int(asked.get(main, 0))
        self.commit_asked = max(self.commit_asked, offset)
        await self.broker.cursors.save(self.reader)
        self.committed = max(self.committed, offset)

    def see(self, record: Any) -> None:
        self.seen[record.stream, int(record.offset)] = record.value

    async def take_queue(self) -> None:
        acked = set()
        for delivery in self.queue.acquire("c", 5):
            self.see(delivery.record)
            offset = int(delivery.record.offset)
            assert offset not in self.settled["queue"], f"the queue gives {offset} again"
            if self.chance.random() < 0.6:
                self.queue.ack(delivery.token)
                acked.add(offset)
            else:
                self.queue.release(delivery.token)
        self.settling["queue"] |= acked
        await self.broker.cursors.save(self.queue)
        self.settled["queue"] |= acked

    async def take_session(self) -> None:
        self.held |= {row.packet_id: row.record for row in self.session.fetch(5)}
        acked = set()
        for packet_id in [row for row in self.held if self.chance.random() < 0.7]:
            record = self.held.pop(packet_id)
            if record is not None:
                self.see(record)
                assert int(record.offset) not in self.settled["session"], "the session gives again"
                acked.add(int(record.offset))
            self.session.acknowledge(packet_id)
        self.settling["session"] |= acked
        await self.broker.cursors.save(self.session)
        self.settled["session"] |= acked

    async def trim(self) -> None:
        if self.chance.random() < 0.7:
            return
        partition = self.broker.streams.get("main").partitions[0]
        before = self.chance.randint(0, int(partition.high_watermark))
        self.trim_asked = max(self.trim_asked, before)
        await self.broker.delete_records("main", 0, before)
        self.trimmed = max(self.trimmed, before)

    async def make_stream(self) -> None:
        there = sorted(self.made - self.unmaking)
        if there and self.chance.random() < 0.5:
            name = self.chance.choice(there)
            self.unmaking.add(name)
            await self.broker.streams.delete(name)
            self.gone.add(name)
        else:
            name = f"made-{self.count}"
            self.count += 1
            config = StreamConfig(name=name, captures=(f"{name}/#",))
            await self.broker.streams.create(self.on_engine(config))
            self.made.add(name)

    # -- what must hold

    def check_streams(self) -> None:
        there = {stream.name for stream in self.broker.streams.streams()}
        assert self.made - self.unmaking <= there, "a stream is lost"
        assert not self.gone & there, "a deleted stream is back"

    def check_log(self, name: str) -> None:
        partition = self.broker.streams.get(name).partitions[0]
        start, end = int(partition.start_offset), int(partition.end_offset)
        held = {offset: value or b"" for offset, (_key, value) in rows_of(partition).items()}
        assert list(held) == list(range(start, end)), f"{name}: offsets are not dense"
        strange = [value for value in held.values() if value not in self.attempted]
        assert not strange, f"{name}: nobody sent {strange[:2]}"
        assert len(set(held.values())) == len(held), f"{name}: a record is there twice"
        for topic in ("keep/1", "keep/2", "loose/1"):
            numbers = [number_of(v) for v in held.values() if self.attempted[v] == topic]
            assert numbers == sorted(numbers), f"{topic}: the order changed"
        if name == "main":
            assert self.trimmed <= start <= self.trim_asked, f"{start} is not what was trimmed"
        if name == "loose" and self.is_dark:
            for known in (self.acknowledged, self.seen):
                for place in [p for p in known if p[0] == name and p[1] >= end]:
                    del known[place]
        for known, what in ((self.acknowledged, "acknowledged"), (self.seen, "seen")):
            for (stream, offset), value in known.items():
                if stream == name and offset >= start:
                    assert held.get(offset) == value, f"{name}: {what} {offset} is lost"

    def check_committed(self) -> None:
        main = self.broker.streams.get("main").record.id
        found = {row.stream_id: int(row.offset) for row in self.reader.committed()}
        offset = found.get(main, 0)
        assert self.committed <= offset <= self.commit_asked, "a commit is lost"

    async def finish(self) -> None:
        """Everything that was not settled comes, once."""
        partition = self.broker.streams.get("main").partitions[0]
        everything = set(rows_of(partition))
        left = []
        while more := self.queue.acquire("c", 50):
            left += [int(row.record.offset) for row in more]
            for row in more:
                self.queue.ack(row.token)
        self.check_rest("queue", left, everything)
        left = [int(row.offset) for row in self.held.values() if row is not None]
        for packet_id in self.held:
            self.session.acknowledge(packet_id)
        while rows := self.session.fetch(50):
            for row in rows:
                assert row.record is not None
                left.append(int(row.record.offset))
                self.session.acknowledge(row.packet_id)
        self.check_rest("session", left, everything)

    def check_rest(self, name: str, left: list[int], everything: set[int]) -> None:
        assert len(left) == len(set(left)), f"{name}: a record comes twice"
        assert not self.settled[name] & set(left), f"{name}: a settled record is back"
        lost = everything - set(left) - self.settling[name]
        assert not lost, f"{name}: {sorted(lost)[:5]} never come"
