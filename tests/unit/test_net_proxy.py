"""The PROXY protocol header: every shape that is right, every way to be wrong (I10)."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.base.errors import ProtocolViolation
from onelog.kernel import crc32c
from onelog.net.proxy import HEADER_BYTES_MAX, SIGNATURE, bytes_wanted, parse


def header(command: int, family: int, body: bytes = b"") -> bytes:
    return SIGNATURE + bytes((command, family)) + struct.pack("!H", len(body)) + body


def tcp4(source: str = "192.0.2.1", port: int = 4000, extensions: bytes = b"") -> bytes:
    addresses = socket.inet_aton(source) + socket.inet_aton("198.51.100.2")
    return header(0x21, 0x11, addresses + struct.pack("!HH", port, 1883) + extensions)


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack("!BH", kind, len(value)) + value


def test_an_ipv4_header_names_the_real_peer():
    found = parse(tcp4())
    assert found.source == ("192.0.2.1", 4000)
    assert found.destination == ("198.51.100.2", 1883)
    assert found.extensions == ()


def test_an_ipv6_header_names_the_real_peer():
    addresses = socket.inet_pton(socket.AF_INET6, "2001:db8::1") + bytes(16)
    found = parse(header(0x21, 0x21, addresses + struct.pack("!HH", 7, 8)))
    assert found.source == ("2001:db8::1", 7)
    assert found.destination == ("::", 8)


@pytest.mark.parametrize(
    "raw",
    [
        header(0x20, 0x00),
        header(0x20, 0x11, bytes(12)),
        header(0x21, 0x00),
        header(0x21, 0x31, bytes(216)),
        header(0x21, 0x00, tlv(0x04, b"padding")),
    ],
    ids=["local", "local-with-addresses", "unspec", "unix", "unspec-with-noop"],
)
def test_a_header_without_a_usable_address_leaves_the_peer_as_it_is(raw):
    assert parse(raw).source is None


def test_extensions_are_kept_in_order():
    found = parse(tcp4(extensions=tlv(0x01, b"mqtt") + tlv(0x02, b"") + tlv(0xEA, b"\0" * 300)))
    assert found.extensions == ((0x01, b"mqtt"), (0x02, b""), (0xEA, b"\0" * 300))


def with_crc(spoil: int = 0) -> bytes:
    blank = tcp4(extensions=tlv(0x01, b"mqtt") + tlv(0x03, bytes(4)) + tlv(0x04, b"x"))
    at = blank.rindex(tlv(0x03, bytes(4))) + 3
    return blank[:at] + struct.pack("!I", crc32c(blank) ^ spoil) + blank[at + 4 :]


def test_a_checksum_is_checked():
    assert parse(with_crc()).source == ("192.0.2.1", 4000)
    with pytest.raises(ProtocolViolation, match="checksum"):
        parse(with_crc(spoil=1))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"PROXY TCP4 192.0.2.1 198.51.100.2 4000 1883\r\n", "version 1"),
        (b"PROXY UNKNOWN\r\n", "version 1"),
        (b"PROXZ", "does not begin"),
        (b"\x10\x0e\x00\x04MQTT\x04\x02\x00<\x00\x02ab", "does not begin"),
        (b"\x16\x03\x01\x02\x00\x01", "does not begin"),
        (SIGNATURE[:-1] + b"\r" + bytes(4), "does not begin"),
        (header(0x11, 0x11, bytes(12)), "version 1 is not supported"),
        (header(0x31, 0x11, bytes(12)), "version 3"),
        (header(0x22, 0x11, bytes(12)), "command 2"),
        (header(0x21, 0x12, bytes(12)), "family 0x12"),
        (header(0x21, 0x41, bytes(12)), "family 0x41"),
        (header(0x21, 0x11, bytes(11)), "11 bytes of addresses"),
        (header(0x21, 0x21, bytes(35)), "35 bytes of addresses"),
        (header(0x21, 0x31, bytes(215)), "215 bytes of addresses"),
        (tcp4(extensions=b"\x01\x00"), "extension"),
        (tcp4(extensions=b"\x01\x00\x05mqtt"), "extension"),
        (tcp4(extensions=tlv(0x03, b"abc")), "checksum"),
        (tcp4()[:-1], "cut off"),
        (SIGNATURE, "cut off"),
        (header(0x21, 0x11, bytes(HEADER_BYTES_MAX)), "at most"),
    ],
)
def test_what_is_no_header_is_refused_with_the_reason(raw, why):
    with pytest.raises(ProtocolViolation, match=why):
        parse(raw)


def test_the_first_wrong_byte_is_enough_to_refuse():
    for size in range(1, len(SIGNATURE) + 1):
        wrong = SIGNATURE[: size - 1] + bytes((SIGNATURE[size - 1] ^ 1,))
        with pytest.raises(ProtocolViolation):
            bytes_wanted(wrong)


def test_a_size_over_the_limit_is_refused_before_it_is_read():
    with pytest.raises(ProtocolViolation, match="at most"):
        bytes_wanted(SIGNATURE + b"\x21\x11\xff\xff")


@given(st.integers(1, 200))
def test_a_reader_never_asks_for_bytes_after_the_header(step):
    whole = tcp4(extensions=tlv(0x02, b"broker.example"))
    buffer = b""
    while wanted := bytes_wanted(buffer):
        assert len(buffer) + wanted <= len(whole)
        buffer += whole[len(buffer) : len(buffer) + min(step, wanted)]
    assert buffer == whole


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused_and_nothing_else(body):
    for raw in (body, SIGNATURE + body):
        try:
            parse(raw)
        except ProtocolViolation:
            continue
