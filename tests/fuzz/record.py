"""Makes the corpus: real clients talk to a real broker, and what they send is kept.

Run it: `python -m tests.fuzz.record`. Each connection of each client is one file under
`tests/fuzz/corpus/<protocol>/`; files that say nothing new are left out. What is there already
stays, so that findings and hand-made ones are kept.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pika
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.conformance.mqtt_brokers import GROUPS_AT_ONCE, Onelog
from tests.fuzz.framing import CORPUS, FRAMINGS

FILE_BYTES_MAX = 12_000
PROTOCOLS = {"mqtt": "mqtt", "websocket": "mqtt_ws", "kafka": "kafka", "amqp": "amqp"}
"""Folder of the corpus → listener."""
HTTP = {"http": "admin", "management": "amqp_management"}
DEADLINE_S = 10.0


class Tap:
    """A proxy that keeps what clients send."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.target = 0
        self.sent: list[bytearray] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listening.accept()
            far = socket.create_connection(("127.0.0.1", self.target))
            kept = bytearray()
            self.sent.append(kept)
            for row in ((near, far, kept), (far, near, None)):
                threading.Thread(target=self._pump, args=row, daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, kept: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if kept is not None:
                    kept += data
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


# -- clients


def talk_mqtt(port: int, version: int, transport: str = "tcp") -> None:
    """Everything that paho can do."""
    is_5 = version == paho.MQTTv5
    got = threading.Event()

    def client(name: str, **will: Any) -> paho.Client:
        made = paho.Client(
            paho.CallbackAPIVersion.VERSION2, name, protocol=version, transport=transport
        )
        if will:
            made.will_set("fuzz/will", b"gone", qos=1, retain=True)
        made.on_message = lambda *_: got.set()
        connected = threading.Event()
        made.on_connect = lambda *_: connected.set()
        options: dict[str, Any] = {}
        if is_5:
            options["properties"] = Properties(PacketTypes.CONNECT)
            options["properties"].SessionExpiryInterval = 60
            options["properties"].ReceiveMaximum = 10
            options["properties"].TopicAliasMaximum = 4
            options["properties"].UserProperty = [("a", "b")]
        made.connect("127.0.0.1", port, 30, **options)
        made.loop_start()
        assert connected.wait(DEADLINE_S)
        return made

    def properties() -> Any:
        if not is_5:
            return None
        made = Properties(PacketTypes.PUBLISH)
        made.PayloadFormatIndicator = 1
        made.MessageExpiryInterval = 100
        made.ContentType = "text/plain"
        made.ResponseTopic = "fuzz/answer"
        made.CorrelationData = b"\0\1\2"
        made.UserProperty = [("k", "v"), ("k", "w")]
        return made

    one, two = client("one"), client("two", will=True) if not is_5 else client("two")
    subscribed = threading.Event()
    two.on_subscribe = lambda *_: subscribed.set()
    if is_5:
        options = SubscribeOptions(qos=2, noLocal=True, retainAsPublished=True, retainHandling=1)
        two.subscribe([("fuzz/#", options), ("$share/g/fuzz/+", SubscribeOptions(qos=1))])
    else:
        two.subscribe([("fuzz/#", 2), ("fuzz/+", 1), ("$share/g/fuzz/+", 1)])
    assert subscribed.wait(DEADLINE_S)
    for qos in (0, 1, 2):
        for retain in (False, True):
            sent = one.publish(f"fuzz/{qos}", b"payload", qos, retain, properties())
            sent.wait_for_publish(DEADLINE_S)
    one.publish("$delayed/1/fuzz/late", b"later", 1).wait_for_publish(DEADLINE_S)
    one.subscribe("$replay/earliest/fuzz/#", 1)
    assert got.wait(DEADLINE_S)
    two.unsubscribe(["fuzz/#", "fuzz/+"])
    time.sleep(0.2)
    for row in (one, two):
        row.disconnect()
        row.loop_stop()


def talk_kafka(port: int) -> None:
    """Producers, groups, transactions and the admin client."""
    servers = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
    admin = AdminClient(servers)
    for future in admin.create_topics([NewTopic("fuzz-a", 2), NewTopic("fuzz-b", 1)]).values():
        future.result(DEADLINE_S)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer(servers | {"compression.type": codec, "enable.idempotence": True})
        for number in range(3):
            producer.produce("fuzz-a", b"value" * 9, b"key%d" % number, headers=[("h", b"v")])
        producer.flush(DEADLINE_S)
    producer = Producer(servers | {"transactional.id": "fuzz"})
    producer.init_transactions(DEADLINE_S)
    consumer = Consumer(
        servers | {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe(["fuzz-a"])
    found = []
    while len(found) < 5:
        found += consumer.consume(5, DEADLINE_S)
    consumer.commit(asynchronous=False)
    for end in ("commit", "abort"):
        producer.begin_transaction()
        producer.produce("fuzz-b", b"in a transaction")
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
        )
        getattr(producer, f"{end}_transaction")(DEADLINE_S)
    consumer.close()
    admin.list_topics(timeout=DEADLINE_S)
    admin.list_consumer_groups().result(DEADLINE_S)
    admin.describe_consumer_groups(["g"])["g"].result(DEADLINE_S)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "fuzz-a")
    admin.describe_configs([resource])[resource].result(DEADLINE_S)
    resource.set_config("retention.ms", "100000")
    with contextlib.suppress(KafkaException):
        admin.alter_configs([resource])[resource].result(DEADLINE_S)
    admin.create_partitions([NewPartitions("fuzz-b", 2)])["fuzz-b"].result(DEADLINE_S)
    admin.delete_topics(["fuzz-b"])["fuzz-b"].result(DEADLINE_S)
    view = KafkaConsumer(
        "_x23_",
        bootstrap_servers=f"127.0.0.1:{port}",
        group_id="v",
        auto_offset_reset="earliest",
        consumer_timeout_ms=2000,
    )
    for _row in view:
        pass
    view.close()
    other = KafkaProducer(bootstrap_servers=f"127.0.0.1:{port}", acks=1)
    other.send("fuzz.view", b"to a view", headers=[("~q", b"1")]).get(DEADLINE_S)
    other.close()


def talk_amqp(port: int) -> None:
    """Everything that pika can do."""
    properties = pika.BasicProperties(
        content_type="text/plain",
        headers={"s": "t", "n": 1, "b": True, "l": [1, "2"], "t": {"u": None}},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1,
        type="k",
        app_id="a",
    )

    def open_channel() -> tuple[Any, Any]:
        connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", port, heartbeat=30)
        )
        return connection, connection.channel()

    connection, channel = open_channel()
    for kind in ("direct", "fanout", "topic", "headers"):
        channel.exchange_declare(f"fuzz-{kind}", kind, durable=True)
        queue = channel.queue_declare(
            f"fuzz-{kind}", durable=True, arguments={"x-max-priority": 5, "x-message-ttl": 60000}
        ).method.queue
        channel.queue_bind(queue, f"fuzz-{kind}", "a.*.#", {"x-match": "any", "s": "t"})
        channel.basic_publish(f"fuzz-{kind}", "a.b.c", b"body" * 20, properties)
    channel.exchange_bind("fuzz-fanout", "fuzz-topic", "#")
    for number, settle in enumerate(("basic_ack", "basic_nack", "basic_reject")):
        channel.basic_publish("", "fuzz-direct", b"%d" % number)
        method, _properties, _body = channel.basic_get("fuzz-direct")
        if method is not None:
            getattr(channel, settle)(method.delivery_tag)
    channel.queue_purge("fuzz-direct")
    channel.queue_unbind("fuzz-direct", "fuzz-direct", "a.*.#")
    channel.exchange_unbind("fuzz-fanout", "fuzz-topic", "#")
    connection.close()

    connection, channel = open_channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=2)
    channel.basic_publish("amq.topic", "fuzz.amqp", b"confirmed", properties)
    channel.basic_publish("", "fuzz-topic", b"", properties, mandatory=True)
    for method, _properties, _body in channel.consume("fuzz-topic", inactivity_timeout=1):
        if method is None:
            break
        channel.basic_ack(method.delivery_tag)
    channel.cancel()
    connection.close()

    connection, channel = open_channel()
    channel.tx_select()
    channel.basic_publish("", "fuzz-direct", b"in a transaction")
    channel.tx_commit()
    channel.basic_publish("", "fuzz-direct", b"in a transaction")
    channel.tx_rollback()
    channel.basic_recover(requeue=True)
    second = connection.channel()
    second.queue_declare("fuzz-stream", durable=True, arguments={"x-queue-type": "stream"})
    second.queue_delete("fuzz-headers")
    second.exchange_delete("fuzz-headers")
    second.close()
    connection.close()


def talk_http(port: int, paths: list[tuple[str, str, str]]) -> None:
    """Plain requests, several on one connection."""
    headers = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    for number, (method, path, body) in enumerate(paths):
        connection.request(method, path, body or None, headers)
        connection.getresponse().read()
        if number % 4 == 3:
            connection.close()
    connection.close()


ADMIN_PATHS = [
    ("GET", path, "")
    for path in (
        "/", "/health", "/ready", "/metrics", "/api/v1/info", "/api/v1/streams",
        "/api/v1/streams/main", "/api/v1/streams/%7Ecursors", "/api/v1/cursors?limit=5&after=a",
        "/openapi.json", "/api/v1/troubles",
    )
]  # fmt: skip
MANAGEMENT_PATHS = [
    ("GET", "/api/overview", ""),
    ("GET", "/api/queues?page=1&page_size=10&sort=name", ""),
    ("PUT", "/api/exchanges/%2F/fuzz-h", '{"type":"topic","durable":true,"arguments":{}}'),
    ("PUT", "/api/queues/%2F/fuzz-h", '{"durable":true,"arguments":{"x-max-length":10}}'),
    ("POST", "/api/bindings/%2F/e/fuzz-h/q/fuzz-h", '{"routing_key":"#","arguments":{}}'),
    (
        "POST",
        "/api/exchanges/%2F/fuzz-h/publish",
        '{"properties":{"headers":{"a":1}},"routing_key":"a.b","payload":"x",'
        '"payload_encoding":"string"}',
    ),
    (
        "POST",
        "/api/queues/%2F/fuzz-h/get",
        '{"count":5,"ackmode":"ack_requeue_true","encoding":"auto","truncate":50000}',
    ),
    ("DELETE", "/api/queues/%2F/fuzz-h/contents", ""),
    ("GET", "/api/definitions", ""),
    ("POST", "/api/definitions", '{"queues":[],"exchanges":[],"bindings":[],"vhosts":[]}'),
    ("GET", "/api/users", ""),
    ("PUT", "/api/users/fuzz", '{"password":"secret-1","tags":"administrator"}'),
    ("GET", "/api/connections", ""),
    ("DELETE", "/api/queues/%2F/fuzz-h", ""),
    ("DELETE", "/api/exchanges/%2F/fuzz-h", ""),
]


def keep(folder: str, name: str, sent: list[bytearray]) -> None:
    """Write down the connections that say something new."""
    place = CORPUS / folder
    place.mkdir(exist_ok=True)
    framing = FRAMINGS[folder]
    known: set[tuple[bytes, ...]] = set()
    for number, data in enumerate(sent):
        packets = framing.split(bytes(data))
        while sum(map(len, packets)) > FILE_BYTES_MAX:
            packets.pop()
        shape = tuple(framing.kind(packet) for packet in packets)
        if packets and shape not in known:
            known.add(shape)
            (place / f"{name}-{number:02}").with_suffix(".bin").write_bytes(b"".join(packets))


def main() -> None:
    """Record everything anew."""
    taps = {name: Tap() for name in (*PROTOCOLS, *HTTP)}
    work: dict[str, list[tuple[str, Callable[[int], None]]]] = {
        "mqtt": [
            ("paho-311", lambda port: talk_mqtt(port, paho.MQTTv311)),
            ("paho-5", lambda port: talk_mqtt(port, paho.MQTTv5)),
            ("paho-31", lambda port: talk_mqtt(port, paho.MQTTv31)),
        ],
        "websocket": [
            ("paho-ws-5", lambda port: talk_mqtt(port, paho.MQTTv5, "websockets")),
            ("paho-ws-311", lambda port: talk_mqtt(port, paho.MQTTv311, "websockets")),
        ],
        "kafka": [("clients", talk_kafka)],
        "amqp": [("pika", talk_amqp)],
        "http": [("requests", lambda port: talk_http(port, ADMIN_PATHS))],
        "management": [("requests", lambda port: talk_http(port, MANAGEMENT_PATHS))],
    }
    with tempfile.TemporaryDirectory() as folder:
        server = Onelog(
            Path(folder),
            f"listeners.kafka.advertised=127.0.0.1:{taps['kafka'].port}",
            "listeners.amqp_management.enabled=true",
            GROUPS_AT_ONCE,
            listeners=("amqp_management",),
        ).start()
        try:
            for place, clients in work.items():
                taps[place].target = server.ports[(PROTOCOLS | HTTP)[place]]
                for name, talk in clients:
                    taps[place].sent.clear()
                    talk(taps[place].port)
                    keep(place, name, list(taps[place].sent))
                    sys.stdout.write(f"{place}: {name}, {len(taps[place].sent)} connections\n")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
