"""Reads of a connection whose requests have a known length, interpreted: a long one is gathered.

Rules:
- Whoever cuts the reads into frames says `expect` when the beginning of a long frame has come. The
  bytes up to its end are then gathered in one buffer, which belongs to the frame.
- A set of sockets reads them straight into that buffer. Other transports call `receive`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer


class FrameInput:
    """Takes the reads of one connection."""

    __slots__ = ("_begun", "_filled", "_room", "_seen", "_size", "_take_frame", "_take_read")

    def __init__(
        self, take_read: Callable[[bytes], None], take_frame: Callable[[bytearray, int], None]
    ) -> None:
        """`take_read` gets what is not gathered; `take_frame` a frame and its gathered bytes."""
        self._take_read = take_read
        self._take_frame = take_frame
        self._room: bytearray | None = None
        self._size = 0
        self._filled = 0
        self._begun = 0
        self._seen = 0

    def has_moved(self) -> bool:
        """Whether bytes of a frame were gathered since the last call."""
        moved, self._seen = self._seen != self._filled, self._filled
        return moved

    def expect(self, begun: Buffer, size: int) -> None:
        """A frame of `size` bytes has begun with these."""
        if len(begun) > size:
            raise ValueError(f"{len(begun)} bytes are more than a frame of {size}")
        self._room = bytearray(begun)
        self._size = size
        self._filled = self._begun = len(begun)

    def receive(self, data: bytes) -> None:
        """Take a read."""
        room = self._room
        if room is None:
            self._take_read(data)
            return
        left = self._size - self._filled
        room += data[:left]
        self._filled = len(room)
        if self._filled == self._size:
            self._room = None
            self._filled = 0
            self._take_frame(room, len(room) - self._begun)
            if len(data) > left:
                self.receive(data[left:])

    def end(self) -> None:
        """The connection is over."""
        self._room = None
        self._filled = 0
        self._take_read = self._take_frame = _ignore


def _ignore(*_what: object) -> None:
    pass
