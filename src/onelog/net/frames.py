"""Reads of a connection, cut into frames.

Rules:
- A frame that lies in one read is not copied. A frame of several reads gets a buffer of its own:
  whoever appends its batches may change them there.
- The bytes of a long frame are gathered in that buffer as they come (`FrameInput`). Its memory is
  not touched before, so a peer that sends less than it announced costs what it sent (I8). A frame
  that is longer still, or short, is copied there when its last byte is here.
- Small reads of such a frame are kept in one buffer, so that a peer that sends byte by byte costs
  no more memory than it sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from onelog.base.errors import ProtocolViolation
from onelog.kernel import split_frames

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer

Frame = tuple[bytes | bytearray, int, int]
"""A request: the buffer that holds it, where it begins and where it ends in it."""

SMALL_BYTES: Final = 16 * 1024
"""A read of fewer bytes is copied while its frame is not whole."""
GATHERED_BYTES: Final = range(64 * 1024, 4 * 1024 * 1024)
"""Frames of so many bytes are gathered."""
LENGTH_BYTES: Final = 4
_BAD: Final = -1


class FrameCutter:
    """Cuts the reads of one connection; holds the beginning of a frame whose end has not come."""

    __slots__ = ("_gather", "_needed", "_parts", "_size")

    def __init__(self, gather: Callable[[Buffer, int], None] | None = None) -> None:
        """`gather` is called with the beginning of a long frame, and with the frame's length."""
        self._gather = gather
        self._parts: list[Buffer] = []
        self._size = 0
        """Bytes of the parts."""
        self._needed = 0
        """Bytes of the frame with its length; 0: unknown, negative: the length is not allowed."""

    def take(self, data: bytes, frame_bytes_max: int, frames: deque[Frame]) -> int:
        """Add the frames that are whole now. Returns how many bytes these have.

        Raises ProtocolViolation for a frame of an impossible length. After good ones it is left to
        `check`, so that the good ones are served first.
        """
        buffer: bytes | bytearray = data
        start = size = 0
        if self._size:
            if self._needed <= 0:
                buffer = self._joined(data)
            elif self._size + len(data) < self._needed:
                self._keep(data)
                return 0
            else:
                start, size = self._needed - self._size, self._needed - LENGTH_BYTES
                whole_frame = self._joined(memoryview(data)[:start])
                frames.append((whole_frame, LENGTH_BYTES, self._needed))
        try:
            whole, rest, self._needed = split_frames(buffer, start, frame_bytes_max)
        except ProtocolViolation:
            if not size:
                raise
            whole, rest, self._needed = [], start, _BAD
        for begin, end in whole:
            frames.append((buffer, begin, end))
            size += end - begin
        if rest < len(buffer):
            begun = memoryview(buffer)[rest:] if rest else buffer
            if self._gather is not None and self._needed in GATHERED_BYTES:
                self._gather(begun, self._needed)
                self._needed = 0
            else:
                self._keep(begun)
        return size

    def check(self, frame_bytes_max: int) -> None:
        """Raises ProtocolViolation if the next frame has an impossible length."""
        if self._needed < 0:
            split_frames(b"".join(self._parts), 0, frame_bytes_max)

    def _keep(self, part: Buffer) -> None:
        parts = self._parts
        self._size += len(part)
        if len(part) >= SMALL_BYTES:
            parts.append(part)
        elif parts and isinstance(parts[-1], bytearray):
            parts[-1] += part
        else:
            parts.append(bytearray(part))

    def _joined(self, last: Buffer) -> bytearray:
        parts, self._parts, self._size = self._parts, [], 0
        parts.append(last)
        return bytearray().join(parts)
