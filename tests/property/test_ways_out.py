"""Every record that goes out is untrusted: whatever a producer wrote, every way out stands it.

Keys, values, headers, topics, compression, control batches and several batches in one write are
arbitrary, reserved headers most of all. Nothing may raise, and what is made is well formed.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onelog.base.ids import Offset, TimestampMs
from onelog.broker import Record
from onelog.cursors.reader import expires_at
from onelog.kernel import pure
from onelog.protocols.amqp import deliveries
from onelog.protocols.amqp.deliveries import FRAME_BYTES_MIN
from onelog.protocols.amqp.management.messages import _row
from onelog.protocols.amqp.properties import decode_properties
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.delivery import delivery_properties
from onelog.protocols.mqtt.mapping import from_record
from onelog.queues.consumers import Delivery
from onelog.queues.headers import extra_keys_of, headers_of, left_out_of
from onelog.record import headers as names
from onelog.record.batch import build_batch
from onelog.record.fields import FIELDS
from onelog.record.reserved import read_expiry_ms, read_names, read_number, read_text

native = pytest.importorskip("onelog.kernel._native", exc_type=ImportError)

NOW_MS = 1_700_000_000_000
RESERVED = sorted(
    {
        *(row.header for row in FIELDS),
        *(b"~t", b"~nl", b"~ah", b"~bc", b"~nq", b"~xp", b"~dm", b"~ro", b"~du", b"~by"),
        *(b"~do", b"~di", b"~", b"~~", b"~zz"),
    }
)
ODD = [
    b"", b"1", b"2", b"\xff", b"\xff\xfe", b'["a"]', b'["\xff"]', b'[1]', b'{"a":1}', b"[" * 5000,
    b'["\\ud800"]', b"-1", b"+1", b"1 ", b"0" * 25, b"9" * 20, b"9" * 19, b"\xd9\xa1", b"a\0b",
    b"a/+/#", b"$q/_xFF_", b"x" * 300, b"\x01aS\x00\x00\xff\xff", b"\x01at\x01", b"\x02\xff\xfeV",
    b"\x01xT\xff\xff\xff\xff\xff\xff\xff\xff", b"\x01xF\x00\x00\x00\x00",
    b"\x01xD\xff\x00\x00\x00\x01",
]  # fmt: skip
values = st.sampled_from(ODD) | st.binary(max_size=40) | st.none()
header_names = st.sampled_from(RESERVED) | st.binary(max_size=8) | st.just(b"n" * 300)
headers = st.lists(st.tuples(header_names, values), max_size=6).map(tuple)
topics = st.sampled_from(
    [
        "a/b",
        "$x/logs/a",
        "$q/q1",
        "$q/_xFF_",
        "$x/_xFF__xFE_/k",
        "$t@v/a",
        "$q@_xFF_/q",
        "$x/" + "e" * 300 + "/k",
        "a/" + "\u00e9" * 400,
        "é/\U0001f600",
        "$",
        "$x",
        "$q/",
    ]
) | st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=30)
records = st.builds(
    Record,
    st.just("main"),
    st.just(0),
    st.integers(0, 2**40).map(Offset),
    topics,
    st.sampled_from([0, NOW_MS, -1, 2**62]).map(TimestampMs),
    st.none() | st.binary(max_size=8),
    st.none() | st.binary(max_size=50),
    headers,
)


def record_of(topic: str, *pairs: tuple[bytes, bytes | None], key: bytes | None = None) -> Record:
    return Record("main", 0, Offset(0), topic, TimestampMs(0), key, b"v", pairs)


@given(headers, header_names)
def test_reading_a_reserved_header_always_answers(found: Any, name: bytes) -> None:
    number = read_number(found, name)
    assert number is None or number >= 0
    assert read_number(found, name, 2) in (None, 0, 1, 2)
    assert isinstance(read_text(found, name), str)
    assert all(isinstance(row, str) for row in read_names(found, name))
    ends = read_expiry_ms(found)
    assert ends is None or ends >= 0


@given(records)
@example(record_of("a/b", (b"~bc", b'["\xff"]')))
def test_mqtt_can_say_every_record(record: Record) -> None:
    assert isinstance(delivery_properties(record.headers, NOW_MS), bytes | None)
    publish = from_record(record, now_ms=NOW_MS, packet_id=1)
    if publish is not None and len(record.topic.encode()) <= 65_535:
        for version in (4, 5):
            assert encode_packet(publish, version)


@given(records, st.booleans(), st.sampled_from([0, FRAME_BYTES_MIN, 131_072]))
@example(record_of("a/b", (b"~bc", b'["\xff"]')), False, 0)
@example(
    record_of("a/b", *((b"h%d" % row, b"x" * 1000) for row in range(8))), True, FRAME_BYTES_MIN
)
@example(record_of("a/b", (b"h", b"x" * 5000), key=b"a/b"), False, FRAME_BYTES_MIN)
def test_amqp_can_say_every_record(record: Record, counted: bool, frame_bytes_max: int) -> None:
    assert isinstance(headers_of(record), dict)
    assert all(isinstance(row, str) for row in (*extra_keys_of(record), *left_out_of(record)))
    more: dict[str, Any] = {"x-delivery-count": 1} if counted else {}
    delivery = Delivery(0, record, False, more)
    properties = deliveries.properties(delivery, NOW_MS, frame_bytes_max)
    assert not frame_bytes_max or len(properties) + 20 <= frame_bytes_max, "one frame"
    decoded = decode_properties(properties)
    assert not counted or decoded.table()["x-delivery-count"] == 1
    exchange, key = deliveries.address(record)
    body = record.value or b""
    frames = [
        kernel.encode_delivery(1, b"tag", 1, False, exchange, key, properties, body, 4096)
        for kernel in (pure, native)
    ]
    assert frames[0] == frames[1]
    found = deliveries.envelope(record)
    if found is not None:
        _run_goes_out(record, found)
    assert _row(delivery, 0, "auto", None)["payload_bytes"] == len(body)
    assert expires_at(record, -1) is None or find(record, names.EXPIRY)


def find(record: Record, name: bytes) -> bool:
    return any(row[0] == name for row in record.headers)


def _run_goes_out(record: Record, found: Any) -> None:
    data = build_batch([(None, record.key, record.value, record.headers, 0)])
    sent = []
    for kernel in (pure, native):
        envelopes = kernel.AmqpEnvelopes(1 << 20)
        envelopes.add(*found)
        sent.append(kernel.encode_deliveries(data, 0, 1, 1, b"tag", 1, 4096, envelopes, 1 << 20))
    assert sent[0] == sent[1]
    assert sent[0][1] == 1


rows = st.lists(
    st.tuples(
        st.none(),
        st.none() | st.sampled_from([b"a/b", b"\xff", b"a/+", b"", b"a\0"]) | st.binary(max_size=5),
        st.none() | st.binary(max_size=20), headers, st.integers(-1, 2**40),
    ),
    min_size=1, max_size=8,
)  # fmt: skip
batches = st.lists(
    st.tuples(rows, st.sampled_from([0, 0, 0, 1, 2, 3, 4]), st.sampled_from([0, 0, 0x10])),
    min_size=1,
    max_size=4,
)


def write_of(chosen: Any) -> tuple[bytes, int]:
    """Several batches as one write, and where they end."""
    out, end = b"", 0
    for some, codec, attributes in chosen:
        out += build_batch(some, base_offset=end, codec=codec, attributes=attributes)
        end += len(some)
    return out, end


class Owner:
    """A subscriber."""


@given(batches, st.none() | st.sampled_from([b"a/b", b"c"]))
def test_the_fan_out_of_mqtt_stands_every_batch(chosen: Any, fixed: bytes | None) -> None:
    data, end = write_of(chosen)
    answers = []
    for kernel in (pure, native):
        fanout = kernel.MqttFanout(delivery_properties, None)
        outputs = []
        for version in (4, 5):
            output = kernel.MqttOutput(Owner(), version, 100)
            output.live = True
            fanout.subscribe(b"#", output, 1)
            outputs.append(output)
        following, _touched, fallen = fanout.deliver(data, 0, 0, NOW_MS, fixed)
        assert 0 <= following <= end
        assert not fallen
        answers.append((following, [b"".join(output.take()) for output in outputs]))
    assert answers[0] == answers[1]


@given(batches, st.none() | st.just(b"a/b"))
def test_runs_of_topics_stand_every_batch(chosen: Any, fixed: bytes | None) -> None:
    data, end = write_of(chosen)
    answers = []
    for kernel in (pure, native):
        known: dict[bytes, Any] = {}
        found, reached = kernel.topic_runs(data, fixed, known, lambda topic: topic != b"\xff")
        assert 0 <= reached <= end
        answers.append((found, reached))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("kernel", [pure, native])
def test_a_record_that_cannot_be_given_ends_the_fan_out_before_it_and_no_other_is_lost(
    kernel: Any,
) -> None:
    def properties(headers: Any, _now_ms: int) -> bytes:
        if (b"bad", b"") in headers:
            raise ValueError("cannot be said")
        return b""

    rows = [
        (None, b"a", b"%d" % number, ((b"bad" if number == 3 else b"ok", b""),), 0)
        for number in range(6)
    ]
    fanout = kernel.MqttFanout(properties, None)
    output = kernel.MqttOutput(Owner(), 4, 100)
    output.live = True
    fanout.subscribe(b"a", output, 0)
    data = build_batch(rows)
    following, touched, _fallen = fanout.deliver(data, 0, 0, NOW_MS)
    assert following == 3
    assert touched == [output]
    packet = struct.Struct(">BBH").pack(0x30, 4, 1) + b"a"
    assert b"".join(output.take()) == b"".join(packet + b"%d" % number for number in range(3))
    following, _touched, _fallen = fanout.deliver(data, 0, 4, NOW_MS)
    assert following == 6
    with pytest.raises(ValueError, match="said"):
        fanout.deliver_record(b"a", b"3", rows[3][3], (0, 3), NOW_MS, [], [])


@pytest.mark.parametrize("kernel", [pure, native])
def test_a_subscriber_that_cannot_be_written_to_is_told_of_and_the_others_get_theirs(
    kernel: Any,
) -> None:
    def broken(_chunk: bytes) -> None:
        raise RuntimeError("the handler is closed")

    fanout = kernel.MqttFanout(lambda _headers, _now_ms: b"", None)
    written: list[bytes] = []
    outputs = []
    for writer in (broken, written.append):
        output = kernel.MqttOutput(Owner(), 4, 100)
        output.live = True
        output.writer = writer
        fanout.subscribe(b"a", output, 0)
        outputs.append(output)
    fanout.deliver(build_batch([(None, b"a", b"x", (), 0)]), 0, 0, NOW_MS)
    assert b"".join(written).endswith(b"x")
    ((output, error),) = fanout.broken
    assert output is outputs[0]
    assert isinstance(error, RuntimeError)
