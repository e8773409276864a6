"""Waits of cursors: one callback for the first news among many sources, never by polling.

Rules: a wait calls back at most once. A wait that ended or was cancelled leaves nothing behind: no
waiter at a partition, no listener at the registry or the queue, and no reference cycle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from onelog.base.errors import OnelogError
from onelog.log.wakeup import Waiter

if TYPE_CHECKING:
    from onelog.cursors.cursor import Reading
    from onelog.cursors.queue import QueueCursor
    from onelog.cursors.sources import SourceRegistry


class Wait:
    """One wait over all sources of a cursor: the first source with news ends it."""

    __slots__ = ("_begun", "_callback", "_done", "_reading", "_registry", "_waiters")

    def __init__(
        self,
        reading: Reading,
        registry: SourceRegistry,
        callback: Callable[[OnelogError | None], None],
    ) -> None:
        self._callback = callback
        self._begun = False
        """Whether it waits for something to read, and not for streams to change."""
        self._done = False
        self._reading = reading
        self._registry = registry
        self._waiters: list[Waiter] = []
        reading.keep_wait(self)
        registry.listen(reading.filters, self._streams_changed)

    def begin(self) -> None:
        """Look at the sources. Calls back at once when one can be read or none ever will."""
        self._begun = True
        try:
            self._reading.check()
        except OnelogError as error:
            self.fire(error)
            return
        for index, source in self._reading.readable_sources():
            waiter = source.partition.when_stable(self._reading.position(index), self._news)
            if waiter is not None:
                self._waiters.append(waiter)
            if self._done:
                return

    def _news(self, error: OnelogError | None) -> None:
        if error is not None:
            # One of many partitions stopped: the reader looks again and goes on without it.
            try:
                self._reading.check()
            except OnelogError as failure:
                self.fire(failure)
                return
        self.fire(None)

    def look_again(self) -> None:
        """Bytes that were cold are in memory, or cannot be brought."""
        if self._begun:
            self._news(None)

    def _streams_changed(self) -> None:
        self.fire(None)

    def fire(self, error: OnelogError | None) -> None:
        """End the wait, once."""
        if not self._done:
            callback = self._callback
            self.cancel()
            callback(error)

    def cancel(self) -> None:
        """Never call back."""
        self._done = True
        self._callback = _nothing
        self._reading.drop_wait(self)
        self._registry.ignore(self._reading.filters, self._streams_changed)
        for waiter in self._waiters:
            waiter.cancel()
        self._waiters.clear()


class QueueWait:
    """One wait for a queue to have something: news in the log, or a record that came back."""

    __slots__ = ("_callback", "_cursor", "_done", "_wait")

    def __init__(self, cursor: QueueCursor, callback: Callable[[], None]) -> None:
        self._cursor = cursor
        self._callback = callback
        self._done = False
        self._wait: Wait | None = None
        cursor.listen(self._fire)
        if cursor.is_full:
            return  # only a settled or returned record makes room
        if cursor.has_returned:
            self._fire()
        else:
            self._wait = cursor.reading.when_readable(lambda _error: self._fire())

    def _fire(self) -> None:
        if not self._done:
            callback = self._callback
            self.cancel()
            callback()

    def cancel(self) -> None:
        """Never call back."""
        self._done = True
        self._callback = _nothing
        self._cursor.ignore(self._fire)
        if self._wait is not None:
            self._wait.cancel()


def _nothing(*_news: object) -> None:
    """Called in place of the callback of an ended wait."""
