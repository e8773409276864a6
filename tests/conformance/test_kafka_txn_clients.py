"""Transactions with real clients: what they commit is read once, what they abort never."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import random
import threading
import time
from collections import Counter
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.conformance.kafka_brokers import KafkaServer, unique
from tests.support.kafka_txn_clients import DEADLINE_S, fill, producer, read, reader

RECORDS = 1000


# -- librdkafka


def test_committed_records_are_read_and_aborted_ones_are_not(kafka_ours: KafkaServer):
    port, topic = kafka_ours.port, unique()
    fill(port, topic, ["plain"])
    writer = producer(port, unique("txn"))
    for number in range(20):
        writer.begin_transaction()
        for partition in range(2):
            writer.produce(topic, f"{number}", partition=partition)
        writer.flush(DEADLINE_S)
        if number % 2:
            writer.commit_transaction(DEADLINE_S)
        else:
            writer.abort_transaction(DEADLINE_S)
    kept = sorted(["plain", *(str(number) for number in range(1, 20, 2) for _ in range(2))])
    assert sorted(read(port, topic)) == kept
    assert len(read(port, topic, committed=False)) == 41


def test_a_reader_of_committed_records_waits_before_an_open_transaction(kafka_ours):
    port, topic = kafka_ours.port, unique()
    fill(port, topic, ["before"])
    writer = producer(port, unique("txn"))
    writer.begin_transaction()
    writer.produce(topic, "inside", partition=0)
    writer.flush(DEADLINE_S)
    fill(port, topic, ["after"])
    assert read(port, topic) == ["before"]
    with reader(port, topic, committed=True) as consumer:
        place = TopicPartition(topic, 0)
        assert consumer.get_watermark_offsets(place, DEADLINE_S, False)[1] == 1
        writer.commit_transaction(DEADLINE_S)
        found = []
        while len(found) < 3:
            message = consumer.poll(DEADLINE_S)
            assert message is not None
            if message.error() is None:
                found.append(message.value().decode())
    assert found == ["before", "inside", "after"]


def test_a_second_producer_of_the_same_name_fences_the_first(kafka_ours: KafkaServer):
    port, topic, name = kafka_ours.port, unique(), unique("txn")
    fill(port, topic, ["plain"])
    old = producer(port, name)
    old.begin_transaction()
    old.produce(topic, "old", partition=0)
    old.flush(DEADLINE_S)
    new = producer(port, name)
    with pytest.raises(KafkaException) as caught:
        old.commit_transaction(DEADLINE_S)
    assert caught.value.args[0].code() == KafkaError._FENCED
    assert caught.value.args[0].fatal()
    new.begin_transaction()
    new.produce(topic, "new", partition=0)
    new.commit_transaction(DEADLINE_S)
    assert read(port, topic) == ["plain", "new"]


def test_a_transaction_that_takes_too_long_is_aborted_and_readers_go_on(kafka_ours):
    port, topic = kafka_ours.port, unique()
    fill(port, topic, ["plain"])
    slow = producer(port, unique("txn"), **{"transaction.timeout.ms": 1000})
    slow.begin_transaction()
    slow.produce(topic, "slow", partition=0)
    slow.flush(DEADLINE_S)
    fill(port, topic, ["after"])
    deadline = time.monotonic() + DEADLINE_S
    while read(port, topic) != ["plain", "after"]:
        assert time.monotonic() < deadline
    with pytest.raises(KafkaException) as caught:
        slow.commit_transaction(DEADLINE_S)
    assert caught.value.args[0].code() == KafkaError._FENCED


def test_a_timeout_beyond_the_limit_is_refused(kafka_ours: KafkaServer):
    with pytest.raises(KafkaException) as caught:
        producer(kafka_ours.port, unique("txn"), **{"transaction.timeout.ms": 3_600_000})
    assert caught.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT


class Worker:
    """Reads, writes what it read, and commits both together, or neither."""

    def __init__(self, port: int, names: tuple[str, str, str, str], seed: int) -> None:
        self.group, self.source, self.target, self.name = names
        self.port = port
        self.chance = random.Random(seed)
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._guard, daemon=True)
        self.thread.start()

    def _guard(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - told by `finish`
            self.failure = error

    def _run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{self.port}",
                "group.id": self.group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
            }
        )
        consumer.subscribe([self.source])
        writer = producer(self.port, self.name)
        try:
            while not self.stopping.is_set():
                messages = [row for row in consumer.consume(20, 0.1) if row.error() is None]
                if messages:
                    self._transact(consumer, writer, messages)
        finally:
            consumer.close()

    def _transact(self, consumer: Consumer, writer: Producer, messages: list) -> None:
        writer.begin_transaction()
        try:
            for message in messages:
                writer.produce(self.target, message.value(), partition=message.partition())
            offsets = consumer.position(consumer.assignment())
            offsets = [row for row in offsets if row.offset >= 0]
            writer.send_offsets_to_transaction(
                offsets, consumer.consumer_group_metadata(), DEADLINE_S
            )
            unlucky = self.chance.random() < 0.3
            if unlucky:
                writer.flush(DEADLINE_S)  # so that there is something to abort
            else:
                writer.commit_transaction(DEADLINE_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            unlucky = True
        if unlucky:
            writer.abort_transaction(DEADLINE_S)
            self._rewind(consumer)

    @staticmethod
    def _rewind(consumer: Consumer) -> None:
        for row in _committed(consumer):
            if row.offset < 0:
                row.offset = confluent_kafka.OFFSET_BEGINNING
            with contextlib.suppress(KafkaException):  # it was taken away meanwhile
                consumer.seek(row)

    def finish(self) -> None:
        self.stopping.set()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
        if self.failure is not None:
            raise self.failure


def _committed(consumer: Consumer) -> list[TopicPartition]:
    """Where the group is; asked again while its coordinator moves."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            rows: list[TopicPartition] = consumer.committed(consumer.assignment(), DEADLINE_S)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return rows


def test_read_process_write_is_exactly_once_with_aborts_rebalances_and_takeovers(
    kafka_ours: KafkaServer,
):
    port, group = kafka_ours.port, unique("g")
    source, target, name = unique("source"), unique("target"), unique("txn")
    values = [f"v{number}" for number in range(RECORDS)]
    fill(port, source, values)
    fill(port, target, [])
    names = [(group, source, target, f"{name}-{number}") for number in range(3)]
    workers = [Worker(port, row, seed) for seed, row in enumerate(names[:2])]
    _wait_for(port, target, RECORDS // 4)
    workers.append(Worker(port, names[2], 2))  # the group is rebalanced
    _wait_for(port, target, RECORDS // 2)
    # One leaves a transaction open, and its successor takes over its name.
    workers.pop(0).finish()
    lost = producer(port, names[0][3])
    lost.begin_transaction()
    lost.produce(target, "lost", partition=0)
    lost.flush(DEADLINE_S)
    workers.append(Worker(port, names[0], 3))
    _wait_for(port, target, RECORDS)
    for worker in workers:
        worker.finish()
    twice = {value: count for value, count in Counter(read(port, target)).items() if count > 1}
    assert not twice
    assert sorted(read(port, target)) == sorted(values)
    assert len(read(port, target, committed=False)) > RECORDS, "nothing was aborted"


def _wait_for(port: int, topic: str, count: int) -> None:
    deadline = time.monotonic() + 2 * DEADLINE_S
    while (found := len(set(read(port, topic)))) < count:
        assert time.monotonic() < deadline, f"{found} of {count} records"


# -- aiokafka


async def test_aiokafka_commits_aborts_and_is_fenced(kafka_ours: KafkaServer):
    port, topic = kafka_ours.port, unique()
    await _commit_abort_and_be_fenced(port, topic, unique("txn"))
    gc.collect()  # a fenced one leaves exceptions behind that nobody took; they are told here
    assert sorted(read(port, topic)) == ["1", "3", "5", "new"]


async def _commit_abort_and_be_fenced(port: int, topic: str, name: str) -> None:
    server = {"bootstrap_servers": f"127.0.0.1:{port}"}
    old = AIOKafkaProducer(transactional_id=name, **server)
    await old.start()
    for number in range(6):
        await old.begin_transaction()
        await old.send_and_wait(topic, f"{number}".encode(), partition=number % 4)
        await (old.commit_transaction if number % 2 else old.abort_transaction)()
    async with AIOKafkaProducer(transactional_id=name, **server) as new:
        with pytest.raises(ProducerFenced):
            async with old.transaction():
                await old.send_and_wait(topic, b"old", partition=0)
        async with new.transaction():
            await new.send_and_wait(topic, b"new", partition=0)
    with contextlib.suppress(ProducerFenced):
        await old.stop()
    await old.client.close()  # a fenced one does not close it


async def test_aiokafka_moves_offsets_with_its_transaction(kafka_ours: KafkaServer):
    port, source, target, group = kafka_ours.port, unique(), unique(), unique("g")
    server = {"bootstrap_servers": f"127.0.0.1:{port}"}
    values = [f"v{number}" for number in range(100)]
    fill(port, source, values)
    place = AioPartition(source, 0)
    chance = random.Random(1)
    async with (
        AIOKafkaConsumer(
            group_id=group,
            enable_auto_commit=False,
            isolation_level="read_committed",
            **server,
        ) as consumer,
        AIOKafkaProducer(transactional_id=unique("txn"), **server) as writer,
    ):
        consumer.assign([place])
        at = 0
        while at < 25:
            consumer.seek(place, at)
            rows = await consumer.getmany(place, timeout_ms=5000, max_records=4)
            await writer.begin_transaction()
            for row in rows[place]:
                await writer.send(target, row.value, partition=0)
            end = rows[place][-1].offset + 1
            await writer.send_offsets_to_transaction({place: end}, group)
            if chance.random() < 0.4:
                await writer.abort_transaction()
            else:
                await writer.commit_transaction()
                at = end
                # The outcome is certain now; that the group stands there follows at once.
                async with asyncio.timeout(DEADLINE_S):
                    while await consumer.committed(place) != at:
                        pass
            assert (await consumer.committed(place) or 0) == at
    assert read(port, target) == values[::4]


# -- kafka-python


@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")
def test_kafka_python_commits_aborts_and_moves_offsets(kafka_ours: KafkaServer):
    # Importing it warns: it reads its schemas in a way of the past.
    kafka = importlib.import_module("kafka")
    structs = importlib.import_module("kafka.structs")
    port, source, target, group = kafka_ours.port, unique(), unique(), unique("g")
    server = {"bootstrap_servers": f"127.0.0.1:{port}"}
    values = [f"v{number}" for number in range(100)]
    fill(port, source, values)
    place = kafka.TopicPartition(source, 0)
    consumer = kafka.KafkaConsumer(
        group_id=group, enable_auto_commit=False, isolation_level="read_committed", **server
    )
    consumer.assign([place])
    writer = kafka.KafkaProducer(transactional_id=unique("txn"), **server)
    writer.init_transactions()
    chance = random.Random(2)
    at = 0
    while at < 25:
        consumer.seek(place, at)
        rows = _poll(consumer, place)
        writer.begin_transaction()
        for row in rows:
            writer.send(target, row.value, partition=0)
        end = rows[-1].offset + 1
        offsets = {place: structs.OffsetAndMetadata(end, "", -1)}
        writer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        writer.flush(DEADLINE_S)
        if chance.random() < 0.4:
            writer.abort_transaction()
        else:
            writer.commit_transaction()
            at = end
            deadline = time.monotonic() + DEADLINE_S
            while consumer.committed(place) != at:
                assert time.monotonic() < deadline
        assert (consumer.committed(place) or 0) == at
    writer.close()
    consumer.close(autocommit=False)
    assert read(port, target) == values[::4]


def _poll(consumer: Any, place: Any) -> list:
    deadline = time.monotonic() + DEADLINE_S
    while not (rows := consumer.poll(1000, max_records=4).get(place)):
        assert time.monotonic() < deadline
    return rows
