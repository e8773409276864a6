"""A kept MQTT session, a queue of AMQP, and a publisher of QoS 2, of a cluster in trouble.

Rules:
- Each is one client, which goes to the node that has it: where an answer sends it, else to the
  next one. It notes what comes, and what was settled with an answer.
- The session's client acknowledges to the end, and leaves without a word now and then. Its own
  memory of QoS 2 is the set of packet ids that it has received and that were not released.
- The queue's consumer settles by `tx`, whose answer says that it is so. It rejects some messages;
  at the end their letters are read.
- The publisher of QoS 2 sends one message at a time, again if it must, until it is complete.
- When nobody sends any more, those who take go on until they have what they are owed, for a while.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import zlib

from onelog.kernel import topic_hash
from onelog.protocols.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.conformance import mqtt_raw
from tests.conformance.amqp_raw import Message, RawChannel, Tx
from tests.support.cluster_lines import Line, Result
from tests.support.cluster_publishers import (
    AWAY_S,
    BROKEN,
    EVERY_S,
    REFUSES,
    ElsewhereError,
    Impatient,
    mqtt_at,
    node_at,
)
from tests.support.cluster_taken import DEAD, EXACTLY
from tests.support.cluster_workers import Scene

SESSION, QUEUE, EXACT = "session", "queue", "exactly"
KEPT_S = 3600
STAY_S = 2.5
"""How long the session's client stays connected."""
LAST_S = 40.0
"""How long those who take wait for what they are owed; the checker says what is not there."""
AT_ONCE = 50
BATCH_S = 0.1
REJECTED_EVERY = 10


class LostSessionError(Exception):
    """A node does not know a session that another one made."""


class _Client:
    """A client that goes from node to node."""

    name = protocol = ""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        scene.expect(self.name)
        self.lives = 0
        self._end = 0.0

    @property
    def who(self) -> str:
        """This connection."""
        return f"{self.name}.{self.lives}"

    def run(self) -> None:
        """Until all is done."""
        sent_to: int | None = None
        for node in itertools.cycle(self.scene.cluster.nodes):
            if self.is_done():
                return
            port = sent_to or node.ports.get(self.protocol)
            sent_to = None
            if port is not None:
                self.lives += 1
                try:
                    self.serve(port)
                except ElsewhereError as error:
                    sent_to = error.port
                except BROKEN:
                    pass
            time.sleep(AWAY_S)

    def is_done(self) -> bool:
        """Whether it may end."""
        raise NotImplementedError

    def serve(self, port: int) -> None:
        """Be connected for a while."""
        raise NotImplementedError

    def served_at(self, port: int) -> None:
        """The node of a port takes it."""
        self.scene.served_by[self.name] = node_at(self.scene, self.protocol, port)

    def has_waited(self) -> bool:
        """Whether it waited long enough since nobody sends any more."""
        self._end = self._end or time.monotonic() + LAST_S
        return time.monotonic() > self._end


# -- MQTT


def _kept(port: int, name: str) -> contextlib.AbstractContextManager[mqtt_raw.Raw]:
    return mqtt_at(port, name, clean=False, session_expiry_s=KEPT_S)


class _Session(_Client):
    name, protocol = SESSION, "mqtt"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._begun: Line | None = None
        self._taken: set[str] = set()
        self._owed: set[str] | None = None
        self._unreleased: set[int] = set()

    def is_done(self) -> bool:
        if self._begun is None or not self.scene.quiet.is_set():
            return False
        if self._owed is None:
            self._owed = self.scene.owed(self._begun)
        return self._owed <= self._taken or self.has_waited()

    def serve(self, port: int) -> None:
        with _kept(port, SESSION) as raw:
            if self._begun is None:
                self._begin(raw)
            elif not raw.connack.session_present:
                raise LostSessionError(self.who)
            self.served_at(port)
            end = time.monotonic() + STAY_S
            while time.monotonic() < end and not self.is_done():
                self._take(raw)

    def _begin(self, raw: mqtt_raw.Raw) -> None:
        line = self.scene.line("begun", self.who, group=SESSION, qos=1)
        assert raw.subscribe(self.scene.topic, EXACTLY) == EXACTLY
        self.scene.note(line)
        self._begun = line

    def _take(self, raw: mqtt_raw.Raw) -> None:
        packet = raw.next_packet()
        if isinstance(packet, Pubrel):
            self._unreleased.discard(packet.packet_id)
            raw.send(Pubcomp(packet.packet_id))
        if not isinstance(packet, Publish):
            return
        if packet.packet_id not in self._unreleased or packet.qos != EXACTLY:
            value = packet.payload.decode()
            line = self.scene.line("taken", self.who, group=SESSION, value=value, qos=packet.qos)
            self.scene.note(line)
            self.scene.answered(SESSION, line.start)
            self._taken.add(value)
        if packet.qos == EXACTLY:
            self._unreleased.add(packet.packet_id)
            raw.send(Pubrec(packet.packet_id))
        elif packet.qos:
            raw.send(Puback(packet.packet_id))


def subscribe(scene: Scene) -> None:
    """A kept session of QoS 2."""
    _Session(scene).run()


class _Exact(_Client):
    name, protocol = EXACT, "mqtt"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._values = itertools.count()
        self._is_known = False
        self._open: Line | None = None
        self._packet_id = 0
        self._is_received = False

    def is_done(self) -> bool:
        stops = self.scene.stopping.is_set()
        if stops and self._open is not None and self.has_waited():
            self.scene.note(self._open, "unknown")
            self._open = None
        return stops and self._open is None

    def serve(self, port: int) -> None:
        with _kept(port, EXACT) as raw:
            if self._is_known and not raw.connack.session_present:
                raise LostSessionError(self.who)
            self._is_known = True
            self.served_at(port)
            if self._open is not None:
                self._complete(raw, is_again=True)
            while not self.scene.stopping.wait(EVERY_S):
                self._open = self._next()
                self._is_received = False
                self._complete(raw, is_again=False)

    def _next(self) -> Line:
        scene = self.scene
        self._packet_id = self._packet_id % 100 + 1
        return scene.line(
            "publish", EXACT, partition=topic_hash(scene.topic.encode()) % scene.partitions,
            value=f"{EXACT}-{next(self._values)}", once=True, qos=EXACTLY,
        )  # fmt: skip

    def _complete(self, raw: mqtt_raw.Raw, *, is_again: bool) -> None:
        line, number = self._open, self._packet_id
        assert line is not None
        if not self._is_received:
            payload = line.value.encode()
            topic = self.scene.topic
            raw.send(
                Publish(topic=topic, payload=payload, qos=EXACTLY, packet_id=number, dup=is_again)
            )
            answer = raw.get(Pubrec)
            if answer.reason >= REFUSES:
                self._end_with("unknown" if is_again else "refused")
                return
            self._is_received = True
        raw.send(Pubrel(number))
        raw.get(Pubcomp)
        self._end_with("ok")

    def _end_with(self, result: Result) -> None:
        assert self._open is not None
        self.scene.note(self._open, result)
        if result == "ok":
            self.scene.answered(EXACT, self._open.start)
        self._open = None


def publish_exactly(scene: Scene) -> None:
    """QoS 2 of a kept session."""
    _Exact(scene).run()


# -- AMQP


class _Queue(_Client):
    name, protocol = QUEUE, "amqp"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._begun: Line | None = None
        self._settled: set[str] = set()
        self._rejected: set[str] = set()
        self._letters: set[str] = set()
        self._owed: set[str] | None = None

    def is_done(self) -> bool:
        if not self._has_all():
            return False
        return self._rejected <= self._letters or self.has_waited()

    def _has_all(self) -> bool:
        if self._begun is None or not self.scene.quiet.is_set():
            return False
        if self._owed is None:
            self._owed = self.scene.owed(self._begun)
        return self._owed <= self._settled or self.has_waited()

    def serve(self, port: int) -> None:
        with Impatient(port) as raw:
            channel = raw.open().channel()
            self.served_at(port)
            self._begin(channel)
            while not self._has_all():
                self._settle(channel, self._take(channel))
            while (letter := channel.get(DEAD)) is not None:
                self._came(DEAD, letter)
                self._letters.add(letter.text)

    def _begin(self, channel: RawChannel) -> None:
        channel.kept_queue(DEAD)
        channel.kept_queue(QUEUE, dead_letter_exchange="", dead_letter_routing_key=DEAD)
        if self._begun is None:
            line = self.scene.line("begun", self.who, group=QUEUE)
            channel.bind(QUEUE, "amq.topic", self.scene.topic)
            self.scene.note(line)
            self._begun = line
        channel.qos(2 * AT_ONCE)
        channel.ask(Tx.Select(), Tx.SelectOk)
        channel.consume(QUEUE)
        self._waiting: list[Message] = []

    def _take(self, channel: RawChannel) -> list[Message]:
        """Some messages; none if nothing comes for a moment."""
        found, self._waiting = self._waiting, []
        end = time.monotonic() + BATCH_S
        while len(found) < AT_ONCE and (wait_s := end - time.monotonic()) > 0:
            if channel.raw.has_come(wait_s):
                found.append(self._message(channel.raw.read_method(channel.number)))
        return found

    def _message(self, found: object) -> Message:
        assert isinstance(found, Message), found  # else the node wants to be left
        self._came(QUEUE, found)
        return found

    def _came(self, queue: str, found: Message) -> None:
        line = self.scene.line("taken", self.who, group=queue, value=found.text)
        self.scene.note(line)
        self.scene.answered(QUEUE, line.start)

    def _settle(self, channel: RawChannel, messages: list[Message]) -> None:
        if not messages:
            return
        lines = []
        for found in messages:
            keeps = zlib.crc32(found.body) % REJECTED_EVERY > 0
            lines.append(
                self.scene.line("settled", QUEUE, group=QUEUE, value=found.text, commit=keeps)
            )
            if keeps:
                channel.ack(found.tag)
            else:
                channel.reject(found.tag)
        result: Result = "unknown"
        try:
            channel.send(Tx.Commit())
            while not isinstance(answer := channel.raw.read_method(channel.number), Tx.CommitOk):
                self._waiting.append(self._message(answer))
            result = "ok"
        finally:
            for line in lines:
                self.scene.note(line, result)
        self._settled |= {line.value for line in lines}
        self._rejected |= {line.value for line in lines if not line.commit}


def consume(scene: Scene) -> None:
    """The only consumer of a durable queue."""
    _Queue(scene).run()
