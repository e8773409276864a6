"""The replicas of this node, watched: numbers for the metrics, and troubles that stand.

Rules:
- The replicas are looked at once a second, in slices. A scrape reads what the last look found.
- A partition is reported by its leader, one that is offline by every node that has a replica of it.
- What is only observed here is no replica: it has numbers of its own.
- A trouble stands after some seconds (`CALM_S`): every restart leaves replicas behind for a moment.
  Its words name nodes and no partitions, so that the log has it once, however many there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from onelog.cluster.hosts import ReplicaHost
from onelog.cluster.known import KnownCluster
from onelog.cluster.rows import NOBODY, ReplicaSet
from onelog.cluster.verdict import state_of
from onelog.observe.logging import get_logger
from onelog.observe.metrics import Sample
from onelog.observe.troubles import Troubles
from onelog.storage.engine import PartitionKey

LOOK_S: Final = 1.0
CALM_S: Final = 10.0
SLICE: Final = 500
"""Replicas that are looked at before others have their turn."""
OFFLINE: Final = "partitions-offline"
"""Standing: partitions with a copy here have no leader."""
UNDER: Final = "partitions-under-replicated"
"""Standing: partitions that this node leads lack replicas in sync."""
PLACE: Final = "cluster"

_log = get_logger("cluster")


class ReplicaNumbers(msgspec.Struct, kw_only=True):
    """What one look found."""

    replicas: int = 0
    led: int = 0
    under_replicated: int = 0
    refusing: int = 0
    offline: int = 0
    waiting: int = 0
    """Led partitions with records that not all replicas have yet."""
    lag_max: int = 0
    damages: int = 0
    """Replicas that were damaged, since the start."""


class ReplicaWatch:
    """The watch of one node."""

    def __init__(self, host: ReplicaHost, known: KnownCluster, troubles: Troubles) -> None:
        self._host = host
        self._known = known
        self._troubles = troubles
        self._loop = asyncio.get_running_loop()
        self._rows: dict[PartitionKey, ReplicaSet] = {}
        """As they were at the last change."""
        self._since: dict[tuple[str, PartitionKey], float] = {}
        """Kind of trouble and partition → since when."""
        self._task: asyncio.Task[None] | None = None
        self.numbers = ReplicaNumbers()
        self.shrinks = self.expansions = self.elections = self.recoveries = 0

    def open(self) -> None:
        """Begin to look. Call it before rows change: what they were is compared."""
        self._rows = {key: row for key, (row, _revision) in self._known.all_rows().items()}
        self._task = asyncio.create_task(self._run(), name="cluster-watch")

    async def close(self) -> None:
        """Look no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        for kind in (OFFLINE, UNDER):
            self._troubles.clear(kind, PLACE)

    # -- what happened

    def rows_changed(self, keys: Sequence[PartitionKey]) -> None:
        """Rows changed: count what that means for this node."""
        for key in keys:
            found, before = self._known.row(key), self._rows.pop(key, None)
            if found is None:
                continue
            row = self._rows[key] = found[0]
            if before is not None and row.leader == self._known.node:
                self._count(key, before, row)

    def _count(self, key: PartitionKey, before: ReplicaSet, row: ReplicaSet) -> None:
        self.elections += row.epoch > before.epoch
        self.shrinks += bool(before.isr.keys() - row.isr.keys())
        self.expansions += bool(row.isr.keys() - before.isr.keys())
        if row.recover > before.recover:
            self.recoveries += 1
            _log.warning(
                "a partition began again with what this node has",
                partition=f"{key.stream_id}/{key.partition}",
                epoch=row.epoch,
                isr_before=sorted({*before.isr, *before.elr}),
            )

    # -- what lasts

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look at every replica of this node, once."""
        numbers, now = ReplicaNumbers(damages=self._host.damages), self._loop.time()
        since: dict[tuple[str, PartitionKey], float] = {}
        missing: set[int] = set()
        for number, key in enumerate(list(self._host.drivers)):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            found = self._known.row(key)
            kind = None if found is None else self._look_at(key, found[0], numbers)
            if found is None or kind is None:
                continue
            began = since[kind, key] = self._since.get((kind, key), now)
            if kind == UNDER and now - began >= CALM_S:
                missing |= set(found[0].replicas) - found[0].isr.keys() - set(found[0].adding)
        self.numbers, self._since = numbers, since
        is_offline = any(
            kind == OFFLINE and now - began >= CALM_S for (kind, _key), began in since.items()
        )
        self._tell(
            OFFLINE,
            "partitions with a copy on this node have no leader: start the nodes that have the"
            " other copies. `onelog cluster partitions --troubled` names them"
            if is_offline
            else "",
        )
        nodes = ", ".join(map(str, sorted(missing)))
        self._tell(
            UNDER,
            f"partitions that this node leads are not in sync on {nodes}: start that node, or look"
            " at its log. `onelog cluster partitions --troubled` names them"
            if missing
            else "",
        )

    def _look_at(self, key: PartitionKey, row: ReplicaSet, numbers: ReplicaNumbers) -> str | None:
        """Count a replica. Returns the kind of its trouble, if it has one of this node."""
        driver = self._host.drivers.get(key)
        if driver is None or driver.replica.follower.observer:
            return None
        numbers.replicas += 1
        if row.leader == NOBODY:
            numbers.offline += 1
            return OFFLINE
        if row.leader != self._known.node:
            return None
        numbers.led += 1
        leader = driver.replica.leader
        if leader is not None:
            numbers.waiting += leader.high_watermark < driver.port.end
            lags = [leader.lag_of(node) for node in row.replicas if node != row.leader]
            numbers.lag_max = max(numbers.lag_max, *lags, 0)
        state = state_of(row)
        numbers.refusing += state == "refusing"
        is_under = state in ("refusing", "under-replicated")
        numbers.under_replicated += is_under
        return UNDER if is_under else None

    def _tell(self, kind: str, text: str) -> None:
        if text:
            self._troubles.stand(kind, PLACE, text, blocks=False)
        else:
            self._troubles.clear(kind, PLACE)

    def samples(self) -> Iterator[Sample]:
        """Numbers for the metrics."""
        found = self.numbers
        for name, about, value in (
            ("partitions_led", "Partitions that this node leads.", found.led),
            ("replicas", "Partitions of which this node has a copy.", found.replicas),
            (
                "under_replicated",
                "Partitions led here of which a replica is not in sync.",
                found.under_replicated,
            ),
            (
                "refusing",
                "Partitions led here with fewer replicas in sync than a record needs.",
                found.refusing,
            ),
            ("offline", "Partitions with a copy here that nobody leads.", found.offline),
            (
                "waiting",
                "Partitions led here with records that a replica in sync lacks at this moment.",
                found.waiting,
            ),
            (
                "replication_lag",
                "Offsets that the slowest replica of a partition led here lacks.",
                found.lag_max,
            ),
            (
                "observers",
                "Partitions of other nodes that are copied here for readers.",
                len(self._host.observed.keys),
            ),
            (
                "observer_bytes",
                "Bytes of the copies of other nodes' partitions.",
                self._host.observed.size_bytes,
            ),
        ):
            yield Sample(f"onelog_cluster_{name}", about, "gauge", value)
        for name, about, value in (
            ("isr_shrinks", "Changes by which replicas left the in-sync set.", self.shrinks),
            ("isr_expansions", "Changes by which replicas came in sync.", self.expansions),
            ("elections", "Leaderships that this node took over.", self.elections),
            (
                "recoveries",
                "Leaderships that began with what this node had, perhaps with a loss.",
                self.recoveries,
            ),
            (
                "damages",
                "Replicas here that were damaged, and whose files were set aside for a new copy.",
                found.damages,
            ),
        ):
            yield Sample(f"onelog_cluster_{name}_total", about, "counter", value)
