"""How views answer fetches: at once, after a look in a thread, or at the end of the long poll."""

from __future__ import annotations

import asyncio
import datetime
import importlib
import uuid
from unittest.mock import patch

import pytest
from kio.index import load_request_schema

from onelog.base.errors import CorruptBatch
from onelog.base.ids import Offset
from onelog.broker import LOCAL, Message
from onelog.kernel import ATTR_CONTROL, scan_batches
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.views import looking
from onelog.record.batch import decode
from tests.support.kafka_hub import desk

VIEW = "a._x2B_.t"
LONG_MS = 20_000


@pytest.fixture
async def here(tmp_path):
    async with desk(tmp_path) as made:
        yield made


def fetch(client, parts, *, topic=VIEW, wait_ms=0, version=12, max_bytes=1 << 20, min_bytes=1):
    """A Fetch request for (partition, offset)s of a topic."""
    schema = load_request_schema(1, version)
    module = importlib.import_module(schema.__module__)
    named = {"topic_id": topic} if version >= 13 else {"topic": topic}
    rows = tuple(
        module.FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
        for number, offset in parts
    )
    fields = {
        "max_wait": datetime.timedelta(milliseconds=wait_ms),
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "topics": (module.FetchTopic(partitions=rows, **named),),
        "forgotten_topics_data": (),
    }
    if version < 15:
        fields["replica_id"] = -1
    return client.frame(ApiKey.FETCH, version, schema(**fields))


async def ask(client, parts, **more):
    client.send(fetch(client, parts, **more))
    ((_number, answer),) = await client.wait_for(1)
    return [row for topic in answer.responses for row in topic.partitions]


def told(row):
    """(offset, value) of the records of a row, and the offsets that fillers span."""
    records, fillers = [], []
    data = bytes(row.records or b"")
    for info in scan_batches(data):
        if info.attributes & ATTR_CONTROL:
            fillers.append((info.base_offset, info.last_offset))
        else:
            slices = decode(data, info)
            records += [(slices.offset(at), slices.value(at)) for at in range(len(slices))]
    return records, fillers


async def say(broker, *rows):
    """Publish (topic, value)s into one partition; the partition's number in the view."""
    await broker.publish_many([Message(topic, value) for topic, value in rows], principal=LOCAL)


def number_of(here, topic, name=VIEW):
    """The view's partition that shows a topic, and its log."""
    log = here.broker.streams.home(topic).partition_of(topic.encode())
    view = here.hub.topics.get(name)
    return next(
        (number, log) for number in range(view.partition_count) if view.partition(number).log is log
    )


def other_topic(here, log):
    """A topic in the same partition that the view does not show."""
    return next(
        topic
        for topic in (f"other/{number}" for number in range(1000))
        if here.broker.streams.home(topic).partition_of(topic.encode()) is log
    )


async def test_matches_go_out_with_the_offsets_of_the_source(here):
    number, log = number_of(here, "a/1/t")
    noise = other_topic(here, log)
    await say(here.broker, (noise, b"n"), ("a/1/t", b"x"), (noise, b"n"), ("a/1/t", b"y"))
    (row,) = await ask(here.client(), [(number, 0)])
    assert told(row) == ([(1, b"x"), (3, b"y")], [])
    assert (row.high_watermark, row.last_stable_offset, row.log_start_offset) == (4, 4, 0)


async def test_other_records_do_not_answer_a_long_poll_but_its_end_leads_over_them(here):
    number, log = number_of(here, "a/1/t")
    noise = other_topic(here, log)
    client = here.client()
    client.send(fetch(client, [(number, 0)], wait_ms=300))
    for _ in range(3):
        await say(here.broker, (noise, b"n"))
        assert client.answers() == []
    ((_number, answer),) = await client.wait_for(1)
    assert told(answer.responses[0].partitions[0]) == ([], [(0, 2)])


async def test_a_match_answers_a_long_poll_at_once(here):
    number, log = number_of(here, "a/1/t")
    noise = other_topic(here, log)
    client = here.client()
    client.send(fetch(client, [(number, 0)], wait_ms=LONG_MS))
    await say(here.broker, (noise, b"n"))
    await say(here.broker, ("a/1/t", b"x"))
    ((_number, answer),) = await client.wait_for(1)
    assert told(answer.responses[0].partitions[0])[0] == [(1, b"x")]


async def test_what_was_looked_at_is_not_looked_at_again_in_the_same_poll(here):
    number, log = number_of(here, "a/1/t")
    noise = other_topic(here, log)
    client, starts = here.client(), []
    real = looking.view_batches

    def spy(data, position, wanted, start, *rest):
        starts.append(start)
        return real(data, position, wanted, start, *rest)

    with patch.object(looking, "view_batches", spy):
        client.send(fetch(client, [(number, 0)], wait_ms=LONG_MS))
        for _ in range(5):
            await say(here.broker, (noise, b"n"))
        await say(here.broker, ("a/1/t", b"x"))
        await client.wait_for(1)
    assert starts == sorted(starts)
    assert starts[-1] == 5


async def test_a_long_look_leaves_the_loop_and_answers_without_waiting(here):
    number, log = number_of(here, "a/1/t")
    noise = other_topic(here, log)
    for _ in range(4):
        await say(here.broker, *[(noise, b"n" * 1000)] * 300)
    end = int(log.high_watermark)
    with patch.object(looking, "NEAR_OFFSETS", 0):
        (row,) = await ask(here.client(), [(number, 0)], wait_ms=LONG_MS)
    assert told(row) == ([], [(0, end - 1)])
    await say(here.broker, ("a/1/t", b"x"))
    (row,) = await ask(here.client(), [(number, 0)], wait_ms=LONG_MS)
    assert told(row) == ([(end, b"x")], [])


async def test_a_look_that_is_cut_off_leads_as_far_as_it_came(here):
    number, log = number_of(here, "a/1/t")
    noise = other_topic(here, log)
    for _ in range(6):
        await say(here.broker, *[(noise, b"n" * 1000)] * 300)
    await say(here.broker, ("a/1/t", b"x"))
    offset, steps = 0, 0
    client = here.client()
    with patch("onelog.protocols.kafka.fetching.LOOK_BYTES", 300_000):
        while True:
            (row,) = await ask(client, [(number, offset)], wait_ms=LONG_MS)
            records, fillers = told(row)
            steps += 1
            if records:
                break
            ((first, last),) = fillers
            assert first == offset
            offset = last + 1
    assert records == [(1800, b"x")]
    assert steps > 1


async def test_all_partitions_of_one_fetch_share_its_limit(here):
    topics = [f"a/{number}/t" for number in range(40)]
    for topic in topics:
        await say(here.broker, *[(topic, b"x" * 1000)] * 10)
    view = here.hub.topics.get(VIEW)
    parts = [(number, 0) for number in range(view.partition_count)]
    with patch.object(looking, "NEAR_OFFSETS", 0):
        rows = await ask(here.client(), parts, max_bytes=50_000)
    sizes = [len(row.records or b"") for row in rows]
    assert 0 < sum(sizes) <= 50_000 + 12_000, "at most one batch too much"


async def test_offsets_outside_are_refused(here):
    number, log = number_of(here, "a/1/t")
    await say(here.broker, ("a/1/t", b"x"), ("a/1/t", b"y"))
    for offset in (3, -1):
        (row,) = await ask(here.client(), [(number, offset)])
        assert row.error_code is ErrorCode.offset_out_of_range
    await log.trim(Offset(1))
    (row,) = await ask(here.client(), [(number, 0)])
    assert row.error_code is ErrorCode.offset_out_of_range
    (row,) = await ask(here.client(), [(99, 0)])
    assert row.error_code is ErrorCode.unknown_topic_or_partition


async def test_a_topic_is_not_lost_when_only_records_of_others_were_trimmed(here):
    topic = "a/1/t"
    _number, log = number_of(here, topic)
    noise = other_topic(here, log)
    await say(here.broker, (topic, b"x"), (noise, b"n"), (noise, b"n"))
    client = here.client()
    (row,) = await ask(client, [(0, 1)], topic="a.1.t")
    assert (told(row), row.high_watermark) == (([], []), 1)
    await log.trim(Offset(3))
    (row,) = await ask(client, [(0, 1)], topic="a.1.t")
    assert (row.error_code, row.high_watermark) == (ErrorCode.none, 3)
    await say(here.broker, (topic, b"y"))
    (row,) = await ask(client, [(0, 1)], topic="a.1.t")
    assert told(row)[0] == [(3, b"y")]
    (row,) = await ask(client, [(0, 0)], topic="a.1.t")
    assert row.error_code is ErrorCode.offset_out_of_range, "that record was the topic's"


async def test_an_exact_topic_ends_behind_its_last_record(here):
    topic = "a/1/t"
    _number, log = number_of(here, topic)
    noise = other_topic(here, log)
    for _ in range(3):
        await say(here.broker, (noise, b"n"), (topic, b"x"), *[(noise, b"n")] * 50)
    part = here.hub.topics.get("a.1.t").partition(0)
    assert part.ends().high_watermark == 2 * 52 + 2
    await say(here.broker, (noise, b"n"))
    assert part.ends().high_watermark == 2 * 52 + 2
    await say(here.broker, (topic, b"x"))
    assert part.ends().high_watermark == int(log.high_watermark)


async def test_who_has_read_an_exact_topic_is_at_its_end(here):
    """Clients go on behind a batch and find the end by comparing; `kcat -e` waited for ever."""
    topic = "a/1/t"
    _number, log = number_of(here, topic)
    noise = other_topic(here, log)
    await say(here.broker, (topic, b"x"), (noise, b"n"), (topic, b"y"), (noise, b"n"))
    (row,) = await ask(here.client(), [(0, 0)], topic="a.1.t")
    assert told(row) == ([(0, b"x"), (2, b"y")], [])
    (info,) = scan_batches(bytes(row.records))
    assert info.last_offset + 1 == row.high_watermark == 3
    (row,) = await ask(here.client(), [(0, 3)], topic="a.1.t")
    assert (told(row), row.high_watermark) == (([], []), 3)


async def test_an_exact_topic_reads_only_the_batches_that_hold_it(here):
    """V9: one device out of many costs its own records, not the log's."""
    topic = "a/1/t"
    _number, log = number_of(here, topic)
    noise = other_topic(here, log)
    for round_ in range(300):
        await say(here.broker, *[(noise, b"n" * 100)] * 20)
        if round_ % 100 == 50:
            await say(here.broker, (topic, b"%d" % round_))
    reads = []
    real = looking.view_batches

    def spy(data, *rest):
        reads.append(len(scan_batches(data)))
        return real(data, *rest)

    with patch.object(looking, "view_batches", spy):
        (row,) = await ask(here.client(), [(0, 0)], topic="a.1.t")
    assert [value for _offset, value in told(row)[0]] == [b"50", b"150", b"250"]
    assert reads == [1, 1, 1], "batches that were looked into"


async def test_consumers_of_one_view_share_what_was_written_again(here):
    """V5."""
    number, log = number_of(here, "a/1/t")
    noise = other_topic(here, log)
    await say(here.broker, (noise, b"n"), ("a/1/t", b"x"), (noise, b"n"))
    first = await ask(here.client(), [(number, 0)])
    with patch.object(looking, "view_batches", None):  # it is not asked again
        second = await ask(here.client(), [(number, 0)])
    assert told(first[0]) == told(second[0]) == ([(1, b"x")], [])
    assert here.hub.views.cache.hits == 1


async def test_stored_batches_that_match_go_out_as_they_are(here):
    """V5: no byte is copied or changed, producer ids stay."""
    number, log = number_of(here, "a/1/t")
    await say(here.broker, ("a/1/t", b"x"), ("a/1/t", b"y"))
    (row,) = await ask(here.client(), [(number, 0)])
    assert bytes(row.records) == bytes(log.read(Offset(0), 1 << 20))
    assert here.hub.views.cache.size_bytes == 0


async def test_a_view_is_found_by_its_id_also_after_streams_changed(here):
    number, _log = number_of(here, "a/1/t")
    await say(here.broker, ("a/1/t", b"x"))
    wanted = here.hub.topics.get(VIEW).id
    await here.make("another")
    (row,) = await ask(here.client(), [(number, 0)], topic=wanted, version=13)
    assert told(row)[0] == [(0, b"x")]
    (row,) = await ask(here.client(), [(0, 0)], topic=uuid.uuid4(), version=13)
    assert row.error_code is ErrorCode.unknown_topic_id


async def test_damage_stops_the_partition_and_no_other(here):
    number, log = number_of(here, "a/1/t")
    await say(here.broker, ("a/1/t", b"x"))

    def broken(*_):
        raise CorruptBatch("the CRC-32C does not match the bytes")

    for on_loop in (True, False):
        near = 1000 if on_loop else 0
        log.stopped = None
        here.hub.views.cache._runs.clear()
        with (
            patch.object(looking, "view_batches", broken),
            patch.object(looking, "NEAR_OFFSETS", near),
        ):
            (row,) = await ask(here.client(), [(number, 0)])
        assert row.error_code is ErrorCode.kafka_storage_error
        assert log.stopped is not None
    others = [part for part in log_parts(here) if part.log is not log]
    assert all(part.log.stopped is None for part in others)
    log.stopped = None


def log_parts(here):
    view = here.hub.topics.get(VIEW)
    return [view.partition(number) for number in range(view.partition_count)]


async def test_a_connection_that_ends_during_a_look_ends_alone(here):
    number, log = number_of(here, "a/1/t")
    for _ in range(4):
        await say(here.broker, *[("a/1/t", b"n" * 1000)] * 300)
    client = here.client()
    with patch.object(looking, "NEAR_OFFSETS", 0):
        client.send(fetch(client, [(number, 0)]))
        client.connection.connection_lost(None)
    await asyncio.sleep(0)
    (row,) = await ask(here.client(), [(number, 0)])
    assert len(told(row)[0]) > 0
    assert log.stopped is None
