"""The codec of AMQP takes any bytes: it answers with frames, or with AMQP's own error (I10)."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands
from pamqp import frame as pamqp_frame

from onelog.base.errors import ProtocolViolation
from onelog.kernel import AmqpInput
from onelog.protocols.amqp.frames import (
    Frame,
    decode_content_head,
    decode_method,
    encode_content,
    encode_method,
    event_of,
)
from onelog.protocols.amqp.properties import decode_properties
from onelog.record.tables import (
    change_table,
    decode_table,
    encode_table,
    join_table,
    split_table,
)

METHODS = sorted(commands.INDEX_MAPPING)
FRAME_MAX = 4096

frames = st.builds(
    lambda kind, channel, payload, end: (
        bytes((kind,))
        + channel.to_bytes(2, "big")
        + len(payload).to_bytes(4, "big")
        + payload
        + end
    ),
    st.sampled_from([1, 2, 3, 8, 9]),
    st.integers(0, 65535),
    st.binary(max_size=40),
    st.sampled_from([b"\xce", b"\xce", b"\xce", b"\x00"]),
)
table_bytes = st.recursive(
    st.binary(max_size=12),
    lambda inner: st.builds(
        lambda name, letter, rest: (
            bytes((len(name),)) + name + letter + len(rest).to_bytes(4, "big") + rest
        ),
        st.binary(max_size=3),
        st.sampled_from([b"F", b"A", b"S", b"x"]),
        inner,
    ),
    max_leaves=8,
)


def read(chunks, frame_max=FRAME_MAX) -> tuple[list[tuple[int, int, bytes]], bool]:
    """The frames of bytes that come in pieces, and whether they end with a wrong one."""
    way_in, found = AmqpInput(frame_max), []
    for chunk in chunks:
        data, rows = way_in.take(chunk, 0)
        for row in rows:
            try:
                event = event_of(row, memoryview(data), frame_max)
            except ProtocolViolation:
                return found, True
            assert isinstance(event, Frame)
            found.append((event.kind, event.channel, bytes(event.payload)))
    return found, False


@given(st.lists(frames, max_size=5).map(b"".join) | st.binary(max_size=60))
def test_any_bytes_are_frames_or_an_error(data):
    found, _failed = read([data])
    assert sum(len(payload) + 8 for _kind, _channel, payload in found) <= len(data)


@given(st.lists(frames, max_size=4), st.lists(st.integers(1, 9), max_size=20))
def test_frames_are_the_same_however_the_bytes_come(whole, sizes):
    data = b"".join(whole)
    chunks, at = [], 0
    for size in sizes:
        chunks.append(data[at : at + size])
        at += size
    chunks.append(data[at:])
    assert read(chunks) == read([data])


@settings(max_examples=300)
@given(st.sampled_from(METHODS), st.binary(max_size=60))
def test_any_arguments_are_a_method_or_an_error(index, data):
    payload = index.to_bytes(4, "big") + data
    with contextlib.suppress(ProtocolViolation):
        method = decode_method(memoryview(payload))
        assert method.index == index
        # What was read is what was there: written again it is as long.
        if "arguments" not in method.attributes() and "table" not in map(
            method.amqp_type, method.attributes()
        ):
            assert len(encode_method(1, method)) == len(payload) + 8


@given(st.binary(max_size=60))
def test_any_content_header_is_read_or_an_error(data):
    with contextlib.suppress(ProtocolViolation):
        head = decode_content_head(memoryview(data))
        decode_properties(head.properties).table()


@given(table_bytes)
def test_any_table_is_read_or_an_error(data):
    with contextlib.suppress(ProtocolViolation):
        fields = split_table(data)
        assert join_table(fields) == data
        written = encode_table(decode_table(data))
        assert encode_table(decode_table(written)) == written


@given(st.floats())
def test_a_number_keeps_all_its_digits(number):
    """Half of them were lost, and large ones could not be written at all."""
    (back,) = decode_table(encode_table({"n": number})).values()
    assert repr(back) == repr(number)


@given(table_bytes, st.dictionaries(st.text(max_size=4), st.integers(0, 9), max_size=3))
def test_a_change_of_a_table_leaves_every_other_field_as_it_is(data, changes):
    try:
        before = split_table(data)
    except ProtocolViolation:
        return
    changed = change_table(data, changes) or b""
    names = {name.encode() for name in changes}
    after = split_table(changed)
    assert [row for row in after if row[0] not in names] == [
        row for row in before if row[0] not in names
    ]
    assert decode_table(encode_table(changes)) == changes


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("index", METHODS)
def test_methods_are_written_as_pamqp_writes_them(index):
    kind = commands.INDEX_MAPPING[index]
    samples = {
        "shortstr": "abc",
        "longstr": "long",
        "octet": 7,
        "short": 300,
        "long": 70000,
        "longlong": 2**40,
        "table": {"a": "b"},
        "bit": True,
    }
    deprecated = ("ticket", "out_of_band", "capabilities", "known_hosts", "insist", "cluster_id")
    fields = {
        name: samples[kind.amqp_type(name)] for name in kind.attributes() if name not in deprecated
    }
    try:
        method = kind(**fields)
    except ValueError:  # a field that pamqp wants to be one value only
        method = kind()
    try:
        theirs = pamqp_frame.marshal(method, 3)
    except (TypeError, ValueError):
        return
    assert encode_method(3, method) == theirs


@given(st.binary(max_size=9000), st.integers(4096, 5000))
def test_a_content_comes_back_from_its_frames(body, frame_max):
    data = b"".join(map(bytes, encode_content(5, b"\x00\x00", body, frame_max)))
    found, failed = read([data], frame_max)
    payloads = [memoryview(payload) for _kind, _channel, payload in found]
    assert not failed
    assert decode_content_head(payloads[0]).body_bytes == len(body)
    assert b"".join(payloads[1:]) == body
    assert all(len(payload) + 8 <= frame_max for payload in payloads)
