"""The pace of one connection: how every protocol treats a peer that does not read.

Rules (I8):
- Past the high mark of unread bytes the protocol is notified, and sends nothing of its own accord.
  Answers to the peer's requests go on, because the peer may be busy sending. When these answers
  have added as many bytes again, the broker stops reading from the peer until the peer has read.
- A peer that reads no byte at all for the write timeout, although bytes wait for it, is cut off.
  An open connection is watched past the high mark, one that is closed while any byte waits.
- The protocol may stop reading for its own reasons. The connection is read only while neither the
  protocol nor the pace has stopped it.
- A connection costs little before it does anything: what only a slow or a leaving peer needs is
  made then. Each object that stays is one more that the cycle collector walks.
- At the end a peer may finish: it gets an end of stream, its further input is thrown away, and the
  socket is closed when the peer closes it or after `LINGER_S`. A close with unread input would be a
  reset, and the peer could lose the last answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final, Protocol

from onelog.net.deadline import Deadline

HIGH_BYTES: Final = 65_536
"""Unread bytes past which a protocol is notified, unless it chooses another number."""

LINGER_S: Final = 2.0


class WriteWatch:
    """Calls `on_stuck` when a peer takes no byte for the timeout.

    `stop_reading` keeps the peer from asking for more, so that the next look is certain.
    """

    __slots__ = (
        "_deadline",
        "_is_alone",
        "_on_stuck",
        "_stop_reading",
        "_timeout_s",
        "_transport",
    )

    def __init__(
        self,
        transport: asyncio.WriteTransport,
        deadline: Deadline,
        timeout_s: float,
        on_stuck: Callable[[], None],
        stop_reading: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._deadline = deadline
        self._timeout_s = timeout_s
        self._on_stuck = on_stuck
        self._stop_reading = stop_reading
        self._is_alone = False
        """Whether the peer was kept from asking for more since the last look."""

    def start(self) -> None:
        """Bytes wait for the peer from now on."""
        self._is_alone = False
        self._wait()

    def _wait(self) -> None:
        size = self._transport.get_write_buffer_size()
        self._deadline.start(self._timeout_s, self._look, size)

    def stop(self) -> None:
        """The peer has read, or is gone. Idempotent."""
        self._deadline.stop()

    def let_go(self) -> None:
        """The connection is gone: drop all references, so that nothing waits for the cycle
        collector."""
        self.stop()
        self._on_stuck = self._stop_reading = _nothing

    def _look(self, before: int) -> None:
        size = self._transport.get_write_buffer_size()
        if size == before or (size > before and self._is_alone):
            self._on_stuck()
            return
        if size > before:
            # It may have taken some while its own requests added more: the next look will tell.
            self._is_alone = True
            self._stop_reading()
        self._wait()


class PacedOwner(Protocol):
    """The connection whose pace it is."""

    def stuck(self) -> None:
        """The peer takes nothing any more: cut it off."""
        ...

    def parting(self) -> None:
        """The peer is to finish: throw its further input away."""
        ...


class PacedTransport:
    """The loop's transport as a protocol has it."""

    __slots__ = (
        "_deadline",
        "_high_bytes",
        "_is_full",
        "_is_parting",
        "_lower",
        "_mark_bytes",
        "_owner",
        "_wanted",
        "_watch",
        "_write_timeout_s",
        "abort",
        "get_write_buffer_size",
        "is_closing",
        "write",
        "writelines",
    )

    def __init__(self, lower: asyncio.Transport, write_timeout_s: float, owner: PacedOwner) -> None:
        # A write is the loop's own method: nothing of ours is between.
        self.write = lower.write
        self.writelines = lower.writelines
        self.abort = lower.abort
        self.is_closing = lower.is_closing
        self.get_write_buffer_size = lower.get_write_buffer_size
        self._lower = lower
        self._owner: PacedOwner | None = owner
        self._write_timeout_s = write_timeout_s
        self._deadline: Deadline | None = None
        """Of a peer that takes nothing, and later of one that is to finish."""
        self._watch: WriteWatch | None = None
        self._high_bytes = HIGH_BYTES
        self._mark_bytes = 0
        self._is_full = False
        self._wanted = True
        self._is_parting = False

    # -- the protocol's side

    def write_eof(self) -> None:
        """Send what waits, and say that nothing more comes."""
        self._lower.write_eof()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Facts of the connection: `peername`, `socket`, `ssl_object`, …"""
        return self._lower.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Whom the loop calls."""
        return self._lower.get_protocol()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When `pause_writing` and `resume_writing` of the protocol are called."""
        self._high_bytes = HIGH_BYTES if high is None else high
        self._lower.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        """Read no more for now."""
        self._wanted = False
        if not self._is_full:
            self._lower.pause_reading()

    def resume_reading(self) -> None:
        """Read again, as soon as the peer has read."""
        self._wanted = True
        if not self._is_full:
            self._lower.resume_reading()

    def is_reading(self) -> bool:
        """Whether it reads; a peer that is not read cannot be heard."""
        return self._wanted and not self._is_full

    def close(self) -> None:
        """Send what waits, then end."""
        self._lower.close()
        # However little waits: a peer that never takes it must not keep its connection for ever.
        if not self._is_parting and self.get_write_buffer_size():
            self._start_watch()

    def part(self) -> None:
        """Send what waits, say that nothing more comes, and let the peer finish."""
        if self._is_parting or self.is_closing():
            return
        self._is_parting = True
        if self._owner is not None:
            self._owner.parting()
        self._is_full = False
        self.resume_reading()
        if self._lower.can_write_eof():
            with contextlib.suppress(OSError):  # the peer may be gone, and we not told yet
                self._lower.write_eof()
        self._timer().start(LINGER_S, self._lower.abort)

    # -- the loop's side

    def fell_behind(self) -> None:
        """More than the high mark waits for the peer."""
        self._mark_bytes = 0
        if not self._is_parting:
            self._start_watch()

    def caught_up(self) -> None:
        """The peer has read."""
        if self._watch is not None and not self._is_parting and not self.is_closing():
            self._watch.stop()
        if self._is_full:
            self._is_full = False
            if self._wanted and not self.is_closing():
                self._lower.resume_reading()

    def receive(self, data: bytes, take: Callable[[bytes], None]) -> None:
        """A read of a peer that is behind."""
        if not self._mark_bytes:
            size = self.get_write_buffer_size()
            self._mark_bytes = max(2 * self._high_bytes, size + self._high_bytes)
        take(data)
        if self.get_write_buffer_size() > self._mark_bytes:
            self._stop_reading()

    def _stop_reading(self) -> None:
        if not self._is_full and not self.is_closing():
            self._is_full = True
            if self._wanted:
                self._lower.pause_reading()

    def _timer(self) -> Deadline:
        if self._deadline is None:
            self._deadline = Deadline(asyncio.get_running_loop())
        return self._deadline

    def _start_watch(self) -> None:
        owner = self._owner
        if owner is None:  # it is gone
            return
        if self._watch is None:
            self._watch = WriteWatch(
                self._lower, self._timer(), self._write_timeout_s, owner.stuck, self._stop_reading
            )
        self._watch.start()

    def lost(self) -> None:
        """The connection is gone: its memory is freed when its protocol drops this object."""
        self._owner = None
        if self._watch is not None:
            self._watch.let_go()
        if self._deadline is not None:
            self._deadline.stop()


def _nothing() -> None:
    pass
