"""Cleaning: which records of one batch stay when a partition is compacted by key.

Rules (Kafka's, so that its clients find what they expect):
- The newest record of a key stays, and every record without a key. Records of aborted transactions
  go, and never count as the newest of their key.
- A tombstone (no value) that is the newest of its key stays until the delete horizon of its batch.
  The first cleaning sets the horizon; so a reader has that long to see it.
- The marker of a transaction stays while a batch of it stays, else replay would find the
  transaction open; after that it stays until its own horizon.
- The last batch of a live producer stays, if need be without records, because its header holds the
  sequence from which the producer goes on.
- Offsets never move. A batch that loses nothing is passed on byte for byte.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from onelog.kernel import (
    ATTR_CONTROL,
    ATTR_DELETE_HORIZON,
    ATTR_TRANSACTIONAL,
    BatchInfo,
    Slices,
    decode_batch,
    keep_records,
)
from onelog.log.producers import AbortedTxn, Producers
from onelog.log.rewriting import Kept, Pace, whole, with_records
from onelog.record.batch import inflated_records, read_marker

KEY_BYTES_MAX: Final = 32
"""A longer key is remembered by a digest. The digest is one byte longer than any plain key."""
RECORDS_PER_PACE: Final = 512


class LastBatch(NamedTuple):
    """The newest batch of a producer: its epoch and last offset; -1 when only a marker is known."""

    epoch: int
    last_offset: int


def last_batches(producers: Producers) -> dict[int, LastBatch]:
    """The newest batch of every live producer, which compaction must leave in the log."""
    return {
        entry.producer_id: LastBatch(
            entry.epoch, entry.batches[-1].last_offset if entry.batches else -1
        )
        for entry in producers.entries()
    }


class KeyMap:
    """The last offset of each key in a run of the log, bounded in keys and in bytes per key."""

    __slots__ = ("_last", "keys_max")

    def __init__(self, keys_max: int) -> None:
        self.keys_max = keys_max
        self._last: dict[bytes, int] = {}

    @property
    def full(self) -> bool:
        """Whether no further batch may be noted."""
        return len(self._last) >= self.keys_max

    def note(self, slices: Slices, pace: Pace) -> None:
        """Remember the keys of a batch; batches come in offset order."""
        last = self._last
        for index, offset in enumerate(slices.offsets()):
            key = slices.key(index)
            if key is not None:
                last[_short(key)] = offset
            if index % RECORDS_PER_PACE == RECORDS_PER_PACE - 1:
                pace()

    def superseded(self, key: bytes, offset: int) -> bool:
        """Whether a newer record of this key is known."""
        return self._last.get(_short(key), -1) > offset


def _short(key: bytes) -> bytes:
    if len(key) <= KEY_BYTES_MAX:
        return key
    return blake2b(key, digest_size=KEY_BYTES_MAX + 1).digest()


class AbortedRanges:
    """Which batches belong to aborted transactions."""

    __slots__ = ("_ranges",)

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._ranges: dict[int, list[AbortedTxn]] = {}
        for txn in sorted(aborted, key=lambda row: row.last_offset):
            self._ranges.setdefault(txn.producer_id, []).append(txn)

    def holds(self, info: BatchInfo) -> bool:
        """Whether the records of this data batch were aborted."""
        if not info.attributes & ATTR_TRANSACTIONAL:
            return False
        rows = self._ranges.get(info.producer_id, [])
        # A producer has one transaction at a time: its ranges do not overlap.
        at = bisect_left(rows, info.last_offset, key=lambda row: row.last_offset)
        return at < len(rows) and rows[at].first_offset <= info.base_offset


class Cleaner:
    """Cleans batches in log order, from the start of the log on."""

    __slots__ = (
        "_aborted", "_keys", "_last_batches", "_now_ms", "_open", "_pace", "_tombstone_ms",
        "next_horizon_ms", "records_dropped",
    )  # fmt: skip

    def __init__(
        self,
        keys: KeyMap,
        aborted: AbortedRanges,
        last: Mapping[int, LastBatch],
        *,
        now_ms: int,
        tombstone_ms: int,
        pace: Pace,
    ) -> None:
        self.records_dropped = 0
        self.next_horizon_ms = -1
        """When the first tombstone or marker that stays may go; -1: none waits."""
        self._keys = keys
        self._aborted = aborted
        self._last_batches = last
        self._now_ms = now_ms
        self._tombstone_ms = tombstone_ms
        self._pace = pace
        self._open: set[int] = set()

    def clean(self, data: memoryview, info: BatchInfo) -> Kept:
        """What stays of a batch: all of its bytes, a smaller batch, or None."""
        if info.attributes & ATTR_CONTROL:
            return self._clean_marker(data, info)
        return self._clean_data(data, info)

    # -- data batches

    def _clean_data(self, data: memoryview, info: BatchInfo) -> Kept:
        records = inflated_records(data, info)
        keep, tombstones = self._judge(info, decode_batch(data, info.position, records, False))
        if not any(keep) and not self._is_last(info):
            self.records_dropped += info.count
            return None
        if info.attributes & ATTR_TRANSACTIONAL:
            self._open.add(info.producer_id)
        horizon_ms = self._wait(info) if tombstones else -1
        if all(keep) and horizon_ms < 0:
            return whole(data, info)
        cleaned = with_records(data, info, keep, records, horizon_ms)
        if not isinstance(cleaned, memoryview):
            self.records_dropped += info.count - sum(keep)
        return cleaned

    def _judge(self, info: BatchInfo, slices: Slices) -> tuple[bytearray, bool]:
        """Which records stay, and whether a tombstone is among them."""
        keep = bytearray(info.count)
        if self._aborted.holds(info):
            return keep, False
        horizon_ms = _horizon_ms(info)
        expired = 0 <= horizon_ms <= self._now_ms
        tombstones = False
        for index, offset in enumerate(slices.offsets()):
            key = slices.key(index)
            if key is None:
                keep[index] = 1
            elif not self._keys.superseded(key, offset):
                dead = slices.value(index) is None
                keep[index] = not (dead and expired)
                tombstones = tombstones or (dead and not expired)
            if index % RECORDS_PER_PACE == RECORDS_PER_PACE - 1:
                self._pace()
        return keep, tombstones

    def _is_last(self, info: BatchInfo) -> bool:
        last = self._last_batches.get(info.producer_id)
        return last is not None and last.last_offset == info.last_offset

    # -- markers

    def _clean_marker(self, data: memoryview, info: BatchInfo) -> Kept:
        producer_id = info.producer_id
        if producer_id < 0 or read_marker(data, info) is None:
            return whole(data, info)  # no transaction's marker: its owner decides when it may go
        if producer_id in self._open:
            self._open.discard(producer_id)
            return whole(data, info)
        last = self._last_batches.get(producer_id)
        if last is not None and last == (info.producer_epoch, -1):
            return whole(data, info)  # nothing else tells the producer's epoch
        if 0 <= _horizon_ms(info) <= self._now_ms:
            self.records_dropped += info.count
            return None
        horizon_ms = self._wait(info)
        if horizon_ms < 0:
            return whole(data, info)
        return keep_records(data, info.position, b"\1" * info.count, None, horizon_ms)

    def _wait(self, info: BatchInfo) -> int:
        """Note when this batch is due. Returns the horizon to set, or -1 when it has one."""
        present_ms = _horizon_ms(info)
        due_ms = present_ms if present_ms >= 0 else self._now_ms + self._tombstone_ms
        if self.next_horizon_ms < 0 or due_ms < self.next_horizon_ms:
            self.next_horizon_ms = due_ms
        return -1 if present_ms >= 0 else due_ms


def _horizon_ms(info: BatchInfo) -> int:
    """The delete horizon of a batch; -1 when none was set."""
    return info.base_timestamp_ms if info.attributes & ATTR_DELETE_HORIZON else -1
