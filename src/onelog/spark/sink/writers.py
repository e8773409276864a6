"""The writers that Spark calls: tasks stage their rows, the driver links them, once.

Rules:
- Executors get a copy of the writer: it holds plain values only.
- Spark aborts a batch also when its commit took effect and only failed afterwards. The broker
  undoes nothing that was linked, so an abort is always safe.
- A streaming query is known by its id, which outlives restarts, and not by its checkpoint's path.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from onelog.base.errors import InvalidRequest
from onelog.kafka_client import Client
from onelog.spark.sink.columns import Layout, layout_of
from onelog.spark.sink.linking import Batch, Member, link
from onelog.spark.sink.options import SinkOptions
from onelog.spark.sink.staging import Staging
from onelog.spark.worker import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The report of a task to the driver."""

    batch: Batch
    member: Member | None
    """None of a task without rows."""


def stage(
    options: SinkOptions, layout: Layout, batch: Batch, iterator: Iterator[pa.RecordBatch]
) -> Staged:
    """Write a task's rows: durable, but not visible yet."""
    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    # A task that is tried again is another member: the first one may still write.
    name = f"{context.partitionId()}-{context.taskAttemptId()}"
    with Staging(options, layout, batch.member_id(name), context.partitionId()) as staging:
        settle_worker()
        for rows in iterator:
            staging.add(rows)
        return Staged(batch, staging.finish())


Messages = list[WriterCommitMessage | None]
"""The reports that Spark collected from its tasks; None for a failed task."""


def staged(messages: Messages) -> list[Staged]:
    """The reports of the tasks."""
    return [row for row in messages if isinstance(row, Staged)]


def decide(options: SinkOptions, batch: Batch, rows: Sequence[Staged], *, commit: bool) -> None:
    """Link or abort what the tasks staged."""
    members = [row.member for row in rows if row.member is not None]
    with Client(options.access) as client:
        link(client, batch, members, commit=commit)


class StreamWriter(DataSourceStreamArrowWriter):
    """Each micro-batch of a query is in the topics once, whatever fails."""

    def __init__(self, options: SinkOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """On an executor: stage the rows of a task."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        query = context.getLocalProperty("sql.streaming.queryId")
        number = context.getLocalProperty("streaming.sql.batchId")
        assert query is not None, "Spark says which query a task belongs to"
        assert number is not None, "Spark says which batch a task belongs to"
        return stage(self._options, self._layout, Batch(query, int(number)), iterator)

    def commit(self, messages: Messages, batchId: int) -> None:
        """On the driver: link the batch."""
        self._decide(messages, batchId, commit=True)

    def abort(self, messages: Messages, batchId: int) -> None:
        """On the driver: give up what was not linked."""
        self._decide(messages, batchId, commit=False)

    def _decide(self, messages: Messages, number: int, *, commit: bool) -> None:
        rows = staged(messages)
        if rows:  # otherwise no task has staged anything
            decide(self._options, Batch(rows[0].batch.query, number), rows, commit=commit)


class BatchWriter(DataSourceArrowWriter):
    """The rows of a job are in the topics all together, or not at all."""

    def __init__(self, options: SinkOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        if options.query is not None and options.batch is not None:
            self._batch = Batch(options.query, options.batch)
        else:
            self._batch = Batch(f"job-{uuid.uuid4()}", 0, once=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """On an executor: stage the rows of a task."""
        return stage(self._options, self._layout, self._batch, iterator)

    def commit(self, messages: Messages) -> None:
        """On the driver: link all of it."""
        decide(self._options, self._batch, staged(messages), commit=True)

    def abort(self, messages: Messages) -> None:
        """On the driver: give up what was staged."""
        decide(self._options, self._batch, staged(messages), commit=False)


def stream_writer(options: SinkOptions, schema: StructType, *, overwrite: bool) -> StreamWriter:
    """The writer of a streaming query. Raises InvalidRequest."""
    _refuse_overwrite(overwrite)
    return StreamWriter(options, layout_of(schema, options.topic))


def batch_writer(options: SinkOptions, schema: StructType, *, overwrite: bool) -> BatchWriter:
    """The writer of a job. Raises InvalidRequest."""
    _refuse_overwrite(overwrite)
    return BatchWriter(options, layout_of(schema, options.topic))


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise InvalidRequest(
            "a log cannot be overwritten: write with mode append (output mode append or update)"
        )
