"""The handle of a partition: values that stay as they were, and all that the floors above need."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import ProducerFenced
from onelog.base.ids import Offset
from onelog.broker import EARLIEST, LOCAL, Broker, Message
from onelog.kernel import scan_batches
from onelog.log.handle import Ends, ProducerFacts
from onelog.log.partition import Durability, Partition
from onelog.log.syncer import Syncer
from onelog.protocols.kafka.apis import ApiKey
from onelog.record.batch import Marker, build_batch
from tests.logs import GatedLog, make_partition, memory_log, put, row
from tests.support.brokers import read_all, running, say, spoken
from tests.support.handles import Narrow, narrow_handles
from tests.support.kafka_hub import batch, desk, fetch_body, rows_of
from tests.support.kafka_views import drain

NOW_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def partition(syncer: Syncer, clock: ManualClock) -> Partition:
    return make_partition(memory_log(clock), syncer, clock)


# -- values


async def test_the_ends_are_those_of_one_moment(partition: Partition) -> None:
    put(partition, row(b"k", b"1"), row(b"k", b"2"))
    ends = partition.ends()
    put(partition, row(b"k", b"3"), producer=(7, 0, 0), transactional=True)
    assert ends == Ends(start=Offset(0), stable=Offset(2), high_watermark=Offset(2))
    assert partition.ends() == Ends(start=Offset(0), stable=Offset(2), high_watermark=Offset(3))


async def test_the_facts_tell_the_end_that_readers_do_not_see_yet(
    syncer: Syncer, clock: ManualClock
) -> None:
    log = GatedLog(memory_log(clock))
    partition = make_partition(log, syncer, clock, Durability.FSYNC)  # type: ignore[arg-type]
    put(partition, row(b"k", b"1"))
    facts = partition.facts()
    assert (facts.ends.high_watermark, facts.end) == (0, 1)
    assert (facts.size_bytes, facts.segments) == (partition.size_bytes, 1)
    log.gate.release()
    await partition.wait_visible(Offset(0))
    assert (facts.ends.high_watermark, partition.facts().ends.high_watermark) == (0, 1)


async def test_an_epoch_is_asked_for_by_offset_and_by_number(partition: Partition) -> None:
    put(partition, row(b"k", b"1"))
    assert partition.epoch_at(0) == partition.leader_epoch
    assert partition.end_of_epoch(partition.leader_epoch, 1) == (partition.leader_epoch, 1)
    assert partition.end_of_epoch(-1, 1) == (-1, -1)


# -- producers


async def test_what_is_told_of_a_producer_does_not_change_with_it(partition: Partition) -> None:
    put(partition, row(b"k", b"1"), row(b"k", b"2"), producer=(7, 3, 0), transactional=True)
    before = partition.producers_seen()
    put(partition, row(b"k", b"3"), producer=(7, 3, 2), transactional=True)
    assert before == [ProducerFacts(7, 3, 1, NOW_MS, 0)]
    assert partition.producers_seen() == [ProducerFacts(7, 3, 2, NOW_MS, 0)]


async def test_the_last_sequence_is_that_of_the_newest_record(partition: Partition) -> None:
    assert partition.last_sequence(7) is None
    put(partition, row(b"k", b"1"), row(b"k", b"2"), producer=(7, 0, 0))
    assert partition.last_sequence(7) == 1
    partition.forget_producer(7)
    assert partition.last_sequence(7) is None


async def test_a_batch_is_found_again_under_the_id_that_its_producer_has_here(
    partition: Partition,
) -> None:
    put(partition, row(b"k", b"0"))
    put(partition, row(b"k", b"1"), row(b"k", b"2"), producer=(7, 0, 0))
    again = build_batch([row(b"k", b"1"), row(b"k", b"2")], producer=(70, 0, 0))
    (info,) = scan_batches(again)
    found = partition.find_repeated(info, 7)
    assert found is not None
    assert (found.base_offset, found.end_offset, found.duplicate) == (1, 3, True)
    assert partition.find_repeated(info, 70) is None
    (later,) = scan_batches(build_batch([row(b"k", b"3")], producer=(70, 0, 2)))
    (other_epoch,) = scan_batches(build_batch([row(b"k", b"1")], producer=(70, 1, 0)))
    assert partition.find_repeated(later, 7) is partition.find_repeated(other_epoch, 7) is None


async def test_the_end_of_a_transaction_has_the_highest_epoch_that_is_known(
    partition: Partition,
) -> None:
    put(partition, row(b"k", b"1"), producer=(7, 5, 0), transactional=True)
    with pytest.raises(ProducerFenced):
        partition.append_marker(Marker.ABORT, 7, 0)
    assert partition.open_transactions() == {7: 0}
    assert partition.end_transaction(Marker.ABORT, 7, 0).base_offset == 1
    assert partition.open_transactions() == {}
    assert partition.producers_seen()[0].epoch == 5


# -- all that the floors above need


async def read_topics(broker: Broker, *filters: str) -> list[str]:
    cursor = broker.cursors.open_tail(filters, start=EARLIEST, principal=LOCAL)
    return spoken(read_all(cursor))


async def test_the_door_and_the_cursors_need_nothing_but_the_handle(tmp_path: Path) -> None:
    with narrow_handles():
        async with running(tmp_path) as broker:
            assert isinstance(broker.streams.get("main").partitions[0], Narrow)
            await say(broker, "a/b", "1", "2")
            await say(broker, "a/c", "3")
            assert await read_topics(broker, "a/b") == ["a/b=1", "a/b=2"]
            assert sorted(await read_topics(broker, "a/#")) == ["a/b=1", "a/b=2", "a/c=3"]
            kept = await broker.open_kept("~rows")
            await kept.put([(b"k", b"v")])
        async with running(tmp_path) as broker:
            kept = await broker.open_kept("~rows")
            assert dict(kept.rows()) == {b"k": b"v"}
            await asyncio.wait_for(broker.publish(Message("a/b", b"4"), principal=LOCAL), 10)
            assert await read_topics(broker, "a/b") == ["a/b=1", "a/b=2", "a/b=4"]


async def test_kafka_needs_nothing_but_the_handle(tmp_path: Path) -> None:
    """A topic with its own stream and a view: produce, fetch."""
    with narrow_handles():
        async with desk(tmp_path) as here:
            client = here.client()
            client.send(client.produce(batch(b"1", b"2")))
            ((_number, produced),) = await client.wait_for(1)
            assert rows_of(produced) == [(0, 0, 0)]
            client.send(client.frame(ApiKey.FETCH, 4, fetch_body("t")))
            ((_number, fetched),) = await client.wait_for(1)
            (row,) = fetched.responses[0].partitions
            assert (row.high_watermark, row.last_stable_offset) == (2, 2)
            await say(here.broker, "a/b", "x")
            view = here.hub.topics.get("a.b")
            (part,) = (view.partition(number) for number in range(view.partition_count))
            assert isinstance(part.log, Narrow)
            assert part.ends().high_watermark == 1
            assert [(shown[0], shown[2]) for shown in drain(part, 0)] == [(0, b"x")]
