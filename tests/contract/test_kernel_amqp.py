"""AMQP frames by both kernels: whole publishes, acks, deliveries; the same however they are cut."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame, header

from onelog.kernel import _native
from onelog.kernel import pure as twin
from onelog.kernel.pure.amqp_wire import ACK, BODY, FAULT, HEADER, METHOD, PUBLISH

KERNELS = [twin, _native]
LIMIT = 4096


def publish(channel: int, exchange: str, key: str, properties: bytes, body: bytes) -> bytes:
    """The frames of a publish."""
    names = b"".join(bytes((len(name.encode()),)) + name.encode() for name in (exchange, key))
    method = b"\x00\x3c\x00\x28\x00\x00" + names + b"\x00"
    out = b"\x01" + channel.to_bytes(2, "big") + len(method).to_bytes(4, "big") + method + b"\xce"
    head = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + properties
    out += b"\x02" + channel.to_bytes(2, "big") + len(head).to_bytes(4, "big") + head + b"\xce"
    for start in range(0, len(body), LIMIT - 8):
        part = body[start : start + LIMIT - 8]
        out += b"\x03" + channel.to_bytes(2, "big") + len(part).to_bytes(4, "big") + part + b"\xce"
    return out


NO_PROPERTIES = b"\x00\x00"


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", [0, 1, LIMIT - 8, LIMIT - 7, 3 * LIMIT])
def test_a_whole_publish_is_one_event(kernel, size) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    data = publish(3, "logs", "a.é", b"\x10\x00\x02", body[:size])
    events, used = kernel.split_amqp(data, LIMIT)
    assert events == [(PUBLISH, 3, "logs", "a.é", 0, b"\x10\x00\x02", body[:size])]
    assert used == len(data)


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_ack_is_one_event_and_other_methods_are_frames(kernel) -> None:
    ack = frame.marshal(commands.Basic.Ack(delivery_tag=2**40, multiple=True), 1)
    other = frame.marshal(commands.Basic.Qos(prefetch_count=5), 2)
    events, used = kernel.split_amqp(ack + other, LIMIT)
    assert events == [(ACK, 1, 2**40, True), (METHOD, 2, len(ack) + 7, len(ack + other) - 1)]
    assert used == len(ack + other)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_publish_that_is_not_whole_or_interleaved_is_told_by_its_frames(kernel) -> None:
    data = publish(1, "", "q", NO_PROPERTIES, b"x" * 100)
    for cut in range(len(data)):
        events, used = kernel.split_amqp(data[:cut], LIMIT)
        assert all(event[0] in (METHOD, HEADER) for event in events)
        assert used <= cut
    heartbeat = b"\x08\x00\x00\x00\x00\x00\x00\xce"
    method = frame.marshal(commands.Basic.Publish(routing_key="q"), 1)
    mixed = method + heartbeat + data[len(method) :]
    assert [event[0] for event in kernel.split_amqp(mixed, LIMIT)[0]] == [METHOD, 8, HEADER, BODY]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x01\x00\x01\x00\x01\x00\x01", 1),
        (b"\x01\x00\x01\x00\x00\x00\x01ab", 2),
        (b"\x07\x00\x01\x00\x00\x00\x00\xce", 3),
        (b"\x00\x00\x01\x00\x00\x00\x00\xce", 3),
    ],
)
def test_bad_framing_ends_the_list_and_what_came_before_counts(kernel, data, what) -> None:
    good = frame.marshal(commands.Basic.Qos(), 1)
    events, used = kernel.split_amqp(good + data, LIMIT)
    assert events == [(METHOD, 1, 7, len(good) - 1), (FAULT, what)]
    assert used == len(good)


chunks = st.lists(
    st.one_of(
        st.builds(
            publish,
            st.integers(1, 3),
            st.text(max_size=5),
            st.text(max_size=5),
            st.just(NO_PROPERTIES),
            st.binary(max_size=40),
        ),
        st.builds(
            lambda tag, channel: frame.marshal(commands.Basic.Ack(delivery_tag=tag), channel),
            st.integers(0, 2**63 - 1),
            st.integers(1, 3),
        ),
        st.binary(max_size=20),
    ),
    max_size=6,
)


@given(chunks, st.integers(0, 2**32))
def test_both_kernels_tell_the_same(parts, seed) -> None:
    data = bytearray(b"".join(parts))
    rng = random.Random(seed)
    if data and rng.random() < 0.5:
        data[rng.randrange(len(data))] = rng.randrange(256)
    assert twin.split_amqp(data, LIMIT) == _native.split_amqp(data, LIMIT)


names = st.text(st.characters(codec="ascii"), max_size=20).map(str.encode)


@given(
    st.integers(1, 65535),
    names,
    st.integers(0, 2**63 - 1),
    st.booleans(),
    names,
    names,
    st.binary(max_size=9000),
)
def test_a_delivery_is_what_pamqp_reads(channel, tag, number, again, exchange, key, body) -> None:
    arguments: tuple[Any, ...] = (
        channel, tag, number, again, exchange, key, NO_PROPERTIES, body, LIMIT,
    )  # fmt: skip
    data = _native.encode_delivery(*arguments)
    assert data == twin.encode_delivery(*arguments)
    used, found, method = frame.unmarshal(data)
    assert found == channel
    assert isinstance(method, commands.Basic.Deliver)
    assert (method.delivery_tag, method.redelivered) == (number, again)
    size, found, head = frame.unmarshal(data[used:])
    assert isinstance(head, header.ContentHeader)
    assert (found, head.body_size) == (channel, len(body))
    used += size
    parts = []
    while used < len(data):
        size, found, part = frame.unmarshal(data[used:])
        parts.append(bytes(part.value))
        assert len(part.value) <= LIMIT - 8
        used += size
    assert b"".join(parts) == body
