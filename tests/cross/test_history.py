"""History that was written before anybody asked: every protocol reads what every other wrote (I2).

Compressed batches are inflated, transactions are seen when they were committed, and in their order.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.mqtt_brokers import DEADLINE_S, environment
from tests.cross.clients import Said

TOPIC = "history/all"


@pytest.fixture(scope="module")
def written(server, clients) -> list[str]:
    """What lies in the topic, by whom it was written."""
    servers = {"bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}", "log_level": 0}
    name = TOPIC.replace("/", ".")
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(name, 1)])[name].result(DEADLINE_S)
    expected = []

    def others(number: int) -> None:
        for writer in ("mqtt3", "mqtt5", "amqp", "kafka"):
            text = f"{writer} {number}"
            clients[writer].write(Said(text.encode()), TOPIC)
            expected.append(text)

    others(1)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        producer = Producer(servers | {"compression.type": codec, "linger.ms": 50})
        for number in range(20):
            producer.produce(name, f"{codec} {number} {'x' * 200}")
            expected.append(f"{codec} {number} {'x' * 200}")
        assert producer.flush(DEADLINE_S) == 0
    teller = Producer(servers | {"transactional.id": "history", "compression.type": "zstd"})
    teller.init_transactions(DEADLINE_S)
    for number, commits in enumerate((True, False, True, False)):
        teller.begin_transaction()
        for row in range(5):
            teller.produce(name, f"transaction {number} {row}")
        teller.flush(DEADLINE_S)
        if commits:
            teller.commit_transaction(DEADLINE_S)
            expected += [f"transaction {number} {row}" for row in range(5)]
        else:
            teller.abort_transaction(DEADLINE_S)
        others(number + 2)
    return expected


@pytest.mark.parametrize("via", ["mqtt", "kafka", "amqp"])
@pytest.mark.parametrize("text", [TOPIC, "history/+"], ids=["topic", "filter"])
def test_history_of_all_is_read_by_each(server, written, via, text):
    done = subprocess.run(
        [sys.executable, "-m", "onelog", "replay", text,
         "--via", via, "--port", str(server.ports[via])],
        env=environment(), capture_output=True, check=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.stdout.decode().splitlines() == written
