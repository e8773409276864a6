"""Batches of records: built, compressed, read, and the control batches that end transactions."""

import struct

import pytest

from onelog.base.errors import CorruptBatch
from onelog.kernel import (
    ATTR_CODEC_MASK,
    ATTR_CONTROL,
    ATTR_TRANSACTIONAL,
    keep_records,
    scan_batches,
    validate_records,
)
from onelog.record.batch import (
    Marker,
    Row,
    build_batch,
    build_marker,
    compress_batch,
    decode,
    inflated_records,
    iterate_batches,
    read_marker,
)
from onelog.record.compression import GZIP, LZ4, SNAPPY, ZSTD
from onelog.record.headers import Headers

ROWS: list[Row] = [
    (None, b"k1", b"v1", ((b"h", b"1"), (b"h", None), (b"", b"")), 1000),
    (None, None, b"", (), 900),
    (None, b"", None, (), 1100),
]


def found(data: bytes) -> list[tuple[bytes | None, bytes | None, Headers, int]]:
    (info,) = scan_batches(data)
    return [
        (key, value, headers, timestamp_ms)
        for _, timestamp_ms, key, value, headers in decode(data, info).records()
    ]


@pytest.mark.parametrize("codec", [0, GZIP, SNAPPY, LZ4, ZSTD])
def test_a_batch_gives_back_its_rows_with_every_codec(codec: int) -> None:
    """I6: null and empty, order and duplicates of headers, times."""
    data = build_batch(ROWS, base_offset=7, codec=codec, producer=(5, 1, 9))
    (info,) = scan_batches(data)
    assert info.attributes & ATTR_CODEC_MASK == codec
    assert (info.base_offset, info.last_offset, info.count) == (7, 9, 3)
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (5, 1, 9)
    assert (info.base_timestamp_ms, info.max_timestamp_ms) == (1000, 1100)
    assert found(data) == [(key, value, headers, ts) for _, key, value, headers, ts in ROWS]
    assert (inflated_records(data, info) is None) == (codec == 0)


def test_compressing_changes_only_the_records_and_what_describes_them() -> None:
    plain = build_batch(ROWS, base_offset=7)
    packed = compress_batch(plain, ZSTD)
    (one,), (other,) = scan_batches(plain), scan_batches(packed)
    assert other._replace(attributes=0, size_bytes=0) == one._replace(attributes=0, size_bytes=0)
    validate_records(packed, 0, inflated_records(packed, other))
    assert inflated_records(packed, other) == plain[61:]


def test_a_compressed_batch_can_lose_records_and_be_compressed_again() -> None:
    packed = build_batch(ROWS, base_offset=7, codec=LZ4)
    (info,) = scan_batches(packed)
    kept = keep_records(packed, 0, b"\1\0\1", inflated_records(packed, info))
    again = compress_batch(kept, LZ4)
    (after,) = scan_batches(again)
    assert (after.base_offset, after.last_offset, after.count) == (7, 9, 2)
    assert decode(again, after).offsets() == [7, 9]


def test_a_run_of_batches_is_iterated_in_order() -> None:
    run = build_batch(ROWS, base_offset=0) + build_batch(ROWS[:1], base_offset=3, codec=GZIP)
    assert [slices.offsets() for _, slices in iterate_batches(run)] == [[0, 1, 2], [3]]


def test_a_flipped_bit_is_found() -> None:
    data = bytearray(build_batch(ROWS, base_offset=0, codec=ZSTD))
    data[-3] ^= 1
    with pytest.raises(CorruptBatch):
        scan_batches(data)
    (info,) = scan_batches(data, 0, False)
    with pytest.raises(CorruptBatch):
        decode(data, info)


@pytest.mark.parametrize("marker", list(Marker))
def test_a_marker_says_how_whose_transaction_ended(marker: Marker) -> None:
    data = build_marker(marker, 77, 3, 123_456, coordinator_epoch=9)
    (info,) = scan_batches(data)
    assert info.attributes & ATTR_CONTROL
    assert info.attributes & ATTR_TRANSACTIONAL
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (77, 3, -1)
    assert info.max_timestamp_ms == 123_456
    assert read_marker(data, info) is marker
    ((key, value, headers, _),) = found(data)
    # Kafka's control record: key (version, type), value (version, coordinator epoch).
    assert key == struct.pack(">hh", 0, marker)
    assert value == struct.pack(">hi", 0, 9)
    assert headers == ()


def control(key: bytes | None) -> bytes:
    return build_batch([(None, key, b"", (), 0)], attributes=ATTR_CONTROL, producer=(1, 0, -1))


def test_control_records_of_other_types_are_no_markers() -> None:
    data = control(struct.pack(">hh", 0, 2))
    assert read_marker(data, scan_batches(data)[0]) is None


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_control_record_without_a_type_is_damaged(key: bytes | None) -> None:
    data = control(key)
    with pytest.raises(CorruptBatch):
        read_marker(data, scan_batches(data)[0])


def test_an_emptied_marker_says_nothing() -> None:
    data = keep_records(build_marker(Marker.COMMIT, 1, 0, 0), 0, b"\0")
    assert read_marker(data, scan_batches(data)[0]) is None
