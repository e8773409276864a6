"""Bodies of requests: bounded while they are read, whoever sent them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from starlette.requests import ClientDisconnect, Request


class BodyBound(NamedTuple):
    """A request that announces a longer body is refused by its head, before the application."""

    bytes_max: int
    answer: bytes


def too_long(bytes_max: int) -> str:
    """What a client hears of its body."""
    return f"the body is larger than {bytes_max} bytes"


def body_bound(bytes_max: int, status: str, body: Any) -> BodyBound:
    """The bound of an application, which would answer so, too."""
    text = msgspec.json.encode(body)
    head = (
        f"HTTP/1.1 {status}\r\nconnection: close\r\ncache-control: no-store\r\n"
        f"content-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
    )
    return BodyBound(bytes_max, head.encode() + text)


async def bounded_body(
    request: Request,
    most: int,
    *,
    too_large: Callable[[str], Exception],
    cut: Callable[[str], Exception],
) -> bytes:
    """The body. Raises what `too_large` or `cut` makes of the reason."""
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > most:
                raise too_large(too_long(most))
            pieces.append(piece)
    except ClientDisconnect:
        raise cut("the peer left before it had sent the whole body") from None
    return b"".join(pieces)
