"""What a Kafka producer sends to a view: to its topic's home, once, or not at all."""

from __future__ import annotations

import msgspec
import pytest

from onelog.broker import LOCAL, Action, AllowAll, Cleanup, Kind, Message, StreamConfig
from onelog.kernel import ATTR_TRANSACTIONAL, scan_batches
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.views.writing import ID_SPACE, producer_of
from onelog.record.batch import build_batch
from tests.support.brokers import history
from tests.support.kafka_hub import batch, desk, rows_of

TOPIC, NAME = "sensors/d1", "sensors.d1"


@pytest.fixture
async def here(tmp_path):
    async with desk(tmp_path) as made:
        await made.broker.publish(Message(TOPIC, b"first"), principal=LOCAL)
        yield made


def log_of(here, topic=TOPIC):
    return here.broker.streams.home(topic).partition_of(topic.encode())


async def send(here, *batches, topic=NAME, **more):
    client = here.client()
    client.send(*(client.produce(data, topic=topic, **more) for data in batches))
    return [rows_of(answer)[0] for _number, answer in await client.wait_for(len(batches))]


@pytest.mark.parametrize("codec", range(5))
async def test_records_go_to_the_home_of_the_topic_and_carry_it(here, codec):
    assert await send(here, batch(b"a", b"b", codec=codec)) == [(0, 0, 1)]
    assert await history(here.broker, TOPIC) == [f"{TOPIC}={v}" for v in ("first", "a", "b")]
    log = log_of(here)
    offsets = log.offsets_of_topic(TOPIC.encode(), 0, log.high_watermark, 10)
    assert offsets == [0, 1, 2]


async def test_a_batch_that_is_sent_again_is_not_appended_again(here):
    sent = [batch(b"a", producer=(5, 0, 0)), batch(b"b", producer=(5, 0, 1))]
    assert await send(here, *sent) == [(0, 0, 1), (0, 0, 2)]
    assert await send(here, *sent) == [(0, 0, 1), (0, 0, 2)]
    gap = batch(b"c", producer=(5, 0, 7))
    assert (await send(here, gap))[0][1] == ErrorCode.out_of_order_sequence_number
    assert await history(here.broker, TOPIC) == [f"{TOPIC}={v}" for v in ("first", "a", "b")]


async def test_a_producer_counts_for_each_topic_by_itself(here):
    other = next(
        topic for topic in (f"x/{n}" for n in range(1000)) if log_of(here, topic) is log_of(here)
    )
    await here.broker.publish(Message(other, b"first"), principal=LOCAL)
    name = other.replace("/", ".")
    for number in range(3):
        data = batch(b"%d" % number, producer=(5, 0, number))
        for topic in (NAME, name):
            ((_number, code, _offset),) = await send(here, data, topic=topic)
            assert code == 0
    for topic in (TOPIC, other):
        assert await history(here.broker, topic) == [f"{topic}={v}" for v in ("first", 0, 1, 2)]


def test_producers_of_views_have_ids_of_their_own():
    assert producer_of(-1, b"a") == -1
    ids = {producer_of(number, topic) for number in range(100) for topic in (b"a", b"b")}
    assert len(ids) == 200
    assert all(ID_SPACE <= one < 2 * ID_SPACE for one in ids)
    assert producer_of(7, b"a") == producer_of(7, b"a")


async def test_a_filter_takes_no_records(here):
    for codec in (0, 1):
        ((_number, code, _offset),) = await send(
            here, batch(b"a", codec=codec), topic="sensors._x2B_", partition=0
        )
        assert code == ErrorCode.policy_violation


async def test_a_transaction_cannot_write_through_a_view(here):
    data = batch(b"a", producer=(5, 0, 0), attributes=ATTR_TRANSACTIONAL)
    part = here.hub.topics.get(NAME).partition(0)
    (info,) = scan_batches(data)
    with pytest.raises(KafkaError, match="a transaction cannot write") as refused:
        part.append(bytearray(data), info, LOCAL)
    assert refused.value.code is ErrorCode.policy_violation


async def test_what_is_sent_to_an_old_home_goes_to_the_new_one(here):
    """I5: a client that does not know yet that the topic moved loses nothing."""
    await here.broker.streams.create(StreamConfig(name="sensors", captures=("sensors/#",)))
    await here.broker.publish(Message(TOPIC, b"second"), principal=LOCAL)
    view = here.hub.topics.get(NAME)
    assert view.partition_count == 2
    assert await send(here, batch(b"a"), batch(b"b", codec=4)) == [(0, 0, -1), (0, 0, -1)]
    assert await send(here, batch(b"c"), partition=1) == [(1, 0, 3)]
    said = ("first", "second", "a", "b", "c")
    assert await history(here.broker, TOPIC) == [f"{TOPIC}={value}" for value in said]


async def test_a_batch_that_is_sent_again_after_its_topic_moved_is_not_appended_again(here):
    sent = [batch(b"%d" % number, producer=(5, 0, number)) for number in range(6)]
    assert await send(here, *sent[:3]) == [(0, 0, 1), (0, 0, 2), (0, 0, 3)]
    await here.broker.streams.create(StreamConfig(name="sensors", captures=("sensors/#",)))
    assert [row[:2] for row in await send(here, *sent[2:])] == [(0, 0)] * 4
    assert [row[:2] for row in await send(here, *sent[1:])] == [(0, 0)] * 5
    gap = batch(b"c", producer=(5, 0, 9))
    assert (await send(here, gap))[0][1] == ErrorCode.out_of_order_sequence_number
    # It counts by itself for the partition that it learns of later.
    assert await send(here, batch(b"6", producer=(5, 0, 0)), partition=1) == [(1, 0, 3)]
    said = ("first", *range(7))
    assert await history(here.broker, TOPIC) == [f"{TOPIC}={value}" for value in said]


async def test_a_producer_counts_on_while_its_topic_moves_there_and_back(here):
    sent = [batch(b"%d" % number, producer=(5, 0, number)) for number in range(8)]
    config = StreamConfig(name="other", captures=("x",))
    moves = (("x",), ("x", TOPIC), ("x",), ("x", TOPIC))
    await here.broker.streams.create(config)
    for step, captures in enumerate(moves):
        await here.broker.streams.alter(msgspec.structs.replace(config, captures=captures))
        again = sent[max(0, 2 * step - 2) : 2 * step + 2]  # the last ones once more
        assert [row[:2] for row in await send(here, *again)] == [(0, 0)] * len(again)
    assert await history(here.broker, TOPIC) == [f"{TOPIC}={v}" for v in ("first", *range(8))]


async def test_a_name_for_a_topic_with_its_own_stream_says_where_to_send(here):
    await here.hub.views.create("alias", "t")
    ((_number, code, _offset),) = await send(here, batch(b"a"), topic="alias")
    assert code == ErrorCode.policy_violation


async def test_a_stream_that_keeps_one_record_per_key_wants_keys(tmp_path):
    async with desk(tmp_path) as here:
        config = StreamConfig(name="state", captures=("state/#",), cleanup=Cleanup.COMPACT)
        await here.broker.streams.create(config)
        await here.broker.publish(Message("state/a", b"first"), principal=LOCAL)
        keyless = build_batch([(None, None, b"v", (), 1)])
        ((_number, code, _offset),) = await send(
            here,
            keyless,
            topic="state.a",
            partition=here.hub.topics.get("state.a").partition_count - 1,
        )
        assert code == ErrorCode.invalid_record


class Only(AllowAll):
    """May publish to one topic."""

    def allows(self, principal, action, topic, kind=Kind.TOPIC):
        return action is not Action.PUBLISH or topic == TOPIC


async def test_who_may_publish_to_the_topic_may_write_through_its_view(here):
    await here.broker.publish(Message("sensors/d2", b"first"), principal=LOCAL)
    here.broker.publisher._authorizer = Only()
    ((_number, code, _offset),) = await send(here, batch(b"a"))
    assert code == ErrorCode.none
    ((_number, code, _offset),) = await send(here, batch(b"a"), topic="sensors.d2")
    assert code == ErrorCode.topic_authorization_failed
