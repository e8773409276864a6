"""What both kernels promise about Arrow columns: many batches, exactly the records asked for."""

from itertools import pairwise

import pyarrow as pa
import pytest

from onelog.base.errors import CorruptBatch, InvalidRequest
from onelog.kernel import (
    WITH_HEADERS,
    WITH_KEYS,
    WITH_OFFSETS,
    WITH_TIMESTAMPS,
    WITH_TOPICS,
    WITH_VALUES,
)
from onelog.record.batch import build_batch, inflated_records

ALL = WITH_OFFSETS | WITH_TIMESTAMPS | WITH_KEYS | WITH_VALUES | WITH_HEADERS | WITH_TOPICS
ROWS = [
    (b"t/%d" % n if n % 4 else None, b"k%d" % n if n % 3 else None,
     None if n % 5 == 0 else b"v" * n,
     [(b"h%d" % i, None if i == 1 else b"x" * i) for i in range(n % 4)], 1000 + n)
    for n in range(21)
]  # fmt: skip


@pytest.fixture(params=["pure", "_native"])
def kernel(request):
    """The kernel, interpreted and compiled; skipped where it was not built."""
    return pytest.importorskip(f"onelog.kernel.{request.param}", exc_type=ImportError)


def binary(count, validity, offsets, data):
    buffers = [pa.py_buffer(validity) if validity else None]
    array = pa.Array.from_buffers(
        pa.binary(), count, [*buffers, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    array.validate(full=True)
    return array


def numbers(count, data):
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(data)]).to_pylist()


def read(columns):
    """Columns as the tuples that the builder takes, with the offset in front."""
    lists, name_ends, names, validity, ends, contents = columns.headers
    count = columns.count
    bounds = pa.Array.from_buffers(pa.int32(), count + 1, [None, pa.py_buffer(lists)]).to_pylist()
    pairs = list(
        zip(
            binary(bounds[-1], b"", name_ends, names).to_pylist(),
            binary(bounds[-1], validity, ends, contents).to_pylist(),
            strict=True,
        )
    )
    return list(
        zip(
            numbers(count, columns.offsets),
            binary(count, *columns.topics).to_pylist(),
            binary(count, *columns.keys).to_pylist(),
            binary(count, *columns.values).to_pylist(),
            [pairs[a:b] for a, b in pairwise(bounds)],
            numbers(count, columns.timestamps),
            strict=True,
        )
    )


def expected(rows, base):
    """What tagged rows read as: the topic rides in a header unless the key is it."""
    return [
        (base + at, topic if topic is not None else key, key, value,
         ([(b"~t", topic)] if topic is not None and topic != key else []) + headers, time_ms)
        for at, (topic, key, value, headers, time_ms) in enumerate(rows)
    ]  # fmt: skip


def test_batches_come_out_as_arrow_arrays_in_order(kernel):
    first = build_batch(ROWS[:9], base_offset=70, tag_topics=True)
    second = build_batch(ROWS[9:], base_offset=90, tag_topics=True)
    run = b"junk" + first + second
    columns = kernel.decode_columns([(run, 4, None), (run, 4 + len(first), None)], 0, 1 << 40, ALL)
    assert read(columns) == expected(ROWS[:9], 70) + expected(ROWS[9:], 90)


@pytest.mark.parametrize(("first", "end"), [(0, 70), (70, 71), (75, 92), (90, 200), (102, 300)])
def test_only_offsets_that_are_asked_for_come_out(kernel, first, end):
    batches = [
        build_batch(ROWS[:9], base_offset=70, tag_topics=True),
        build_batch(ROWS[9:], base_offset=90, tag_topics=True),
    ]
    columns = kernel.decode_columns([(data, 0, None) for data in batches], first, end, ALL)
    rows = expected(ROWS[:9], 70) + expected(ROWS[9:], 90)
    assert read(columns) == [row for row in rows if first <= row[0] < end]


def test_only_columns_that_are_asked_for_are_made(kernel):
    data = build_batch(ROWS)
    names = ("offsets", "timestamps", "keys", "values", "headers", "topics")
    for bit, name in enumerate(names):
        columns = kernel.decode_columns([(data, 0, None)], 0, 1 << 40, 1 << bit)
        assert columns.count == len(ROWS)
        assert [other for other in names if getattr(columns, other) is not None] == [name]


def test_a_column_without_nulls_has_no_validity_bits(kernel):
    data = build_batch([(None, b"k", b"v", (), 0)] * 3)
    columns = kernel.decode_columns([(data, 0, None)], 0, 9, WITH_KEYS | WITH_VALUES)
    assert columns.keys[0] == columns.values[0] == b""


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_batches_are_given_with_their_records(kernel, codec):
    data = build_batch(ROWS, base_offset=5, codec=codec)
    (info,) = kernel.scan_batches(data)
    plain = build_batch(ROWS, base_offset=5)
    assert kernel.decode_columns(
        [(data, 0, inflated_records(data, info))], 0, 99, ALL
    ) == kernel.decode_columns([(plain, 0, None)], 0, 99, ALL)
    with pytest.raises(InvalidRequest, match="compressed"):
        kernel.decode_columns([(data, 0, None)], 0, 99, ALL)


def test_append_time_is_the_time_of_all_records(kernel):
    data = build_batch(ROWS, attributes=8)
    columns = kernel.decode_columns([(data, 0, None)], 0, 99, WITH_TIMESTAMPS)
    assert set(numbers(columns.count, columns.timestamps)) == {1020}


def test_no_batches_are_no_rows(kernel):
    assert read(kernel.decode_columns([], 0, 9, ALL)) == []


def test_one_wrong_byte_anywhere_is_told_with_its_batch(kernel):
    good, bad = build_batch(ROWS), bytearray(build_batch(ROWS, base_offset=30))
    for at in range(16, len(bad), 7):  # the leader epoch before it is not part of the CRC
        bad[at] ^= 0x10
        with pytest.raises(CorruptBatch, match=f"at byte {len(good)}"):
            kernel.decode_columns(
                [(good + bytes(bad), 0, None), (good + bytes(bad), len(good), None)], 0, 9, ALL
            )
        bad[at] ^= 0x10


def test_inflated_records_that_are_wrong_are_told_with_their_record(kernel):
    data = build_batch(ROWS, codec=4)
    records = bytearray(build_batch(ROWS)[61:])
    with pytest.raises(CorruptBatch, match="the batch at byte 0"):
        kernel.decode_columns([(data, 0, bytes(records[:-1]))], 0, 9, ALL)
    with pytest.raises(CorruptBatch, match="bytes are left"):
        kernel.decode_columns([(data, 0, bytes(records) + b"\0")], 0, 9, ALL)


@pytest.mark.parametrize("pieces", [[(b"", 0, None)], [(b"x" * 61, 0, None)], [(b"", 5, None)]])
def test_what_is_no_batch_is_refused(kernel, pieces):
    with pytest.raises((CorruptBatch, InvalidRequest)):
        kernel.decode_columns(pieces, 0, 9, ALL)
