"""The reader against a naive model: any batches, any filter, any position, any bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onelog.base.clock import ManualClock
from onelog.base.ids import Offset, PartitionId
from onelog.base.topics import matches
from onelog.cursors import reader
from onelog.cursors.reader import read_at, read_records
from onelog.cursors.sources import Source, SourceSet
from onelog.kernel import ATTR_TRANSACTIONAL, keep_records
from onelog.log.config import StreamConfig
from onelog.log.partition import Durability, Partition
from onelog.log.shared import Shared
from onelog.log.stream import Stream, StreamRecord
from onelog.log.syncer import Syncer
from onelog.observe.troubles import Troubles
from onelog.record.batch import Marker, build_batch, compress_batch
from onelog.storage.engine import LogSettings, PartitionKey, PartitionLog
from onelog.storage.memory import MemoryEngine
from tests.logs import append_batches

TOPICS = ("a", "a/b", "a/b/c", "a/c", "b", "b/c", "$s/a")
FILTERS = ("a", "a/b", "#", "+", "a/#", "+/c", "a/+", "$s/a", "$s/#", "+/a", "b/c", "z")
PRODUCERS = (11, 12)


class Plain(NamedTuple):
    """A batch: its topics, its codec, the places that compaction takes out."""

    topics: list[str]
    codec: int
    gone: frozenset[int]


class InTxn(NamedTuple):
    """A batch of a producer's transaction."""

    producer: int
    topics: list[str]
    codec: int


class End(NamedTuple):
    """The end of a producer's transaction."""

    producer: int
    marker: Marker


class Known(NamedTuple):
    """What the model remembers of a record."""

    offset: int
    topic: str
    producer: int
    txn: int


topics = st.lists(st.sampled_from(TOPICS), min_size=1, max_size=5)
codecs = st.sampled_from((0, 0, 0, 1, 2, 3, 4))
steps = st.lists(
    st.one_of(
        st.builds(Plain, topics, codecs, st.frozensets(st.integers(0, 4), max_size=4)),
        st.builds(InTxn, st.sampled_from(PRODUCERS), topics, codecs),
        st.builds(End, st.sampled_from(PRODUCERS), st.sampled_from(Marker)),
    ),
    max_size=14,
)


class World:
    """A partition and the model of what it holds."""

    def __init__(self, syncer: Syncer, topic_index: bool) -> None:
        clock = ManualClock()
        self.engine = MemoryEngine(clock)
        key = PartitionKey("s-1", PartitionId(0))
        log: PartitionLog = self.engine.open(key, LogSettings(topic_index=topic_index))
        self.partition = Partition(
            "s",
            PartitionId(0),
            log,
            durability=Durability.MEMORY,
            message_bytes_max=1 << 20,
            shared=Shared(syncer, clock, Troubles(clock)),
        )
        record = StreamRecord(
            id="s-1", config=StreamConfig(name="s", captures=("#",)), created_ms=0
        )
        self.source = Source(Stream(record, [self.partition]), self.partition)
        self.records: list[Known] = []
        self.open: dict[int, int] = {}
        self.aborted: set[int] = set()
        self._txn = 0
        self._sequences = dict.fromkeys(PRODUCERS, 0)

    def apply(self, step: Plain | InTxn | End) -> None:
        """Write one step to the log and to the model."""
        base = int(self.partition.end_offset)
        if isinstance(step, End):
            txn = self.open.pop(step.producer, None)
            if txn is not None:
                if step.marker is Marker.ABORT:
                    self.aborted.add(txn)
                self.partition.append_marker(step.marker, step.producer, 0)
            return
        rows = [
            (topic.encode(), f"k{at}".encode(), f"{base + at}".encode(), (), 1_000 + base + at)
            for at, topic in enumerate(step.topics)
        ]
        if isinstance(step, InTxn):
            txn = self.open.get(step.producer)
            if txn is None:
                self._txn += 1
                txn = self.open[step.producer] = self._txn
            producer = (step.producer, 0, self._sequences[step.producer])
            self._sequences[step.producer] += len(rows)
            batch = build_batch(
                rows, tag_topics=True, attributes=ATTR_TRANSACTIONAL, producer=producer
            )
            gone: frozenset[int] = frozenset()
            owner = step.producer
        else:
            batch, txn, gone, owner = build_batch(rows, tag_topics=True), 0, step.gone, -1
        if gone:
            flags = bytes(at not in gone for at in range(len(rows)))
            batch = keep_records(batch, 0, flags)
        if step.codec and any(at not in gone for at in range(len(rows))):
            batch = compress_batch(batch, step.codec)
        data = bytearray(batch)
        append_batches(self.partition, data)
        self.records += (
            Known(base + at, topic, owner, txn)
            for at, topic in enumerate(step.topics)
            if at not in gone
        )

    def visible(self, text: str | tuple[str, ...], start: int) -> list[tuple[int, str]]:
        """What a reader must see from `start` on."""
        filters = (text,) if isinstance(text, str) else text
        stable = min(
            (row.offset for row in self.records if row.txn in self.open.values() and row.txn),
            default=int(self.partition.end_offset),
        )
        return [
            (row.offset, row.topic)
            for row in self.records
            if start <= row.offset < stable
            and row.txn not in self.aborted
            and any(matches(one, row.topic) for one in filters)
        ]


def read(
    world: World, wanted: SourceSet, start: int, limit: int, max_bytes: int
) -> list[tuple[int, str]]:
    """Read to the end in small steps; each of them makes progress and keeps its bounds."""
    found: list[tuple[int, str]] = []
    position = start
    end = world.partition.last_stable_offset
    while position < end:
        records, following = read_records(
            wanted, world.source, Offset(position), limit, max_bytes=max_bytes
        )
        assert len(records) <= limit
        assert following > position, "a read makes progress"
        assert following <= end
        assert all(position <= record.offset < following for record in records)
        for record in records:
            assert record.value == str(record.offset).encode()
            assert record.timestamp_ms == 1_000 + record.offset
        found += ((record.offset, record.topic) for record in records)
        position = following
    return found


@pytest.fixture(scope="module")
def syncer() -> Iterator[Syncer]:
    loop = asyncio.new_event_loop()

    async def make() -> Syncer:
        return Syncer(1)

    made = loop.run_until_complete(make())
    yield made
    loop.run_until_complete(made.close())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    script=steps,
    text=st.sampled_from(FILTERS),
    start=st.integers(0, 20),
    limit=st.integers(1, 6),
    max_bytes=st.sampled_from((1, 100, 300, 1 << 20)),
    span=st.sampled_from((0, 1, 64)),
    first_bytes=st.sampled_from((1, 150, 16_384)),
)
def test_the_reader_sees_what_the_model_sees(
    syncer: Syncer,
    script: list[Plain | InTxn | End],
    text: str,
    start: int,
    limit: int,
    max_bytes: int,
    span: int,
    first_bytes: int,
) -> None:
    """I2, I8: committed records only; through the index and by scanning alike."""
    answers = []
    for topic_index in (False, True):
        world = World(syncer, topic_index)
        for step in script:
            world.apply(step)
        wanted = SourceSet((text,), (world.source,), 0)
        with (
            patch.object(reader, "INDEX_SPAN", span),
            patch.object(reader, "FIRST_BYTES", first_bytes),
            patch.object(reader, "BYTES_PER_RECORD", first_bytes),
        ):
            answers.append(read(world, wanted, start, limit, max_bytes))
        assert answers[-1] == world.visible(text, start)
        for offset in range(int(world.partition.end_offset)):
            one = read_at(wanted, world.source, Offset(offset))
            seen = (offset, one.topic) if one is not None else None
            assert (seen is not None) == (seen in world.visible(text, 0))
    assert answers[0] == answers[1]


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    script=steps,
    filters=st.lists(st.sampled_from(FILTERS), min_size=2, max_size=4, unique=True),
    limit=st.integers(1, 6),
)
def test_several_filters_see_each_record_once(
    syncer: Syncer, script: list[Plain | InTxn | End], filters: list[str], limit: int
) -> None:
    """I2: overlapping filters of one cursor do not repeat a record."""
    world = World(syncer, True)
    for step in script:
        world.apply(step)
    wanted = SourceSet(tuple(filters), (world.source,), 0)
    assert read(world, wanted, 0, limit, 1 << 20) == world.visible(tuple(filters), 0)
