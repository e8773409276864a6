"""Spans of traced messages: when they begin, how many are made, and that none harms a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from onelog.base.clock import ManualClock
from onelog.base.limits import SPANS_PER_SECOND_MAX
from onelog.broker import LOCAL, AppendSpans, BrokerSettings, NotedPublisher, Spans
from onelog.broker.spans import TRACING
from onelog.broker.write_times import PARTITIONS_MAX, WRITES_MAX, WriteTimes
from onelog.observe import Troubles
from onelog.record.batch import build_batch, compress_batch
from onelog.record.record import Message, Record
from tests.support.brokers import running

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = ((b"traceparent", SAMPLED.encode()), (b"tracestate", b"a=b"), (b"other", b"y"))
MS = 1_000_000


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[tuple[Any, ...]] = []

    def context(self, carrier: Mapping[str, str]) -> object | None:
        return dict(carrier) if carrier["traceparent"].endswith("-01") else None

    def add(self, operation, subject, parent, times_ns, about) -> object:
        self.spans.append((f"{operation} {subject}", parent, times_ns, about))
        return f"{operation} {subject}"


class Source:
    """What a feed says of a partition."""

    partition = object()
    position = 0


def made(clock: ManualClock) -> tuple[Spans, Kept]:
    kept = Kept()
    return Spans(kept, clock, Troubles(clock)), kept


def record(clock: ManualClock, age_ms: int = 0, offset: int = 0) -> Record:
    return Record(
        stream="main", partition=3, offset=offset, topic="a/b",
        timestamp_ms=clock.now_ms() - age_ms, key=None, value=b"x", headers=HEADERS,
    )  # fmt: skip


@pytest.mark.parametrize(("age_ms", "began_ms"), [(20, 20), (0, 0), (-5_000, 0), (3_600_000, 0)])
def test_publish_begins_at_the_time_stamp_unless_that_is_no_time_of_publishing(age_ms, began_ms):
    clock = ManualClock()
    spans, kept = made(clock)
    AppendSpans(spans, WriteTimes()).deliver_records(Source(), [record(clock, age_ms)])
    (name, parent, (begin, end), about), (inner, under, times, _about) = kept.spans
    assert (name, inner) == ("publish a/b", "append main")
    assert (parent, under) == ({"traceparent": SAMPLED, "tracestate": "a=b"}, "publish a/b")
    assert end - begin == began_ms * MS
    assert times[1] == end
    assert about["messaging.onelog.offset"] == 0


async def test_append_begins_when_the_broker_wrote_the_record(tmp_path):
    clock = ManualClock()
    async with running(tmp_path, BrokerSettings(traced=True), clock=clock) as broker:
        assert isinstance(broker.publisher, NotedPublisher)
        times = broker.publisher.write_times
        partition = broker.streams.get("main").partitions[0]
        first = clock.now_ns()
        await broker.publish(Message("a", b"1"), partition=0, principal=LOCAL)
        clock.advance(1)
        await broker.publish(Message("a", b"2"), partition=0, principal=LOCAL)
        assert times.find(partition, 0) == first
        assert times.find(partition, 1) == first + 1000 * MS


def test_what_is_remembered_of_writes_is_bounded():
    class Partition:
        end_offset = 0

    times, partition = WriteTimes(), Partition()
    for number in range(WRITES_MAX + 10):
        partition.end_offset = number
        times.note(partition, number)
    assert times.find(partition, 0) is None  # it was pushed out
    assert times.find(partition, 10) == 10
    for _other in range(PARTITIONS_MAX):
        times.note(Partition(), 1)
    assert len(times._rows) <= PARTITIONS_MAX


def test_the_spans_of_a_second_are_bounded_and_the_next_second_has_its_own():
    clock = ManualClock()
    spans, kept = made(clock)
    listener = AppendSpans(spans, WriteTimes())
    rows = [record(clock, offset=number) for number in range(SPANS_PER_SECOND_MAX // 2 + 5)]
    listener.deliver_records(Source(), rows)
    assert (len(kept.spans), spans.left_out) == (SPANS_PER_SECOND_MAX, 5)
    spans.delivered("mqtt", "a/b", HEADERS, 0, {})
    assert spans.left_out == 6
    clock.advance(1.0)
    listener.deliver_records(Source(), rows[:1])
    assert len(kept.spans) == SPANS_PER_SECOND_MAX + 2


def test_a_sink_that_raises_harms_no_delivery_and_is_registered():
    clock = ManualClock()
    troubles = Troubles(clock)

    class Broken(Kept):
        def add(self, *_said) -> object:
            raise RuntimeError("no span today")

    spans = Spans(Broken(), clock, troubles)
    spans.delivered("amqp", "a/b", HEADERS, 0, {})
    spans.delivered_run("amqp", [("a/b", HEADERS, {})], 0)
    assert troubles.count(TRACING) == 2


def batch(*headers: Any) -> bytes:
    return build_batch([(b"t", None, b"x", row, 1) for row in headers], tag_topics=True)


def test_batches_are_looked_through_within_the_offsets_that_went_out():
    spans, _kept = made(ManualClock())
    data = batch(HEADERS, (), HEADERS, HEADERS)
    rows = list(spans.traced_in(data, 1, 3))
    assert [(row[0], row[1]) for row in rows] == [(1, b"t"), (2, b"t")]
    assert HEADERS[0] in rows[1][2]
    assert [row[0] for row in spans.traced_in(memoryview(data), 2, 9)] == [2, 3]
    assert not list(spans.traced_in(batch(()), 0, 9))


def test_compressed_batches_are_unpacked_up_to_a_bound():
    clock = ManualClock()
    spans, _kept = made(clock)
    noise = bytes(range(256)) * 1000
    rows = ((b"t", None, noise, HEADERS, 1),)
    data = compress_batch(build_batch(rows, tag_topics=True), 1)
    assert [row[0] for row in spans.traced_in(data, 0, 9)] == [0]
    while not spans.left_out:
        list(spans.traced_in(data, 0, 9))
    assert not list(spans.traced_in(data, 0, 9))
    clock.advance(1)
    assert [row[0] for row in spans.traced_in(data, 0, 9)] == [0]
