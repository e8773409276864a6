"""Real clients of every protocol behind one face: write a message, read what comes.

All writers write to one topic and all readers follow it, so its order is everybody's order: a test
writes a message and a mark, and a reader takes what stood before the mark.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import paho.mqtt.client as paho
import pika
from confluent_kafka import Consumer, Producer, TopicPartition
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from onelog.base.names import to_dotted
from onelog.protocols.amqp.fields import PROPERTY_OF
from onelog.record.fields import FIELDS

DEADLINE_S = 30.0
TOPIC = "cross/t"
NAMES = ("mqtt3", "mqtt5", "kafka", "amqp")
BY_HEADER = {row.header: row for row in FIELDS}
BY_NAME = {row.name: row for row in FIELDS}
WORDS = {
    "mqtt3": {"qos": "qos", "retain": "retain"},
    "mqtt5": {
        "qos": "qos",
        "retain": "retain",
        "content_type": "content_type",
        "reply_to": "response_topic",
        "correlation": "correlation_data",
        "expires_ms": "message_expiry",
        "payload_format": "payload_format",
    },
    "kafka": {row.name: row.header.decode() for row in FIELDS},
    "amqp": PROPERTY_OF,
}
"""The word that each protocol has for a field; a field that is missing has none."""
PERSISTENT = 2


@dataclass
class Said:
    """A message, as a test has it. `fields` are by the names of `record/fields.py`."""

    payload: bytes | None = b""
    headers: Any = ()
    fields: dict[str, Any] = field(default_factory=dict)
    key: bytes | None = None
    timestamp_ms: int | None = None
    address: str = ""
    """Where it came from, as the reader's protocol names it."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def has(protocol: str, name: str) -> bool:
    """Whether a protocol has a word for a field."""
    return name in WORDS[protocol]


class Mqtt:
    """paho, version 3.1.1 or 5."""

    def __init__(self, port: int, version: int, topic: str = TOPIC) -> None:
        self._is_5 = version == 5
        protocol = paho.MQTTv5 if self._is_5 else paho.MQTTv311
        self._arrived: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=protocol)
        self._client.on_message = lambda _client, _data, message: self._arrived.put(message)
        ready: queue.Queue[Any] = queue.Queue()
        self._client.on_connect = lambda *found: ready.put(found)
        self._client.on_subscribe = lambda *found: ready.put(found)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        ready.get(timeout=DEADLINE_S)
        self._ready = ready
        self.subscribe(topic)

    def subscribe(self, topic: str) -> None:
        if self._is_5:
            options = paho.SubscribeOptions(qos=2, retainAsPublished=True)
            self._client.subscribe(topic, options=options)
        else:
            self._client.subscribe(topic, qos=2)
        self._ready.get(timeout=DEADLINE_S)

    def write(self, said: Said, topic: str = TOPIC) -> None:
        properties = self._to_properties(said) if self._is_5 else None
        sent = self._client.publish(
            topic,
            said.payload,
            qos=said.fields.get("qos", 1),
            retain=said.fields.get("retain", False),
            properties=properties,
        )
        sent.wait_for_publish(DEADLINE_S)
        assert sent.is_published()

    def _to_properties(self, said: Said) -> Properties:
        found = Properties(PacketTypes.PUBLISH)
        names = {
            "content_type": "ContentType",
            "reply_to": "ResponseTopic",
            "correlation": "CorrelationData",
            "payload_format": "PayloadFormatIndicator",
        }
        for name, paho_name in names.items():
            if name in said.fields:
                setattr(found, paho_name, said.fields[name])
        if "expires_ms" in said.fields:
            left_s = max(0, round((said.fields["expires_ms"] - now_ms()) / 1000))
            found.MessageExpiryInterval = left_s
        if said.headers:
            found.UserProperty = [(name, value.decode()) for name, value in said.headers]
        return found

    def read(self) -> Said:
        message = self._arrived.get(timeout=DEADLINE_S)
        fields: dict[str, Any] = {}
        if message.qos:
            fields["qos"] = message.qos
        if message.retain:
            fields["retain"] = True
        headers: Any = ()
        if self._is_5 and message.properties is not None:
            row = message.properties.json()
            fields |= {
                name: row[paho_name]
                for name, paho_name in (
                    ("content_type", "ContentType"),
                    ("reply_to", "ResponseTopic"),
                    ("payload_format", "PayloadFormatIndicator"),
                )
                if paho_name in row
            }
            if "CorrelationData" in row:
                fields["correlation"] = message.properties.CorrelationData
            if "MessageExpiryInterval" in row:
                fields["expires_ms"] = now_ms() + row["MessageExpiryInterval"] * 1000
            headers = tuple(getattr(message.properties, "UserProperty", ()))
        return Said(message.payload, headers, fields, address=message.topic)

    def close(self) -> None:
        gone = threading.Event()
        self._client.on_disconnect = lambda *_found: gone.set()
        self._client.disconnect()
        assert gone.wait(DEADLINE_S)  # by then it has closed its socket
        self._client.loop_stop()
        # What it calls holds it: without them it goes at once, and closes its other sockets.
        self._client.on_message = self._client.on_connect = None
        self._client.on_subscribe = self._client.on_disconnect = None


class Kafka:
    """confluent-kafka, following a view."""

    def __init__(self, port: int, topic: str = TOPIC) -> None:
        servers = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
        self._producer = Producer(servers | {"linger.ms": 0})
        self._consumer = Consumer(servers | {"group.id": "nobody", "enable.auto.commit": False})
        self.name = to_dotted(topic)
        place = TopicPartition(self.name, 0)
        place.offset = self._consumer.get_watermark_offsets(place, DEADLINE_S)[1]
        self._consumer.assign([place])

    def write(self, said: Said, topic: str = TOPIC) -> None:
        rows = [
            (BY_NAME[name].header.decode(), _stored(value)) for name, value in said.fields.items()
        ]
        rows += [(name, value) for name, value in said.headers]
        failed: list[Any] = []
        options = {} if said.timestamp_ms is None else {"timestamp": said.timestamp_ms}
        self._producer.produce(
            to_dotted(topic),
            said.payload,
            said.key,
            headers=rows,
            on_delivery=lambda error, _message: failed.append(error),
            **options,
        )
        assert self._producer.flush(DEADLINE_S) == 0
        assert failed == [None]

    def read(self) -> Said:
        ends = time.monotonic() + DEADLINE_S
        while time.monotonic() < ends:
            message = self._consumer.poll(1)
            if message is None:
                continue
            assert message.error() is None, message.error()
            fields: dict[str, Any] = {}
            headers = []
            for name, value in message.headers() or ():
                row = BY_HEADER.get(name.encode())
                if row is None:
                    headers.append((name, value))
                else:
                    fields[row.name] = _read(row.form, value)
            headers = [row for row in headers if row[0] not in ("~t", "~xp", "~ah", "~dm")]
            return Said(
                message.value(), tuple(headers), fields, message.key(), message.timestamp()[1],
                message.topic(),
            )  # fmt: skip
        raise TimeoutError

    def close(self) -> None:
        self._consumer.close()


def _stored(value: Any) -> bytes:
    """A field as its header has it."""
    if isinstance(value, bytes):
        return value
    return b"1" if value is True else str(value).encode()


def _read(form: str, value: bytes) -> Any:
    if form == "bytes":
        return value
    if form == "mark":
        return value == b"1"
    return int(value) if form in ("number", "time_ms") else value.decode()


class Amqp:
    """pika, with a queue bound to `amq.topic`."""

    def __init__(self, port: int, topic: str = TOPIC) -> None:
        self.connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)
        )
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.queue = self.channel.queue_declare("", exclusive=True).method.queue
        self.channel.queue_bind(self.queue, "amq.topic", topic.replace("/", "."))

    def write(self, said: Said, topic: str = TOPIC) -> None:
        self.channel.basic_publish(
            "amq.topic", topic.replace("/", "."), said.payload or b"", self._to_properties(said)
        )

    def _to_properties(self, said: Said) -> pika.BasicProperties:
        rows: dict[str, Any] = {}
        for name, value in said.fields.items():
            if name == "qos":
                rows["delivery_mode"] = PERSISTENT
            elif name == "expires_ms":
                rows["expiration"] = str(value - now_ms())
            elif name == "reply_to":
                rows["reply_to"] = f"amq.topic/{value}"
            elif name == "correlation":
                rows["correlation_id"] = value.decode()
            else:
                rows[PROPERTY_OF[name]] = value
        return pika.BasicProperties(headers=dict(said.headers) or None, **rows)

    def read(self) -> Said:
        for method, properties, body in self.channel.consume(
            self.queue, inactivity_timeout=DEADLINE_S
        ):
            if method is None:
                raise TimeoutError
            self.channel.basic_ack(method.delivery_tag)
            return Said(
                body,
                tuple((properties.headers or {}).items()),
                self._fields(properties),
                address=f"{method.exchange} {method.routing_key}",
            )
        raise TimeoutError

    def _fields(self, properties: pika.BasicProperties) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, word in PROPERTY_OF.items():
            value = getattr(properties, word)
            if value is not None:
                fields[name] = value
        if "qos" in fields:
            fields["qos"] = 1 if properties.delivery_mode == PERSISTENT else 0
        if "expires_ms" in fields:
            fields["expires_ms"] = now_ms() + int(properties.expiration)
        if "correlation" in fields:
            fields["correlation"] = properties.correlation_id.encode()
        if "reply_to" in fields:
            fields["reply_to"] = properties.reply_to.removeprefix("amq.topic/")
        return fields

    def close(self) -> None:
        self.connection.close()


class Clients:
    """One client of each protocol, on the topic of all of them."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.ports = ports
        mqtt5 = Mqtt(ports["mqtt"], 5)
        mqtt5.write(Said(b"the first one: from now on Kafka knows the topic"))
        self._found: dict[str, Any] = {
            "mqtt3": Mqtt(ports["mqtt"], 3),
            "mqtt5": mqtt5,
            "kafka": Kafka(ports["kafka"]),
            "amqp": Amqp(ports["amqp"]),
        }
        self._marks = itertools.count()

    def __getitem__(self, name: str) -> Any:
        return self._found[name]

    def carry(self, writer: str, reader: str, said: Said) -> Said:
        """Write a message by one protocol; as another one reads it."""
        mark = b"mark %d" % next(self._marks)
        self[writer].write(said)
        self[writer].write(Said(mark))
        before = None
        while True:
            found: Said = self[reader].read()
            if found.payload == mark:
                assert before is not None
                return before
            before = found

    def close(self) -> None:
        for client in self._found.values():
            client.close()
