"""Does any conversation with queues go as a small model says?

RabbitMQ is not asked: what its channels and queues do meanwhile comes in any order (counts lag).
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.conformance.amqp_model import Consumer, Model
from tests.conformance.amqp_raw import (
    Basic,
    Message,
    Queue,
    Raw,
    RawChannel,
    Refused,
    Tx,
    unique,
)

STEPS = 120
CHOICES = (
    "publish", "publish", "publish", "publish", "publish_in_channel", "get", "get", "settle",
    "settle", "settle", "settle", "recover", "consume", "cancel", "commit", "rollback", "purge",
    "delete", "count", "close", "mistake",
)  # fmt: skip


class Conversation:
    """A client that does what a seed says; the model takes what the client sees."""

    def __init__(self, raw: Raw, seed: int) -> None:
        self.chance = random.Random(seed)
        self.raw = raw
        self.writer = raw.channel()
        self.writer.confirm()
        self.queues = [self.writer.queue(unique(f"model{seed}")) for _ in range(3)]
        self.model = Model(
            self.queues, self.chance.choice((0, 0, 1, 2, 5)), is_tx=self.chance.random() < 0.4
        )
        self.sent = 0
        self.channel = self.open()

    def open(self) -> RawChannel:
        channel = self.raw.channel()
        if self.model.channel_prefetch:
            channel.qos(self.model.channel_prefetch, whole_channel=True)
        if self.model.is_tx:
            channel.ask(Tx.Select(), Tx.SelectOk)
        return channel

    def step(self) -> None:
        getattr(self, self.chance.choice(CHOICES))()
        self.settle_down()

    def settle_down(self) -> None:
        """Take all that has to come; nothing else may."""
        self.take_all()
        self.ask(Basic.Qos(), Basic.QosOk)

    def take_all(self) -> None:
        while self.model.awaited():
            self.take(self.channel.message(10))

    def take(self, message: Message) -> None:
        method = message.method
        self.model.delivered(
            message.tag, method.consumer_tag, message.text, redelivered=method.redelivered
        )

    def ask(self, method: Any, kind: type[Any]) -> Any:
        """Ask; what is delivered meanwhile is taken behind the answer."""
        self.channel.send(method)
        arrived = []
        while isinstance(found := self.raw.read_method(self.channel.number), Message):
            arrived.append(found)
        assert isinstance(found, kind), found
        self.raw._arrived[:0] = [(self.channel.number, row) for row in arrived]
        return found

    def a_queue(self) -> str:
        return self.chance.choice(self.queues)

    # -- steps

    def publish(self) -> None:
        queue = self.a_queue()
        for _ in range(self.chance.choice((1, 1, 4))):
            self.sent += 1
            self.model.publish(queue, str(self.sent))
            self.writer.put("", queue, str(self.sent))

    def publish_in_channel(self) -> None:
        self.sent += 1
        queue = self.a_queue()
        self.channel.publish("", queue, str(self.sent))
        self.model.publish(queue, str(self.sent), in_tx=self.model.is_tx)

    def get(self) -> None:
        queue, no_ack = self.a_queue(), self.chance.random() < 0.3
        found = self.channel.get(queue, no_ack=no_ack)
        if found is None:
            assert not self.model.queues[queue].ready
            return
        method = found.method
        self.model.got(found.tag, queue, found.text, redelivered=method.redelivered, no_ack=no_ack)
        assert method.message_count == len(self.model.queues[queue].ready)

    def settle(self) -> None:
        multiple = self.chance.random() < 0.3
        if not self.model.held:
            return
        tag = self.chance.choice([*self.model.held, 0] if multiple else list(self.model.held))
        kind = self.chance.choice(("ack", "ack", "requeue", "reject"))
        if kind == "ack":
            self.channel.ack(tag, multiple=multiple)
        else:
            self.channel.nack(tag, multiple=multiple, requeue=kind == "requeue")
        self.model.settle(kind, tag, multiple=multiple)

    def recover(self) -> None:
        self.ask(Basic.Recover(requeue=True), Basic.RecoverOk)
        self.model.recover()

    def consume(self) -> None:
        if len(self.model.consumers) >= 4:
            return
        consumer = Consumer(
            self.a_queue(), self.chance.choice((0, 1, 3)), self.chance.random() < 0.2
        )
        tag = unique("c")
        self.ask(Basic.Qos(prefetch_count=consumer.prefetch), Basic.QosOk)
        method = Basic.Consume(
            queue=consumer.queue, consumer_tag=tag, no_ack=consumer.no_ack, arguments={}
        )
        self.ask(method, Basic.ConsumeOk)
        self.model.consumers[tag] = consumer

    def cancel(self) -> None:
        for tag in list(self.model.consumers)[:1]:
            self.ask(Basic.Cancel(consumer_tag=tag), Basic.CancelOk)
            del self.model.consumers[tag]

    def commit(self) -> None:
        if self.model.is_tx:
            self.ask(Tx.Commit(), Tx.CommitOk)
            self.model.commit_publishes()
            self.take_all()  # before anything comes back, as in RabbitMQ
            self.model.commit_settlements()

    def rollback(self) -> None:
        if self.model.is_tx:
            self.ask(Tx.Rollback(), Tx.RollbackOk)
            self.model.rollback()

    def purge(self) -> None:
        if self.chance.random() < 0.3:
            queue = self.a_queue()
            found = self.ask(Queue.Purge(queue=queue), Queue.PurgeOk)
            assert found.message_count == self.model.purge(queue)

    def delete(self) -> None:
        queue = self.a_queue()
        if self.chance.random() < 0.3 and not self.model.published:
            for tag, consumer in list(self.model.consumers.items()):
                if consumer.queue == queue:
                    self.ask(Basic.Cancel(consumer_tag=tag), Basic.CancelOk)
                    del self.model.consumers[tag]
            found = self.ask(Queue.Delete(queue=queue), Queue.DeleteOk)
            assert found.message_count == self.model.delete(queue)
            self.writer.queue(queue)

    def count(self) -> None:
        for queue in self.queues:
            found = self.ask(Queue.Declare(queue=queue, passive=True), Queue.DeclareOk)
            assert found.message_count == len(self.model.queues[queue].ready)

    def close(self) -> None:
        if self.chance.random() < 0.3:
            self.channel.close()
            self.model.close()
            self.channel = self.open()

    def mistake(self) -> None:
        """Settle what is not held: the channel ends, and gives back all that it held."""
        if self.chance.random() < 0.3:
            known = [row for _kind, some in self.model.settled for row in some]
            self.channel.ack(self.chance.choice(known) if known else self.model.next_tag)
            with pytest.raises(Refused, match="406 PRECONDITION_FAILED - unknown delivery tag"):
                self.channel.sync()
            self.model.close()
            self.channel = self.open()

    def end(self) -> None:
        self.channel.close()
        self.model.close()
        for queue in self.queues:
            expected = [row.text for row in self.model.queues[queue].ready]
            assert self.writer.all(queue) == expected
            self.writer.ask(Queue.Delete(queue=queue), Queue.DeleteOk)


@pytest.mark.parametrize("seed", range(12))
def test_any_conversation_goes_as_the_model_says(onelog_server, seed):
    with Raw(onelog_server.ports["amqp"]) as raw:
        conversation = Conversation(raw.open(), seed)
        for _ in range(STEPS):
            conversation.step()
        conversation.end()
