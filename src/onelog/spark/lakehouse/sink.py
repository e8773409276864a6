"""The sink `format("onelog-table")`: tasks write files, the driver commits them once.

Rules: a batch is in the table or not, by one commit that carries (query, batch). A committed batch
is not written again, whichever driver asks. `abort` removes nothing: Spark calls it also after a
commit that took effect and then failed, and a useless file is better than a missing one.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from onelog.base.errors import Conflict, InvalidRequest
from onelog.lake.columns import BadRow, Fitting
from onelog.lake.formats import open_table
from onelog.lake.latest import latest
from onelog.lake.options import Format, Mode, TableOptions
from onelog.lake.tables import COMMIT_ATTEMPTS, JOB, LakeTable, TableChange
from onelog.lake.upserts import Upsert
from onelog.lake.writing import FileLayout, FileWriter, WrittenFile
from onelog.spark.lakehouse.dead_letters import SCHEMA, letters, letters_options, refuse
from onelog.spark.lakehouse.letter_topic import TopicLetters, link_letters
from onelog.spark.lakehouse.spark_columns import arrow_schema
from onelog.spark.sink.linking import Member
from onelog.spark.worker import settle_worker

COMMIT_PAUSE_S = 0.1


@dataclass
class Staged(WriterCommitMessage):
    """The files that a task wrote."""

    query: str
    files: list[WrittenFile] = field(default_factory=list)
    bad: list[WrittenFile] = field(default_factory=list)
    letters: list[Member] = field(default_factory=list)
    """Bad rows that were staged in a topic."""


class TableSink:
    """Both sinks: what a task does, and what the driver does with it."""

    def __init__(self, options: TableOptions, schema: StructType, replaces_all: bool) -> None:
        rows = arrow_schema(schema)
        layout = open_table(options, rows).layout
        kept = frozenset([options.delete_column] if options.delete_column else [])
        if kept:  # files that are staged only: they say which rows go
            marked = [*layout.schema, *(rows.field(name) for name in kept)]
            layout = replace(layout, schema=pa.schema(marked))
        self._options = options
        self._layout = layout
        self._bad_layout: FileLayout | None = None
        if options.dead_letter_table is not None:
            self._bad_layout = open_table(letters_options(options), SCHEMA).layout
        required = frozenset((*options.keys, *options.required))
        inner = pa.schema([one for one in layout.schema if one.name not in kept])
        self._fitting = Fitting(inner, required, options.error_column, kept)
        self._replaces_all = replaces_all

    def stage(self, batches: Iterator[pa.RecordBatch], query: str, number: int) -> Staged:
        """Write what a task was given; on any failure nothing of it stays."""
        with self._options.storage.explained(self._options.place):
            return self._stage(batches, query, number)

    def _stage(self, batches: Iterator[pa.RecordBatch], query: str, number: int) -> Staged:
        good = FileWriter(self._layout)
        bad = FileWriter(self._bad_layout) if self._bad_layout is not None else None
        topic = None
        if self._options.dead_letter_topic is not None:
            topic = TopicLetters(self._options, query, number)
        try:
            for rows, wrong in self._fitted(batches):
                good.write(rows)
                if wrong and bad is not None:
                    bad.write(letters(self._options.table, query, wrong))
                if wrong and topic is not None:
                    topic.write(wrong)
            return Staged(
                query,
                good.close(),
                [] if bad is None else bad.close(),
                [] if topic is None else topic.close(),
            )
        except BaseException:
            for writer in (good, bad, topic):
                if writer is not None:
                    writer.discard()
            raise

    def _fitted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.Table, list[BadRow]]]:
        """Good and bad rows; for an upsert the good ones of the whole task, latest by key."""
        gathered: list[pa.Table] = []
        for batch in batches:
            rows, wrong = self._fitting.fit(batch)
            if wrong and not self._options.takes_bad_rows:
                refuse(self._options.table, wrong)
            if self._options.mode is Mode.APPEND:
                yield rows, wrong
                continue
            gathered.append(rows)
            if wrong:
                yield rows.slice(0, 0), wrong
        if gathered:
            rows = pa.concat_tables(gathered)
            yield latest(rows, self._options.keys, self._options.order_by), []

    def commit(self, staged: Sequence[Staged], query: str, batch: int) -> bool:
        """Make a batch part of the table; False when it was already."""
        bad = [file for one in staged for file in one.bad]
        if bad:
            commit_once(letters_options(self._options), TableChange(query, batch, bad))
        self._link(staged, query, batch, commit=True)
        files = [file for one in staged for file in one.files]
        if not files and not self._replaces_all:
            return False
        change = TableChange(query, batch, files, replaces_all=self._replaces_all)
        return commit_once(self._options, change)

    def abort(self, staged: Sequence[Staged], query: str, batch: int) -> None:
        """Give up bad rows in topics that were not linked; files stay, see above."""
        self._link(staged, query, batch, commit=False)

    def _link(self, staged: Sequence[Staged], query: str, batch: int, *, commit: bool) -> None:
        members = [member for one in staged for member in one.letters]
        if members:
            link_letters(self._options, query, batch, members, commit=commit)


def commit_once(options: TableOptions, change: TableChange) -> bool:
    """Commit a change unless its mark is there; races are decided by loading the table again."""
    with options.storage.explained(options.place):
        return _commit_once(options, change)


def _commit_once(options: TableOptions, change: TableChange) -> bool:
    upsert = Upsert(options, change.added) if options.mode is Mode.UPSERT else None
    for attempt in range(COMMIT_ATTEMPTS):
        table = open_table(options)
        mark = table.mark(change.query)
        if mark is not None and mark >= change.batch:
            return False
        try:
            if upsert is None:
                table.commit(change)
            else:
                _commit_merge(table, change, upsert)
        except Conflict:
            time.sleep(COMMIT_PAUSE_S * random.uniform(1, 2 ** min(attempt, 6)))  # noqa: S311
            continue
        if upsert is not None:
            upsert.forget(table)
        return True
    raise Conflict(
        f"the table {options.table} changed under {COMMIT_ATTEMPTS} commits of one batch: "
        "fewer writers at once would help; the batch is tried again at the next start"
    )


def _commit_merge(table: LakeTable, change: TableChange, upsert: Upsert) -> None:
    merge = upsert.merge(table, replaces_all=change.replaces_all)
    try:
        table.commit(replace(change, added=merge.added, removed=merge.removed))
    except Conflict:
        upsert.discard(table, merge)
        raise


class TableStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a stream."""

    def __init__(self, options: TableOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest("tables do not support outputMode complete: use mode=upsert")
        self._sink = TableSink(options, schema, replaces_all=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task's rows."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        query = context.getLocalProperty("sql.streaming.queryId")
        number = context.getLocalProperty("streaming.sql.batchId")
        assert query is not None, "Spark says which query a task belongs to"
        assert number is not None, "Spark says which batch a task belongs to"
        staged = self._sink.stage(iterator, query, int(number))
        settle_worker()
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks are done."""
        staged = [one for one in messages if isinstance(one, Staged)]
        if staged:
            self._sink.commit(staged, staged[0].query, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Files are left alone: what no commit named is nobody's."""
        staged = [one for one in messages if isinstance(one, Staged)]
        if staged:
            self._sink.abort(staged, staged[0].query, batchId)


class TableBatchWriter(DataSourceArrowWriter):
    """The sink of a batch; with queryId and batchId a repeated write changes nothing."""

    def __init__(self, options: TableOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite and options.format is Format.PARQUET:
            raise InvalidRequest(
                "mode overwrite: plain Parquet cannot replace all rows at once: write to "
                "another directory, or use iceberg or delta"
            )
        self._sink = TableSink(options, schema, overwrite)
        self._query, self._batch = options.written_as or (f"{JOB}{uuid.uuid4().hex}", 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task's rows."""
        staged = self._sink.stage(iterator, self._query, self._batch)
        settle_worker()
        return staged

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        staged = [one for one in messages if isinstance(one, Staged)]
        self._sink.commit(staged, self._query, self._batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Files are left alone: what no commit named is nobody's."""
        staged = [one for one in messages if isinstance(one, Staged)]
        self._sink.abort(staged, self._query, self._batch)
