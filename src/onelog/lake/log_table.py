"""The table of a stream's history: its columns, and how its files are written.

Rules: a file holds records of one partition, offsets ascending. Columns have the names of Spark's
Kafka source. Statistics are for `topic`, `partition`, `offset` and `timestamp` only: those of keys
and values would make footers large. A row group is what one cold read fetches, so it is small.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from onelog.lake.arrow import HEADERS, TIMESTAMP
from onelog.lake.column_words import OWN_COLUMNS

GROUP_BYTES: Final = 4 << 20
"""Bytes of batches in a row group."""
GROUP_ROWS: Final = 65_536
LOG_COLUMNS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
assert tuple(LOG_COLUMNS.names) == OWN_COLUMNS
REBUILT_FROM: Final = ("offset", "timestamp", "key", "value", "headers")
"""The columns that batches are rebuilt from."""
WITH_BOUNDS: Final = ("topic", "partition", "offset", "timestamp")
_NAME: Final = re.compile(r"(\d+)-(\d{20})-(\d{20})-[0-9a-f]{16}\.parquet")
_ENCODED: Final = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}
_REPEATING: Final = (
    "topic", "partition", "timestamp_type", "key", "headers.list.element.key",
)  # fmt: skip


def file_name(partition: int, base: int, end: int, tag: str) -> str:
    """The name of a file, by which upkeep knows what it holds."""
    return f"{partition}-{base:020}-{end:020}-{tag}.parquet"


def span_of(path: str) -> tuple[int, int, int] | None:
    """Partition, first offset and end of a file, by its name; None: it is not ours."""
    found = _NAME.fullmatch(path.rsplit("/", 1)[-1])
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def log_writer(path: str, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of one file; each table that is written to it becomes a row group."""
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=list(_REPEATING),
        column_encoding=_ENCODED,
        write_statistics=list(WITH_BOUNDS),
        store_schema=False,
    )


def group_places(footer: pq.FileMetaData) -> list[tuple[int, int]]:
    """Where each row group begins in the file, and its bytes."""
    found = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        columns = [group.column(at) for at in range(group.num_columns)]
        starts = [
            one.data_page_offset
            if one.dictionary_page_offset is None
            else min(one.dictionary_page_offset, one.data_page_offset)
            for one in columns
        ]
        ends = [
            start + one.total_compressed_size for start, one in zip(starts, columns, strict=True)
        ]
        found.append((min(starts), max(ends) - min(starts)))
    return found
