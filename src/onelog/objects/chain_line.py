"""What a broker writes into its chain: bulks that grow, leave in order, and are answered in order.

Rules: a bulk leaves when it holds `batch_bytes`, or `linger_s` after the last one *left*, so that
the first message after silence waits for its own write only. At most `inflight` bulks are on their
way. A bulk counts when its object and all before it exist. In an object the notes come before the
data: whoever adds a note about data of the same bulk takes that data out first (`cut`).
No thread, no store, no clock is in here; `Chain` has them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from onelog.kernel import REL_MAX, BatchInfo, crc32c, move_topic_entries, scan_batches
from onelog.objects.access import Buffer
from onelog.objects.wal import (
    CLEAN_END,
    NOT_INDEXED,
    EncodedWal,
    WalEntry,
    WalHeader,
    encode_wal,
)

LINGER_MAX_S: Final = 2.0
"""How far the linger grows while the store throttles."""
_LINGER_STEP_S: Final = 0.05
_PAIR_BYTES: Final = 8

BulkDone = Callable[[BaseException | None], None]
"""Called when a bulk and all before it are in the store, or never will be. Any thread calls it; it
only wakes somebody, and never raises."""
PartitionName = tuple[str, int]


class BulkWaiter:
    """Somebody who waits for a bulk."""

    __slots__ = ("_done",)

    def __init__(self, done: BulkDone) -> None:
        self._done = done

    def wake(self, error: BaseException | None) -> None:
        """The bulk counts, or never will."""
        self._done(error)


class GrowingEntry:
    """Neighbouring batches of one partition in a bulk."""

    __slots__ = ("base", "crc", "end", "log_bytes", "max_timestamp_ms", "pairs", "parts")

    def __init__(self, base: int, *, is_indexed: bool) -> None:
        self.base = self.end = base
        self.parts: list[bytes] = []
        self.log_bytes = self.crc = 0
        self.max_timestamp_ms = -1
        self.pairs: bytearray | None = bytearray() if is_indexed else None

    def add(self, data: bytes, info: BatchInfo) -> None:
        """Add a batch."""
        self.parts.append(data)
        self.log_bytes += len(data)
        self.crc = crc32c(data, self.crc)
        self.end = info.last_offset + 1
        self.max_timestamp_ms = max(self.max_timestamp_ms, info.max_timestamp_ms)

    def cut(self, end: int) -> GrowingEntry | None:
        """The same without the batches that reach `end`; None: none is left."""
        made = GrowingEntry(self.base, is_indexed=self.pairs is not None)
        for data in self.parts:
            (info,) = scan_batches(data, 0, False)
            if info.last_offset >= end:
                break
            made.add(data, info)
        if self.pairs is not None and made.pairs is not None:
            for at in range(0, len(self.pairs), _PAIR_BYTES):
                pair = self.pairs[at : at + _PAIR_BYTES]
                if self.base + int.from_bytes(pair[4:], "little") < made.end:
                    made.pairs += pair
        return made if made.parts else None

    def placed(self, name: PartitionName, position: int) -> WalEntry:
        """The row of the directory."""
        pairs = self.pairs
        return WalEntry(
            *name,
            self.base,
            self.end,
            position,
            self.log_bytes,
            NOT_INDEXED if pairs is None else len(pairs),
            self.max_timestamp_ms,
            self.crc if not pairs else crc32c(pairs, self.crc),
        )


class Bulk:
    """What one object will hold."""

    __slots__ = ("entries", "notes", "size_bytes", "waiters")

    def __init__(self) -> None:
        self.entries: dict[PartitionName, list[GrowingEntry]] = {}
        self.notes: list[Any] = []
        self.size_bytes = 0
        self.waiters: list[BulkWaiter] = []

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.entries and not self.notes

    def add(
        self,
        name: PartitionName,
        batches: Sequence[tuple[bytes, BatchInfo]],
        pairs: Buffer | None,
    ) -> None:
        """Add batches, behind those that are there, with their topics (None: no index)."""
        first, last = batches[0][1].base_offset, batches[-1][1].last_offset
        rows = self.entries.setdefault(name, [])
        entry = rows[-1] if rows else None
        if entry is None or (entry.pairs is None) != (pairs is None) or last - entry.base > REL_MAX:
            entry = GrowingEntry(first, is_indexed=pairs is not None)
            rows.append(entry)
        for data, info in batches:
            entry.add(data, info)
            self.size_bytes += len(data)
        if pairs and entry.pairs is not None:
            entry.pairs += move_topic_entries(pairs, first - entry.base)
            self.size_bytes += len(pairs)

    def cut(self, name: PartitionName, end: int) -> None:
        """Take out the batches of a partition that reach `end`."""
        rows = [row.cut(end) for row in self.entries.pop(name, ())]
        kept = [row for row in rows if row is not None]
        if kept:
            self.entries[name] = kept
        self.size_bytes = sum(
            row.log_bytes + len(row.pairs or b"") for held in self.entries.values() for row in held
        )


class SealedBulk(NamedTuple):
    """A bulk with its place in the chain."""

    seq: int
    written_ms: int
    entries: tuple[WalEntry, ...]
    notes: list[Any]
    wal: EncodedWal
    waiters: list[BulkWaiter]
    left_at: float


class ChainLine:
    """The objects of one epoch, from the first one on."""

    def __init__(
        self,
        node: int,
        epoch: int,
        nonce: bytes,
        *,
        linger_s: float,
        batch_bytes: int,
        inflight: int,
    ) -> None:
        self.epoch = epoch
        self.nonce = nonce
        self.seq = 0
        """The last object that left."""
        self.link = 0
        """Its checksum."""
        self.durable_seq = 0
        """It and all before it are in the store."""
        self.linger_s = self._linger_s = linger_s
        self.is_hurried = False
        """Whether nothing waits for the linger."""
        self.open = Bulk()
        self.full: deque[Bulk] = deque()
        self.on_way: dict[int, SealedBulk] = {}
        self._node = node
        self._batch_bytes = batch_bytes
        self._inflight = inflight
        self._arrived: set[int] = set()
        self._left_at = float("-inf")

    # Growing.

    def grown(self) -> None:
        """The open bulk grew: one that is full makes room for the next."""
        if self.open.size_bytes >= self._batch_bytes:
            self.full.append(self.open)
            self.open = Bulk()

    @property
    def is_idle(self) -> bool:
        """Whether everything that was added is in the store."""
        return not self.on_way and not self.full and self.open.is_empty

    def add_waiter(self, waiter: BulkWaiter) -> bool:
        """Wake somebody when everything added so far is in the store; False: it is."""
        if not self.open.is_empty:
            self.open.waiters.append(waiter)
        elif self.full:
            self.full[-1].waiters.append(waiter)
        elif self.on_way:
            self.on_way[max(self.on_way)].waiters.append(waiter)
        else:
            return False
        return True

    # Leaving.

    def wait_s(self, now: float) -> float | None:
        """Seconds until a bulk may leave; None: not before something changes."""
        on_way = len(self.on_way) - len(self._arrived)
        if on_way >= self._inflight or (self.open.is_empty and not self.full):
            return None
        if self.full or self.is_hurried:
            return 0.0
        return max(0.0, self._left_at + self.linger_s - now)

    def take(self, now: float, now_ms: int, *, is_last: bool = False) -> SealedBulk:
        """The next bulk leaves."""
        if self.full:
            bulk = self.full.popleft()
        else:
            bulk, self.open = self.open, Bulk()
        self._left_at = now
        self.seq += 1
        rows = sorted(bulk.entries.items())
        entries, parts, position = [], list[Buffer](), 0
        for name, held in rows:
            for growing in held:
                entries.append(growing.placed(name, position))
                position += entries[-1].size_bytes
                parts += growing.parts
                if growing.pairs:
                    parts.append(growing.pairs)
        flags = CLEAN_END if is_last else 0
        header = WalHeader(
            flags,
            self._node,
            self.epoch,
            self.seq,
            self.nonce,
            self.link,
            now_ms,
            self.durable_seq,
        )
        wal = encode_wal(header, entries, msgspec.msgpack.encode(bulk.notes), parts)
        self.link = wal.crc
        made = SealedBulk(self.seq, now_ms, tuple(entries), bulk.notes, wal, bulk.waiters, now)
        self.on_way[made.seq] = made
        return made

    # Arriving.

    def arrived(self, seq: int) -> list[SealedBulk]:
        """An object is in the store. Returns the bulks that count from now on, in order."""
        self._arrived.add(seq)
        found = []
        while self.durable_seq + 1 in self._arrived:
            self.durable_seq += 1
            self._arrived.discard(self.durable_seq)
            found.append(self.on_way.pop(self.durable_seq))
        return found

    def give_up(self) -> list[BulkWaiter]:
        """Nothing more will count. Returns who waits."""
        waiting = [row for seq in sorted(self.on_way) for row in self.on_way[seq].waiters]
        waiting += [row for bulk in (*self.full, self.open) for row in bulk.waiters]
        self.on_way.clear()
        self.full.clear()
        self.open = Bulk()
        return waiting

    # A store that throttles.

    def slow_down(self) -> None:
        """The store asks for fewer requests."""
        self.linger_s = min(
            max(LINGER_MAX_S, self._linger_s), max(_LINGER_STEP_S, self.linger_s * 2)
        )

    def speed_up(self) -> None:
        """The store answered well."""
        self.linger_s = max(self._linger_s, self.linger_s / 2)
        if self.linger_s < _LINGER_STEP_S:
            self.linger_s = self._linger_s
