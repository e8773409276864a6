"""A lane: the state of a queue cursor in one partition.

Rules: every offset that was read and is not settled is *outstanding*, with the number of times it
was handed out. The floor is the lowest outstanding offset, or the read position: everything below
it is settled. Settled offsets above the floor are in a roaring bitmap. So the kept state is the
floor, the bitmap and the counts; after a restart every other offset is handed out again.

A seek moves the reader. Offsets that consumers have at that time stay as they are: the reader
passes them over when it meets them again, whether they are settled by then or not.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection

import msgspec

from onelog.cursors.cursor import Position
from onelog.cursors.offsets import OffsetSet

_OFFSET_MAX = 2**63


class LaneState(msgspec.Struct, array_like=True):
    """A lane as it is kept."""

    stream_id: str
    partition: int
    floor: int
    settled: bytes
    counts: list[tuple[int, int]]


class Lane:
    """One partition of a queue."""

    __slots__ = ("_again", "_read_to", "_remembered", "_settled", "counts", "key")

    def __init__(self, key: tuple[str, int]) -> None:
        self.key = key
        self.counts: dict[int, int] = {}
        """Outstanding offset → how often it was handed out."""
        self._again: list[int] = []
        self._remembered: dict[int, int] = {}  # counts from before a restart, until read again
        self._settled: OffsetSet | None = None
        self._read_to = 0
        """Behind the last offset that came from the reader, since the last start or seek."""

    @classmethod
    def restore(cls, state: LaneState, end: int) -> Lane:
        """A lane from its kept state. The reader starts at the floor again.

        Offsets at `end` and beyond were lost with the log's end, and will be used again.
        """
        lane = cls((state.stream_id, state.partition))
        if state.settled:
            settled = OffsetSet.deserialize(state.settled)
            settled.remove_range(end, _OFFSET_MAX)
            lane._settled = settled or None
        lane._remembered = {offset: count for offset, count in state.counts if offset < end}
        return lane

    def take_new(self, offset: int) -> bool:
        """Take an offset from the reader. Returns whether it is to be handed out (not settled
        before, and not with a consumer)."""
        self._read_to = offset + 1
        if offset in self.counts or (self._settled is not None and offset in self._settled):
            return False
        self.counts[offset] = self._remembered.pop(offset, 0)
        return True

    def settle(self, offset: int) -> None:
        """The record at this offset is settled."""
        self.counts.pop(offset, None)
        if self.counts or offset >= self._read_to:  # the reader comes to it again
            if self._settled is None:
                self._settled = OffsetSet()
            self._settled.add(offset)
        elif self._settled is not None:
            self._settled.remove_range(0, offset + 1)  # everything that was read is settled
            self._settled = self._settled or None

    def seek(self, offset: int, held: Collection[int]) -> None:
        """Let everything from `offset` on be handed out again, and nothing below.

        `held` are the offsets that consumers have: they stay as they are.
        """
        self.counts = {at: self.counts[at] for at in held}
        self._again, self._remembered = [], {}
        settled = OffsetSet()
        first = min(held, default=offset)
        if first < offset:
            settled.add_range(first, offset)
            settled -= OffsetSet(held)
        self._settled = settled or None
        self._read_to = offset

    def revive(self, offset: int, read_position: int) -> bool:
        """Let a settled record be handed out again. Returns False when it is not settled."""
        if offset in self.counts:
            return False
        settled = OffsetSet() if self._settled is None else self._settled
        floor = self.floor(read_position)
        is_ahead = offset >= read_position  # the reader comes to it
        if is_ahead and offset not in settled:
            return False
        if offset < floor:
            settled.add_range(offset + 1, floor)
        settled.discard(offset)
        self._settled = settled or None
        if not is_ahead:
            self.counts[offset] = 0
            self.hand_back(offset)
        return True

    def hand_back(self, offset: int) -> None:
        """Let the record be handed out again."""
        heapq.heappush(self._again, offset)

    def next_again(self) -> int | None:
        """The lowest offset that waits to be handed out again."""
        return self._again[0] if self._again else None

    def take_again(self) -> int:
        """Take that offset."""
        return heapq.heappop(self._again)

    @property
    def waiting(self) -> int:
        """How many offsets wait to be handed out again."""
        return len(self._again)

    def floor(self, read_position: int) -> int:
        """The lowest offset that is not settled; after a seek the reader may be below it."""
        return min(read_position, min(self.counts, default=read_position))

    def state(self, read_position: int) -> LaneState:
        """The state to keep."""
        floor = self.floor(read_position)
        settled = b""
        if self._settled is not None:
            self._settled.remove_range(0, floor)
            if self._settled:
                settled = self._settled.serialize()
            else:
                self._settled = None
        # Retention removed the records that the reader passed without finding them.
        self._remembered = {o: n for o, n in self._remembered.items() if o >= read_position}
        counts = [(offset, count) for offset, count in self.counts.items() if count]
        return LaneState(*self.key, floor, settled, [*counts, *self._remembered.items()])

    def position(self, read_position: int) -> Position:
        """The position that pins retention."""
        return Position(*self.key, self.floor(read_position))
