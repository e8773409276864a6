"""Records are counted without the markers of transactions."""

from __future__ import annotations

import random

import msgspec
import pytest

from onelog.admin.view import AdminView
from onelog.log.markers import RUNS_MAX, Markers
from onelog.log.producers import Producers
from onelog.record.batch import Marker
from tests.support.brokers import running, say


def test_markers_are_counted_exactly_until_they_are_joined_and_then_about():
    chance = random.Random(7)
    offsets = sorted(chance.sample(range(100_000), 5_000))
    markers = Markers()
    for offset in offsets:
        markers.note(offset)
    assert markers.count == 5_000
    assert len(markers.runs) <= RUNS_MAX
    for start in (0, 20_000, 50_000, 99_000):
        markers.forget_before(start)
        assert markers.count == pytest.approx(sum(offset >= start for offset in offsets), abs=30)
    markers.forget_before(100_000)
    assert (markers.count, markers.runs) == (0, [])


def test_markers_side_by_side_are_one_run():
    markers = Markers()
    for offset in range(10_000):
        markers.note(offset)
    assert (markers.count, len(markers.runs)) == (10_000, 1)
    markers.forget_before(9_990)
    assert markers.count == 10


def test_a_snapshot_keeps_the_count_and_an_older_one_has_none():
    producers = Producers()
    for offset in (3, 9):
        producers.markers.note(offset)
    assert Producers.decode(producers.encode()).markers.count == 2
    assert Producers.decode(msgspec.msgpack.encode([[], []])).markers.count == 0


async def test_what_the_api_and_the_command_line_count_are_records(tmp_path):
    for _ in range(2):  # after a restart, too
        async with running(tmp_path) as broker:
            stream = broker.streams.get("main")
            if not stream.record_count:
                await say(broker, "a", "1", "2", "3")
                for number in range(4):
                    stream.partitions[0].append_marker(Marker.COMMIT, number, 0)
            ends = sum(int(row.end_offset) for row in stream.partitions)
            assert (ends, AdminView(broker).stream("main").records) == (7, 3)


def test_many_transactions_cost_bounded_memory_whatever_lies_between_them():
    markers, offset = Markers(), 0
    for number in range(20_000):
        offset += 1 + number % 7
        markers.note(offset)
        assert len(markers.runs) <= RUNS_MAX
    assert markers.count == 20_000
