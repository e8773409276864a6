"""The audit trail of a whole server: every door writes to it, every protocol reads it."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import queue
import threading
import time
from collections.abc import Iterator

import paho.mqtt.client as paho
import pika
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.conformance.mqtt_brokers import Onelog

DEADLINE_S = 30
KAFKA_VIEW = "_x24_audit._x23_"
NOT_AUTHORIZED = 0x87


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Onelog]:
    started = Onelog(
        tmp_path_factory.mktemp("audit"),
        "security.anonymous=never",
        "listeners.amqp_management.enabled=true",
        listeners=("amqp_management",),
    ).start()
    started.user("root", "secret-1", "--administrator")
    started.user("eve", "secret-1")
    yield started
    assert started.stop() == 0


def trail(server: Onelog, *options: str) -> list[dict]:
    text = server.command("audit", "--json", "--limit", "1000", *options)
    return [json.loads(line) for line in text.splitlines()]


def until(is_true) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kafka(server: Onelog, user: str, password: str = "secret-1", mechanism: str = "PLAIN") -> dict:
    return {
        "bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


def amqp(server: Onelog, user: str, password: str = "secret-1") -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            server.ports["amqp"],
            credentials=pika.PlainCredentials(user, password),
            socket_timeout=DEADLINE_S,
        )
    )


class Mqtt:
    """A client, and what it got."""

    def __init__(self, server: Onelog, user: str, password: str = "secret-1") -> None:
        self.messages: queue.Queue = queue.Queue()
        self.answers: queue.Queue = queue.Queue()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.username_pw_set(user, password)
        self._client.on_connect = lambda *given: self.answers.put(given[3].value)
        self._client.on_subscribe = lambda *given: self.answers.put(given[3][0].value)
        self._client.on_publish = lambda *given: self.answers.put(given[3].value)
        self._client.on_message = lambda *given: self.messages.put(given[2])
        self._client.connect("127.0.0.1", server.ports["mqtt"])
        self._client.loop_start()
        self.connack = self.answers.get(timeout=DEADLINE_S)

    def subscribe(self, text: str) -> int:
        self._client.subscribe(text, options=SubscribeOptions(qos=1))
        return self.answers.get(timeout=DEADLINE_S)

    def publish(self, topic: str, payload: bytes) -> int:
        self._client.publish(topic, payload, qos=1)
        return self.answers.get(timeout=DEADLINE_S)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def http_ask(server: Onelog, name: str, method: str, path: str, user: str = "", body=None, **more):
    connection = http.client.HTTPConnection("127.0.0.1", server.ports[name], timeout=DEADLINE_S)
    headers = dict(more)
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
    with contextlib.closing(connection):
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_a_failed_login_of_every_door_is_one_record(server):
    refused = threading.Event()
    client = AdminClient(kafka(server, "kate", "wrong") | {"error_cb": lambda _e: refused.set()})
    until(lambda: (client.poll(0.1), refused.is_set())[1])
    del client
    client = Mqtt(server, "mary", "wrong")
    assert client.connack >= 0x80
    client.close()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        amqp(server, "amos", "wrong")
    status, _body = http_ask(server, "amqp_management", "GET", "/api/overview", "mona:wrong")
    assert status == 401
    status, _body = http_ask(
        server, "admin", "POST", "/api/v1/login", body={"user": "adam", "password": "wrong"}
    )
    assert status == 401
    doors = {"kafka", "mqtt", "amqp", "management", "admin"}
    until(lambda: {row["door"] for row in trail(server, "--action", "login.failed")} == doors)
    found = trail(server, "--action", "login.failed")
    names = {row["door"]: row["actor"] for row in found}
    assert names == {
        "kafka": "kate", "mqtt": "mary", "amqp": "amos", "management": "mona", "admin": "adam",
    }  # fmt: skip
    assert all(row["address"] == "127.0.0.1" and row["outcome"] == "refused" for row in found)
    assert "wrong" not in [row["reason"] for row in found]


def test_administrators_read_the_trail_by_every_protocol_and_others_by_none(server):
    watching, outsider = Mqtt(server, "root"), Mqtt(server, "eve")
    assert watching.subscribe("$audit/user/#") == 1
    assert outsider.subscribe("$audit/#") == NOT_AUTHORIZED
    assert outsider.subscribe("#") in (0, 1, NOT_AUTHORIZED)
    with contextlib.closing(amqp(server, "root")) as connection:
        channel = connection.channel()
        name = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(name, "amq.onelog.audit", "user.#")
        server.command("user", "groups", "eve", "lab")
        got = next(channel.consume(name, auto_ack=True, inactivity_timeout=DEADLINE_S))
        event = json.loads(got[2])
        assert (event["action"], event["resource"], event["outcome"]) == (
            "user.groups", "eve", "ok",
        )  # fmt: skip
        assert event["door"] == "control"
        assert got[0].routing_key == "user.groups"
    message = watching.messages.get(timeout=DEADLINE_S)
    assert message.topic == "$audit/user/groups"
    assert json.loads(message.payload) == event
    assert outsider.messages.empty()
    with contextlib.closing(amqp(server, "eve")) as connection:
        channel = connection.channel()
        name = channel.queue_declare("", exclusive=True).method.queue
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            channel.queue_bind(name, "amq.onelog.audit", "#")
        assert caught.value.reply_code == 403
    consumer = Consumer(kafka(server, "root") | {"group.id": "auditors"})
    consumer.assign([TopicPartition(KAFKA_VIEW, 0, 0)])
    found = []
    until(lambda: (found.append(consumer.poll(1)), any(_is(row, event) for row in found))[1])
    consumer.close()
    consumer = Consumer(kafka(server, "eve") | {"group.id": "eve"})
    shown = consumer.list_topics(KAFKA_VIEW, timeout=DEADLINE_S).topics[KAFKA_VIEW]
    assert shown.error.code() in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART,
    )  # fmt: skip
    consumer.close()
    watching.close()
    outsider.close()


def _is(row, event) -> bool:
    return row is not None and row.error() is None and json.loads(row.value()) == event


def test_nobody_publishes_into_the_trail_or_deletes_from_it(server):
    before = len(trail(server, "--action", "user"))
    client = Mqtt(server, "root")
    assert client.publish("$audit/user/add", b"forged") >= 0x80
    client.close()
    failed: list[KafkaError | None] = []
    producer = Producer(kafka(server, "root") | {"message.timeout.ms": 5_000})
    for topic in ("_x24_audit.user.add", KAFKA_VIEW, "~audit"):
        with contextlib.suppress(KafkaException):
            producer.produce(topic, b"forged", on_delivery=lambda error, _m: failed.append(error))
    producer.flush(DEADLINE_S)
    assert failed
    assert all(error is not None for error in failed)
    for exchange, key in (("amq.onelog.audit", "user.add"), ("", "amq.topic/$audit/user/add")):
        with contextlib.closing(amqp(server, "root")) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            with pytest.raises(pika.exceptions.AMQPError):
                channel.basic_publish(exchange, key, b"forged")
    admin = AdminClient(kafka(server, "root"))
    (future,) = admin.delete_records([TopicPartition(KAFKA_VIEW, 0, 1)]).values()
    with pytest.raises(KafkaException):
        future.result(DEADLINE_S)
    rows = trail(server, "--action", "user")
    assert len(rows) == before
    assert "forged" not in json.dumps(rows)


def test_changes_by_kafka_and_the_management_api_are_noted_also_when_they_are_refused(server):
    for user in ("root", "eve"):
        admin = AdminClient(kafka(server, user))
        (future,) = admin.create_topics([NewTopic(f"made-by-{user}", 1)]).values()
        future.result(DEADLINE_S)
    status, _body = http_ask(
        server, "amqp_management", "PUT", "/api/queues/%2F/jobs", "root:secret-1",
        {"durable": True}, **{"Content-Type": "application/json"},
    )  # fmt: skip
    assert status == 201
    status, _body = http_ask(
        server, "amqp_management", "PUT", "/api/users/mallory", "eve:secret-1",
        {"password": "as long", "tags": ""}, **{"Content-Type": "application/json"},
    )  # fmt: skip
    assert status == 401
    until(lambda: trail(server, "--door", "management", "--outcome", "refused"))
    made = [row["resource"] for row in trail(server, "--action", "topic.create")]
    assert made == ["made-by-root", "made-by-eve"]
    (row,) = trail(server, "--action", "queue.set")
    assert (row["actor"], row["resource"], row["outcome"]) == ("root", "//jobs", "ok")
    rows = trail(server, "--action", "user.set")
    assert [(row["actor"], row["outcome"]) for row in rows] == [("eve", "refused")]
