"""Refuses clients on a protocol's listeners while the protocol could not be opened.

Rules: a hub that cannot be opened is abandoned, and the caller gets the error; it may try again
with another hub. Meanwhile the first failed hub refuses clients with the protocol's own error,
because a port that does not answer would look like a broker that is gone. Once a hub could be
opened, refused clients that are still connected are disconnected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar


class Refuser(Protocol):
    """A hub that may fail to open."""

    async def abandon(self) -> None:
        """Release everything, so that another hub can be opened; refuse clients that connect."""
        ...

    def dismiss(self) -> None:
        """Disconnect all clients."""
        ...


Hub = TypeVar("Hub", bound=Refuser)
Found = TypeVar("Found")


class Refusing(Generic[Hub]):
    """The hubs of one protocol's listeners, one after the other until one can be opened."""

    def __init__(self, serve: Callable[[Hub], Awaitable[None]]) -> None:
        self._serve = serve
        self._refuser: Hub | None = None

    async def open(self, hub: Hub, opening: Awaitable[Found]) -> Found:
        """Serve a hub once it is open; what `opening` gives. Raises what keeps it from that."""
        try:
            found = await opening
            await self._serve(hub)
        except BaseException as error:
            await hub.abandon()
            if isinstance(error, Exception) and self._refuser is None:
                self._refuser = hub
                await self._serve(hub)
            raise
        self.end()
        return found

    def end(self) -> None:
        """Nobody is refused any more. Idempotent."""
        refuser, self._refuser = self._refuser, None
        if refuser is not None:
            refuser.dismiss()
