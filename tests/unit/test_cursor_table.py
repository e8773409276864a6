"""The table cursor: latest per topic, tombstones, shards, restart, following."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onelog.base.clock import ManualClock
from onelog.base.errors import PartitionStopped, StorageFull
from onelog.base.topics import matches
from onelog.broker import LOCAL, Message, StreamConfig
from onelog.cursors.start import EARLIEST
from onelog.cursors.table import TableCursor
from onelog.log.syncer import Syncer
from onelog.record.headers import EXPIRY
from tests.support.brokers import running, say, spoken
from tests.support.logs import OneStream

LEVELS = st.sampled_from(("a", "b", "", "$s"))
TOPICS = st.lists(LEVELS, min_size=1, max_size=3).map("/".join).filter(bool)
FILTERS = st.sampled_from(("#", "+", "a/#", "+/b", "a/+/b", "a", "$s/#", "+/+", "a/b", "/#"))


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    writes=st.lists(st.tuples(TOPICS, st.sampled_from((b"1", b"2", b"", None))), max_size=30),
    text=FILTERS,
    cut=st.integers(0, 30),
)
def test_a_table_is_the_latest_record_per_topic(
    writes: list[tuple[str, bytes | None]], text: str, cut: int
) -> None:
    """Null and empty remove; a restart in between changes nothing; find equals the naive way."""

    async def check() -> None:
        clock, syncer = ManualClock(), Syncer(1)
        log = OneStream(clock, syncer, partitions=2)
        registry = log.registry()
        table = TableCursor.create("t", registry, ("#", "$s/#"), EARLIEST, clock=clock)
        parts: dict[str, bytes] = {}
        latest: dict[str, bytes] = {}
        for number, (topic, value) in enumerate(writes):
            log.write(topic, value)
            if value:
                latest[topic] = value
            else:
                latest.pop(topic, None)
            if number == cut:
                while not table.catch_up():
                    pass
                parts.update(table.take_parts())
                table = TableCursor.restore(registry, table.state(), parts, clock=clock)
        while not table.catch_up():
            pass
        assert len(table) == len(latest)
        found = {record.topic: record.value for record in table.find(text)}
        assert found == {t: v for t, v in latest.items() if matches(text, t)}
        for topic in {topic for topic, _ in writes}:
            record = table.get(topic)
            assert (record.value if record else None) == latest.get(topic)
        await syncer.close()

    asyncio.run(check())


async def test_only_shards_that_changed_are_written(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.publish_many([Message(f"t/{n}", b"x") for n in range(1000)], principal=LOCAL)
        table = await broker.cursors.open_table("table", ["t/#"], principal=LOCAL)
        await broker.cursors.save(table)
        before = broker.streams.get("~cursors").partitions[0].end_offset
        await say(broker, "t/7", "y")
        await broker.cursors.save(table)
        after = broker.streams.get("~cursors").partitions[0].end_offset
        assert after - before == 2  # one shard and the state
        await broker.cursors.save(table)
        assert broker.streams.get("~cursors").partitions[0].end_offset == after + 1


async def test_a_table_goes_on_after_a_restart_and_reads_only_what_is_new(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await say(broker, "t/1", "one")
        await say(broker, "t/2", "two")
        await broker.cursors.open_table("table", ["t/+"], principal=LOCAL)
    async with running(tmp_path) as broker:
        await broker.publish(Message("t/2", None), principal=LOCAL)
        await say(broker, "t/3", "three")
        seen: list[str] = []

        def accepts(record: object) -> bool:
            seen.append(record.topic)  # type: ignore[attr-defined]
            return True

        table = await broker.cursors.open_table("table", ["t/+"], accepts=accepts, principal=LOCAL)
        assert sorted(spoken(table.find("#"))) == ["t/1=one", "t/3=three"]
        assert sorted(seen) == ["t/2", "t/3"]


async def test_expired_rows_are_gone(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker:
        await broker.streams.create(
            StreamConfig(name="ttl", captures=("ttl/#",), message_ttl_ms=1_000)
        )
        soon = ((EXPIRY, b"%d" % (clock.now_ms() + 500)),)
        await broker.publish(Message("t/1", b"x", headers=soon), principal=LOCAL)
        await broker.publish(Message("ttl/1", b"x"), principal=LOCAL)
        await broker.publish(Message("t/2", b"x"), principal=LOCAL)
        table = await broker.cursors.open_table("table", ["#"], principal=LOCAL)
        assert len(table.find("#")) == 3
        clock.advance(0.6)
        assert sorted(spoken(table.find("#"))) == ["t/2=x", "ttl/1=x"]
        clock.advance(0.6)
        assert table.get("ttl/1") is None
        assert spoken(table.find("#")) == ["t/2=x"]
        assert len(table) == 1


async def test_a_table_follows_by_wake_up_and_stops_when_it_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        table = await broker.cursors.open_table("table", ["#"], principal=LOCAL)
        await say(broker, "t", "1")
        assert spoken(table.find("t")) == ["t=1"]
        await broker.cursors.close_cursor(table)
        await say(broker, "t", "2")
        assert sum(row.visible.waiting for row in broker.streams.get("main").partitions) == 0


async def test_a_table_on_a_stopped_partition_does_not_spin_and_goes_on_elsewhere(
    tmp_path: Path,
) -> None:
    """I9."""
    async with running(tmp_path) as broker:
        await broker.streams.create(StreamConfig(name="one", captures=("only",)))
        table = await broker.cursors.open_table("table", ["only"], principal=LOCAL)
        for source in table.reading.sources.sources:
            source.partition.stop(PartitionStopped("it broke"))
        await broker.streams.delete("one")
        other = await broker.cursors.open_table("other", ["#"], principal=LOCAL)
        await say(broker, "somewhere", "else")
        stopped = broker.streams.get("main").partition_of(b"only")
        if broker.streams.get("main").partition_of(b"somewhere") is not stopped:
            assert len(other) == 1


async def test_rows_that_could_not_be_kept_are_kept_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: a full disk loses no change of a table."""
    async with running(tmp_path) as broker:
        table = await broker.cursors.open_table("table", ["#"], principal=LOCAL)
        await say(broker, "t", "1")
        partition = broker.streams.get("~cursors").partitions[0]
        real = partition.append_built

        def full(*_args: object, **_more: object) -> None:
            raise StorageFull("no room")

        monkeypatch.setattr(type(partition), "append_built", full)
        with pytest.raises(StorageFull):
            await broker.cursors.save(table)
        monkeypatch.undo()
        assert partition.append_built == real
        await broker.cursors.save(table)
        table._accepts = lambda _record: False  # so that reading on cannot repair it
    async with running(tmp_path) as broker:
        table = await broker.cursors.open_table(
            "table", ["#"], accepts=lambda _record: False, principal=LOCAL
        )
        assert spoken(table.find("#")) == ["t=1"]
