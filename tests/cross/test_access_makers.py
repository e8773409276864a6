"""Bindings, alternate exchanges and dead letters under rules that change: judged as makers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pika
import pytest

from onelog.broker import LOCAL, Message
from tests.support.access import House, house
from tests.support.mqtt import until

PASSWORD = "secret-1"
READER = ("allow user:reader consume cursor:*", "allow user:reader publish topic:#")
MAKER = ("allow group:makers all topic:#", "allow group:makers consume cursor:*")


async def peopled(place: House) -> None:
    for name in ("maker", "reader", "other"):
        await place.authenticator.users.add(name, PASSWORD)
    for name in ("maker", "other"):
        await place.authenticator.users.set_groups(name, ("makers",))


async def by(place: House, user: str, work: Callable[[Any], object]) -> Any:
    """Let a user do something on a channel of its own (pika)."""

    def run() -> object:
        login = pika.PlainCredentials(user, PASSWORD)
        where = pika.ConnectionParameters("127.0.0.1", place.ports["amqp"], credentials=login)
        connection = pika.BlockingConnection(where)
        try:
            return work(connection.channel())
        finally:
            connection.close()

    return await asyncio.to_thread(run)


def bound(channel: Any, queue: str = "q", key: str = "a.#") -> None:
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, "amq.topic", key)


def all_of(queue: str) -> Callable[[Any], list[bytes]]:
    def take(channel: Any) -> list[bytes]:
        found = []
        while True:
            method, _properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append(body)

    return take


async def put(place: House, *topics: str) -> None:
    for topic in topics:
        await place.broker.publish(Message(topic, topic.encode()), principal=LOCAL)


async def test_a_binding_brings_what_its_maker_may_have_and_hears_of_rules_at_once(tmp_path):
    async with house(tmp_path) as place:
        await peopled(place)
        await place.only(*READER, *MAKER)
        await by(place, "maker", bound)
        await put(place, "a/1", "a/secret")
        await place.only(*READER, *MAKER, "deny user:maker subscribe topic:a/secret")
        await put(place, "a/2", "a/secret")
        await place.only(*READER, *MAKER[1:], "allow group:makers publish topic:#")
        await put(place, "a/3")
        await place.only(*READER, *MAKER)
        await put(place, "a/4")
        await place.authenticator.users.set_groups("maker", ())
        await put(place, "a/5")
        await place.only()
        await put(place, "a/6")
        assert await by(place, "reader", all_of("q")) == [
            b"a/1",
            b"a/secret",
            b"a/2",
            b"a/4",
            b"a/6",
        ]


async def test_a_binding_needs_the_right_of_its_maker_to_what_it_feeds(tmp_path):
    async with house(tmp_path) as place:
        await peopled(place)
        await place.only(*READER, *MAKER)
        await by(place, "maker", bound)
        await place.only(*READER, *MAKER, "deny user:maker publish topic:$q/q")
        await put(place, "a/1")
        assert await by(place, "reader", all_of("q")) == []


async def test_each_binding_on_the_way_is_judged_as_its_own_maker(tmp_path):
    async with house(tmp_path) as place:
        await peopled(place)
        await place.only(*READER, *MAKER)

        def chain(channel: Any) -> None:
            channel.exchange_declare("x", "topic", durable=True)
            channel.exchange_bind("x", "amq.topic", "a.#")

        def end(channel: Any) -> None:
            channel.queue_declare("q", durable=True)
            channel.queue_bind("q", "x", "#")

        await by(place, "maker", chain)
        await by(place, "other", end)
        await put(place, "a/1")
        await place.only(*READER, *MAKER, "deny user:maker subscribe topic:a/2")
        await put(place, "a/2", "a/3")
        await place.only(*READER, *MAKER, "deny user:other subscribe topic:$x/x/#")
        await put(place, "a/4")
        await place.only(*READER, *MAKER, "deny user:other subscribe topic:a/#")
        await put(place, "a/5")  # the other asked for what comes to x
        assert await by(place, "reader", all_of("q")) == [b"a/1", b"a/3", b"a/5"]


async def test_makers_outlive_the_broker_and_who_binds_again_takes_a_dead_binding_over(tmp_path):
    async with house(tmp_path) as place:
        await peopled(place)
        await place.only(*READER, *MAKER)
        await by(place, "maker", bound)
    async with house(tmp_path) as place:
        await put(place, "a/1")
        await by(place, "other", bound)  # there already, and good
        await place.only(*READER, *MAKER, "deny user:other subscribe topic:a/#")
        await put(place, "a/2")
        await place.only(*READER, *MAKER, "deny user:maker subscribe topic:a/#")
        await put(place, "a/3")
        await by(place, "other", bound)
        await put(place, "a/4")
        assert await by(place, "reader", all_of("q")) == [b"a/1", b"a/2", b"a/4"]
        host = place.servers["amqp"]._hub.queues.vhosts.find("/")
        assert [row.maker.name for row in host.router.bindings()] == ["other"]


@pytest.mark.parametrize("taken", ["publish topic:$x/dead/#", "consume cursor:queue/q"])
async def test_dead_letters_go_while_who_declared_the_queue_may_send_them(tmp_path, taken):
    async with house(tmp_path) as place:
        await peopled(place)
        await place.only(*READER, *MAKER)

        def declare(channel: Any) -> None:
            channel.exchange_declare("dead", "fanout", durable=True)
            channel.queue_declare("letters", durable=True)
            channel.queue_bind("letters", "dead")
            channel.queue_declare("q", durable=True, arguments={"x-dead-letter-exchange": "dead"})

        def refuse(channel: Any) -> None:
            channel.basic_publish("", "q", b"rotten")
            method, _properties, _body = channel.basic_get("q")
            assert method is not None
            channel.basic_reject(method.delivery_tag, requeue=False)
            channel.queue_declare("q", durable=True, passive=True)  # it was done

        async def letters() -> int:
            return len(await by(place, "reader", all_of("letters")))

        await by(place, "maker", declare)
        reader = (*READER, "allow user:reader describe topic:$q/+")
        await place.only(*reader, *MAKER)
        await by(place, "reader", refuse)
        await until(lambda: place.servers["amqp"]._hub.queues.counters.dead_lettered == 1)
        assert await letters() == 1
        await place.only(*reader, *MAKER, f"deny group:makers {taken}")
        await by(place, "reader", refuse)
        assert await letters() == 0
        queue = place.servers["amqp"]._hub.queues.vhosts.find("/").queues["q"]
        assert queue.cursor.pending() == 0, "dropped, as without the exchange"
        noted = [row.error for row in place.broker.troubles.rows()]
        assert any("may no longer send its dead letters" in text for text in noted)


async def test_an_alternate_exchange_gets_messages_while_its_maker_may_publish_there(tmp_path):
    async with house(tmp_path) as place:
        await peopled(place)
        await place.only(*READER, *MAKER)

        def declare(channel: Any) -> None:
            channel.exchange_declare("lost", "fanout", durable=True)
            channel.queue_declare("q", durable=True)
            channel.queue_bind("q", "lost")
            arguments = {"alternate-exchange": "lost"}
            channel.exchange_declare("x", "direct", durable=True, arguments=arguments)

        def publish(body: bytes) -> Callable[[Any], None]:
            def work(channel: Any) -> None:
                channel.confirm_delivery()
                channel.basic_publish("x", "nobody", body)

            return work

        await by(place, "maker", declare)
        await by(place, "reader", publish(b"1"))
        await place.only(*READER, *MAKER, "deny user:maker publish topic:$x/lost/#")
        await by(place, "reader", publish(b"2"))
        assert await by(place, "reader", all_of("q")) == [b"1"]


async def test_history_is_judged_as_who_binds_the_queue(tmp_path):
    async with house(tmp_path) as place:
        await peopled(place)
        await put(place, "a/1", "a/2")
        await place.only(*READER, *MAKER)

        def declare(channel: Any) -> None:
            channel.queue_declare("q", durable=True, arguments={"x-onelog-from": "earliest"})
            channel.queue_bind("q", "amq.topic", "a.#")

        def refused(channel: Any) -> None:
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as found:
                declare(channel)
            assert found.value.reply_code == 403

        await place.only(*READER, *MAKER, "deny user:maker subscribe topic:a/2")
        await by(place, "maker", refused)
        assert await by(place, "reader", all_of("q")) == []
        await by(place, "other", declare)
        assert await by(place, "reader", all_of("q")) == [b"a/1", b"a/2"]
