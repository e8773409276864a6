"""Clients that write and read a topic of a cluster while something happens to it, and the
check of what they were told (`tests/support/cluster_history.py`)."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

from tests.support.cluster_history import ClusterHistory, Recorder, load
from tests.support.cluster_lines import Line
from tests.support.cluster_publishers import publish_amqp, publish_mqtt
from tests.support.cluster_takers import consume, publish_exactly, subscribe
from tests.support.cluster_transactions import Transactor
from tests.support.cluster_workers import Scene, Worker, follow, look, read, write
from tests.support.held_records import records_of
from tests.support.three_nodes import ThreeNodes

START_S = 30.0
PROGRESS_S = 10.0
"""C12: how long after a fault every call that is tried again succeeds."""
SYNC_S = 60.0
"""A copy that was left out several times in a row waits longer each time before it counts."""
LATE_S = 30.0
"""What a test waits for that. The checker says who was late."""


def transact(scene: Scene) -> None:
    """Transactions with records and positions."""
    Transactor(scene).run()


WRITERS: tuple[Worker, ...] = (partial(write, once=False), partial(write, once=True), read)
GROUPS: tuple[Worker, ...] = (partial(follow, name="m1"), partial(follow, name="m2"), look)
KAFKA = (*WRITERS, *GROUPS, transact)
EVERYBODY = (*KAFKA, publish_mqtt, publish_amqp)
"""Also publishers whose messages are forwarded."""
TAKERS: tuple[Worker, ...] = (subscribe, consume)
"""They go on until they have all that was sent."""
KEPT = (
    partial(write, once=False), transact, publish_mqtt, publish_amqp, publish_exactly, *TAKERS
)  # fmt: skip
"""A kept session and a queue with acks, and who sends to them."""
NEEDED: dict[Worker, tuple[str, ...]] = {
    read: ("read ok",),
    transact: ("end ok",),
    look: ("commit ok", "position ok"),
    subscribe: ("begun ok", "taken ok"),
    consume: ("begun ok", "taken ok", "settled ok"),
}
"""What a history lacks that proves nothing."""


class ClusterLoad:
    """All workers for the length of a block."""

    def __init__(
        self,
        cluster: ThreeNodes,
        folder: Path,
        topic: str,
        partitions: int,
        works: tuple[Worker, ...] = KAFKA,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self._file = folder / "history.jsonl"
        self._recorder = Recorder(self._file)
        self._scene = Scene(cluster, topic, partitions, self._recorder)
        self._works = works
        self._threads = {
            work: threading.Thread(target=self._guard, args=(work,), daemon=True) for work in works
        }
        self._failed: list[BaseException] = []

    def __enter__(self) -> ClusterLoad:
        for thread in self._threads.values():
            thread.start()
        try:
            self.wait_progress(START_S)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        if self._failed:
            raise self._failed[0]

    def _stop(self) -> None:
        self._scene.stopping.set()
        for work, thread in self._threads.items():
            if work not in TAKERS:
                thread.join()
        self._scene.quiet.set()
        for thread in self._threads.values():
            thread.join()
        self._recorder.close()

    def _guard(self, work: Worker) -> None:
        try:
            work(self._scene)
        except BaseException as error:  # noqa: BLE001 - the test's own thread raises it
            self._failed.append(error)

    def wait_progress(self, seconds: float = PROGRESS_S, only: tuple[str, ...] = ("",)) -> None:
        """Until each worker, or each whose name begins so, has an answer to something that it
        sends from now on (C12)."""
        begin = end = time.monotonic()
        end += seconds
        while waiting := [who for who in self._scene.waiting(begin) if who.startswith(only)]:
            assert not self._failed, self._failed
            assert time.monotonic() < end, f"no answer after {seconds:.0f} s: {waiting}"
            time.sleep(0.05)

    def server_of(self, who: str) -> int:
        """The node that serves a worker which stays with one."""
        return self._scene.served_by[who]

    def healed(self) -> None:
        """The last fault until now is over: everybody has answers soon, as the checker checks."""
        self._recorder.healed()
        self.wait_progress(LATE_S)

    # -- the end

    def prove(self, copies: int = 3) -> ClusterHistory:
        """Read everything on all nodes, which are stopped for that, and check the history."""
        cluster = self._cluster
        cluster.until(
            lambda: cluster.is_synced(self._topic, copies), SYNC_S, "not all copies are in sync"
        )
        nodes = [node for node in cluster.nodes if node.is_up]
        assert len(nodes) == copies
        cluster.stop_all()
        recorder = Recorder(self._file)
        for node in nodes:
            data = node.folder / "data"
            (place,) = (data / "segment").glob(f"{self._topic}-*")
            for held in records_of(data, place.name):
                for rows, committed in ((held.rows, False), (held.committed, True)):
                    now = time.monotonic()
                    recorder.note(
                        Line(
                            call="final", node=node.number, start=now, end=now,
                            stream=self._topic, partition=held.partition,
                            start_offset=held.start_offset, rows=rows, committed=committed,
                        )
                    )  # fmt: skip
        recorder.close()
        history = ClusterHistory(load([self._file]))
        history.prove()
        counts = history.counts()
        assert counts["final ok"] == 2 * copies * self._partitions
        for call in ("publish ok", *(c for work in self._works for c in NEEDED.get(work, ()))):
            assert counts[call] > 0, (call, counts)
        return history
