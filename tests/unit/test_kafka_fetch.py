"""What a Kafka consumer is sent, and when."""

from __future__ import annotations

import asyncio
import importlib
import uuid
from datetime import timedelta

import pytest
from kio.index import load_request_schema

from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from onelog.record.batch import Marker
from tests.support.kafka_hub import batch, desk

VERSION = 11
ALL = 1 << 20


@pytest.fixture
async def here(tmp_path):
    async with desk(tmp_path) as made:
        yield made


def fetch(client, *offsets, topic="t", version=VERSION, partition_bytes=ALL, **changes):
    """A Fetch of one topic, with an offset for each partition."""
    schema = load_request_schema(1, version)
    module = importlib.import_module(schema.__module__)
    rows = []
    for index, offset in enumerate(offsets):
        row = {
            "partition": index,
            "fetch_offset": offset,
            "partition_max_bytes": partition_bytes,
            "log_start_offset": -1,
            "last_fetched_epoch": -1,
            "replica_directory_id": None,
        }
        known = module.FetchPartition.__dataclass_fields__
        rows.append(module.FetchPartition(**{k: v for k, v in row.items() if k in known}))
    named = {"topic_id": topic} if version >= 13 else {"topic": topic}
    values = {
        "replica_id": -1,
        "max_wait": timedelta(milliseconds=changes.get("wait_ms", 0)),
        "min_bytes": changes.get("min_bytes", 1),
        "max_bytes": changes.get("max_bytes", ALL),
        "isolation_level": changes.get("committed", 0),
        "session_id": changes.get("session_id", 0),
        "session_epoch": changes.get("session_epoch", -1),
        "topics": (module.FetchTopic(**named, partitions=tuple(rows)),),
        "forgotten_topics_data": (),
        "rack_id": "",
    }
    known = schema.__dataclass_fields__
    return client.frame(
        ApiKey.FETCH, version, schema(**{k: v for k, v in values.items() if k in known})
    )


def parts(answer):
    return [row for topic in answer.responses for row in topic.partitions]


async def put(here, *batches, partition=0, topic="t"):
    client = here.client()
    client.send(*(client.produce(data, partition=partition, topic=topic) for data in batches))
    await client.wait_for(len(batches))


async def ask(client, *args, **kwargs):
    client.send(fetch(client, *args, **kwargs))
    ((_, answer),) = await client.wait_for(1)
    return answer


async def test_stored_batches_are_sent_as_they_are(here):
    """I6."""
    await put(here, batch(b"a", b"b"), batch(b"c"))
    (row,) = parts(await ask(here.client(), 0))
    assert row.records == bytes(here.log().read(0, ALL))
    assert (row.error_code, row.high_watermark, row.last_stable_offset) == (ErrorCode.none, 3, 3)
    assert (row.log_start_offset, row.aborted_transactions) == (0, None)


@pytest.mark.parametrize("version", range(4, 18))
async def test_every_version_is_served(here, version):
    await put(here, batch(b"a"))
    name = here.hub.topics.get("t").id if version >= 13 else "t"
    answer = await ask(here.client(), 0, topic=name, version=version)
    assert parts(answer)[0].records == bytes(here.log().read(0, ALL))


@pytest.mark.warm
async def test_an_offset_inside_a_batch_gets_the_whole_batch(here):
    await put(here, batch(b"a", b"b", b"c"), batch(b"d"))
    (row,) = parts(await ask(here.client(), 2))
    assert row.records == bytes(here.log().read(0, ALL))


async def test_one_batch_comes_also_when_it_is_larger_than_every_limit(here):
    """KIP-74: else the consumer would stand still."""
    large = batch(b"x" * 5000)
    await put(here, large, large)
    await put(here, large, partition=1)
    client = here.client()
    (one, two) = parts(await ask(client, 0, 0, max_bytes=10, partition_bytes=10))
    assert (len(one.records), two.records) == (len(large), b"")
    (one, two) = parts(await ask(client, 0, 0, max_bytes=3 * len(large) - 1))
    assert (len(one.records), two.records) == (2 * len(large), b"")
    (one, two) = parts(await ask(client, 0, 0, max_bytes=3 * len(large)))
    assert (len(one.records), len(two.records)) == (2 * len(large), len(large))


async def test_what_cannot_be_read_is_told_per_partition_and_at_once(here):
    await put(here, batch(b"a"))
    client = here.client()
    past, unknown = parts(await ask(client, 7, 0, wait_ms=60_000))
    assert (past.error_code, past.high_watermark) == (ErrorCode.offset_out_of_range, 1)
    assert (unknown.error_code, unknown.records) == (ErrorCode.none, b"")
    (row,) = parts(await ask(client, 0, topic="nowhere", wait_ms=60_000))
    assert row.error_code is ErrorCode.unknown_topic_or_partition
    (row,) = parts(await ask(client, 0, topic=uuid.uuid4(), version=13, wait_ms=60_000))
    assert row.error_code is ErrorCode.unknown_topic_id
    *_, row = parts(await ask(client, 0, 0, 0, wait_ms=60_000))
    assert row.error_code is ErrorCode.unknown_topic_or_partition


async def test_no_session_is_kept(here):
    client = here.client()
    assert (await ask(client, 0, session_epoch=0)).session_id == 0
    answer = await ask(client, 0, session_id=5, session_epoch=3)
    assert answer.error_code is ErrorCode.fetch_session_id_not_found


# -- waiting


async def test_a_fetch_at_the_end_waits_for_the_next_record(here):
    client = here.client()
    client.send(fetch(client, 0, wait_ms=60_000))
    await asyncio.sleep(0.01)
    assert client.answers() == []
    await put(here, batch(b"a"), batch(b"b"))
    ((_, answer),) = await client.wait_for(1)
    (row,) = parts(answer)
    assert row.records == bytes(here.log().read(0, ALL)), "all of one pass is one answer"
    assert here.log().visible.waiting == 0


async def test_a_fetch_waits_until_there_are_enough_bytes(here):
    one = batch(b"a" * 100)
    client = here.client()
    client.send(fetch(client, 0, wait_ms=60_000, min_bytes=len(one) + 1))
    await put(here, one)
    await asyncio.sleep(0.01)
    assert client.answers() == []
    await put(here, one)
    ((_, answer),) = await client.wait_for(1)
    assert len(parts(answer)[0].records) == 2 * len(one)


async def test_patience_ends_with_what_there_is(here):
    one = batch(b"a")
    await put(here, one)
    client = here.client()
    answer = await ask(client, 0, wait_ms=20, min_bytes=10_000)
    assert len(parts(answer)[0].records) == len(one)
    answer = await ask(client, 1, wait_ms=20)
    assert parts(answer)[0].records == b""
    assert here.log().visible.waiting == 0


async def test_requests_behind_a_waiting_fetch_wait_too(here):
    """Answers come in the order of the requests."""
    client = here.client()
    client.send(fetch(client, 0, wait_ms=60_000), client.produce(batch(b"mine"), partition=1))
    await asyncio.sleep(0.01)
    assert here.log(1).end_offset == 0
    await put(here, batch(b"a"))
    assert [number for number, _ in await client.wait_for(2)] == [1, 2]


async def test_a_consumer_that_leaves_waits_for_nothing(here):
    """I8."""
    client = here.client()
    client.send(fetch(client, 0, 0, wait_ms=60_000))
    assert here.log(0).visible.waiting == here.log(1).visible.waiting == 1
    client.connection.connection_lost(None)
    assert here.log(0).visible.waiting == here.log(1).visible.waiting == 0


async def test_nothing_new_begins_while_the_consumer_does_not_read(here):
    """I8: what was asked for is not read from the log before there is room for it."""
    await put(here, batch(b"a"))
    client = here.client()
    client.connection.pause_writing()
    client.send(fetch(client, 0))
    await asyncio.sleep(0.01)
    assert client.answers() == []
    client.connection.resume_writing()
    assert len(await client.wait_for(1)) == 1


async def test_a_deleted_topic_ends_the_wait(here):
    client = here.client()
    client.send(fetch(client, 0, wait_ms=60_000))
    await here.broker.streams.delete("t")
    ((_, answer),) = await client.wait_for(1)
    assert parts(answer)[0].error_code is ErrorCode.unknown_topic_or_partition


# -- transactions


def part_of_transaction(sequence, *values, producer=7):
    return batch(*values, producer=(producer, 0, sequence), attributes=16)


async def test_committed_readers_see_no_open_transaction_and_are_told_of_aborted_ones(here):
    log, client = here.log(), here.client()
    for data in (part_of_transaction(0, b"x"), batch(b"y")):
        log.append_checked(bytearray(data))
    (row,) = parts(await ask(client, 0, committed=1))
    assert (row.records, row.last_stable_offset, row.high_watermark) == (b"", 0, 2)
    assert len(parts(await ask(client, 0, committed=0))[0].records) > 0
    log.append_marker(Marker.ABORT, 7, 0)
    (row,) = parts(await ask(client, 0, committed=1))
    assert row.records == bytes(log.read(0, ALL))
    assert [(txn.producer_id, txn.first_offset) for txn in row.aborted_transactions] == [(7, 0)]
    (row,) = parts(await ask(client, 3, committed=1))
    assert row.aborted_transactions == ()


async def test_a_committed_reader_waits_for_the_end_of_the_transaction(here):
    log, client = here.log(), here.client()
    log.append_checked(bytearray(part_of_transaction(0, b"x")))
    client.send(fetch(client, 0, wait_ms=60_000, committed=1))
    await put(here, batch(b"y"))
    await asyncio.sleep(0.01)
    assert client.answers() == []
    log.append_marker(Marker.COMMIT, 7, 0)
    ((_, answer),) = await client.wait_for(1)
    assert parts(answer)[0].records == bytes(log.read(0, ALL))
