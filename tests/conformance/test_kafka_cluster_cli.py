"""Does the command line write and read by Kafka at any node, while leaders move?"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.conformance.kafka_brokers import unique
from tests.conformance.kafka_clients import eventually
from tests.conformance.kafka_cluster import KafkaCluster
from tests.cross.test_cli_messages import Cli
from tests.support.etcd import needs_etcd

pytestmark = [needs_etcd, pytest.mark.kafka_cluster]

PARTITIONS = 6
MOVES_S = 120.0
"""How long each node may need to have led each partition."""
LATE_S = 60.0


@pytest.fixture
def topic(kafka_cluster: KafkaCluster) -> str:
    """A topic of several partitions; Kafka's name of it is the same."""
    name = unique("cli")
    kafka_cluster.nodes.create(name, PARTITIONS)
    return name


@pytest.fixture
def clis(kafka_cluster: KafkaCluster, tmp_path: Path) -> list[Cli]:
    """The command, pointed at each node."""
    return [Cli(node.ports, tmp_path) for node in kafka_cluster.nodes.nodes]


def test_any_node_takes_and_shows_what_others_lead(clis: list[Cli], topic: str) -> None:
    sent = []
    for at, cli in enumerate(clis):
        for partition in range(PARTITIONS):
            sent.append((partition, f"{at} {partition}"))
            cli.run("pub", topic, sent[-1][1], "--partition", str(partition), via="kafka")
    for cli in clis:
        rows = cli.rows("replay", topic, via="kafka")
        assert sorted((row["partition"], row["payload"]) for row in rows) == sorted(sent)
        later = cli.rows("replay", topic, "--from", "offset:1", via="kafka")
        assert len(later) == len(sent) - PARTITIONS


class Led:
    """Which node has led which partition by now."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        self._seen: set[tuple[int, int]] = set()

    def look(self) -> int:
        """How many pairs there were."""
        rows = AdminClient({"bootstrap.servers": self._cluster.nodes.bootstrap}).list_topics(
            self._topic, timeout=LATE_S
        )
        partitions = rows.topics[self._topic].partitions.values()
        self._seen |= {(row.id, row.leader) for row in partitions if row.leader > 0}
        return len(self._seen)


def lines_while_leaders_move(cluster: KafkaCluster, topic: str) -> Iterator[bytes]:
    """Messages, until each node has led each partition."""
    led, ends, number = Led(cluster, topic), time.monotonic() + MOVES_S, 0
    while led.look() < 3 * PARTITIONS:
        assert time.monotonic() < ends, "not every node has led every partition"
        for _ in range(20):
            yield b'{"topic": "%s", "payload": "%d", "key": "k%d"}\n' % (
                topic.encode(), number, number,
            )  # fmt: skip
            number += 1
        time.sleep(0.1)


def test_what_is_sent_and_shown_goes_on_where_leaders_move_to(
    clis: list[Cli], topic: str, kafka_cluster: KafkaCluster
) -> None:
    writing, reading = clis[0], clis[1]
    shown = reading.folder / "shown"
    with shown.open("wb") as out:
        follower = reading.start("sub", topic, "--from", "earliest", "--json", via="kafka", out=out)
    try:
        writer = writing.start("pub", "--json", via="kafka")
        sent = 0
        for line in lines_while_leaders_move(kafka_cluster, topic):
            assert writer.stdin is not None
            writer.stdin.write(line)
            writer.stdin.flush()
            sent += 1
        _, errors = writer.communicate(timeout=LATE_S)
        assert writer.returncode == 0, errors.decode()
        eventually(lambda: shown.read_bytes().count(b"\n"), lambda count: count >= sent, LATE_S)
        assert follower.poll() is None
    finally:
        follower.kill()
        follower.communicate()
    rows = [json.loads(line) for line in shown.read_bytes().splitlines()]
    assert sorted(int(row["payload"]) for row in rows) == list(range(sent))
    for partition in range(PARTITIONS):
        numbers = [int(row["payload"]) for row in rows if row["partition"] == partition]
        assert numbers == sorted(numbers)
