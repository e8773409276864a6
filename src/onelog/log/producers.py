"""What a partition remembers of its producers: sequences, open and aborted transactions.

Rules (Kafka's, because every view needs them):
- A producer's batches carry consecutive sequence numbers per partition and epoch, and a new epoch
  begins at 0. When one of the last five batches comes again, the answer is its old offset, and
  nothing is appended. A producer that is not known here may begin with any number: retention may
  have taken its batches.
- A number that a transaction which has ended here had is no repeat: whoever ended it waits for no
  answer of its batches. librdkafka gives the numbers of what it took back, when it aborts, to the
  next transaction; an old offset as the answer would lose that record. It must begin a new epoch.
- The highest epoch seen, in a batch or a marker, fences every lower one. The highest epoch of a
  coordinator, in a marker, fences markers of the owners before it.
- A transaction opens at the first transactional batch of a producer and ends with a control batch.
  The last stable offset is the first offset of the earliest open transaction; a transaction that
  has ended counts as open until its marker is visible, because a crash could still lose the marker.
- Aborted transactions are remembered for as long as this machine holds their records; the object
  store knows those whose records are only there (`aborted_from`).
All of it is derived from batch headers and markers, so it can be rebuilt by replay; a snapshot
only shortens the replay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Final

import msgspec

from onelog.base.errors import (
    CorruptBatch,
    DuplicateSequence,
    Fenced,
    InvalidTxnState,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownProducer,
)
from onelog.base.ids import Offset
from onelog.kernel import ATTR_TRANSACTIONAL, BatchInfo
from onelog.log.markers import MarkerRange, Markers
from onelog.record.batch import NO_COORDINATOR, Marker

BATCHES_REMEMBERED: Final = 5
PRODUCERS_MAX: Final = 100_000
"""Producers remembered per partition. Beyond that, the one known longest without a transaction
goes."""
SEQUENCE_MODULUS: Final = 2**31
_NEVER: Final = 2**63


class BatchMemory(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One appended batch of a producer."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ProducerEntry(msgspec.Struct, array_like=True):
    """One producer in one partition."""

    producer_id: int
    epoch: int
    last_seen_ms: int
    """The broker's clock when the producer last wrote: a client's own timestamps may be
    anything."""
    batches: list[BatchMemory]
    txn_first_offset: int = -1
    any_sequence: bool = False
    """A marker made this entry for an unknown producer: its next batch may have any sequence
    number."""
    coordinator_epoch: int = NO_COORDINATOR
    """The epoch of the coordinator that ended its last transaction here."""


class AbortedTxn(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An aborted transaction: its producer and the offsets from its first record to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class _Snapshot(msgspec.Struct, array_like=True):
    producers: list[ProducerEntry]
    aborted: list[AbortedTxn]
    markers: list[MarkerRange] = []
    ended: list[tuple[int, int]] = []


_decoder: Final = msgspec.msgpack.Decoder(_Snapshot)
"""Made once, here: msgspec breaks when threads use a type for the first time together."""


def next_sequence(last_sequence: int, step: int = 1) -> int:
    """The sequence number `step` after `last_sequence`; they wrap to 0 after 2^31 - 1."""
    return (last_sequence + step) % SEQUENCE_MODULUS


_NONE_ENDED: Final[deque[tuple[int, int]]] = deque()
"""Shared by all partitions without transactions: a deque for each would take much memory."""


def _find_repeated(entry: ProducerEntry, info: BatchInfo) -> BatchMemory | None:
    last_sequence = next_sequence(info.base_sequence, info.last_offset - info.base_offset)
    for memory in entry.batches:
        if memory.base_sequence == info.base_sequence and memory.last_sequence == last_sequence:
            return memory
    return None


def _is_over(entry: ProducerEntry, sequence: int) -> bool:
    """Whether a transaction that has ended here had a sequence number, as far as remembered."""
    begun = entry.txn_first_offset if entry.txn_first_offset >= 0 else _NEVER
    ended = [memory.last_sequence for memory in entry.batches if memory.base_offset < begun]
    return bool(ended) and _is_behind(sequence, ended[-1])


def _is_behind(sequence: int, newest: int) -> bool:
    """Whether a sequence number is not after another one."""
    return (newest - sequence) % SEQUENCE_MODULUS < SEQUENCE_MODULUS // 2


class Producers:
    """The producers of one partition."""

    __slots__ = ("_aborted", "_entries", "_open", "aborted_from", "ended", "markers")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._aborted: list[AbortedTxn] = []
        self.aborted_from = 0
        """Transactions that ended below this offset are not remembered here."""
        self._open: dict[int, int] = {}
        self.ended = _NONE_ENDED
        self.markers = Markers()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def first_open_offset(self) -> Offset | None:
        """First offset of the earliest transaction that is open or not visibly ended."""
        if not self._open and not self.ended:
            return None
        first = next(iter(self._open.values()), _NEVER)  # in the order of their first offsets
        if self.ended:
            first = min(first, *(begun for begun, _ in self.ended))
        return Offset(first)

    def settle(self, high_watermark: int) -> None:
        """Markers below the high watermark are visible: their transactions are decided."""
        while self.ended and self.ended[0][1] < high_watermark:
            self.ended.popleft()

    def open_transactions(self) -> dict[int, int]:
        """Producer id → first offset of its open transaction."""
        return dict(self._open)

    def entry(self, producer_id: int) -> ProducerEntry | None:
        """What is known of a producer."""
        return self._entries.get(producer_id)

    def entries(self) -> list[ProducerEntry]:
        """Every producer known."""
        return list(self._entries.values())

    def check(self, info: BatchInfo) -> BatchMemory | None:
        """Check a batch before it is appended: None to go on, or the earlier append that it
        repeats.

        Raises ProducerFenced, OutOfOrderSequence, DuplicateSequence, UnknownProducer or
        InvalidTxnState.
        """
        entry = self._entries.get(info.producer_id)
        if info.base_sequence < 0 or info.producer_epoch < 0:
            raise CorruptBatch(
                f"producer {info.producer_id} sent a batch without a sequence or an epoch"
            )
        if entry is None:
            return None  # unknown here (retention may have removed it): any sequence will do
        if info.producer_epoch < entry.epoch:
            raise ProducerFenced(
                f"producer {info.producer_id} has epoch {entry.epoch} here,"
                f" the batch says {info.producer_epoch}"
            )
        if info.producer_epoch > entry.epoch:
            if info.base_sequence != 0:
                raise OutOfOrderSequence(
                    f"producer {info.producer_id} begins epoch {info.producer_epoch}"
                    f" with sequence {info.base_sequence} instead of 0"
                )
            repeated = None
        else:
            repeated = self._check_sequence(entry, info)
        if entry.txn_first_offset >= 0 and not info.attributes & ATTR_TRANSACTIONAL:
            raise InvalidTxnState(
                f"producer {info.producer_id} has a transaction open here;"
                " its batches must be part of it"
            )
        return repeated

    @staticmethod
    def _check_sequence(entry: ProducerEntry, info: BatchInfo) -> BatchMemory | None:
        if not entry.batches:
            if info.base_sequence != 0 and not entry.any_sequence:
                raise OutOfOrderSequence(
                    f"producer {info.producer_id} begins epoch {info.producer_epoch}"
                    f" with sequence {info.base_sequence} instead of 0"
                )
            return None
        newest = entry.batches[-1].last_sequence
        if info.base_sequence == next_sequence(newest):
            return None
        if info.attributes & ATTR_TRANSACTIONAL and _is_over(entry, info.base_sequence):
            raise UnknownProducer(
                f"producer {info.producer_id} sent sequence {info.base_sequence}, which a"
                " transaction had that has ended: it must begin a new epoch"
            )
        repeated = _find_repeated(entry, info)
        if repeated is not None:
            return repeated
        if _is_behind(info.base_sequence, newest):
            raise DuplicateSequence(
                f"producer {info.producer_id} repeats sequence {info.base_sequence},"
                f" older than the last {BATCHES_REMEMBERED} batches"
            )
        raise OutOfOrderSequence(
            f"producer {info.producer_id} sent sequence {info.base_sequence},"
            f" expected {next_sequence(newest)}"
        )

    def find_repeated(self, info: BatchInfo, producer_id: int) -> BatchMemory | None:
        """The append that a batch repeats, if the producer with this id has sent the batch
        before."""
        entry = self._entries.get(producer_id)
        if entry is None or entry.epoch != info.producer_epoch:
            return None
        return _find_repeated(entry, info)

    def note_batch(self, info: BatchInfo, now_ms: int) -> None:
        """Remember a data batch that was appended at its offsets."""
        entry = self._entries.get(info.producer_id)
        if entry is None or info.producer_epoch > entry.epoch:
            txn_first_offset = entry.txn_first_offset if entry is not None else -1
            coordinator = NO_COORDINATOR if entry is None else entry.coordinator_epoch
            entry = ProducerEntry(info.producer_id, info.producer_epoch, 0, [], txn_first_offset)
            entry.coordinator_epoch = coordinator
            self._remember(entry)
        entry.last_seen_ms = now_ms
        if info.base_sequence >= 0:
            last_sequence = next_sequence(info.base_sequence, info.last_offset - info.base_offset)
            entry.batches.append(
                BatchMemory(info.base_sequence, last_sequence, info.base_offset, info.last_offset)
            )
            del entry.batches[:-BATCHES_REMEMBERED]
        if info.attributes & ATTR_TRANSACTIONAL and entry.txn_first_offset < 0:
            entry.txn_first_offset = info.base_offset
            self._open[info.producer_id] = info.base_offset

    def _remember(self, entry: ProducerEntry) -> None:
        self._entries[entry.producer_id] = entry
        if len(self._entries) <= PRODUCERS_MAX:
            return
        for producer_id, known in self._entries.items():
            if known.txn_first_offset < 0:
                del self._entries[producer_id]
                return

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int = NO_COORDINATOR
    ) -> None:
        """Check an end-of-transaction marker before it is appended. Raises ProducerFenced, or
        Fenced for a coordinator that another one has followed."""
        entry = self._entries.get(producer_id)
        if entry is not None and NO_COORDINATOR < coordinator_epoch < entry.coordinator_epoch:
            raise Fenced(
                f"the marker of producer {producer_id} is from a coordinator of epoch"
                f" {coordinator_epoch}, which epoch {entry.coordinator_epoch} has followed"
            )
        if entry is not None and epoch < entry.epoch:
            raise ProducerFenced(
                f"the marker of producer {producer_id} has epoch {epoch}, known is {entry.epoch}"
            )

    def note_marker(
        self,
        info: BatchInfo,
        marker: Marker,
        now_ms: int,
        coordinator_epoch: int = NO_COORDINATOR,
    ) -> None:
        """Remember a marker that was appended at its offset."""
        self.markers.note(info.last_offset)
        entry = self._entries.get(info.producer_id)
        if entry is None:
            entry = ProducerEntry(info.producer_id, info.producer_epoch, 0, [], any_sequence=True)
            self._remember(entry)
        if info.producer_epoch > entry.epoch:
            entry.epoch, entry.batches, entry.any_sequence = info.producer_epoch, [], False
        entry.last_seen_ms = now_ms
        entry.coordinator_epoch = max(entry.coordinator_epoch, coordinator_epoch)
        first = self._open.pop(info.producer_id, -1)
        entry.txn_first_offset = -1
        if first < 0:
            return
        if self.ended is _NONE_ENDED:
            self.ended = deque()
        self.ended.append((first, info.last_offset))
        if marker is Marker.ABORT:
            stable = min(self._open.values(), default=info.last_offset + 1)
            self._aborted.append(AbortedTxn(info.producer_id, first, info.last_offset, stable))

    def is_open(self, producer_id: int) -> bool:
        """Whether this producer has a transaction open here."""
        return producer_id in self._open

    def aborted_between(self, start: int, end: int) -> list[AbortedTxn]:
        """Aborted transactions that have records in [start, end). In any thread: the list only
        grows, and another one takes its place when something is forgotten."""
        # last_offset ascends: markers are appended in order.
        known = self._aborted
        first = bisect_left(known, start, key=lambda txn: txn.last_offset)
        found = []
        for index in range(first, len(known)):
            txn = known[index]
            if txn.first_offset < end:
                found.append(txn)
            if txn.last_stable_offset >= end:
                break  # transactions that ended later began after the stable end of that time
        return found

    def forget_before(self, start: int) -> None:
        """Drop aborted transactions and markers that the log no longer holds."""
        self.markers.forget_before(start)
        self.forget_aborted_before(start)

    def forget_aborted_before(self, start: int) -> None:
        """Drop aborted transactions whose records are not on this machine."""
        first = bisect_left(self._aborted, start, key=lambda txn: txn.last_offset)
        if first:
            self._aborted = self._aborted[first:]
        self.aborted_from = max(self.aborted_from, start)

    def expire(self, before_ms: int) -> int:
        """Forget producers that have no open transaction and have been silent since `before_ms`."""
        gone = [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.last_seen_ms < before_ms and entry.txn_first_offset < 0
        ]
        for producer_id in gone:
            del self._entries[producer_id]
        return len(gone)

    def adopt(self, entry: ProducerEntry) -> None:
        """Know a producer that another state knows; it has no transaction here."""
        self._remember(
            ProducerEntry(
                entry.producer_id,
                entry.epoch,
                entry.last_seen_ms,
                list(entry.batches),
                any_sequence=entry.any_sequence,
            )
        )

    def forget(self, producer_id: int) -> None:
        """Forget a producer that never comes back, unless it has a transaction open here."""
        entry = self._entries.get(producer_id)
        if entry is not None and entry.txn_first_offset < 0:
            del self._entries[producer_id]

    def encode(self) -> bytes:
        """The whole state, for a snapshot."""
        entries = list(self._entries.values())
        return msgspec.msgpack.encode(
            _Snapshot(entries, self._aborted, self.markers.runs, list(self.ended))
        )

    @classmethod
    def decode(cls, blob: bytes) -> Producers:
        """The state of a snapshot."""
        snapshot = _decoder.decode(blob)
        state = cls()
        state._entries = {entry.producer_id: entry for entry in snapshot.producers}
        state._aborted = snapshot.aborted
        state.markers = Markers(snapshot.markers)
        state.ended = deque(snapshot.ended) if snapshot.ended else _NONE_ENDED
        in_transaction = (entry for entry in snapshot.producers if entry.txn_first_offset >= 0)
        state._open = {
            entry.producer_id: entry.txn_first_offset
            for entry in sorted(in_transaction, key=lambda entry: entry.txn_first_offset)
        }
        return state
