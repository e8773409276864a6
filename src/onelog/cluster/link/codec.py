"""Frames of links as bytes: OPEN, DIVERGE, CLOSE, BATCHES, MARK and ACK, in fixed layouts;
FORWARD and FORWARDED are in `forward_codec.py`.

Rules:
- OPEN, DIVERGE and CLOSE are about one feed, which is their channel. BATCHES, MARK and ACK are rows
  about any number of feeds, up to the end of the frame; their channel is 0.
- Neighbours of one kind become one frame; no frame overtakes another.
- Stored bytes are never copied here: they go out as the views that they are, and come in as views
  of the read.
- Every number is checked against its bounds, and a body has exactly the bytes of its fields. What
  the numbers mean for a partition is the matter of those who copy it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from onelog.base.ids import PartitionId
from onelog.base.limits import PARTITIONS_PER_STREAM_MAX
from onelog.cluster.forward_frames import ForwardBatch, Forwarded, LinkFrame
from onelog.cluster.frames import (
    AckFeed,
    CloseFeed,
    CloseReason,
    Diverge,
    FeedBatches,
    FeedFrame,
    MarkFeed,
    OpenFeed,
)
from onelog.cluster.link.forward_codec import (
    Encoder,
    Frames,
    decode_forwarded,
    decode_forwards,
    encode_forwarded,
    encode_forwards,
)
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

_OPEN: Final = struct.Struct(">Iiqqi")  # partition, leader epoch, end, durable, last epoch
_DIVERGE: Final = struct.Struct(">iiq")  # leader epoch, epoch, end
_CLOSE: Final = struct.Struct(">iq")  # leader epoch, offset
_BATCH: Final = struct.Struct(">IiqqqqI")
# feed, leader epoch, after, high watermark, start, compact bound, bytes that follow
_MARK: Final = struct.Struct(">Iiqqq")  # feed, leader epoch, high watermark, start, compact bound
_ACK: Final = struct.Struct(">Iiqq")  # feed, leader epoch, written, durable
_OBSERVER: Final = 1
_BY_COPY: Final = 0x80
_REASONS: Final = {int(reason): reason for reason in CloseReason}
NONE: Final = -1
"""An epoch of a log that has none."""


# -- writing


def encode_frames(frames: Frames) -> list[Buffer]:
    """Pieces for one write: the frames in their order, with neighbours of one kind joined.

    What is encoded already stays as it is.
    """
    pieces: list[Buffer] = []
    at = 0
    while at < len(frames):
        at = _ENCODERS[type(frames[at])](frames, at, pieces)
    return pieces


def _encode_batches(frames: Frames, at: int, pieces: list[Buffer]) -> int:
    place, size = len(pieces), 0
    pieces.append(b"")
    until = min(len(frames), at + ROWS_MAX)
    while at < until:
        row = frames[at]
        if not isinstance(row, FeedBatches):
            break
        added = len(row.data)
        assert 0 < added <= FRAME_BYTES_MAX - INNER_HEAD_BYTES - _BATCH.size
        if size and size + added > BATCHES_BYTES:
            break
        pieces.append(
            _BATCH.pack(
                row.feed, row.leader_epoch, row.after, row.high_watermark, row.start,
                row.compact_bound, added,
            )
        )  # fmt: skip
        pieces.append(row.data)
        size += _BATCH.size + added
        at += 1
    pieces[place] = head(LinkKind.BATCHES, size)
    return at


def _encode_acks(frames: Frames, at: int, pieces: list[Buffer]) -> int:
    rows: list[bytes] = []
    until = min(len(frames), at + ROWS_MAX)
    while at < until:
        row = frames[at]
        if not isinstance(row, AckFeed):
            break
        rows.append(_ACK.pack(row.feed, row.leader_epoch, row.written, row.durable))
        at += 1
    pieces.append(_framed(LinkKind.ACK, rows))
    return at


def _encode_marks(frames: Frames, at: int, pieces: list[Buffer]) -> int:
    rows: list[bytes] = []
    until = min(len(frames), at + ROWS_MAX)
    while at < until:
        row = frames[at]
        if not isinstance(row, MarkFeed):
            break
        told = row.high_watermark, row.start, row.compact_bound
        rows.append(_MARK.pack(row.feed, row.leader_epoch, *told))
        at += 1
    pieces.append(_framed(LinkKind.MARK, rows))
    return at


def _framed(kind: LinkKind, rows: list[bytes]) -> bytes:
    body = b"".join(rows)
    return head(kind, len(body)) + body


def _encode_open(frames: Frames, at: int, pieces: list[Buffer]) -> int:
    one = frames[at]
    assert isinstance(one, OpenFeed)
    key, name = one.partition, one.partition.stream_id.encode("ascii")
    body = _OPEN.pack(key.partition, one.leader_epoch, one.end, one.durable, one.last_epoch) + name
    flags = _OBSERVER if one.observer else 0
    pieces.append(head(LinkKind.OPEN, len(body), one.feed, flags) + body)
    return at + 1


def _encode_diverge(frames: Frames, at: int, pieces: list[Buffer]) -> int:
    one = frames[at]
    assert isinstance(one, Diverge)
    body = _DIVERGE.pack(one.leader_epoch, one.epoch, one.end)
    pieces.append(head(LinkKind.DIVERGE, len(body), one.feed) + body)
    return at + 1


def _encode_close(frames: Frames, at: int, pieces: list[Buffer]) -> int:
    one = frames[at]
    assert isinstance(one, CloseFeed)
    body = _CLOSE.pack(one.leader_epoch, one.offset)
    flags = int(one.reason) | (_BY_COPY if one.by_copy else 0)
    pieces.append(head(LinkKind.CLOSE, len(body), one.feed, flags) + body)
    return at + 1


def _keep(frames: Frames, at: int, pieces: list[Buffer]) -> int:
    one = frames[at]
    assert isinstance(one, bytes)
    pieces.append(one)
    return at + 1


_ENCODERS: Final[dict[type, Encoder]] = {
    # How the frames from a place on become pieces; returns the place behind them.
    FeedBatches: _encode_batches,
    AckFeed: _encode_acks,
    MarkFeed: _encode_marks,
    OpenFeed: _encode_open,
    Diverge: _encode_diverge,
    CloseFeed: _encode_close,
    ForwardBatch: encode_forwards,
    Forwarded: encode_forwarded,
    bytes: _keep,
}


# -- reading


def decode_frame(
    kind: int, flags: int, channel: int, buffer: bytes | bytearray, start: int, end: int
) -> Sequence[LinkFrame]:
    """The frames that a body holds, in order. Raises LinkViolation."""
    decode = _DECODERS.get(kind)
    if decode is None:
        raise LinkViolation(f"a frame of unknown kind {kind}")
    return decode(flags, channel, memoryview(buffer)[start:end])


def _decode_open(flags: int, channel: int, body: memoryview) -> Sequence[FeedFrame]:
    size = _OPEN.size
    if flags & ~_OBSERVER or len(body) <= size:
        raise LinkViolation(f"OPEN with flags {flags} and {len(body)} bytes")
    number, epoch, end, durable, last_epoch = _OPEN.unpack_from(body)
    name = bytes(body[size:])
    if not STREAM_ID.fullmatch(name) or number >= PARTITIONS_PER_STREAM_MAX:
        raise LinkViolation(f"OPEN names no partition: {name[:40]!r}/{number}")
    check_numbers(epoch, end, durable)
    _check_epoch(last_epoch)
    key = PartitionKey(name.decode("ascii"), PartitionId(number))
    return (OpenFeed(channel, key, epoch, end, durable, last_epoch, bool(flags)),)


def _decode_diverge(flags: int, channel: int, body: memoryview) -> Sequence[FeedFrame]:
    _check_plain("DIVERGE", flags, len(body), _DIVERGE.size)
    leader_epoch, epoch, end = _DIVERGE.unpack(body)
    check_numbers(leader_epoch, end)
    _check_epoch(epoch)
    return (Diverge(channel, leader_epoch, epoch, end),)


def _decode_close(flags: int, channel: int, body: memoryview) -> Sequence[FeedFrame]:
    _check_plain("CLOSE", 0, len(body), _CLOSE.size)
    reason = _REASONS.get(flags & ~_BY_COPY)
    if reason is None:
        raise LinkViolation(f"CLOSE with the unknown reason {flags}")
    leader_epoch, offset = _CLOSE.unpack(body)
    check_numbers(leader_epoch, offset)
    return (CloseFeed(channel, leader_epoch, reason, offset, bool(flags & _BY_COPY)),)


def _decode_batches(flags: int, channel: int, body: memoryview) -> Sequence[FeedFrame]:
    size, whole = _BATCH.size, len(body)
    if flags or channel or not whole:
        raise LinkViolation(f"BATCHES with flags {flags}, channel {channel}, {whole} bytes")
    rows: list[FeedFrame] = []
    at = 0
    while at < whole:
        if whole - at <= size or len(rows) == ROWS_MAX:
            raise LinkViolation(f"a row of BATCHES is cut off at byte {at} of {whole}")
        feed, epoch, after, mark, start, bound, added = _BATCH.unpack_from(body, at)
        at += size
        if not 0 < added <= whole - at:
            raise LinkViolation(f"a row of BATCHES has {added} bytes, {whole - at} are there")
        check_numbers(epoch, after, mark, start, bound)
        rows.append(FeedBatches(feed, epoch, after, mark, start, bound, body[at : at + added]))
        at += added
    return rows


def _decode_marks(flags: int, channel: int, body: memoryview) -> Sequence[FeedFrame]:
    _check_rows("MARK", flags, channel, len(body), _MARK.size)
    rows = [MarkFeed(*row) for row in _MARK.iter_unpack(body)]
    for row in rows:
        check_numbers(row.leader_epoch, row.high_watermark, row.start, row.compact_bound)
    return rows


def _decode_acks(flags: int, channel: int, body: memoryview) -> Sequence[FeedFrame]:
    _check_rows("ACK", flags, channel, len(body), _ACK.size)
    rows = [AckFeed(*row) for row in _ACK.iter_unpack(body)]
    for row in rows:
        if row.leader_epoch < 0 or not 0 <= row.durable <= row.written:
            raise LinkViolation(
                f"an ACK of epoch {row.leader_epoch}: written {row.written}, durable {row.durable}"
            )
    return rows


def _check_epoch(epoch: int) -> None:
    if epoch < NONE:
        raise LinkViolation(f"{epoch} is no epoch")


def _check_plain(name: str, flags: int, size: int, expected: int) -> None:
    if flags or size != expected:
        raise LinkViolation(f"{name} with flags {flags} and {size} bytes: {expected} are right")


def _check_rows(name: str, flags: int, channel: int, size: int, row: int) -> None:
    if flags or channel or not size or size % row or size > row * ROWS_MAX:
        raise LinkViolation(
            f"{name} with flags {flags}, channel {channel} and {size} bytes: rows have {row}"
        )


_DECODERS: Final[dict[int, Callable[[int, int, memoryview], Sequence[LinkFrame]]]] = {
    LinkKind.OPEN: _decode_open,
    LinkKind.DIVERGE: _decode_diverge,
    LinkKind.CLOSE: _decode_close,
    LinkKind.BATCHES: _decode_batches,
    LinkKind.MARK: _decode_marks,
    LinkKind.ACK: _decode_acks,
    LinkKind.FORWARD: decode_forwards,
    LinkKind.FORWARDED: decode_forwarded,
}
