"""Turns: one task at a time acts for a client."""

from __future__ import annotations

import asyncio


class Turn:
    """Lets one task at a time act for a client; forgotten when no task waits for it."""

    __slots__ = ("_client_id", "_lock", "_turns", "_waiting")

    def __init__(self, turns: dict[str, Turn], client_id: str) -> None:
        self._turns = turns
        self._client_id = client_id
        self._lock = asyncio.Lock()
        self._waiting = 0

    async def __aenter__(self) -> None:
        self._waiting += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_error: object) -> None:
        self._lock.release()
        self._leave()

    def _leave(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            del self._turns[self._client_id]


def turn_of(turns: dict[str, Turn], client_id: str) -> Turn:
    """The turn of a client: one connection at a time attaches, detaches or expires for it."""
    turn = turns.get(client_id)
    if turn is None:
        turn = turns[client_id] = Turn(turns, client_id)
    return turn
