"""What AMQP clients ask for, as rows of the table of operations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.conformance.amqp_raw import Basic, Exchange, Queue, Raw, RawChannel, Refused, Tx
from tests.cross.access_table import YES, Act, numbers, operation
from tests.support.access import House


class NotingRaw(Raw):
    """Notes the methods that it sends."""

    def __init__(self, port: int) -> None:
        self.sent: set[type[Any]] = set()
        super().__init__(port)

    def send(self, channel: int, method: Any) -> None:
        self.sent.add(type(method))
        super().send(channel, method)


def amqp(uses: type[Any], *rights: str) -> Any:
    """What a new channel of an open connection does; a refusal closes the channel with 403."""

    def keep(work: Callable[[RawChannel], object]) -> Any:
        async def begin(house: House) -> Act:
            raw = await asyncio.to_thread(_opened, house.ports["amqp"])
            house.at_end.append(raw.socket.close)

            def run() -> object:
                channel = raw.channel()
                raw.sent.clear()
                try:
                    work(channel)
                except Refused as refused:
                    return refused.code
                finally:
                    assert uses in raw.sent
                channel.close()
                return YES

            return lambda: asyncio.to_thread(run)

        begin.__name__ = work.__name__
        return operation("amqp", uses, 403, *rights)(begin)

    return keep


def _opened(port: int) -> NotingRaw:
    """A connection, with what the operations need: made while everything is open."""
    raw = NotingRaw(port)
    raw.open()
    channel = raw.channel()
    channel.ask(Queue.Declare(queue="q", durable=True), Queue.DeclareOk)
    for name in ("x", "y"):
        channel.ask(Exchange.Declare(exchange=name, exchange_type="fanout"), Exchange.DeclareOk)
    channel.close()
    return raw


@amqp(Basic.Publish, "publish topic:a/b")
def amqp_publish_to_a_topic(channel: RawChannel) -> None:
    channel.publish("amq.topic", "a.b", "1")
    channel.sync()


@amqp(Basic.Publish, "publish topic:$q/q")
def amqp_publish_to_a_queue(channel: RawChannel) -> None:
    for _ in range(2):  # the second one is the kernel's
        channel.publish("", "q", "1")
    channel.sync()


@amqp(Basic.Publish, "publish topic:$x/x/#")
def amqp_publish_to_an_exchange(channel: RawChannel) -> None:
    channel.publish("x", "key", "1")
    channel.sync()


@amqp(Tx.Commit, "publish topic:$q/q")
def amqp_publish_in_a_transaction(channel: RawChannel) -> None:
    channel.ask(Tx.Select(), Tx.SelectOk)
    channel.publish("", "q", "1")
    channel.ask(Tx.Commit(), Tx.CommitOk)


@amqp(Basic.Publish, "publish topic:$q/q", "publish topic:$q/further")
def amqp_publish_to_further_queues(channel: RawChannel) -> None:
    for _ in range(2):
        channel.publish("", "q", "1", headers={"CC": ["further"]})
    channel.sync()


@amqp(Basic.Publish, "publish topic:a/b", "publish topic:further/+")
def amqp_publish_to_a_further_topic_that_is_not_shown(channel: RawChannel) -> None:
    channel.publish("amq.topic", "a.b", "1", headers={"BCC": ["further.key"]})
    channel.sync()


@amqp(Tx.Commit, "publish topic:$q/q", "publish topic:$q/further")
def amqp_publish_to_further_queues_in_a_transaction(channel: RawChannel) -> None:
    channel.ask(Tx.Select(), Tx.SelectOk)
    channel.publish("", "q", "1", headers={"CC": ["further"]})
    channel.ask(Tx.Commit(), Tx.CommitOk)


@amqp(Queue.Declare, "create prefix:$q/made-")
def amqp_declare_a_queue(channel: RawChannel) -> None:
    channel.queue(f"made-{next(numbers)}", auto_delete=True)


@amqp(Queue.Declare, "all topic:$q/q")
def amqp_look_at_a_queue_that_one_may_see(channel: RawChannel) -> None:
    channel.ask(Queue.Declare(queue="q", passive=True), Queue.DeclareOk)


@amqp(Queue.Declare, "all cursor:queue/q")
def amqp_look_at_a_queue_that_one_consumes(channel: RawChannel) -> None:
    channel.ask(Queue.Declare(queue="q", passive=True), Queue.DeclareOk)


@amqp(Queue.Declare, "consume cursor:queue/q")
def amqp_look_at_a_queue_by_the_right_to_consume(channel: RawChannel) -> None:
    channel.ask(Queue.Declare(queue="q", passive=True), Queue.DeclareOk)


@amqp(Queue.Declare, "publish topic:$q/q")
def amqp_look_at_a_queue_by_the_right_to_publish(channel: RawChannel) -> None:
    channel.ask(Queue.Declare(queue="q", passive=True), Queue.DeclareOk)


@amqp(Queue.Delete, "delete topic:$q/+")
def amqp_delete_a_queue(channel: RawChannel) -> None:
    channel.ask(Queue.Delete(queue="not there"), Queue.DeleteOk)


@amqp(Exchange.Declare, "create topic:$x/#")
def amqp_declare_an_exchange(channel: RawChannel) -> None:
    channel.exchange("direct", f"made-{next(numbers)}")


@amqp(Exchange.Delete, "delete topic:$x/none/#")
def amqp_delete_an_exchange(channel: RawChannel) -> None:
    channel.ask(Exchange.Delete(exchange="none"), Exchange.DeleteOk)


@amqp(Queue.Bind, "publish topic:$q/q", "subscribe topic:a/#")
def amqp_bind_a_queue_to_topics(channel: RawChannel) -> None:
    channel.bind("q", "amq.topic", "a.*")


@amqp(Queue.Unbind, "publish topic:$q/q", "subscribe topic:a/#")
def amqp_unbind_a_queue(channel: RawChannel) -> None:
    channel.unbind("q", "amq.topic", "a.*")


@amqp(Exchange.Bind, "publish topic:$x/x/#", "subscribe topic:$x/y/#")
def amqp_bind_an_exchange(channel: RawChannel) -> None:
    channel.bind_exchange("x", "y")


@amqp(Basic.Consume, "consume cursor:queue/q")
def amqp_consume(channel: RawChannel) -> None:
    channel.consume("q")


@amqp(Basic.Get, "consume cursor:queue/*")
def amqp_get(channel: RawChannel) -> None:
    channel.get("q")


@amqp(Queue.Purge, "consume cursor:queue/q")
def amqp_purge(channel: RawChannel) -> None:
    channel.ask(Queue.Purge(queue="q"), Queue.PurgeOk)


@amqp(
    Queue.Declare,
    "create prefix:$q/dying-",
    "consume cursor:queue/dying-*",
    "publish topic:$x/x/#",
)
def amqp_declare_a_queue_with_dead_letters(channel: RawChannel) -> None:
    arguments = {"x-dead-letter-exchange": "x"}
    channel.queue(f"dying-{next(numbers)}", auto_delete=True, arguments=arguments)


@amqp(Exchange.Unbind, "publish topic:$x/x/#", "subscribe topic:$x/y/#")
def amqp_unbind_an_exchange(channel: RawChannel) -> None:
    channel.ask(
        Exchange.Unbind(destination="x", source="y", routing_key="", arguments={}),
        Exchange.UnbindOk,
    )
