"""librdkafka's transactional producer, and all that its consumer reads."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

DEADLINE_S = 30.0


def producer(port: int, name: str, **settings: object) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "transactional.id": name,
            "linger.ms": 1,
            **settings,
        }
    )
    made.init_transactions(DEADLINE_S)
    return made


def fill(port: int, topic: str, values: list[str]) -> None:
    """Values over the partitions of a topic, without a transaction."""
    made = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "enable.idempotence": True})
    for number, value in enumerate(values):
        made.produce(topic, value, partition=number % 4)
    assert made.flush(DEADLINE_S) == 0


@contextlib.contextmanager
def reader(port: int, topic: str, *, committed: bool) -> Iterator[Consumer]:
    """A consumer on all partitions of a topic, from the beginning."""
    made = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": f"reader-{uuid.uuid4()}",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    made.assign([TopicPartition(topic, number, 0) for number in range(4)])
    yield made
    made.close()


def read(port: int, topic: str, *, committed: bool = True) -> list[str]:
    """Everything up to the end that a reader of this kind sees."""
    found, ends = [], 0
    deadline = time.monotonic() + DEADLINE_S
    with reader(port, topic, committed=committed) as consumer:
        while ends < 4:
            assert time.monotonic() < deadline
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is None:
                found.append(message.value().decode())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ends += 1
            else:
                raise KafkaException(message.error())
    return found
