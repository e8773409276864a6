"""Topics for the tests of the source: made, filled and read back by a plain client."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka.admin import AdminClient, NewTopic

from onelog.kafka_client import Access, Client, Produced
from onelog.record.batch import Row, build_batch
from tests.conformance.mqtt_brokers import Onelog


def access(server: Onelog) -> Access:
    return Access(servers=(("127.0.0.1", server.ports["kafka"]),), timeout_s=30.0)


def servers(server: Onelog) -> str:
    return f"127.0.0.1:{server.ports['kafka']}"


def make_topic(server: Onelog, name: str, partitions: int = 2, **config: str) -> str:
    admin = AdminClient({"bootstrap.servers": servers(server)})
    # The records of the tests are of 1970: retention would take them at once.
    settings = {"retention.ms": "-1"}
    settings |= {key.replace("_", "."): value for key, value in config.items()}
    made = admin.create_topics([NewTopic(name, partitions, 1, config=settings)])
    made[name].result(30)
    return name


def append(server: Onelog, topic: str, partition: int, rows: Sequence[Row], **more: object) -> int:
    """Append a batch; its first offset."""
    with Client(access(server)) as client:
        data = build_batch(rows, **more)  # type: ignore[arg-type]
        found: Produced = client.produce({(topic, partition): data})[topic, partition]
        assert found.code == 0, found
        return found.base_offset


def row(
    value: str | bytes | None, key: bytes | None = b"k", time_ms: int = 1000, headers=()
) -> Row:
    data = value.encode() if isinstance(value, str) else value
    return (None, key, data, headers, time_ms)


def rows(*values: str, time_ms: int = 1000) -> list[Row]:
    return [row(value, time_ms=time_ms + at) for at, value in enumerate(values)]


def numbered(first: int, count: int) -> list[Row]:
    return rows(*(f"v{n}" for n in range(first, first + count)))
