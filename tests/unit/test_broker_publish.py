"""Publishing through the door: checks, hooks, batches per pass, durability, client batches."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from onelog.base import faults
from onelog.base.errors import (
    InvalidName,
    InvalidRequest,
    MessageTooLarge,
    NotAuthorized,
    NotLeader,
    OnelogError,
    PartitionStopped,
    QuotaExceeded,
    StorageFull,
)
from onelog.base.ids import Offset
from onelog.broker import (
    LOCAL,
    Action,
    Broker,
    BrokerSettings,
    Durability,
    Message,
    Notice,
    Principal,
    StreamConfig,
)
from onelog.kernel import TIMESTAMP_MS_MAX, BatchBuilder
from onelog.log.partition import Partition
from onelog.log.progress import Role
from tests.support.brokers import (
    batches_of,
    client_batch,
    history,
    home_of,
    put_batch,
    read_all,
    running,
    say,
    topic_rows,
)


def appended(broker: Broker) -> int:
    """Records in all streams of users."""
    return sum(
        int(partition.end_offset)
        for stream in broker.streams.streams()
        if not stream.config.internal
        for partition in stream.partitions
    )


class Doorkeeper:
    """Allows what starts with the principal's name."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Action, str]] = []

    def allows(self, principal: Principal, action: Action, resource: str) -> bool:
        self.asked.append((principal.name, action, resource))
        return resource.startswith(principal.name)


class Meter:
    """A quota of bytes."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take_publish(self, principal: Principal, messages: int, size_bytes: int) -> None:
        if size_bytes > self.left:
            raise QuotaExceeded(f"{principal.name} has {self.left} bytes left of {messages}")
        self.left -= size_bytes


async def test_who_may_not_publish_appends_nothing(tmp_path: Path) -> None:
    keeper, ann = Doorkeeper(), Principal("ann", "mqtt")
    async with running(tmp_path, authorizer=keeper) as broker:
        with pytest.raises(NotAuthorized):
            await broker.publish(Message("bob/x", b"x"), principal=ann)
        with pytest.raises(NotAuthorized):
            await broker.publish_many(
                [Message("ann/x", b"x"), Message("bob/x", b"x")], principal=ann
            )
        stream, partition = home_of(broker, "ann/x")
        with pytest.raises(NotAuthorized):
            await put_batch(
                broker, stream, partition.id, client_batch(topic_rows("ann/x", "1")), ann
            )
        assert appended(broker) == 0
        await broker.publish(Message("ann/x", b"x"), principal=ann)
        assert appended(broker) == 1
        assert (("ann", Action.PUBLISH, "bob/x")) in keeper.asked


async def test_who_may_not_subscribe_gets_no_cursor(tmp_path: Path) -> None:
    async with running(tmp_path, authorizer=Doorkeeper()) as broker:
        desk, ann = broker.cursors, Principal("ann")
        filters = ["ann/#", "#"]
        with pytest.raises(NotAuthorized):
            desk.open_tail(filters, principal=ann)
        with pytest.raises(NotAuthorized):
            await desk.open_offset("c", filters, principal=ann)
        with pytest.raises(NotAuthorized):
            await desk.open_session("c", filters, principal=ann)
        with pytest.raises(NotAuthorized):
            await desk.open_queue("c", filters, principal=ann)
        with pytest.raises(NotAuthorized):
            await desk.open_table("c", filters, principal=ann)
        assert desk.names() == []
        assert (await desk.open_queue("c", ["ann/+"], principal=ann)).name == "c"


async def test_a_used_up_quota_refuses_the_whole_call(tmp_path: Path) -> None:
    meter = Meter(100)
    async with running(tmp_path, quotas=meter) as broker:
        await broker.publish(Message("t", b"x" * 50), principal=LOCAL)
        with pytest.raises(QuotaExceeded):
            await broker.publish_many(
                [Message("t", b"x" * 30), Message("t", b"y" * 30)], principal=LOCAL
            )
        assert appended(broker) == 1
        await broker.publish(Message("t", b"x" * 20), principal=LOCAL)
        assert appended(broker) == 2


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Message("", b"x"), InvalidName),
        (Message("a/+", b"x"), InvalidName),
        (Message("a/#", b"x"), InvalidName),
        (Message("a\0", b"x"), InvalidName),
        (Message("\ud800", b"x"), InvalidName),
        (Message("x" * 1025, b"x"), InvalidName),
        (Message("t", b"x" * 1_100), MessageTooLarge),
        (Message("t", b"x", headers=((b"h", b"x" * 1_100),)), MessageTooLarge),
        (Message("t", b"x", headers=((b"~t", b"other"),)), InvalidRequest),
        (Message("t", b"x", headers=((b"h", b""),) * 1_000), InvalidRequest),
        (Message("t", b"x", timestamp_ms=TIMESTAMP_MS_MAX + 1), InvalidRequest),
    ],
)
async def test_messages_published_together_are_checked_before_one_is_staged(
    tmp_path: Path, bad: Message, error: type[OnelogError]
) -> None:
    settings = BrokerSettings(
        main=StreamConfig(
            name="main", captures=("#",), durability=Durability.OS, message_bytes_max=1_100
        )
    )
    async with running(tmp_path, settings) as broker:
        good = Message("t", b"good")
        with pytest.raises(error):
            await broker.publish_many([good, good, bad, good], principal=LOCAL)
        await say(broker, "t", "after")
        assert await history(broker, "#") == ["t=after"]


async def test_a_hundred_publishes_of_one_pass_are_one_batch(tmp_path: Path) -> None:
    """And each gets its own offset, in the order of the calls (I5)."""
    async with running(tmp_path) as broker:
        results = await asyncio.gather(
            *(
                broker.publish(Message("t", b"%d" % number), principal=LOCAL)
                for number in range(100)
            )
        )
        partition = home_of(broker, "t")[1]
        assert batches_of(partition) == 1
        assert [row.offset for row in results] == list(range(100))
        assert await history(broker, "t") == [f"t={number}" for number in range(100)]


async def test_one_pass_writes_one_batch_per_partition(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topics = [f"t/{number}" for number in range(50)]
        published = await asyncio.gather(
            *(broker.publish(Message(t, b"x"), principal=LOCAL) for t in topics)
        )
        for partition in broker.streams.get("main").partitions:
            assert batches_of(partition) <= 1
        assert len({(row.partition, row.offset) for row in published}) == 50


async def test_publish_returns_only_after_the_sync_and_readers_see_nothing_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4."""
    settings = BrokerSettings(
        main=StreamConfig(name="main", captures=("#",), durability=Durability.FSYNC)
    )
    async with running(tmp_path, settings) as broker:
        partition = broker.streams.get("main").partitions[0]
        gate, entered = threading.Event(), threading.Event()
        real = type(partition.log).sync

        def gated(self: object) -> object:
            if self is partition.log:
                entered.set()
                assert gate.wait(10)
            return real(self)  # type: ignore[arg-type]

        monkeypatch.setattr(type(partition.log), "sync", gated)
        cursor = broker.cursors.open_tail(["#"], principal=LOCAL)
        reading = asyncio.ensure_future(cursor.next())
        publishing = asyncio.ensure_future(broker.publish(Message("t", b"x"), principal=LOCAL))
        batch = client_batch(topic_rows("u", "y"))
        await asyncio.to_thread(entered.wait, 10)
        sending = asyncio.ensure_future(put_batch(broker, broker.streams.get("main"), 0, batch))
        for _ in range(20):
            await asyncio.sleep(0)
        assert partition.end_offset == 2
        assert not publishing.done()
        assert not sending.done()
        assert not reading.done()
        assert cursor.fetch() == []
        gate.set()
        assert (await asyncio.wait_for(publishing, 10)).offset == 0
        assert (await asyncio.wait_for(sending, 10)).base_offset == 1
        assert (await asyncio.wait_for(reading, 10))[0].value == b"x"


async def test_who_publishes_behind_messages_that_nobody_waits_for_is_answered_when_his_is_durable(
    tmp_path: Path,
) -> None:
    """I4: MQTT stages without a call, and AMQP publishes to the same partition while it syncs."""
    settings = BrokerSettings(
        main=StreamConfig(name="main", captures=("#",), durability=Durability.FSYNC)
    )
    async with running(tmp_path, settings) as broker:
        partition = broker.streams.get("main").partitions[0]
        partition.syncing = True  # a sync that takes its time
        broker.publisher.publish([Message("t", b"nobody waits")], None, principal=LOCAL)
        broker.publisher.tick()
        publishing = asyncio.ensure_future(broker.publish(Message("t", b"x"), principal=LOCAL))
        await asyncio.sleep(0)
        broker.publisher.tick()
        partition._synced((Offset(1), True), None)  # which had only the first one
        await asyncio.sleep(0)
        assert not publishing.done()
        assert (await asyncio.wait_for(publishing, 10)).offset == 1


async def test_an_error_of_one_partition_reaches_its_publishers_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: whatever kind of error it is, nobody waits for ever."""
    async with running(tmp_path) as broker:
        bad = home_of(broker, "t")[1]
        other = next(f"o/{n}" for n in range(99) if home_of(broker, f"o/{n}")[1] is not bad)
        real = Partition.append_built

        def broken(self: Partition, *args: object, **more: object) -> object:
            if self is bad:
                raise OSError("the disk is gone")
            return real(self, *args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(Partition, "append_built", broken)
        one, two = await asyncio.wait_for(
            asyncio.gather(
                broker.publish(Message("t", b"x"), principal=LOCAL),
                broker.publish(Message(other, b"x"), principal=LOCAL),
                return_exceptions=True,
            ),
            5,
        )
        assert isinstance(one, OnelogError)
        assert not isinstance(two, BaseException)


async def test_a_callback_may_publish_to_a_partition_that_is_still_to_be_written(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        topics = ["t", next(f"o/{n}" for n in range(99) if not same_home(broker, "t", f"o/{n}"))]
        answers: list[tuple[str, object]] = []
        answered = asyncio.Event()

        def third(error: OnelogError | None) -> None:
            answers.append(("third", error))
            answered.set()

        def first(error: OnelogError | None) -> None:
            answers.append(("first", error))
            broker.publisher.publish([Message(topics[1], b"third")], Notice(third), principal=LOCAL)

        broker.publisher.publish([Message(topics[0], b"first")], Notice(first), principal=LOCAL)
        broker.publisher.publish(
            [Message(topics[1], b"second")],
            Notice(lambda error: answers.append(("second", error))),
            principal=LOCAL,
        )
        await asyncio.wait_for(answered.wait(), 5)
        assert sorted(answers, key=str) == [("first", None), ("second", None), ("third", None)]
        assert await history(broker, topics[1]) == [f"{topics[1]}=second", f"{topics[1]}=third"]


def same_home(broker: Broker, one: str, other: str) -> bool:
    return home_of(broker, one)[1] is home_of(broker, other)[1]


async def test_a_producer_chooses_the_partition_only_in_a_stream_of_one_topic(
    tmp_path: Path,
) -> None:
    """I2: elsewhere a cursor on the topic would not look there."""
    async with running(tmp_path) as broker:
        await broker.streams.create(StreamConfig(name="one", captures=("one",), partitions=3))
        for number in range(3):
            published = await broker.publish(
                Message("one", b"%d" % number), partition=number, principal=LOCAL
            )
            assert published.partition == number
        assert sorted(await history(broker, "one")) == ["one=0", "one=1", "one=2"]
        usual = home_of(broker, "t")[1].id
        await broker.publish(Message("t", b"x"), partition=usual, principal=LOCAL)
        with pytest.raises(InvalidRequest):
            await broker.publish(Message("t", b"x"), partition=(usual + 1) % 4, principal=LOCAL)
        with pytest.raises(InvalidRequest):
            await broker.publish(Message("t", b"x"), partition=99, principal=LOCAL)
        assert await history(broker, "t") == ["t=x"]


# -- batches that a client built


@pytest.mark.parametrize("codec", range(5))
async def test_client_batches_are_stored_as_they_came(tmp_path: Path, codec: int) -> None:
    async with running(tmp_path) as broker:
        stream = await broker.streams.create(StreamConfig(name="k", captures=("k",)))
        await say(broker, "k", "before")
        batch = client_batch(topic_rows("k", "1", "2"), codec=codec)
        sent = bytes(batch)
        result = await put_batch(broker, stream, 0, batch)
        assert (result.base_offset, result.end_offset, result.duplicate) == (1, 3, False)
        stored = bytes(stream.partitions[0].read(result.base_offset, 1 << 20))
        assert stored[16:] == sent[16:]  # all but base offset and leader epoch
        assert await history(broker, "k") == ["k=before", "k=1", "k=2"]


async def test_a_repeated_idempotent_batch_is_answered_with_its_old_offset(
    tmp_path: Path,
) -> None:
    """I1: it is appended once."""
    async with running(tmp_path) as broker:
        stream = await broker.streams.create(StreamConfig(name="k", captures=("k",)))

        def batch(sequence: int) -> bytearray:
            return client_batch(topic_rows("k", f"{sequence}"), producer=(5, 0, sequence))

        for sequence in range(3):
            await put_batch(broker, stream, 0, batch(sequence))
        again = await put_batch(broker, stream, 0, batch(1))
        assert (again.base_offset, again.duplicate) == (1, True)
        assert stream.partitions[0].end_offset == 3


async def test_what_was_published_before_a_client_batch_lies_before_it(tmp_path: Path) -> None:
    """I5."""
    async with running(tmp_path) as broker:
        stream, partition = home_of(broker, "t")
        first = asyncio.ensure_future(broker.publish(Message("t", b"1"), principal=LOCAL))
        await asyncio.sleep(0)
        await put_batch(broker, stream, partition.id, client_batch(topic_rows("t", "2")))
        await first
        await say(broker, "t", "3")
        assert await history(broker, "t") == ["t=1", "t=2", "t=3"]


async def test_nobody_writes_to_the_broker_s_own_streams(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        stream = broker.streams.get("~cursors")
        with pytest.raises(NotAuthorized):
            await put_batch(broker, stream, 0, client_batch(topic_rows("t", "1")))
        assert stream.partitions[0].end_offset == 0


async def test_publishing_to_a_stopped_partition_fails_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        home_of(broker, "t")[1].stop(PartitionStopped("it broke"))
        with pytest.raises(PartitionStopped):
            await broker.publish(Message("t", b"x"), principal=LOCAL)


async def test_what_is_staged_when_the_broker_closes_is_written(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        broker.publisher.publish([Message("t", b"last words")], None, principal=LOCAL)
    async with running(tmp_path) as broker:
        assert await history(broker, "t") == ["t=last words"]
        assert read_all(broker.cursors.open_tail(["#"], principal=LOCAL)) == []


async def test_a_listener_of_ticks_that_raises_keeps_nothing_from_being_written(
    tmp_path: Path,
) -> None:
    """I4: what is staged is written and answered, whoever raises when a tick begins."""

    def raises(_tick: object) -> None:
        raise ValueError("a listener")

    heard: list[object] = []
    async with running(tmp_path) as broker:
        broker.publisher.on_tick.extend([raises, heard.append])
        for number in range(3):
            async with asyncio.timeout(10):
                await broker.publish(Message(f"t/{number}", b"x"), principal=LOCAL)
        assert appended(broker) == 3
        assert len(heard) == 3
        assert broker.troubles.count("tick-listener") == 3


async def test_who_is_woken_in_the_middle_of_a_tick_and_publishes_waits_for_its_own_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick in a tick: neither order nor answers get mixed up, also when a write fails."""
    async with running(tmp_path) as broker:
        publisher, stream = broker.publisher, broker.streams.get("main")
        topics = {int(stream.partition_of(b"t%d" % n).id): f"t{n}" for n in range(100)}
        told: list[tuple[str, bool]] = []
        writes = 0
        append = Partition.append_built

        def fail_third(partition: Partition, builder: BatchBuilder, index_topics: bool) -> object:
            nonlocal writes
            writes += 1
            if writes != 3:
                return append(partition, builder, index_topics)
            builder.seal(0, 0)
            raise StorageFull("the disk is full")

        monkeypatch.setattr(Partition, "append_built", fail_third)
        monkeypatch.setitem(faults.armed, "nowhere", lambda: None)  # then all take the long way

        def first(error: OnelogError | None) -> None:
            told.append(("first", error is None))
            # To the partition that the outer tick has not written yet, and at once.
            publisher.publish(
                [Message(topics[1], b"late")],
                Notice(lambda error: told.append(("late", error is None))),
                principal=LOCAL,
            )
            publisher.tick()

        publisher.publish([Message(topics[0], b"first")], Notice(first), principal=LOCAL)
        publisher.publish(
            [Message(topics[1], b"second")],
            Notice(lambda error: told.append(("second", error is None))),
            principal=LOCAL,
        )
        publisher.tick()
        assert told == [("first", True), ("second", True), ("late", False)]
        assert int(stream.partition(1).end_offset) == 1
        assert publisher.messages == 2


async def test_an_answer_that_raises_keeps_no_other_from_its_own(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:

        def fault(_error: OnelogError | None) -> None:
            raise KeyError("a fault")

        broker.publisher.publish([Message("t", b"1")], Notice(fault), principal=LOCAL)
        assert (await broker.publish(Message("t", b"2"), principal=LOCAL)).offset == 1
        assert (await broker.publish(Message("t", b"3"), principal=LOCAL)).offset == 2
        assert broker.troubles.count("publish-answer") == 1


async def test_a_partition_that_is_led_elsewhere_takes_nothing_staged_or_not(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        partition = home_of(broker, "t")[1]
        staged = asyncio.ensure_future(broker.publish(Message("t", b"x"), principal=LOCAL))
        await asyncio.sleep(0)
        partition.replica.become(Role.FOLLOWER, 1)
        for publishing in (staged, broker.publish(Message("t", b"y"), principal=LOCAL)):
            with pytest.raises(NotLeader):
                await publishing
        assert broker.publisher.route("t", LOCAL) is None
        partition.replica.become(Role.LEADER, 2)
        assert (await broker.publish(Message("t", b"z"), principal=LOCAL)).offset == 0
