"""What a queue delivers from: batches that just came, or some read from the log, or single records.

Rules: only whole plain batches, checked, whose records carry their topic. Batches read from the log
are views of their file, and stay while the queue has more of them to deliver; batches that just
came do not stay. A thread brings batches and records that are cold, and the queue is called when
they are in memory. Until then nobody reads here.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError
from onelog.base.futures import settle
from onelog.base.ids import Offset
from onelog.broker import Cold, Waiter
from onelog.kernel import scan_batches
from onelog.queues.ready import pack, unpack

if TYPE_CHECKING:
    from onelog.broker import Callback, Record
    from onelog.queues.hub import QueueHub

READ_BYTES: Final = 256 * 1024

Data = bytes | bytearray | memoryview


class Window:
    """The batches from which one queue delivers."""

    __slots__ = ("_arrival", "_awaited", "_data", "_end", "_first", "_here", "_hub", "_number")

    def __init__(self, hub: QueueHub, here: Callable[[], None]) -> None:
        self._hub = hub
        self._here = weakref.WeakMethod(here)  # of the queue, which holds the window
        """Called when cold batches are in memory."""
        self._arrival: Waiter | None = None
        self._awaited: asyncio.Future[None] | None = None
        self._number = -1
        self._first = self._end = 0
        self._data: Data = b""

    def show(self, number: int, first: int, end: int, data: Data) -> None:
        """Use batches of a partition that just became visible."""
        self._number, self._first, self._end, self._data = number, first, end, data

    def close(self) -> None:
        """Drop the batches, and wait for nothing."""
        self._let_go()
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrived(None)

    def _let_go(self) -> None:
        self._number, self._data = -1, b""

    def leave(self) -> None:
        """No consumer takes more for now: drop batches that are not views of a file."""
        if not isinstance(self._data, memoryview):
            self._let_go()

    @property
    def is_waiting(self) -> bool:
        """Whether the window waits for cold batches or records."""
        return self._arrival is not None

    async def wait(self) -> None:
        """Until what is on its way is here, or cannot be had."""
        if self._arrival is not None:
            if self._awaited is None:
                self._awaited = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._awaited)

    def when_here(self, place: int, cold: Cold, callback: Callback) -> Waiter:
        """Call back when a record that was found cold is here."""
        partition = self._hub.follower.live.source(unpack(place)[0]).partition
        return partition.when_here(cold, callback)

    def _arrived(self, _error: OnelogError | None) -> None:
        self._arrival = None
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            settle(awaited, None)
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
        source = self._hub.follower.live.source(number)
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

    def record_in(self, place: int, data: Data) -> Record | None:
        """The record at a place that lies in batches at hand, if it is plain there."""
        number, offset = unpack(place)
        source = self._hub.follower.live.source(number).as_source
        return self._hub.broker.cursors.record_in(source, data, offset)

    def records(self, places: list[int]) -> dict[int, Record]:
        """The records of places, as far as they are there; Cold while some are on their way."""
        if self._arrival is not None:
            raise Cold("coming", 0)
        found: dict[int, Record] = {}
        for number, group in groupby(sorted(places), key=lambda place: unpack(place)[0]):
            rows = {unpack(place)[1]: place for place in group}
            try:
                records = self._hub.read(number, list(rows))
            except Cold as cold:
                self._arrival = self.when_here(pack(number, 0), cold, self._arrived)
                raise
            for record in records:
                found[rows[record.offset]] = record
        return found
