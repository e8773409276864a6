"""Where clients find the nodes of `three_nodes.py`, also while none of them serves."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import three_nodes
from tests.support.three_nodes import NodeProcess, ThreeNodes


class Ended:
    """A process that has ended without a word."""

    def __init__(self, *_given: object, **_more: object) -> None:
        self.stdout = io.BytesIO()

    def poll(self) -> int:
        return 0

    def kill(self) -> None: ...

    def wait(self, _timeout: float) -> int:
        return 0

    def send_signal(self, _number: int) -> None: ...


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreeNodes]:
    monkeypatch.setattr(three_nodes, "Fork", Ended)
    made = ThreeNodes(tmp_path)
    made.nodes.append(NodeProcess(made, 1, 0, ()))
    with made.proxy:
        yield made


def test_a_node_that_starts_at_its_place_is_found_before_it_serves(cluster: ThreeNodes) -> None:
    (node,) = cluster.nodes
    node.start("listeners.kafka.port=4711", "listeners.mqtt.port=0", "cluster.lag_ms=1000")
    assert node.ports == {"kafka": 4711}
    node.kill()
    node.start(node.same_place)
    assert cluster.bootstrap == "127.0.0.1:4711"


def test_a_client_without_any_place_is_not_made(cluster: ThreeNodes) -> None:
    cluster.nodes[0].start()
    with pytest.raises(AssertionError, match="no node has a place yet"):
        _ = cluster.bootstrap
