"""Do three real nodes give back what no queue needs any more, and lose nothing that one needs when
the node is killed that owns the queue and leads its log?"""

from __future__ import annotations

import contextlib
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.support.busy_nodes import onelog_often
from tests.support.etcd import needs_etcd
from tests.support.three_nodes import NodeProcess, ThreeNodes

pytestmark = [needs_etcd, pytest.mark.fault]

MESSAGES, KEPT_EVERY = 300, 50
SEGMENT_BYTES = 64 * 1024
BODY = b"x" * 2048


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ThreeNodes]:
    chosen = (
        f"defaults.stream.segment_bytes={SEGMENT_BYTES}",
        'defaults.stream.durability="os"',
        "internal.partitions=4",
    )
    with ThreeNodes(tmp_path / "nodes", *chosen, runs=onelog_often) as made:
        yield made


def connected(nodes: ThreeNodes) -> tuple[NodeProcess, Any]:
    """The node that serves AMQP, and a connection to it."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for node in nodes.nodes:
            if node.is_up:
                with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                    where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp"])
                    return node, pika.BlockingConnection(where)
        time.sleep(0.2)
    raise AssertionError("no node serves AMQP")


def thinned_bytes(node: NodeProcess) -> int:
    url = f"http://127.0.0.1:{node.ports['admin']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    rows = [row for row in text.splitlines() if row.startswith("onelog_bytes_thinned_total")]
    return int(float(rows[0].split()[-1]))


def test_what_one_queue_still_needs_outlives_the_node_that_owned_it(nodes: ThreeNodes) -> None:
    """C1, C9."""
    owner, connection = connected(nodes)
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    for number in range(MESSAGES):
        channel.basic_publish("", "q", b"%d " % number + BODY)
    kept = [number for number in range(MESSAGES) if number % KEPT_EVERY == 7]
    for taken, (method, _properties, body) in enumerate(channel.consume("q"), 1):
        if int(body.split()[0]) not in kept:
            channel.basic_ack(method.delivery_tag)
        if taken == MESSAGES:
            break
    connection.close()
    at_least = MESSAGES * len(BODY) // 2
    for node in nodes.nodes:
        nodes.until(
            lambda node=node: thinned_bytes(node) > at_least,
            60,
            f"node {node.number} gave nothing back",
        )
    owner.kill()
    heir, connection = connected(nodes)
    assert heir is not owner
    channel = connection.channel()
    found = []
    while (got := channel.basic_get("q", auto_ack=True))[0] is not None:
        found.append(int(got[2].split()[0]))
    assert set(kept) <= set(found), "what was acknowledged may come again, the others must"
    connection.close()
