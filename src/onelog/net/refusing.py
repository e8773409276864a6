"""Who answers on a protocol's listeners while the protocol could not be opened.

Rules: a hub that cannot be opened is abandoned, and the error is the caller's, who may try again
with another one. The first that failed refuses, in the protocol's own words, who connects
meanwhile: a port that does not answer would look like a broker that is gone. Once one could be
opened, those who were refused and still hold on are told to leave.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar


class Refuser(Protocol):
    """A hub that may fail to open."""

    async def abandon(self) -> None:
        """Let go of everything, so that another one can be opened; refuse who connects."""
        ...

    def dismiss(self) -> None:
        """Tell everybody to leave."""
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
