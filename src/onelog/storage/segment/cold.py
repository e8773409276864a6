"""Bytes of a segment's log that are not in memory: found out before they are touched, and brought.

Why: touching them through the map would hold the loop until the disk answered, and a disk that
answers with an error would end the process.
Rules: what was brought counts as there while its lease is held, whatever the system says, so that
who waited for it gets it. Bytes that cannot be read stop the partition (the caller sees to that).
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
from onelog.storage.segment.files import OpenFile
from onelog.storage.segment.residence import Map

if TYPE_CHECKING:
    from onelog.storage.segment.segment import Segment

BRING_BYTES: Final = 1024 * 1024
"""What is read from the disk in one go."""
AHEAD_BYTES: Final = 4 * 1024 * 1024
"""What the system is asked to read behind it."""
_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
"""Where a batch says how many bytes follow."""


class ColdBytes(Cold):
    """A stretch of a segment's log is not in memory."""

    def __init__(self, segment: Segment, start: int, end: int) -> None:
        super().__init__((segment.base_offset, start, end), end - start)
        self.segment = segment
        self.start = start
        self.end = end


class _Stretch(Lease):
    """Bytes that were just read."""

    __slots__ = ("_held", "end", "start")

    def __init__(self, held: list[_Stretch], start: int, end: int) -> None:
        self.start = start
        self.end = end
        self._held = held
        held.append(self)

    def release(self) -> None:
        """Ask the system again whether they are there."""
        with contextlib.suppress(ValueError):
            self._held.remove(self)


class Stretches:
    """What was brought of one segment and is in use."""

    __slots__ = ("_held", "_segment")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._held: list[_Stretch] = []

    def here_to(self, buffer: Map, start: int, needed: int, wished: int) -> int:
        """Up to where the log is in memory from `start` on: at least to `needed`, or Cold."""
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
        """Bytes that may be handed out from the batch at `position` on: that batch, and what else
        lies below `here`. Cold where the batch itself, whose header is there, is not.
        """
        size = _LENGTH.unpack_from(buffer, position + _LENGTH_AT)[0] + _LENGTH_AT + _LENGTH.size
        # The header behind what is handed out is looked at, too.
        needed = min(position + size + HEADER_BYTES, limit)
        if here < needed:
            here = self.here_to(buffer, position, needed, needed)
        return max(here - HEADER_BYTES - position, 1)

    def bring(self, path: str, size: int, cold: ColdBytes, is_gone: Callable[[], bool]) -> Lease:
        """Read a stretch from the disk, and ask for more behind it; the system keeps both.

        The log has `size` bytes. When the segment `is_gone`, the file may be another's.
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
