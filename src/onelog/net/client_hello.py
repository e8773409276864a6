"""Waits for a ClientHello before TLS begins: a peer that sends none costs a socket and little more.

The TLS state of a connection takes about 300 KB. Rules: nobody gets one before the first record of
the handshake is in the socket's buffer, as a whole. The bytes stay there, for TLS to read. Bytes
that begin no handshake, and a record that announces more than TLS allows, end the connection.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

from onelog.base.errors import ProtocolViolation
from onelog.base.futures import settle

_HEAD: Final = struct.Struct(">BHH")
"""Type of the record, version, length."""
_HANDSHAKE: Final = 22
_RECORD_BYTES_MAX: Final = 16_384
"""RFC 8446 5.1."""
_NO_HANDSHAKE: Final = "the peer does not begin a TLS handshake"


def has_hello(sock: socket.socket) -> bool:
    """Whether the first record of a handshake is there; the socket gets readable when more of it
    is. Raises ProtocolViolation or OSError, and BlockingIOError if nothing is there."""
    head = sock.recv(_HEAD.size, socket.MSG_PEEK)
    if head[:1] != _HANDSHAKE.to_bytes():
        raise ProtocolViolation(_NO_HANDSHAKE)
    wanted = _HEAD.size if len(head) < _HEAD.size else _HEAD.size + _body_bytes(head)
    is_there = wanted > _HEAD.size and len(sock.recv(wanted, socket.MSG_PEEK)) == wanted
    if not is_there and sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == wanted:
        # It was to wake us for so many: it ends here, or urgent data cut its stream in two, and the
        # socket would stay readable for ever.
        raise ProtocolViolation(_NO_HANDSHAKE)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 if is_there else wanted)
    return is_there


def _body_bytes(head: bytes) -> int:
    """How many bytes follow the head of the first record. Raises ProtocolViolation."""
    kind, _version, size = _HEAD.unpack(head)
    if kind != _HANDSHAKE or not 0 < size <= _RECORD_BYTES_MAX:
        raise ProtocolViolation(_NO_HANDSHAKE)
    return int(size)


async def wait_for_hello(sock: socket.socket, deadline: float) -> None:
    """Return when the first record of a handshake is there. Raises ProtocolViolation, TimeoutError
    or OSError."""
    async with asyncio.timeout_at(deadline):
        size = _body_bytes(await _peek(sock, _HEAD.size))
        await _peek(sock, _HEAD.size + size)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


async def _peek(sock: socket.socket, count: int) -> bytes:
    """The first bytes in the buffer of a socket, when so many are there. They stay there."""
    try:
        data = sock.recv(count, socket.MSG_PEEK)
    except BlockingIOError:
        data = b""
        is_open = True
    else:
        is_open = bool(data)
    if len(data) < count and is_open:
        # The system wakes us when there are so many, and not for each byte of a slow peer.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(sock.fileno(), settle, ready, None)
        try:
            await ready
        finally:
            loop.remove_reader(sock.fileno())
        data = sock.recv(count, socket.MSG_PEEK)
    if len(data) < count:
        raise ProtocolViolation("the connection ended before the TLS handshake began")
    return data
