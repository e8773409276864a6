"""Leaders that move all the time: what clients of a cluster have to bear while operators work.

Rules:
- In each round every partition goes one node on: where each node has a copy, the next one becomes
  preferred and is elected; a partition with fewer copies is moved to other nodes. Partitions of
  internal streams, and with them the coordinators, go every second round: a coordinator that takes
  a group over gives each member a whole session, and none of them could end in less.
- Rounds begin a fixed time apart, in a thread of its own. What an admin call refuses is kept, and
  fails the test when the mover ends, as do leaders that did not move. A partition that is gone, or
  is still on its way, is left out.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from tests.support.three_nodes import ThreeNodes

EVERY_S = 5.0
CALL_S = 20.0
CALLS = 4
"""At once."""
PAGE = 1000
INTERNAL = "~"
GONE = 404


class LeaderMover:
    """Moves the leaders of all partitions for as long as the block lasts."""

    def __init__(self, cluster: ThreeNodes, every_s: float = EVERY_S) -> None:
        self._cluster, self._every_s = cluster, every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._refused: list[str] = []
        self.rounds = 0

    def __enter__(self) -> LeaderMover:
        self._before = self.elections()
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stopping.set()
        self._thread.join(CALL_S * 3)
        if kind is None:
            assert not self._refused, self._refused
            moved = self.elections() - self._before
            assert moved >= self.rounds, f"{moved} leaderships moved in {self.rounds} rounds"

    def elections(self) -> int:
        """How many leaderships the nodes have taken over."""
        return sum(row["elections"] or 0 for row in self._cluster.seen(1)["nodes"])

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                self.move()
            except OSError as error:  # it is shown at the end
                self._refused.append(repr(error))
            self.rounds += 1

    def move(self) -> None:
        """One round."""
        rows = self._ask(f"partitions?limit={PAGE}")["items"]
        rows = [row for row in rows if self.rounds % 2 or not row["stream"].startswith(INTERNAL)]
        with ThreadPoolExecutor(CALLS) as pool:
            list(pool.map(self._reassign, rows))
        self._ask("elect", {})

    def _reassign(self, row: dict[str, Any]) -> None:
        if row["adding"] or row["removing"] or self._stopping.is_set():
            return
        target = [node % len(self._cluster.nodes) + 1 for node in row["replicas"]]
        try:
            self._ask(f"partitions/{quote(row['name'], safe='')}/reassign", {"to": target})
        except urllib.error.HTTPError as error:
            if error.code != GONE:
                self._refused.append(f"{row['name']}: {error} {error.read().decode()}")

    def _ask(self, what: str, body: object = None) -> Any:
        port = self._cluster.node(1).ports["admin"]
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/v1/cluster/{what}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=CALL_S) as answer:
            told = answer.read()
        return json.loads(told) if told else None
