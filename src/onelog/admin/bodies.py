"""Bodies of requests: bounded while they are read, whoever sent them."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import ClientDisconnect, Request


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
                raise too_large(f"the body is larger than {most} bytes")
            pieces.append(piece)
    except ClientDisconnect:
        raise cut("the peer left before it had sent the whole body") from None
    return b"".join(pieces)
