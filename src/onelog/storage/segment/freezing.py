"""Freezes a partition: hard links to its files, and the checkpoint that cuts the log in them.

Rules: the links are the same files, so nothing is copied and no later trim, swap or deletion takes
them. Bytes of a log file below the cut never change; the log goes on behind them in the same file.
No index is kept for the segment that is cut: it is rebuilt from the log.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from onelog.base import faults
from onelog.base.errors import CorruptBatch, StorageError
from onelog.base.ids import Offset
from onelog.storage.engine import in_place
from onelog.storage.segment.checkpoint import (
    UNKNOWN,
    VERSION,
    Checkpoint,
    SegmentRow,
    write_first,
)
from onelog.storage.segment.durability import PartitionSync
from onelog.storage.segment.held import PartitionState
from onelog.storage.segment.index import INDEX, TIMES
from onelog.storage.segment.reading import LogReader
from onelog.storage.segment.segment import LOG
from onelog.storage.segment.state import states_upto
from onelog.storage.segment.topics import TOPICS
from onelog.storage.segment.truncation import find_cut, shortened


def freeze_partition(
    held: PartitionState, durability: PartitionSync, cut: Offset, into: Path
) -> dict[str, int]:
    """Link the files that a log which ends at `cut` consists of; names, and bytes that count."""
    with held.maintenance:
        try:
            checkpoint = _checkpoint(held, durability, cut)
            if not checkpoint.end_offset:
                return {}  # nothing was ever written
            into.mkdir(parents=True)
            faults.hit("segment.freeze")
            files = _link_rows(Path(held.directory), into, checkpoint)
            for path in states_upto(held.directory, checkpoint.end_offset):
                os.link(path, into / Path(path).name)
                files[Path(path).name] = Path(path).stat().st_size
            written = write_first(into, checkpoint)
            files[written.name] = written.stat().st_size
        except CorruptBatch as error:
            raise held.corrupt(error) from error
        except OSError as error:
            raise StorageError(
                f"the files of {held.directory} cannot be linked into {into} ({error}): both must"
                " be on one file system that has hard links and room for names"
            ) from error
    return files


def _checkpoint(held: PartitionState, durability: PartitionSync, cut: int) -> Checkpoint:
    """The checkpoint of the log if it ended at `cut`. Maintenance is held."""
    with held.lock:
        held.check_running()
        segments, start, end = held.segments[1], held.start, held.end
        rows = [segment.row() for segment in segments[:-1]]
        tail = segments[-1].plain_row()
    if cut < end:
        found = in_place(LogReader(held), lambda: find_cut(segments, cut))
        with held.lock:
            rows = [segment.row() for segment in found.kept]
        tail = SegmentRow(cut, 0)
        if found.split is not None:
            split = found.split
            tail = in_place(LogReader(held), lambda: shortened(split, found.size_bytes))
    tail = msgspec.structs.replace(tail, index_bytes=UNKNOWN, topics_bytes=UNKNOWN)
    return Checkpoint(
        VERSION,
        int(start),
        min(cut, end),
        tuple(rows),
        tail,
        high_watermark=min(durability.saved.high_watermark, cut),
    )


def _link_rows(directory: Path, into: Path, checkpoint: Checkpoint) -> dict[str, int]:
    files: dict[str, int] = {}
    for row in (*checkpoint.sealed, checkpoint.tail):
        wanted = {LOG: row.size_bytes}
        if row.index_bytes != UNKNOWN:
            wanted |= {
                INDEX: row.index_bytes, TIMES: row.times_bytes, TOPICS: row.topics_bytes,
            }  # fmt: skip
        for extension, size_bytes in wanted.items():
            if size_bytes > 0:
                name = f"{row.base_offset:020}{extension}"
                os.link(directory / name, into / name)
                files[name] = size_bytes
    return files
