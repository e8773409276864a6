"""Whatever the bytes, the compiled kernel answers as the interpreted one does (I10).

Each call is made on both; the results must be equal, and so must the errors, word for word.
"""

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.base.errors import OnelogError
from onelog.kernel import pure

native = pytest.importorskip("onelog.kernel._native", exc_type=ImportError)

small = st.binary(max_size=40)
headers = st.lists(st.tuples(st.one_of(small, st.just(b"~t")), st.none() | small), max_size=4)
timestamps = st.integers(-1, 5000) | st.integers(-1, (1 << 62) - 1)
messages = st.lists(
    st.tuples(
        st.none() | st.sampled_from([b"a", b"a/b", b"a/b/c", b"$SYS/x", b"x/y"]),
        st.none() | small | st.sampled_from([b"a", b"a/b"]),
        st.none() | small | st.binary(max_size=300),
        headers,
        timestamps,
    ),
    min_size=1,
    max_size=12,
)


def answer(call, *args):
    """The result, or the error as something that can be compared."""
    try:
        return call(*args)
    except (OnelogError, IndexError, OverflowError) as error:
        return type(error).__name__, str(error)


def both(name, *args):
    mine = answer(getattr(native, name), *args)
    theirs = answer(getattr(pure, name), *args)
    assert mine == theirs
    return theirs


def build(module, rows, tag, **fields):
    builder = module.BatchBuilder(tag)
    builder.extend(rows)
    topics = builder.topics()
    return topics, builder.seal(fields.pop("base_offset", 0), **fields)


def look_into(data, pos=0, records=None):
    """Every function that reads one batch, on both."""
    both("validate_records", data, pos, records)
    both("batch_topics", data, pos, records)
    for want in (63, 8, 0):
        both("decode_columns", [(data, pos, records)], 0, 1 << 60, want)
        both("decode_columns", [(data, pos, records)] * 2, 4, 7, want)
    for check_crc in (True, False):
        mine = answer(native.decode_batch, data, pos, records, check_crc)
        theirs = answer(pure.decode_batch, data, pos, records, check_crc)
        if isinstance(theirs, tuple):
            assert mine == theirs
            continue
        assert mine.records() == theirs.records()
        assert mine.offsets() == theirs.offsets()
        assert len(mine) == len(theirs)
        for index in range(-1, len(theirs) + 1):
            for part in ("topic", "key", "value", "offset", "timestamp_ms", "record"):
                assert answer(getattr(mine, part), index) == answer(getattr(theirs, part), index)


def look_at(data):
    """Every function that reads a run of batches, on both."""
    for check_crc in (True, False):
        both("scan_batches", data, 0, check_crc)
        both("scan_batches", data, 0, check_crc, 1)
        both("scan_valid", data, 0, check_crc, -1)
        both("scan_valid", data, 0, check_crc, 3)
    both("mark_batches", data, 0, 1 << 20, 1)
    both("mark_batches", data, 0, 100, 70, 2)
    for offset in (0, 2, 7, 1 << 40):
        both("find_batch", data, 0, len(data), offset)
        both("fit_batches", data, 0, len(data), 100, offset)
        both("fit_batches", data, 0, len(data), 1 << 20, offset)
    for text in (b"a/b", b"#", b"+/b", b"a/#", None):
        for limit in (0, 1, 100):
            for default in (None, b"a/b"):
                results = []
                for module in (native, pure):
                    wanted = None if text is None else module.TopicFilter(text)
                    results.append(
                        answer(module.select_records, data, wanted, 2, 9, limit, default)
                    )
                assert results[0] == results[1]


@given(messages, st.booleans(), st.integers(0, 1 << 50), st.integers(0, 127))
@settings(max_examples=200)
def test_both_builders_write_the_same_bytes(rows, tag, base_offset, attributes):
    made = [
        build(
            module, rows, tag, base_offset=base_offset, leader_epoch=7, attributes=attributes,
            producer_id=99, producer_epoch=2, base_sequence=5,
        )
        for module in (native, pure)
    ]  # fmt: skip
    assert made[0] == made[1]


@given(messages, st.booleans(), st.sampled_from([0, 8, 16, 32, 1]))
@settings(max_examples=100)
def test_both_read_a_batch_the_same(rows, tag, attributes):
    _, data = build(pure, rows, tag, base_offset=3, attributes=attributes)
    look_into(data)
    look_into(b"junk" + data, 4)
    look_into(data, 0, data[61:])
    look_at(data)
    _, more = build(pure, rows, tag, base_offset=3 + len(rows))
    look_at(data + more)
    look_at(more + data)


@given(messages, st.lists(st.booleans(), max_size=12), st.sampled_from([-1, 0, 1000, 1 << 61]))
@settings(max_examples=100)
def test_both_keep_the_same_records(rows, mask, horizon):
    _, data = build(pure, rows, True, base_offset=10)
    keep = (mask + [True] * len(rows))[: len(rows)]
    kept = both("keep_records", data, 0, keep, None, horizon)
    both("keep_records", data, 0, bytes(keep), data[61:], horizon)
    both("keep_records", data, 0, mask, None, horizon)
    look_into(kept)


@given(messages, st.integers(0, 2**32), st.integers(1, 3))
@settings(max_examples=400)
def test_flipped_bits_are_met_with_the_same_answer(rows, seed, flips):
    _, data = build(pure, rows, True, base_offset=3)
    chance = random.Random(seed)
    damaged = bytearray(data)
    for _ in range(flips):
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    look_into(bytes(damaged))
    look_into(data, 0, bytes(damaged[61:]))
    look_at(bytes(damaged))
    both("keep_records", bytes(damaged), 0, [True] * len(rows), None, 5)


@given(messages, st.data())
@settings(max_examples=150)
def test_cut_buffers_are_met_with_the_same_answer(rows, data):
    _, whole = build(pure, rows, True, base_offset=3)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    look_into(cut)
    look_at(cut)
    look_at(whole + cut)
    look_into(whole, 0, cut[61:])


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_random_records_are_met_with_the_same_answer(junk):
    _, whole = build(pure, [(None, b"k", b"v", (), 1)] * 3, False)
    look_into(whole, 0, junk)
    look_at(junk)
    for name in ("decode_varint", "decode_uvarint", "decode_remaining_length"):
        both(name, junk, 0)
        both(name, junk, len(junk) // 2)
        both(name, junk, len(junk) + 1)
    for name in ("check_utf8", "check_topic", "encode_utf8_field", "crc32c", "topic_hash"):
        both(name, junk)


@given(st.integers(-(1 << 70), 1 << 70) | st.integers(-300, 300))
def test_numbers_are_encoded_the_same(number):
    for name in ("encode_varint", "encode_uvarint", "encode_remaining_length"):
        both(name, number)


@given(st.text(max_size=40), st.data())
@settings(max_examples=300)
def test_text_is_judged_the_same(text, data):
    raw = bytearray(text.encode("utf-8", "surrogatepass"))
    both("check_utf8", bytes(raw))
    if raw:
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    both("check_utf8", bytes(raw))
    both("check_topic", bytes(raw))


pairs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60)), max_size=40)


def packed(rows):
    return b"".join(k.to_bytes(4, "little") + r.to_bytes(4, "little") for k, r in rows)


@given(st.lists(pairs, max_size=5), st.integers(0, 6), st.integers(0, 61), st.integers(0, 20))
@settings(max_examples=200)
def test_topic_chunks_are_made_and_looked_up_the_same(chunks, key, rel_min, limit):
    index = b""
    both("pack_topic_entries", [(packed(rows), limit) for rows in chunks], 160)
    for rows in chunks:
        both("move_topic_entries", packed(rows), 7)
        entries = both("sort_topic_entries", packed(rows), 7)
        index += both("make_topic_chunk", entries)
    found = both("lookup_topic_chunks", index, len(index), key, rel_min, limit)
    expected = sorted({r + 7 for rows in chunks for k, r in rows if k == key and r + 7 >= rel_min})
    assert found == expected[:limit]
    assert both("check_topic_chunks", index, len(index)) == len(index)


@given(st.lists(pairs, min_size=1, max_size=4), st.data())
@settings(max_examples=200)
def test_damaged_topic_chunks_are_met_with_the_same_answer(chunks, data):
    made = [pure.make_topic_chunk(pure.sort_topic_entries(packed(rows))) for rows in chunks]
    index = bytearray(b"".join(made))
    at = data.draw(st.integers(0, len(index) - 1))
    index[at] ^= 1 << data.draw(st.integers(0, 7))
    intact = both("check_topic_chunks", bytes(index), len(index))
    assert intact <= at
    # A lookup trusts what the check accepted; what lies behind that may be unsorted, so only the
    # intact part must agree. The rest must not crash or answer anything but numbers.
    both("lookup_topic_chunks", bytes(index), intact, 3, 0, 100)
    found = answer(native.lookup_topic_chunks, bytes(index), len(index), 3, 0, 100)
    assert found[0] == "CorruptBatch" or found == sorted(set(found)) if found else found == []


@given(st.binary(max_size=64), st.integers(-(1 << 33), 1 << 33))
def test_odd_topic_entries_are_met_with_the_same_answer(junk, add):
    both("sort_topic_entries", junk, add)
    both("make_topic_chunk", junk)
    both("check_topic_chunks", junk, len(junk))
    both("lookup_topic_chunks", junk, len(junk), 0, 0, 10)


@given(st.lists(st.integers(0, 40), max_size=12), st.data())
def test_records_are_picked_by_offset_alike(steps: list[int], data: st.DataObject) -> None:
    """Both kernels give the records that are there, also where compaction left gaps."""
    builder = pure.BatchBuilder(True)
    count = data.draw(st.integers(1, 40))
    builder.extend([(b"t/%d" % n, b"t/%d" % n, b"v%d" % n, (), 1000 + n) for n in range(count)])
    batch = builder.seal(100)
    if data.draw(st.booleans()):
        keep = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
        batch = pure.keep_records(batch, 0, keep)
    offsets = sorted({100 + step for step in steps})
    picked = native.pick_records(batch, offsets)
    assert picked == pure.pick_records(batch, offsets)
    everything = {row[0]: row for row in pure.decode_batch(batch).records()}
    assert [row[1] for row in picked] == [offset for offset in offsets if offset in everything]


@given(st.binary(max_size=200), st.lists(st.integers(0, 50), max_size=4))
def test_picking_from_any_bytes_is_safe(tail: bytes, steps: list[int]) -> None:
    builder = pure.BatchBuilder(True)
    builder.extend([(b"t", b"t", b"v", (), 1)] * 8)
    batch = bytearray(builder.seal(0))
    batch[61 : 61 + len(tail)] = tail[: len(batch) - 61]
    with contextlib.suppress(OnelogError):
        native.pick_records(bytes(batch), sorted(steps))
