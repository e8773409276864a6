"""The metrics of MQTT say what happened, to the message and to the byte."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.packets import Packet
from tests.conformance.mqtt_brokers import Onelog
from tests.conformance.mqtt_raw import Raw, unique

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "mqtt.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Onelog]:
    made = Onelog(tmp_path_factory.mktemp("metrics")).start()
    yield made
    assert made.stop() == 0
    assert not made.errors()


class Counted(Raw):
    """A client that counts its bytes, both ways."""

    sent_bytes = 0
    got_bytes = 0

    def send(self, *packets: Packet) -> None:
        self.sent_bytes += sum(len(encode_packet(packet, self.version)) for packet in packets)
        super().send(*packets)

    def read(self) -> Packet:
        before = len(self._bytes)
        packet = self._cut()
        if packet is None:
            data = self.socket.recv(65536)
            self.got_bytes += len(data)
            self._bytes += data
            return self.read()
        assert len(self._bytes) < before
        return packet


def names(server: Onelog) -> set[str]:
    return set(re.findall(r"^# TYPE (onelog_mqtt_\w+)", server.get("/metrics"), re.MULTILINE))


def test_every_metric_is_on_the_page(server):
    section = PAGE.read_text().partition("## Metrics")[2]
    assert set(re.findall(r"`(onelog_mqtt_\w+)`", section)) == names(server)


@pytest.mark.parametrize("version", [4, 5])
def test_every_message_and_every_byte_is_counted(server, version):
    def numbers() -> dict[str, float]:
        words = ("received_messages", "delivered_messages", "received_bytes", "sent_bytes")
        return {word: server.metric(f"onelog_mqtt_{word}_total") for word in words}

    topic = unique()
    before = numbers()
    with Counted(server.port, version).connect() as one, Counted(server.port, version) as two:
        two.connect()
        for client in (one, two):
            client.subscribe(topic, 2)
        for number in range(30):
            one.publish(topic, b"x" * number, number % 3, retain=number == 29)
            one.take()
            two.take()
        one.subscribe(topic, 1)
        assert one.take().retain
        one.messages()
        two.messages()
        after = numbers()
        grown = {word: after[word] - before[word] for word in before}
        assert grown == {
            "received_messages": 30,
            "delivered_messages": 61,
            "received_bytes": one.sent_bytes + two.sent_bytes,
            "sent_bytes": one.got_bytes + two.got_bytes,
        }


def test_sessions_messages_in_flight_and_retained_messages_are_counted(server):
    topic = unique()
    retained = server.metric("onelog_mqtt_retained_messages")
    with Raw(server.port).connect() as client:
        client.subscribe(topic, 1)
        client.publish(topic, b"x", retain=True)
        client.message()
        assert server.metric("onelog_mqtt_sessions") == 1
        assert server.metric("onelog_mqtt_subscriptions") == 1
        assert server.metric("onelog_mqtt_in_flight_messages") == 1
        assert server.metric("onelog_mqtt_retained_messages") == retained + 1


def test_the_messages_published_of_the_broker_count_those_of_mqtt(server):
    """Of every QoS, whether the kernel stages them or not."""
    client = Raw(server.port).connect()
    before = server.metric("onelog_messages_published_total")
    for qos in (0, 1, 2):
        client.publish(unique("t"), b"x", qos=qos)
    client.publish(unique("t"), b"", qos=1)
    assert server.metric("onelog_messages_published_total") - before == 4
    client.disconnect()
