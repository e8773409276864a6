"""Reserved headers of Kafka producers under access rules reach no further than rights.

Real clients: confluent-kafka writes, pika reads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager

import pika
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from onelog.broker import LOCAL, Durability, Message, StreamConfig
from tests.support.access import House, house

READ = (
    "allow everyone consume cursor:*",
    "allow everyone subscribe topic:#",  # bindings are judged as who made them
    "allow everyone publish topic:$q/#",
    "allow everyone publish topic:open/t",
)
TOPICS = ("open.t", "many.t")
"""A topic with a stream of its own, and one that is written through a view."""
DEADLINE_S = 30.0


@contextmanager
def amqp(place: House) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    connection = pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", place.ports["amqp"])
    )
    try:
        yield connection.channel()
    finally:
        connection.close()


def declare(place: House) -> None:
    """Two queues behind `amq.topic`, made while everything is open."""
    with amqp(place) as channel:
        for queue, key in (("forbidden", "forbidden.#"), ("open", "*.t")):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "amq.topic", key)


def take_all(place: House, queue: str) -> list[tuple[bytes, str | None]]:
    """The bodies and users of the messages of a queue."""
    found = []
    with amqp(place) as channel:
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((body, properties.user_id))


def produce(place: House, topic: str, headers: list, body: bytes = b"x", **options) -> str:
    """Write one record; the name of the error, or nothing."""
    told = []
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{place.ports['kafka']}",
            "linger.ms": 0,
            **options,
        }
    )
    if "transactional.id" in options:
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
    producer.produce(
        topic, body, headers=headers, on_delivery=lambda error, _message: told.append(error)
    )
    assert producer.flush(DEADLINE_S) == 0
    if "transactional.id" in options:
        try:
            producer.commit_transaction(DEADLINE_S)
        except KafkaException:
            producer.abort_transaction(DEADLINE_S)
    (error,) = told
    return "" if error is None else error.name()


async def opened(place: House) -> None:
    await place.broker.streams.create(
        StreamConfig(name="open", captures=("open/t",), partitions=1, durability=Durability.OS)
    )
    await asyncio.to_thread(declare, place)
    # The view of a topic is there once the topic is.
    await place.broker.publish(Message("many/t", b"first"), principal=LOCAL)


FORBIDDEN = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED).name()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression.type": "zstd"},
        {"compression.type": "gzip", "message.max.bytes": 4_000_000},
        {"transactional.id": "claims"},
    ],
    ids=["plain", "compressed", "large", "transaction"],
)
async def test_a_further_key_that_its_producer_may_not_publish_to_reaches_no_queue(
    tmp_path, options
):
    async with house(tmp_path) as place:
        await opened(place)
        await place.only(*READ, "allow everyone publish topic:many/t")
        body = b"secret" * (20_000 if "message.max.bytes" in options else 1)
        claim = [("~bc", json.dumps(["forbidden.x"]).encode())]
        topics = TOPICS[:1] if "transactional.id" in options else TOPICS
        for topic in topics:
            told = await asyncio.to_thread(produce, place, topic, claim, body, **options)
            assert told == FORBIDDEN
            assert await asyncio.to_thread(produce, place, topic, [], body, **options) == ""
        assert await asyncio.to_thread(take_all, place, "forbidden") == []
        assert len(await asyncio.to_thread(take_all, place, "open")) == len(topics) + 1
        await place.only(*READ, "allow everyone publish topic:forbidden/#")
        assert await asyncio.to_thread(produce, place, "open.t", claim, body, **options) == ""
        assert await asyncio.to_thread(take_all, place, "forbidden") == [(body, None)]


async def test_a_record_hides_from_no_queue_that_its_producer_may_not_consume(tmp_path):
    async with house(tmp_path) as place:
        await opened(place)
        await asyncio.to_thread(take_all, place, "open")
        claim = [("~nq", b'["open"]')]
        await place.only("allow everyone publish topic:open/t")
        assert await asyncio.to_thread(produce, place, "open.t", claim) == FORBIDDEN
        await place.only(*READ)
        assert await asyncio.to_thread(produce, place, "open.t", claim) == ""
        assert await asyncio.to_thread(take_all, place, "open") == []


async def test_a_producer_names_no_other_user_to_amqp_consumers(tmp_path):
    async with house(tmp_path) as place:
        await opened(place)
        await asyncio.to_thread(take_all, place, "open")
        await place.only(*READ)
        boss, own = [("~ui", b"boss")], [("~ui", b"anonymous")]
        assert await asyncio.to_thread(produce, place, "open.t", boss) == FORBIDDEN
        twice = [*own, *boss]
        assert await asyncio.to_thread(produce, place, "open.t", twice) == FORBIDDEN
        assert await asyncio.to_thread(produce, place, "open.t", own) == ""
        assert await asyncio.to_thread(take_all, place, "open") == [(b"x", "anonymous")]
        await place.only(*READ, "allow everyone admin server:impersonation")
        assert await asyncio.to_thread(produce, place, "open.t", boss) == ""
        assert await asyncio.to_thread(take_all, place, "open") == [(b"x", "boss")]


async def test_headers_that_say_nothing_and_application_headers_need_no_right(tmp_path):
    async with house(tmp_path) as place:
        await opened(place)
        await place.only(*READ)
        for headers in (
            [("~bc", b"not a list")],
            [("~bc", None)],
            [("~ui", b"\xff")],
            [("~~bc", b'["forbidden.x"]')],
            [("note", b"~bc ~nq ~ui ~nl")],
            [("~ct", b"text/plain")],
        ):
            assert await asyncio.to_thread(produce, place, "open.t", headers) == "", headers
        assert await asyncio.to_thread(take_all, place, "forbidden") == []


async def test_a_batch_that_names_more_than_can_be_judged_is_refused(tmp_path):
    async with house(tmp_path) as place:
        await opened(place)
        await place.only(*READ, "allow everyone all topic:#")
        for count, told in ((1_000, ""), (1_001, "INVALID_RECORD")):
            claim = [("~bc", json.dumps([f"k{n}" for n in range(count)]).encode())]
            assert await asyncio.to_thread(produce, place, "open.t", claim) == told


async def test_without_rules_reserved_headers_do_what_they_say(tmp_path):
    async with house(tmp_path) as place:
        await opened(place)
        claim = [("~bc", b'["forbidden.x"]'), ("~ui", b"boss")]
        assert await asyncio.to_thread(produce, place, "open.t", claim) == ""
        assert await asyncio.to_thread(take_all, place, "forbidden") == [(b"x", "boss")]
