"""What a partition knows of the records of a piece: its state as of the piece's end, and aborts.

Rules: values that belong to the loop are copied there before a thread begins (`gather`). The state
as of an offset is made from batch headers, like a replay; it goes on where the last piece ended.
Producers that have been silent since before the local log are taken from the partition itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from onelog.base.ids import Offset
from onelog.kernel import scan_batches
from onelog.log.epochs import EpochHistory
from onelog.log.partition import Partition
from onelog.log.producers import Producers
from onelog.log.replay import REPLAY_READ_BYTES, encode_state, note_batch
from onelog.log.stream import StreamRecord
from onelog.objects.piece import AbortedSpan
from onelog.storage.engine import PartitionLog, in_place


class StateAt:
    """The derived state of a partition as of an offset that only moves up."""

    __slots__ = ("_log", "_offset", "_producers")

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._offset = log.local_start_offset
        self._producers = Producers()

    def advance(self, end: Offset, now_ms: int) -> Producers:
        """In a thread: the producers as of `end`."""
        if end < self._offset:  # the log was cut
            self._offset, self._producers = self._log.local_start_offset, Producers()
        log, producers = self._log, self._producers
        while self._offset < end:
            data = in_place(log, partial(log.read, self._offset, REPLAY_READ_BYTES, end))
            infos = scan_batches(data, 0, False)
            if not infos:
                break
            for info in infos:
                if info.producer_id >= 0 and info.base_offset >= self._offset:
                    note_batch(producers, data, info, now_ms)
            self._offset = Offset(infos[-1].last_offset + 1)
        self._offset = max(self._offset, end)
        producers.settle(end)
        return producers


class PieceFacts:
    """A `PieceSource`: what an upload has to know beside the bytes."""

    __slots__ = ("_aborted", "_epochs", "_known", "_now_ms", "_state", "leader_epoch", "stream")

    def __init__(self, partition: Partition, record: StreamRecord, state: StateAt) -> None:
        """On the loop: copy what belongs to the loop."""
        status = partition.tier_status()
        begin = partition.start_offset if status is None else status.cold_end_offset
        self.stream = msgspec.json.encode(record)
        self.leader_epoch = int(partition.leader_epoch)
        self._state = state
        self._epochs = partition.epochs.rows()
        self._known = partition.producers.encode()
        self._now_ms = partition.shared.clock.now_ms()
        self._aborted = [
            AbortedSpan(*msgspec.structs.astuple(txn))
            for txn in partition.producers.aborted_between(begin, partition.last_stable_offset)
        ]

    def state(self, end: Offset) -> bytes:
        """In a thread: the derived state as of `end`."""
        producers = self._state.advance(end, self._now_ms)
        for entry in Producers.decode(self._known).entries():
            if producers.entry(entry.producer_id) is None and all(
                batch.last_offset < end for batch in entry.batches
            ):
                producers.adopt(entry)
        epochs = EpochHistory([row for row in self._epochs if row[1] < end])
        return encode_state(producers, epochs)

    def aborted(self, start: Offset, end: Offset) -> Sequence[AbortedSpan]:
        """Aborted transactions with records in [start, end)."""
        return [span for span in self._aborted if span.first < end and span.last >= start]
