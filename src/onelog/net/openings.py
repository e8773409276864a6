"""Openings: whether the first bytes of a peer can begin what a listener speaks.

Rules: an opening is asked before anything is made for a connection, with the first bytes that are
there (`OPENING_BYTES` at most, at least one). It answers None if they may be the beginning, and
otherwise the last words to the peer, which may be none. It does not need to find every fault: the
protocol looks at all of the bytes.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Final

Opening = Callable[[bytes], bytes | None]

OPENING_BYTES: Final = 8
_UNREAD_BYTES: Final = 65_536
_BAD_REQUEST: Final = (
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 30\r\n\r\nThe request is no valid HTTP.\n"
)
_METHODS: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz\r\n-_")
_METHOD_BYTES: Final = 3
"""So many letters the shortest method has, or empty lines before it."""


def http_opening(first: bytes) -> bytes | None:
    """A request of HTTP begins with the letters of its method."""
    return None if _METHODS.issuperset(first[:_METHOD_BYTES]) else _BAD_REQUEST


def first_bytes(fd: int) -> bytes:
    """The first bytes that a peer has sent; they stay in the buffer of the socket. Raises OSError.

    None at all: the peer sends no more."""
    # The type of the system's: Python's own object around it costs as much as the call.
    looking = socket.SocketType(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=fd)
    try:
        return looking.recv(OPENING_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    finally:
        looking.detach()


def say_last(fd: int, words: bytes) -> None:
    """Send last words. What the peer has sent is thrown away: a close with unread bytes would take
    the words back."""
    looking = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=fd)
    try:
        with contextlib.suppress(OSError):
            looking.recv(_UNREAD_BYTES, socket.MSG_DONTWAIT)
            if words:
                looking.send(words, socket.MSG_DONTWAIT)
    finally:
        looking.detach()
