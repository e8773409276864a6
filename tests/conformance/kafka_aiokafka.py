"""aiokafka behind the face of `kafka_clients`: its event loop runs in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import BrokerResponseError

from tests.conformance.kafka_clients import (
    ALL_CODECS,
    ALL_SCENARIOS,
    DEADLINE_S,
    Record,
    Refused,
)

T = TypeVar("T")


def record_of(row: Any) -> Record:
    headers = tuple((name, value) for name, value in row.headers)
    return Record(row.value, row.key, headers, row.timestamp, row.partition, row.offset)


class LoopMember:
    """A member of a group: a task that polls."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self.consumer = consumer
        self.took: list[tuple[int, int]] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            for rows in (await self.consumer.getmany(timeout_ms=50)).values():
                self.took += [(row.partition, row.offset) for row in rows]

    async def leave(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.consumer.stop()


class Aiokafka:
    codecs = ALL_CODECS
    scenarios = ALL_SCENARIOS

    def __init__(self, port: int) -> None:
        self._address = f"127.0.0.1:{port}"
        self._members: dict[str, LoopMember] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._admin: AIOKafkaAdminClient = self._run(self._open_admin())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)
        except BrokerResponseError as error:
            raise Refused(error.errno, str(error)) from error

    async def _open_admin(self) -> AIOKafkaAdminClient:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._address)
        await admin.start()
        return admin

    def close(self) -> None:
        for member in list(self._members):
            self.leave(member)
        self._run(self._admin.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    @contextlib.asynccontextmanager
    async def _producer(self, **more: Any):
        producer = AIOKafkaProducer(bootstrap_servers=self._address, linger_ms=20, **more)
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()

    def _consumer(self, *topics: str, group: str | None = None, **more: Any) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            *topics,
            bootstrap_servers=self._address,
            group_id=group,
            auto_offset_reset="earliest",
            check_crcs=True,
            session_timeout_ms=6000,
            heartbeat_interval_ms=300,
            partition_assignment_strategy=(RangePartitionAssignor,),
            **more,
        )

    def produce(self, topic: str, records: list[Record], codec: str) -> list[int]:
        async def work() -> list[int]:
            compression = None if codec == "none" else codec
            async with self._producer(
                compression_type=compression, enable_idempotence=True
            ) as producer:
                sent = [
                    await producer.send(
                        topic,
                        record.value,
                        record.key,
                        record.partition,
                        record.timestamp_ms,
                        list(record.headers),
                    )
                    for record in records
                ]
                return [(await future).offset for future in sent]

        return self._run(work())

    def read(self, counts: dict[str, int], *, committed: bool) -> dict[str, list[Record]]:
        async def work() -> dict[str, list[Record]]:
            level = "read_committed" if committed else "read_uncommitted"
            consumer = self._consumer(isolation_level=level)
            await consumer.start()
            consumer.assign([TopicPartition(topic, 0) for topic in counts])
            found: dict[str, list[Record]] = {topic: [] for topic in counts}
            while any(len(found[topic]) < count for topic, count in counts.items()):
                for place, rows in (await consumer.getmany(timeout_ms=100)).items():
                    found[place.topic] += [record_of(row) for row in rows]
            await consumer.stop()
            return found

        return self._run(work())

    def transact(self, name: str, topic: str, values: list[bytes], *, commit: bool) -> None:
        async def work() -> None:
            async with self._producer(transactional_id=name) as producer:
                await producer.begin_transaction()
                for value in values:
                    await producer.send_and_wait(topic, value, partition=0)
                await (producer.commit_transaction if commit else producer.abort_transaction)()

        self._run(work())

    def transform(
        self, name: str, group: str, source: str, target: str, count: int, *, commit: bool
    ) -> None:
        async def work() -> None:
            consumer = self._consumer(
                source, group=group, isolation_level="read_committed", enable_auto_commit=False
            )
            await consumer.start()
            async with self._producer(transactional_id=name) as producer:
                await producer.begin_transaction()
                offsets: dict[TopicPartition, int] = {}
                for _ in range(count):
                    row = await consumer.getone()
                    await producer.send(target, b"> " + row.value, partition=0)
                    offsets[TopicPartition(row.topic, row.partition)] = row.offset + 1
                await producer.send_offsets_to_transaction(offsets, group)
                await (producer.commit_transaction if commit else producer.abort_transaction)()
            await consumer.stop()

        self._run(work())

    def join(self, member: str, group: str, topic: str) -> None:
        async def work() -> LoopMember:
            consumer = self._consumer(topic, group=group, auto_commit_interval_ms=100)
            await consumer.start()
            return LoopMember(consumer)

        self._members[member] = self._run(work())

    def assigned(self, member: str) -> list[int]:
        places = self._members[member].consumer.assignment()
        return sorted(place.partition for place in places)

    def took(self, member: str) -> list[tuple[int, int]]:
        return list(self._members[member].took)

    def leave(self, member: str) -> None:
        self._run(self._members.pop(member).leave())

    def create(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        # It cannot leave the number of replicas to the cluster: its topics have one.
        wanted = NewTopic(topic, partitions, 1, topic_configs=configs)
        ((_name, code, *text),) = self._run(self._admin.create_topics([wanted])).topic_errors
        self._check(code, text)

    def partitions(self, topic: str) -> int:
        (found,) = self._run(self._admin.describe_topics([topic]))
        self._check(found["error_code"], topic)
        return len(found["partitions"])

    def configs(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = self._run(self._admin.describe_configs([resource]))
        ((code, text, _kind, _name, entries),) = answer.resources
        self._check(code, text)
        return {entry[0]: entry[1] for entry in entries}

    def configure(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
        (answer,) = self._run(self._admin.alter_configs([resource]))
        ((code, text, _kind, _name),) = answer.resources
        self._check(code, text)

    def grow(self, topic: str, partitions: int) -> None:
        self._run(self._admin.create_partitions({topic: NewPartitions(partitions)}))

    def delete(self, topic: str) -> None:
        ((_name, code),) = self._run(self._admin.delete_topics([topic])).topic_error_codes
        self._check(code, topic)

    def topics(self) -> list[str]:
        return self._run(self._admin.list_topics())

    @staticmethod
    def _check(code: int, text: object) -> None:
        if code:
            raise Refused(code, str(text))
