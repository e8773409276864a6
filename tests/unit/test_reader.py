"""Reading a source: damage is found, bounds are kept, the index is used, fixed topics end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import PartitionCorrupt
from onelog.base.ids import Offset
from onelog.broker import LOCAL, Durability, Message, StreamConfig
from onelog.cursors.reader import READ_BYTES, expires_at, read_at, read_records
from onelog.cursors.sources import Source, SourceSet
from onelog.kernel import BatchBuilder
from onelog.log.lookup import Lookup
from onelog.log.syncer import Syncer
from onelog.record.headers import EXPIRY
from onelog.record.record import Record
from tests.support.brokers import history, home_of, running, say
from tests.support.logs import OneStream


@pytest.fixture
async def syncer() -> AsyncIterator[Syncer]:
    syncer = Syncer(1)
    yield syncer
    await syncer.close()


def one_source(log: OneStream, text: str) -> tuple[SourceSet, Source]:
    source = Source(log.stream, log.stream.partitions[0])
    return SourceSet((text,), (source,), 0), source


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each read of a partition."""
    sizes: list[int] = []
    real = Lookup.read

    def counted(self: Lookup, *args: object, **more: object) -> memoryview:
        data = real(self, *args, **more)  # type: ignore[arg-type]
        sizes.append(len(data))
        return data

    monkeypatch.setattr(Lookup, "read", counted)
    return sizes


async def test_damage_found_while_reading_stops_the_partition(
    tmp_path: Path,
) -> None:
    """I9: stored bytes are checked before they are believed."""
    async with running(tmp_path) as broker:
        await say(broker, "t", "fine")
        await say(broker, "t", "damaged")
        partition = home_of(broker, "t")[1]
        (path,) = (
            path
            for path in tmp_path.rglob("*.log")
            if b"damaged" in path.read_bytes() and "cursors" not in str(path)
        )
        data = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(data.index(b"damaged"))
            file.write(b"DAMAGED")
        cursor = await broker.cursors.open_offset("c", ["t"], principal=LOCAL)
        with pytest.raises(PartitionCorrupt):
            cursor.fetch()
        assert isinstance(partition.stopped, PartitionCorrupt)
        with pytest.raises(PartitionCorrupt):
            await broker.publish(Message("t", b"x"), principal=LOCAL)


async def test_a_rare_topic_is_found_without_looking_at_the_rest(
    syncer: Syncer, looked_at: list[int]
) -> None:
    """DESIGN §3: an exact-topic cursor reads O(its matches)."""
    log = OneStream(ManualClock(), syncer)
    for _ in range(10):
        log.write_many("noise", 2_000)
        log.write("rare", b"x")
    wanted, source = one_source(log, "rare")
    looked_at.clear()
    records, following = read_records(wanted, source, Offset(0), 100)
    assert len(records) == 10
    assert following == source.partition.end_offset
    assert sum(looked_at) < source.partition.log.size_bytes / 100


async def test_matches_in_large_batches_are_read_a_bounded_part_at_a_time(
    syncer: Syncer, looked_at: list[int]
) -> None:
    """I8: through the index too."""
    log = OneStream(ManualClock(), syncer)
    for _ in range(10):
        log.write_many("noise", 500)
        log.write("rare", b"x" * 50_000)
    wanted, source = one_source(log, "rare")
    found, position, calls = 0, Offset(0), 0
    while position < source.partition.end_offset:
        looked_at.clear()
        records, position = read_records(wanted, source, position, 100, max_bytes=100_000)
        assert sum(looked_at) <= 100_000 + 51_000
        found += len(records)
        calls += 1
    assert found == 10
    assert calls >= 4


def write_mixed(log: OneStream, topics: int, batches: int) -> None:
    """Batches that each hold one record of every topic, with much else between."""
    partition = log.stream.partitions[0]
    for number in range(batches):
        builder = BatchBuilder(True)
        for topic in range(topics):
            for _ in range(100):
                builder.add(b"noise", b"noise", b"", (), 1)
            name = b"rare/%d" % topic
            builder.add(name, name, b"%d" % number, (), 1)
        partition.append_built(builder, index_topics=True)


async def test_who_reads_the_same_batches_in_one_pass_shares_their_reading(
    syncer: Syncer, looked_at: list[int]
) -> None:
    log = OneStream(ManualClock(), syncer)
    write_mixed(log, topics=20, batches=5)
    for turn in range(2):
        looked_at.clear()
        for topic in range(20):
            wanted, source = one_source(log, f"rare/{topic}")
            records, following = read_records(wanted, source, Offset(0), 100)
            assert [record.value for record in records] == [b"0", b"1", b"2", b"3", b"4"]
            assert [record.topic for record in records] == [f"rare/{topic}"] * 5
            assert following == source.partition.end_offset
        assert len(looked_at) == 5, f"turn {turn}: what an earlier pass read is not believed"
        await asyncio.sleep(0)


def test_outside_of_a_loop_nothing_is_shared(looked_at: list[int]) -> None:
    async def make() -> OneStream:
        syncer = Syncer(1)
        log = OneStream(ManualClock(), syncer)
        write_mixed(log, topics=2, batches=1)
        await syncer.close()
        return log

    log = asyncio.run(make())
    for topic in range(2):
        looked_at.clear()
        wanted, source = one_source(log, f"rare/{topic}")
        assert len(read_records(wanted, source, Offset(0), 100)[0]) == 1
        assert len(looked_at) == 1


async def test_one_record_is_read_without_checking_a_megabyte(
    syncer: Syncer, looked_at: list[int]
) -> None:
    log = OneStream(ManualClock(), syncer)
    for _ in range(1_000):
        log.write("t", b"x" * 1_000)
    wanted, source = one_source(log, "#")
    looked_at.clear()
    assert len(read_records(wanted, source, Offset(0), 1)[0]) == 1
    assert sum(looked_at) < READ_BYTES / 20
    looked_at.clear()
    assert read_at(wanted, source, Offset(500)) is not None
    assert sum(looked_at) < 2_000


async def test_nothing_is_read_at_or_past_a_limit(syncer: Syncer) -> None:
    log = OneStream(ManualClock(), syncer)
    log.write_many("t", 10)
    wanted, source = one_source(log, "t")
    for upto in range(12):
        records, following = read_records(wanted, source, Offset(3), 99, upto=upto)
        assert [record.offset for record in records] == list(range(3, min(upto, 10)))
        assert following == max(3, min(upto, 10))


async def test_an_index_that_began_late_hides_nothing(tmp_path: Path) -> None:
    """I2: a stream of one topic that comes to hold many, and back, with segments of both kinds."""
    one = StreamConfig(name="s", captures=("s/a",), segment_bytes=4096, durability=Durability.OS)
    many = msgspec.structs.replace(one, captures=("s/#",))
    async with running(tmp_path) as broker:
        await broker.streams.create(one)
        wanted: dict[str, list[str]] = {"s/a": [], "s/b": []}
        number = 0
        for config in (one, many, many, one, many):
            await broker.streams.alter(config)
            for _ in range(120):
                topic = "s/b" if config is many and number % 3 == 0 else "s/a"
                if broker.streams.home(topic).name == "s":
                    await say(broker, topic, f"{number}" + "." * 100)
                    wanted[topic].append(f"{topic}={number}" + "." * 100)
                number += 1
        for topic, values in wanted.items():
            assert await history(broker, topic) == values
        assert sorted(await history(broker, "s/+")) == sorted(wanted["s/a"] + wanted["s/b"])
    async with running(tmp_path) as broker:
        for topic, values in wanted.items():
            assert await history(broker, topic) == values


@pytest.mark.parametrize(
    ("own", "ttl_ms", "ends"),
    [
        (None, -1, None),
        (b"5000", -1, 5000),
        (b"5000", 10, 1010),
        (b"500", 1000, 500),
        (None, 0, 1000),
        (b"soon", -1, None),
        (b"9" * 5_000, -1, None),
    ],
)
def test_a_record_expires_at_the_earlier_of_its_own_time_and_its_stream_s(
    own: bytes | None, ttl_ms: int, ends: int | None
) -> None:
    headers = () if own is None else ((EXPIRY, own),)
    record = Record("s", 0, Offset(0), "t", 1000, None, b"", headers)  # type: ignore[arg-type]
    assert expires_at(record, ttl_ms) == ends
