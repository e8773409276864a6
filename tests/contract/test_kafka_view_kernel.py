"""What both kernels promise about views: which batches are shown, and what is written through."""

import pytest

from onelog.base.errors import CorruptBatch, InvalidRecords, InvalidRequest
from onelog.base.limits import HEADERS_PER_RECORD_MAX
from onelog.kernel import ATTR_TRANSACTIONAL, scan_batches
from onelog.record.batch import (
    Marker,
    build_batch,
    build_marker,
    compress_batch,
    decode,
    inflated_records,
)

TEXT, PRODUCER = b"a/+", (7, 3, 40)


@pytest.fixture(params=["pure", "_native"])
def kernel(request):
    """The kernel, interpreted and compiled; skipped where it was not built."""
    return pytest.importorskip(f"onelog.kernel.{request.param}", exc_type=ImportError)


def batch(base, *topics, **options):
    rows = [(topic, b"key", b"v%d" % at, ((b"h", None),), 100 + at) for at, topic in
            enumerate(topics)]  # fmt: skip
    return build_batch(rows, base_offset=base, tag_topics=True, **options)


def seen(kernel, data, start=0, position=0, **options):
    return kernel.view_batches(data, position, kernel.TopicFilter(TEXT), start, **options)


def records_of(data):
    return [record for info in scan_batches(data) for record in decode(data, info).records()]


def test_batches_that_match_as_a_whole_are_named_where_they_lie(kernel):
    data = batch(0, b"a/1", b"a/2") + batch(2, b"a/3") + batch(3, b"b") + batch(4, b"a/4")
    first = len(batch(0, b"a/1", b"a/2") + batch(2, b"a/3"))
    last = len(data) - len(batch(4, b"a/4"))
    pieces, reached, position = seen(kernel, data)
    assert pieces == [(0, 0, first, None), (4, last, len(data), None)]
    assert (reached, position) == (5, len(data))


def test_a_mixed_batch_keeps_its_offsets_and_loses_its_producer(kernel):
    data = batch(10, b"a/1", b"b", b"a/2", b"b", producer=PRODUCER, attributes=ATTR_TRANSACTIONAL)
    ((base, start, end, made),), reached, _position = seen(kernel, data)
    assert (base, start, end, reached) == (10, 0, 0, 14)
    (info,) = scan_batches(made)
    assert (info.base_offset, info.last_offset, info.count) == (10, 13, 2)
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (-1, -1, -1)
    assert info.attributes == 0
    assert info.max_timestamp_ms == 102
    every = records_of(data)
    assert records_of(made) == [every[0], every[2]]


def test_a_batch_of_one_exact_topic_ends_with_its_last_match(kernel):
    """Where the view ends: a reader that is led further never finds that it is at the end."""
    wanted = kernel.TopicFilter(b"a/1")
    data = batch(10, b"a/1", b"b", b"a/1", b"b", b"b")
    cut = kernel.keep_records(data, 0, [True, False, True, False, False])
    for source in (data, cut):
        ((base, _start, _end, made),), reached, _position = kernel.view_batches(
            source, 0, wanted, 0
        )
        (info,) = scan_batches(made)
        assert (base, info.base_offset, info.last_offset, info.count) == (10, 10, 12, 2)
        assert reached == 15
        every = records_of(data)
        assert records_of(made) == [every[0], every[2]]
        assert kernel.view_batches(source, 0, wanted, 13)[:2] == ([], 15)
    whole = kernel.keep_records(data, 0, [True, False, True, False, False])
    assert kernel.view_batches(whole, 0, wanted, 0, default_topic=b"a/1")[0] == [
        (10, 0, len(whole), None)
    ], "a stream of one topic ends where its batches do"


def test_a_batch_without_a_match_at_or_after_the_start_is_not_shown(kernel):
    data = batch(10, b"a/1", b"b", b"b")
    assert seen(kernel, data, start=10)[0]
    assert seen(kernel, data, start=11) == ([], 13, len(data))
    whole = batch(10, b"a/1", b"a/2")
    assert seen(kernel, whole, start=11) == ([(10, 0, len(whole), None)], 12, len(whole))
    assert seen(kernel, whole, start=12) == ([], 12, len(whole))


def test_control_batches_and_aborted_transactions_are_hidden(kernel):
    open_txn = {"producer": PRODUCER, "attributes": ATTR_TRANSACTIONAL}
    marker = build_marker(Marker.COMMIT, 7, 3, 5)
    data = batch(0, b"a/1", **open_txn) + batch(1, b"a/2", **open_txn) + marker
    first = len(batch(0, b"a/1", **open_txn))
    assert seen(kernel, data)[0] == [(0, 0, 2 * first, None)]
    assert seen(kernel, data, aborted=[(7, 0, 0)])[0] == [(1, first, 2 * first, None)]
    assert seen(kernel, data, aborted=[(8, 0, 9), (7, 1, 9)])[0] == [(0, 0, first, None)]
    plain = batch(0, b"a/1", producer=PRODUCER)
    assert seen(kernel, plain, aborted=[(7, 0, 9)])[0] == [(0, 0, len(plain), None)]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_it_stops_before_a_compressed_batch_until_its_records_are_given(kernel, codec):
    plain, mixed = batch(0, b"a/1"), compress_batch(batch(1, b"a/2", b"b"), codec)
    data = plain + mixed + batch(3, b"a/3")
    pieces, reached, position = seen(kernel, data)
    assert (pieces, reached, position) == ([(0, 0, len(plain), None)], 1, len(plain))
    (info,) = scan_batches(mixed)
    records = inflated_records(mixed, info)
    ((_base, _start, _end, made),), reached, position = seen(
        kernel, data, reached, position, records=records
    )
    assert records_of(made) == records_of(mixed)[:1]
    assert scan_batches(made)[0].attributes == 0
    assert (reached, position) == (3, len(plain) + len(mixed))


def test_a_compressed_batch_that_matches_goes_out_compressed(kernel):
    data = compress_batch(batch(0, b"a/1", b"a/2"), 4)
    records = inflated_records(data, scan_batches(data)[0])
    assert seen(kernel, data, 1, records=records) == ([(0, 0, len(data), None)], 2, len(data))


def exactly(kernel, data, start=0, **options):
    """What a view of the one topic shows of a stream that was made for it."""
    return kernel.view_batches(data, 0, kernel.TopicFilter(b"a/x"), start, **options)


def test_the_topic_of_a_stream_decides_without_a_look(kernel):
    data = build_batch([(None, None, b"v", (), 1)], base_offset=3) + compress_batch(
        build_batch([(None, None, b"v", (), 1)], base_offset=4), 1
    )
    assert exactly(kernel, data, default_topic=b"a/x") == ([(3, 0, len(data), None)], 5, len(data))
    assert seen(kernel, data, default_topic=b"b/x") == ([], 5, len(data))
    assert exactly(kernel, data, 5, default_topic=b"a/x") == ([], 5, len(data))


def test_a_sparse_batch_of_a_known_topic_is_looked_into(kernel):
    rows = [(None, None, b"v%d" % at, (), 1) for at in range(3)]
    data = kernel.keep_records(build_batch(rows, base_offset=3), 0, [True, False, False])
    assert exactly(kernel, data, 3, default_topic=b"a/x")[0] == [(3, 0, len(data), None)]
    assert exactly(kernel, data, 4, default_topic=b"a/x") == ([], 6, len(data))
    packed = compress_batch(data, 1)
    assert exactly(kernel, packed, 4, default_topic=b"a/x") == ([], 4, 0)
    records = inflated_records(packed, scan_batches(packed)[0])
    assert exactly(kernel, packed, 4, default_topic=b"a/x", records=records)[1] == 6


def test_a_filter_shows_the_topic_of_records_that_do_not_carry_it(kernel):
    rows = [
        (None, b"key", b"one", ((b"h", b"x"),), 5),
        (None, b"a/x", b"two", (), 9),
        (None, None, None, ((b"~t", b"other"),), 7),
    ]
    data = build_batch(rows, base_offset=3, producer=PRODUCER, attributes=ATTR_TRANSACTIONAL)
    ((base, start, end, made),), reached, position = seen(kernel, data, default_topic=b"a/x")
    assert (base, start, end, reached, position) == (3, 0, 0, 6, len(data))
    (info,) = scan_batches(made)
    assert (info.base_offset, info.last_offset, info.count) == (3, 5, 3)
    assert (info.producer_id, info.attributes, info.max_timestamp_ms) == (-1, 0, 9)
    slices, tag = decode(made, info), (b"~t", b"a/x")
    assert [slices.topic(at) for at in range(3)] == [b"a/x"] * 3
    assert [row[4] for row in slices.records()] == [
        (tag, (b"h", b"x")), (), (tag, (b"~t", b"other")),
    ]  # fmt: skip
    assert [row[:4] for row in slices.records()] == [row[:4] for row in records_of(data)]
    ((_base, _start, _end, made),), _reached, _position = seen(
        kernel, data, 5, default_topic=b"a/x"
    )
    assert [row[0] for row in records_of(made)] == [5]


def test_records_whose_key_is_the_topic_go_out_as_they_are_stored(kernel):
    data = build_batch([(None, b"a/x", b"v", (), 5)] * 2)
    assert seen(kernel, data, 1, default_topic=b"a/x") == ([(0, 0, len(data), None)], 2, len(data))


def test_a_compressed_batch_is_inflated_to_show_its_topic(kernel):
    data = compress_batch(build_batch([(None, b"k", b"v" * 300, (), 5)] * 3), 3)
    assert seen(kernel, data, default_topic=b"a/x") == ([], 0, 0)
    records = inflated_records(data, scan_batches(data)[0])
    ((_base, _start, _end, made),), reached, position = seen(
        kernel, data, default_topic=b"a/x", records=records
    )
    assert (reached, position) == (3, len(data))
    assert [row[4] for row in records_of(made)] == [((b"~t", b"a/x"),)] * 3


def test_a_large_batch_is_shown_piece_by_piece(kernel):
    data = build_batch([(None, b"k", b"v" * (7 << 20), (), 5 + at) for at in range(5)])
    start, found, sizes = 0, [], []
    while start < 5:
        ((base, _start, _end, made),), start, position = seen(
            kernel, data, start, default_topic=b"a/x"
        )
        assert (base, position) == (0, len(data))
        (info,) = scan_batches(made)
        assert info.last_offset + 1 == start
        found += [row[0] for row in records_of(made)]
        sizes.append(len(made))
    assert found == [0, 1, 2, 3, 4]
    assert max(sizes) <= 16 << 20


def test_a_record_without_room_for_its_topic_is_shown_without_it(kernel):
    full = tuple((b"h", b"") for _ in range(HEADERS_PER_RECORD_MAX))
    alone = build_batch([(None, b"k", b"v", full, 5)])
    assert seen(kernel, alone, default_topic=b"a/x")[0] == [(0, 0, len(alone), None)]
    data = build_batch([(None, b"k", b"v", full, 5), (None, b"k", b"v", (), 5)])
    ((_base, _start, _end, made),), _reached, _position = seen(kernel, data, default_topic=b"a/x")
    assert [row[4] for row in records_of(made)] == [full, ((b"~t", b"a/x"),)]


def test_damage_is_told_also_where_topics_are_written(kernel):
    data = bytearray(build_batch([(None, b"k", b"v", (), 5)] * 2))
    packed = compress_batch(bytes(data), 1)
    records = inflated_records(packed, scan_batches(packed)[0])
    with pytest.raises(CorruptBatch):
        seen(kernel, packed, default_topic=b"a/x", records=records[:-1])


def test_a_batch_that_compaction_emptied_is_not_shown(kernel):
    data = kernel.keep_records(batch(3, b"a/1"), 0, [False])
    assert seen(kernel, data) == ([], 4, len(data))


def test_damage_is_told(kernel):
    data = bytearray(batch(0, b"a/1", b"b"))
    data[-1] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        seen(kernel, data)
    with pytest.raises(InvalidRequest):
        seen(kernel, data, position=len(data) + 1)


def test_what_is_written_through_a_view_carries_its_topic(kernel):
    rows = [
        (None, None, b"none", (), 5),
        (None, b"a/1", b"key", ((b"h", b"x"),), 6),
        (None, b"k", None, ((b"h", b"x"), (b"i", None)), 7),
        (None, b"a/1", b"own", ((b"~t", b"other"),), 8),
        (None, b"k", b"own", ((b"~t", b"a/1"),), 9),
    ]
    data = build_batch(rows, producer=PRODUCER)
    out = kernel.tag_batch(data, b"a/1", 99)
    (info,) = scan_batches(out)
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (99, 3, 40)
    assert (info.count, info.last_offset, info.max_timestamp_ms) == (5, 4, 9)
    slices = decode(out, info)
    tag = (b"~t", b"a/1")
    assert [slices.topic(at) for at in range(5)] == [b"a/1"] * 5
    assert [record[4] for record in slices.records()] == [
        (tag,),
        ((b"h", b"x"),),
        (tag, (b"h", b"x"), (b"i", None)),
        (tag, (b"~t", b"other")),
        (tag,),
    ]
    assert [record[:4] for record in slices.records()] == [
        record[:4] for record in decode(data, scan_batches(data)[0]).records()
    ]


def test_a_compressed_batch_is_written_inflated(kernel):
    data = compress_batch(build_batch([(None, b"k", b"v" * 300, (), 5)] * 3), 3)
    records = inflated_records(data, scan_batches(data)[0])
    out = kernel.tag_batch(data, b"a/1", -1, records)
    (info,) = scan_batches(out)
    assert info.attributes == 0
    assert [record[4] for record in decode(out, info).records()] == [((b"~t", b"a/1"),)] * 3


def test_a_length_that_is_written_too_long_does_not_matter(kernel):
    plain = build_batch([(None, b"k", b"v", ((b"h", b"x"),), 5)])
    body = plain[61:]
    at = body.index(b"\x02\x02h\x02x")  # the count of headers, then the header
    longer = body[1:at] + b"\x82\x00" + body[at + 1 :]
    records = bytes([2 * len(longer)]) + longer
    packed = compress_batch(plain, 1)  # so that the records are given beside it
    out = kernel.tag_batch(packed, b"a/1", -1, records)
    (record,) = records_of(out)
    assert record[4] == ((b"~t", b"a/1"), (b"h", b"x"))


def test_a_record_without_room_for_one_more_header_is_refused(kernel):
    headers = tuple((b"h", b"") for _ in range(HEADERS_PER_RECORD_MAX))
    data = build_batch([(None, b"k", b"v", headers, 5)])
    with pytest.raises(InvalidRecords, match="record 0"):
        kernel.tag_batch(data, b"a/1", -1)
