"""Appends to the broker's own streams at the node that leads them.

Rules:
- Only streams that belong to the broker are written in this way: what clients publish is checked
  and counted where they are connected.
- The answer comes when the batch is visible. A call that ends in another way may have been carried
  out: who repeats it may write twice.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from onelog.base.errors import NotLeader, Unavailable
from onelog.base.ids import Offset, PartitionId
from onelog.cluster.known import KnownCluster
from onelog.cluster.needs_of_nodes import Call
from onelog.cluster.rows import NOBODY
from onelog.kernel import scan_batches
from onelog.log.catalog import Catalog
from onelog.log.stream import Stream
from onelog.storage.engine import PartitionKey

METHOD: Final = "append"
APPEND_S: Final = 10.0


class InnerAppend(msgspec.Struct, frozen=True, array_like=True):
    """What is asked of the leader."""

    stream: str
    partition: int
    data: bytes
    """One batch, whose offset and epoch the leader sets."""


class InnerAppends:
    """Both sides of it."""

    def __init__(self, catalog: Catalog, known: KnownCluster, call: Call) -> None:
        self._catalog = catalog
        self._known = known
        self._call = call

    async def append(self, stream: Stream, number: int, data: bytes) -> None:
        """Append a batch wherever the partition is led. Raises Unavailable, NotLeader, Timeout."""
        row = self._known.row(PartitionKey(stream.record.id, PartitionId(number)))
        leader = NOBODY if row is None else row[0].leader
        if leader in (NOBODY, self._known.node):
            raise Unavailable(f"{stream.name}/{number} has no leader that is known here")
        asked = InnerAppend(stream.name, number, data)
        await self._call(leader, METHOD, asked, bool, APPEND_S)

    async def answer(self, _node: int, argument: msgspec.Raw) -> Any:
        """Append what another node asks for."""
        asked = msgspec.msgpack.decode(argument, type=InnerAppend)
        stream = self._catalog.get(asked.stream)
        partition = stream.partition(asked.partition)
        if not stream.is_internal:
            raise NotLeader(f"{stream.name} is not written by other nodes")
        for info in scan_batches(asked.data):
            partition.check_batch(info)
        placed = partition.append_checked(bytearray(asked.data))
        await partition.wait_visible(Offset(placed[-1].last_offset))
        return True
