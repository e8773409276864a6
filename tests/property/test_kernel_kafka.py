"""Whatever a Kafka client sends, the compiled kernel answers as the interpreted one does (I10).

Each call is made on both; the results must be equal, and so must the errors, word for word. Bad
bytes raise only what the caller can answer.
"""

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onelog.base.errors import CorruptBatch, ProtocolViolation
from onelog.kernel import crc32c, pure
from onelog.kernel.types import RECORDS_COPIED_MAX, FetchRequest, ProduceRequest
from onelog.record.batch import build_batch

native = pytest.importorskip("onelog.kernel._native", exc_type=ImportError)

FLEXIBLE_FROM = bytes([9, 12, 255, 9])

produce_versions = st.integers(3, 11)
fetch_versions = st.integers(4, 17)
texts = st.text(max_size=20)
i16, i32, i64 = (st.integers(-(1 << bits), (1 << bits) - 1) for bits in (15, 31, 63))
blobs = st.binary(max_size=60)


def both(name, *args):
    answers = []
    for module in (native, pure):
        try:
            answers.append(getattr(module, name)(*args))
        except (ProtocolViolation, CorruptBatch) as error:
            answers.append((type(error).__name__, str(error)))
    assert answers[0] == answers[1]
    return answers[1]


class Writer:
    """Fields as a client writes them; independent of the kernel."""

    def __init__(self, flexible):
        self.flexible = flexible
        self.out = bytearray()

    def put(self, layout, *values):
        self.out += struct.pack(">" + layout, *values)

    def uvarint(self, value):
        while value > 127:
            self.out.append(value & 127 | 128)
            value >>= 7
        self.out.append(value)

    def length(self, size, layout="i"):
        if self.flexible:
            self.uvarint(size + 1)
        else:
            self.put(layout, size)

    def text(self, text):
        raw = None if text is None else text.encode()
        self.length(-1 if raw is None else len(raw), "h")
        self.out += raw or b""

    def tags(self, tags):
        if self.flexible:
            self.uvarint(len(tags))
            for number, data in tags:
                self.uvarint(number)
                self.uvarint(len(data))
                self.out += data


tags = st.dictionaries(st.integers(2, 1000), st.binary(max_size=4), max_size=2).map(
    lambda rows: sorted(rows.items())
)


@st.composite
def produce_bodies(draw):
    version = draw(produce_versions)
    out = Writer(version >= 9)
    out.text(draw(st.none() | texts))
    out.put("hi", draw(i16), draw(i32))
    topics = draw(st.lists(st.lists(st.none() | blobs, max_size=3), max_size=3))
    out.length(len(topics))
    for partitions in topics:
        out.text(draw(texts))
        out.length(len(partitions))
        for data in partitions:
            out.put("i", draw(i32))
            out.length(-1 if data is None else len(data))
            out.out += data or b""
            out.tags(draw(tags))
        out.tags(draw(tags))
    out.tags(draw(tags))
    return version, bytes(out.out)


@st.composite
def fetch_bodies(draw):
    version = draw(fetch_versions)
    out = Writer(version >= 12)
    if version < 15:
        out.put("i", draw(i32))
    out.put("iiib", *(draw(i32) for _ in range(3)), draw(st.integers(-128, 127)))
    if version >= 7:
        out.put("ii", draw(i32), draw(i32))

    def topic():
        if version < 13:
            out.text(draw(texts))
        else:
            out.out += draw(st.binary(min_size=16, max_size=16))

    widths = {"i": 4, "q": 8}
    layout = "i" + "i" * (version >= 9) + "q" + "i" * (version >= 12) + "q" * (version >= 5) + "i"
    counts = draw(st.lists(st.integers(0, 3), max_size=3))
    out.length(len(counts))
    for count in counts:
        topic()
        out.length(count)
        for _ in range(count):
            out.out += draw(
                st.binary(
                    min_size=sum(widths[c] for c in layout), max_size=sum(widths[c] for c in layout)
                )
            )
            out.tags(draw(tags))
        out.tags(draw(tags))
    if version >= 7:
        lost = draw(st.lists(st.lists(i32, max_size=3), max_size=2))
        out.length(len(lost))
        for indexes in lost:
            topic()
            out.length(len(indexes))
            out.put("i" * len(indexes), *indexes)
            out.tags(draw(tags))
    if version >= 11:
        out.text(draw(texts))
    replica = [(1, struct.pack(">iq", draw(i32), draw(i64)) + b"\0")] if version >= 15 else []
    out.tags(draw(st.sampled_from([[], replica])) + draw(tags))
    return version, bytes(out.out)


@st.composite
def damaged(draw, bodies):
    """A request with a byte changed, bytes cut off, or bytes put in."""
    version, body = draw(bodies)
    data = bytearray(body)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from("xcip"))
        if kind == "c":
            del data[at:]
        elif kind == "i":
            data[at:at] = draw(st.binary(min_size=1, max_size=5))
        elif kind == "p":
            data[at : at + 4] = draw(st.sampled_from([b"\xff" * 4, b"\x7f" + b"\xff" * 3]))
        elif at < len(data):
            data[at] ^= draw(st.integers(1, 255))
    return version, bytes(data)


@given(produce_bodies())
def test_good_produce_requests_are_read_alike(case):
    version, body = case
    got = both("parse_produce", body, 0, len(body), version)
    assert isinstance(got, ProduceRequest)


@given(fetch_bodies())
def test_good_fetch_requests_are_read_alike(case):
    version, body = case
    got = both("parse_fetch", body, 0, len(body), version)
    assert isinstance(got, FetchRequest)


@settings(max_examples=400)
@given(damaged(produce_bodies()))
def test_damaged_produce_requests_are_refused_alike(case):
    version, body = case
    both("parse_produce", body, 0, len(body), version)


@settings(max_examples=400)
@given(damaged(fetch_bodies()))
def test_damaged_fetch_requests_are_refused_alike(case):
    version, body = case
    both("parse_fetch", body, 0, len(body), version)


@given(produce_bodies() | fetch_bodies())
def test_every_truncation_is_refused_or_read_alike(case):
    version, body = case
    for end in range(len(body)):
        both("parse_produce", body, 0, end, min(max(version, 3), 11))
        both("parse_fetch", body, 0, end, max(version, 4))


@given(st.binary(max_size=60), st.integers(0, 5))
def test_any_bytes_are_a_header_or_none_alike(data, start):
    start = min(start, len(data))
    both("parse_request_header", data, start, len(data), FLEXIBLE_FROM)


@given(i16 | st.integers(-1, 4), i16 | st.integers(0, 13), i32, st.none() | texts, tags, blobs)
def test_headers_are_read_alike(key, version, correlation_id, client_id, extra, rest):
    out = Writer(False)
    out.put("hhi", key, version, correlation_id)
    out.text(client_id)
    out.flexible = True
    out.tags(extra)
    data = bytes(out.out) + rest
    both("parse_request_header", data, 0, len(data), FLEXIBLE_FROM)


@given(
    st.lists(st.binary(max_size=20).map(lambda b: struct.pack(">i", len(b)) + b), max_size=4),
    st.binary(max_size=8),
    st.integers(0, 30),
    st.integers(0, 3),
)
def test_frames_are_split_alike(frames, rest, limit, start):
    data = b"".join(frames) + rest
    both("split_frames", data, min(start, len(data)), limit)


# -- batches

rows = st.lists(
    st.tuples(
        st.none(),
        st.none() | st.binary(max_size=10),
        st.none() | st.binary(max_size=30),
        st.lists(st.tuples(st.binary(max_size=4), st.none() | st.binary(max_size=4)), max_size=2),
        st.integers(0, 1 << 41),
    ),
    min_size=1,
    max_size=6,
)


@given(rows, st.sampled_from([0, 1]), st.booleans(), st.binary(max_size=3))
def test_batches_are_taken_alike(records, codec, need_keys, around):
    data = build_batch(records, base_offset=0, codec=codec, tag_topics=False)
    both("check_produce_batch", around + data, len(around), len(around) + len(data), need_keys)


@settings(max_examples=400)
@given(rows, st.data(), st.booleans())
def test_damaged_batches_are_refused_alike(records, draw, mend):
    """With the CRC made right again, so that what lies behind it is looked into."""
    data = bytearray(build_batch(records, base_offset=0, tag_topics=False))
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(data) - 1))
        data[at] ^= draw.draw(st.integers(1, 255))
    if mend:
        struct.pack_into(">I", data, 17, crc32c(data[21:]))
    end = draw.draw(st.just(len(data)) | st.integers(0, len(data)))
    both("check_produce_batch", bytes(data), 0, end, draw.draw(st.booleans()))


# -- answers

blamed = st.lists(st.tuples(i32, texts), max_size=3)


@given(
    i32,
    produce_versions,
    st.lists(
        st.tuples(
            texts,
            st.lists(st.tuples(i32, i16, i64, i64, i64, st.none() | texts, blamed), max_size=9),
        ),
        max_size=4,
    ),
    st.integers(0, 1 << 30),
)
def test_produce_answers_are_written_alike(correlation_id, version, topics, throttle_ms):
    both("encode_produce_response", correlation_id, version, topics, throttle_ms)


parts = blobs | st.integers(RECORDS_COPIED_MAX - 1, RECORDS_COPIED_MAX + 2).map(bytes)
aborted = st.none() | st.lists(st.tuples(i64, i64), max_size=3)
fetched = st.tuples(
    i32, i16, i64, i64, i64, aborted, i32, st.none() | parts | st.lists(parts, max_size=3)
)


@given(
    i32,
    fetch_versions,
    st.integers(0, 1 << 30),
    i16,
    i32,
    st.lists(
        st.tuples(texts | st.binary(min_size=16, max_size=16), st.lists(fetched, max_size=5)),
        max_size=3,
    ),
)
@example(1, 4, 0, 0, 0, [("t", [(0, 0, 0, 0, 0, None, -1, [])])])
def test_fetch_answers_are_written_alike(correlation_id, version, throttle, code, session, topics):
    both("encode_fetch_response", correlation_id, version, throttle, code, session, topics)
