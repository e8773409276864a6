"""Writers and readers of every protocol that go on while the broker changes under them.

A writer counts: each message says who wrote it and its number. A reader notes what comes, so that a
test can say: all of it, once, in order.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import paho.mqtt.client as paho
import pika
import pika.exceptions
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from onelog.base.names import to_dotted

DEADLINE_S = 120.0
WRITERS = ("mqtt", "kafka", "amqp")
FILTER = "plant/#"
KEPT_S = 3600
IN_FLIGHT = 50


def topic_of(writer: str) -> str:
    return f"plant/{writer}/t"


def connected(port: int, client_id: str, *, clean: bool) -> tuple[paho.Client, threading.Event]:
    """A client of MQTT 5 and what tells that it is there; its session outlives it, if not clean."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
    ready = threading.Event()
    client.on_connect = lambda *_found: ready.set()
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 0 if clean else KEPT_S
    properties.ReceiveMaximum = IN_FLIGHT
    client.connect("127.0.0.1", port, clean_start=clean, properties=properties)
    return client, ready


class Writer:
    """Writes numbered messages until it is told to stop; all of them are acknowledged then."""

    def __init__(self, name: str, port: int, first: int = 0) -> None:
        self.name = name
        self.count = first
        """The number of the next message."""
        self._stop = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(port,), daemon=True)
        self._thread.start()

    def _run(self, port: int) -> None:
        try:
            {"mqtt": self._mqtt, "kafka": self._kafka, "amqp": self._amqp}[self.name](port)
        except BaseException as error:  # noqa: BLE001 - the test has it
            self.failure = error

    def _until_stopped(self, write: Callable[[bytes], None]) -> None:
        while not self._stop.is_set():
            write(b"%s %d" % (self.name.encode(), self.count))
            self.count += 1
            if self.count % 10 == 0:
                self._stop.wait(0.05)  # two hundred a second: the readers are Python, too

    def _mqtt(self, port: int) -> None:
        client, ready = connected(port, "", clean=True)
        client.loop_start()
        assert ready.wait(DEADLINE_S)
        last: list[paho.MQTTMessageInfo] = []
        topic = topic_of(self.name)
        self._until_stopped(lambda data: last.append(client.publish(topic, data, qos=1)))
        for row in last:
            row.wait_for_publish(DEADLINE_S)
            assert row.is_published()
        client.disconnect()
        client.loop_stop()

    def _kafka(self, port: int) -> None:
        producer = Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "enable.idempotence": True,
                "topic.metadata.refresh.interval.ms": 300,
                "log_level": 0,
            }
        )
        failed: list[Any] = []
        name = to_dotted(topic_of(self.name))

        def write(data: bytes) -> None:
            # The partition that the topic began with, whichever it lives in by now.
            producer.produce(
                name, data, key=b"k", partition=0, headers=[("~q", b"1")],
                on_delivery=lambda error, _message: error and failed.append(error),
            )  # fmt: skip
            producer.poll(0)

        self._until_stopped(write)
        assert producer.flush(DEADLINE_S) == 0
        assert failed == []

    def _amqp(self, port: int) -> None:
        connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)
        )
        channel = connection.channel()
        channel.confirm_delivery()
        key = topic_of(self.name).replace("/", ".")
        persistent = pika.BasicProperties(delivery_mode=2)
        self._until_stopped(lambda data: channel.basic_publish("amq.topic", key, data, persistent))
        connection.close()

    def stop(self) -> int:
        """How many it wrote."""
        self._stop.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), (
            f"the {self.name} writer has no answer after {self.count}"
        )
        if self.failure is not None:
            raise self.failure
        return self.count


class Reader:
    """Notes what comes, in its order."""

    def __init__(self) -> None:
        self._seen: list[str] = []
        self._news = threading.Condition()

    def note(self, data: bytes) -> None:
        with self._news:
            self._seen.append(data.decode())
            self._news.notify_all()

    @property
    def seen(self) -> list[str]:
        with self._news:
            return list(self._seen)

    def wait_for(self, count: int) -> None:
        """Until so many came, or a duplicate of one."""
        with self._news:
            self._news.wait_for(lambda: len(self._seen) >= count, DEADLINE_S)

    def of(self, writer: str) -> list[int]:
        """The numbers that came of a writer, in their order."""
        rows = (text.split() for text in self.seen)
        return [int(number) for name, number in rows if name == writer]

    def faults(self, writer: str, count: int, *, in_order: bool) -> list[str]:
        """What is wrong with what came of a writer, in words."""
        numbers = self.of(writer)
        missing = sorted(set(range(count)) - set(numbers))
        twice = sorted(number for number, times in Counter(numbers).items() if times > 1)
        turned = [pair for pair in pairwise(numbers) if pair[0] > pair[1]] if in_order else []
        told = {"missing": missing, "twice": twice, "out of order": turned}
        return [
            f"{len(rows)} of {writer} {what}, such as {rows[:5]}"
            for what, rows in told.items()
            if rows
        ]


class MqttReader(Reader):
    """A subscriber; its session goes on after `leave` when it has a name."""

    def __init__(self, text: str = FILTER, client_id: str = "", qos: int = 1) -> None:
        super().__init__()
        self._text, self._client_id, self._qos = text, client_id, qos
        self._client: paho.Client | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._said_goodbye = False
        self._unsure: set[str] = set()
        """What a shared subscription may give again, as new: its answer may have got lost."""

    def come(self, port: int) -> None:
        subscribed = threading.Event()
        self._stop.clear()
        self._said_goodbye = False
        if self._client is None:
            self._client, _ready = connected(port, self._client_id, clean=not self._client_id)
            self._client.on_message = self._take
            self._client.on_subscribe = lambda *_found: subscribed.set()
            self._client.on_connect = self._subscribe
        else:  # the same client, which knows what it had
            subscribed.set()
            self._client.on_connect = None
            self._client.reconnect()
        self._thread = threading.Thread(target=self._run, args=(self._client,), daemon=True)
        self._thread.start()
        assert subscribed.wait(DEADLINE_S)

    def _take(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        """Note a message, unless it comes again because its acknowledgement got lost.

        Who closes a socket with unread bytes resets it, and what he sent last may not be read. A
        message that the broker takes for a new one has no such mark, and counts.
        """
        if self._said_goodbye:
            return  # what is answered behind a goodbye is not read, and comes again
        text = message.payload.decode()
        if text not in self._unsure and (not message.dup or text not in self.seen):
            self.note(message.payload)

    def _subscribe(self, client: paho.Client, *_found: Any) -> None:
        client.subscribe(self._text, options=paho.SubscribeOptions(qos=self._qos))

    def _run(self, client: paho.Client) -> None:
        """One thread does everything, so that who leaves has acknowledged what was noted."""
        while not self._stop.is_set():
            client.loop(0.05)
        self._said_goodbye = True
        client.disconnect()
        while client.loop(0.05) == paho.MQTT_ERR_SUCCESS:
            pass

    def leave(self) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        if self._text.startswith("$share/"):
            self._unsure = set(list(self.seen)[-IN_FLIGHT:])


class KafkaReader(Reader):
    """A member of a group, which commits what it noted."""

    def __init__(self, text: str = FILTER, group: str = "readers") -> None:
        super().__init__()
        self._name, self._group = to_dotted(text), group
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def come(self, port: int) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, args=(port,), daemon=True)
        self._thread.start()

    def _run(self, port: int) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "group.id": self._group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 300,
                "log_level": 0,
            }
        )
        noted = False

        def commit(*_rows: Any) -> None:
            nonlocal noted
            if noted:
                noted = False
                consumer.commit(asynchronous=False)

        consumer.subscribe([self._name], on_revoke=commit)
        while not self._stop.is_set():
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    self.note(message.value() or b"")
                    noted = True
            commit()
        consumer.close()

    def leave(self) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


class AmqpReader(Reader):
    """A consumer of a durable queue, which acknowledges what it noted."""

    def __init__(self, queue: str, key: str = "plant.#", start: str = "") -> None:
        super().__init__()
        self._queue, self._key = queue, key
        self._arguments = {"x-onelog-from": start} if start else {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def declare(self, port: int) -> None:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        channel = connection.channel()
        channel.queue_declare(self._queue, durable=True, arguments=self._arguments)
        channel.queue_bind(self._queue, "amq.topic", self._key)
        connection.close()

    def come(self, port: int) -> None:
        self.declare(port)
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, args=(port,), daemon=True)
        self._thread.start()

    def _run(self, port: int) -> None:
        connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)
        )
        channel = connection.channel()
        channel.basic_qos(prefetch_count=100)
        for method, _properties, body in channel.consume(self._queue, inactivity_timeout=0.05):
            if method is not None:
                self.note(body)
                channel.basic_ack(method.delivery_tag)
            if self._stop.is_set():
                break
        channel.cancel()  # what was not noted goes back
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()

    def leave(self) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


def partitions_of(port: int, text: str) -> int:
    """How many partitions Kafka shows of a topic or filter."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
    return len(admin.list_topics(to_dotted(text), DEADLINE_S).topics[to_dotted(text)].partitions)


def let_write(writers: list[Writer], count: int) -> None:
    """Until each has written so many more."""
    wanted = [(writer, writer.count + count) for writer in writers]
    ends = time.monotonic() + DEADLINE_S
    while any(writer.count < number for writer, number in wanted):
        still = {writer.name: number - writer.count for writer, number in wanted}
        assert time.monotonic() < ends, f"a writer stands still, so many are to come: {still}"
        assert all(writer.failure is None for writer in writers), "a writer failed"
        time.sleep(0.01)
