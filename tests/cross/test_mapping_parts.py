"""The parts of a message that every protocol has in its own way: payload, key, headers, time,
addresses and how often it was delivered; written by each and read by each."""

from __future__ import annotations

import threading
import time
from typing import Any

import pika
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onelog.base.names import to_dotted
from tests.cross.clients import NAMES, Amqp, Kafka, Mqtt, Said, now_ms
from tests.cross.load import connected

PAIRS = [(writer, reader) for writer in NAMES for reader in NAMES]
each_pair = pytest.mark.parametrize(
    ("writer", "reader"), PAIRS, ids=[f"{w}-to-{r}" for w, r in PAIRS]
)


@each_pair
@pytest.mark.parametrize(
    "payload",
    [bytes(range(256)) * 4, b"", b"\0", b"x" * 300_000],
    ids=["bytes", "empty", "nul", "large"],
)
def test_the_payload_comes_out_byte_for_byte(clients, writer, reader, payload):
    assert clients.carry(writer, reader, Said(payload, key=b"k")).payload == payload


@pytest.mark.parametrize("reader", NAMES)
def test_no_payload_is_an_empty_one_where_there_is_no_null(clients, reader):
    got = clients.carry("kafka", reader, Said(None, key=b"k"))
    assert got.payload == (None if reader == "kafka" else b"")


@pytest.mark.parametrize("writer", NAMES)
def test_the_key_is_the_producer_s_or_the_topic(clients, writer):
    wanted = b"\xffkey" if writer == "kafka" else b"cross/t"
    assert clients.carry(writer, "kafka", Said(b"x", key=b"\xffkey")).key == wanted


def test_no_key_stays_none(clients):
    assert clients.carry("kafka", "kafka", Said(b"x")).key is None


def test_an_empty_key_is_not_none(clients):
    assert clients.carry("kafka", "kafka", Said(b"x", key=b"")).key == b""


# -- headers

TEXTS = [("b", b"1"), ("a", b"2"), ("b", b"3"), ("empty", b""), ("größe", "ü€".encode())]
"""Order, a double, an empty value, names and values beyond ASCII."""
WITHOUT_DOUBLE = [("b", b"3"), ("a", b"2"), ("empty", b""), ("größe", "ü€".encode())]
"""The same in a table, which has a name once: where it stood first, with what it said last."""


def shown(reader: str, rows: list[tuple[str, bytes]]) -> tuple[tuple[str, Any], ...]:
    """Headers that are text, as a reader's client gives them."""
    if reader == "mqtt3":
        return ()
    return tuple((name, value if reader == "kafka" else value.decode()) for name, value in rows)


@each_pair
def test_headers_keep_their_order_and_their_doubles(clients, writer, reader):
    rows: Any = {"mqtt3": [], "amqp": [(n, v.decode()) for n, v in WITHOUT_DOUBLE]}.get(
        writer, TEXTS
    )
    got = clients.carry(writer, reader, Said(b"x", rows, key=b"k")).headers
    wanted = [] if writer == "mqtt3" else WITHOUT_DOUBLE if "amqp" in (writer, reader) else TEXTS
    assert got == shown(reader, wanted)


@pytest.mark.parametrize("writer", ["kafka", "amqp"])
@pytest.mark.parametrize(
    ("reader", "wanted"),
    [
        ("mqtt5", (("bin;base64", "/wD+"), ("none", ""))),
        ("kafka", (("bin", b"\xff\x00\xfe"), ("none", None))),
        ("amqp", (("bin", b"\xff\x00\xfe"), ("none", None))),
    ],
)
def test_binary_and_null_values_are_told_as_well_as_each_can(clients, writer, reader, wanted):
    rows = [("bin", b"\xff\x00\xfe"), ("none", None)]
    assert clients.carry(writer, reader, Said(b"x", rows, key=b"k")).headers == wanted


@pytest.mark.parametrize("writer", ["mqtt5", "kafka", "amqp"])
@pytest.mark.parametrize("reader", ["mqtt5", "kafka", "amqp"])
def test_an_application_s_header_is_never_taken_for_one_of_ours(clients, writer, reader):
    # Kafka writes and reads what is stored; there a name of the application has its ~ doubled.
    name = "~~ct" if writer == "kafka" else "~ct"
    value: Any = "own" if writer == "amqp" else b"own"
    got = clients.carry(writer, reader, Said(b"x", [(name, value)], key=b"k"))
    assert "content_type" not in got.fields
    assert got.headers == ((("~~ct", b"own"),) if reader == "kafka" else (("~ct", "own"),))


TYPED: dict[str, Any] = {
    "text": "ü", "yes": True, "number": -5, "large": 2**40, "list": [1, "a"], "table": {"a": 1},
}  # fmt: skip


@pytest.mark.parametrize(
    ("reader", "wanted"),
    [
        ("amqp", tuple(TYPED.items())),
        (
            "kafka",
            (
                ("text", "ü".encode()), ("yes", b"true"), ("number", b"-5"),
                ("large", b"1099511627776"), ("list", b'[1, "a"]'), ("table", b'{"a": 1}'),
            ),
        ),
        (
            "mqtt5",
            (
                ("text", "ü"), ("yes", "true"), ("number", "-5"),
                ("large", "1099511627776"), ("list", '[1, "a"]'), ("table", '{"a": 1}'),
            ),
        ),
    ],
)  # fmt: skip
def test_typed_values_of_amqp_are_text_elsewhere_and_themselves_in_amqp(clients, reader, wanted):
    assert clients.carry("amqp", reader, Said(b"x", tuple(TYPED.items()))).headers == wanted


# -- time


def test_a_kafka_time_is_kept_to_the_millisecond_and_amqp_sees_its_seconds(clients):
    said = Said(b"x", timestamp_ms=1_700_000_000_123, key=b"k")
    assert clients.carry("kafka", "kafka", said).timestamp_ms == 1_700_000_000_123
    assert clients.carry("kafka", "amqp", said).fields["timestamp"] == 1_700_000_000


@pytest.mark.parametrize("writer", ["mqtt3", "mqtt5", "amqp"])
def test_kafka_sees_when_others_published(clients, writer):
    before = now_ms()
    found = clients.carry(writer, "kafka", Said(b"x"))
    assert found.timestamp_ms is not None
    assert before - 5 <= found.timestamp_ms <= now_ms() + 5


def test_the_lifetime_that_an_amqp_publisher_gave_comes_to_amqp_as_it_was_sent(channel, clients):
    properties = pika.BasicProperties(expiration="3600123")
    channel.basic_publish("amq.topic", "lifetime", b"x", properties)
    queue = channel.queue_declare("", exclusive=True, arguments={"x-onelog-from": "earliest"})
    channel.queue_bind(queue.method.queue, "amq.topic", "lifetime")
    _method, found, _body = channel.basic_get(queue.method.queue, auto_ack=True)
    assert found.expiration == "3600123"


@pytest.mark.parametrize("writer", ["mqtt5", "kafka", "amqp"])
def test_what_has_expired_comes_to_nobody_but_kafka(channel, server, clients, writer):
    topic = f"expired/{writer}"
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "amq.topic", topic.replace("/", "."))
    if writer == "amqp":
        properties = pika.BasicProperties(expiration="0")
        channel.basic_publish("amq.topic", topic.replace("/", "."), b"x", properties)
    else:
        ends = now_ms() - 1000 if writer == "kafka" else now_ms()
        clients["mqtt5"].write(Said(b"kafka knows it now"), topic)
        clients[writer].write(Said(b"x", fields={"expires_ms": ends}), topic)
    clients["mqtt5"].write(Said(b"fresh"), topic)
    got = []
    while not got or got[-1] != b"fresh":
        _method, _properties, body = channel.basic_get(queue, auto_ack=True)
        got += [] if body is None else [body]
    assert b"x" not in got
    late = Mqtt(server.ports["mqtt"], 5, f"$replay/earliest/{topic}")
    seen = []
    while not seen or seen[-1] != b"fresh":
        seen.append(late.read().payload)
    late.close()
    assert b"x" not in seen


def test_what_waited_has_less_time_left(server, channel, clients):
    """Expiry is a moment: a reader is told what is left of it, whoever wrote it."""
    life_ms, waited_ms = 100_000, 2_100
    for writer in ("mqtt5", "kafka", "amqp"):
        clients["mqtt5"].write(Said(b"kafka knows it now"), f"waits/{writer}")
        ends = now_ms() + life_ms
        clients[writer].write(Said(writer.encode(), fields={"expires_ms": ends}), f"waits/{writer}")
    time.sleep(waited_ms / 1000)
    late = Mqtt(server.ports["mqtt"], 5, "$replay/earliest/waits/+")
    found = [late.read() for _ in range(6)]
    late.close()
    told = {
        row.payload: row.fields["expires_ms"] - now_ms()
        for row in found
        if row.fields.get("expires_ms")
    }
    assert set(told) == {b"mqtt5", b"kafka", b"amqp"}
    # Seconds, and the time since they were told, are the tolerance.
    assert all(life_ms - 30_000 < left <= life_ms - waited_ms + 1_000 for left in told.values())
    queue = channel.queue_declare("", exclusive=True, arguments={"x-onelog-from": "earliest"})
    channel.queue_bind(queue.method.queue, "amq.topic", "waits.*")
    left: dict[bytes, int] = {}
    for method, properties, body in channel.consume(queue.method.queue, inactivity_timeout=10):
        assert method is not None
        if properties.expiration is not None:
            left[body] = int(properties.expiration)
        if len(left) == 3:
            break
    channel.cancel()
    assert all(left[name] <= life_ms - waited_ms for name in (b"mqtt5", b"kafka"))
    assert abs(left[b"amqp"] - life_ms) < 1_000  # as it was sent


# -- addresses

TOPICS = {
    "plain/a/b": ("plain.a.b", "plain.a.b"),
    "v1.2/x": ("v1_x2E_2.x", "v1/2.x"),
    "space d/ü": ("space_x20_d._xC3__xBC_", "space d.ü"),
    "a//b": ("a..b", "a..b"),
}
"""Topic, Kafka's name, AMQP's routing key."""


@pytest.mark.parametrize("writer", ["mqtt3", "mqtt5", "kafka", "amqp"])
@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_has_one_name_in_each_protocol(channel, server, clients, writer, topic):
    kafka_name, key = TOPICS[topic]
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "amq.topic", key)
    mqtt = Mqtt(server.ports["mqtt"], 5, topic)
    mqtt.write(Said(b"first"), topic)
    kafka = Kafka(server.ports["kafka"], topic)
    assert kafka.name == kafka_name
    if writer == "amqp":
        channel.basic_publish("amq.topic", key, b"hello")
    else:
        clients[writer].write(Said(b"hello"), topic)
    assert kafka.read().payload == b"hello"
    assert [mqtt.read().payload for _ in range(2)] == [b"first", b"hello"]
    for wanted in (b"first", b"hello"):
        method, _properties, body = next(channel.consume(queue, inactivity_timeout=10))
        assert (method.exchange, method.routing_key, body) == ("amq.topic", key, wanted)
    mqtt.close()
    kafka.close()


@pytest.mark.parametrize("writer", ["mqtt3", "mqtt5", "kafka", "amqp"])
def test_an_exchange_is_a_subtree_that_every_protocol_reads_and_writes(
    channel, server, clients, writer
):
    channel.exchange_declare("logs", "direct")
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "logs", "a.b")
    mqtt = Mqtt(server.ports["mqtt"], 5, "$x/logs/#")
    kafka = Kafka(server.ports["kafka"], "$x/logs/a/b")
    if writer == "amqp":
        channel.basic_publish("logs", "a.b", b"hello")
    else:
        clients[writer].write(Said(b"hello"), "$x/logs/a/b")
    got = mqtt.read()
    assert (got.payload, got.address) == (b"hello", "$x/logs/a/b")
    assert kafka.read().payload == b"hello"
    method, _properties, body = next(channel.consume(queue, inactivity_timeout=10))
    assert (method.exchange, method.routing_key, body) == ("logs", "a.b", b"hello")
    mqtt.close()
    kafka.close()


@pytest.mark.parametrize("writer", ["mqtt3", "mqtt5", "kafka", "amqp"])
def test_a_queue_is_a_topic_that_every_protocol_reads_and_writes(channel, server, clients, writer):
    queue = f"jobs/{writer}"
    topic = f"$q/jobs_x2F_{writer}"
    channel.queue_declare(queue, exclusive=True)
    mqtt = Mqtt(server.ports["mqtt"], 5, topic)
    kafka = Kafka(server.ports["kafka"], topic)
    if writer == "amqp":
        channel.basic_publish("", queue, b"hello")
    else:
        clients[writer].write(Said(b"hello"), topic)
    assert mqtt.read().payload == b"hello"
    assert kafka.read().payload == b"hello"
    method, _properties, body = next(channel.consume(queue, inactivity_timeout=10))
    assert (method.exchange, method.routing_key, body) == ("", queue, b"hello")
    mqtt.close()
    kafka.close()


def test_topics_of_the_broker_itself_stay_closed_to_kafka(server):
    servers = {"bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}", "log_level": 0}
    admin = AdminClient(servers)
    for name in ("_x24_SYS.own", "_x24_q.made"):
        with pytest.raises(KafkaException, match=r"not made by Kafka|exists already"):
            admin.create_topics([NewTopic(name, 1)])[name].result(10)
    failed: list[KafkaError] = []
    producer = Producer(servers | {"message.timeout.ms": 3000})
    producer.produce("_x24_SYS.own", b"x", on_delivery=lambda error, _row: failed.append(error))
    producer.flush(10)
    assert failed[0].code() in (KafkaError._UNKNOWN_TOPIC, KafkaError._MSG_TIMED_OUT)


def test_a_key_of_amqp_that_would_be_the_broker_s_has_a_place_of_its_own(server, channel):
    mqtt = Mqtt(server.ports["mqtt"], 5, "$x/amq.topic/#")
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "amq.topic", "$SYS.*")
    channel.basic_publish("amq.topic", "$SYS.own", b"x")
    assert mqtt.read().address == "$x/amq.topic/$SYS/own"
    mqtt.close()
    method, _properties, body = next(channel.consume(queue, inactivity_timeout=10))
    assert (method.exchange, method.routing_key, body) == ("amq.topic", "$SYS.own", b"x")


# -- deliveries


@pytest.mark.parametrize("writer", ["mqtt5", "kafka", "amqp"])
def test_a_message_that_amqp_gives_back_is_marked_and_counted(channel, server, clients, writer):
    topic = f"again/{writer}"
    arguments = {"x-queue-type": "quorum"}
    queue = f"again-{writer}"
    channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.queue_bind(queue, "amq.topic", topic.replace("/", "."))
    clients["mqtt5"].write(Said(b"first"), topic)
    clients[writer].write(Said(b"hello"), topic)
    seen = []
    while len(seen) < 4:
        method, properties, body = channel.basic_get(queue)
        if method is None:
            continue
        count = (properties.headers or {}).get("x-delivery-count")
        seen.append((body, method.redelivered, count))
        if method.redelivered:
            channel.basic_ack(method.delivery_tag)
        else:
            channel.basic_nack(method.delivery_tag, requeue=True)
    assert seen[1::2] == [(b"first", True, 1), (b"hello", True, 1)]
    assert seen[::2] == [(b"first", False, None), (b"hello", False, None)]


@pytest.mark.parametrize("writer", ["mqtt5", "kafka", "amqp"])
def test_a_message_that_an_mqtt_client_did_not_answer_comes_again_as_a_duplicate(
    server, clients, writer
):
    topic, name = f"dup/{writer}", f"forgetful-{writer}"
    clients["mqtt5"].write(Said(b"kafka knows it now"), topic)

    def come(*, answer: bool) -> list[tuple[bytes, bool]]:
        client, _ready = connected(server.ports["mqtt"], name, clean=False)
        client.manual_ack_set(not answer)
        seen: list[tuple[bytes, bool]] = []
        known = threading.Event()
        arrived = threading.Event()

        def note(_client, _data, message) -> None:
            seen.append((message.payload, message.dup))
            arrived.set()

        client.on_message = note
        client.on_connect = lambda *_found: client.subscribe(topic, qos=1)
        client.on_subscribe = lambda *_found: known.set()
        client.loop_start()
        assert known.wait(10)
        if not answer and not seen:
            clients[writer].write(Said(b"hello", fields={"qos": 1}, key=b"k"), topic)
        assert arrived.wait(10)
        client.disconnect()
        client.loop_stop()
        return seen

    assert come(answer=False) == [(b"hello", False)]
    assert come(answer=True) == [(b"hello", True)]


@pytest.mark.parametrize("writer", ["kafka", "amqp"])
def test_a_priority_counts_in_amqp_whoever_wrote_it(channel, clients, writer):
    topic, queue = f"urgent/{writer}", f"urgent-{writer}"
    channel.queue_declare(queue, durable=True, arguments={"x-max-priority": 10})
    clients["mqtt5"].write(Said(b"kafka knows it now"), topic)
    channel.queue_bind(queue, "amq.topic", topic.replace("/", "."))
    for priority in (1, 9, 5, None):
        fields = {} if priority is None else {"priority": priority}
        said = Said(str(priority).encode(), fields=fields, key=b"k")
        clients[writer].write(said, topic)
    found = []
    while len(found) < 4:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            found.append((body, properties.priority))
    assert found == [(b"9", 9), (b"5", 5), (b"1", 1), (b"None", None)]


@pytest.mark.parametrize("payload", [b"", None], ids=["empty", "null"])
def test_kafka_takes_a_retained_message_away(server, clients, payload):
    topic = f"taken-away/{payload}"
    clients["mqtt5"].write(Said(b"kept", fields={"retain": True, "qos": 1}), topic)
    clients["kafka"].write(Said(payload, fields={"retain": True}), topic)
    late = Mqtt(server.ports["mqtt"], 5, topic)
    clients["mqtt5"].write(Said(b"live"), topic)
    got = late.read()
    late.close()
    assert (got.payload, got.fields.get("retain")) == (b"live", None)


@pytest.mark.parametrize("writer", ["mqtt3", "mqtt5", "kafka"])
def test_a_retained_message_reaches_late_subscribers_of_both_versions(server, clients, writer):
    topic = f"kept/{writer}"
    clients["mqtt5"].write(Said(b"kafka knows it now"), topic)
    clients[writer].write(Said(b"hello", fields={"retain": True, "qos": 1}), topic)
    for version in (3, 5):
        late = Mqtt(server.ports["mqtt"], version, topic)
        got = late.read()
        late.close()
        assert (got.payload, got.fields.get("retain")) == (b"hello", True)


def test_kafka_names_of_reserved_topics_are_what_the_page_says():
    assert to_dotted("$q/tasks") == "_x24_q.tasks"
    assert to_dotted("$x/logs/a") == "_x24_x.logs.a"


def test_two_readers_of_one_protocol_see_the_same(server, clients):
    other = Amqp(server.ports["amqp"])
    said = Said(b"same", fields={"content_type": "text/plain"})
    first = clients.carry("mqtt5", "amqp", said)
    second = other.read()
    other.close()
    assert (first.payload, first.fields) == (second.payload, second.fields)
