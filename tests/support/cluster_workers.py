"""Kafka clients that use a topic of a cluster until they are stopped, and note every call.

Rules:
- Each worker is a function of a `Scene`, run in a thread of its own. Its calls name it (`who`).
- A plain producer sends again by itself only after NOT_LEADER, whatever its settings say, and that
  may come for a record that was appended: its values may occur twice. It waits before it does
  (`AGAIN_S`), so what was answered sooner was sent once. Those of an idempotent one occur once. An
  error that leaves open what happened is unknown.
- Members of a group commit what they have read, and wait for the answer. Positions are looked at
  from outside all the time.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.support.cluster_history import ClusterHistory, Recorder
from tests.support.cluster_lines import Line, Result
from tests.support.three_nodes import ThreeNodes

EVERY_S = 0.01
LOOK_EVERY_S = 0.3
COMMIT_EVERY_S = 0.2
ANSWER_S = 8.0
BACKOFF_MS = 100
"""librdkafka waits so long before it sends again, or up to a fifth less."""
AGAIN_S = 0.0007 * BACKOFF_MS
"""No attempt follows the one before sooner."""
REFUSED = frozenset({KafkaError.NOT_ENOUGH_REPLICAS})
GROUP, OUTSIDE = "group", "outside"
"""The group of members, and the one whose positions transactions commit."""


class Scene:
    """What all workers share."""

    def __init__(
        self, cluster: ThreeNodes, topic: str, partitions: int, recorder: Recorder
    ) -> None:
        self.cluster, self.topic, self.partitions = cluster, topic, partitions
        self.recorder = recorder
        self.stopping = threading.Event()
        self.quiet = threading.Event()
        """Nobody sends any more."""
        self.served_by: dict[str, int] = {}
        """Which node has a worker that stays with one."""
        self._lines: list[Line] = []
        self._last_ok: dict[str, float] = {}

    def expect(self, *who: str) -> None:
        """Progress is there when these have an answer."""
        for name in who:
            self._last_ok.setdefault(name, 0.0)

    def answered(self, who: str, start: float) -> None:
        """A call that began at `start` has succeeded."""
        self._last_ok[who] = max(self._last_ok[who], start)

    def waiting(self, begin: float) -> list[str]:
        """Who has no answer yet to anything that began after a time."""
        return [who for who, last in list(self._last_ok.items()) if last <= begin]

    def options(self, **more: Any) -> dict[str, Any]:
        """The settings of every client."""
        return {
            "bootstrap.servers": self.cluster.bootstrap,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1000,
            "log_level": 0,
            **more,
        }

    def parts(self, offset: int = 0) -> list[TopicPartition]:
        """Every partition, at an offset."""
        return [TopicPartition(self.topic, n, offset) for n in range(self.partitions)]

    def line(self, call: Any, who: str, **more: Any) -> Line:
        """A call that begins now."""
        return Line(call=call, who=who, start=time.monotonic(), stream=self.topic, **more)

    def note(self, line: Line, result: Result = "ok") -> None:
        """A call ends now."""
        line.end, line.result = time.monotonic(), result
        self._lines.append(line)
        self.recorder.note(line)

    def owed(self, begun: Line) -> set[str]:
        """What a session or queue has to give, once nobody sends any more."""
        return ClusterHistory(self._lines).taken.owed(begun)


Worker = Callable[[Scene], None]

# -- without transactions


def write(scene: Scene, *, once: bool, answer_s: float = ANSWER_S) -> None:
    """Records of one producer, one after the other.

    `answer_s`: librdkafka gives up what has no answer then, and sends what was under way behind it
    again as a new producer: an idempotent one needs longer than the fault.
    """
    who = "idempotent" if once else "plain"
    scene.expect(*(f"{who}-{part}" for part in range(scene.partitions)))
    options: dict[str, Any] = {"enable.idempotence": True} if once else {"retries": 0}
    options["retry.backoff.ms"] = BACKOFF_MS
    options |= {"acks": "all", "linger.ms": 0, "delivery.timeout.ms": int(1000 * answer_s)}
    producer = Producer(scene.options(**options))

    def told(line: Line, error: Any, message: Any) -> None:
        if error is None:
            line.offset = message.offset()
            scene.answered(line.who, line.start)
        scene.note(line, outcome(error))

    for number in itertools.count():
        if scene.stopping.wait(EVERY_S):
            break
        part = number % scene.partitions
        value = f"{who}-{number}"
        line = scene.line(
            "publish", f"{who}-{part}", partition=part, value=value, once=once,
            again_s=0.0 if once else AGAIN_S,
        )  # fmt: skip
        producer.produce(scene.topic, value, partition=part, on_delivery=partial(told, line))
        producer.poll(0)
    assert producer.flush(4 * answer_s) == 0


def outcome(error: Any) -> Result:
    """What a sender knows."""
    if error is None:
        return "ok"
    return "refused" if error.code() in REFUSED else "unknown"


def read(scene: Scene) -> None:
    """Everything from the beginning, on one connection."""
    options = {"group.id": "checker", "enable.auto.commit": False, "auto.offset.reset": "error"}
    consumer = Consumer(scene.options(**options))
    consumer.assign(scene.parts())
    with contextlib.closing(consumer):
        while not scene.stopping.is_set():
            _read_one(scene, consumer, lambda: "reader")


def _read_one(scene: Scene, consumer: Consumer, who: Callable[[], str]) -> TopicPartition | None:
    """One poll, in which `who` may change; the position after what was read."""
    line = scene.line("read", "")
    found = consumer.poll(0.2)
    if found is None:
        return None
    if found.error() is not None:
        if found.error().code() == KafkaError._AUTO_OFFSET_RESET:
            raise KafkaException(found.error())  # C5: the end went back
        return None
    line.who = who()
    line.partition, line.offset = found.partition(), found.offset()
    line.value = (found.value() or b"").decode()
    scene.note(line)
    return TopicPartition(scene.topic, found.partition(), found.offset() + 1)


# -- groups


def follow(scene: Scene, name: str) -> None:
    """A member of a group, which commits what it has read."""
    options = {
        "group.id": GROUP,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6000,  # of a member that ends with the test
        "heartbeat.interval.ms": 500,
    }
    consumer = Consumer(scene.options(**options))
    scene.expect(*(f"{GROUP}-{part}" for part in range(scene.partitions)))
    turns = itertools.count(1)
    who = f"{name}.0"

    def assigned(*_: object) -> None:
        nonlocal who
        who = f"{name}.{next(turns)}"  # another one may have read on meanwhile

    consumer.subscribe([scene.topic], on_assign=assigned)
    read_to: dict[int, TopicPartition] = {}
    due = time.monotonic() + COMMIT_EVERY_S
    with contextlib.closing(consumer):
        while not scene.stopping.is_set():
            position = _read_one(scene, consumer, lambda: who)
            if position is not None:
                read_to[position.partition] = position
            if read_to and time.monotonic() > due:
                _commit(scene, consumer, list(read_to.values()))
                read_to.clear()
                due = time.monotonic() + COMMIT_EVERY_S


def _commit(scene: Scene, consumer: Consumer, rows: list[TopicPartition]) -> None:
    lines = [
        scene.line(
            "commit", f"{GROUP}-{row.partition}", group=GROUP, partition=row.partition,
            offset=row.offset,
        )
        for row in rows
    ]  # fmt: skip
    result: Result = "ok"
    try:
        consumer.commit(offsets=rows, asynchronous=False)
    except KafkaException:
        result = "unknown"
    for line in lines:
        scene.note(line, result)
        if result == "ok":
            scene.answered(line.who, line.start)


def look(scene: Scene) -> None:
    """The positions of both groups, from outside."""
    with contextlib.ExitStack() as closing:
        lookers = []
        for group in (GROUP, OUTSIDE):
            options = scene.options(**{"group.id": group, "enable.auto.commit": False})
            lookers.append((group, closing.enter_context(contextlib.closing(Consumer(options)))))
        while not scene.stopping.wait(LOOK_EVERY_S):
            for group, consumer in lookers:
                _look(scene, group, consumer)


def _look(scene: Scene, group: str, consumer: Consumer) -> None:
    start = scene.line("position", "looker")
    with contextlib.suppress(KafkaException):
        for row in consumer.committed(scene.parts(), timeout=ANSWER_S):
            if row.error is None:
                line = scene.line(
                    "position", "looker", group=group, partition=row.partition,
                    offset=max(-1, row.offset),
                )  # fmt: skip
                line.start = start.start
                scene.note(line)
