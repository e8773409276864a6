"""The bucket: which offsets lie in it, read from the files themselves and not from what they say.

Rules: every file counts, also one that no manifest and no table names. A piece of the log (`.p`)
and the raw part of frames (`.f`) are record batches as Kafka has them; a Parquet file has a row
for each message. The formats are in docs/formats.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOOTER_BYTES = 128
LAST_DELTA_AT, COUNT_AT = 23, 57
HEAD_BYTES = 12
"""Of a batch: its first offset, and the length of what follows."""
BOUND_RATIO, BOUND_BYTES = 1.25, 128 * 1024
"""The bucket may hold so much more than the log: indexes, manifests, a table's metadata."""


class NotOnce(Exception):
    """A message lies in the bucket never, or more than once."""


def copies(bucket: Path) -> Counter[tuple[int, int]]:
    """How often each (partition, offset) lies in the bucket."""
    found: Counter[tuple[int, int]] = Counter()
    for path in bucket.rglob("*"):
        if path.suffix in {".p", ".f"}:
            partition = int(path.parent.name)
            found.update((partition, offset) for offset in _offsets(_log(path.read_bytes())))
        elif path.suffix == ".parquet" and "_delta_log" not in path.parts:
            found.update(_rows(path))
    return found


def check_once(bucket: Path, ends: dict[int, int], log_bytes: int) -> int:
    """Every offset below the ends lies there once, in few bytes; how many bytes there are."""
    found = copies(bucket)
    wanted = {(number, offset) for number, end in ends.items() for offset in range(end)}
    if missing := wanted - found.keys():
        raise NotOnce(f"{len(missing):,} messages are not in the bucket: {min(missing)} is one")
    if again := [place for place, count in found.items() if count > 1]:
        raise NotOnce(f"{len(again):,} messages are in the bucket again: {min(again)} is one")
    if strange := found.keys() - wanted:
        raise NotOnce(f"the bucket has offsets that the log has not: {min(strange)} is one")
    size = sum(path.stat().st_size for path in bucket.rglob("*") if path.is_file())
    if size > (bound := int(BOUND_RATIO * log_bytes) + BOUND_BYTES):
        raise NotOnce(f"the bucket has {size:,} bytes, more than {bound:,}")
    return size


def _log(data: bytes) -> bytes:
    """The record batches at the beginning of a piece, or of frames."""
    footer = data[-FOOTER_BYTES:]
    if footer.startswith(b"OLF1"):
        (size,) = struct.unpack_from("<I", footer, 116)
    else:
        (size,) = struct.unpack_from("<Q", footer, 32)
    return data[:size]


def _offsets(log: bytes) -> Iterator[int]:
    """The offsets of record batches that were never compacted."""
    position = 0
    while position < len(log):
        base, length = struct.unpack_from(">qi", log, position)
        (last_delta,) = struct.unpack_from(">i", log, position + LAST_DELTA_AT)
        (count,) = struct.unpack_from(">i", log, position + COUNT_AT)
        if count != last_delta + 1:
            raise NotOnce(f"the batch at offset {base} has {count} records")
        yield from range(base, base + count)
        position += HEAD_BYTES + length


def _rows(path: Path) -> Iterator[Any]:
    """The places of the rows of a Parquet file."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - a history of pieces needs no Arrow

    table = pq.ParquetFile(path).read(columns=["partition", "offset"])
    yield from zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)
