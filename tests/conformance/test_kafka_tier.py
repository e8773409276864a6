"""Kafka's own client on a topic whose history is in the object store: settings and offsets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from confluent_kafka import Producer

from tests.conformance.kafka_brokers import KINDS
from tests.conformance.mqtt_brokers import DEADLINE_S, Onelog, environment
from tests.support.forks import run_onelog

REMOTE = {"remote.storage.enable": "true", "local.retention.bytes": "0", "segment.bytes": "16384"}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Onelog]:
    folder = tmp_path_factory.mktemp("kafka-tier")
    (folder / "objects").mkdir()
    found = Onelog(folder, f"store.url=file://{folder}/objects").start()
    yield found
    assert found.stop() == 0
    assert not found.errors()


def offload(server: Onelog, stream: str) -> None:
    where = environment() | {
        "ONELOG_LISTENERS_ADMIN_PORT": str(server.ports["admin"]),
        "ONELOG_DATA_DIR": str(server.folder / "data"),
    }
    run_onelog("stream", "offload", stream, environment=where).check_returncode()


@pytest.mark.parametrize("name", ["java-3", "java-4"])
def test_kafka_s_client_sees_the_local_start_and_the_end_of_the_store(server, name):
    lacking = KINDS[name].lacks()
    if lacking:
        pytest.skip(lacking)
    topic = f"tiered-{name}"
    client = KINDS[name].make(server.ports["kafka"])
    offset = partial(client.ask, "offset", topic=topic, partition=0)
    try:
        client.ask("create", topic=topic, partitions=1, configs=REMOTE)
        told = client.ask("configs", topic=topic)
        assert {key: told[key] for key in REMOTE} == REMOTE
        assert told["local.retention.ms"] == "-2"
        assert (offset(kind="earliestLocal"), offset(kind="latestTiered")) == (0, -1)
        write(server, topic, 100)
        offload(server, topic)
        assert (offset(kind="earliest"), offset(kind="latest")) == (0, 100)
        assert (offset(kind="earliestLocal"), offset(kind="latestTiered")) == (100, 99)
        write(server, topic, 5)
        assert (offset(kind="earliestLocal"), offset(kind="latestTiered")) == (100, 99)
        client.ask("configure", topic=topic, name="remote.log.copy.disable", value="true")
        assert client.ask("configs", topic=topic)["remote.log.copy.disable"] == "true"
    finally:
        client.close()


def write(server: Onelog, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}", "log_level": 0})
    for number in range(count):
        producer.produce(topic, f"{number} {'x' * 500}")
    assert producer.flush(DEADLINE_S) == 0
