"""Where staged records go: one outlet per partition, and the writes that a tick began.

Rules:
- An outlet takes all records that were staged for its partition when a tick comes, in the order of
  the ticks. It answers each write once: when its records are visible, or with an error.
- No write waits for another outlet: a caller gets its answer when the partitions of its own records
  are ready.
- `LocalOutlet` appends now. `SharedOutlet` is that of a partition which any node of a cluster may
  lead: it appends, or has the sealed batch written at the leader. Nothing above an outlet knows
  which kind it is.
- A batch whose outcome is not known is written again if one of its publishers wants that
  (`wants_again`); the others hear at once that it is open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from onelog.base.errors import OnelogError, StorageError, Timeout, without_frames
from onelog.base.ids import Offset
from onelog.broker.answers import (
    Call,
    Published,
    Waiting,
    finish_rows,
    tell_raised,
    wants_again,
)
from onelog.broker.nodes import Forwards
from onelog.kernel import BatchBuilder, Stage, scan_batches
from onelog.log.handle import Appended, Cold, PartitionHandle
from onelog.log.stream import Stream
from onelog.observe.troubles import Troubles

Written = Callable[[Offset, OnelogError | None], None]
"""Called once: with the offset of the first record when all are visible, or with the error."""
Doubted = Callable[[OnelogError], bool]
"""Called when records may have been written: whether they are to be written again."""

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

    def write(self, builder: BatchBuilder, done: Written, doubted: Doubted) -> None:
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

    def write(self, builder: BatchBuilder, done: Written, doubted: Doubted) -> None:
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
            return

        def shown(error: OnelogError | None) -> None:
            if isinstance(error, Timeout):
                self._lost(appended, done, doubted, error)
            else:
                done(base, error)

        partition.when_visible(Offset(end - 1), shown)

    def _lost(self, appended: Appended, done: Written, doubted: Doubted, error: Timeout) -> None:
        """Whether the records stay is open: nobody here can find out."""
        del doubted
        done(appended.base_offset, error)


class SharedOutlet(LocalOutlet):
    """The outlet to a partition that any node of a cluster may lead."""

    __slots__ = ("_forwards",)

    def __init__(self, stream: Stream, partition: PartitionHandle, forwards: Forwards) -> None:
        super().__init__(stream, partition)
        self._forwards = forwards

    def write(self, builder: BatchBuilder, done: Written, doubted: Doubted) -> None:
        """Append if this node leads and nothing is under way to an earlier leader; else forward."""
        forwards, key = self._forwards, self.stream.key(self.partition.id)
        refusal = self.partition.refusal
        if forwards.is_busy(key) or (refusal is not None and forwards.takes(key, refusal)):
            try:
                data = builder.seal(0, 0)
            except Exception as error:  # noqa: BLE001 - only the callers of this write get it
                done(_NO_OFFSET, failure_of(error))
                return
            forwards.put(key, data, done, doubted)
        else:
            super().write(builder, done, doubted)

    def _lost(self, appended: Appended, done: Written, doubted: Doubted, error: Timeout) -> None:
        """This node leads no more: the next leader may have the records, or not."""
        if doubted(error):
            data = self._batch_of(appended)
            if data is not None:
                key = self.stream.key(self.partition.id)
                self._forwards.put(key, data, done, doubted, is_doubtful=True)
                return
        done(_NO_OFFSET, error)

    def _batch_of(self, appended: Appended) -> bytes | None:
        """The batch as it was sealed; None: it cannot be had."""
        base, end = appended.base_offset, appended.end_offset
        try:
            data = bytes(self.partition.read_stored(base, 1, end, wait=False))
            infos = scan_batches(data, 0, False)
        except (OnelogError, Cold):
            return None
        if len(infos) != 1 or infos[0].base_offset != base or infos[0].last_offset != end - 1:
            return None
        return None if infos[0].attributes else data  # it was stamped


def failure_of(error: Exception) -> OnelogError:
    """The error for the callers of a write that raised."""
    return without_frames(error if isinstance(error, OnelogError) else StorageError(str(error)))


def published_at(stage: Stage, offset: int) -> Published:
    """Where a record went that was written from a stage."""
    outlet: Outlet = stage.owner
    return Published(outlet.stream.name, outlet.partition.id, Offset(offset))


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
        self.stage.owner.write(builder, self._written, self._doubted)
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

    def _doubted(self, error: OnelogError) -> bool:
        """Tell those who do not want it written again. Returns whether anybody does."""
        if not any(wants_again(row[0]) for row in self.rows):
            return False
        staying: list[Waiting] = []
        told: list[Waiting] = []
        for row in self.rows:
            stays = isinstance(row[0], _LastWrite) or wants_again(row[0])
            (staying if stays else told).append(row)
        self.rows[:] = staying
        if told:
            finish_rows(told, error, self.writing.troubles)
        return True


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
