"""The batches that a queue delivers from: those that just came, or some read from the log.

Rules: only whole plain batches, checked, whose records carry their topic. Batches read from the log
are views of their file, and stay while the queue has more of them to deliver; batches that just
came do not stay. A thread brings batches that are cold, and the queue is called when they are in
memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError
from onelog.base.ids import Offset
from onelog.broker import Cold, Waiter
from onelog.kernel import scan_batches

if TYPE_CHECKING:
    from onelog.broker import Live

READ_BYTES: Final = 256 * 1024

Data = bytes | bytearray | memoryview


class Window:
    """The batches from which one queue delivers."""

    __slots__ = ("_arrival", "_data", "_end", "_first", "_here", "_live", "_number")

    def __init__(self, live: Live, here: Callable[[], None]) -> None:
        self._live = live
        self._here = weakref.WeakMethod(here)  # of the queue, which holds the window
        """Called when cold batches are in memory."""
        self._arrival: Waiter | None = None
        self._number = -1
        self._first = self._end = 0
        self._data: Data = b""

    def show(self, number: int, first: int, end: int, data: Data) -> None:
        """Use batches of a partition that just became visible."""
        self._number, self._first, self._end, self._data = number, first, end, data

    def close(self) -> None:
        """Drop the batches."""
        self._number, self._data = -1, b""

    def leave(self) -> None:
        """No consumer takes more for now: drop batches that are not views of a file."""
        if not isinstance(self._data, memoryview):
            self.close()

    @property
    def is_waiting(self) -> bool:
        """Whether the window waits for cold batches."""
        return self._arrival is not None

    def _arrived(self, _error: OnelogError | None) -> None:
        self._arrival = None
        here = self._here()
        if here is not None:
            here()

    def at(self, number: int, offset: int) -> Data | None:
        """Batches from which the record at an offset can be delivered; None: read the record alone,
        unless the window `is_waiting`."""
        if number == self._number and self._first <= offset < self._end:
            return self._data
        if self.is_waiting:
            return None
        source = self._live.source(number)
        partition = source.partition
        if source.stream.fixed_topic_at(partition.id, Offset(offset)) is not None:
            return None  # its records do not carry their topic
        try:
            data = partition.read_now(Offset(offset), READ_BYTES, committed=True)
            infos = scan_batches(data)
        except Cold as cold:
            self._arrival = partition.when_here(cold, self._arrived)
            return None
        except OnelogError:
            return None  # the reader of single records reports what is wrong
        if not infos or offset < infos[0].base_offset:
            return None
        self.show(number, infos[0].base_offset, infos[-1].last_offset + 1, data)
        return data
