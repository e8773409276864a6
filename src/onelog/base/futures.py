"""Futures that a callback ends."""

from __future__ import annotations

import asyncio


def settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    """The work is done, or failed; the caller may be gone."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
