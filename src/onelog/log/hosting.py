"""Where partitions lie: which of them this node has, and who looks after their replicas.

Rules:
- A node on its own has every partition, and nobody else has one (`EverythingHere`).
- Among several nodes the nodes of a new partition are chosen before its stream is written down
  (`place`), so that every node knows from the stream's row what it has.
- A partition that lies elsewhere has a handle here that refuses everything with NotLeader: it is
  never taken for an empty one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from onelog.base.ids import PartitionId
from onelog.log.config import StreamConfig
from onelog.storage.engine import PartitionKey

if TYPE_CHECKING:
    from onelog.log.stream import Assigned, Stream, StreamRecord


class Hosting(Protocol):
    """What the catalog asks about nodes."""

    @property
    def is_shared(self) -> bool:
        """Whether partitions may have replicas on other nodes."""
        ...

    @property
    def node(self) -> int:
        """This node."""
        ...

    async def nodes(self) -> Collection[int]:
        """Every other node too that may have data here or there, whether it runs or not; none where
        nothing is shared. Raises Unavailable."""
        ...

    def place(self, config: StreamConfig, first: int) -> Assigned:
        """Choose nodes for the partitions of a stream from `first` on. Raises InvalidRequest,
        Unavailable."""
        ...

    def check_change(self, old: StreamConfig, new: StreamConfig) -> None:
        """Raise InvalidRequest for a change that several nodes cannot make."""
        ...

    def has(self, record: StreamRecord, number: PartitionId) -> bool:
        """Whether a partition lies on this node."""
        ...

    def is_replica(self, record: StreamRecord, number: PartitionId) -> bool:
        """Whether this node is one of those that a partition lies on for good. What it has of
        others it has as long as somebody here asks for it."""
        ...

    def seen(self, stream: Stream) -> None:
        """A stream is open here, or has changed."""
        ...

    async def gone(self, stream: Stream) -> None:
        """A stream is no longer there: nobody copies it any more."""
        ...

    async def until_led(self, record: StreamRecord) -> None:
        """Wait until all partitions of a stream that was just made have a leader. Raises
        Timeout."""
        ...

    async def deleted(self, keys: Sequence[PartitionKey]) -> None:
        """These partitions were deleted on purpose, and are gone here: forget who had them."""
        ...


class EverythingHere:
    """A node on its own."""

    is_shared: Final = False
    node: Final = 0

    async def nodes(self) -> Collection[int]:
        """See `Hosting`."""
        return ()

    def place(self, config: StreamConfig, first: int) -> Assigned:
        """See `Hosting`: there is nothing to choose."""
        del config, first
        return ()

    def check_change(self, old: StreamConfig, new: StreamConfig) -> None:
        """See `Hosting`: every change can be made."""

    def has(self, record: StreamRecord, number: PartitionId) -> bool:
        """See `Hosting`."""
        del record, number
        return True

    def is_replica(self, record: StreamRecord, number: PartitionId) -> bool:
        """See `Hosting`."""
        del record, number
        return True

    def seen(self, stream: Stream) -> None:
        """See `Hosting`."""

    async def gone(self, stream: Stream) -> None:
        """See `Hosting`."""

    async def until_led(self, record: StreamRecord) -> None:
        """See `Hosting`: this node leads."""

    async def deleted(self, keys: Sequence[PartitionKey]) -> None:
        """See `Hosting`."""
