"""The codecs of record batches: gzip, snappy, lz4 and zstd, each bounded when it inflates.

Rules: an inflated size is bounded before memory is spent (`INFLATED_BYTES_MAX`), so that a small
hostile batch cannot fill the broker. Snappy comes in two framings: raw, and the one that Java
clients write ("xerial": a magic, then blocks with lengths); both are read, xerial is written.
"""

from __future__ import annotations

from typing import Final

import cramjam

from onelog.base.errors import CorruptBatch, MessageTooLarge, UnsupportedCodec
from onelog.base.limits import INFLATED_BYTES_MAX

Buffer = bytes | bytearray | memoryview

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODEC_NAMES: Final = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_SNAPPY_RATIO_MAX: Final = 64
"""A copy of 64 bytes takes at least two: a block that claims more is damaged."""
_STREAM_CHUNK_BYTES: Final = 64 * 1024


def inflate(codec: int, data: Buffer, limit: int = INFLATED_BYTES_MAX) -> bytes:
    """Inflate the records section of a batch; never more than `limit` bytes."""
    if codec == NONE:
        return bytes(data)
    if codec not in CODEC_NAMES:
        raise UnsupportedCodec(f"compression codec {codec} is unknown; use one of 0 to 4")
    try:
        if codec == SNAPPY:
            return _inflate_snappy(bytes(data), limit)
        return _inflate_stream(codec, bytes(data), limit)
    except cramjam.DecompressionError as error:
        name = CODEC_NAMES[codec]
        raise CorruptBatch(f"the {name} data of a batch is damaged: {error}") from None


def deflate(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress the records section of a batch; a level of None is the library's default."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data, level))
    if codec == SNAPPY:
        return _deflate_snappy(memoryview(data))
    if codec == LZ4:
        return bytes(cramjam.lz4.compress(data, level))
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level))
    raise UnsupportedCodec(f"compression codec {codec} is unknown; use one of 0 to 4")


def _refuse(limit: int) -> MessageTooLarge:
    return MessageTooLarge(f"a compressed batch inflates to more than {limit} bytes")


def _inflate_stream(codec: int, data: bytes, limit: int) -> bytes:
    module = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}[codec]
    # decompress_into a buffer of `limit` bytes would spend the memory up front; a growing guess
    # spends what the data needs, at most the limit.
    guess = min(limit, max(_STREAM_CHUNK_BYTES, len(data) * 8))
    while True:
        target = bytearray(guess + 1)
        try:
            size = module.decompress_into(data, target)
        except cramjam.DecompressionError as error:
            if "failed to write" not in str(error):
                raise
            size = guess + 1
        if size <= guess:
            del target[size:]
            return bytes(target)
        del target  # an error that is kept would keep it, too
        if guess >= limit:
            raise _refuse(limit)
        guess = min(limit, guess * 8)


def _inflate_snappy(data: bytes, limit: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _inflate_snappy_block(data, limit, limit)
    out: list[bytes] = []
    position, total = len(_XERIAL_HEADER), 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if len(data) - position < size or size == 0:
            raise CorruptBatch("a snappy block of a batch is cut short")
        out.append(_inflate_snappy_block(data[position : position + size], limit - total, limit))
        total += len(out[-1])
        position += size
    return b"".join(out)


def _inflate_snappy_block(block: bytes, left: int, limit: int) -> bytes:
    claimed = cramjam.snappy.decompress_raw_len(block)
    if claimed > left:
        raise _refuse(limit)
    if claimed > len(block) * _SNAPPY_RATIO_MAX:
        raise CorruptBatch(f"a snappy block of {len(block)} bytes claims to hold {claimed}")
    return bytes(cramjam.snappy.decompress_raw(block))


def _deflate_snappy(data: memoryview) -> bytes:
    out = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        out += (len(block).to_bytes(4, "big"), block)
    return b"".join(out)
