"""The codecs: what goes in comes out, damage and bombs are refused before memory is spent (I8)."""

import os
import tracemalloc

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.base.errors import CorruptBatch, MessageTooLarge, UnsupportedCodec
from onelog.record.compression import (
    CODEC_NAMES,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    deflate,
    inflate,
)

CODECS = [GZIP, SNAPPY, LZ4, ZSTD]
TEXT = os.urandom(100) + b"sensors/d1/telemetry" * 5000


@pytest.mark.parametrize("codec", [NONE, *CODECS])
@pytest.mark.parametrize("data", [b"", b"x", TEXT, os.urandom(200_000)], ids=len)
def test_every_codec_gives_back_what_it_got(codec: int, data: bytes) -> None:
    assert inflate(codec, deflate(codec, data)) == data
    assert inflate(codec, memoryview(bytearray(deflate(codec, memoryview(data))))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_makes_repetition_smaller(codec: int) -> None:
    assert len(deflate(codec, TEXT)) < len(TEXT) / 3


def test_both_framings_of_snappy_are_read_and_javas_is_written() -> None:
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    assert inflate(SNAPPY, raw) == TEXT
    xerial = deflate(SNAPPY, TEXT)
    assert xerial.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    size = int.from_bytes(xerial[16:20], "big")
    assert bytes(cramjam.snappy.decompress_raw(xerial[20 : 20 + size])) == TEXT[: 32 * 1024]


@pytest.mark.parametrize("codec", CODECS)
@given(cut=st.floats(0, 1, exclude_max=True))
def test_data_cut_short_is_damaged(codec: int, cut: float) -> None:
    data = deflate(codec, TEXT)
    short = data[: int(len(data) * cut)]
    try:
        found = inflate(codec, short)
    except CorruptBatch:
        return
    # Xerial has no end mark: a cut between two blocks shows only in the count of records.
    assert codec == SNAPPY
    assert TEXT.startswith(found)


@pytest.mark.parametrize("codec", CODECS)
@given(garbage=st.binary(max_size=200))
def test_garbage_is_damaged_or_harmless_and_nothing_else_is_raised(
    codec: int, garbage: bytes
) -> None:
    """I10."""
    try:
        inflate(codec, garbage, 1 << 20)
    except (CorruptBatch, MessageTooLarge):
        return


@pytest.mark.parametrize("codec", CODECS)
def test_garbage_after_the_data_is_damage(codec: int) -> None:
    with pytest.raises(CorruptBatch):
        inflate(codec, deflate(codec, TEXT) + b"junk")


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_and_the_limit_itself_is_allowed(codec: int) -> None:
    bomb = deflate(codec, bytes(3_000_000))
    for limit in (1000, 1_000_000, 2_999_999):
        with pytest.raises(MessageTooLarge, match=str(limit)):
            inflate(codec, bomb, limit)
    assert inflate(codec, bomb, 3_000_000) == bytes(3_000_000)


@pytest.mark.parametrize("codec", CODECS)
def test_a_refused_bomb_costs_little_more_memory_than_the_limit(codec: int) -> None:
    """I8."""
    bomb = deflate(codec, bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(MessageTooLarge):
            inflate(codec, bomb, 1_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(bomb) + 4_000_000


def test_a_snappy_block_cannot_claim_more_than_its_bytes_can_hold() -> None:
    """I8: five bytes must not reserve 200 MB."""
    claim = b"\x80\xc2\xd7\x2f" + b"\0"  # a varint of 100 000 000
    with pytest.raises(CorruptBatch, match="claims"):
        inflate(SNAPPY, claim)


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_an_unknown_codec_is_refused_both_ways(codec: int) -> None:
    assert codec not in CODEC_NAMES
    with pytest.raises(UnsupportedCodec):
        inflate(codec, b"")
    with pytest.raises(UnsupportedCodec):
        deflate(codec, b"")
