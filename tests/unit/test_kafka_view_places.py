"""Which partitions a view shows, and that their numbers stay when streams come and grow."""

from __future__ import annotations

import msgspec
import pytest

from onelog.base.clock import ManualClock
from onelog.broker import LOCAL, Durability, Message, StreamConfig
from onelog.protocols.kafka.views.places import shown_partitions
from tests.support.brokers import history, running
from tests.support.kafka_hub import desk


def stream(name, *captures, partitions=2):
    return StreamConfig(
        name=name, captures=captures, partitions=partitions, durability=Durability.OS
    )


def shown(broker, text):
    return [f"{place.stream.name}/{place.log.id}" for place in shown_partitions(broker, text)]


@pytest.fixture
async def broker(tmp_path):
    async with running(tmp_path) as made:
        yield made


async def test_a_filter_shows_every_partition_that_may_hold_its_records(broker):
    await broker.streams.create(stream("plant", "plant/#"))
    await broker.streams.create(stream("one", "plant/one"))
    main = [f"main/{number}" for number in range(4)]
    assert shown(broker, "plant/+") == [*main, "plant/0", "plant/1", "one/0", "one/1"]
    assert shown(broker, "other/+") == main


async def test_an_exact_topic_shows_the_partition_where_it_lives_and_lived(broker):
    topic = "plant/a"
    (before,) = shown(broker, topic)
    await broker.publish(Message(topic, b"x"), principal=LOCAL)
    assert before == f"main/{broker.streams.home(topic).partition_of(topic.encode()).id}"
    plant = await broker.streams.create(stream("plant", "plant/#"))
    home = f"plant/{plant.partition_of(topic.encode()).id}"
    assert shown(broker, topic) == [before, home]


async def test_what_comes_later_gets_higher_numbers(broker):
    clock = broker._clock
    assert isinstance(clock, ManualClock)  # it stands still: age must be an order all the same
    text, seen = "plant/#", []
    for step in ("b", "a", "grow main", "c", "grow a"):
        if step.startswith("grow"):
            config = broker.streams.get(step.split()[1]).config
            await broker.streams.alter(
                msgspec.structs.replace(config, partitions=config.partitions + 2)
            )
        else:
            await broker.streams.create(stream(step, f"plant/{step}/#"))
        now = shown(broker, text)
        assert now[: len(seen)] == seen, step
        assert len(now) == len(set(now)) > len(seen)
        seen = now


async def test_an_exact_topic_keeps_its_numbers_when_partitions_are_added(broker):
    topics = [f"plant/{number}" for number in range(20)]
    before = {topic: shown(broker, topic) for topic in topics}
    for partitions in (5, 7):
        config = broker.streams.get("main").config
        await broker.streams.alter(msgspec.structs.replace(config, partitions=partitions))
        after = {topic: shown(broker, topic) for topic in topics}
        for topic in topics:
            assert after[topic][: len(before[topic])] == before[topic]
            home = broker.streams.get("main").partition_of(topic.encode()).id
            assert f"main/{home}" in after[topic]
            assert len(after[topic]) <= len(before[topic]) + 1
        before = after


async def test_numbers_are_the_same_after_a_restart(tmp_path):
    async with running(tmp_path) as broker:
        await broker.streams.create(stream("b", "plant/b/#"))
        await broker.streams.create(stream("a", "plant/a/#"))
        config = broker.streams.get("main").config
        await broker.streams.alter(msgspec.structs.replace(config, partitions=6))
        before = [shown(broker, text) for text in ("plant/#", "plant/x", "plant/a/+")]
    async with running(tmp_path) as broker:
        assert [shown(broker, text) for text in ("plant/#", "plant/x", "plant/a/+")] == before


async def test_a_stream_that_captured_it_once_still_shows_it(broker):
    plant = await broker.streams.create(stream("plant", "plant/#", "office/#"))
    await broker.streams.alter(msgspec.structs.replace(plant.config, captures=("office/#",)))
    assert shown(broker, "plant/+")[-2:] == ["plant/0", "plant/1"]
    await broker.streams.delete("plant")
    assert shown(broker, "plant/+") == [f"main/{number}" for number in range(4)]


async def test_a_topic_that_gets_a_stream_of_its_own_keeps_its_numbers(tmp_path):
    """What a group committed in the old home stays with the records it was committed for."""
    async with desk(tmp_path) as here:
        broker = here.broker
        await broker.publish(Message("plant/a", b"first"), principal=LOCAL)
        (before,) = shown(broker, "plant/a")
        await broker.streams.create(stream("own", "plant/a", partitions=1))
        await broker.publish(Message("plant/a", b"second"), principal=LOCAL)
        topic = here.hub.topics.get("plant.a")
        assert topic.stream is None  # a view, with what lies in both
        assert topic.partition_count == 2
        assert shown(broker, "plant/a") == [before, "own/0"]


async def test_a_topic_whose_stream_captures_more_or_lets_it_go_keeps_its_numbers(tmp_path):
    async with desk(tmp_path) as here:
        broker = here.broker
        await broker.publish(Message("other", b"in main"), principal=LOCAL)
        own = await broker.streams.create(stream("own", "orders", partitions=3))
        assert here.hub.topics.get("orders").stream is own
        for number in range(3):
            await broker.publish(Message("orders", b"x"), partition=number, principal=LOCAL)
        places = ["own/0", "own/1", "own/2"]
        await broker.streams.alter(msgspec.structs.replace(own.config, captures=("orders", "b")))
        assert here.hub.topics.get("orders").stream is None
        assert shown(broker, "orders") == places
        await broker.publish(Message("orders", b"y"), principal=LOCAL)
        await broker.streams.alter(msgspec.structs.replace(own.config, captures=("b",)))
        await broker.publish(Message("orders", b"z"), principal=LOCAL)
        home = broker.streams.home("orders").partition_of(b"orders").id
        assert shown(broker, "orders") == [*places, f"main/{home}"]
        assert await history(broker, "orders") == [f"orders={v}" for v in "xxxyz"]


async def test_one_topic_again_after_many_is_still_a_view(tmp_path):
    """Its stream holds records of the others, which Kafka must not show under its name."""
    async with desk(tmp_path) as here:
        broker = here.broker
        own = await broker.streams.create(stream("own", "orders", partitions=1))
        await broker.streams.alter(msgspec.structs.replace(own.config, captures=("orders", "b")))
        await broker.publish(Message("b", b"not an order"), principal=LOCAL)
        await broker.streams.alter(own.config)
        await broker.publish(Message("orders", b"x"), principal=LOCAL)
        assert here.hub.topics.get("orders").stream is None
        assert here.hub.topics.get("orders").partition(0).ends().high_watermark == 2
