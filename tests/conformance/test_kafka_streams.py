"""A Kafka Streams application with a versioned store, on OneLog and on Apache Kafka."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from bench.kafka_jars import jars
from tests.conformance.kafka_brokers import HERE, KafkaServer, unique

DEADLINE_S = 60.0
HOUR_MS = 3_600_000
pytestmark = pytest.mark.kafka_peer  # a JVM twice for each broker: not in every run
HEAP = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@contextlib.contextmanager
def application(port: int, *arguments: str) -> Iterator[None]:
    """It runs for the length of a block, and ends in order."""
    script = HERE / "kafka_streams_versions.java"
    command = ["java", *HEAP, "-cp", f"{jars('streams')}/*", str(script), str(port), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


class Talk:
    """Puts values and asks for them through the topics of the application."""

    def __init__(self, port: int) -> None:
        settings = {"bootstrap.servers": f"127.0.0.1:{port}"}
        self.admin = AdminClient(settings)
        self.input, self.output, self.name = unique("in"), unique("out"), unique("app")
        for future in self.admin.create_topics(
            [NewTopic(self.input, 1, -1), NewTopic(self.output, 1, -1)]
        ).values():
            future.result(DEADLINE_S)
        self._producer = Producer(settings)
        more = {"group.id": self.name + "-reader", "isolation.level": "read_committed"}
        self._consumer = Consumer(settings | more | {"auto.offset.reset": "earliest"})
        self._consumer.subscribe([self.output])

    def say(self, *rows: tuple[str, int]) -> None:
        for value, time_ms in rows:
            self._producer.produce(self.input, value.encode(), b"key", timestamp=time_ms)
        assert self._producer.flush(DEADLINE_S) == 0

    def heard(self, count: int) -> list[str]:
        deadline, found = time.monotonic() + DEADLINE_S, []
        while len(found) < count:
            assert time.monotonic() < deadline, f"only {found}"
            message = self._consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.append(message.value().decode())
        return found

    def settings_of(self, part: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, f"{self.name}-{part}")
        (future,) = self.admin.describe_configs([resource]).values()
        return {name: row.value for name, row in future.result(DEADLINE_S).items()}

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def talk(kafka_server: KafkaServer) -> Iterator[Talk]:
    if shutil.which("javac") is None or jars("streams") is None:
        pytest.skip("Kafka Streams is missing: run 'make conformance-kafka', which needs Maven")
    talk = Talk(kafka_server.port)
    yield talk
    talk.close()


def test_a_versioned_store_is_kept_and_restored_from_its_changelog(
    kafka_server: KafkaServer, talk: Talk, tmp_path: Path
) -> None:
    now_ms = int(time.time() * 1000)
    early, late = now_ms - 60_000, now_ms - 30_000
    asked = [(f"asof:{at}", now_ms) for at in (early - 1, early, late - 1, late)]
    for run in range(2):
        folder = str(tmp_path / str(run))  # the second one has nothing but its changelog
        with application(kafka_server.port, talk.name, talk.input, talk.output, folder):
            if run == 0:
                talk.say(("first", early), ("second", late))
            talk.say(*asked)
            assert talk.heard(4) == ["none", "first", "first", "second"]
    found = talk.settings_of("versions-changelog")
    assert found["cleanup.policy"] == "compact"
    assert found["min.compaction.lag.ms"] == str(HOUR_MS + 24 * HOUR_MS)
    found = talk.settings_of("again-repartition")
    assert (found["cleanup.policy"], found["retention.ms"]) == ("delete", "-1")
