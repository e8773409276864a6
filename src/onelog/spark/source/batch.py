"""Reads a batch: its begin and end are fixed when the query is planned."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from onelog.base.errors import ConfigError
from onelog.kafka_client import Client
from onelog.spark.source import loss
from onelog.spark.source.options import SourceOptions
from onelog.spark.source.planning import Sampler, Slice, Task, name_topics, plan
from onelog.spark.source.pushdown import Narrowed, apply, narrow
from onelog.spark.source.shape import Shape
from onelog.spark.source.topics import bounds_of, find_topics, parts_of, resolve

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_PUSHDOWN: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""The object that Spark offers filters to."""


class BatchReader(DataSourceReader):
    """Reads topics from one place to another."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._options = options
        self._shape = Shape(options, schema)
        self._narrowed = Narrowed()

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        with Client(self._options.access) as client:
            slices = name_topics(client, self._slices(client))
            slices = apply(self._narrowed, slices, client)
            slices = self._shape.cold_planner().cut(client, slices)
            return list(plan(slices, self._options, Sampler(), client)) or [Task(())]

    def _slices(self, client: Client) -> list[Slice]:
        options = self._options
        topics = find_topics(client, options.topics)
        parts = parts_of(topics)
        starts = resolve(client, parts, options.starting)
        ends = resolve(client, parts, options.ending)
        first, last = bounds_of(client, parts)
        found = []
        for topic in topics:
            for number in topic.partitions:
                part = (topic.name, number)
                if ends[part] > last[part]:
                    raise ConfigError(
                        f"option {options.ending.option}: {topic.name}-{number} ends at"
                        f" {last[part]}, before {ends[part]}"
                    )
                row = Slice(topic.name, topic.shown, number, starts[part], ends[part])
                if row.end > row.start:
                    row = loss.check_start(
                        row, first[part], last[part], fail=options.fail_on_data_loss
                    )
                found.append(row)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task."""
        assert isinstance(partition, Task)
        return self._shape.read(partition)


class FilteredBatchReader(BatchReader):
    """The same with filters.

    Spark keeps what filters left for every later query on the same DataFrame, also for one with
    other filters (seen up to 4.3): its rows would be missing. So this happens only if the user asks
    for it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Read less; Spark still looks at every row."""
        self._narrowed = narrow(filters)
        return filters


def batch_reader(schema: StructType, options: SourceOptions) -> BatchReader:
    """The reader that fits the process it is made in: Spark takes filters in one of them only."""
    filters = options.pushdown and _PUSHDOWN in sys.modules
    return (FilteredBatchReader if filters else BatchReader)(schema, options)
