"""Bytes of a segment's files that are not in memory: found before they are touched, and brought.

Why: touching them through the map would hold the loop until the disk answers, and a disk error
would end the process.
Rules: bytes that were brought count as present while their lease is held, whatever the system says,
so that the reader that waited gets them. Bytes that cannot be read stop the partition (the caller
does that).
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from onelog.base import faults
from onelog.base.errors import CorruptBatch
from onelog.kernel import HEADER_BYTES
from onelog.storage.engine import Cold, Lease
from onelog.storage.files import OpenFile
from onelog.storage.residence import Map

if TYPE_CHECKING:
    from onelog.storage.segment.segment import Segment

BRING_BYTES: Final = 1024 * 1024
"""Bytes that are read from the disk at once."""
AHEAD_BYTES: Final = 4 * 1024 * 1024
"""Bytes behind them that the system is asked to read."""
_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
"""The position of a batch's length in its header."""


class ColdBytes(Cold):
    """A range of a segment's log is not in memory."""

    def __init__(self, segment: Segment, start: int, end: int) -> None:
        super().__init__((segment.base_offset, start, end), end - start)
        self.segment = segment
        self.start = start
        self.end = end


class ColdIndex(Cold):
    """An index file of a segment is not in memory, was not checked yet, or has to be rebuilt."""

    def __init__(self, segment: Segment, extension: str) -> None:
        super().__init__((segment.base_offset, extension), 0)
        self.segment = segment
        self.extension = extension
        """Empty: all of them are to be rebuilt."""


class HeldIndex(Lease):
    """An index file that was just read."""

    __slots__ = ("_extension", "_held")

    def __init__(self, held: list[str], extension: str) -> None:
        self._extension = extension
        self._held: list[str] | None = held
        held.append(extension)

    def release(self) -> None:
        """Ask the system again whether it is there."""
        held, self._held = self._held, None
        if held is not None:
            held.remove(self._extension)


class _Stretch(Lease):
    """A range of bytes that was just read."""

    __slots__ = ("_held", "end", "start")

    def __init__(self, held: list[_Stretch], start: int, end: int) -> None:
        self.start = start
        self.end = end
        self._held = held
        held.append(self)

    def release(self) -> None:
        """From now on, ask the system again whether they are in memory."""
        with contextlib.suppress(ValueError):
            self._held.remove(self)


class Stretches:
    """The ranges of one segment that were brought and are in use."""

    __slots__ = ("_held", "_segment")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._held: list[_Stretch] = []

    def here_to(self, buffer: Map, start: int, needed: int, wished: int) -> int:
        """The end of the bytes in memory from `start` on: at least `needed`. Raises Cold."""
        here = start
        if self._held:
            for stretch in tuple(self._held):
                if stretch.start <= here < stretch.end:
                    here = stretch.end
        if here < wished:
            here = buffer.here_to(here, wished)
        if here < needed:
            raise ColdBytes(self._segment, start, needed)
        return here

    def room(self, buffer: Map, position: int, here: int, limit: int) -> int:
        """Bytes that may be handed out from the batch at `position` on: that batch, and more below
        `here`. Raises Cold when the batch, whose header is in memory, is not."""
        size = _LENGTH.unpack_from(buffer, position + _LENGTH_AT)[0] + _LENGTH_AT + _LENGTH.size
        # The header behind these bytes is read, too.
        needed = min(position + size + HEADER_BYTES, limit)
        if here < needed:
            here = self.here_to(buffer, position, needed, needed)
        return max(here - HEADER_BYTES - position, 1)

    def bring(self, path: str, size: int, cold: ColdBytes, is_gone: Callable[[], bool]) -> Lease:
        """Read a range from the disk, and ask for more behind it; the system keeps both in memory.

        The log has `size` bytes. When the segment `is_gone`, the path may belong to another file.
        """
        file = OpenFile(path, os.O_RDONLY)
        end = min(size, max(cold.end, cold.start + BRING_BYTES))
        room = memoryview(bytearray(min(end - cold.start, BRING_BYTES)))
        position = cold.start
        while position < end:
            faults.hit("segment.read")
            got = os.preadv(file.fd, [room[: end - position]], position)
            if got == 0:
                if is_gone():
                    break
                raise CorruptBatch(f"{path} has {position} bytes, {end} are expected")
            position += got
        with contextlib.suppress(OSError, AttributeError):  # a wish, and not of every system
            os.posix_fadvise(file.fd, end, AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        return _Stretch(self._held, cold.start, end)
