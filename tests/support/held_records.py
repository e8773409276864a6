"""The records that a stopped node holds of a stream, as its own files say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from onelog.base.ids import Offset, PartitionId
from onelog.kernel import ATTR_CONTROL, ATTR_TRANSACTIONAL, BatchInfo, scan_batches
from onelog.record.batch import Marker, read_marker
from onelog.storage.engine import LogSettings, PartitionKey, PartitionLog, in_place
from onelog.storage.segment import SegmentEngine
from tests.batches import decode


@dataclass(frozen=True)
class Held:
    """What a node has of a partition: (offset, value) of every record."""

    partition: int
    start_offset: int
    rows: list[tuple[int, str]]
    """Also those of transactions that are open or were given up; markers are not there."""
    committed: list[tuple[int, str]]
    """As a reader of committed records sees it."""


def records_of(data_dir: Path, stream_id: str) -> Iterator[Held]:
    """What a stopped node holds of a stream, partition by partition."""
    root = data_dir / "segment"
    engine = SegmentEngine(root)
    try:
        for path in sorted((root / stream_id).iterdir()):
            if not path.name.isdecimal():
                continue  # set aside, because it was damaged
            key = PartitionKey(stream_id, PartitionId(int(path.name)))
            log = engine.open(key, LogSettings(topic_index=False))
            rows: list[tuple[int, str]] = []
            plain: list[tuple[int, str]] = []
            begun: dict[int, list[tuple[int, str]]] = {}
            for data, info in _batches_of(log):
                if info.attributes & ATTR_CONTROL:
                    ended = begun.pop(info.producer_id, [])
                    plain += ended if read_marker(data, info) is Marker.COMMIT else []
                    continue
                slices = decode(data, info)
                found = [
                    (info.base_offset + at, bytes(slices.value(at) or b"").decode())
                    for at in range(len(slices))
                ]
                rows += found
                is_open = info.attributes & ATTR_TRANSACTIONAL
                (begun.setdefault(info.producer_id, []) if is_open else plain).extend(found)
            yield Held(int(path.name), int(log.start_offset), rows, sorted(plain))
    finally:
        engine.close()


def _batches_of(log: PartitionLog) -> Iterator[tuple[Any, BatchInfo]]:
    offset = log.start_offset
    while offset < log.end_offset:
        data = in_place(log, partial(log.read, offset, 1 << 20, log.end_offset))
        for info in scan_batches(data):
            offset = Offset(info.last_offset + 1)
            yield data, info
