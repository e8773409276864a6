"""What happens when the wall clock goes backwards, by hours and days, under load? (I3, I4)"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from onelog.assembly import open_broker
from onelog.base.clock import ManualClock
from onelog.base.ids import TimestampMs
from onelog.broker import (
    EARLIEST,
    LOCAL,
    Broker,
    BrokerSettings,
    Cleanup,
    Compaction,
    Message,
    QueueSettings,
    Retention,
    Start,
    StreamConfig,
)

pytestmark = pytest.mark.fault

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_700_000_000_000
SETTINGS = BrokerSettings(
    checkpoint_interval_s=3600, maintenance_interval_s=3600, flush_interval_s=3600
)


async def start(data: Path, clock: ManualClock, *streams: StreamConfig) -> Broker:
    data.mkdir(exist_ok=True)
    broker = await open_broker(data, SETTINGS, clock)
    for config in streams:
        if broker.streams.find(config.name) is None:
            await broker.streams.create(config)
    return broker


def aged(age_ms: int, **more: object) -> StreamConfig:
    return StreamConfig(
        name="s",
        captures=("s/#",),
        segment_bytes=4096,
        segment_age_ms=HOUR_MS // 2,
        retention=Retention(age_ms=age_ms),
        **more,  # type: ignore[arg-type]
    )


def read(broker: Broker) -> list[tuple[int, int, bytes | None]]:
    tail = broker.cursors.open_tail(["s/#"], start=EARLIEST, principal=LOCAL)
    found = []
    while tail.reading.is_behind():
        found += [(int(r.offset), int(r.timestamp_ms), r.value) for r in tail.fetch()]
    tail.close()
    return found


async def test_a_clock_that_goes_back_deletes_nothing_and_offsets_go_on(tmp_path: Path):
    """I4: retention runs all the time; nothing that is younger than its age by any clock goes."""
    clock = ManualClock(NOW_MS)
    broker = await start(tmp_path / "data", clock, aged(12 * HOUR_MS))
    chance = random.Random(1)
    expected = []

    async def publish(count: int) -> None:
        for _ in range(count):
            value = b"%d" % len(expected) + b"." * 200
            where = await broker.publish(Message("s/t", value), principal=LOCAL)
            assert where.offset == len(expected)
            expected.append(value)

    async def maintain() -> None:
        for _ in range(5):
            await broker.maintenance.run_once()

    # Never beyond 12 hours after the first record, so nothing may go; backwards by days.
    for jump_ms in (0, -HOUR_MS, -30 * DAY_MS, 2 * HOUR_MS, -DAY_MS, -400 * DAY_MS, 6 * HOUR_MS):
        clock.set_wall_ms(NOW_MS + jump_ms + chance.randrange(60_000))
        await asyncio.gather(publish(60), maintain())
    assert [value for _, _, value in read(broker)] == expected
    assert broker.maintenance.counters.errors == 0
    assert broker.maintenance.counters.segments_deleted == 0
    await broker.close()
    clock.set_wall_ms(NOW_MS - 3 * DAY_MS)  # and it is back once more while the broker is away
    broker = await start(tmp_path / "data", clock)
    await broker.maintenance.run_once()
    assert [value for _, _, value in read(broker)] == expected
    await broker.close()


async def test_retention_works_again_when_the_clock_is_right_again(tmp_path: Path):
    """A jump must not switch retention off for ever, nor delete what came after it."""
    clock = ManualClock(NOW_MS)
    broker = await start(tmp_path / "data", clock, aged(12 * HOUR_MS))
    for _ in range(100):
        await broker.publish(Message("s/t", b"old" + b"." * 200), principal=LOCAL)
    clock.set_wall_ms(NOW_MS - DAY_MS)
    for _ in range(100):
        await broker.publish(Message("s/t", b"back" + b"." * 200), principal=LOCAL)
    clock.set_wall_ms(NOW_MS + 11 * HOUR_MS)
    for _ in range(100):
        await broker.publish(Message("s/t", b"new" + b"." * 200), principal=LOCAL)
    clock.set_wall_ms(NOW_MS + 14 * HOUR_MS)
    await broker.maintenance.run_once()
    values = [(value or b"").split(b".")[0] for _, _, value in read(broker)]
    assert values.count(b"new") == 100
    assert values.count(b"old") < 50, "what is too old by every clock goes"
    await broker.close()


@pytest.mark.parametrize("seed", range(3))
async def test_offsets_for_times_are_right_when_timestamps_go_up_and_down(
    tmp_path: Path, seed: int
):
    """The first record at or after a time is found, whatever order the stamps are in."""
    clock = ManualClock(NOW_MS)
    broker = await start(tmp_path / "data", clock, aged(-1))
    chance = random.Random(seed)
    for _ in range(150):
        if chance.random() < 0.2:
            clock.set_wall_ms(NOW_MS + chance.randrange(-DAY_MS, DAY_MS))
        clock.advance(chance.random())
        await broker.publish(Message("s/t", b"." * 100), principal=LOCAL)
    partition = broker.streams.get("s").partitions[0]
    for again in range(2):
        rows = read(broker)
        assert len(rows) == 150
        stamps = [stamp for _, stamp, _ in rows]
        for asked in [*chance.sample(stamps, 40), min(stamps) - 1, max(stamps), max(stamps) + 1]:
            expected = next(((at, stamp) for at, stamp, _ in rows if stamp >= asked), None)
            assert await partition.find_time(TimestampMs(asked)) == expected
        reader = broker.cursors.open_tail(
            ["s/#"], start=Start("time", max(stamps)), principal=LOCAL
        )
        assert reader.fetch(1)[0].timestamp_ms == max(stamps)
        await broker.close()
        if again == 0:
            broker = await start(tmp_path / "data", clock)
            partition = broker.streams.get("s").partitions[0]


async def test_deadlines_and_back_off_are_not_moved_by_the_wall_clock(tmp_path: Path):
    """A lock of a second is a second of monotonic time, whatever people do to the clock."""
    clock = ManualClock(NOW_MS)
    broker = await start(tmp_path / "data", clock, aged(-1))
    for number in range(3):
        await broker.publish(Message("s/t", b"%d" % number), principal=LOCAL)
    settings = QueueSettings(lock_ms=1000, backoff_ms=500)
    queue = await broker.cursors.open_queue(
        "q", ["s/t"], start=EARLIEST, settings=settings, principal=LOCAL
    )
    assert [row.record.value for row in queue.acquire("a", 2)] == [b"0", b"1"]
    for jump_ms in (DAY_MS, -DAY_MS, 0):
        clock.set_wall_ms(NOW_MS + jump_ms)
        queue.run_due()
        assert queue.pending() == 2, "held by its consumer still"
    assert [row.record.value for row in queue.acquire("b", 5)] == [b"2"]
    clock.advance(1.001)
    clock.set_wall_ms(NOW_MS - 30 * DAY_MS)
    queue.run_due()
    assert queue.pending() == 0, "the deadline has passed"
    assert queue.acquire("b", 5) == [], "the back-off has not"
    clock.advance(0.6)
    queue.run_due()
    assert [row.record.value for row in queue.acquire("b", 5)] == [b"0", b"1", b"2"]
    await broker.close()


async def test_a_persistent_session_is_not_ended_by_a_clock_that_goes_back(tmp_path: Path):
    """A session that was promised an hour has it, and its cursor goes on where it stood."""
    clock = ManualClock(NOW_MS)
    data = tmp_path / "data"
    broker = await start(data, clock, aged(-1))
    session = await broker.sessions.attach(
        "c1", protocol="mqtt", owner="ann", expiry_ms=HOUR_MS, clean=True, on_takeover=lambda: None
    )
    cursor = await broker.cursors.open_session("c1", ["s/#"], start=EARLIEST, principal=LOCAL)
    for number in range(3):
        await broker.publish(Message("s/t", b"%d" % number), principal=LOCAL)
    first = cursor.fetch(1)[0]
    assert cursor.acknowledge(first.packet_id)
    await broker.cursors.save(cursor)
    await broker.sessions.detach(session)
    await broker.close()
    clock.set_wall_ms(NOW_MS - 10 * DAY_MS)
    broker = await start(data, clock)
    assert broker.sessions.get("c1") is not None
    again = await broker.sessions.attach(
        "c1", protocol="mqtt", owner="ann", expiry_ms=HOUR_MS, clean=False, on_takeover=lambda: None
    )
    assert again.resumed
    cursor = await broker.cursors.open_session("c1", ["s/#"], principal=LOCAL)
    assert [row.record.value for row in cursor.fetch() if row.record] == [b"1", b"2"]
    await broker.close()


async def test_compaction_with_a_clock_that_goes_back_keeps_the_latest_by_offset(tmp_path: Path):
    """I3: the last record of a key is the one written last, not the one with the highest stamp."""
    clock = ManualClock(NOW_MS)
    config = aged(-1, cleanup=Cleanup.COMPACT, compaction=Compaction(min_dirty_ratio=0.0))
    broker = await start(tmp_path / "data", clock, config)
    last = {}
    for number in range(200):
        clock.set_wall_ms(NOW_MS - number * HOUR_MS)
        topic, value = f"s/{number % 5}", b"%d" % number + b"." * 100
        last[topic] = value
        await broker.publish(Message(topic, value), principal=LOCAL)
    partition = broker.streams.get("s").partitions[0]
    partition.log.roll()
    await broker.maintenance.run_once()
    assert broker.maintenance.counters.records_compacted > 50
    table = await broker.cursors.open_table("latest", ["s/#"], principal=LOCAL)
    assert {record.topic: record.value for record in table.find("s/#")} == last
    offsets = [offset for offset, _, _ in read(broker)]
    assert offsets == sorted(set(offsets))
    await broker.close()
