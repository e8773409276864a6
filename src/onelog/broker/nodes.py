"""The other nodes, as the broker of one node uses them.

Rules: the broker calls in this order: `hosting` before it opens its streams, `join` once everything
that lies here is recovered, `stop` before it closes
partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from onelog.base.errors import OnelogError
from onelog.base.ids import Offset
from onelog.broker.node_calls import CallHandler
from onelog.broker.observing import Observers
from onelog.log.cluster_map import ClusterMap
from onelog.log.hosting import Hosting
from onelog.log.needs import NeededOffsets
from onelog.log.stream import Stream
from onelog.log.thinning import Needs
from onelog.log.thinnings import Said
from onelog.metadata.store import MetadataStore
from onelog.storage.engine import PartitionKey

if TYPE_CHECKING:
    from onelog.broker.broker import Broker


T = TypeVar("T")


class Forwards(Protocol):
    """The way of sealed batches to partitions that other nodes lead."""

    on_full: list[Callable[[], None]]
    """Called when there is no room any more for a leader."""
    on_room: list[Callable[[], None]]
    """Called when there is room again for a leader."""

    def takes(self, key: PartitionKey, refusal: OnelogError) -> bool:
        """Whether a partition that refuses appends here may be written through its leader."""
        ...

    def is_busy(self, key: PartitionKey) -> bool:
        """Whether batches of a partition are under way, so that the next one goes behind them."""
        ...

    def is_full(self, key: PartitionKey) -> bool:
        """Whether so much waits for the leader of a partition that publishers should wait, too."""
        ...

    def put(
        self,
        key: PartitionKey,
        data: bytes,
        done: Callable[[Offset, OnelogError | None], None],
        doubted: Callable[[OnelogError], bool],
        *,
        is_doubtful: bool = False,
    ) -> None:
        """Have a sealed batch written where its partition is led, in the order of the calls.

        `done` is called once, perhaps at once: with the offset of the first record when all are
        visible, or with the error. `doubted` is asked when a try may have written it, with the
        error that says so: True sends it again. `is_doubtful`: it may have been written before.
        """
        ...


class ClusterNodes(Protocol):
    """A node's place among others."""

    @property
    def forwards(self) -> Forwards:
        """How publishes get to leaders on other nodes."""
        ...

    @property
    def observers(self) -> Observers:
        """The copies of partitions that lie on other nodes."""
        ...

    @property
    def node_store(self) -> MetadataStore:
        """Where this node keeps what is true of itself alone."""
        ...

    async def call(
        self, node: int, method: str, argument: Any, answer: type[T], timeout_s: float
    ) -> T:
        """See `NodeCalls`."""
        ...

    def serve(self, method: str, handler: CallHandler | None) -> None:
        """See `NodeCalls`."""
        ...

    async def hosting(self, broker: Broker) -> Hosting:
        """Which partitions lie here, as the metadata says now."""
        ...

    async def join(self, broker: Broker) -> ClusterMap:
        """Register, link to the others, and begin to lead and to copy. Returns when there are as
        many nodes as a record needs."""
        ...

    def pins(self) -> Mapping[tuple[str, int], int]:
        """The lowest offsets that durable cursors of other nodes need, by stream id and partition.

        Raises Unavailable while not every owner of cursors has said so lately.
        """
        ...

    def spoken_for(self, stream_id: str, partition: int) -> int | None:
        """Up to where `pins` says all of a partition that is needed; None: up to the end.

        Records behind it may be needed by a cursor that came since its owner was asked. Raises
        Unavailable, as `pins` does.
        """
        ...

    async def exact_needs(self, stream_id: str, partition: int) -> NeededOffsets:
        """The records of a partition that durable cursors of any node need; what they do not speak
        of is needed. Raises Unavailable while not every owner of cursors says so."""
        ...

    async def said(self) -> list[Said]:
        """See `Leaders`."""
        ...

    async def kept(self, said: Said) -> Needs:
        """See `Leaders`."""
        ...

    async def append(self, stream: Stream, number: int, data: bytes) -> None:
        """Append one batch to a stream of the broker's own, at the node that leads the partition.

        Returns when it is visible. Raises Unavailable; and Timeout, NotLeader when it may have been
        written.
        """
        ...

    async def stop(self) -> None:
        """Lead and copy no more. Idempotent."""
        ...
