"""The context of a trace goes with a message: W3C's `traceparent` and `tracestate` come out as they
went in, by whichever protocol and by whichever way through the broker."""

from __future__ import annotations

import queue
import threading
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.cross.clients import DEADLINE_S, NAMES, TOPIC, Mqtt, Said

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
CONTEXT = [("traceparent", PARENT), ("tracestate", STATE)]
PAIRS = [(writer, reader) for writer in NAMES for reader in NAMES]


def written_by(writer: str) -> list[tuple[str, Any]]:
    """The context as a writer's client takes it; MQTT 3 has no place for it."""
    if writer == "mqtt3":
        return []
    return [(name, text if writer == "amqp" else text.encode()) for name, text in CONTEXT]


def read_by(reader: str) -> tuple[tuple[str, Any], ...]:
    if reader == "mqtt3":
        return ()
    return tuple((name, text.encode() if reader == "kafka" else text) for name, text in CONTEXT)


@pytest.mark.parametrize(
    ("writer", "reader"), PAIRS, ids=[f"{writer}-to-{reader}" for writer, reader in PAIRS]
)
def test_the_context_goes_from_each_protocol_to_each(clients, writer, reader):
    got = clients.carry(writer, reader, Said(b"x", written_by(writer), key=b"k")).headers
    assert got == (() if writer == "mqtt3" else read_by(reader))


@pytest.mark.parametrize("writer", ["mqtt5", "kafka", "amqp"])
def test_the_context_is_not_mixed_with_other_headers_and_fields(clients, writer):
    rows = [("unit", "c" if writer == "amqp" else b"c"), *written_by(writer)]
    said = Said(b"x", rows, {"content_type": "text/plain"}, key=b"k")
    got = clients.carry(writer, "kafka", said)
    assert got.headers == (("unit", b"c"), *read_by("kafka"))
    assert got.fields["content_type"] == "text/plain"


def properties(kind: int, **more: Any) -> Properties:
    found = Properties(kind)
    found.UserProperty = CONTEXT
    for name, value in more.items():
        setattr(found, name, value)
    return found


def context_of(message: paho.MQTTMessage) -> list[tuple[str, str]]:
    return [row for row in message.properties.UserProperty if row[0].startswith("trace")]


class Subscriber:
    """An MQTT 5 client that waits for one message of a filter."""

    def __init__(self, port: int, topic: str) -> None:
        self.arrived: queue.Queue[paho.MQTTMessage] = queue.Queue()
        ready = threading.Event()
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self.client.on_message = lambda _client, _data, message: self.arrived.put(message)
        self.client.on_connect = lambda client, *_rest: client.subscribe(topic, qos=1)
        self.client.on_subscribe = lambda *_found: ready.set()
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        assert ready.wait(DEADLINE_S)

    def message(self) -> paho.MQTTMessage:
        return self.arrived.get(timeout=DEADLINE_S)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def subscribe(server):
    made: list[Subscriber] = []

    def make(topic: str) -> Subscriber:
        made.append(Subscriber(server.ports["mqtt"], topic))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("writer", ["mqtt5", "kafka", "amqp"])
def test_history_has_the_context(clients, subscribe, writer):
    clients.carry(writer, "kafka", Said(b"in history", written_by(writer), key=b"k"))
    later = subscribe(f"$replay/earliest/{TOPIC}")
    while (message := later.message()).payload != b"in history":
        pass
    assert context_of(message) == CONTEXT


def test_a_retained_message_has_the_context(server, subscribe):
    writer = Mqtt(server.ports["mqtt"], 5, "trace/retained")
    try:
        writer.write(Said(b"kept", written_by("mqtt5"), {"retain": True}), "trace/retained")
    finally:
        writer.close()
    assert context_of(subscribe("trace/retained").message()) == CONTEXT


def test_a_delayed_message_has_the_context(server, subscribe):
    reader = subscribe("trace/delayed")
    writer = Mqtt(server.ports["mqtt"], 5, "trace/other")
    try:
        writer.write(Said(b"later", written_by("mqtt5")), "$delayed/1/trace/delayed")
    finally:
        writer.close()
    assert context_of(reader.message()) == CONTEXT


def test_a_will_has_the_context(server, subscribe):
    reader = subscribe("trace/will")
    dying = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    dying.will_set("trace/will", b"gone", qos=1, properties=properties(PacketTypes.WILLMESSAGE))
    connected = threading.Event()
    dying.on_connect = lambda *_found: connected.set()
    dying.connect("127.0.0.1", server.ports["mqtt"])
    dying.loop_start()
    assert connected.wait(DEADLINE_S)
    dying.socket().close()  # without DISCONNECT
    dying.loop_stop()
    assert context_of(reader.message()) == CONTEXT


def test_a_share_of_a_group_has_the_context(server, subscribe):
    member = subscribe("$share/trace/trace/shared")
    writer = Mqtt(server.ports["mqtt"], 5, "trace/other")
    try:
        writer.write(Said(b"shared", written_by("mqtt5")), "trace/shared")
    finally:
        writer.close()
    assert context_of(member.message()) == CONTEXT


def test_a_dead_letter_has_the_context_of_the_message(channel):
    channel.queue_declare("trace-dead", exclusive=True)
    channel.queue_declare(
        "trace-jobs",
        exclusive=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "trace-dead"},
    )
    told = pika.BasicProperties(headers=dict(CONTEXT))
    channel.basic_publish("", "trace-jobs", b"job", told)
    for method, _properties, _body in channel.consume("trace-jobs", inactivity_timeout=DEADLINE_S):
        channel.basic_reject(method.delivery_tag, requeue=False)
        break
    channel.cancel()
    for _method, found, body in channel.consume("trace-dead", inactivity_timeout=DEADLINE_S):
        assert body == b"job"
        assert [(name, found.headers[name]) for name, _text in CONTEXT] == CONTEXT
        break
    channel.cancel()
