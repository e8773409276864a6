"""MQTT and AMQP publishers of a cluster, at any node, which note every call in a history.

Rules: each sends one message at a time and waits for its answer: PUBACK, confirm. After a while,
and when a connection ends, it goes on at the next node. An MQTT client goes where it is sent; AMQP
is served by one node at a time: most messages are forwarded. A message without an answer is not
sent again. A PUBACK that refuses says that nothing was written, a nack says nothing. A node that
lost the leader of a partition sends QoS 1 to the next one again before it answers: what was
answered after such a while may be there twice. Both protocols name no partition: the topic's own
one is known from its name.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from onelog.kernel import topic_hash
from tests.conformance import amqp_raw, mqtt_raw
from tests.support.cluster_lines import Line, Result
from tests.support.cluster_workers import Scene

EVERY_S = 0.02
NODE_S = 1.5
"""How long a publisher stays with a node."""
AWAY_S = 0.1
PATIENCE_S = 3.0
"""How long a publisher waits for an answer before it leaves the node."""
REFUSES = 0x80
AGAIN_S = {"mqtt": 0.1, "amqp": 0.0}
"""How long it takes at least until a node sends a message to another leader; 0: it never does."""
BROKEN = (OSError, mqtt_raw.Ended, amqp_raw.Ended, amqp_raw.Refused, AssertionError)
"""What a client sees of a node that was killed, or does not serve it."""

Send = Callable[[str], Result]
QOS = 1
"""With which MQTT's subscribers get what these send: QoS 1, and persistent messages."""


def publish_mqtt(scene: Scene) -> None:
    """QoS 1."""
    _publish(scene, "mqtt", "mqtt", _mqtt)


def publish_amqp(scene: Scene) -> None:
    """With confirms."""
    _publish(scene, "amqp", "amqp", _amqp)


def publish_at(scene: Scene, number: int) -> None:
    """QoS 1 at one node, which is the only one that these clients know."""
    _publish(scene, f"at{number}", "mqtt", _mqtt, number)


class ElsewhereError(Exception):
    """Another node serves this client."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.port = port


def _publish(
    scene: Scene,
    worker: str,
    protocol: str,
    connected: Callable[[int, str, str], contextlib.AbstractContextManager[Send]],
    only: int | None = None,
) -> None:
    """At all nodes, or at one: then a client that is sent elsewhere has a successor."""
    scene.expect(worker)
    part = topic_hash(scene.topic.encode()) % scene.partitions
    values, lives = itertools.count(), itertools.count(1)
    sent_to: int | None = None
    name = ""
    for node in itertools.cycle([n for n in scene.cluster.nodes if only in (None, n.number)]):
        if scene.stopping.wait(AWAY_S):
            return
        port = sent_to or node.ports.get(protocol)
        if port is None:
            continue  # it starts just now
        name = name if sent_to else f"{worker}{next(lives)}"
        sent_to = None
        line = scene.line(
            "publish", f"{worker}.{next(lives)}", partition=part, qos=QOS,
            node=node_at(scene, protocol, port),
        )  # fmt: skip
        try:
            with connected(port, scene.topic, name) as send:
                _send_for_a_while(scene, worker, line, send, values, AGAIN_S[protocol])
        except ElsewhereError as error:
            sent_to = error.port if only is None else None
        except BROKEN:
            pass


def node_at(scene: Scene, protocol: str, port: int) -> int:
    """Which node has a port; -1: none has it now."""
    return next((n.number for n in scene.cluster.nodes if n.ports.get(protocol) == port), -1)


def _send_for_a_while(
    scene: Scene, worker: str, like: Line, send: Send, values: Iterator[int], again_s: float
) -> None:
    end = time.monotonic() + NODE_S
    while time.monotonic() < end and not scene.stopping.wait(EVERY_S):
        value = f"{worker}-{next(values)}"
        line = msgspec.structs.replace(like, start=time.monotonic(), value=value)
        result: Result = "unknown"
        try:
            result = send(value)
            line.again_s = again_s if result == "ok" else 0.0
        finally:
            scene.note(line, result)
        if result == "ok":
            scene.answered(worker, line.start)


@contextlib.contextmanager
def mqtt_at(port: int, name: str, **kept: Any) -> Iterator[mqtt_raw.Raw]:
    """A client that is served. Raises ElsewhereError, mqtt_raw.Ended."""
    with mqtt_raw.Raw(port) as raw:
        raw.socket.settimeout(PATIENCE_S)
        raw.connect(name, **kept)
        if raw.connack.reason:
            reference = raw.connack.properties.server_reference
            if reference is None:
                raise mqtt_raw.Ended("refused")
            raise ElsewhereError(int(reference.rpartition(":")[2]))
        yield raw


@contextlib.contextmanager
def _mqtt(port: int, topic: str, name: str) -> Iterator[Send]:
    with mqtt_at(port, name) as raw:

        def send(value: str) -> Result:
            return "refused" if raw.publish(topic, value.encode()) >= REFUSES else "ok"

        yield send


class Impatient(amqp_raw.Raw):
    """It waits for no answer as long as tests do."""

    def _read_frame(self, wait_s: float) -> tuple[int, Any]:
        return super()._read_frame(min(wait_s, PATIENCE_S))


@contextlib.contextmanager
def _amqp(port: int, topic: str, _name: str) -> Iterator[Send]:
    with Impatient(port) as raw:
        channel = raw.open().channel()
        channel.confirm()

        def send(value: str) -> Result:
            channel.put("amq.topic", topic, value, delivery_mode=2)
            return "ok"

        yield send
