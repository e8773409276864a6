"""Upkeep of a chain: checkpoints, and deleting what a checkpoint makes needless.

Rules: an object is deleted only when a checkpoint that does not refer to it exists. Openings and
fences are never deleted. An owner that was fenced and has not noticed deletes nothing that counts:
its checkpoints describe objects before the fence, which the new owner has read. The steps are
generators without IO (`chain_requests.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from onelog.base.errors import StoreFenced
from onelog.objects import names
from onelog.objects.chain_requests import CreateObject, DeleteObjects, ListNames, Steps
from onelog.objects.checkpoint import ChainCheckpoint, ChainPlace

_CHECKPOINTS_KEPT: Final = 2


class ChainUpkeep:
    """Checkpoints of one epoch."""

    def __init__(self, name: str, epoch: int, fences: Collection[ChainPlace]) -> None:
        self.fences = tuple(fences)
        """The fences of all older epochs."""
        self.seq = 0
        """The object behind which the newest checkpoint lies; 0: `base`."""
        self._name = name
        self._epoch = epoch
        self._low = 1
        """The oldest object of this epoch, behind those of `_kept`, that may exist."""
        self._kept: set[int] = set()
        """Objects of this epoch that the checkpoint refers to."""

    def write(self, made: ChainCheckpoint, wanted: Collection[ChainPlace]) -> Steps[None]:
        """Write a checkpoint of objects that are all in the store, then delete what is needless.

        `wanted` are the objects that it refers to.
        """
        name = names.chain_checkpoint(self._name, self._epoch, made.seq)
        if (yield CreateObject(name, made.encode(), "chain.checkpoint")) is not None:
            raise StoreFenced(f"another broker wrote {name}: stop one of them")
        self.seq = made.seq
        kept = {place.seq for place in wanted if place.epoch == self._epoch}
        doomed = [
            names.chain_wal(self._name, self._epoch, old)
            for old in (*self._kept, *range(self._low, made.seq + 1))
            if old not in kept
        ]
        listed = yield ListNames(names.chain_checkpoints(self._name, self._epoch), None)
        doomed += [row[0] for row in listed[_CHECKPOINTS_KEPT:]]
        if doomed:
            yield DeleteObjects(tuple(doomed))
        self._low, self._kept = made.seq + 1, kept

    def delete_older_epochs(self, wanted: Collection[ChainPlace]) -> Steps[None]:
        """Delete what older epochs left, except the objects of `wanted`: those that the newest
        checkpoint of this epoch refers to."""
        listed = [row[0] for row in (yield ListNames(names.chains_of(self._name), None))]
        needed = set(self.needed(listed, wanted))
        doomed = [name for name in listed if name not in needed]
        if doomed:
            yield DeleteObjects(tuple(doomed))

    def needed(self, listed: Sequence[str], wanted: Collection[ChainPlace]) -> Collection[str]:
        """Which of these objects are needed, or not ours to judge. `wanted` as above: an opening,
        a fence, what the newest checkpoint refers to, and all of this epoch."""
        kept = {*wanted, *self.fences}
        return [name for name in listed if self._is_needed(names.parse_chain(name), kept)]

    def _is_needed(self, place: names.ChainName | None, kept: Collection[ChainPlace]) -> bool:
        if place is None or place.node != self._name or place.epoch >= self._epoch:
            return True
        if place.kind == "w":
            return ChainPlace(place.epoch, place.seq) in kept
        return place.kind == "open"
