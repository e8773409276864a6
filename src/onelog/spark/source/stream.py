"""Reads a stream: finds the end, limits the next micro-batch, and commits progress to a group.

Rules:
- Spark keeps the offsets (in its checkpoint). The source also commits them to the broker, under
  `group.id`, so that lag shows where people look; that is for show, and a failure of it stops
  nothing.
- When Spark asks how far to go from a place, everything before that place is done.
- This object lives in one process at the driver; `read` runs on a copy of it in each task.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from onelog.base.errors import ConfigError, OnelogError
from onelog.kafka_client import EARLIEST, LATEST, Client, Part
from onelog.spark.source import loss
from onelog.spark.source.cold_planning import ColdPlanner
from onelog.spark.source.limits import Admission
from onelog.spark.source.offsets import from_spark, to_spark
from onelog.spark.source.options import SourceOptions
from onelog.spark.source.planning import Sampler, Slice, Task, name_topics, plan
from onelog.spark.source.shape import Shape
from onelog.spark.source.topics import bounds_of, find_topics, parts_of, resolve

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = True
except ImportError:  # PySpark 4.1 asks Python sources for everything there is
    HAS_LIMITS = False

_log: Final = logging.getLogger("onelog.spark")


class _Stream(DataSourceStreamReader):
    """The part that is the same in every version of Spark."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        if options.limits.any() and not HAS_LIMITS:
            raise ConfigError(
                f"options …PerTrigger need PySpark 4.2 or newer: {pyspark.__version__} does not"
                " ask Python sources for limits"
            )
        self._options = options
        self._shape = Shape(options, schema)
        self._client: Client | None = None
        self._sampler = Sampler()
        self._admission = Admission(options.limits)
        self._shown: dict[str, str | None] = {}
        self._latest: dict[Part, int] = {}
        self._target: dict[Part, int] | None = None
        self._told: dict[Part, int] = {}
        self._planned: dict[Part, int] = {}
        self._cold: ColdPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_client": None, "_cold": None}

    @property
    def _broker(self) -> Client:
        if self._client is None:
            self._client = Client(self._options.access)
        return self._client

    # -- where

    def _parts(self) -> list[Part]:
        topics = find_topics(
            self._broker, self._options.topics, lenient=not self._options.fail_on_data_loss
        )
        self._shown = {topic.name: topic.shown for topic in topics}
        return parts_of(topics)

    def _ends(self) -> dict[Part, int]:
        self._latest = self._broker.offsets(dict.fromkeys(self._parts(), LATEST))
        return self._latest

    def initialOffset(self) -> dict[str, Any]:
        """Where a query begins that has no checkpoint."""
        return to_spark(resolve(self._broker, self._parts(), self._options.starting))

    def _begins(self, start: Mapping[Part, int], ends: Mapping[Part, int]) -> dict[Part, int]:
        """Where each partition goes on; one that is new is read from its beginning."""
        for topic, number in sorted(set(start) - set(ends)):
            words = loss.vanished(topic, number, start[topic, number])
            loss.tell(words, fail=self._options.fail_on_data_loss)
        new = self._broker.offsets({part: EARLIEST for part in ends if part not in start})
        return {part: start[part] if part in start else new[part] for part in ends}

    def _goal(self, start: dict[Part, int], *, limited: bool) -> dict[str, Any]:
        ends = self._ends()
        if self._target is not None:
            # A partition that came since is not of this run; one that it began with stays in.
            ends = {part: min(ends.get(part, at), at) for part, at in self._target.items()}
        begins = self._begins(start, ends)
        for part, end in ends.items():
            if end < begins[part] and self._target is None:
                words = loss.cut_off(*part, begins[part], end)
                loss.tell(words, fail=self._options.fail_on_data_loss)
                begins[part] = 0
        if not limited:
            return to_spark(ends)
        found = self._admission.admit(begins, ends, self._weigh, at_once=self._target is not None)
        return to_spark(found)

    def _weigh(self, part: Part, begin: int, size: int) -> float:
        row = Slice(part[0], None, part[1], begin, begin + size)
        return self._sampler.weigh(self._broker, row)

    # -- tasks

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch."""
        starts, ends = from_spark(start), from_spark(end)
        self._planned = ends
        moved = {part: at for part, at in ends.items() if starts.get(part) != at}
        if not moved:
            return []
        if not self._shown:
            self._parts()
        fail = self._options.fail_on_data_loss
        gone = [part for part in moved if part[0] not in self._shown]
        for part in gone:
            loss.tell(loss.vanished(*part, starts.get(part, 0)), fail=fail)
            del moved[part]
        first, last = bounds_of(self._broker, moved)
        slices = []
        for part, at in moved.items():
            begin = starts.get(part, first[part])
            row = Slice(part[0], self._shown[part[0]], part[1], begin, at)
            slices.append(loss.check_start(row, first[part], last[part], fail=fail))
        slices = name_topics(self._broker, slices)
        if self._cold is None:
            self._cold = self._shape.cold_planner()
        slices = self._cold.cut(self._broker, slices)
        return plan(slices, self._options, self._sampler, self._broker)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task."""
        assert isinstance(partition, Task)
        return self._shape.read(partition)

    # -- commits to the group

    def commit(self, end: dict[str, Any]) -> None:
        """Everything before these offsets is done."""
        self._tell(from_spark(end))

    def _tell(self, offsets: dict[Part, int]) -> None:
        """Let the broker know under the group's name, if that is news."""
        news = {part: at for part, at in offsets.items() if self._told.get(part) != at}
        if not self._options.group or not news:
            return
        self._told |= news
        try:
            self._broker.commit(self._options.group, news)
        except OnelogError as error:
            _log.warning(
                "the progress could not be committed to group %s: %s", self._options.group, error
            )

    def stop(self) -> None:
        """The query is over."""
        if self._client is not None:
            self._client.close()


if HAS_LIMITS:

    class StreamReader(_Stream, SupportsTriggerAvailableNow):
        """Reads topics for ever, so much at a time."""

        def getDefaultReadLimit(self) -> ReadLimit:
            """That there is a limit; all of them are applied together, here."""
            limits = self._options.limits
            if limits.offsets_max is not None:
                return ReadMaxRows(limits.offsets_max)
            if limits.bytes_max is not None:
                return ReadMaxBytes(limits.bytes_max)
            if limits.offsets_min is not None:
                return ReadMinRows(limits.offsets_min)
            return ReadAllAvailable()

        def prepareForTriggerAvailableNow(self) -> None:
            """This run reads only what exists now."""
            self._target = dict(self._ends())

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
            """How far the next micro-batch goes."""
            done = from_spark(start)
            self._tell(done)
            return self._goal(done, limited=not isinstance(limit, ReadAllAvailable))

        def reportLatestOffset(self) -> dict[str, Any] | None:
            """How far there is: with the end of the batch it is the lag of `lastProgress`."""
            return to_spark(self._latest) if self._latest else None

else:

    class StreamReader(_Stream):  # type: ignore[no-redef]
        """Reads topics for ever, all there is at a time."""

        def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
            """How far there is; what was planned before is done by now."""
            self._tell(self._planned)
            return to_spark(self._ends())
