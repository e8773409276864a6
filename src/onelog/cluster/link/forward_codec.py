"""FORWARD and FORWARDED as bytes, in fixed layouts.

Rules: as for the frames of feeds (`codec.py`). A row of FORWARD names its partition in full: it
stands for all that a pass published there, so the name costs little.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from onelog.base.ids import PartitionId
from onelog.base.limits import PARTITIONS_PER_STREAM_MAX
from onelog.cluster.forward_frames import OUTCOMES, ForwardBatch, Forwarded, LinkFrame
from onelog.cluster.link.layout import (
    BATCHES_BYTES,
    FRAME_BYTES_MAX,
    INNER_HEAD_BYTES,
    ROWS_MAX,
    STREAM_ID,
    LinkKind,
    LinkViolation,
    check_numbers,
    head,
)
from onelog.storage.engine import Buffer, PartitionKey

Frames = Sequence[LinkFrame | bytes]
Encoder = Callable[[Frames, int, list[Buffer]], int]
"""Turns the frames from a place on into pieces; returns the place behind them."""

_FORWARD: Final = struct.Struct(">IQIiBI")
# number, attempt, partition, leader epoch, bytes of the stream's id, bytes of the batch; then both
_FORWARDED: Final = struct.Struct(">IBiq")  # number, outcome, leader epoch, base offset
_NAME_BYTES_MAX: Final = 255


def encode_forwards(frames: Frames, at: int, pieces: list[Buffer]) -> int:
    """FORWARD, with as many of the next frames as it takes."""
    place, size = len(pieces), 0
    pieces.append(b"")
    until = min(len(frames), at + ROWS_MAX)
    while at < until:
        row = frames[at]
        if not isinstance(row, ForwardBatch):
            break
        name, added = row.partition.stream_id.encode("ascii"), len(row.data)
        assert 0 < added <= FRAME_BYTES_MAX - INNER_HEAD_BYTES - _FORWARD.size - _NAME_BYTES_MAX
        if size and size + added > BATCHES_BYTES:
            break
        begin = _FORWARD.pack(
            row.number, row.attempt, row.partition.partition, row.leader_epoch, len(name), added
        )
        pieces.append(begin + name)
        pieces.append(row.data)
        size += len(begin) + len(name) + added
        at += 1
    pieces[place] = head(LinkKind.FORWARD, size)
    return at


def encode_forwarded(frames: Frames, at: int, pieces: list[Buffer]) -> int:
    """FORWARDED, with as many of the next frames as it takes."""
    rows: list[bytes] = []
    until = min(len(frames), at + ROWS_MAX)
    while at < until:
        row = frames[at]
        if not isinstance(row, Forwarded):
            break
        rows.append(_FORWARDED.pack(row.number, row.outcome, row.leader_epoch, row.base))
        at += 1
    body = b"".join(rows)
    pieces.append(head(LinkKind.FORWARDED, len(body)) + body)
    return at


def decode_forwards(flags: int, channel: int, body: memoryview) -> Sequence[ForwardBatch]:
    """The rows of FORWARD. Raises LinkViolation."""
    size, whole = _FORWARD.size, len(body)
    if flags or channel or not whole:
        raise LinkViolation(f"FORWARD with flags {flags}, channel {channel}, {whole} bytes")
    rows: list[ForwardBatch] = []
    at = 0
    while at < whole:
        if whole - at <= size or len(rows) == ROWS_MAX:
            raise LinkViolation(f"a row of FORWARD is cut off at byte {at} of {whole}")
        number, attempt, partition, epoch, named, added = _FORWARD.unpack_from(body, at)
        at += size
        name = bytes(body[at : at + named])
        at += named
        if not 0 < added <= whole - at:
            raise LinkViolation(f"a row of FORWARD has {added} bytes, {whole - at} are there")
        if not STREAM_ID.fullmatch(name) or partition >= PARTITIONS_PER_STREAM_MAX:
            raise LinkViolation(f"FORWARD names no partition: {name[:40]!r}/{partition}")
        check_numbers(epoch)
        key = PartitionKey(name.decode("ascii"), PartitionId(partition))
        rows.append(ForwardBatch(number, attempt, key, epoch, body[at : at + added]))
        at += added
    return rows


def decode_forwarded(flags: int, channel: int, body: memoryview) -> Sequence[Forwarded]:
    """The rows of FORWARDED. Raises LinkViolation."""
    size, row = len(body), _FORWARDED.size
    if flags or channel or not size or size % row or size > row * ROWS_MAX:
        raise LinkViolation(
            f"FORWARDED with flags {flags}, channel {channel} and {size} bytes: rows have {row}"
        )
    rows = []
    for number, said, epoch, base in _FORWARDED.iter_unpack(body):
        outcome = OUTCOMES.get(said)
        if outcome is None:
            raise LinkViolation(f"FORWARDED with the unknown outcome {said}")
        check_numbers(epoch, base)
        rows.append(Forwarded(number, outcome, epoch, base))
    return rows
