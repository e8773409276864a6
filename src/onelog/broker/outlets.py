"""Where staged records go: one outlet per partition, and the writes that a tick began.

Rules:
- An outlet takes all records that were staged for its partition when a tick comes, in the order of
  the ticks. It answers each write once: when its records are visible, or with an error.
- No write waits for another outlet: a caller gets its answer when the partitions of its own records
  are ready.
- `LocalOutlet` appends now. An outlet to a partition that another node leads would send the sealed
  batch there instead; nothing above an outlet knows which kind it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from onelog.base.errors import OnelogError, StorageError, without_frames
from onelog.base.ids import Offset
from onelog.broker.answers import Call, Published, Waiting, finish_rows, tell_raised
from onelog.kernel import BatchBuilder, Stage
from onelog.log.handle import PartitionHandle
from onelog.log.stream import Stream
from onelog.observe.troubles import Troubles

Written = Callable[[Offset, OnelogError | None], None]
"""Called once: with the offset of the first record when all are visible, or with the error."""

_NO_OFFSET: Final = Offset(-1)


class Outlet(Protocol):
    """The way of staged records into one partition."""

    stream: Stream
    partition: PartitionHandle
    rows: list[Waiting]
    """The calls that wait for records that are staged now."""

    def fits(self, stream: Stream) -> bool:
        """Whether records of the stream, as it is now, may still be staged here."""
        ...

    def write(self, builder: BatchBuilder, done: Written) -> None:
        """Write the staged records. The builder is empty afterwards. Raises nothing."""
        ...


class LocalOutlet:
    """The outlet to a partition of this node: an append, now."""

    __slots__ = ("_index_topics", "partition", "rows", "stream")

    def __init__(self, stream: Stream, partition: PartitionHandle) -> None:
        self.stream = stream
        self.partition = partition
        self._index_topics = stream.tags_topics
        """The settings of its builder. When they change, a new outlet is made (`drop_stale`)."""
        self.rows: list[Waiting] = []

    def fits(self, stream: Stream) -> bool:
        """Whether records of the stream, as it is now, may still be staged here."""
        return self._index_topics == stream.tags_topics

    def write(self, builder: BatchBuilder, done: Written) -> None:
        """Append; `done` is called when the partition shows the last record."""
        partition = self.partition
        try:
            appended = partition.append_built(builder, self._index_topics)
        except Exception as error:  # noqa: BLE001 - only the callers of this write get it
            done(_NO_OFFSET, failure_of(error))
            return
        base, end = appended.base_offset, appended.end_offset
        if end <= partition.high_watermark:
            done(base, None)
        else:
            partition.when_visible(Offset(end - 1), lambda error: done(base, error))


def failure_of(error: Exception) -> OnelogError:
    """The error for the callers of a write that raised."""
    return without_frames(error if isinstance(error, OnelogError) else StorageError(str(error)))


class Write(msgspec.Struct, eq=False):
    """The records that a tick took from one stage, and the calls that wait for them."""

    stage: Stage
    builder: BatchBuilder
    count: int
    rows: list[Waiting]
    writing: Writing
    is_answered: bool = False

    def run(self) -> None:
        """Give the records to their outlet."""
        builder = self.builder
        self.stage.owner.write(builder, self._written)
        if not self.is_answered:
            self.writing.under_way[self] = None
        if not builder.count:
            self.stage.give_back(builder)

    def _written(self, base: Offset, error: OnelogError | None) -> None:
        writing, rows = self.writing, self.rows
        self.is_answered = True
        writing.under_way.pop(self, None)
        if error is None:
            writing.messages += self.count
        if not rows:
            return
        if error is None:
            writing.answer(self.stage, base, rows)
        else:
            finish_rows(rows, error, writing.troubles)


class BegunWrite(Protocol):
    """A write that began: a `Write`, or what the kernel's tick took."""

    @property
    def rows(self) -> list[Waiting]:
        """The calls that wait for it."""
        ...


class Writing:
    """All writes of a publisher, and the answers to those who wait for them."""

    __slots__ = ("messages", "troubles", "under_way")

    def __init__(self, troubles: Troubles) -> None:
        self.troubles = troubles
        self.messages = 0
        """Messages that outlets wrote."""
        self.under_way: dict[BegunWrite, None] = {}
        """Writes that began and are not answered, also those of the kernel's tick."""

    def write(self, stage: Stage, builder: BatchBuilder, count: int, rows: list[Waiting]) -> None:
        """Give records to the outlet of their stage."""
        Write(stage, builder, count, rows, self).run()

    def answer(self, stage: Stage, base: int, rows: list[Waiting]) -> None:
        """Records are visible from offset `base` on: tell the calls that wait for them."""
        outlet: Outlet = stage.owner
        name, number = outlet.stream.name, outlet.partition.id
        for call, place, index in rows:
            results = call.results
            if results is not None:
                results[place] = Published(name, number, Offset(base + index))
        finish_rows(rows, None, self.troubles)

    def failed(self, rows: list[Waiting], error: Exception) -> None:
        """Records could not be written: tell the calls that wait for them."""
        if rows:
            finish_rows(rows, failure_of(error), self.troubles)

    def call_raised(self, call: Call, error: Exception) -> None:
        """A call raised when it was told."""
        tell_raised(call, error, self.troubles)

    def sync_raised(self, place: str, error: Exception) -> None:
        """The sync of a partition could not be asked for: the next write asks again."""
        self.troubles.note("tick-sync", place, error)

    def listener_raised(self, error: Exception) -> None:
        """A listener of the tick raised."""
        self.troubles.note("tick-listener", "tick", error)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back when all writes that have begun are answered."""
        if not self.under_way:
            callback()
            return
        countdown = _LastWrite(len(self.under_way), callback)
        for write in self.under_way:
            write.rows.append((countdown, 0, 0))


class _LastWrite:
    """Waits for the last of several writes."""

    __slots__ = ("_callback", "_left")

    results: None = None

    def __init__(self, count: int, callback: Callable[[], None]) -> None:
        self._left = count
        self._callback = callback

    def finish(self, count: int, error: OnelogError | None) -> None:
        """One of the writes is answered."""
        del error
        self._left -= count
        if self._left == 0:
            self._callback()


def drop_stale(stages: dict[PartitionHandle, Stage], stream: Stream | None) -> None:
    """After a change of a stream (None: it is gone): forget stages that no longer fit.

    All other stages stay. A caller that keeps the stage of an untouched topic must not find a
    second one beside it, which would be written before or after it.
    """
    if stream is None:
        stale = [partition for partition in stages if partition.stopped is not None]
    else:
        stale = [
            partition
            for partition in stream.partitions
            if partition in stages and not stages[partition].owner.fits(stream)
        ]
    for partition in stale:
        del stages[partition]
