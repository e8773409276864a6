"""The PROXY protocol, version 2 (binary): a load balancer reports the address of the real peer.

Rules: sans-IO. `bytes_wanted` says how much more to read, never more than the header, because the
bytes after it belong to TLS or to the protocol. Bytes that are not a header are refused at the
first wrong byte; version 1 (text) has an error of its own. If there is a checksum, it must be
right.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

import msgspec

from onelog.base.errors import ProtocolViolation
from onelog.kernel import crc32c

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
HEADER_BYTES_MAX: Final = 4_096
"""Bytes of one header with its extensions."""

_FIXED_BYTES: Final = 16
_VERSION_1: Final = b"PROXY "
_LOCAL, _PROXY = 0x20, 0x21
_UNSPEC, _TCP4, _TCP6, _UNIX = 0x00, 0x11, 0x21, 0x31
_CRC32C: Final = 0x03


class ProxyHeader(msgspec.Struct, frozen=True):
    """The contents of a header."""

    source: tuple[str, int] | None
    """Address of the real peer; None when the proxy speaks for itself or does not know."""
    destination: tuple[str, int] | None = None
    extensions: tuple[tuple[int, bytes], ...] = ()
    """Type and value of each extension (TLV), in order."""


def bytes_wanted(buffer: bytes) -> int:
    """How many bytes the header still lacks; 0 when it is whole. Raises ProtocolViolation."""
    head = buffer[: len(SIGNATURE)]
    if not SIGNATURE.startswith(head):
        if _VERSION_1.startswith(head[: len(_VERSION_1)]):
            raise ProtocolViolation(
                "the proxy speaks version 1 of the PROXY protocol: set it to version 2"
            )
        raise ProtocolViolation(
            "the connection does not begin with a PROXY protocol version 2 header: let the proxy "
            "send one, or switch `proxy_protocol` off for this listener"
        )
    if len(buffer) < _FIXED_BYTES:
        return _FIXED_BYTES - len(buffer)
    whole = _FIXED_BYTES + int.from_bytes(buffer[14:16])
    if whole > HEADER_BYTES_MAX:
        raise ProtocolViolation(
            f"a PROXY header has at most {HEADER_BYTES_MAX} bytes, this one {whole}"
        )
    return max(0, whole - len(buffer))


def parse(header: bytes) -> ProxyHeader:
    """Read a whole header. Raises ProtocolViolation."""
    if bytes_wanted(header):
        raise ProtocolViolation("the PROXY header is cut off")
    command, family = header[12], header[13]
    if command >> 4 != 2:
        raise ProtocolViolation(
            f"PROXY protocol version {command >> 4} is not supported; use version 2"
        )
    if command not in (_LOCAL, _PROXY):
        raise ProtocolViolation(f"the PROXY command {command & 15} is unknown")
    body = header[_FIXED_BYTES:]
    source, destination, used = _addresses(family, body)
    extensions = _extensions(body[used:])
    _check_crc(header, _FIXED_BYTES + used, extensions)
    if command == _LOCAL:
        # The proxy's own connection, such as its health check: the addresses mean nothing.
        return ProxyHeader(None, None, extensions)
    return ProxyHeader(source, destination, extensions)


Address = tuple[str, int] | None


def _addresses(family: int, body: bytes) -> tuple[Address, Address, int]:
    if family == _UNSPEC:
        return None, None, 0
    sizes = {_TCP4: 12, _TCP6: 36, _UNIX: 216}
    if family not in sizes:
        raise ProtocolViolation(
            f"the PROXY address family {family:#04x} is not TCP over IPv4 or IPv6"
        )
    size = sizes[family]
    if len(body) < size:
        raise ProtocolViolation(f"the PROXY header has {len(body)} bytes of addresses, not {size}")
    if family == _UNIX:
        return None, None, size
    kind, width = (socket.AF_INET, 4) if family == _TCP4 else (socket.AF_INET6, 16)
    ports = struct.unpack_from("!HH", body, 2 * width)
    source = socket.inet_ntop(kind, body[:width])
    destination = socket.inet_ntop(kind, body[width : 2 * width])
    return (source, ports[0]), (destination, ports[1]), size


def _extensions(data: bytes) -> tuple[tuple[int, bytes], ...]:
    found = []
    at = 0
    while at < len(data):
        if len(data) - at < 3:
            raise ProtocolViolation("an extension of the PROXY header is cut off")
        kind, size = struct.unpack_from("!BH", data, at)
        value = data[at + 3 : at + 3 + size]
        if len(value) < size:
            raise ProtocolViolation("an extension of the PROXY header is cut off")
        found.append((kind, value))
        at += 3 + size
    return tuple(found)


def _check_crc(header: bytes, at: int, extensions: tuple[tuple[int, bytes], ...]) -> None:
    for kind, value in extensions:
        if kind == _CRC32C:
            # Computed with the checksum's own four bytes as zeros.
            blank = header[: at + 3] + bytes(4) + header[at + 7 :]
            if len(value) != 4 or crc32c(blank) != int.from_bytes(value):
                raise ProtocolViolation("the checksum of the PROXY header is wrong")
        at += 3 + len(value)
