"""What leaders tell the copies of their partitions about thinning: what they kept, and of which
ranges.

Rules:
- A node asks each other one which partitions it leads and has thinned; then, for copies that it has
  and that are not there yet, for what was kept, in pieces of a bounded size.
- A leader speaks for its epoch only. Before a copy's segment is replaced, a fresh read of the row
  must still name that leader in that epoch: another leader may have more records, and cursors may
  have come to need them again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any, Final, Protocol

import msgspec

from onelog.base.errors import NotFound, OnelogError, Unavailable
from onelog.cluster.exact_needs import ASK_S, PIECES_MAX, SeenTerms, key_of
from onelog.cluster.known import KnownCluster
from onelog.cluster.row_store import RowStore
from onelog.log.needs import RANGES_MAX, KeptRanges, NeedsPiece
from onelog.log.thinnings import Said, ThinnedHere, Thinnings
from onelog.storage.engine import PartitionKey

THINNED: Final = "thinned"
"""The call that asks which partitions were thinned."""
KEPT: Final = "kept"
"""The call that asks for a piece of what was kept."""
ROWS_MAX: Final = 20_000
"""Partitions of which one node says that it has thinned them."""

Call = Callable[[int, str, Any, type[Any], float], Awaitable[Any]]


class OwnThinnings(Protocol):
    """What the broker of this node has thinned."""

    @property
    def thinnings(self) -> Thinnings | None:
        """None before it is open."""
        ...


class ThinnedRow(msgspec.Struct, frozen=True, array_like=True):
    """A partition that was thinned."""

    stream_id: str
    partition: int
    epoch: int
    generation: int


class KeptQuestion(msgspec.Struct, frozen=True, array_like=True):
    """What did you keep of a partition, from this chunk on?"""

    row: ThinnedRow
    first: int


class KeptWord(msgspec.Struct, frozen=True, array_like=True):
    """A piece of it."""

    ranges: tuple[tuple[int, int], ...]
    piece: NeedsPiece


_questions: Final = msgspec.msgpack.Decoder(KeptQuestion)


class KeptElsewhere(KeptRanges):
    """What a leader kept."""

    __slots__ = ("_standing",)

    def __init__(self, standing: SeenTerms) -> None:
        super().__init__()
        self._standing = standing

    async def still_hold(self) -> bool:
        """See `Needs`: whether it leads in this epoch."""
        return await self._standing.holds()


class KeptWords:
    """Asks leaders on other nodes, and answers for those of this one."""

    def __init__(
        self,
        broker: OwnThinnings,
        known: KnownCluster,
        leads: Callable[[Any], bool],
        rows: RowStore,
        call: Call,
    ) -> None:
        """`leads` says whether this node leads a partition now."""
        self._broker = broker
        self._known = known
        self._leads = leads
        self._rows = rows
        self._call = call

    # -- as a leader

    async def answer_thinned(self, _node: int, _argument: msgspec.Raw) -> tuple[ThinnedRow, ...]:
        """The partitions that were thinned here."""
        thinnings = self._broker.thinnings
        told = () if thinnings is None else thinnings.told()
        led = (_row_of(key, here) for key, here in told if self._leads(key))
        return tuple(islice(led, ROWS_MAX))

    async def answer_kept(self, _node: int, argument: msgspec.Raw) -> KeptWord:
        """A piece of what was kept here. Raises NotFound when it was thinned again."""
        question = _questions.decode(argument)
        key = key_of(question.row.stream_id, question.row.partition)
        thinnings = self._broker.thinnings
        here = None if thinnings is None else thinnings.told_of(key)
        if here is None or not self._leads(key) or _row_of(key, here) != question.row:
            raise NotFound("that is not what this node kept last")
        kept = here.ranges
        return KeptWord(tuple(kept.ranges[-RANGES_MAX:]), kept.kept.piece(question.first))

    # -- as a copy

    async def said(self) -> list[Said]:
        """What each node that answers says."""
        found = []
        for node in [row.id for row in self._known.nodes() if row.id != self._known.node]:
            with contextlib.suppress(OnelogError):  # its copies keep what they have
                rows = await self._call(node, THINNED, None, tuple[ThinnedRow, ...], ASK_S)
                found += [
                    Said(row.stream_id, row.partition, node, row.epoch, row.generation)
                    for row in rows
                ]
        return found

    async def kept(self, said: Said) -> KeptElsewhere:
        """What a leader kept. Raises OnelogError when it does not say so, or leads no more."""
        key = key_of(said.stream_id, said.partition)
        standing = SeenTerms(self._rows, self._known, [key])
        leader, _node_epoch, epoch = standing.term(key)
        if (leader, epoch) != (said.node, said.epoch):
            raise Unavailable(f"node {said.node} does not lead {key} in epoch {said.epoch}")
        row = ThinnedRow(said.stream_id, said.partition, said.epoch, said.generation)
        found, first = KeptElsewhere(standing), 0
        for _ in range(PIECES_MAX):
            word = await self._call(said.node, KEPT, KeptQuestion(row, first), KeptWord, ASK_S)
            found.ranges = sorted(word.ranges)
            found.kept.add_piece(word.piece)
            first = word.piece.following
            if first < 0:
                return found
        raise Unavailable(f"node {said.node} kept too many single records of {key}")


def _row_of(key: PartitionKey, here: ThinnedHere) -> ThinnedRow:
    return ThinnedRow(key.stream_id, int(key.partition), here.epoch, here.generation)
