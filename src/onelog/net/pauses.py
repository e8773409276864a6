"""The reasons to pause reading from one peer; reading goes on when no reason is left.

Rules: a reason counts once, however often it is given. A transport that is closing is not changed,
because nothing more is read from it.
"""

from __future__ import annotations

from typing import Final

from onelog.kernel import ByteCount
from onelog.net.peer import StreamTransport

_NO_REASONS: Final[frozenset[str]] = frozenset()


class Pauses:
    """The reasons of one connection."""

    __slots__ = ("_transport", "heard", "reasons")

    def __init__(self) -> None:
        self._transport: StreamTransport | None = None
        self.reasons = _NO_REASONS
        """Hot paths read it directly, because a call would cost too much. Mostly it is empty."""
        self.heard = False
        """For a `SilenceWatch`: a peer that was not read could not be heard."""

    def begin(self, transport: StreamTransport) -> None:
        """The connection stands."""
        self._transport = transport

    def pause(self, why: str) -> None:
        """Read no more until every reason is gone."""
        if why in self.reasons:
            return
        if not self.reasons:
            transport = self._transport
            if transport is not None and not transport.is_closing():
                transport.pause_reading()
        self.reasons |= {why}

    def resume(self, why: str) -> None:
        """One reason is gone; the peer is read again if it was the last."""
        if why not in self.reasons:
            return
        self.reasons -= {why}
        transport = self._transport
        if not self.reasons and transport is not None and not transport.is_closing():
            self.heard = True
            transport.resume_reading()

    def end(self) -> None:
        """The connection is gone: hold nothing of it."""
        self._transport = None


ByteBound = ByteCount
"""Bytes of a peer that wait: past the bound the peer is not read, until half of it is free."""
