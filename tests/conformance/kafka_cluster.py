"""Three nodes as the broker of the Kafka scenarios: clients begin at any of them, leaders move."""

from __future__ import annotations

import contextlib
import json
import os
import random
from pathlib import Path

from tests.conformance.mqtt_brokers import GROUPS_AT_ONCE
from tests.support.leader_mover import EVERY_S, LeaderMover
from tests.support.three_nodes import ThreeNodes

SEED = int(os.environ.get("KAFKA_CLUSTER_SEED", "1"))
"""Which nodes clients begin at."""
MOVE_S = float(os.environ.get("KAFKA_CLUSTER_MOVE_S", EVERY_S))
"""How often leaders move."""
FACTOR = int(os.environ.get("KAFKA_CLUSTER_FACTOR", "3"))
"""Copies of each partition; with fewer than three, some nodes have none."""
WORST = ("error", "critical")
"""Levels of what no node may log while leaders move."""
EXPECTED = ("nodes-wanted", "etcd-away", "node-registration")
"""Troubles of a cluster's first seconds, and of a machine on which etcd has to wait."""


class KafkaCluster:
    """The cluster, for the fixtures of brokers: each client that asks for a port gets a node's."""

    name = "cluster"

    def __init__(self, folder: Path, *chosen: str, every_s: float = MOVE_S) -> None:
        """`every_s` 0: leaders stay."""
        copies = (f"cluster.factor={FACTOR}", f"cluster.min_insync={max(1, FACTOR - 1)}")
        self.nodes = ThreeNodes(folder, GROUPS_AT_ONCE, *copies, *chosen)
        self._every_s = every_s
        self._random = random.Random(SEED)
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> KafkaCluster:
        self._opened.enter_context(self.nodes)
        try:
            if self._every_s:
                self._opened.enter_context(LeaderMover(self.nodes, self._every_s))
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(self, *failed: object) -> None:
        self._opened.__exit__(*failed)  # type: ignore[arg-type]
        errors = self.errors()
        assert not errors, "\n".join(errors)

    @property
    def port(self) -> int:
        """Where the next client begins."""
        return self._random.choice(self.nodes.nodes).ports["kafka"]

    def errors(self) -> list[str]:
        """What the nodes logged as errors."""
        found = []
        for node in self.nodes.nodes:
            told = (node.folder / "errors.log").read_text(errors="replace")
            rows = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
            found += [
                f"{node.number}: {row}"
                for row in rows
                if row["level"] in WORST and row.get("kind") not in EXPECTED
            ]
            found += [line for line in told.splitlines() if not line.startswith("{")]
        return found
