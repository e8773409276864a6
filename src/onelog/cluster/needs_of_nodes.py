"""What durable cursors of other nodes still need, so that a leader's retention leaves it.

Rules:
- Every node asks the others often. A node says what the cursors of its shards need, and which
  shards these are.
- A shard's needs are known while the node that owns it now has named the shard in its newest word,
  and that word is not old. Otherwise nothing leaves: while a shard moves, the old owner no longer
  knows its needs, and the new one does not know them yet.
- A word knows nothing of cursors that came later. Such a cursor needs only what came later, too: so
  nothing leaves beyond the end that a partition had when the owners were asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from onelog.base.errors import OnelogError, Unavailable
from onelog.cluster.elections import ShardServices
from onelog.log.catalog import Catalog
from onelog.log.cluster_map import NodePlace
from onelog.log.needs import NeededOffsets
from onelog.log.thinnings import Thinnings

ASK_EVERY_S: Final = 10.0
FRESH_S: Final = 45.0
ASK_S: Final = 5.0
SLICE: Final = 500
"""Partitions whose ends are noted before others have their turn."""

Key = tuple[str, int]
"""A stream's id and a partition of it."""
Call = Callable[[int, str, Any, type[Any], float], Awaitable[Any]]


class OwnBroker(Protocol):
    """What a node's place in the cluster asks of its broker."""

    streams: Catalog

    @property
    def shards(self) -> ShardServices:
        """The services that keep rows by name."""
        ...

    def lowest_needs(self) -> Mapping[Key, int]:
        """The lowest offsets that durable cursors of the shards here need. Raises Unavailable."""
        ...

    def exact_needs(self, stream_id: str, number: int) -> NeededOffsets:
        """The records of a partition that they need. Raises Unavailable."""
        ...

    @property
    def claims(self) -> int:
        """How often one of them came to need what none needed before."""
        ...

    @property
    def thinnings(self) -> Thinnings | None:
        """What thins the partitions here; None before it is open."""
        ...


class KnownOwners(Protocol):
    """What a node knows of the others (`known.py`)."""

    @property
    def node(self) -> int:
        """This node."""
        ...

    def nodes(self) -> Sequence[NodePlace]:
        """The registered nodes."""
        ...

    def owner_of(self, shard: int) -> int:
        """The node that owns a shard; `NOBODY`: an election is under way."""
        ...


class NeedsOfNode(msgspec.Struct, frozen=True, array_like=True):
    """What one node says."""

    shards: tuple[int, ...]
    """The shards whose cursors it speaks for."""
    lowest: tuple[tuple[str, int, int], ...]
    """Stream id, partition, lowest offset that is needed."""


class NodeWord(NamedTuple):
    """What one node said last."""

    asked_at: float
    shards: frozenset[int]
    lowest: Iterable[tuple[str, int, int]]
    ends: Mapping[Key, int]
    """Where the partitions here ended before the node was asked."""


class NodePins:
    """The needs of all other nodes."""

    def __init__(
        self, broker: OwnBroker, known: KnownOwners, call: Call, now: Callable[[], float]
    ) -> None:
        self._broker = broker
        self._known = known
        self._call = call
        self._now = now
        self._words: dict[int, NodeWord] = {}
        self._lowest: dict[Key, int] | None = None
        """What all words say together; None: to be made anew."""
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to ask."""
        self._task = asyncio.create_task(self._run(), name="cluster-pins")

    async def close(self) -> None:
        """Ask no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def answer(self, _node: int, _argument: msgspec.Raw) -> NeedsOfNode:
        """What the cursors of this node need."""
        found = self._broker.lowest_needs()
        owned = tuple(sorted(self._broker.shards.owned))
        return NeedsOfNode(owned, tuple((*key, offset) for key, offset in found.items()))

    def lowest(self) -> Mapping[Key, int]:
        """The lowest offset that others need, per partition. Raises Unavailable."""
        self._words_of_owners()
        if self._lowest is None:
            self._lowest = {}
            for word in self._words.values():
                for stream_id, partition, offset in word.lowest:
                    key = (stream_id, partition)
                    self._lowest[key] = min(offset, self._lowest.get(key, offset))
        return self._lowest

    def spoken_for(self, key: Key) -> int | None:
        """Up to where the owners of all cursors have said what they need of a partition; None: this
        node owns every cursor. Raises Unavailable."""
        ends = [word.ends.get(key, 0) for word in self._words_of_owners().values()]
        return min(ends, default=None)

    def _words_of_owners(self) -> dict[int, NodeWord]:
        """The words that count, by node. Raises Unavailable when one is missing."""
        fresh, own = self._now() - FRESH_S, self._broker.shards.owned
        found = {}
        for shard in range(len(self._broker.shards)):
            if shard in own:
                continue
            owner = self._known.owner_of(shard)
            word = self._words.get(owner)
            if word is None or shard not in word.shards or word.asked_at < fresh:
                raise Unavailable(f"what the cursors of shard {shard} need is not known lately")
            found[owner] = word
        return found

    async def _run(self) -> None:
        while True:
            await self.ask()
            await asyncio.sleep(ASK_EVERY_S)

    async def ask(self) -> None:
        """Ask every other node once."""
        ends = await self._ends()
        nodes = {row.id for row in self._known.nodes()} - {self._known.node}
        self._words = {node: word for node, word in self._words.items() if node in nodes}
        self._lowest = None
        for node in nodes:
            with contextlib.suppress(OnelogError):  # it is not known, which counts
                asked_at = self._now()
                said = await self._call(node, "pins", None, NeedsOfNode, ASK_S)
                self._words[node] = NodeWord(asked_at, frozenset(said.shards), said.lowest, ends)
                self._lowest = None

    async def _ends(self) -> dict[Key, int]:
        """Where the partitions here end now."""
        here = [
            (row.record.id, part) for row in self._broker.streams.streams() for part in row.local
        ]
        found: dict[Key, int] = {}
        for number, (stream_id, partition) in enumerate(here, 1):
            found[stream_id, int(partition.id)] = int(partition.high_watermark)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        return found
