"""confluent-kafka (librdkafka) behind the face of `kafka_clients`."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tests.conformance.kafka_clients import (
    ALL_CODECS,
    ALL_SCENARIOS,
    DEADLINE_S,
    Member,
    MembersInThreads,
    Record,
    Refused,
)


def settled(futures: dict[Any, Any]) -> list[Any]:
    """The results of an admin call."""
    try:
        return [future.result(DEADLINE_S) for future in futures.values()]
    except KafkaException as error:
        raise Refused(error.args[0].code(), error.args[0].str()) from error


def record_of(message: Message) -> Record:
    assert message.error() is None, message.error()
    headers = tuple((name, value) for name, value in message.headers() or ())
    _kind, stamp = message.timestamp()
    return Record(
        message.value(), message.key(), headers, stamp, message.partition(), message.offset()
    )


class Confluent(MembersInThreads):
    codecs = ALL_CODECS
    scenarios = ALL_SCENARIOS

    def __init__(self, port: int) -> None:
        super().__init__()
        self._settings: dict[str, Any] = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "log_level": 2,
            "allow.auto.create.topics": False,
        }
        self._producers: dict[str, Producer] = {}
        self._admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 2})

    def _producer(self, **more: Any) -> Producer:
        plain = {name: text for name, text in self._settings.items() if "allow" not in name}
        return Producer({**plain, "linger.ms": 20, **more})

    def _consumer(self, group: str, **more: Any) -> Consumer:
        return Consumer(
            {
                **self._settings,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "check.crcs": True,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 300,
                "partition.assignment.strategy": "range",
                **more,
            }
        )

    def _idempotent(self, codec: str) -> Producer:
        """Made once for each codec: a new one waits half a second for its identity."""
        if codec not in self._producers:
            settings = {"compression.type": codec, "enable.idempotence": True}
            self._producers[codec] = self._producer(**settings)
        return self._producers[codec]

    def produce(self, topic: str, records: list[Record], codec: str) -> list[int]:
        producer = self._idempotent(codec)
        offsets: list[int] = []
        failures: list[Any] = []

        def delivered(error: Any, message: Message) -> None:
            failures.extend([error] if error is not None else [])
            offsets.append(message.offset())  # type: ignore[arg-type]

        for record in records:
            more = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
            producer.produce(
                topic,
                record.value,
                record.key,
                record.partition,
                delivered,
                headers=list(record.headers),
                **more,
            )
        assert producer.flush(DEADLINE_S) == 0
        if failures:
            raise Refused(failures[0].code(), failures[0].str())
        return offsets

    def read(self, counts: dict[str, int], *, committed: bool) -> dict[str, list[Record]]:
        level = "read_committed" if committed else "read_uncommitted"
        consumer = self._consumer("unused", **{"isolation.level": level})
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in counts])
        found: dict[str, list[Record]] = {topic: [] for topic in counts}
        deadline = time.monotonic() + DEADLINE_S
        while any(len(found[topic]) < count for topic, count in counts.items()):
            assert time.monotonic() < deadline, {topic: len(rows) for topic, rows in found.items()}
            for message in consumer.consume(1000, 0.1):
                found[message.topic()].append(record_of(message))  # type: ignore[index]
        consumer.close()
        return found

    def transact(self, name: str, topic: str, values: list[bytes], *, commit: bool) -> None:
        producer = self._producer(**{"transactional.id": name})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(DEADLINE_S) == 0
        if commit:
            producer.commit_transaction(DEADLINE_S)
        else:
            producer.abort_transaction(DEADLINE_S)

    def transform(
        self, name: str, group: str, source: str, target: str, count: int, *, commit: bool
    ) -> None:
        consumer = self._consumer(
            group, **{"enable.auto.commit": False, "isolation.level": "read_committed"}
        )
        consumer.subscribe([source])
        producer = self._producer(**{"transactional.id": name})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        left, deadline = count, time.monotonic() + DEADLINE_S
        while left:
            assert time.monotonic() < deadline
            for message in consumer.consume(left, 0.1):
                assert message.error() is None, message.error()
                producer.produce(target, b"> " + (message.value() or b""), partition=0)
                left -= 1
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()),
            consumer.consumer_group_metadata(),
            DEADLINE_S,
        )
        if commit:
            producer.commit_transaction(DEADLINE_S)
        else:
            producer.abort_transaction(DEADLINE_S)
        consumer.close()

    def join(self, member: str, group: str, topic: str) -> None:
        consumer = self._consumer(group, **{"auto.commit.interval.ms": 100})
        consumer.subscribe([topic])

        def poll() -> list[tuple[int, int]]:
            records = [record_of(message) for message in consumer.consume(100, 0.05)]
            return [(record.partition, record.offset) for record in records]

        def assigned() -> list[int]:
            return [found.partition for found in consumer.assignment()]

        self._members[member] = Member(poll, assigned, consumer.close)

    def create(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        settled(self._admin.create_topics([NewTopic(topic, partitions, -1, config=configs)]))

    def partitions(self, topic: str) -> int:
        found = self._admin.list_topics(topic, DEADLINE_S).topics[topic]
        if found.error is not None:
            raise Refused(found.error.code(), found.error.str())
        return len(found.partitions)

    def configs(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        (found,) = settled(self._admin.describe_configs([resource]))
        return {name: entry.value for name, entry in found.items()}

    def configure(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        settled(self._admin.incremental_alter_configs([resource]))

    def grow(self, topic: str, partitions: int) -> None:
        settled(self._admin.create_partitions([NewPartitions(topic, partitions)]))

    def delete(self, topic: str) -> None:
        settled(self._admin.delete_topics([topic]))

    def topics(self) -> list[str]:
        return list(self._admin.list_topics(timeout=DEADLINE_S).topics)
