"""Fixtures of the Kafka scenarios: the brokers, started once, and every client on each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench import kafka_peer
from tests.conformance.kafka_brokers import Clients, KafkaOnelog, KafkaServer
from tests.conformance.kafka_cluster import KafkaCluster
from tests.conformance.mqtt_brokers import GROUPS_AT_ONCE
from tests.support.etcd import find_etcd

LACKS_PEER = (
    "Apache Kafka is missing: run 'apt-get install maven' as root, 'make conformance-kafka'"
)


LACKS_ETCD = "etcd is not here: `apt-get install etcd-server`"


@pytest.fixture(scope="session")
def kafka_onelog(tmp_path_factory) -> Iterator[KafkaOnelog]:
    server = KafkaOnelog(tmp_path_factory.mktemp("kafka"), GROUPS_AT_ONCE)
    server.start()
    yield server
    assert server.stop() == 0
    assert not server.errors()


@pytest.fixture(scope="session")
def kafka_apache(tmp_path_factory) -> Iterator[kafka_peer.KafkaPeer]:
    if not kafka_peer.available():
        pytest.skip(LACKS_PEER)
    with kafka_peer.kafka(tmp_path_factory.mktemp("apache")) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_cluster(tmp_path_factory) -> Iterator[KafkaCluster]:
    if find_etcd() is None:
        pytest.skip(LACKS_ETCD)
    with KafkaCluster(tmp_path_factory.mktemp("cluster") / "nodes") as server:
        yield server


@pytest.fixture(
    scope="session",
    params=[
        "onelog",
        pytest.param("cluster", marks=pytest.mark.kafka_cluster),
        pytest.param("apache", marks=pytest.mark.kafka_peer),
    ],
)
def kafka_server(request) -> KafkaServer:
    """One node, or three of which clients begin at any."""
    server: KafkaServer = request.getfixturevalue(f"kafka_{request.param}")
    return server


@pytest.fixture(
    scope="session", params=["onelog", pytest.param("cluster", marks=pytest.mark.kafka_cluster)]
)
def kafka_ours(request) -> KafkaOnelog | KafkaCluster:
    """OneLog alone: one node, or three of which clients begin at any."""
    server: KafkaOnelog | KafkaCluster = request.getfixturevalue(f"kafka_{request.param}")
    return server


@pytest.fixture(
    scope="session", params=["onelog", pytest.param("apache", marks=pytest.mark.kafka_peer)]
)
def kafka_node(request) -> KafkaServer:
    """One node, which leads and coordinates everything."""
    server: KafkaServer = request.getfixturevalue(f"kafka_{request.param}")
    return server


@pytest.fixture(scope="session")
def kafka_clients() -> Iterator[Clients]:
    clients = Clients()
    yield clients
    clients.close()
