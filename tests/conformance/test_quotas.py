"""Quotas and bans with real clients: what each of them sees, and that nobody else waits."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from confluent_kafka import Consumer, Producer
from pika.adapters.blocking_connection import BlockingChannel

from onelog.protocols.kafka.apis import ApiKey as K
from tests.conformance.amqp_raw import unique
from tests.conformance.mqtt_brokers import Onelog
from tests.support.kafka_wire import Wire

LOGINS = {"ann": "secret-a", "bob": "secret-b"}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Onelog]:
    made = Onelog(
        tmp_path_factory.mktemp("quotas"),
        "security.quotas.patience_ms=500",
        "security.bans.delay_ms=0",
    ).start()
    for name, password in LOGINS.items():
        made.user(name, password)
    made.user("boss", "secret-of-boss", "--administrator")
    yield made
    assert made.stop() == 0
    assert not made.errors()


@pytest.fixture
def quota(server) -> Iterator[Any]:
    """Sets quotas as an operator does; they are gone after the test."""
    named = set()

    def set_quota(entity: str, *limits: str) -> None:
        named.add(entity)
        server.command("quota", "set", entity, *limits)

    yield set_quota
    for entity in named:
        server.command("quota", "remove", entity)


# -- Kafka


def kafka_settings(server: Onelog, user: str, client_id: str, **more: object) -> dict[str, object]:
    return {
        "bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": LOGINS[user],
        "client.id": client_id,
        "log_level": 0,
        "linger.ms": 0,
        "allow.auto.create.topics": True,
    } | {key.replace("_", "."): value for key, value in more.items()}


def produce(
    config: dict[str, object], topic: str, count: int, size: int
) -> tuple[float, list[int]]:
    """How long it took, and the throttle times that the client saw."""
    throttles: list[int] = []
    producer = Producer(
        config
        | {
            "throttle_cb": lambda event: throttles.append(round(event.throttle_time * 1000)),
            "batch.num.messages": 10,
        }
    )
    began = time.monotonic()
    for _ in range(count):
        producer.produce(topic, b"x" * size)
        producer.poll(0)
    assert producer.flush(60) == 0
    return time.monotonic() - began, [row for row in throttles if row]


def test_a_kafka_producer_sees_its_throttle_time_and_another_user_does_not_wait(
    server, quota
) -> None:
    topic = unique("t")
    produce(kafka_settings(server, "bob", "warm"), topic, 10, 100)
    quota("user:ann", "publish_bytes=100kB")
    found: dict[str, tuple[float, list[int]]] = {}
    slow = threading.Thread(
        target=lambda: found.update(
            ann=produce(kafka_settings(server, "ann", "p"), topic, 250, 1000)
        )
    )
    slow.start()
    took_s, throttles = produce(kafka_settings(server, "bob", "p"), topic, 250, 1000)
    assert not throttles
    assert took_s < 1.0, "bob does not wait for ann"
    slow.join(60)
    took_s, throttles = found["ann"]
    assert took_s > 1.0, "250 kB at 100 kB/s, with a burst of one second"
    assert throttles
    assert max(throttles) > 10


def test_a_kafka_consumer_is_throttled_by_the_bytes_that_it_fetches(server, quota) -> None:
    topic = unique("t")
    produce(kafka_settings(server, "bob", "p"), topic, 100, 10_000)
    quota("user:ann,client:reader", "fetch_bytes=500kB")
    throttles: list[float] = []
    consumer = Consumer(
        kafka_settings(
            server, "ann", "reader", group_id=unique("g"), auto_offset_reset="earliest",
            fetch_message_max_bytes=100_000,
        )
        | {"throttle_cb": lambda event: throttles.append(event.throttle_time)}
    )  # fmt: skip
    consumer.subscribe([topic])
    deadline, count = time.monotonic() + 60, 0
    while count < 100 and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        count += message is not None and message.error() is None
    consumer.close()
    assert count == 100
    assert any(throttles)


@contextlib.contextmanager
def administrator(server: Onelog) -> Iterator[Wire]:
    """A connection of one who may change quotas."""
    with Wire(server.ports["kafka"]) as wire:
        wire.ask(K.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        told = wire.ask(K.SASL_AUTHENTICATE, 2, auth_bytes=b"\0boss\0secret-of-boss")
        assert told.error_code == 0
        yield wire


def entity(**names: str | None) -> tuple[dict[str, str | None], ...]:
    return tuple(
        {"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in names.items()
    )


def alter(wire: Wire, who: Any, version: int = 1, *, dry: bool = False, **values: Any) -> int:
    ops = [
        {"key": key, "value": 0.0 if value is None else float(value), "remove": value is None}
        for key, value in values.items()
    ]
    told = wire.ask(
        K.ALTER_CLIENT_QUOTAS, version, entries=[{"entity": who, "ops": ops}], validate_only=dry
    )
    (row,) = told.entries
    assert [(part.entity_type, part.entity_name) for part in row.entity] == [
        (part["entity_type"], part["entity_name"]) for part in who
    ]
    return int(row.error_code)


def described(wire: Wire, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    told = wire.ask(
        K.DESCRIBE_CLIENT_QUOTAS,
        1,
        components=[
            {"entity_type": kind, "match_type": how, "match": name}
            for kind, how, name in components
        ],
        strict=strict,
    )
    if told.entries is None:
        return int(told.error_code)
    return [
        (
            {part.entity_type: part.entity_name for part in row.entity},
            {value.key: value.value for value in row.values},
        )
        for row in told.entries
    ]


@pytest.mark.parametrize("version", [0, 1])
def test_kafka_s_quota_apis_and_the_command_line_change_the_same_quotas(server, version) -> None:
    with administrator(server) as wire:
        both = entity(user="ann", client_id="c")
        assert alter(wire, both, version, producer_byte_rate=1e6, consumer_byte_rate=2e6) == 0
        assert alter(wire, entity(user=None), version, producer_byte_rate=5, requests=7) == 0
        assert alter(wire, entity(ip="10.0.0.1"), version, connection_creation_rate=3) == 0
        assert alter(wire, entity(client_id="d"), version, dry=True, producer_byte_rate=1) == 0
        listed = {
            row["entity"]: row["limits"]
            for row in json.loads(server.command("quota", "list", "--json"))["items"]
        }
        assert listed == {
            "user:ann,client:c": {"publish_bytes": 1e6, "fetch_bytes": 2e6},
            "user": {"publish_bytes": 5.0, "requests": 7.0},
            "ip:10.0.0.1": {"connects": 3.0},
        }
        ann = (
            {"user": "ann", "client-id": "c"},
            {"producer_byte_rate": 1e6, "consumer_byte_rate": 2e6},
        )
        default = ({"user": None}, {"producer_byte_rate": 5.0, "requests": 7.0})
        address = ({"ip": "10.0.0.1"}, {"connection_creation_rate": 3.0})
        assert described(wire) == [address, default, ann]
        assert described(wire, ("user", 2, None)) == [default, ann]
        assert described(wire, ("user", 2, None), strict=True) == [default]
        assert described(wire, ("user", 0, "ann")) == [ann]
        assert described(wire, ("user", 1, None)) == [default]
        assert described(wire, ("user", 0, "ann"), ("client-id", 0, "c"), strict=True) == [ann]
        assert described(wire, ("user", 0, "bob")) == []
        assert alter(wire, both, version, producer_byte_rate=None, consumer_byte_rate=None) == 0
        for name in ("user", "ip:10.0.0.1"):
            server.command("quota", "remove", name)
        assert described(wire) == []


def test_what_kafka_s_quota_apis_cannot_keep_is_refused(server) -> None:
    wrong = 42
    with administrator(server) as wire:
        ann = entity(user="ann")
        assert alter(wire, ann, request_percentage=50) == wrong
        assert alter(wire, ann, controller_mutation_rate=5) == wrong
        assert alter(wire, ann, producer_byte_rate=-1) == wrong
        assert alter(wire, ann, connection_creation_rate=1) == wrong
        assert alter(wire, entity(ip="10.0.0.1"), producer_byte_rate=1) == wrong
        assert alter(wire, entity(ip="nowhere"), connection_creation_rate=1) == wrong
        assert alter(wire, entity(group="g"), producer_byte_rate=1) == wrong
        assert alter(wire, entity(user="ann", ip="10.0.0.1"), producer_byte_rate=1) == wrong
        assert alter(wire, (), producer_byte_rate=1) == wrong
        assert described(wire, ("user", 0, None)) == wrong
        assert described(wire, ("user", 3, None)) == wrong
        assert described(wire, ("planet", 2, None)) == wrong
        assert described(wire, ("user", 2, None), ("user", 2, None)) == wrong
        assert described(wire) == []


# -- MQTT


def test_a_paho_client_over_its_quota_gets_0x97_after_its_patience_and_others_are_served(
    server, quota
) -> None:
    quota("client:flood", "publish_messages=10")
    ended = threading.Event()
    reasons: list[int] = []

    def on_disconnect(_client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        reasons.append(reason.value)
        ended.set()

    flood, calm = (
        paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
        for name in ("flood", unique("calm"))
    )
    flood.on_disconnect = on_disconnect
    for client in (flood, calm):
        client.connect("127.0.0.1", server.port)
        client.loop_start()
    sent = [flood.publish("t", b"x", qos=1) for _ in range(100)]
    began = time.monotonic()
    for _ in range(20):
        calm.publish("t", b"x", qos=1).wait_for_publish(10)
    assert time.monotonic() - began < 5
    assert ended.wait(20)
    assert reasons == [0x97]
    assert any(row.is_published() for row in sent), "what was read is acknowledged"
    flood.loop_stop()
    calm.disconnect()
    calm.loop_stop()


def test_a_paho_client_within_its_patience_is_only_slow(server, quota) -> None:
    quota("client:steady", "publish_messages=100")
    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2, client_id="steady", protocol=paho.MQTTv311
    )
    client.connect("127.0.0.1", server.port)
    client.loop_start()
    began = time.monotonic()
    for _ in range(15):
        for row in [client.publish("t", b"x", qos=1) for _ in range(10)]:
            row.wait_for_publish(20)
    took_s = time.monotonic() - began
    client.disconnect()
    client.loop_stop()
    assert took_s > 0.4, "150 messages at 100/s, with a burst of one second"
    assert server.metric("onelog_throttled_seconds_total") > 0


# -- AMQP


def test_a_pika_publisher_over_its_quota_is_blocked_and_another_is_not(server, quota) -> None:
    quota("user:ann", "publish_messages=50")
    events: list[str] = []

    def connect(user: str) -> tuple[pika.BlockingConnection, BlockingChannel]:
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1",
                server.ports["amqp"],
                credentials=pika.PlainCredentials(user, LOGINS[user]),
            )
        )
        return connection, connection.channel()

    slow, channel = connect("ann")
    slow.add_on_connection_blocked_callback(lambda _connection, _method: events.append("blocked"))
    slow.add_on_connection_unblocked_callback(
        lambda _connection, _method: events.append("unblocked")
    )
    queue = unique("q")
    channel.queue_declare(queue, durable=True)
    for _ in range(100):
        channel.basic_publish("", queue, b"x")
    quick, other = connect("bob")
    other.confirm_delivery()
    began = time.monotonic()
    for _ in range(20):
        other.basic_publish("", queue, b"x")
    assert time.monotonic() - began < 5
    deadline = time.monotonic() + 20
    while "unblocked" not in events and time.monotonic() < deadline:
        slow.process_data_events(0.05)
    assert events[:2] == ["blocked", "unblocked"]
    quick.close()
    slow.close()


# -- bans


def test_a_banned_address_cannot_connect_until_an_operator_lifts_it(tmp_path) -> None:
    server = Onelog(
        tmp_path,
        "security.bans.failures=3",
        "security.bans.delay_ms=1",
        "security.bans.exempt=''",
    ).start()
    try:
        server.user("ann", "secret-a")
        _ban_and_lift(server)
    finally:
        assert server.stop() == 0
    assert not server.errors()


def _amqp_login(server: Onelog, password: str) -> None:
    pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            server.ports["amqp"],
            credentials=pika.PlainCredentials("ann", password),
        )
    ).close()


def _ban_and_lift(server: Onelog) -> None:
    for _ in range(3):
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            _amqp_login(server, "wrong")
    (row,) = json.loads(server.command("ban", "list", "--json"))["items"]
    assert row["address"] == "127.0.0.1"
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        _amqp_login(server, "secret-a")
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=unique("c"))
    with pytest.raises((OSError, ValueError)):
        client.connect("127.0.0.1", server.port)
        while client.loop(1.0) == paho.MQTT_ERR_SUCCESS:
            pass
        raise ConnectionResetError("the broker closed the connection")
    assert server.metric("onelog_bans") == 1
    assert server.metric("onelog_logins_failed_total") == 3
    assert "may connect again" in server.command("ban", "lift", "127.0.0.1")
    assert "no address is banned" in server.command("ban", "list")
    _amqp_login(server, "secret-a")
