"""Reading the rows of a Parquet file that a tier keeps: straight as Arrow, only wanted columns.

Rules: a file holds one partition in the order of offsets, committed records only. Row groups
outside of a slice are not read, by the bounds that the file has of its offsets. The next row groups
are read while the last ones are on their way to Spark. Columns go by the names of the tier's
tables; a column that nobody wants is not fetched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onelog.base.errors import ColdDamaged, ColdUnavailable, NotFound
from onelog.kernel import TopicFilter
from onelog.lake.arrow import constant_array
from onelog.lake.storage import Storage
from onelog.objects.rows import Row
from onelog.objects.store import StoreSettings
from onelog.spark.source.columns import CORRUPT, VALUE
from onelog.spark.source.planning import Slice
from onelog.spark.source.reading import Maker, of_topics

OFFSET: Final = "offset"
GROUPS: Final = 4
"""Row groups that are read together: of 4 MiB of the log each."""
FILE_NAMES: Final = {"timestampType": "timestamp_type"}
"""Columns of the source that have another name in the file."""
_WORDS: Final = {
    "aws_endpoint": "s3.endpoint",
    "aws_region": "s3.region",
    "aws_access_key_id": "s3.access-key-id",
    "aws_secret_access_key": "s3.secret-access-key",
    "aws_session_token": "s3.session-token",
}
"""Words of a store, and the options of Arrow's file systems."""


def file_batches(
    part: Slice, row: Row, store: StoreSettings, maker: Maker, wanted: TopicFilter | None
) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """The rows of a file in a slice, and with each part of them the offset to go on from."""
    columns = _columns(maker.schema, part, row, wanted)
    words = {_WORDS[name]: text for name, text in store.options.items() if name in _WORDS}
    storage = Storage(tuple(sorted(words.items())))
    try:
        files, inner = storage.open(row.file)
        with (
            files.open_input_file(inner) as source,
            pq.ParquetFile(source, pre_buffer=True) as parquet,
        ):
            for reached, rows in _groups(parquet, columns, part):
                yield reached, list(_batches(rows, part, maker, wanted))
    except FileNotFoundError as error:
        raise NotFound(f"{row.file} is missing") from error
    except pa.ArrowInvalid as error:
        raise ColdDamaged(f"{row.file} is damaged: {error}; restore it from a copy") from error
    except OSError as error:
        words_of_it = storage.told(row.file, error) or error
        raise ColdUnavailable(f"{row.file} cannot be read: {words_of_it}") from error
    yield part.end, []


def _columns(schema: pa.Schema, part: Slice, row: Row, wanted: TopicFilter | None) -> list[str]:
    names = {FILE_NAMES.get(name, VALUE if name == CORRUPT else name) for name in schema.names}
    if part.shown is not None:
        names.discard("topic")
    if wanted is not None:
        names.add("topic")
    if part.start > row.base or part.end < row.end or not names - {"partition"}:
        names.add(OFFSET)
    names.discard("partition")  # as the topic that is read has it, which may be a view
    return sorted(names)


def _groups(
    parquet: pq.ParquetFile, columns: Sequence[str], part: Slice
) -> Iterator[tuple[int, pa.Table]]:
    """Row groups that may have offsets of a slice, and the offset behind them; some are ahead."""
    spans = [_span(parquet.metadata.row_group(at)) for at in range(parquet.num_row_groups)]
    numbers = [at for at, (low, high) in enumerate(spans) if low < part.end and high >= part.start]
    several = [numbers[at : at + GROUPS] for at in range(0, len(numbers), GROUPS)]

    def get(few: list[int]) -> tuple[int, pa.Table]:
        return min(spans[few[-1]][1] + 1, part.end), parquet.read_row_groups(few, list(columns))

    with ThreadPoolExecutor(1, thread_name_prefix="onelog-cold") as pool:
        ahead: deque[Future[tuple[int, pa.Table]]] = deque()
        for few in several:
            ahead.append(pool.submit(get, few))
            if len(ahead) > 1:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _span(group: Any) -> tuple[int, int]:
    """The lowest and highest offset of a row group."""
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == OFFSET and column.statistics is not None:
            return column.statistics.min, column.statistics.max
    return 0, (1 << 63) - 2


def _batches(
    rows: pa.Table, part: Slice, maker: Maker, wanted: TopicFilter | None
) -> Iterator[pa.RecordBatch]:
    for batch in rows.to_batches():
        arrays = {name: batch.column(at) for at, name in enumerate(batch.schema.names)}
        count = batch.num_rows
        for ours, theirs in FILE_NAMES.items():
            if theirs in arrays:
                arrays[ours] = arrays.pop(theirs)
        arrays["partition"] = constant_array(part.partition, count, pa.int32())
        if OFFSET in arrays:
            arrays = _between(arrays, part.start, part.end)
        if wanted is not None:
            arrays = of_topics(arrays, wanted, part.shown)
        elif part.shown is not None:
            count = len(arrays["partition"])
            arrays["topic"] = constant_array(part.shown, count, pa.string())
        if len(arrays["partition"]):
            yield maker.batch(part, _cast(arrays, maker.schema))


def _between(arrays: dict[str, pa.Array], start: int, end: int) -> dict[str, pa.Array]:
    offsets = arrays[OFFSET]
    kept = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
    return {name: array.filter(kept) for name, array in arrays.items()}


def _cast(arrays: dict[str, pa.Array], schema: pa.Schema) -> dict[str, pa.Array]:
    """Columns in the types that Spark expects; a value that is to be decoded stays as it is."""
    return {
        name: array.cast(schema.field(name).type)
        if name in schema.names and name not in (VALUE, CORRUPT)
        else array
        for name, array in arrays.items()
    }
