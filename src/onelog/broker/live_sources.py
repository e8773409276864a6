"""The sources of a live feed: partitions that are followed, each with a small number.

Rules:
- Listeners keep places as (number, offset). A number stands for one partition as long as a listener
  holds a place in it, even after the partition is gone. Then another partition gets the number, so
  that neither memory nor numbers grow with the streams that came and went.
- When `GONE_MAX` partitions are gone, or no number is left, listeners are asked which numbers they
  hold. They are not asked at each deletion, because they must look at every place that they hold.
- There are at most `NUMBERS_MAX` numbers (I8). A partition beyond them is not followed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from onelog.base.errors import Closed, OnelogError
from onelog.base.limits import LIVE_PARTITIONS_MAX
from onelog.cursors.sources import Source
from onelog.kernel import FeedSource
from onelog.log.handle import Cold, PartitionHandle
from onelog.log.moves import Move
from onelog.log.stream import Stream
from onelog.log.wakeup import Waiter, as_future

NUMBERS_MAX: Final = LIVE_PARTITIONS_MAX
"""Partitions that one live feed can follow at a time: a queue's place has 16 bits for the
number."""
GONE_MAX: Final = 256
"""Partitions that are gone and still have a number, before listeners are asked."""

Release = Callable[[set[int]], set[int]]
"""Called with numbers of partitions that are gone: forgets them, and returns those still held."""


class LiveSource(FeedSource):
    """One partition that is followed. It is called with batches that become visible."""

    __slots__ = ("epoch", "is_anew", "is_followed", "partition", "singly_until", "waiter")

    stream: Stream
    held: tuple[Move, ...]

    def __init__(self, number: int, stream: Stream, partition: PartitionHandle) -> None:
        super().__init__()
        self.number = number
        self.stream = stream
        self.partition = partition
        self.position = int(partition.last_stable_offset)
        self.is_followed = False
        """Whether batches that become visible are handed to the listener."""
        self.is_anew = False
        """Whether another copy took the place of the one before, and nothing of it was seen yet."""
        self.epoch = 0
        """The epoch that wrote the last record that copies before this one handed out."""
        self.held = ()
        self.busy = False
        self.missed = False
        self.waiter: Waiter | asyncio.Handle | None = None
        """The wait for an open transaction to be decided, for cold bytes, or for the next pass."""
        self.singly_until = 0
        """Records below this offset are read one by one: the listener left their batches."""

    @property
    def limit(self) -> int:
        """The offset up to which records may be handed out for now."""
        end = int(self.partition.last_stable_offset)
        number = int(self.partition.id)
        return min(end, *(move.end_of(number) for move in self.held)) if self.held else end

    @property
    def as_source(self) -> Source:
        """The same partition as cursors name it."""
        return Source(self.stream, self.partition)

    @property
    def fixed_topic(self) -> bytes | None:
        """The topic of every record from `position` on; None when records carry their own."""
        topic = self.stream.fixed_topic_at(self.partition.id, self.position)
        return None if topic is None else topic.encode()

    @property
    def key(self) -> tuple[str, int]:
        """The key of a cursor's position."""
        return self.stream.record.id, self.partition.id

    def may_pass(self, error: OnelogError) -> bool:
        """Whether cold bytes that could not be brought are worth another try at once.

        For example, too many files were open: readers must not wait for the next append because of
        that. The partition reports such a failure only after a while, so a new try does not spin.
        """
        return self.partition.stopped is None and not isinstance(error, Closed)

    async def until_here(self, cold: Cold) -> None:
        """Wait until cold bytes are in memory, or may be tried again."""
        try:
            await as_future(partial(self.partition.when_here, cold))
        except OnelogError as error:
            if not self.may_pass(error):
                raise

    def exchange(self, partition: PartitionHandle) -> None:
        """Follow a copy that took the place of the one before, and begins empty."""
        was_followed, old = self.is_followed, self.partition
        if 0 < self.position <= old.end_offset:  # else it had not come so far itself
            self.epoch = int(old.epoch_at(self.position - 1))
        self.leave()
        self.partition = partition
        # Until it is known where to go on, batches are left alone, also by the kernel.
        self.is_anew = self.busy = self.is_followed = was_followed
        if was_followed:
            partition.follow(self)

    def go_on(self, first: int) -> None:
        """The first batch of a copy that was exchanged became visible, and begins at `first`.

        What was handed out is not handed out again, unless the partition began again with a loss.
        That its leader shows less does not say so: a new one may not know yet how far it may show
        (KIP-207). A partition that nothing was handed out of goes on where its leader was: the copy
        brings history, too.
        """
        if not self.position or self.partition.lost_since(self.epoch):
            told = self.partition.first_told
            end = first if told is None else max(int(told), first)
            self.position = min(self.position or end, end)
        self.is_anew = self.busy = False

    def leave(self) -> None:
        """The partition is gone, or nobody follows any more."""
        if self.is_followed:
            self.is_followed = False
            self.partition.unfollow(self)
        if self.waiter is not None:
            self.waiter.cancel()
            self.waiter = None


class Numbers:
    """Which number stands for which source."""

    def __init__(self, release: Release) -> None:
        self._release = release
        self._sources: list[LiveSource | None] = []
        self.keys: list[tuple[str, int]] = []
        """The key of a cursor's position, by number. Always the same list object."""
        self._gone: set[int] = set()
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._sources)

    def __getitem__(self, number: int) -> LiveSource:
        source = self._sources[number]
        assert source is not None, "a number that nobody holds was asked for"
        return source

    def add(self, stream: Stream, partition: PartitionHandle) -> LiveSource | None:
        """A source with a number of its own; None: all numbers are in use."""
        is_full = len(self._sources) >= NUMBERS_MAX
        if not self._free and (len(self._gone) >= GONE_MAX or (is_full and self._gone)):
            self._let_go()
        if self._free:
            number = self._free.pop()
        elif len(self._sources) < NUMBERS_MAX:
            number = len(self._sources)
            self._sources.append(None)
            self.keys.append(("", 0))
        else:
            return None
        source = LiveSource(number, stream, partition)
        self._sources[number] = source
        self.keys[number] = source.key
        return source

    def remove(self, source: LiveSource) -> None:
        """The partition of a source is gone. Its number is free once no listener holds it."""
        self._gone.add(source.number)

    def _let_go(self) -> None:
        held = self._release(set(self._gone))
        for number in self._gone - held:
            self._sources[number] = None
            self.keys[number] = ("", 0)
            self._free.append(number)
        self._gone &= held
