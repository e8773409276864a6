"""Calls of the publisher in progress: who waits for which records, and ticks that were written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from onelog.base.errors import OnelogError
from onelog.base.ids import Offset
from onelog.kernel import BatchBuilder, Stage
from onelog.log.handle import PartitionHandle as Partition
from onelog.log.stream import Stream
from onelog.observe.troubles import Troubles

if TYPE_CHECKING:
    from onelog.broker.publish import Publisher


class Published(msgspec.Struct, frozen=True, gc=False):
    """Where a message went."""

    stream: str
    partition: int
    offset: Offset


NOWHERE: Final = Published("", -1, Offset(-1))

Done = Callable[[list[Published] | None, OnelogError | None], None]
"""Called once per call: where the messages went in their order, or the error."""


class Call(Protocol):
    """Who waits for records that are staged."""

    results: list[Published]
    """Where they went; each waits for a place of it."""

    def finish(self, count: int, error: OnelogError | None) -> None:
        """So many of them are visible, or never will be."""
        ...


class Ticket:
    """One call in progress: what it published and which stages it still waits for."""

    __slots__ = ("_done", "_error", "_left", "results")

    def __init__(self, count: int, done: Done) -> None:
        self.results: list[Published] = [NOWHERE] * count
        self._done = done
        self._left = count
        self._error: OnelogError | None = None

    def finish(self, count: int, error: OnelogError | None) -> None:
        """So many of its records are visible, or never will be."""
        self._left -= count
        self._error = self._error or error
        if self._left == 0:
            if self._error is not None:
                self._done(None, self._error)
            else:
                self._done(self.results, None)


class Single:
    """One message in progress: the future of who waits for it."""

    __slots__ = ("future", "results")

    def __init__(self, future: asyncio.Future[Published]) -> None:
        self.future = future
        self.results = [NOWHERE]

    def finish(self, count: int, error: OnelogError | None) -> None:
        """Its record is visible, or never will be."""
        del count
        if not self.future.done():
            if error is None:
                self.future.set_result(self.results[0])
            else:
                self.future.set_exception(error)


class Target:
    """What a stage belongs to, and the calls that wait for what is staged in it."""

    __slots__ = ("index_topics", "partition", "rows", "stream")

    def __init__(self, stream: Stream, partition: Partition) -> None:
        self.stream = stream
        self.partition = partition
        self.index_topics = stream.tags_topics
        """As its builder was made: when that changes, there is a new target (`drop_stale`)."""
        self.rows: list[tuple[Call, int, int]] = []
        """Of records staged here by calls: the call, the place in its answer, the index staged."""


def drop_stale(stages: dict[Partition, Stage], stream: Stream | None) -> None:
    """After a change of a stream (None: it is gone): forget stages that do not fit any more.

    All others stay: who keeps one for a topic that was not touched must not find another beside it,
    which would be written before or after it.
    """
    if stream is None:
        stale = [partition for partition in stages if partition.stopped is not None]
    else:
        stale = [
            partition
            for partition in stream.partitions
            if partition in stages and stages[partition].owner.index_topics != stream.tags_topics
        ]
    for partition in stale:
        del stages[partition]


class Tick:
    """One pass that wrote: which stages are not visible yet, which of them failed."""

    __slots__ = ("_callbacks", "_publisher", "failed", "left")

    def __init__(self, publisher: Publisher, stages: int) -> None:
        self._publisher = publisher
        self._callbacks: list[Callable[[Tick], None]] = []
        self.left = stages
        self.failed: dict[int, OnelogError] = {}
        """Stage number → why its records were not written."""

    def when_done(self, callback: Callable[[Tick], None]) -> None:
        """Call back when every stage is visible or has failed, and every earlier tick is done."""
        self._callbacks.append(callback)

    def finish(self, number: int, error: OnelogError | None) -> None:
        """One stage is visible, or never will be."""
        self.left -= 1
        if error is not None:
            self.failed[number] = error
        if self.left == 0:
            self._publisher.release_ticks()

    def run(self, troubles: Troubles) -> None:
        """Tell everybody who waits; who raises at that does not keep the others waiting."""
        for callback in self._callbacks:
            try:
                callback(self)
            except Exception as failure:  # noqa: BLE001 - isolated, and told
                troubles.note("publish-answer", "tick", failure)


class Write(msgspec.Struct):
    """What a tick took from one stage: the records, and the calls that wait for them."""

    tick: Tick
    number: int
    """Of the stage in its tick."""
    stage: Stage
    builder: BatchBuilder
    rows: list[tuple[Call, int, int]]


def finish_rows(
    rows: list[tuple[Call, int, int]], error: OnelogError | None, troubles: Troubles
) -> None:
    """Tell every call that has records in a stage."""
    last, count = rows[0][0], 0
    for call, _place, _index in rows:  # a call's records lie side by side
        if call is not last:
            try:
                last.finish(count, error)
            except Exception as failure:  # noqa: BLE001 - isolated: the others are answered
                _tell(last, failure, troubles)
            last, count = call, 0
        count += 1
    try:
        last.finish(count, error)
    except Exception as failure:  # noqa: BLE001 - isolated, and told
        _tell(last, failure, troubles)


def _tell(call: Call, failure: Exception, troubles: Troubles) -> None:
    troubles.note("publish-answer", type(call).__name__, failure)
