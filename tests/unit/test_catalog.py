"""The catalog: streams made, changed, deleted, found again after a restart, damaged or not."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from onelog.base.errors import (
    AlreadyExists,
    Conflict,
    InvalidName,
    InvalidRequest,
    NotAuthorized,
    OnelogError,
    PartitionCorrupt,
    PartitionStopped,
    StorageError,
    StorageFull,
    StreamNotFound,
    TopicNotFound,
    Unavailable,
)
from onelog.base.ids import Offset, PartitionId
from onelog.broker import LOCAL, Message
from onelog.log.config import Cleanup, Retention, StreamConfig
from onelog.log.partition import Durability
from onelog.metadata.store import Compare, MetadataStore, Op, TxnResult
from onelog.storage.engine import LogSettings, PartitionKey, PartitionLog
from onelog.storage.segment import SegmentEngine
from tests.logs import Node, pairs, put, row
from tests.support.brokers import running
from tests.support.metadata import DyingStore, Fault, FaultyStore

MAIN = StreamConfig(name="main", captures=("#",), partitions=2, durability=Durability.OS)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def change(config: StreamConfig, **fields: object) -> StreamConfig:
    return msgspec.structs.replace(config, **fields)


# -- create


async def test_a_created_stream_is_open_and_found_by_name_and_topic(node: Node) -> None:
    catalog = await node.start()
    changes: list[int] = []
    catalog.on_change.append(lambda: changes.append(1))
    main = await catalog.create(MAIN)
    orders = await catalog.create(StreamConfig(name="orders", captures=("orders",)))
    assert catalog.get("main") is main
    assert catalog.find("nothing") is None
    assert catalog.home("orders") is orders
    assert catalog.home("orders/1") is main
    assert [stream.name for stream in catalog.streams()] == ["main", "orders"]
    assert len(main.partitions) == 2
    assert main.record.created_ms == node.clock.now_ms()
    assert len(changes) == 2
    await node.stop()


@pytest.mark.parametrize("steps", range(6))
async def test_a_change_is_made_whole_when_whoever_asked_for_it_leaves(
    node: Node, steps: int
) -> None:
    """I9: else the store would know a stream that nobody can use or make again."""
    catalog = await node.start()
    asking = asyncio.create_task(catalog.create(MAIN))
    for _ in range(steps):
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    if catalog.find("main") is None:
        with contextlib.suppress(AlreadyExists):  # it goes on, before this
            await catalog.create(MAIN)
    assert catalog.get("main").partitions
    await node.stop()
    catalog = await node.start()
    assert catalog.get("main").partitions
    await node.stop()


async def test_what_cannot_be_created_changes_nothing(node: Node) -> None:
    catalog = await node.start()
    await catalog.create(MAIN)
    catalog.checks.reserved = ("amqp.",)
    refused: list[tuple[StreamConfig, type[OnelogError]]] = [
        (MAIN, AlreadyExists),
        (StreamConfig(name="other", captures=("#",)), Conflict),
        (StreamConfig(name="a/b"), InvalidName),
        (StreamConfig(name="amqp.x.logs", captures=("plant/#",)), InvalidName),
        (StreamConfig(name="x", partitions=0), InvalidRequest),
        (StreamConfig(name="x", engine="tape"), InvalidRequest),
        (StreamConfig(name="x", captures=("a/#/b",)), InvalidName),
        (StreamConfig(name="x", captures=("a", "a")), InvalidRequest),
        (StreamConfig(name="x", retention=Retention(bytes=-2)), InvalidRequest),
    ]
    for config, error in refused:
        with pytest.raises(error):
            await catalog.create(config)
    with pytest.raises(StreamNotFound):
        catalog.get("x")
    catalog = await node.restart()
    assert [stream.name for stream in catalog.streams()] == ["main"]
    assert catalog.orphans == []
    await node.stop()


class FullEngine(SegmentEngine):
    """A disk without room for another partition."""

    full = True

    def open(self, key: PartitionKey, settings: LogSettings) -> PartitionLog:  # type: ignore[override]
        if self.full:
            raise StorageFull("no room")
        return super().open(key, settings)


async def test_a_stream_that_could_not_be_opened_can_be_created_later(node: Node) -> None:
    engine = FullEngine(node.directory / "segment", node.clock)
    catalog = await node.start({"segment": engine})
    with pytest.raises(StorageFull):
        await catalog.create(StreamConfig(name="s"))
    assert catalog.find("s") is None
    engine.full = False
    await catalog.create(StreamConfig(name="s"))
    await node.stop()


# -- alter


async def test_a_change_reaches_the_running_partitions_and_survives(node: Node) -> None:
    catalog = await node.start()
    stream = await catalog.create(StreamConfig(name="s", captures=("a",)))
    put(stream.partitions[0], row(b"k", b"1"))
    config = change(
        stream.config,
        durability=Durability.OS,
        message_bytes_max=500,
        cleanup=Cleanup.COMPACT,
        partitions=3,
    )
    altered = await catalog.alter(config)
    assert altered is stream
    assert stream.config == config
    assert [partition.id for partition in stream.partitions] == [0, 1, 2]
    assert {partition.durability for partition in stream.partitions} == {Durability.OS}
    assert stream.partitions[0].message_bytes_max == 500
    put(stream.partitions[2], row(b"k", b"2"))
    catalog = await node.restart()
    stream = catalog.get("s")
    assert stream.config == config
    assert pairs(stream.partitions[0].log) == [(b"k", b"1")]
    assert pairs(stream.partitions[2].log) == [(b"k", b"2")]
    await node.stop()


async def test_what_is_seen_of_a_stream_that_says_fsync_is_durable(node: Node) -> None:
    """ADR 2: also what came while it said `os`, once the change is answered."""
    catalog = await node.start()
    config = StreamConfig(name="s", captures=("a",), durability=Durability.OS)
    stream = await catalog.create(config)
    partition = stream.partitions[0]
    put(partition, row(b"k", b"1"))
    assert partition.log.durable_offset < partition.high_watermark
    await catalog.alter(change(config, durability=Durability.FSYNC))
    assert partition.log.durable_offset == partition.high_watermark
    await node.stop()


async def test_what_cannot_be_changed_is_refused_and_nothing_changes(node: Node) -> None:
    catalog = await node.start()
    await catalog.create(MAIN)
    stream = await catalog.create(StreamConfig(name="s", captures=("a",), partitions=2))
    before = stream.record
    refused: list[tuple[StreamConfig, type[OnelogError]]] = [
        (change(stream.config, engine="memory"), InvalidRequest),
        (change(stream.config, partitions=1), InvalidRequest),
        (change(stream.config, captures=("a", "#")), Conflict),
        (change(stream.config, name="t"), StreamNotFound),
    ]
    for config, error in refused:
        with pytest.raises(error):
            await catalog.alter(config)
    assert stream.record == before
    assert catalog.home("a") is stream
    await node.stop()


async def test_moved_captures_move_the_home_and_the_old_stream_still_holds(node: Node) -> None:
    catalog = await node.start()
    main = await catalog.create(MAIN)
    node.clock.advance(1)
    old = await catalog.create(StreamConfig(name="old", captures=("a/+", "b")))
    node.clock.advance(1)
    new = await catalog.create(StreamConfig(name="new"))
    await catalog.alter(change(old.config, captures=("b",)))
    await catalog.alter(change(new.config, captures=("a/+",)))
    assert catalog.home("a/1") is new
    assert old.record.past_captures == ("a/+",)
    assert catalog.holders("a/1")[-1] is new  # the home of an exact topic comes last
    assert old in catalog.holders("a/1")
    assert old in catalog.holders("+/1")
    assert old in catalog.holders("+/+")
    assert old not in catalog.holders("c/1")
    assert main in catalog.holders("c/1")
    await catalog.alter(change(new.config, captures=()))
    await catalog.alter(change(old.config, captures=("a/+", "b")))
    assert old.record.past_captures == ()
    await node.stop()


class SlowStore(FaultyStore):
    """The real store, whose transactions wait until the test lets them through."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        self.entered.set()
        await self.gate.wait()
        return await super().txn(compares, then, otherwise)


async def test_records_appended_while_captures_change_carry_their_topic(node: Node) -> None:
    """Else a reader would take them for records that carry it, and find another topic."""
    slow: SlowStore | None = None

    def through(store: MetadataStore) -> MetadataStore:
        nonlocal slow
        slow = SlowStore(store)
        return slow

    catalog = await node.start(through=through)
    assert slow is not None
    stream = await catalog.create(StreamConfig(name="s", captures=("a",)))
    put(stream.partitions[0], row(b"k", b"1"))
    assert not stream.tags_topics
    slow.entered.clear()
    slow.gate.clear()
    altering = asyncio.create_task(catalog.alter(change(stream.config, captures=("a", "b"))))
    await slow.entered.wait()
    assert stream.tags_topics
    assert stream.fixed_topic_at(0, 0) == "a"
    assert stream.fixed_topic_at(0, 1) is None
    slow.gate.set()
    await altering
    assert stream.record.fixed_until == (1,)
    slow.faults.append(Fault.REFUSED)
    before = stream.record
    with pytest.raises(Unavailable):
        await catalog.alter(change(stream.config, captures=("c",)))
    assert stream.record == before
    await node.stop()


# -- delete


async def test_a_deleted_stream_is_gone_with_its_data_and_its_name_is_free(node: Node) -> None:
    catalog = await node.start()
    await catalog.create(MAIN)
    stream = await catalog.create(StreamConfig(name="s", captures=("a",), partitions=2))
    put(stream.partitions[0], row(b"k", b"1"))
    waiting = stream.partitions[0].wait_visible(Offset(9))
    key = stream.key(PartitionId(0))
    await catalog.delete("s")
    with pytest.raises(StreamNotFound):
        await waiting
    assert catalog.home("a").name == "main"
    assert key not in node.engines["segment"].partitions()
    with pytest.raises(StreamNotFound):
        await catalog.delete("s")
    again = await catalog.create(StreamConfig(name="s", captures=("a",)))
    assert again.record.id != stream.record.id
    assert again.partitions[0].end_offset == 0
    await node.stop()


async def test_streams_of_the_broker_itself_stay(node: Node) -> None:
    catalog = await node.start()
    await catalog.create(StreamConfig(name="~cursors"))
    with pytest.raises(NotAuthorized):
        await catalog.delete("~cursors")
    assert catalog.get("~cursors").config.internal
    await node.stop()


async def test_a_stopped_partition_does_not_keep_its_stream_from_being_deleted(
    node: Node,
) -> None:
    catalog = await node.start()
    stream = await catalog.create(StreamConfig(name="s"))
    stream.partitions[0].stop(PartitionStopped("the disk failed"))
    await catalog.alter(change(stream.config, message_bytes_max=500))
    await catalog.delete("s")
    assert node.engines["segment"].partitions() == []
    await node.stop()


class StuckEngine(SegmentEngine):
    """An engine that cannot delete, as when the process dies there."""

    def delete(self, key: PartitionKey) -> None:
        raise StorageError("cut off")


async def test_an_interrupted_deletion_is_finished_at_the_next_start(node: Node) -> None:
    stuck = StuckEngine(node.directory / "segment", node.clock)
    catalog = await node.start({"segment": stuck})
    stream = await catalog.create(StreamConfig(name="s", partitions=2))
    put(stream.partitions[1], row(b"k", b"1"))
    with pytest.raises(StorageError):
        await catalog.delete("s")
    assert len(stuck.partitions()) == 2
    catalog = await node.restart()
    assert catalog.find("s") is None
    assert node.engines["segment"].partitions() == []
    assert catalog.orphans == []
    assert (await node.store.range("deleting/")).entries == ()
    await node.stop()


async def deletion_that_ends(node: Node, after: int) -> bool:
    """Delete a stream of many partitions; whether its process came to the end."""
    dying: DyingStore | None = None

    def through(store: MetadataStore) -> MetadataStore:
        nonlocal dying
        dying = DyingStore(store)
        return dying

    catalog = await node.start(through=through)
    assert dying is not None
    await catalog.create(MAIN)
    stream = await catalog.create(StreamConfig(name="s", captures=("a",), partitions=300))
    for partition in stream.partitions:
        put(partition, row(b"k", b"1"))
        await partition.flush()
    await catalog.begun.settle()
    dying.left = after
    try:
        await catalog.delete("s")
    except Unavailable:
        return False
    finally:
        dying.left = 0
        await node.stop()
    return True


@pytest.mark.parametrize("after", range(4))
async def test_a_deletion_of_any_size_that_ends_anywhere_is_whole_after_the_next_start(
    node: Node, after: int
) -> None:
    """The stream is there with all its data, or nothing of it is: no row, no file, no name."""
    is_done = await deletion_that_ends(node, after)
    assert is_done == (after >= 3), "the test passes every step"
    catalog = await node.start()
    if after == 0:
        assert len(catalog.get("s").partitions) == 300
        assert pairs(catalog.get("s").partitions[299].log) == [(b"k", b"1")]
    else:
        assert catalog.find("s") is None
        left = (await node.store.range("")).entries
        assert [entry.key for entry in left if entry.key.startswith(("begun/s", "deleting/"))] == []
        there = node.engines["segment"].partitions()
        assert not [key for key in there if key.stream_id.startswith("s-")]
        assert catalog.orphans == []
        await catalog.create(StreamConfig(name="s", captures=("a",)))
        assert catalog.get("s").partitions[0].end_offset == 0
    await node.stop()


# -- start


async def test_data_that_the_store_does_not_know_is_reported_and_kept(node: Node) -> None:
    catalog = await node.start()
    await catalog.create(StreamConfig(name="s"))
    stranger = PartitionKey("stranger-1", PartitionId(4))
    node.engines["segment"].open(stranger, LogSettings()).close()
    catalog = await node.restart()
    assert catalog.orphans == [stranger]
    catalog = await node.restart()
    assert stranger in node.engines["segment"].partitions()
    await node.stop()


async def test_a_damaged_partition_is_opened_as_stopped_and_the_others_run(node: Node) -> None:
    """I9: damage before the recovery point stops that partition, and only that."""
    catalog = await node.start()
    stream = await catalog.create(StreamConfig(name="s", partitions=2))
    for partition in stream.partitions:
        put(partition, row(b"k", b"precious"))
        await partition.flush()
    directory = node.directory / "segment" / stream.record.id / "1"
    await node.stop()
    (path,) = directory.glob("*.log")
    (node.directory / "segment" / "clean-shutdown").unlink()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 3)
    catalog = await node.start()
    good, bad = catalog.get("s").partitions
    assert good.stopped is None
    put(good, row(b"k", b"2"))
    assert isinstance(bad.stopped, PartitionCorrupt)
    with pytest.raises(PartitionCorrupt):
        put(bad, row(b"k", b"2"))
    with pytest.raises(PartitionCorrupt):
        bad.read(Offset(0), 100)
    await catalog.alter(change(catalog.get("s").config, message_bytes_max=500))
    assert catalog.get("s").size_bytes > 0
    await node.stop()


async def test_damage_that_shows_only_in_the_replay_stops_the_partition_too(node: Node) -> None:
    catalog = await node.start()
    stream = await catalog.create(StreamConfig(name="s", partitions=2))
    for partition in stream.partitions:
        put(partition, row(b"k", b"precious"))
    directory = node.directory / "segment" / stream.record.id / "1"
    await node.stop()
    for state in directory.glob("*.state"):
        state.unlink()
    (path,) = directory.glob("*.log")
    damaged = bytearray(path.read_bytes())
    damaged[16] = 9  # the magic byte of the first batch; a clean start does not scan
    path.write_bytes(damaged)
    catalog = await node.start()
    good, bad = catalog.get("s").partitions
    assert good.stopped is None
    assert isinstance(bad.stopped, PartitionCorrupt)
    await node.stop()


async def test_a_topic_that_nothing_captures_has_no_home(node: Node) -> None:
    catalog = await node.start()
    with pytest.raises(TopicNotFound):
        catalog.home("a")
    await node.stop()


async def test_a_stream_in_memory_is_another_one_after_a_restart(tmp_path: Path) -> None:
    """Kept positions must not be taken for offsets that begin anew."""
    async with running(tmp_path) as broker:
        await broker.streams.create(StreamConfig(name="m", captures=("m/#",), engine="memory"))
        await broker.publish_many([Message("m/a", b"%d" % n) for n in range(10)], principal=LOCAL)
        cursor = await broker.cursors.open_offset("reader", ["m/a"], principal=LOCAL)
        assert len(cursor.fetch()) == 10
        cursor.commit_read()
        await broker.cursors.save(cursor)
    async with running(tmp_path) as broker:
        await broker.publish_many(
            [Message("m/a", b"%d" % n) for n in range(20, 25)], principal=LOCAL
        )
        cursor = await broker.cursors.open_offset("reader", ["m/a"], principal=LOCAL)
        assert [record.value for record in cursor.fetch()] == [b"20", b"21", b"22", b"23", b"24"]


async def test_a_change_by_which_many_streams_gain_is_written_whatever_their_number(
    node: Node,
) -> None:
    """More of them than one transaction takes."""
    catalog = await node.start()
    wide = await catalog.create(change(MAIN, name="wide", captures=("a/#", "b"), partitions=1))
    put(wide.partitions[0], row(b"k", b"1"))
    config = StreamConfig(name="s", engine="memory", durability=Durability.MEMORY)
    names = [f"s{number}" for number in range(130)]
    for name in names:
        await catalog.create(change(config, name=name, captures=(f"a/{name}/+",)))
    await catalog.alter(change(wide.config, captures=("b",)))
    assert all(catalog.get(name).record.moves for name in names)
    await node.stop()
    again = await node.start()
    assert again.get("wide").config.captures == ("b",)
    assert all(again.get(name).record.moves for name in names)
    await node.stop()
