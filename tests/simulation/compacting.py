"""Altering: a stream's durability, partitions and compaction change while it is written to.

What is checked after each start and while the broker runs:
- every record that was acknowledged or seen is at its offset, or compaction took it: then that was
  asked for, and a newer record of its key is there, or its key was deleted;
- a deleted key does not come back; offsets never move; nothing is there that nobody sent;
- a reader of the whole stream sees each topic in order, over all the partitions that it grew,
  unless a crash came just when they began to count (`log/moves.py`);
- an alter that was answered holds after a crash, and one that was not holds whole or not at all;
- what was answered, or seen, under `fsync` outlives the power, also when the stream was `os` before
  it; under `os` a power cut takes only the end of a partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from onelog.broker import (
    LOCAL,
    Cleanup,
    Compaction,
    Durability,
    Message,
    StreamConfig,
)
from tests.simulation.world import SETTINGS, Row, Work, World, number_of, read_all, rows_of

KEYS = StreamConfig(
    name="keys",
    captures=("keys/#",),
    segment_bytes=4096,
    cleanup=Cleanup.DELETE,
    compaction=Compaction(min_dirty_ratio=0.01, tombstone_ms=300),
)
TOPICS = ("keys/1", "keys/2", "keys/3")
PARTITIONS_MAX = 3
Place = tuple[int, int]
"""Partition and offset."""


class Compacting(World):
    """Writers of a few keys, and an operator who cannot make up their mind."""

    settings = msgspec.structs.replace(SETTINGS, flush_interval_s=1.0)
    steps = (8, 24)

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.attempted: dict[bytes, tuple[str, bytes]] = {}
        """Value → topic and key."""
        self.deleting: set[bytes] = set()
        """Keys that somebody wanted to delete."""
        self.known: dict[Place, Row] = {}
        """What was acknowledged or seen."""
        self.firm: set[Place] = set()
        """Of that, what a power cut must not take."""
        self.config = self.on_engine(KEYS)
        """As the last alter that was answered left it."""
        self.asked: list[StreamConfig] = []
        """Alters that were not answered."""
        self.may_compact = False
        self.is_in_order = True
        self.compacted = 0
        self.altered = 0

    def works(self) -> Sequence[Work]:
        """What somebody may do next."""
        return (
            self.publish, self.publish, self.publish, self.publish, self.publish, self.alter,
            self.alter, self.rest, self.rest, self.rest, self.read, self.fail_disk,
        )  # fmt: skip

    async def begin(self) -> None:
        """Check what was kept."""
        self.altering = False
        if self.broker.streams.find("keys") is None:
            await self.broker.streams.create(self.config)
        found = self.broker.streams.get("keys").config
        assert found in (self.config, *self.asked), f"the stream is {found}, nobody asked for that"
        self.config, self.asked = found, []
        self.check()

    async def end(self) -> None:
        """Count what was done."""
        self.compacted += self.broker.maintenance.counters.records_compacted

    def last_words(self) -> None:
        """Where the new partitions counted and the store does not know since when, order may go."""
        grown = len(self.broker.streams.get("keys").partitions) > self.config.partitions
        self.is_in_order = self.is_in_order and not grown

    # -- what clients do

    @property
    def is_firm(self) -> bool:
        """Whether what is answered now has to outlive the power."""
        return all(row.durability is Durability.FSYNC for row in (self.config, *self.asked))

    async def publish(self) -> None:
        messages = []
        for _ in range(self.chance.randint(1, 4)):
            topic, key = self.chance.choice(TOPICS), b"k%d" % self.chance.randint(1, 4)
            if self.chance.random() < 0.15:
                self.deleting.add(key)
                messages.append(Message(topic, None, key))
            else:
                value = self.next_value((10, 800, 1500))
                self.attempted[value] = (topic, key)
                messages.append(Message(topic, value, key))

        async def tell() -> None:
            places = await self.broker.publish_many(messages, principal=LOCAL)
            for row, message in zip(places, messages, strict=True):
                self.note((int(row.partition), int(row.offset)), (message.key, message.value))

        self.later(tell)

    def note(self, place: Place, row: Row) -> None:
        """Somebody was told that a record is there."""
        known = self.known.setdefault(place, row)
        assert known == row, f"{place}: {row!r:.40} in the place of {known!r:.40}"
        if self.is_firm:
            self.firm.add(place)

    async def alter(self) -> None:
        """Ask for another configuration; one at a time."""
        if self.altering:
            return
        changes: dict[str, Any] = self.chance.choice(
            (
                {"durability": Durability.OS},
                {"durability": Durability.FSYNC},
                {"cleanup": Cleanup.COMPACT},
                {"cleanup": Cleanup.COMPACT},
                {"cleanup": Cleanup.DELETE},
                {"partitions": min(self.config.partitions + 1, PARTITIONS_MAX)},
            )
        )
        wanted = msgspec.structs.replace(self.config, **changes)
        self.altering = True
        self.asked = [wanted]
        self.may_compact = self.may_compact or wanted.cleanup is Cleanup.COMPACT

        async def change() -> None:
            await self.broker.streams.alter(wanted)
            self.config, self.asked, self.altering = wanted, [], False
            self.altered += 1

        self.later(change)

    async def read(self) -> None:
        self.check()

    # -- what must hold

    def check(self) -> None:
        """Look at every partition, then read all of it in order."""
        stream = self.broker.streams.get("keys")
        for partition in stream.partitions:
            if partition.stopped is None:
                if self.is_dark:
                    self.forget_lost(int(partition.id), int(partition.end_offset))
                self.check_partition(int(partition.id), rows_of(partition))
        if self.is_in_order and not self.sick:
            self.check_order()

    def check_partition(self, number: int, held: dict[int, Row]) -> None:
        for offset, (key, value) in held.items():
            self.note((number, offset), (key, value))
            if value is not None:
                known = self.attempted.get(value)
                assert known is not None and known[1] == key, f"nobody sent {value[:9]!r}"
            else:
                assert key in self.deleting, f"nobody deleted {key!r}"
        last: dict[bytes | None, int] = {}
        for at, offset in sorted(self.known):
            if at == number:
                last[self.known[at, offset][0]] = offset
                if not self.may_compact:
                    assert offset in held, f"{number}/{offset} is lost"
        for key, newest in last.items():
            offsets = [offset for offset, row in held.items() if row[0] == key]
            if newest not in held:
                _key, value = self.known[number, newest]
                assert value is None, f"{number}/{newest} is lost, the last of {key!r}"
                assert not offsets, f"{number}/{offsets}: {key!r} was deleted at {newest}"

    def forget_lost(self, number: int, end: int) -> None:
        """The power took the end of a partition whose durability was `os`."""
        for place in [row for row in self.known if row[0] == number and row[1] >= end]:
            assert place not in self.firm, f"{place} is lost, and the log ends at {end}"
            del self.known[place]

    def check_order(self) -> None:
        last: dict[str, int] = {}
        for row in read_all(self.broker, ["keys/#"]):
            if row.value is not None:
                number = number_of(row.value)
                assert self.attempted[row.value][0] == row.topic
                assert last.get(row.topic, 0) < number, f"{row.topic}: the order changed"
                last[row.topic] = number

    async def finish(self) -> None:
        """Everything is still there when maintenance has had its time."""
        for _ in range(4):
            await self.rest()
        self.check()
