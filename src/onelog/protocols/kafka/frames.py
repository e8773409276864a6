"""Reads of a connection, cut into frames.

Rules:
- A frame that lies in one read is not copied. A frame of several reads is copied once, when its
  last byte is here, into a buffer of its own: whoever appends its batches may change them there.
- Small reads of a frame are gathered in one buffer, so that a peer that sends byte by byte costs no
  more memory than it sent (I8).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from onelog.base.errors import ProtocolViolation
from onelog.kernel import split_frames

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer

Frame = tuple[bytes | bytearray, int, int]
"""A request: the buffer that holds it, where it begins and where it ends in it."""

SMALL_BYTES: Final = 16 * 1024
"""A read of fewer bytes is copied while its frame is not whole."""
_LENGTH_BYTES: Final = 4
_BAD: Final = -1


class FrameCutter:
    """Cuts the reads of one connection; holds the beginning of a frame whose end has not come."""

    __slots__ = ("_needed", "_parts", "_size")

    def __init__(self) -> None:
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
                start, size = self._needed - self._size, self._needed - _LENGTH_BYTES
                whole_frame = self._joined(memoryview(data)[:start])
                frames.append((whole_frame, _LENGTH_BYTES, self._needed))
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
            self._keep(memoryview(buffer)[rest:] if rest else buffer)
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
