"""What both kernels promise about record batches: written, scanned, cut out, thinned."""

import os
import struct
from array import array

import pytest

import onelog.kernel
from onelog.base import limits
from onelog.base.errors import (
    CorruptBatch,
    InvalidRecords,
    InvalidRequest,
    LimitExceeded,
    MessageTooLarge,
)
from onelog.kernel import types


@pytest.fixture(params=["pure", "_native"])
def kernel(request):
    """The kernel, interpreted and compiled; skipped where it was not built."""
    return pytest.importorskip(f"onelog.kernel.{request.param}", exc_type=ImportError)


ROWS = [
    (b"a/b", b"a/b", b"one", (), 1000),
    (b"a/c", None, b"", [(b"h", None), (b"h", b"\x00\xff")], 999),
    (None, b"", None, [], 1001),
]


def sealed(kernel, rows=ROWS, base_offset=100, tag=True, **fields):
    builder = kernel.BatchBuilder(tag)
    builder.extend(rows)
    return builder.seal(base_offset, **fields)


def patched(data, at, layout, *values):
    """The batch with some of its bytes changed and its CRC made right again."""
    out = bytearray(data)
    struct.pack_into(layout, out, at, *values)
    struct.pack_into(">I", out, 17, onelog.kernel.crc32c(out[21:]))
    return bytes(out)


def column(*items):
    """A column of bytes as Arrow lays it out."""
    bits = bytearray((len(items) + 7) // 8)
    ends, data = [0], b""
    for at, item in enumerate(items):
        bits[at >> 3] |= (item is not None) << (at & 7)
        data += item or b""
        ends.append(len(data))
    return bytes(bits), struct.pack(f"<{len(ends)}i", *ends), data


KEYS = (b"k", None, b"", b"key", *(b"%d" % at for at in range(20)))
VALUES = (b"one", b"", None, b"v" * 300, *(b"x" * at for at in range(20)))


@pytest.mark.parametrize(("first", "end"), [(0, 24), (3, 17), (7, 7), (23, 24)])
def test_rows_of_columns_are_staged_as_the_same_messages_are(kernel, first, end):
    messages = [(None, key, value, (), 5) for key, value in zip(KEYS, VALUES, strict=True)]
    whole = [(None, None, b"before", (), 4)]
    builder = kernel.BatchBuilder(False)
    builder.extend(whole)
    builder.extend_columns(column(*KEYS), column(*VALUES), first, end, 5)
    assert builder.seal(0) == sealed(kernel, whole + messages[first:end], 0, tag=False)
    builder.extend(whole)
    builder.extend_columns(None, column(*VALUES), first, end, 5)
    unkeyed = [(None, None, value, (), 5) for value in VALUES[first:end]]
    assert builder.seal(0) == sealed(kernel, whole + unkeyed, 0, tag=False)


def test_columns_without_nulls_need_no_bits(kernel):
    _bits, ends, data = column(b"a", b"b")
    builder = kernel.BatchBuilder(False)
    builder.extend_columns(None, (b"", memoryview(ends), bytearray(data)), 0, 2, 5)
    rows = [(None, None, value, (), 5) for value in (b"a", b"b")]
    assert builder.seal(0) == sealed(kernel, rows, 0, tag=False)


@pytest.mark.parametrize(
    ("first", "end", "change"),
    [
        (-1, 1, {}),
        (2, 1, {}),
        (0, 25, {}),
        (0, 24, {"bits": b"\xff"}),
        (0, 24, {"ends": b""}),
        (0, 24, {"data": b"short"}),
        (0, 3, {"ends": struct.pack("<4i", 0, 2, 1, 3)}),
        (0, 3, {"ends": struct.pack("<4i", -1, 0, 1, 3)}),
    ],
)
def test_columns_that_cannot_be_are_refused_and_stage_nothing(kernel, first, end, change):
    bits, ends, data = column(*VALUES)
    bad = (change.get("bits", bits), change.get("ends", ends), change.get("data", data))
    builder = kernel.BatchBuilder(False)
    builder.extend([(None, None, b"before", (), 4)])
    for keys, values in ((None, bad), (bad, column(*VALUES))):
        with pytest.raises(InvalidRequest):
            builder.extend_columns(keys, values, first, end, 5)
        assert builder.count == 1
    with pytest.raises(InvalidRequest, match="timestamp"):
        builder.extend_columns(None, column(*VALUES), 0, 5, -2)
    assert builder.seal(0) == sealed(kernel, [(None, None, b"before", (), 4)], 0, tag=False)


def test_columns_larger_than_a_batch_are_refused_and_stage_nothing(kernel):
    big = column(b"x" * (40 << 20))
    builder = kernel.BatchBuilder(False)
    builder.extend_columns(None, big, 0, 1, 5)
    with pytest.raises(MessageTooLarge):
        builder.extend_columns(None, big, 0, 1, 5)
    assert builder.count == 1


def test_the_compiled_kernel_is_in_use_where_it_is_required():
    if os.environ.get("ONELOG_REQUIRE_NATIVE") == "1":
        assert onelog.kernel.COMPILED
    assert ("pure" not in onelog.kernel.TopicTrie.__module__) == onelog.kernel.COMPILED


def test_every_name_of_the_kernel_is_in_both_implementations(kernel):
    shared = set(onelog.kernel.__all__) - set(vars(types)) - {"COMPILED", "WHY_INTERPRETED"}
    assert shared == set(kernel.__all__)


def test_a_batch_is_written_byte_for_byte_as_the_format_says(kernel):
    """I6. Worked out by hand from the format, not by our own code."""
    data = sealed(
        kernel, [(b"t", b"t", b"v", (), 7)], 5, leader_epoch=3, producer_id=9, base_sequence=0
    )
    record = bytes([0x10, 0, 0, 0, 2]) + b"t" + bytes([2]) + b"v" + bytes([0])
    assert data[61:] == record
    assert data[:17] == struct.pack(">qiib", 5, 49 + len(record), 3, 2)
    assert data[21:61] == struct.pack(">hiqqqhii", 0, 0, 7, 7, 9, -1, 0, 1)
    assert data[17:21] == struct.pack(">I", kernel.crc32c(data[21:]))


def test_records_come_back_as_they_were_staged(kernel):
    """I6: null and empty differ, header order and duplicates stay, bytes are untouched."""
    slices = kernel.decode_batch(sealed(kernel, tag=False))
    assert slices.records() == [
        (100, 1000, b"a/b", b"one", ()),
        (101, 999, None, b"", ((b"h", None), (b"h", b"\x00\xff"))),
        (102, 1001, b"", None, ()),
    ]
    assert slices.offsets() == [100, 101, 102]
    assert (len(slices), slices.key(2), slices.value(2), slices.offset(1)) == (3, b"", None, 101)
    with pytest.raises(IndexError):
        slices.value(3)
    with pytest.raises(IndexError):
        slices.value(-1)


def test_key_and_value_may_be_any_bytes_like(kernel):
    row = (b"t", bytearray(b"key"), memoryview(b"__value__")[2:-2], [(b"h", b"x")], 1)
    assert kernel.decode_batch(sealed(kernel, [row], tag=False)).records() == [
        (100, 1, b"key", b"value", ((b"h", b"x"),))
    ]


def test_a_topic_is_written_only_when_the_key_does_not_say_it(kernel):
    slices = kernel.decode_batch(sealed(kernel))
    assert [slices.topic(i) for i in range(3)] == [b"a/b", b"a/c", b""]
    assert slices.record(0)[4] == ()
    assert slices.record(1)[4][0] == (b"~t", b"a/c")


def test_a_header_of_the_caller_cannot_pose_as_the_topic(kernel):
    row = (b"mine", b"mine", b"v", [(b"~t", b"other")], 1)
    slices = kernel.decode_batch(sealed(kernel, [row]))
    assert slices.topic(0) == b"mine"
    assert slices.record(0)[4] == ((b"~t", b"mine"), (b"~t", b"other"))


def test_the_builder_and_the_stored_batch_name_the_same_topics(kernel):
    builder = kernel.BatchBuilder(True)
    builder.extend(ROWS[:2])
    pairs = builder.topics()
    expected = [(kernel.topic_hash(b"a/b"), 0), (kernel.topic_hash(b"a/c"), 1)]
    assert list(struct.iter_unpack("<II", pairs)) == expected
    assert kernel.batch_topics(builder.seal(0)) == pairs
    assert builder.topics() == b""


def test_a_sealed_builder_is_empty_and_starts_again(kernel):
    builder = kernel.BatchBuilder(False)
    assert builder.add(None, b"k", b"v", (), 5) == 0
    assert builder.add(None, b"k", b"v", (), 6) == 1
    size = builder.size_bytes
    assert builder.max_timestamp_ms == 6
    first = builder.seal(0)
    assert len(first) == size
    assert (builder.count, builder.size_bytes) == (0, 61)
    with pytest.raises(InvalidRequest):
        builder.seal(0)
    builder.add(None, b"k", b"v", (), 5)
    builder.add(None, b"k", b"v", (), 6)
    assert builder.seal(0) == first


def test_an_extend_that_fails_stages_nothing(kernel):
    builder = kernel.BatchBuilder(True)
    builder.extend(ROWS[:1])
    before = (builder.count, builder.size_bytes, builder.topics())
    for bad in (
        (b"t", b"k", b"v", (), -2),
        (b"t", b"k", b"v", (), 1 << 62),
        (b"t", b"k", b"v", (), 1 << 70),
    ):
        with pytest.raises(InvalidRequest):
            builder.extend([ROWS[1], bad])
    with pytest.raises(TypeError):
        builder.extend([ROWS[1], (b"t", 5, b"v", (), 1)])
    with pytest.raises(ValueError, match="unpack"):
        builder.extend([ROWS[1], (b"t", b"k")])
    assert (builder.count, builder.size_bytes, builder.topics()) == before
    assert builder.seal(100) == sealed(kernel, ROWS[:1])


def test_the_builder_keeps_the_limits(kernel):
    """I8."""
    builder = kernel.BatchBuilder(True)
    most = [(b"h", None)] * limits.HEADERS_PER_RECORD_MAX
    builder.add(b"t", b"t", None, most, 1)
    with pytest.raises(LimitExceeded):
        builder.add(b"t", b"t", None, [*most, (b"h", None)], 1)
    with pytest.raises(LimitExceeded):
        builder.add(b"other", b"t", None, most, 1)  # the topic's own header is one too many
    room = limits.BATCH_BYTES_MAX - builder.size_bytes
    value = bytes(room)
    with pytest.raises(MessageTooLarge):
        builder.add(b"t", b"t", value, (), 1)
    with pytest.raises(MessageTooLarge):
        builder.add(b"t", b"t", None, [(b"h", value)], 1)
    assert builder.count == 1
    builder.add(b"t", b"t", memoryview(value)[: room - 14], (), 1)
    assert builder.size_bytes == limits.BATCH_BYTES_MAX
    assert kernel.scan_batches(builder.seal(0))[0].count == 2


def test_a_scan_tells_what_the_headers_say(kernel):
    first = sealed(kernel, leader_epoch=4, attributes=16, producer_id=7, producer_epoch=1)
    second = sealed(kernel, base_offset=200)
    found = kernel.scan_batches(b"xx" + first + second, 2)
    assert found[0] == onelog.kernel.BatchInfo(
        2, len(first), 100, 102, 4, 16, 1000, 1001, 7, 1, -1, 3
    )
    assert isinstance(found[0], onelog.kernel.BatchInfo)
    assert [info.position for info in found] == [2, 2 + len(first)]
    assert len(kernel.scan_batches(first + second, limit=1)) == 1
    assert kernel.scan_batches(b"") == []


@pytest.mark.parametrize(
    ("at", "layout", "value", "says"),
    [
        (16, ">b", 1, "magic"),
        (8, ">i", 48, "length field"),
        (8, ">i", -1, "length field"),
        (8, ">i", limits.BATCH_BYTES_MAX, "length field"),
        (8, ">i", 1000, "past the end"),
        (0, ">q", -1, "base offset"),
        (0, ">q", (1 << 63) - 2, "base offset"),
        (23, ">i", -1, "last offset delta"),
        (57, ">i", -1, "record count"),
        (57, ">i", 4, "record count"),
    ],
)
def test_a_bad_header_is_named(kernel, at, layout, value, says):
    """I10."""
    data = patched(sealed(kernel), at, layout, value)
    with pytest.raises(CorruptBatch, match=says):
        kernel.scan_batches(data)
    with pytest.raises(CorruptBatch, match=says):
        kernel.find_batch(data, 0, len(data), 0)
    with pytest.raises(CorruptBatch, match=says):
        kernel.decode_batch(data)
    assert kernel.scan_valid(sealed(kernel) + data)[1] == len(sealed(kernel))


def test_a_count_above_the_limit_is_refused_before_memory_is_taken(kernel):
    """I8."""
    data = patched(sealed(kernel), 23, ">i", (1 << 31) - 1)
    with pytest.raises(CorruptBatch, match="record count"):
        kernel.scan_batches(patched(data, 57, ">i", limits.RECORDS_PER_BATCH_MAX + 1))
    data = patched(data, 57, ">i", limits.RECORDS_PER_BATCH_MAX)
    assert kernel.scan_batches(data)[0].count == limits.RECORDS_PER_BATCH_MAX
    with pytest.raises(CorruptBatch, match="record count"):
        kernel.decode_batch(data)


def test_every_flipped_bit_behind_the_prefix_is_seen_by_the_crc(kernel):
    data = sealed(kernel)
    for at in range(16, len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(CorruptBatch):
            kernel.scan_batches(damaged)


def test_recovery_stops_at_the_first_bad_batch_and_says_why(kernel):
    first, second = sealed(kernel), sealed(kernel, base_offset=103)
    whole = first + second
    assert kernel.scan_valid(whole)[1:] == (len(whole), "")
    for end in range(len(first) + 1, len(whole)):
        found, position, why = kernel.scan_valid(whole[:end])
        assert (len(found), position) == (1, len(first))
        assert f"byte {len(first)}" in why
    found, position, why = kernel.scan_valid(first + first)
    assert (len(found), position) == (1, len(first))
    assert "come after" in why
    assert kernel.scan_valid(first, expect_offset=101)[:2] == ([], 0)
    assert len(kernel.scan_valid(first, expect_offset=90)[0]) == 1


def test_marks_say_where_checked_batches_begin_and_stop_at_the_first_bad_one(kernel):
    runs = [sealed(kernel, base_offset=base) for base in (100, 110, 120, 130)]
    data, size = b"".join(runs), len(runs[0])

    def marks(*asked):
        offsets, positions, *rest = kernel.mark_batches(*asked)
        return list(array("q", offsets)), list(array("I", positions)), *rest

    last = kernel.scan_batches(data)[-1].last_offset
    every = ([100, 110, 120, 130], [0, size, 2 * size, 3 * size])
    assert marks(data, 0, len(data), 1) == (*every, 102, last + 1, len(data), "")
    assert marks(data, 0, len(data), size + 1)[:2] == ([100, 120], [0, 2 * size])
    # Enough bytes: it ends with the batch that reaches them, and goes on from there.
    assert marks(data, 0, size + 1, 1) == ([100, 110], [0, size], 102, 113, 2 * size, "")
    assert marks(data, 2 * size, 1 << 20, 1, 113)[1:] == (
        [2 * size, 3 * size], 122, last + 1, len(data), "",
    )  # fmt: skip
    assert marks(b"", 0, 10, 1) == ([], [], -1, -1, 0, "")
    for at in range(2 * size + 16, 3 * size):
        damaged = bytearray(data)
        damaged[at] ^= 1
        found, _positions, _first, behind, stop, why = marks(damaged, 0, len(data), 1)
        assert (found, behind, stop) == ([100, 110], 113, 2 * size)
        assert why
    assert "come after" in marks(runs[1] + runs[0], 0, len(data), 1)[-1]
    for bad in ((-1, 5, 1), (0, -1, 1), (0, 5, 0), (len(data) + 1, 5, 1)):
        with pytest.raises(InvalidRequest):
            kernel.mark_batches(data, *bad)


def test_find_and_fit_walk_whole_batches(kernel):
    runs = [sealed(kernel, base_offset=base) for base in (100, 110, 120)]
    data, size = b"".join(runs), len(runs[0])
    assert [kernel.find_batch(data, 0, len(data), n) for n in (0, 102, 103, 112, 121, 123)] == [
        0, 0, size, size, 2 * size, -1,
    ]  # fmt: skip
    assert kernel.fit_batches(data, 0, len(data), 2 * size, 1000) == 2 * size
    assert kernel.fit_batches(data, 0, len(data), 2 * size - 1, 1000) == size
    assert kernel.fit_batches(data, 0, len(data), 1, 1000) == size  # one at least
    assert kernel.fit_batches(data, 0, len(data), 1 << 20, 113) == 2 * size
    assert kernel.fit_batches(data, 0, len(data), 1 << 20, 112) == size
    assert kernel.fit_batches(data, 0, len(data), 1 << 20, 102) == 0
    for bad in ((-1, 5), (5, 4), (0, len(data) + 1)):
        with pytest.raises(InvalidRequest):
            kernel.find_batch(data, *bad, 0)


def test_new_offsets_are_patched_in_and_the_crc_stays_valid(kernel):
    one, two = sealed(kernel), sealed(kernel, ROWS[:1], 7)
    data = bytearray(one + two)
    placed = kernel.place_batches(data, 5000, 12)
    assert placed == kernel.scan_batches(data)
    assert [(info.base_offset, info.last_offset) for info in placed] == [(5000, 5002), (5003, 5003)]
    assert {info.leader_epoch for info in placed} == {12}
    assert kernel.place_batches(bytearray(), 1, 1) == []
    with pytest.raises(CorruptBatch):
        kernel.place_batches(bytearray(one + two[:-1]), 1, 1)
    with pytest.raises((BufferError, TypeError)):
        kernel.place_batches(one, 1, 1)


def test_records_of_a_compressed_batch_are_given_inflated(kernel):
    plain = sealed(kernel)
    data = patched(plain, 21, ">h", 4)
    with pytest.raises(InvalidRequest, match="compressed"):
        kernel.decode_batch(data)
    with_records = kernel.decode_batch(data, records=plain[61:])
    assert with_records.records() == kernel.decode_batch(plain).records()
    assert kernel.batch_topics(data, records=plain[61:]) == kernel.batch_topics(plain)
    kernel.validate_records(data, 0, plain[61:])
    with pytest.raises(CorruptBatch, match="left after the last record"):
        kernel.validate_records(data, 0, plain[61:] + b"\0")
    with pytest.raises(CorruptBatch, match="record 2"):
        kernel.validate_records(data, 0, plain[61:-1])
    with pytest.raises(InvalidRecords, match=r"record 1 .* no key"):
        kernel.validate_records(data, 0, plain[61:], True)


def test_offsets_inside_a_batch_must_ascend(kernel):
    data = bytearray(sealed(kernel, [(None, None, None, (), 0)] * 3))
    assert data[61:68] == bytes([12, 0, 0, 0, 1, 1, 0])
    data[61 + 7 + 3] = 0
    with pytest.raises(CorruptBatch, match=r"record 1 .*does not ascend"):
        kernel.validate_records(data)
    data[61 + 7 + 3] = 6
    with pytest.raises(CorruptBatch, match=r"record 1 .*passes"):
        kernel.validate_records(data)


def test_log_append_time_is_the_time_of_every_record(kernel):
    slices = kernel.decode_batch(sealed(kernel, attributes=onelog.kernel.ATTR_LOG_APPEND_TIME))
    assert [slices.timestamp_ms(i) for i in range(3)] == [1001] * 3


def test_kept_records_keep_their_offsets_times_and_producer(kernel):
    data = sealed(kernel, producer_id=4, producer_epoch=1, base_sequence=8, leader_epoch=2)
    kept = kernel.keep_records(data, 0, [False, True, False])
    before, after = kernel.scan_batches(data)[0], kernel.scan_batches(kept)[0]
    assert after == before._replace(size_bytes=len(kept), count=1, max_timestamp_ms=999)
    assert kernel.decode_batch(kept).records() == kernel.decode_batch(data).records()[1:2]
    assert kernel.keep_records(data, 0, b"\1\1\1") == data
    with pytest.raises(InvalidRequest):
        kernel.keep_records(data, 0, [True])


def test_a_batch_may_lose_all_its_records_but_not_its_offsets(kernel):
    empty = kernel.keep_records(sealed(kernel), 0, [False] * 3)
    info = kernel.scan_batches(empty)[0]
    assert (info.count, info.base_offset, info.last_offset) == (0, 100, 102)
    assert info.max_timestamp_ms == 1001
    assert kernel.decode_batch(empty).records() == []
    assert kernel.decode_columns([(empty, 0, None)], 0, 1 << 40, 63).count == 0


def test_a_delete_horizon_moves_the_base_timestamp_and_no_record_time(kernel):
    data = sealed(kernel)
    kept = kernel.keep_records(data, 0, [True] * 3, delete_horizon_ms=123_456_789)
    info = kernel.scan_batches(kept)[0]
    assert info.attributes & onelog.kernel.ATTR_DELETE_HORIZON
    assert info.base_timestamp_ms == 123_456_789
    assert kernel.decode_batch(kept).records() == kernel.decode_batch(data).records()
    again = kernel.keep_records(kept, 0, [True, False, True])
    assert kernel.scan_batches(again)[0].base_timestamp_ms == 123_456_789


def test_slices_outlive_the_name_of_their_buffer(kernel):
    data = bytearray(sealed(kernel))
    slices = kernel.decode_batch(data)
    with pytest.raises(BufferError):
        data.extend(b"x")
    del data
    assert slices.value(0) == b"one"
