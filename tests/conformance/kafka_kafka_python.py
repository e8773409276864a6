"""kafka-python behind the face of `kafka_clients`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import BrokerResponseError
from kafka.structs import OffsetAndMetadata

from tests.conformance.kafka_clients import (
    ALL_CODECS,
    ALL_SCENARIOS,
    DEADLINE_S,
    Member,
    MembersInThreads,
    Record,
    Refused,
)

DEADLINE_MS = int(DEADLINE_S * 1000)


@contextlib.contextmanager
def codes() -> Iterator[None]:
    """The client's exceptions carry Kafka's codes."""
    try:
        yield
    except BrokerResponseError as error:
        raise Refused(error.errno, str(error)) from error


def record_of(row: Any) -> Record:
    return Record(row.value, row.key, tuple(row.headers), row.timestamp, row.partition, row.offset)


class KafkaPython(MembersInThreads):
    codecs = ALL_CODECS
    scenarios = ALL_SCENARIOS

    def __init__(self, port: int) -> None:
        super().__init__()
        self._address = f"127.0.0.1:{port}"
        self._admin = KafkaAdminClient(bootstrap_servers=self._address)

    def close(self) -> None:
        super().close()
        self._admin.close()

    def _producer(self, **more: Any) -> KafkaProducer:
        return KafkaProducer(bootstrap_servers=self._address, linger_ms=20, **more)

    def _consumer(self, group: str | None, **more: Any) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=self._address,
            group_id=group,
            auto_offset_reset="earliest",
            check_crcs=True,
            session_timeout_ms=6000,
            heartbeat_interval_ms=300,
            partition_assignment_strategy=[RangePartitionAssignor],
            **more,
        )

    def produce(self, topic: str, records: list[Record], codec: str) -> list[int]:
        producer = self._producer(compression_type=None if codec == "none" else codec)
        sent = [
            producer.send(
                topic,
                record.value,
                record.key,
                list(record.headers),
                record.partition,
                record.timestamp_ms,
            )
            for record in records
        ]
        with codes():
            offsets = [future.get(DEADLINE_S).offset for future in sent]
        producer.close()
        return offsets

    def read(self, counts: dict[str, int], *, committed: bool) -> dict[str, list[Record]]:
        level = "read_committed" if committed else "read_uncommitted"
        consumer = self._consumer(None, isolation_level=level, enable_auto_commit=False)
        places = [TopicPartition(topic, 0) for topic in counts]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        found: dict[str, list[Record]] = {topic: [] for topic in counts}
        deadline = time.monotonic() + DEADLINE_S
        while any(len(found[topic]) < count for topic, count in counts.items()):
            assert time.monotonic() < deadline, {topic: len(rows) for topic, rows in found.items()}
            for place, rows in consumer.poll(100).items():
                found[place.topic] += [record_of(row) for row in rows]
        consumer.close()
        return found

    def transact(self, name: str, topic: str, values: list[bytes], *, commit: bool) -> None:
        producer = self._producer(transactional_id=name)
        producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            producer.send(topic, value, partition=0)
        producer.flush(DEADLINE_S)
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        producer.close()

    def transform(
        self, name: str, group: str, source: str, target: str, count: int, *, commit: bool
    ) -> None:
        consumer = self._consumer(group, isolation_level="read_committed", enable_auto_commit=False)
        consumer.subscribe([source])
        producer = self._producer(transactional_id=name)
        producer.init_transactions()
        producer.begin_transaction()
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        left, deadline = count, time.monotonic() + DEADLINE_S
        while left:
            assert time.monotonic() < deadline
            for place, rows in consumer.poll(1000, max_records=left).items():
                for row in rows:
                    producer.send(target, b"> " + row.value, partition=0)
                    offsets[place] = OffsetAndMetadata(row.offset + 1, "", -1)
                    left -= 1
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        producer.close()
        consumer.close(autocommit=False)

    def join(self, member: str, group: str, topic: str) -> None:
        consumer = self._consumer(group, auto_commit_interval_ms=100)
        consumer.subscribe([topic])

        def poll() -> list[tuple[int, int]]:
            # A poll that ends between the request and the answer of SyncGroup loses the assignment.
            found = consumer.poll(1000)
            return [(row.partition, row.offset) for rows in found.values() for row in rows]

        def assigned() -> list[int]:
            return [place.partition for place in consumer.assignment()]

        self._members[member] = Member(poll, assigned, consumer.close)

    def create(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        wanted = {"num_partitions": partitions, "replication_factor": -1, "configs": configs}
        with codes():
            self._admin.create_topics({topic: wanted})

    def partitions(self, topic: str) -> int:
        (found,) = self._admin.describe_topics([topic])
        if found["error_code"]:
            raise Refused(found["error_code"])
        return len(found["partitions"])

    def configs(self, topic: str) -> dict[str, str | None]:
        found = self._admin.describe_configs([ConfigResource("TOPIC", topic)], config_filter="all")
        return {name: row["value"] for name, row in found["topic"][topic].items()}

    def configure(self, topic: str, name: str, value: str) -> None:
        answer = self._admin.alter_configs(
            [ConfigResource("TOPIC", topic, {name: value})], raise_on_unknown=False
        )
        said = answer["topic"][topic]
        if said != "OK":
            raise Refused(int(said.removeprefix("[Error ").partition("]")[0]), said)

    def grow(self, topic: str, partitions: int) -> None:
        with codes():
            self._admin.create_partitions({topic: partitions})

    def delete(self, topic: str) -> None:
        with codes():
            self._admin.delete_topics([topic])

    def topics(self) -> list[str]:
        return list(self._admin.list_topics())
