"""Do the verbs of `onelog cluster` do what they say on three real nodes, under load?

One cluster, one load: a node is drained, taken back and given its partitions again, a version is
finalised, another node is emptied, stopped and removed. Clients that try again see no error, and
the history of all calls is checked (`tests/support/cluster_history.py`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster_load import KAFKA, ClusterLoad
from tests.support.etcd import needs_etcd
from tests.support.forks import run_onelog
from tests.support.three_nodes import ThreeNodes

pytestmark = [needs_etcd, pytest.mark.fault_long]

PARTITIONS = 3
DRAINED, REMOVED = 2, 3
WAIT_S = 60.0
RETRYING = ("idempotent", "transactions")
"""Clients whose library tries again."""


class Operator:
    """Somebody who types commands, answered by one node."""

    def __init__(self, cluster: ThreeNodes) -> None:
        self._cluster = cluster

    def types(self, *words: str, code: int = 0) -> str:
        """A command; what it prints."""
        url = f"http://127.0.0.1:{self._cluster.node(1).ports['admin']}"
        done = run_onelog("cluster", *words, "--url", url, timeout_s=2 * WAIT_S)
        told = (done.stdout + done.stderr).decode()
        assert done.returncode == code, (words, done.returncode, told)
        return told

    def node(self, number: int) -> dict[str, Any]:
        """What `status` says of a node."""
        rows = json.loads(self.types("status", "--json"))["nodes"]
        found = {row["id"]: row for row in rows}
        return found.get(number, {})

    def until(self, number: int, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Wait for something that `status` shows of a node."""
        self._cluster.until(lambda: holds(self.node(number)), WAIT_S, f"node {number} is not so")

    def healthy(self, nodes: int) -> None:
        told = self.types("wait-healthy", "--timeout", str(WAIT_S))
        assert f"healthy: {nodes} nodes" in told


def test_a_cluster_is_operated_under_load_and_no_client_that_tries_again_sees_an_error(
    tmp_path: Path,
) -> None:
    with ThreeNodes(tmp_path / "nodes", "internal.partitions=2") as cluster:
        cluster.create("t", PARTITIONS)
        operator = Operator(cluster)
        operator.healthy(3)
        operator.types("reassign", "t/0", "--to", f"{DRAINED},1,3")
        operator.types("elect", "--partition", "t/0")
        with ClusterLoad(cluster, tmp_path, "t", PARTITIONS, KAFKA) as load:
            operator.until(DRAINED, lambda row: row["leads"] > 0)
            assert f"node {DRAINED} is marked" in operator.types("drain", str(DRAINED))
            operator.until(DRAINED, lambda row: row["draining"] and row["leads"] == 0)
            load.wait_progress()
            told = operator.types("status").splitlines()
            assert f"node {DRAINED} is draining" in told[0], told
            assert operator.node(DRAINED)["replicas"] > 0, "its copies stay"

            operator.types("drain", str(DRAINED), "--undo")
            assert not operator.node(DRAINED)["draining"]
            changed = re.search(r"(\d+) partitions have another", operator.types("elect"))
            assert changed is not None
            assert int(changed[1]) > 0
            operator.until(DRAINED, lambda row: row["leads"] > 0)
            load.wait_progress()

            version = json.loads(operator.types("status", "--json"))["version"]
            assert f"version {version} is finalised" in operator.types("finalize")
            assert "is not spoken" in operator.types("finalize", "--version", "99", code=1)
            operator.healthy(3)

            assert "onelog cluster empty" in operator.types("remove", str(REMOVED), code=1)
            operator.types("empty", str(REMOVED))
            operator.until(REMOVED, lambda row: row["replicas"] == row["leads"] == 0)
            cluster.node(REMOVED).terminate()
            assert f"node {REMOVED} is no longer" in operator.types("remove", str(REMOVED))
            operator.until(REMOVED, lambda row: not row)
            operator.healthy(2)
            load.wait_progress()
        history = load.prove(copies=2)
    told = Counter(
        (line.who.partition(".")[0].partition("-")[0], line.result)
        for line in history.lines
        if line.call in ("publish", "end") and line.who.startswith(RETRYING)
    )
    assert {result for _who, result in told} == {"ok"}, told
    assert {who for who, _result in told} == set(RETRYING)
