"""A stream: its partitions, and which topic a record has that does not carry one."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import InvalidRequest
from onelog.base.ids import PartitionId
from onelog.log.config import StreamConfig
from onelog.log.partition import Durability
from onelog.log.stream import Stream, StreamRecord, changed_record
from onelog.log.syncer import Syncer
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.memory import MemoryEngine
from tests.logs import make_partition, put, row


@pytest.fixture
async def stream() -> AsyncIterator[Stream]:
    clock, syncer = ManualClock(), Syncer(1)
    engine = MemoryEngine(clock)
    config = StreamConfig(
        name="orders", captures=("orders",), partitions=2, durability=Durability.OS
    )
    record = StreamRecord(
        id="orders-1", config=config, created_ms=0, fixed_topic=config.single_topic
    )
    partitions = [
        make_partition(
            engine.open(PartitionKey("orders-1", PartitionId(number)), LogSettings()), syncer, clock
        )
        for number in range(2)
    ]
    yield Stream(record, partitions)
    await syncer.close()


def altered(stream: Stream, *captures: str) -> None:
    config = msgspec.structs.replace(stream.config, captures=captures)
    stream.record = changed_record(stream, config, 1)


def test_a_stream_of_one_topic_does_not_write_it_beside_each_record(stream: Stream) -> None:
    assert not stream.tags_topics
    assert stream.fixed_topic_at(1, 10**9) == "orders"


def test_a_stream_of_many_topics_does(stream: Stream) -> None:
    config = StreamConfig(name="main", captures=("#",))
    assert config.single_topic is None
    many = Stream(StreamRecord(id="m", config=config, created_ms=0), [])
    assert many.tags_topics
    assert many.fixed_topic_at(0, 0) is None


def test_old_records_keep_the_fixed_topic_after_captures_grow(stream: Stream) -> None:
    put(stream.partitions[1], row(b"k", b"1"), row(b"k", b"2"))
    altered(stream, "orders", "bills")
    assert stream.tags_topics
    assert stream.fixed_topic_at(1, 0) == "orders"
    assert stream.fixed_topic_at(1, 1) == "orders"
    assert stream.fixed_topic_at(1, 2) is None
    assert stream.fixed_topic_at(0, 0) is None
    assert stream.fixed_topic_at(2, 0) is None  # a partition that came later


def test_another_single_topic_is_a_change_too(stream: Stream) -> None:
    put(stream.partitions[0], row(b"k", b"1"))
    altered(stream, "bills")
    assert stream.fixed_topic_at(0, 0) == "orders"
    assert stream.fixed_topic_at(0, 1) is None
    assert stream.record.past_captures == ("orders",)


def test_going_back_to_one_topic_changes_nothing_for_what_was_written(stream: Stream) -> None:
    put(stream.partitions[0], row(b"k", b"1"))
    altered(stream, "orders", "bills")
    put(stream.partitions[0], row(b"k", b"2"))
    altered(stream, "orders")
    assert stream.tags_topics
    assert [stream.fixed_topic_at(0, offset) for offset in range(3)] == ["orders", None, None]
    assert stream.record.past_captures == ("bills",)


def test_a_change_of_other_settings_keeps_the_topic_fixed(stream: Stream) -> None:
    config = msgspec.structs.replace(stream.config, message_bytes_max=1000)
    stream.record = changed_record(stream, config, 1)
    assert not stream.tags_topics


def test_partitions_are_found_by_number_and_by_topic(stream: Stream) -> None:
    assert stream.partition(1) is stream.partitions[1]
    for number in (-1, 2):
        with pytest.raises(InvalidRequest):
            stream.partition(number)
    homes = [stream.partition_of(b"t/%d" % number) for number in range(50)]
    assert all(partition in homes for partition in stream.partitions)
    assert stream.partition_of(b"t/1") is stream.partition_of(b"t/1")


def test_size_and_storage_keys(stream: Stream) -> None:
    assert stream.size_bytes == 0
    put(stream.partitions[0], row(b"k", b"1"))
    assert stream.size_bytes == stream.partitions[0].log.size_bytes > 0
    assert stream.key(PartitionId(1)) == ("orders-1", 1)
