"""Passes of thinning: of partitions that retention found held back, and of copies.

Rules:
- Whoever leads a partition, or is alone, asks what is needed, and notes what it kept. A copy keeps
  at least what its leader has kept in the same epoch, and all else of what it has.
- What is needed is asked for before a segment is rewritten, and whether that still holds before the
  rewritten one takes its place. Who cannot say so says no.
- What a leader kept in an epoch that is over says nothing: the next leader may have more.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from onelog.base.clock import Clock
from onelog.base.errors import (
    Conflict,
    InvalidRequest,
    NotLeader,
    OffsetOutOfRange,
    OnelogError,
    StreamNotFound,
    Unavailable,
)
from onelog.base.ids import Offset
from onelog.log.catalog import Catalog
from onelog.log.config import Cleanup, StreamConfig
from onelog.log.needs import KeptRanges, NeededOffsets
from onelog.log.partition import Partition
from onelog.log.rewriting import Pacer, Rewriting
from onelog.log.syncer import Syncer
from onelog.log.thinning import Needs, Thinned, thin
from onelog.log.visits import Visits
from onelog.storage.engine import PartitionKey, SegmentInfo

NeedsOf = Callable[[str, int], Awaitable[NeededOffsets | None]]
"""(stream, partition) → the records that durable cursors need; None: no cursor needs any."""
MayLeave = Callable[[Partition, Offset], Awaitable[bool]]
"""Whether everybody has seen to the records below an offset, so that they may leave."""
_GIVEN_UP: Final = (OffsetOutOfRange, Conflict, InvalidRequest)
"""The log was trimmed or cut meanwhile: the next pass sees what is left."""


async def no_needs(_stream: str, _partition: int) -> NeededOffsets | None:
    """Nobody needs anything, so there is nothing to thin for."""
    return None


class Held(NamedTuple):
    """Segments of a partition that would have gone if no durable cursor needed a record in them."""

    key: PartitionKey
    config: StreamConfig
    rows: Sequence[SegmentInfo]


class Said(NamedTuple):
    """A leader of another node has thinned a partition that lies here, too."""

    stream_id: str
    partition: int
    node: int
    epoch: int
    generation: int
    """Another one when it has thinned again; never 0."""


class Leaders(Protocol):
    """What leaders of other nodes kept of what lies here."""

    async def said(self) -> list[Said]:
        """Which partitions they have thinned, as far as they answer."""
        ...

    async def kept(self, said: Said) -> Needs:
        """What the leader kept. Raises OnelogError when it no longer says so."""
        ...


class NoLeaders:
    """A node on its own leads all that it has."""

    async def said(self) -> list[Said]:
        """Nobody says anything."""
        return []

    async def kept(self, said: Said) -> Needs:
        """Nobody says anything."""
        raise AssertionError(f"nobody said {said}")


class ThinnedHere:
    """What is known of the thinning of one partition in one epoch of its leader."""

    __slots__ = ("epoch", "generation", "ranges", "thinned")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.generation = 0
        """As leader: of the newest thinning. As a copy: the leader's, as far as it was done."""
        self.thinned = Thinned()
        self.ranges = KeptRanges()


class Thinnings:
    """Thins the partitions of a catalog."""

    def __init__(
        self,
        catalog: Catalog,
        syncer: Syncer,
        clock: Clock,
        visits: Visits,
        may_leave: MayLeave,
        stopping: threading.Event,
        needs: NeedsOf,
    ) -> None:
        self.leaders: Leaders = NoLeaders()
        self.tells = False
        """Whether other nodes have copies, and ask what was kept."""
        self._catalog = catalog
        self._syncer = syncer
        self._clock = clock
        self._visits = visits
        self._may_leave = may_leave
        self._stopping = stopping
        self._needs = needs
        self.led: dict[Partition, ThinnedHere] = {}
        """By partition that is held back here."""
        self._told: dict[PartitionKey, tuple[Partition, ThinnedHere]] = {}
        """Those of them that were thinned: other nodes ask by key, and often."""
        self._copies: dict[Partition, ThinnedHere] = {}
        self._generation = 0

    async def once(self, held: Mapping[Partition, Held]) -> None:
        """One pass."""
        self.led = {one: row for one, row in self.led.items() if one in held}
        self._told = {key: row for key, row in self._told.items() if row[0] in held}
        for partition, row in list(held.items()):
            if partition.stopped is None and not _is_copy(partition):
                await self._thin_led(partition, row)
        await self._thin_copies()

    # -- what is led here

    async def _thin_led(self, partition: Partition, held: Held) -> None:
        try:
            needs = await self._needs(partition.stream, partition.id)
        except (StreamNotFound, Unavailable):
            return
        if needs is None:
            return
        here = _of_epoch(self.led, partition)
        rows = [row for row in held.rows if row.end_offset < partition.end_offset]
        for group in here.thinned.due(rows, needs, held.config.segment_bytes):
            if not await self._is_thinned(partition, group, needs):
                return
            here.thinned.note(group, needs)
            if self.tells:
                self._generation += 1
                here.generation = self._generation
                here.ranges.forget_below(partition.start_offset)
                here.ranges.note(group[0].base_offset, group[-1].end_offset, needs)
                self._told[held.key] = partition, here

    def told(self) -> Iterator[tuple[PartitionKey, ThinnedHere]]:
        """What was thinned here, for the nodes that have copies."""
        for key in self._told:
            here = self.told_of(key)
            if here is not None:
                yield key, here

    def told_of(self, key: PartitionKey) -> ThinnedHere | None:
        """What was thinned here of one partition. None: nothing in this epoch, or it is no longer
        open here, or led here."""
        partition, here = self._told.get(key, (None, None))
        if partition is None or here is None or partition.stopped is not None:
            return None
        is_current = here.epoch == partition.leader_epoch and not _is_copy(partition)
        return here if is_current else None

    # -- copies

    async def _thin_copies(self) -> None:
        rows = await self.leaders.said()
        if not rows:
            return
        found = {
            (stream.record.id, int(one.id)): (stream.config, one)
            for stream, one in self._visits.partitions()
            if one.stopped is None and _is_copy(one)
        }
        copies = {one for _config, one in found.values()}
        self._copies = {one: row for one, row in self._copies.items() if one in copies}
        for said in rows:
            config, partition = found.get((said.stream_id, said.partition), (None, None))
            if config is None or partition is None or self._stopping.is_set():
                continue
            if config.cleanup is Cleanup.DELETE and said.epoch == partition.leader_epoch:
                await self._thin_copy(partition, config, said)

    async def _thin_copy(self, partition: Partition, config: StreamConfig, said: Said) -> None:
        here = _of_epoch(self._copies, partition)
        if here.generation == said.generation:
            return
        try:
            kept = await self.leaders.kept(said)
        except OnelogError:
            return  # it leads no more, or has thinned again: the next pass asks again
        rows = await self._syncer.chores.run(partition.log.segments)
        upto = min(kept.upto, partition.high_watermark, partition.end_offset - 1)
        held = [row for row in rows[:-1] if row.sealed and row.end_offset <= upto]
        for group in here.thinned.due(held, kept, config.segment_bytes):
            if not await self._is_thinned(partition, group, kept):
                return
            here.thinned.note(group, kept)
        here.generation = said.generation

    # -- both

    async def _is_thinned(
        self, partition: Partition, group: Sequence[SegmentInfo], needs: Needs
    ) -> bool:
        """Thin a group of segments. False: not now, nor those that follow."""
        if self._stopping.is_set() or not await needs.still_hold():
            return False
        if not await self._may_leave(partition, group[-1].end_offset):
            return False
        try:
            return await self._rewrite(partition, group, needs)
        except _GIVEN_UP:
            return False
        except Exception as error:  # noqa: BLE001 - the other partitions go on
            self._visits.failed(partition, "thinning", error)
            return False

    async def _rewrite(
        self, partition: Partition, group: Sequence[SegmentInfo], needs: Needs
    ) -> bool:
        pace = Pacer(self._clock, self._stopping)
        chores, counters = self._syncer.chores, self._visits.counters
        rewriting = await chores.run(partial(thin, partition.log, group, needs, pace))
        if not await needs.still_hold():
            await chores.run(rewriting.abort)
            return False
        await chores.run(partial(self._commit, rewriting))
        counters.thinnings += 1
        counters.bytes_thinned += rewriting.bytes_before - rewriting.bytes_after
        return True

    def _commit(self, rewriting: Rewriting) -> None:
        with self._catalog.shared.hold.leaving():
            rewriting.commit()


def _is_copy(partition: Partition) -> bool:
    return isinstance(partition.refusal, NotLeader)


def _of_epoch(rows: dict[Partition, ThinnedHere], partition: Partition) -> ThinnedHere:
    found = rows.get(partition)
    if found is None or found.epoch != partition.leader_epoch:
        found = rows[partition] = ThinnedHere(int(partition.leader_epoch))
    return found
