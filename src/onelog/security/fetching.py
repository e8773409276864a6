"""Documents of an identity provider, from a URL. Blocking: call it in a thread.

Rules: HTTPS, or plain HTTP to this machine. A redirect is not followed: a provider that moved is a
matter for the operator. Every fetch has a deadline as a whole, however slowly bytes come, and a
bound on its size.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from onelog.base.networks import is_loopback

DEADLINE_S: Final = 10.0
_PIECE_BYTES: Final = 16 * 1024


class FetchError(Exception):
    """A document could not be had."""


def check_url(url: str) -> str:
    """Return the URL if documents may come from there; raise FetchError otherwise."""
    parts = urlsplit(url)
    if not parts.hostname or parts.scheme not in ("https", "http"):
        raise FetchError(f"{url!r} is no URL that begins with https://")
    if parts.username is not None or parts.fragment:
        raise FetchError(f"{url!r} has a user or a fragment in it")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise FetchError(
            f"{url!r} is not encrypted: whoever is on the way could give keys of their own; use"
            " https://"
        )
    return url


def fetch(
    url: str,
    bytes_max: int,
    *,
    ca_file: str = "",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
) -> bytes:
    """The document at a URL, or the answer to a form that is sent there. Raises FetchError."""
    parts = urlsplit(check_url(url))
    assert parts.hostname is not None
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=ca_file or None)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=deadline_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=deadline_s)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    late: threading.Timer | None = None
    try:
        connection.connect()
        # The connection lets go of its socket when the answer is its last one: keep it.
        late = threading.Timer(deadline_s, _cut, (connection.sock,))
        late.daemon = True
        late.start()
        connection.request(
            "GET" if body is None else "POST",
            target,
            body,
            {"Accept": "application/json", **(headers or {})},
        )
        with contextlib.closing(connection.getresponse()) as response:
            return _answer(response, url, bytes_max)
    except (OSError, http.client.HTTPException, ValueError) as error:
        is_late = late is not None and late.finished.is_set()
        why = "it took too long" if is_late else str(error) or type(error).__name__
        raise FetchError(f"{url} cannot be read: {why}") from None
    finally:
        if late is not None:
            late.cancel()
        connection.close()


def _answer(response: http.client.HTTPResponse, url: str, bytes_max: int) -> bytes:
    if response.status != 200:
        more = " (redirects are not followed)" if 300 <= response.status < 400 else ""
        raise FetchError(f"{url} answers {response.status}{more}")
    pieces: list[bytes] = []
    size = 0
    while piece := response.read(_PIECE_BYTES):
        size += len(piece)
        if size > bytes_max:
            raise FetchError(f"{url} sends more than {bytes_max} bytes")
        pieces.append(piece)
    if response.length:
        raise FetchError(f"{url} cannot be read: the answer is not whole")
    return b"".join(pieces)


def _cut(sock: socket.socket) -> None:
    """End a fetch that takes too long, wherever it waits."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # also of TLS, without its farewell
