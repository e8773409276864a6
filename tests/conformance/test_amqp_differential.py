"""Does a random conversation end here as it does on RabbitMQ? Every answer is compared."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from tests.conformance.amqp_raw import Basic, Exchange, Message, Queue, Raw, RawChannel

STEPS = 120
SETTLED_S = 0.03
"""Time for a dead letter to arrive: it is written before it is there."""
KEYS = ("a.b", "a.c", "d")
PATTERNS = ("a.*", "#", "d")
CHOICES = (
    "publish", "publish", "publish", "get", "get", "ack", "requeue", "reject",
    "bind", "unbind", "count", "purge", "recover",
)  # fmt: skip


class Conversation:
    """One client that does what a seed says, and notes every answer."""

    def __init__(self, raw: Raw, seed: int) -> None:
        self.chance = random.Random(seed)
        self.channel: RawChannel = raw.channel()
        self.writer: RawChannel = raw.channel()
        self.writer.confirm()
        self.exchange = self.channel.exchange("topic", f"random-{seed}")
        self.queues = [f"random-{seed}-{number}" for number in range(3)]
        limited, by_priority, dead = self.queues
        self.channel.queue(
            limited,
            arguments={
                "x-max-length": 4,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": dead,
            },
        )
        self.channel.queue(by_priority, arguments={"x-max-priority": 3})
        self.channel.queue(dead)
        self.held: list[Message] = []
        self.sent = 0
        self.notes: list[Any] = []

    def step(self) -> None:
        name = self.chance.choice(CHOICES)
        getattr(self, name)()

    def publish(self) -> None:
        self.sent += 1
        exchange = self.chance.choice(("", self.exchange))
        key = self.chance.choice(KEYS if exchange else self.queues)
        self.writer.put(exchange, key, str(self.sent), priority=self.chance.randint(0, 4))
        time.sleep(SETTLED_S)

    def get(self) -> None:
        message = self.channel.get(self.chance.choice(self.queues), no_ack=False)
        self.notes.append(message and self.told(message))
        if message is not None:
            self.held.append(message)

    def told(self, message: Message) -> tuple[Any, ...]:
        deaths = [
            (row["queue"], row["reason"], row["count"], row["exchange"], row["routing-keys"])
            for row in message.headers.get("x-death", [])
        ]
        method = message.method
        return message.text, method.redelivered, method.message_count, method.routing_key, deaths

    def _settle(self, requeue: bool | None) -> None:
        if not self.held:
            return
        message = self.held.pop(self.chance.randrange(len(self.held)))
        if requeue is None:
            self.channel.ack(message.tag)
        else:
            self.channel.nack(message.tag, requeue=requeue)
        self.channel.sync()
        time.sleep(SETTLED_S)

    def ack(self) -> None:
        self._settle(None)

    def requeue(self) -> None:
        self._settle(requeue=True)

    def reject(self) -> None:
        self._settle(requeue=False)

    def bind(self) -> None:
        self.channel.bind(
            self.chance.choice(self.queues), self.exchange, self.chance.choice(PATTERNS)
        )

    def unbind(self) -> None:
        self.channel.unbind(
            self.chance.choice(self.queues), self.exchange, self.chance.choice(PATTERNS)
        )

    def count(self) -> None:
        self.notes.append([self.channel.count(queue) for queue in self.queues])

    def purge(self) -> None:
        queue = self.chance.choice(self.queues)
        if self.chance.random() < 0.2:
            found = self.channel.ask(Queue.Purge(queue=queue), Queue.PurgeOk)
            self.notes.append(found.message_count)

    def recover(self) -> None:
        if self.chance.random() < 0.4:
            self.channel.ask(Basic.Recover(requeue=True), Basic.RecoverOk)
            self.held.clear()
            time.sleep(SETTLED_S)

    def end(self) -> list[Any]:
        for queue in self.queues:
            self.notes.append(self.channel.all(queue))
            self.channel.ask(Queue.Delete(queue=queue), Queue.DeleteOk)
        self.channel.ask(Exchange.Delete(exchange=self.exchange), Exchange.DeleteOk)
        return self.notes


def converse(port: int, seed: int) -> list[Any]:
    with Raw(port) as raw:
        conversation = Conversation(raw.open(), seed)
        for _ in range(STEPS):
            conversation.step()
        return conversation.end()


@pytest.mark.rabbitmq_peer
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_random_conversation_ends_as_on_rabbitmq(onelog_server, rabbitmq_server, seed):
    ours = converse(onelog_server.ports["amqp"], seed)
    assert ours == converse(rabbitmq_server.port, seed)
    assert len(ours) >= STEPS // 6
