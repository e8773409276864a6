"""Three nodes with a topic and a load, for the suites that share them: each says its `WORKS`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_load import ClusterLoad
from tests.support.three_nodes import ThreeNodes

TOPIC = "t"
PARTITIONS = 2


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreeNodes]:
    """Nodes each of which has shards of MQTT and AMQP, unless a suite has its own."""
    with ThreeNodes(tmp_path / "nodes", "internal.partitions=4") as nodes:
        nodes.create(TOPIC, PARTITIONS)
        yield nodes


@pytest.fixture
def load(request: pytest.FixtureRequest, cluster: ThreeNodes, tmp_path: Path) -> ClusterLoad:
    """The workers that the suite names."""
    return ClusterLoad(cluster, tmp_path, TOPIC, PARTITIONS, request.module.WORKS)
