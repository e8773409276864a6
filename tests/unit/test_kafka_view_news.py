"""Is a view that waits told of what it waits for, and of nothing else?"""

from __future__ import annotations

from contextlib import asynccontextmanager
from unittest.mock import patch

import pytest

from onelog.base.errors import OnelogError
from onelog.broker import LOCAL, Broker, Message
from onelog.log.config import StreamConfig
from onelog.log.partition import Partition
from onelog.log.promises import Durability
from onelog.protocols.kafka.views import news
from onelog.protocols.kafka.views.news import FILTERS_MAX, News
from onelog.protocols.kafka.views.places import ShownPartition
from onelog.record.batch import build_batch
from onelog.record.compression import ZSTD
from tests.support.brokers import running


class Desk:
    """One partition with many topics, and who waits there."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        stream = broker.streams.get("s")
        self.place = ShownPartition(stream, stream.partitions[0])
        self.news = News(broker.troubles)
        self.told: list[str] = []

    @property
    def log(self) -> Partition:
        return self.place.log

    def wait(self, text: str, offset: int | None = None):
        def tell(error: OnelogError | None) -> None:
            self.told.append(text if error is None else f"{text} failed")

        at = int(self.log.last_stable_offset) if offset is None else offset
        return self.news.wait(self.place, text.encode(), at, tell)

    async def say(self, *topics: str) -> None:
        await self.broker.publish_many([Message(topic, b"x") for topic in topics], principal=LOCAL)


@asynccontextmanager
async def desk_in(tmp_path):
    async with running(tmp_path) as broker:
        config = StreamConfig(
            name="s", captures=("t/#",), partitions=1, durability=Durability.FSYNC
        )
        await broker.streams.create(config)
        found = Desk(broker)
        yield found
        found.news.close()


@pytest.fixture
async def desk(tmp_path):
    async with desk_in(tmp_path) as found:
        yield found


async def test_only_who_waits_for_a_topic_is_told_of_it(desk):
    for text in ("t/1", "t/2", "t/+", "t/1/#"):
        desk.wait(text)
    await desk.say("t/2")
    assert desk.told == ["t/2", "t/+"]
    await desk.say("t/1")
    assert desk.told == ["t/2", "t/+", "t/1", "t/1/#"]
    await desk.say("t/1", "t/2")
    assert len(desk.told) == 4


async def test_what_is_there_already_is_told_at_once(desk):
    await desk.say("t/1")
    assert desk.wait("t/2", 0) is None
    assert desk.told == ["t/2"]


async def test_a_filter_that_comes_later_is_told_of_topics_that_are_known(desk):
    desk.wait("t/1")
    await desk.say("t/2")
    desk.wait("t/2")
    desk.wait("+/2")
    await desk.say("t/2")
    assert desk.told == ["t/2", "+/2"]


async def test_a_wait_that_is_given_up_is_not_told_and_knows_what_it_passed(desk):
    waiter = desk.wait("t/1")
    await desk.say("t/2", "t/3")
    await desk.say("t/2")
    waiter.cancel()
    assert waiter.offset == 3
    await desk.say("t/1")
    assert desk.told == []


async def test_who_is_told_knows_that_nothing_came_before(desk):
    waiter = desk.wait("t/1")
    await desk.say("t/2", "t/3")
    await desk.say("t/2", "t/1")
    assert desk.told == ["t/1"]
    assert waiter.offset == 2


async def test_a_compressed_batch_is_news_for_everybody(desk):
    for text in ("t/1", "t/2"):
        desk.wait(text)
    row = (b"t/1", b"t/1", b"x", (), 1)
    desk.log.append_checked(bytearray(build_batch([row], codec=ZSTD, tag_topics=True)))
    await desk.log.wait_visible(desk.log.end_offset - 1)
    assert desk.told == ["t/1", "t/2"]


async def test_who_waits_behind_an_open_transaction_looks_at_all_of_it_again(desk):
    row = (b"t/1", b"t/1", b"x", (), 1)
    open_txn = build_batch([row], attributes=16, producer=(7, 0, 0), tag_topics=True)
    desk.log.append_checked(bytearray(open_txn))
    await desk.log.wait_visible(desk.log.end_offset - 1)
    assert desk.log.last_stable_offset == 0
    waiter = desk.wait("t/9")
    await desk.say("t/2")
    waiter.cancel()
    assert waiter.offset == 0


async def test_a_partition_that_stops_tells_everybody(desk):
    desk.wait("t/1")
    desk.log.stop(OnelogError("the disk is gone"))
    assert desk.told == ["t/1 failed"]
    assert desk.wait("t/2") is None
    assert desk.told == ["t/1 failed", "t/2 failed"]


async def test_filters_that_nobody_waits_for_are_forgotten(desk):
    for number in range(FILTERS_MAX + 10):
        desk.wait(f"t/{number}").cancel()
    (watch,) = desk.news._watches.values()
    assert len(watch._filters) <= FILTERS_MAX
    desk.wait("t/5")
    await desk.say("t/5")
    assert desk.told == ["t/5"]


async def test_a_record_that_waits_for_its_sync_while_the_first_one_listens_is_told(desk):
    """What was appended before the partition is followed becomes visible without being heard."""
    row = (b"t/1", b"t/1", b"x", (), 1)
    desk.log.append_checked(bytearray(build_batch([row], tag_topics=True)))
    assert desk.log.end_offset > desk.log.high_watermark
    desk.wait("t/1")
    assert desk.told == []
    await desk.log.wait_visible(desk.log.end_offset - 1)
    assert desk.told == ["t/1"]


async def test_waits_for_exact_topics_leave_the_records_of_others_alone(desk):
    """The hashes of the topic index are enough, whatever else is waited for and given up."""
    desk.wait("t/1")
    with patch.object(news, "topic_runs", side_effect=AssertionError("looked at")):
        await desk.say("t/2", "t/3")
    desk.wait("t/+").cancel()
    await desk.say("t/2")
    assert desk.told == []
    await desk.say("t/2", "t/1")
    assert desk.told == ["t/1"]
