"""Clients that a broker would rather not have: they flood, stall, never acknowledge, come and go.

Rules: none of them may cost the broker more than bounded memory (I8), and none may cost others a
message or an order. What they write lies apart from what well-behaved clients write.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

from confluent_kafka.admin import AdminClient, NewTopic

from onelog.protocols.mqtt.packets import Will
from tests.conformance import amqp_raw, mqtt_raw
from tests.conformance.mqtt_brokers import Onelog

PAYLOAD = bytes(200)
GONE = (OSError, mqtt_raw.Ended, amqp_raw.Ended, amqp_raw.Refused, AssertionError)
"""What such a client may see: the broker may end it."""
KAFKA_METADATA = bytes.fromhex("00000011 0003 0001 00000001 0003 626164 ffffffff".replace(" ", ""))
QUEUE_NAMES = 1_000
"""Names of queues that come and go. The broker remembers topics, up to a bound that no soak
reaches (1.3 KB each): so the same names come again, and what grows then is no memory of them."""
NOBODY = "nobody"
"""A kind of visitors that does not come."""
UPGRADE = b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"


class BadCompany:
    """Threads that behave badly towards a server until they are told to stop."""

    def __init__(self, server: Onelog) -> None:
        self._ports = server.ports
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.done = 0
        """Things done: connections made and lost, messages flooded."""
        self.visits: Counter[str] = Counter()
        """Visits by their kind, and those that did not get what they came for."""
        self.failed: Counter[str] = Counter()
        self.visitors: dict[str, Callable[[], None]] = {
            "MQTT": self._visit_mqtt,
            "MQTT session": self._visit_session,
            "MQTT over WebSocket": self._visit_websocket,
            "AMQP": self._visit_amqp,
            "AMQP queue": self._visit_queue,
            "Kafka": self._visit_kafka,
        }
        self.only = ""
        """The kind of visitors that come and go now; empty: all of them."""
        self._queues = itertools.count()

    def begin(self, *work: Callable[[], None]) -> None:
        """Let them loose."""
        for row in work:
            thread = threading.Thread(target=self._again_and_again, args=(row,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        """Let them go."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a bad client does not end"

    def _again_and_again(self, work: Callable[[], None]) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(*GONE):
                work()

    @contextlib.contextmanager
    def _mqtt(self, name: str = "", **options: object) -> Iterator[mqtt_raw.Raw]:
        with mqtt_raw.Raw(self._ports["mqtt"]) as raw:
            raw.connect(name or mqtt_raw.unique("bad"), **options)
            yield raw

    # -- overload

    def flood_hot_topic(self) -> None:
        """Messages of QoS 0 into one topic, as fast as the socket takes them."""
        publish = mqtt_raw.Publish(topic="flood/hot", payload=PAYLOAD)
        with self._mqtt() as raw:
            raw.socket.settimeout(1)
            while not self._stop.is_set():
                raw.send(*[publish] * 50)
                self.done += 50

    def stall_mqtt(self) -> None:
        """Subscribe to everything and read nothing."""
        with self._mqtt(session_expiry_s=60) as raw:
            raw.subscribe("#", 1)
            self._stop.wait(5)

    def stall_amqp(self) -> None:
        """Consume without limit and read nothing."""
        with amqp_raw.Raw(self._ports["amqp"]).open() as raw:
            channel = raw.channel()
            name = channel.queue(exclusive=True)
            channel.bind(name, "amq.topic", "#")
            channel.consume(name)
            self._stop.wait(5)

    def never_acknowledge(self) -> None:
        """Take ten messages and keep them."""
        with amqp_raw.Raw(self._ports["amqp"]).open() as raw:
            channel = raw.channel()
            channel.qos(10)
            name = channel.queue("never", durable=True, arguments={"x-max-length": 10_000})
            channel.bind(name, "amq.topic", "mixed.#")
            channel.consume(name)
            self._stop.wait(5)

    def stall_kafka(self) -> None:
        """Ask and ask, and read no answer."""
        with socket.create_connection(("127.0.0.1", self._ports["kafka"])) as sock:
            sock.settimeout(1)
            for _ in range(20_000):
                sock.sendall(KAFKA_METADATA)

    # -- churn

    def come_and_go(self) -> None:
        """One client of some kind, which leaves without a word."""
        if self.only == NOBODY:
            self._stop.wait(0.1)
            return
        kind = self.only or random.choice(list(self.visitors))
        try:
            self.visitors[kind]()
        except GONE:
            self.failed[kind] += 1
            raise
        self.visits[kind] += 1
        self.done += 1
        self._stop.wait(0.02)

    def _visit_mqtt(self) -> None:
        will = Will(topic="churn/will", payload=b"gone", qos=1)
        with self._mqtt(will=will) as raw:
            raw.subscribe("churn/#", 1)
            packet = mqtt_raw.Publish(topic="churn/mqtt", payload=PAYLOAD, qos=1, packet_id=1)
            raw.send(packet)

    def _visit_session(self) -> None:
        """A session that is kept for a second, some of them with a backlog."""
        with self._mqtt(f"churn{random.randrange(50)}", session_expiry_s=1) as raw:
            raw.subscribe(f"churn/{random.randrange(20)}/#", 1)

    def _visit_amqp(self) -> None:
        with amqp_raw.Raw(self._ports["amqp"]).open() as raw:
            channel = raw.channel()
            name = channel.queue(exclusive=True)
            channel.bind(name, "amq.topic", "churn.#")
            channel.confirm()
            channel.put("amq.topic", "churn.amqp", "text")
            channel.consume(name)
            channel.message()

    def _visit_queue(self) -> None:
        with amqp_raw.Raw(self._ports["amqp"]).open() as raw:
            channel = raw.channel()
            name = channel.queue(f"churn{next(self._queues) % QUEUE_NAMES}", durable=True)
            channel.confirm()
            channel.put("", name, "one", "two")
            channel.ask(amqp_raw.Queue.Delete(queue=name), amqp_raw.Queue.DeleteOk)

    def _visit_kafka(self) -> None:
        with socket.create_connection(("127.0.0.1", self._ports["kafka"])) as sock:
            sock.settimeout(5)
            sock.sendall(KAFKA_METADATA)
            sock.recv(100)

    def _visit_websocket(self) -> None:
        with socket.create_connection(("127.0.0.1", self._ports["mqtt_ws"])) as sock:
            sock.sendall(UPGRADE)

    def make_topics(self) -> None:
        """Topics of Kafka that are made and deleted."""
        admin = AdminClient(
            {"bootstrap.servers": f"127.0.0.1:{self._ports['kafka']}", "log_level": 0}
        )
        for number in itertools.count():
            name = f"churn-{number}"
            admin.create_topics([NewTopic(name, 2)])[name].result(30)
            admin.delete_topics([name])[name].result(30)
            self.done += 1
            if self._stop.wait(2):
                return


class Watch:
    """Memory and descriptors of a server, as time passes."""

    def __init__(self, server: Onelog) -> None:
        self._server = server
        self.rss_bytes: list[int] = []
        """Without the pages of mapped files: those are the page cache's."""
        self.files: list[int] = []

    def look(self) -> None:
        """Take both down."""
        self.rss_bytes.append(self._server.rss_bytes())
        self.files.append(self._server.open_files())

    def look_for(self, seconds: float, every_s: float) -> None:
        """Look again and again for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(every_s)  # not to wait for anything: what is looked for is what time does
            self.look()

    def words(self) -> str:
        """The course of both, in ten steps."""
        step = max(1, len(self.files) // 10)
        rss = " ".join(str(row >> 20) for row in self.rss_bytes[::step])
        files = " ".join(map(str, self.files[::step]))
        return f"RSS in MiB: {rss}; descriptors: {files}"


class Growth:
    """What visitors of each kind leave behind, so that who leaks is read off a table.

    All kinds together say only that something grows. So they come by turns, each kind alone for a
    while and then all of them, and what the server grew by meanwhile is that kind's. When nobody
    comes it grows too, by what the others write: that is taken off. The first half of the rounds
    does not count: what is bounded fills up.
    """

    ROUNDS = 12
    TOGETHER = "all together"

    def __init__(self, bad: BadCompany, watch: Watch) -> None:
        self._bad = bad
        self._watch = watch
        self._bytes: Counter[str] = Counter()
        self._visits: Counter[str] = Counter()

    def look_for(self, seconds: float) -> None:
        """Let them come by turns for so long, and look."""
        kinds = [self.TOGETHER, *self._bad.visitors, NOBODY]
        turn_s = seconds / self.ROUNDS / len(kinds)
        self._watch.look()
        for number in range(self.ROUNDS):
            for kind in kinds:
                self._bad.only = "" if kind == self.TOGETHER else kind
                bytes_before, visits_before = self._watch.rss_bytes[-1], self._bad.visits.total()
                self._watch.look_for(turn_s, turn_s / 2)
                if number >= self.ROUNDS // 2:
                    self._bytes[kind] += self._watch.rss_bytes[-1] - bytes_before
                    self._visits[kind] += self._bad.visits.total() - visits_before

    def left(self) -> dict[str, int]:
        """The bytes that each kind left behind."""
        others = max(0, self._bytes[NOBODY])
        return {kind: grown - others for kind, grown in self._bytes.items() if kind != NOBODY}

    def beyond(self, spare_bytes: int, visit_bytes: int) -> list[str]:
        """The kinds that left more behind than so much, and so much for each visit."""
        return [
            kind
            for kind, left in self.left().items()
            if left > spare_bytes + visit_bytes * self._visits[kind]
        ]

    def words(self) -> str:
        """A row for each kind: what it left behind, in all and for each visit."""
        rows = [f"{'who left something':<22}{'visits':>10}{'KiB':>10}{'bytes a visit':>15}"]
        for kind, left in self.left().items():
            visits = self._visits[kind]
            each = round(left / visits) if visits else 0
            rows.append(f"{kind:<22}{visits:>10}{left >> 10:>10}{each:>15}")
        rows.append(f"{NOBODY:<22}{'':>10}{self._bytes[NOBODY] >> 10:>10}")
        return "\n".join(rows)
