"""History that was written before anybody asked: every protocol reads what every other wrote (I2).

Compressed batches are inflated, transactions are seen when they were committed, and in their order.
"""

from __future__ import annotations

import socket
import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onelog.base.names import to_dotted
from tests.conformance.mqtt_brokers import DEADLINE_S, environment
from tests.cross.clients import Said
from tests.support.forks import run_onelog

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
    assert replayed(server, text, via) == written


def replayed(server, text: str, via: str) -> list[str]:
    done = run_onelog(
        *("replay", text, "--via", via, "--port", str(server.ports[via])),
        environment=environment(),
        timeout_s=LONG_S,
    )
    done.check_returncode()
    return done.stdout.decode().splitlines()


# -- one device out of a hundred thousand

DEVICES = 100_000
LONG_S = 120.0
CHOSEN = 77_777
OWN = 50


def publish_packet(topic: str, payload: bytes, packet_id: int = 0) -> bytes:
    """A PUBLISH of MQTT 3.1.1, QoS 0, or 1 where it has an id."""
    head = len(topic).to_bytes(2, "big") + topic.encode()
    body = head + (packet_id.to_bytes(2, "big") if packet_id else b"") + payload
    assert len(body) < 128
    return bytes((0x32 if packet_id else 0x30, len(body))) + body


@pytest.fixture(scope="module")
def fleet(server) -> list[str]:
    """Telemetry of many devices, once each, and of one of them again and again among it."""
    own = [f"{CHOSEN} {number}" for number in range(OWN)]
    packets = bytearray(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01f")
    for device in range(DEVICES):
        if device != CHOSEN:
            packets += publish_packet(f"fleet/{device}/telemetry", b"%d" % device)
        number, rest = divmod(device, DEVICES // OWN)
        if rest == 0:
            packets += publish_packet(f"fleet/{CHOSEN}/telemetry", own[number].encode())
    packets += publish_packet("fleet", b"the last one", 1)
    with socket.create_connection(("127.0.0.1", server.ports["mqtt"]), DEADLINE_S) as client:
        client.sendall(packets)
        answers = b""
        while len(answers) < 8:  # CONNACK, and the PUBACK of the last one
            answers += client.recv(100)
        client.sendall(b"\xe0\x00")
    return own


@pytest.mark.parametrize("via", ["mqtt", "kafka", "amqp"])
def test_one_device_of_a_hundred_thousand_is_read_from_its_beginning(server, fleet, via):
    """I2: nobody had planned for it."""
    assert replayed(server, f"fleet/{CHOSEN}/telemetry", via) == fleet


def test_a_wildcard_shows_all_hundred_thousand_to_kafka(server, fleet):
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}",
            "group.id": "all of the fleet",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([to_dotted("fleet/+/telemetry")])
    seen: list[str] = []
    ends = time.monotonic() + LONG_S
    while len(seen) < DEVICES - 1 + OWN and time.monotonic() < ends:
        seen += (row.value().decode() for row in consumer.consume(10_000, 0.5) if not row.error())
    consumer.close()
    assert [text for text in seen if " " in text] == fleet
    others = sorted(int(text) for text in seen if " " not in text)
    assert others == [device for device in range(DEVICES) if device != CHOSEN]
