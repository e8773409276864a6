"""A mixed run that a crash may end: writers and views of every protocol on one broker, and what
each was told.

Rules:
- A message is acknowledged when its writer was answered: PUBACK, delivery report, confirm.
- A view acknowledges what it takes. Kafka's commit is answered: nothing before it may come again.
  PUBACK and basic.ack have no answer: what was acknowledged `KEPT_AFTER_S` before the crash, many
  intervals of the checkpoint, may not come again. What comes again to a queue is marked as that.
- After the restart every view gets what it lacks, and two more open that did not exist before.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.conformance import amqp_raw, mqtt_raw
from tests.conformance.mqtt_brokers import GROUPS_AT_ONCE, Onelog
from tests.conformance.mqtt_raw import Puback
from tests.support.history import History, Promise

CHECKPOINT_MS = 50
KEPT_AFTER_S = 3.0
"""A checkpoint waits for the one before it to be synced, which takes long on a busy disk."""
DEADLINE_S = 60.0
SETTINGS = (
    f"cursors.checkpoint_interval_ms={CHECKPOINT_MS}",
    GROUPS_AT_ONCE,
)
"""For a broker that is to be tried."""

WINDOW = 20
TOPICS = 4
"""That the MQTT writer writes to."""
PARTITIONS = 3
"""That the Kafka writer writes to: each has its order."""
PREFETCH = 100
GROUP = 2
"""Which of the threads it is."""
ROOT = "mixed"
EVERYTHING_KAFKA = f"{ROOT}._x23_"
EVER_S = 1 << 31
QOS_1 = ("~q", b"1")
"""Without it MQTT would get at QoS 0 what Kafka writes, and may lose it."""
BROKEN = (OSError, mqtt_raw.Ended, amqp_raw.Ended, amqp_raw.Refused)
"""What a client sees of a broker that was killed."""


PROMISES = {
    "session": Promise(kept_after_s=KEPT_AFTER_S),
    "queue": Promise(kept_after_s=KEPT_AFTER_S, is_marked=True),
    "group": Promise(kept_after_s=KEPT_AFTER_S, is_marked=True),
}
LATE = Promise(is_once=True)
"""Of views that open when all is over."""


class MixedRun:
    """Writers and views on a broker, over as many of its lives as there are."""

    def __init__(self, server: Onelog, pause_s: float = 0.0) -> None:
        self.server = server
        self._pause_s = pause_s
        """How long a writer rests after each window."""
        self.history = History()
        self.views = dict(PROMISES)
        self._first_taken_s: dict[str, float] = {}
        """View → when it took its first message of this life of the broker."""
        self.committed: dict[int, int] = {}
        """Kafka: partition → the offset that was answered."""
        self.commits_lost: list[int] = []
        """Partitions in which the group stood behind that after a restart."""
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._consumer: Consumer | None = None
        self._failed: list[BaseException] = []

    # -- one life

    def prepare(self) -> None:
        """Make what lasts: a session, a queue with its binding, and topics that Kafka knows."""
        with mqtt_raw.Raw(self.server.ports["mqtt"]) as raw:
            raw.connect("view", clean=True, session_expiry_s=EVER_S)
            raw.subscribe(f"{ROOT}/#", 1)
            raw.disconnect()
        channel = self._channel()
        with channel.raw:
            channel.queue("view", durable=True)
            channel.bind("view", "amq.topic", f"{ROOT}.#")

    def begin(self, *, write: bool) -> None:
        """Let every view read, and everybody write."""
        self._stop.clear()
        work: list[Callable[[], None]] = [self._read_session, self._read_queue, self._read_group]
        if write:
            work += [self._write_mqtt, self._write_kafka, self._write_amqp]
        self._threads = [threading.Thread(target=self._guarded, args=(row,)) for row in work]
        for thread in self._threads:
            thread.start()

    def kill(self) -> None:
        """kill -9 in the middle of everything, and start again."""
        self.server.kill()
        killed_s = time.monotonic()
        self._stop.set()
        group = self._threads.pop(GROUP)
        self.end()
        self.server.start()
        # librdkafka gives up neither a commit nor its goodbye: it ends with the broker's next life.
        self._threads = [group]
        self.end()
        self.history.broken(at_s=killed_s)
        self._first_taken_s.clear()

    def end(self) -> None:
        """Let all threads come to their end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "a client did not come to its end"
        if self._failed:
            raise self._failed[0]

    def wait(self, done: Callable[[], bool], what: str) -> None:
        """Until something holds that threads work on."""
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            if self._failed:
                raise self._failed[0]
            assert time.monotonic() < deadline, f"after {DEADLINE_S:.0f} s: {what}"
            self._stop.wait(0.02)

    def written(self, count: int) -> None:
        """Wait until so many more messages are acknowledged and every view has read some."""
        known, seen_by = self.history.known, self.history.seen_by
        goal = len(known) + count
        before = {name: len(seen_by[name]) for name in self.views}
        self.wait(lambda: len(known) >= goal, f"fewer than {count} messages")
        self.wait(
            lambda: all(len(seen_by[name]) > before[name] for name in self.views),
            "a view reads nothing",
        )
        self.wait(lambda: all(map(self._has_long_taken, self.views)), "a view takes nothing")

    def _has_long_taken(self, view: str) -> bool:
        """Whether the broker had the time to keep what was acknowledged first in this life."""
        first_s = self._first_taken_s.get(view)
        return first_s is not None and first_s < time.monotonic() - KEPT_AFTER_S - 0.5

    def lacking(self) -> dict[str, int]:
        """How many acknowledged messages each view has not seen."""
        return {name: len(texts) for name, texts in self.history.lacking(self.views).items()}

    def catch_up(self) -> None:
        """Read until every view has all that was acknowledged; then two that come late."""
        self.begin(write=False)
        self.wait(lambda: not any(self.lacking().values()), f"views lack {self.lacking()}")
        self.end()
        self.views |= {"late queue": LATE, "late wildcard": LATE}
        self._read_late_queue()
        for text in self._everything():
            self.history.seen("late wildcard", text)

    def findings(self) -> list[str]:
        """Every promise that was broken."""
        lost = [f"the group's commit in partition {number} is lost" for number in self.commits_lost]
        return self.history.findings(self.views) + lost

    def _take(self, view: str, text: str, *, marked: bool) -> None:
        """A message came to a view; it is acknowledged at once."""
        self.history.seen(view, text, marked=marked)
        self.history.settling(view, text)
        self._first_taken_s.setdefault(view, time.monotonic())

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BROKEN as error:
            if self.server.process is not None and not self._stop.is_set():
                self._failed.append(error)
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            self._failed.append(error)

    # -- writers

    def _next_texts(self, writer: str, lanes: int = 1) -> list[str]:
        """The next messages of a writer, which go to its lanes in turn."""
        self._stop.wait(self._pause_s)
        texts = [f"{writer}{next(self._numbers)}" for _ in range(WINDOW)]
        for number, text in enumerate(texts):
            self.history.attempted(text, f"{writer}/{number % lanes}")
        return texts

    def _write_mqtt(self) -> None:
        with mqtt_raw.Raw(self.server.ports["mqtt"]) as raw:
            raw.connect()
            while not self._stop.is_set():
                waiting: dict[int, str] = {}
                for number, text in enumerate(self._next_texts("mqtt", TOPICS)):
                    packet_id = raw.next_id() % 60_000 + 1
                    waiting[packet_id] = text
                    raw.send(
                        mqtt_raw.Publish(
                            topic=f"{ROOT}/mqtt/{number % TOPICS}",
                            payload=text.encode(),
                            qos=1,
                            packet_id=packet_id,
                        )
                    )
                while waiting:
                    self.history.acknowledged(waiting.pop(raw.get(Puback).packet_id))

    def _write_kafka(self) -> None:
        producer = Producer(self._servers() | {"linger.ms": 5, "message.timeout.ms": 5000})

        def told(error: Any, message: Any) -> None:
            if error is None:
                self.history.acknowledged(message.value().decode())

        while not self._stop.is_set():
            for number, text in enumerate(self._next_texts("kafka", PARTITIONS)):
                where = {"partition": number % PARTITIONS}
                producer.produce(f"{ROOT}.kafka", text, headers=[QOS_1], on_delivery=told, **where)
            producer.flush(1)
        producer.purge()
        producer.flush(1)

    def _write_amqp(self) -> None:
        channel = self._channel()
        with channel.raw:
            channel.confirm()
            while not self._stop.is_set():
                texts = self._next_texts("amqp")
                channel.put("amq.topic", f"{ROOT}.amqp", *texts, delivery_mode=2)
                for text in texts:
                    self.history.acknowledged(text)

    # -- views

    def _read_session(self) -> None:
        with mqtt_raw.Raw(self.server.ports["mqtt"]) as raw:
            raw.connect("view", clean=False, session_expiry_s=EVER_S)
            assert raw.connack.session_present
            raw.socket.settimeout(0.2)
            while not self._stop.is_set():
                with contextlib.suppress(TimeoutError):
                    packet = raw.message()
                    raw.send(Puback(packet.packet_id))
                    self._take("session", packet.payload.decode(), marked=packet.dup)

    def _read_queue(self) -> None:
        channel = self._channel()
        with channel.raw:
            channel.qos(PREFETCH)
            channel.consume("view")
            while not self._stop.is_set():
                with contextlib.suppress(TimeoutError):
                    found = channel.message(0.2)
                    channel.ack(found.tag)
                    self._take("queue", found.text, marked=found.method.redelivered)

    def _read_group(self) -> None:
        settings = {
            "group.id": "view",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,  # who was there before the crash is waited for
            "socket.timeout.ms": 3000,
            "topic.metadata.refresh.interval.ms": 500,
        }
        consumer = Consumer(self._servers() | settings)
        consumer.subscribe([EVERYTHING_KAFKA], on_assign=self._restore)
        try:
            while not self._stop.is_set():
                found = [row for row in consumer.consume(200, 0.1) if row.error() is None]
                for row in found:
                    marked = row.offset() >= self.committed.get(row.partition(), 0)
                    self._take("group", row.value().decode(), marked=marked)
                if found:
                    self._commit(consumer)
        finally:
            consumer.close()

    def _restore(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """The partitions are assigned: where does the broker say that the group stands?"""
        self.history.broken("group")  # what it had read and not committed may come again
        for row in consumer.committed(places, DEADLINE_S):
            if row.offset < self.committed.get(row.partition, row.offset):
                self.commits_lost.append(row.partition)

    def _commit(self, consumer: Consumer) -> None:
        with contextlib.suppress(Exception):  # the broker may be gone: then nothing was answered
            for row in consumer.commit(asynchronous=False):
                if row.error is None:
                    self.committed[row.partition] = row.offset

    # -- views that come late

    def _read_late_queue(self) -> None:
        known = self.history.known
        channel = self._channel()
        with channel.raw:
            arguments = amqp_raw.x_arguments({"onelog_from": "earliest"})
            name = channel.queue("late", durable=True, arguments=arguments)
            channel.bind(name, "amq.topic", f"{ROOT}.#")
            self.wait(lambda: channel.count(name) >= len(known), "the late queue is not full")
            for text in channel.all(name):
                self.history.seen("late queue", text)

    def _everything(self) -> Iterator[str]:
        consumer = Consumer(
            self._servers() | {"group.id": "nobody", "enable.partition.eof": True,
                               "enable.auto.commit": False}
        )  # fmt: skip
        names = consumer.list_topics(EVERYTHING_KAFKA, DEADLINE_S).topics[EVERYTHING_KAFKA]
        open_ends = set(names.partitions)
        consumer.assign([TopicPartition(EVERYTHING_KAFKA, row, 0) for row in open_ends])
        try:
            while open_ends:
                for row in consumer.consume(500, 1):
                    if row.error() is None:
                        yield row.value().decode()
                    else:
                        open_ends.discard(row.partition())
        finally:
            consumer.close()

    # -- connections

    def _servers(self) -> dict[str, Any]:
        return {"bootstrap.servers": f"127.0.0.1:{self.server.ports['kafka']}", "log_level": 0}

    def _channel(self) -> amqp_raw.RawChannel:
        return amqp_raw.Raw(self.server.ports["amqp"]).open().channel()
