"""The derived state of a partition: what its batches say of producers and epochs, and its snapshot.

Rules: the batches are the truth; a snapshot only shortens the replay. When the disk is full, no
snapshot is written.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from onelog.base.errors import StorageFull
from onelog.base.ids import Offset
from onelog.kernel import ATTR_CONTROL, BatchInfo, scan_batches
from onelog.log.epochs import EpochHistory
from onelog.log.producers import Producers
from onelog.record.batch import read_end
from onelog.storage.engine import PartitionLog, in_place

REPLAY_READ_BYTES: Final = 4 * 1024 * 1024
STATE_NAME: Final = "partition"


class DerivedState(msgspec.Struct, array_like=True):
    """A snapshot."""

    producers: bytes
    epochs: list[tuple[int, int]]


_decoder: Final = msgspec.msgpack.Decoder(DerivedState)
"""Made once, here: msgspec breaks when threads use a type for the first time together."""


def encode_state(producers: Producers, epochs: EpochHistory) -> bytes:
    """A snapshot of the state as it is now."""
    return msgspec.msgpack.encode(DerivedState(producers.encode(), epochs.rows()))


def try_save(log: PartitionLog, offset: Offset, state: bytes) -> bool:
    """Save a snapshot unless the disk is full. Without it, replay takes longer and nothing is
    lost."""
    try:
        log.save_state(STATE_NAME, offset, state)
    except StorageFull:
        return False
    return True


def note_batch(
    producers: Producers, data: bytes | bytearray | memoryview, info: BatchInfo, now_ms: int
) -> None:
    """Let the producer state see an appended batch, data or marker."""
    if not info.attributes & ATTR_CONTROL:
        producers.note_batch(info, now_ms)
        return
    end = read_end(data, info)
    if end is not None:
        marker, coordinator_epoch = end
        producers.note_marker(info, marker, now_ms, coordinator_epoch)


def replay_state(
    log: PartitionLog, now_ms: int, high_watermark: Offset | None = None
) -> tuple[Producers, EpochHistory]:
    """The derived state of a log: its newest snapshot and the batches since.

    Markers at or behind the high watermark decide nothing yet. None: the high watermark is the
    log's end.
    """
    # What only the object store has is not read here: a snapshot was kept before it left.
    producers, epochs, offset = Producers(), EpochHistory(), log.local_start_offset
    saved = log.load_state(STATE_NAME)
    if saved is not None:
        # A snapshot from before the log's start still knows producers whose batches are gone.
        offset = max(offset, saved[0])
        state = _decoder.decode(saved[1])
        producers, epochs = Producers.decode(state.producers), EpochHistory(state.epochs)
    end = log.end_offset
    while offset < end:
        data = in_place(log, partial(log.read, offset, REPLAY_READ_BYTES, end))
        infos = scan_batches(data, 0, False)
        if not infos:
            break
        for info in infos:
            if info.last_offset >= offset:
                epochs.note(max(info.leader_epoch, epochs.latest), info.base_offset)
                if info.producer_id >= 0:
                    note_batch(producers, data, info, now_ms)
        offset = Offset(infos[-1].last_offset + 1)
    producers.settle(end if high_watermark is None else high_watermark)
    producers.forget_before(log.start_offset)
    producers.forget_aborted_before(log.local_start_offset)
    return producers, epochs
