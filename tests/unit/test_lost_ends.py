"""After a power cut took the end of a log, or damage all of it: what is remembered of its offsets.

What cursors and streams remember is in another place, and may know of more than is left. Offsets
that were lost are given to other records: nothing that was remembered of them may count for these.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from onelog.base.clock import ManualClock
from onelog.base.ids import Offset, PartitionId
from onelog.broker import EARLIEST, LOCAL, Broker, Durability, QueueSettings, StreamConfig
from onelog.log.moves import Move, settle
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.segment import SegmentEngine
from tests.support.brokers import history, running, say, spoken

ONE = StreamConfig(name="one", captures=("t/#",), durability=Durability.OS)


def lose_end(path: Path, stream_id: str, end: int) -> None:
    """Let a closed log end earlier, as a power cut does at level `os`."""
    engine = SegmentEngine(path / "segment", ManualClock())
    log = engine.open(PartitionKey(stream_id, PartitionId(0)), LogSettings())
    log.truncate(Offset(end))
    engine.close()


async def test_a_table_holds_what_is_left_when_its_log_lost_the_end(tmp_path: Path) -> None:
    """What lay there had replaced `t/1` and removed `t/2`."""
    async with running(tmp_path) as broker:
        stream = await broker.streams.create(ONE)
        await say(broker, "t/1", "old")
        await say(broker, "t/2", "there")
        table = await broker.cursors.open_table("table", ["t/#"], principal=LOCAL)
        await say(broker, "t/1", "new")
        await say(broker, "t/2", "")
        assert spoken(table.find("#")) == ["t/1=new"]
    lose_end(tmp_path, stream.record.id, 2)
    async with running(tmp_path) as broker:
        table = await broker.cursors.open_table("table", ["t/#"], principal=LOCAL)
        assert sorted(spoken(table.find("#"))) == ["t/1=old", "t/2=there"]
        await say(broker, "t/3", "in the place of t/1")
        assert spoken(table.find("t/1")) == ["t/1=old"]


async def test_what_is_remembered_of_a_damaged_partition_counts_when_it_is_back(
    tmp_path: Path,
) -> None:
    """I3, ADR 6: nobody reads or settles twice because a file was damaged and restored."""

    async def open_both(broker: Broker) -> tuple[list[str], list[str]]:
        reader = await broker.cursors.open_offset("reader", ["t/#"], principal=LOCAL)
        queue = await broker.cursors.open_queue(
            "queue", ["t/#"], start=EARLIEST, settings=QueueSettings(), principal=LOCAL
        )
        if broker.stopped_partitions():
            return [], []
        records = reader.fetch(10)
        reader.commit_read()
        await broker.cursors.save(reader)
        deliveries = queue.acquire("c", 10)
        for delivery in deliveries:
            queue.ack(delivery.token)
        await broker.cursors.save(queue)
        return spoken(records), spoken([row.record for row in deliveries])

    async with running(tmp_path) as broker:
        stream = await broker.streams.create(ONE)
        await say(broker, "t/1", "1", "2")
        assert await open_both(broker) == (["t/1=1", "t/1=2"], ["t/1=1", "t/1=2"])
    file = next((tmp_path / "segment" / stream.record.id / "0").glob("*.log"))
    whole = file.read_bytes()
    file.write_bytes(whole[:1])
    async with running(tmp_path) as broker:
        assert broker.stopped_partitions()
        await open_both(broker)
    file.write_bytes(whole)
    async with running(tmp_path) as broker:
        await say(broker, "t/1", "3")
        assert await open_both(broker) == (["t/1=3"], ["t/1=3"])


async def test_records_in_the_place_of_lost_ones_keep_their_topic(tmp_path: Path) -> None:
    """I6: the stream was made for one topic; since when it has more is known by offsets."""
    config = StreamConfig(name="one", captures=("t/1",), durability=Durability.OS)
    async with running(tmp_path) as broker:
        stream = await broker.streams.create(config)
        await say(broker, "t/1", "1", "2")
        await say(broker, "t/1", "3")
        await broker.streams.alter(msgspec.structs.replace(config, captures=("t/1", "t/2")))
    lose_end(tmp_path, stream.record.id, 2)
    async with running(tmp_path) as broker:
        await say(broker, "t/2", "4")
        assert await history(broker, "t/#") == ["t/1=1", "t/1=2", "t/2=4"]


def test_a_stream_that_grew_does_not_wait_for_itself_after_a_crash() -> None:
    """Records came between the plan and the crash: its partitions would wait for each other."""
    planned = Move((2, 0), ((("s", 0), 2), (("s", 1), 0)), is_exact=False)
    ends = {("s", 0): 5, ("s", 1): 3, ("s", 2): 0}
    settled = settle((planned,), ends, "s")[0]
    assert settled == Move((5, 3), ((("s", 0), 5), (("s", 1), 3)))


def test_nobody_waits_for_records_that_are_lost() -> None:
    move = Move((4,), ((("old", 0), 9), (("stopped", 0), 7)))
    settled = settle((move,), {("old", 0): 6, ("new", 0): 3}, "new")[0]
    assert settled == Move((3,), ((("old", 0), 6), (("stopped", 0), 7)))
