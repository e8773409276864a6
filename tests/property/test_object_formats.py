"""Pieces and manifests come back as they were made, and damaged ones are refused, whatever they
hold."""

from __future__ import annotations

import struct
from bisect import bisect_left

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onelog.base.errors import ColdDamaged
from onelog.kernel import BatchBuilder, crc32c, scan_batches, topic_hash
from onelog.objects import names, postings
from onelog.objects.manifest import Doomed, Manifest
from onelog.objects.piece import (
    INDEX_INTERVAL_BYTES,
    AbortedSpan,
    IndexPart,
    decode_footer,
    decode_state,
    encode_footer,
)
from onelog.objects.piece_building import BuiltPiece, build_piece
from onelog.objects.postings import TopicDirectory, TopicSpan, encode_postings, read_posting
from onelog.objects.rows import FOOTER_BYTES, Row, check_rows, find_row, rows_between

NAME = "t/00/orders-1/0/x.p"
TOPICS = [b"a", b"a/b", b"plant/7/temp", b"x" * 40]


@st.composite
def batch_lists(draw):
    """(base, end, batches with their topics, (offset, topic, timestamp) of every record)."""
    base = draw(st.integers(0, 1 << 40))
    at, found, records = base, [], []
    for _ in range(draw(st.integers(0, 12))):
        at += draw(st.sampled_from([0, 0, 0, 1, 300, 70_000]))
        builder = BatchBuilder(True)
        for index in range(draw(st.integers(1, 5))):
            topic = draw(st.sampled_from(TOPICS))
            size = draw(st.sampled_from([0, 10, 30_000]))
            timestamp = draw(st.integers(-1, 50))
            builder.add(topic, None, bytes(size), (), timestamp)
            records.append((at + index, topic, timestamp))
        topics = builder.topics()
        data = builder.seal(at, 3)
        infos = scan_batches(data)
        found.append((data, infos, topics))
        at = infos[-1].last_offset + 1
    return base, at + draw(st.integers(1, 5)), found, records


def section(data: bytes, part) -> bytes:
    return data[part.position : part.position + part.size_bytes]


def offsets_of(data: bytes, index: IndexPart, topic: bytes) -> list[int]:
    span = index.topic_span(topic_hash(topic))
    if span is None:
        return []
    footer = index.footer
    at = footer.postings.position + span.position
    found = read_posting(
        data[at : at + span.size_bytes], span, topic_hash(topic), footer.end - footer.base
    )
    return [footer.base + rel for rel in found]


@settings(max_examples=60)
@given(batch_lists(), st.binary(max_size=200), st.booleans(), st.booleans())
def test_a_piece_comes_back_as_it_was_made(made, state, large, with_topics):
    base, end, batches, records = made
    state *= 1 + 1000 * large
    aborted = [AbortedSpan(7, base, base + 1, base)]
    if not with_topics:
        batches = [(data, infos, None) for data, infos, _ in batches]
    built = build_piece(base, end, batches, index_topics=with_topics, state=state, aborted=aborted)
    data = b"".join(built.parts)
    assert len(data) == built.size_bytes
    row = built.row(NAME, created_ms=5, leader_epoch=3)
    check_rows([row], "here")
    index = IndexPart(data[-row.index_bytes :], NAME, row)
    footer = index.footer
    log = data[: footer.log_bytes]
    assert log == b"".join(data for data, _, _ in batches)
    assert crc32c(log) == footer.log_crc
    assert (footer.base, footer.end, footer.records) == (base, end, len(records))
    assert decode_state(section(data, footer.state), footer, NAME) == state
    assert index.aborted == tuple(aborted)
    assert index.aborted_between(base + 2, end) == []
    assert index.aborted_between(base + 1, end) == aborted
    assert index.has_topics == with_topics
    for topic in (*TOPICS, b"none"):
        wanted = [offset for offset, name, _ in records if name == topic] if with_topics else []
        assert offsets_of(data, index, topic) == wanted


@settings(max_examples=60)
@given(batch_lists(), st.integers(-2, 60))
def test_the_index_of_a_piece_leads_to_offsets_and_times(made, timestamp):
    base, end, batches, _records = made
    data = b"".join(build_piece(base, end, batches, index_topics=True).parts)
    footer = decode_footer(data[-FOOTER_BYTES:], NAME)
    index = IndexPart(data[-footer.index_bytes :], NAME)
    infos = scan_batches(data[: footer.log_bytes])
    entries = list(index.entries())
    positions = [info.position for info in infos]
    assert set(entries) <= set(positions)
    assert entries[:1] == positions[:1]
    for info in infos:
        start = index.position_of(info.last_offset)
        assert start <= info.position
        before = [at for at in entries if at <= info.position]
        assert start == before[-1]
        assert index.base_at(start) == infos[bisect_left(positions, start)].base_offset
        assert info.position - start < INDEX_INTERVAL_BYTES
        stop = index.run_end(start, 1)
        assert stop in (*entries, footer.log_bytes)
        assert start < stop
    reached = [info.position for info in infos if info.max_timestamp_ms >= timestamp]
    assert index.position_for_time(timestamp) <= (reached[0] if reached else footer.log_bytes)
    if reached:
        between = [at for at in entries if index.position_for_time(timestamp) < at <= reached[0]]
        assert len(between) <= 1


@settings(max_examples=40)
@given(batch_lists(), st.data())
def test_a_flipped_bit_of_a_piece_is_found(made, choice):
    base, end, batches, _ = made
    built = build_piece(base, end, batches, index_topics=True, state=b"state")
    data = bytearray(b"".join(built.parts))
    row = built.row(NAME, created_ms=5, leader_epoch=3)
    at = choice.draw(st.integers(built.footer.log_bytes, len(data) - 1))
    data[at] ^= 1 << choice.draw(st.integers(0, 7))
    with pytest.raises(ColdDamaged):
        whole = IndexPart(bytes(data[-row.index_bytes :]), NAME)
        decode_state(section(bytes(data), whole.footer.state), whole.footer, NAME)
        for topic in TOPICS:
            offsets_of(bytes(data), whole, topic)


@given(st.binary(max_size=600))
def test_arbitrary_bytes_are_no_index_part(data):
    with pytest.raises(ColdDamaged):
        IndexPart(data, NAME)


def resealed(built: BuiltPiece, index: bytes) -> bytes:
    """An index part whose checksums hold although its sections were changed."""
    footer, at, sections = built.footer, 0, list(built.footer.sections[:2])
    for part in footer.sections[2:]:
        sections.append(part._replace(crc=crc32c(index[at : at + part.size_bytes])))
        at += part.size_bytes
    named = dict(zip(("offsets", "times", "directory", "aborted"), sections[2:], strict=True))
    return index[:at] + encode_footer(footer._replace(**named))


@settings(max_examples=100)
@given(batch_lists(), st.data())
def test_an_index_part_with_good_checksums_and_bad_numbers_raises_nothing_else(made, choice):
    """Whoever wrote it: what is not refused leads to no position outside the piece."""
    base, end, batches, _ = made
    built = build_piece(base, end, batches, index_topics=True)
    data = b"".join(built.parts)
    index = bytearray(data[-built.footer.index_bytes :])
    for _ in range(choice.draw(st.integers(1, 3))):
        at = choice.draw(st.integers(0, len(index) - FOOTER_BYTES - 1))
        index[at] = choice.draw(st.integers(0, 255))
    try:
        found = IndexPart(resealed(built, bytes(index)), NAME)
        for topic in TOPICS:
            offsets_of(data, found, topic)
    except ColdDamaged:
        return
    for offset in (base, end - 1):
        assert 0 <= found.position_of(offset) <= found.footer.log_bytes


@given(st.binary(max_size=200), st.integers(0, 1 << 32), st.integers(1, 1 << 31))
def test_arbitrary_bytes_of_postings_raise_nothing_else(data, topic, offsets):
    span = TopicSpan(0, len(data), crc32c(data))
    try:
        found = read_posting(data, span, topic, offsets)
    except ColdDamaged:
        return
    assert found == sorted(set(found))
    assert all(0 <= rel < offsets for rel in found)


@settings(max_examples=50)
@given(st.sets(st.tuples(st.integers(0, 30), st.integers(0, 100_000)), max_size=80), st.booleans())
def test_every_posting_is_found_by_the_directory(pairs, listed):
    packed = b"".join(struct.pack("<II", *pair) for pair in sorted(pairs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postings, "POSTINGS_LISTED_MAX", 8192 if listed else 0)
        patch.setattr(postings, "SPAN_BYTES", 40)
        made = encode_postings(packed)
    assert made.is_full == (listed or not pairs)
    directory = TopicDirectory(made.directory, len(made.data), is_full=made.is_full)
    for topic in range(32):
        wanted = sorted(rel for key, rel in pairs if key == topic)
        span = directory.find(topic)
        assert not listed or (span is None) == (not wanted), "absence costs no request"
        found = []
        if span is not None:
            data = made.data[span.position : span.position + span.size_bytes]
            found = read_posting(data, span, topic, 100_001)
        assert found == wanted


ROW = Row(
    base=0,
    end=10,
    log_bytes=100,
    records=10,
    min_timestamp_ms=1,
    max_timestamp_ms=2,
    created_ms=3,
    kind="log",
    object=NAME,
    position=0,
    piece_bytes=400,
    index_bytes=200,
    index_crc=7,
    leader_epoch=1,
)


@st.composite
def row_lists(draw):
    rows, at = [], draw(st.integers(0, 100))
    for _ in range(draw(st.integers(0, 40))):
        at += draw(st.integers(0, 3))
        end = at + draw(st.integers(10, 30))
        rows.append(msgspec.structs.replace(ROW, base=at, end=end))
        at = end
    return tuple(rows)


@given(row_lists(), st.integers(0, 1 << 60), st.binary(max_size=50), st.text(max_size=20))
def test_a_manifest_comes_back_as_it_was_made(rows, seq, stream, text):
    made = Manifest(
        1, seq + 1, b"n" * 16, 2, stream, 3, 0, rows, (Doomed(text, seq),), {text: text}
    )
    assert Manifest.decode(made.encode()) == made


@given(row_lists(), st.data())
def test_a_flipped_bit_of_a_manifest_is_found(rows, choice):
    data = bytearray(Manifest(1, 1, b"n" * 16, 2, b"{}", 3, 0, rows).encode())
    data[choice.draw(st.integers(0, len(data) - 1))] ^= 1 << choice.draw(st.integers(0, 7))
    with pytest.raises(ColdDamaged):
        Manifest.decode(bytes(data))


def framed(body: bytes, size: int, flag: int) -> bytes:
    rest = struct.pack("<IB", size, flag) + body
    return b"OLM1" + struct.pack("<I", crc32c(rest)) + rest


@example(b"\x91" * 100_000, 100_000, 0)
@example(b"\x9b\x01\x01\xc4\x00\x00\xc4\x00\x00\x00\x90\x90\x80" + b"\x91" * 5000, 5013, 0)
@example(
    b"\x9a\x01\x01\xc4\x10" + b"n" * 16 + b"\x00\xc4\x00\x00\x00\x90\x90\x81\xa1\xff\xa1\xff",
    None,
    0,
)
@given(st.binary(max_size=300), st.none() | st.integers(0, (1 << 32) - 1), st.integers(0, 2))
def test_arbitrary_bytes_are_no_manifest(body, size, flag):
    for data in (body, framed(body, len(body) if size is None else size, flag)):
        with pytest.raises(ColdDamaged):
            Manifest.decode(data)


@given(row_lists(), st.integers(0, 39), st.data())
def test_rows_that_overlap_are_refused(rows, at, choice):
    if len(rows) < 2:
        return
    at %= len(rows) - 1
    low = rows[at].base
    bad = list(rows)
    base = choice.draw(st.integers(low, rows[at].end - 1))
    bad[at + 1] = msgspec.structs.replace(rows[at + 1], base=base)
    made = Manifest(1, 1, b"n" * 16, 2, b"{}", 3, 0, tuple(bad))
    with pytest.raises(ColdDamaged):
        Manifest.decode(made.encode())


@given(row_lists(), st.integers(0, 1500), st.integers(0, 1500))
def test_rows_are_found_by_offset(rows, start, end):
    at = find_row(rows, start)
    assert all(row.end <= start for row in rows[:at])
    assert all(start < row.end for row in rows[at:])
    wanted = [row for row in rows if row.base < end and row.end > start] if start < end else []
    assert list(rows_between(rows, start, end)) == wanted


parts = st.text(
    st.characters(codec="ascii", categories=("L", "N"), include_characters="-_."),
    min_size=1,
    max_size=20,
)
numbers = st.integers(0, (1 << 64) - 1)


@given(parts, st.integers(0, 9999), st.integers(0, 1 << 62), numbers)
def test_every_name_says_again_what_it_was_made_of(stream_id, partition, base, number):
    tag, long_tag = names.new_tag(), names.new_tag(16)
    made = {
        names.tier_piece(stream_id, partition, base, base + 9, tag):
            names.RangedName("t", stream_id, partition, base, base + 9, tag),
        names.frames(stream_id, partition, base, base + 9, tag):
            names.RangedName("f", stream_id, partition, base, base + 9, tag),
        names.tier_manifest(stream_id, partition, number):
            names.ManifestName(stream_id, partition, number),
        names.data_object(long_tag): names.DataName(long_tag),
        names.chain_open(stream_id, number): names.ChainName(stream_id, number, "open", 0),
        names.chain_base(stream_id, number): names.ChainName(stream_id, number, "base", 0),
        names.chain_wal(stream_id, 7, number): names.ChainName(stream_id, 7, "w", number),
        names.chain_checkpoint(stream_id, 7, number): names.ChainName(stream_id, 7, "c", number),
    }  # fmt: skip
    for name, said in made.items():
        assert names.parse(name) == said


@given(numbers, numbers)
def test_the_newest_name_comes_first(one, other):
    pair = [names.tier_manifest("s", 0, number) for number in (one, other)]
    assert (pair[0] < pair[1]) == (one > other)


@given(st.text(max_size=60))
def test_arbitrary_names_are_not_ours(name):
    assert names.parse(name) is None
