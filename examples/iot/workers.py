"""The repair shop: AMQP workers (pika) share a queue of alarms; what fails comes back a few times.

The queue is bound to `amq.topic`, which is the topic space of MQTT: `plant.*.*.alarm` is
plant/+/+/alarm. It is a quorum queue with `x-delivery-limit`: what failed three times goes to the
dead-letter exchange, and from there into a queue of its own.
"""

from __future__ import annotations

import random
import threading

import pika
from pika.adapters.blocking_connection import BlockingChannel
from plan import BROKEN, Ports, decode
from tally import Tally

QUEUE = "repairs"
DEAD_EXCHANGE = "given-up"
DEAD_QUEUE = "repairs.dead"
TRIES = 3
FAILURES = 0.25
"""How often a repair fails that would succeed at the next try."""


def connect(ports: Ports) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", ports.amqp, heartbeat=0))


def declare(ports: Ports) -> None:
    connection = connect(ports)
    channel = connection.channel()
    channel.exchange_declare(DEAD_EXCHANGE, "fanout", durable=True)
    channel.queue_declare(DEAD_QUEUE, durable=True)
    channel.queue_bind(DEAD_QUEUE, DEAD_EXCHANGE)
    channel.queue_declare(
        QUEUE,
        durable=True,
        arguments={
            "x-queue-type": "quorum",
            "x-delivery-limit": TRIES - 1,
            "x-dead-letter-exchange": DEAD_EXCHANGE,
        },
    )
    channel.queue_bind(QUEUE, "amq.topic", "plant.*.*.alarm")
    connection.close()


class _Consumer(threading.Thread):
    """Takes messages from a queue until it is told to stop."""

    def __init__(self, ports: Ports, queue: str) -> None:
        super().__init__(daemon=True)
        self._ports = ports
        self._queue = queue
        self._over = threading.Event()

    def run(self) -> None:
        connection = connect(self._ports)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        for method, _properties, body in channel.consume(self._queue, inactivity_timeout=0.1):
            if method is not None:
                self.take(channel, method.delivery_tag, body)
            if self._over.is_set():
                break
        connection.close()

    def take(self, channel: BlockingChannel, tag: int, body: bytes) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self._over.set()


class Worker(_Consumer):
    """Repairs a machine, most of the time; one machine never."""

    def __init__(self, ports: Ports, repaired: Tally, failed: Tally) -> None:
        super().__init__(ports, QUEUE)
        self._repaired = repaired
        self._failed = failed

    def take(self, channel: BlockingChannel, tag: int, body: bytes) -> None:
        said, _value = decode(body)
        if said.machine == BROKEN or random.random() < FAILURES:  # noqa: S311 - it is a game
            self._failed.add(said)
            channel.basic_nack(tag, requeue=True)
        else:
            self._repaired.add(said)
            channel.basic_ack(tag)
            self._repaired.say(f"{self._failed.count} tries failed")


class Undertaker(_Consumer):
    """Collects what was given up."""

    def __init__(self, ports: Ports, buried: Tally) -> None:
        super().__init__(ports, DEAD_QUEUE)
        self._buried = buried

    def take(self, channel: BlockingChannel, tag: int, body: bytes) -> None:
        said, _value = decode(body)
        self._buried.add(said)
        self._buried.say(f"the last one of {said.machine}")
        channel.basic_ack(tag)
