"""Which records of a partition durable cursors of all nodes need, one by one, for thinning.

Rules:
- Whoever thins asks the node that owns a shard now, for every shard. It thins only when each of
  them has said what it needs, and that it has the shard.
- What was said counts while it is sure who said it: when the cursors were asked for the last time
  whether they came to need more, a read of the metadata that began later still names the same
  owners, and the same leader of the partition, in the same epochs. So an owner that does not know
  of its successor cannot speak for it (`SeenTerms`).
- Nobody speaks of records that came since the question: from the high watermark of that moment on
  everything is needed.
- The first record of each epoch stays: from it, a copy that begins anew learns the epochs.
- Answers come in pieces of a bounded size, and at most so many of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from onelog.base.errors import OnelogError, Unavailable
from onelog.base.ids import PartitionId
from onelog.cluster.elections import ShardServices
from onelog.cluster.known import KnownCluster
from onelog.cluster.row_store import RowStore
from onelog.cluster.rows import NOBODY, ReplicaSet
from onelog.log.needs import NeededOffsets, NeedsPiece
from onelog.storage.engine import PartitionKey

NEEDS: Final = "needs"
"""The call that asks for a piece of what a node's cursors need."""
CLAIMS: Final = "claims"
"""The call that asks whether they came to need more."""
ASK_S: Final = 5.0
PIECES_MAX: Final = 64
"""Of one node about one partition; more means that it is not thinned."""

Call = Callable[[int, str, Any, type[Any], float], Awaitable[Any]]
Term = tuple[int, int, int]
"""Who leads: node, node epoch, leader epoch."""


class OwnCursors(Protocol):
    """What the broker of this node says of its own cursors."""

    @property
    def shards(self) -> ShardServices:
        """The services that keep rows by name."""
        ...

    def exact_needs(self, stream_id: str, number: int) -> NeededOffsets:
        """The records that durable cursors of the shards here need. Raises Unavailable."""
        ...

    @property
    def claims(self) -> int:
        """How often a cursor here came to need what none needed before."""
        ...


class NeedsQuestion(msgspec.Struct, frozen=True, array_like=True):
    """What do cursors of your shards need of a partition, from this chunk on?"""

    stream_id: str
    partition: int
    first: int


class ClaimsWord(msgspec.Struct, frozen=True, array_like=True):
    """How often cursors of these shards came to need more."""

    claims: int
    shards: tuple[int, ...]


class NeedsWord(msgspec.Struct, frozen=True, array_like=True):
    """A piece of what they need."""

    by: ClaimsWord
    piece: NeedsPiece


_questions: Final = msgspec.msgpack.Decoder(NeedsQuestion)


def term_of(row: ReplicaSet) -> Term:
    """Who leads, as a row says."""
    return row.leader, row.leader_node_epoch, row.epoch


class SeenTerms:
    """Who led some partitions when somebody was asked."""

    def __init__(self, rows: RowStore, known: KnownCluster, keys: Iterable[PartitionKey]) -> None:
        """Raises Unavailable when one of them has no leader now."""
        self._rows = rows
        self._terms: dict[PartitionKey, Term] = {}
        for key in keys:
            found = known.row(key)
            if found is None or found[0].leader == NOBODY:
                raise Unavailable(f"{key} has no leader now")
            self._terms[key] = term_of(found[0])

    def term(self, key: PartitionKey) -> Term:
        """Who led a partition."""
        return self._terms[key]

    async def holds(self) -> bool:
        """Whether the same lead in the same epochs, by a fresh read."""
        for key, term in self._terms.items():
            try:
                row, _revision = await self._rows.read(key)
            except OnelogError:
                return False
            if term_of(row) != term:
                return False
        return True


class ClusterNeeds(NeededOffsets):
    """The needs of all nodes together."""

    __slots__ = ("_confirm",)

    def __init__(self, confirm: Callable[[], Awaitable[bool]]) -> None:
        super().__init__()
        self._confirm = confirm

    async def still_hold(self) -> bool:
        """See `NeededOffsets`: asks everybody again."""
        return await self._confirm()


class ExactNeeds:
    """Asks the owners of all shards, and answers for this node's."""

    def __init__(self, broker: OwnCursors, known: KnownCluster, rows: RowStore, call: Call) -> None:
        self._broker = broker
        self._known = known
        self._rows = rows
        self._call = call

    # -- this node's own

    def _own(self) -> ClaimsWord:
        return ClaimsWord(self._broker.claims, tuple(sorted(self._broker.shards.owned)))

    def _own_needs(self, question: NeedsQuestion) -> NeedsWord:
        needs = self._broker.exact_needs(question.stream_id, question.partition)
        return NeedsWord(self._own(), needs.piece(question.first))

    async def answer_needs(self, _node: int, argument: msgspec.Raw) -> NeedsWord:
        """What cursors of this node need."""
        return self._own_needs(_questions.decode(argument))

    async def answer_claims(self, _node: int, _argument: msgspec.Raw) -> ClaimsWord:
        """How often they came to need more."""
        return self._own()

    # -- of all nodes

    async def of(
        self, key: PartitionKey, high_watermark: int, epoch_starts: Iterable[int]
    ) -> NeededOffsets:
        """What cursors of all nodes need of a partition that ends at `high_watermark` for readers
        now. Raises OnelogError when one of them does not say so."""
        owners = self._owners()
        homes = [keys[0] for keys in self._known.shards()]
        standing = SeenTerms(self._rows, self._known, [key, *homes])
        for shard, home in enumerate(homes):
            if standing.term(home)[0] not in owners or shard not in owners[standing.term(home)[0]]:
                raise Unavailable(f"shard {shard} is moving")
        words: dict[int, ClaimsWord] = {}

        async def confirm() -> bool:
            return await self._still(words, owners) and await standing.holds()

        found = ClusterNeeds(confirm)
        found.add_from(high_watermark)
        for start in epoch_starts:
            found.add_one(start)
        for node, shards in owners.items():
            words[node] = await self._gather(node, key, shards, found)
        return found

    def _owners(self) -> dict[int, set[int]]:
        """The shards of each node that owns some. Raises Unavailable while one has no owner."""
        found: dict[int, set[int]] = {}
        for shard in range(len(self._broker.shards)):
            owner = self._known.owner_of(shard)
            if owner == NOBODY:
                raise Unavailable(f"shard {shard} has no owner now")
            found.setdefault(owner, set()).add(shard)
        return found

    async def _gather(
        self, node: int, key: PartitionKey, shards: set[int], into: NeededOffsets
    ) -> ClaimsWord:
        first, by = 0, None
        for _ in range(PIECES_MAX):
            question = NeedsQuestion(key.stream_id, int(key.partition), first)
            said = await self._ask_needs(node, question)
            if not shards <= set(said.by.shards) or by not in (None, said.by):
                raise Unavailable(f"node {node} does not say what its cursors need of {key}")
            into.add_piece(said.piece)
            first, by = said.piece.following, said.by
            if first < 0:
                return said.by
        raise Unavailable(f"node {node} needs too many single records of {key}")

    async def _ask_needs(self, node: int, question: NeedsQuestion) -> NeedsWord:
        if node == self._known.node:
            return self._own_needs(question)
        said: NeedsWord = await self._call(node, NEEDS, question, NeedsWord, ASK_S)
        return said

    async def _still(self, words: Mapping[int, ClaimsWord], owners: Mapping[int, set[int]]) -> bool:
        """Whether nobody came to need more since then."""
        for node, word in words.items():
            try:
                now = await self._ask_claims(node)
            except OnelogError:
                return False
            if now.claims != word.claims or not owners[node] <= set(now.shards):
                return False
        return True

    async def _ask_claims(self, node: int) -> ClaimsWord:
        if node == self._known.node:
            return self._own()
        said: ClaimsWord = await self._call(node, CLAIMS, None, ClaimsWord, ASK_S)
        return said


def key_of(stream_id: str, partition: int) -> PartitionKey:
    """A partition."""
    return PartitionKey(stream_id, PartitionId(partition))
