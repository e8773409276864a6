"""The work of a task: fetches stored batches, drops uncommitted records, hands Arrow to Spark.

Rules:
- Exactly the records of the task's slices come out, in order within a partition. A batch is checked
  before anything of it is used; the error of a damaged batch names its topic, partition and offset.
- Control batches and aborted transactions are left out (Kafka's read_committed).
- The next fetch is sent before the last one is decoded. When the broker goes away, the task waits
  for it (`Access.timeout_s`), and reading goes on where it was.
- A worker keeps its connection for the next task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from onelog.base.errors import CorruptBatch, OnelogError, Unavailable
from onelog.kafka_client import Client, Fetched, Part, committed, fetch_request
from onelog.kafka_client.codes import OFFSET_OUT_OF_RANGE, topic_right
from onelog.kernel import (
    ATTR_LOG_APPEND_TIME,
    WITH_TOPICS,
    BatchInfo,
    TopicFilter,
    decode_columns,
    scan_valid,
)
from onelog.kernel.types import BatchPiece
from onelog.lake.arrow import arrays_of, constant_array
from onelog.record.batch import inflated_records
from onelog.spark.source import loss
from onelog.spark.source.columns import VALUE
from onelog.spark.source.decoding import Convert, RowOrigin, as_text, decode_arrays
from onelog.spark.source.options import SourceOptions
from onelog.spark.source.planning import Slice, Task
from onelog.spark.worker import borrowed, settle_worker

FETCH_BYTES: Final = 4 << 20
"""Of one request: what is read, decoded and sent on should not leave the processor's cache."""
FETCH_BYTES_FIRST: Final = 1 << 20
"""For a partition whose records have an unknown size."""
FETCH_PARTS: Final = 32
"""Partitions of one request."""
EMPTY_WAIT_MS: Final = 1_000
EMPTY_TRIES: Final = 30
ARROW_BYTES: Final = 64 << 20
"""Inflated bytes of one record batch for Spark, about."""


class _Progress:
    """How far a slice is read."""

    def __init__(self, row: Slice) -> None:
        self.slice = row
        self.at = row.start
        self._bytes = 0
        self._passed = 0

    @property
    def part(self) -> Part:
        return (self.slice.topic, self.slice.partition)

    def wish(self) -> int:
        """About how many bytes are left."""
        if not self._passed:
            return FETCH_BYTES_FIRST
        left = (self.slice.end - self.at) * self._bytes / self._passed
        return int(min(left * 1.1 + 4096, FETCH_BYTES))

    def pass_over(self, infos: list[BatchInfo]) -> None:
        """These batches came."""
        self._bytes += sum(info.size_bytes for info in infos)
        self._passed += infos[-1].last_offset + 1 - self.at
        self.at = infos[-1].last_offset + 1

    def pass_gap(self, end: int) -> None:
        """Nothing is there up to an end: compaction may take the last records of a log, too."""
        if end >= self.slice.end:
            self.at = self.slice.end

    def is_over(self) -> bool:
        return self.at >= self.slice.end


def _request(rows: list[_Progress], wait_ms: int) -> bytes:
    asked = rows[:FETCH_PARTS]
    most = max(row.wish() for row in asked)
    return fetch_request(
        {row.part: row.at for row in asked},
        bytes_max=min(sum(row.wish() for row in asked), FETCH_BYTES),
        part_bytes_max=most,
        wait_ms=wait_ms,
    )


def read_task(
    task: Task, options: SourceOptions, schema: pa.Schema, want: int, convert: Convert | None
) -> Iterator[pa.RecordBatch]:
    """The records of a task."""
    settle_worker()
    maker = Maker(options, schema, want, convert)
    with borrowed(options.access) as client:
        for row in task.slices:
            if row.cold is not None:
                # A library of its own, which a task without objects need not have.
                from onelog.spark.source.cold_reading import read_cold_slice  # noqa: PLC0415

                yield from read_cold_slice(client, row, maker, options.cold)
        # Two slices of one partition cannot be in one request.
        waiting = [row for row in task.slices if row.cold is None]
        while waiting:
            parts: dict[Part, Slice] = {}
            for row in waiting:
                parts.setdefault((row.topic, row.partition), row)
            waiting = [row for row in waiting if row not in parts.values()]
            yield from read_fetched(client, list(parts.values()), maker)


def read_fetched(client: Client, slices: list[Slice], maker: Maker) -> Iterator[pa.RecordBatch]:
    """The records of slices of different partitions, by the broker."""
    left = [_Progress(row) for row in slices]
    request, tries = _request(left, 0), 0
    while left:
        answers = client.fetch(request, EMPTY_WAIT_MS / 1000)
        by_part = {row.part: row for row in left}
        made: list[tuple[Slice, Fetched, list[BatchInfo]]] = []
        moved = False
        for answer in answers:
            row = by_part[answer.topic, answer.partition]
            before = row.at
            infos = _advance(client, row, answer, maker.fail_on_data_loss)
            moved = moved or row.at > before
            if infos:
                made.append((row.slice.cut(before, row.slice.end), answer, infos))
        if not moved:
            # A broker with anything sends something: nothing is left up to the end that it tells,
            # unless records are still on their way from the object store.
            for answer in answers:
                if not answer.is_coming:
                    by_part[answer.topic, answer.partition].pass_gap(answer.stable_end)
        left = [row for row in left if not row.is_over()]
        tries = 0 if moved else tries + 1
        if left and tries > EMPTY_TRIES:
            raise Unavailable(_stuck(left[0], answers))
        if left:
            request = _request(left, 0 if moved else EMPTY_WAIT_MS)
            client.fetch_ahead(request)
        for piece, answer, infos in made:
            yield from maker.batches(piece, answer.records, committed(answer, infos))


def _advance(
    client: Client, row: _Progress, answer: Fetched, fail_on_data_loss: bool
) -> list[BatchInfo]:
    """The batches that came of a slice; its place is then behind them."""
    topic, partition = row.part
    if answer.code == OFFSET_OUT_OF_RANGE:
        if answer.log_start > row.at:
            loss.tell(
                loss.aged_out(topic, partition, row.at, answer.log_start), fail=fail_on_data_loss
            )
            row.at = answer.log_start
        else:
            loss.tell(
                loss.cut_off(topic, partition, row.at, answer.stable_end), fail=fail_on_data_loss
            )
            row.at = row.slice.end
        return []
    if answer.code:
        what = f"{topic}-{partition} at offset {row.at}"
        raise client.refusal(answer.code, what, topic_right("subscribe", topic))
    if not answer.records:
        return []
    infos, _end, reason = scan_valid(answer.records, 0, False)
    if not infos:
        raise CorruptBatch(f"{topic}-{partition} at offset {row.at}: {reason}")
    row.pass_over(infos)
    return infos


def _stuck(row: _Progress, answers: list[Fetched]) -> str:
    ends = {(answer.topic, answer.partition): answer.stable_end for answer in answers}
    return (
        f"{row.slice.topic}-{row.slice.partition}: offsets {row.at} to {row.slice.end - 1} do not"
        f" come; the broker says that its records end at {ends.get(row.part)}"
    )


class Maker:
    """Makes Arrow of batches."""

    def __init__(
        self, options: SourceOptions, schema: pa.Schema, want: int, convert: Convert | None
    ) -> None:
        self.fail_on_data_loss = options.fail_on_data_loss
        self._decode = options.decode
        self.schema = schema
        self._want = want
        self._convert = convert

    def batches(
        self,
        row: Slice,
        data: memoryview,
        infos: Iterable[BatchInfo],
        wanted: TopicFilter | None = None,
        arrow_bytes: int = ARROW_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a slice in these batches of `data`, as Spark takes them; of wanted topics."""
        pieces: list[tuple[BatchInfo, BatchPiece]] = []
        size = kind = 0
        for info in infos:
            if info.base_offset >= row.end:
                break
            stamped = info.attributes & ATTR_LOG_APPEND_TIME
            if pieces and (size >= arrow_bytes or stamped != kind):
                yield from self._batch(row, pieces, kind, wanted)
                pieces, size = [], 0
            try:
                records = inflated_records(data, info)
            except OnelogError as error:
                raise _damaged(row, info, error) from error
            pieces.append((info, (data, info.position, records)))
            size += info.size_bytes if records is None else len(records)
            kind = stamped
        if pieces:
            yield from self._batch(row, pieces, kind, wanted)

    def _batch(
        self,
        row: Slice,
        pieces: list[tuple[BatchInfo, BatchPiece]],
        kind: int,
        wanted: TopicFilter | None,
    ) -> Iterator[pa.RecordBatch]:
        want = self._want if wanted is None else self._want | WITH_TOPICS
        try:
            columns = decode_columns([piece for _, piece in pieces], row.start, row.end, want)
        except CorruptBatch:
            self._find_damaged(row, pieces)
            raise
        if not columns.count:
            return
        arrays = arrays_of(
            columns,
            topic=row.shown if wanted is None else None,
            partition=row.partition,
            timestamp_type=1 if kind else 0,
        )
        if wanted is not None:
            arrays = of_topics(arrays, wanted, row.shown)
        if len(arrays["partition"]):
            yield self.batch(row, arrays)

    def batch(self, row: Slice, arrays: dict[str, pa.Array]) -> pa.RecordBatch:
        """Columns of records as Spark takes them; values are decoded here."""
        if self._convert is not None:
            origin = RowOrigin(row.topic, row.partition)
            arrays = decode_arrays(arrays, self._convert, self._decode, origin)
        elif self._decode.kind == "string" and VALUE in arrays:
            arrays[VALUE] = as_text(arrays[VALUE])
        return pa.RecordBatch.from_arrays(
            [arrays[name] for name in self.schema.names], schema=self.schema
        )

    def _find_damaged(self, row: Slice, pieces: list[tuple[BatchInfo, BatchPiece]]) -> None:
        """Raise for the first batch that is damaged, among many."""
        for info, piece in pieces:
            try:
                decode_columns([piece], row.start, row.end, self._want)
            except CorruptBatch as error:
                raise _damaged(row, info, error) from error


def of_topics(
    arrays: dict[str, pa.Array], wanted: TopicFilter, shown: str | None
) -> dict[str, pa.Array]:
    """The rows whose topic a filter matches; `shown` is what the column topic says of one topic."""
    topics = arrays["topic"].dictionary_encode()
    matches = pa.array([wanted.matches(topic.encode()) for topic in topics.dictionary.to_pylist()])
    kept = pc.fill_null(matches.take(topics.indices), False)
    found = {name: array.filter(kept) for name, array in arrays.items()}
    if shown is not None:
        found["topic"] = constant_array(shown, len(found["topic"]), pa.string())
    return found


def _damaged(row: Slice, info: BatchInfo, error: OnelogError) -> CorruptBatch:
    return CorruptBatch(
        f"{row.topic}-{row.partition}: the batch of offsets {info.base_offset} to"
        f" {info.last_offset} is damaged: {error}. Nothing of it was used; restore the partition"
        " from a backup or a replica, or read around it (startingOffsets, endingOffsets)"
    )
