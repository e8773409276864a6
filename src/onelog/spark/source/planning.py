"""From offsets to tasks: few and large, since each one costs as much as megabytes of reading.

Rules: a slice is a run of offsets of one partition; a task has one or more. Large ranges are cut,
small ones share a task. A sample shows how many bytes an offset stands for, because the broker
counts offsets. A slice that lies in an object store needs no sample: its rows say how large it is.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from onelog.base.topics import is_exact
from onelog.kafka_client import Client, Named, Part, fetch_request
from onelog.kernel import scan_valid
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row, rows_between
from onelog.objects.store import StoreSettings
from onelog.spark.source.options import SourceOptions

TASK_BYTES_LEAST: Final = 8 << 20
"""Below this a second task is not worth its start."""
SAMPLE_BYTES: Final = 64 << 10
SAMPLE_MEAN: Final = 256.0
"""Bytes of a record where no sample is to be had."""
SAMPLE_OFFSETS: Final = 2000
"""Fewer offsets than this are read in one task in any case: no sample is worth its while."""
EVEN_ENOUGH: Final = 0.01
EXACT_SHARE: Final = 0.05
"""One topic of many is a small part of its pieces, and the index of each says where it is."""


@dataclass(frozen=True)
class InStore:
    """The objects that hold the records of a slice, and how they are reached."""

    rows: tuple[Row, ...]
    store: StoreSettings = field(repr=False)
    """It may hold keys."""
    filter: str | None = None
    """Which topics count; None: the rows have no others."""
    aborted: tuple[AbortedSpan, ...] = ()
    """Aborted transactions that the rows' pieces do not list themselves."""

    def cut(self, start: int, end: int) -> InStore:
        """What holds the offsets in [start, end)."""
        return replace(
            self,
            rows=tuple(rows_between(self.rows, start, end)),
            aborted=tuple(one for one in self.aborted if one.first < end and one.last >= start),
        )

    def weight(self, start: int, end: int) -> float:
        """About how many bytes of batches the rows have in [start, end)."""
        share = 1.0 if self.filter is None or not is_exact(self.filter) else EXACT_SHARE
        return share * sum(
            row.log_bytes * (min(row.end, end) - max(row.base, start)) / (row.end - row.base)
            for row in rows_between(self.rows, start, end)
        )


@dataclass(frozen=True)
class Slice:
    """Offsets of one partition, the end left out."""

    topic: str
    shown: str | None
    partition: int
    start: int
    end: int
    cold: InStore | None = None
    """Where the records lie, if tasks read them from an object store."""

    def cut(self, start: int, end: int) -> Slice:
        """A part of it."""
        cold = None if self.cold is None else self.cold.cut(start, end)
        return replace(self, start=start, end=end, cold=cold)


def name_topics(client: Client, slices: Iterable[Slice]) -> list[Slice]:
    """Slices of filters, cut where their records begin to carry their topic."""
    known: dict[str, list[Named]] = {}
    found: list[Slice] = []
    for row in slices:
        if row.shown is not None:
            found.append(row)
            continue
        if row.topic not in known:
            known[row.topic] = client.names(row.topic)
        named = known[row.topic][row.partition]
        until = row.end if named.until is None else min(max(named.until, row.start), row.end)
        if named.topic is None:
            until = row.start
        found.append(replace(row, shown=named.topic, end=until))
        found.append(row.cut(until, row.end))
    return [row for row in found if row.end > row.start]


class Task(InputPartition):
    """The slices that one task reads."""

    def __init__(self, slices: tuple[Slice, ...]) -> None:
        super().__init__(None)
        self.slices = slices


class Sampler:
    """How many bytes an offset of a partition stands for, asked once for each."""

    def __init__(self) -> None:
        self._means: dict[Part, float] = {}

    def weigh(self, client: Client, row: Slice) -> float:
        """About how many bytes a slice has."""
        if row.cold is not None:
            return row.cold.weight(row.start, row.end)
        part, size = (row.topic, row.partition), row.end - row.start
        if part not in self._means:
            if size < SAMPLE_OFFSETS:
                return size * SAMPLE_MEAN
            self._means[part] = _sample(client, part, row.start)
        return size * self._means[part]


def _sample(client: Client, part: Part, offset: int) -> float:
    request = fetch_request(
        {part: offset}, bytes_max=SAMPLE_BYTES, part_bytes_max=SAMPLE_BYTES, wait_ms=0
    )
    (row,) = client.fetch(request)
    infos = scan_valid(row.records, 0, False)[0]
    if row.code or not infos:
        return SAMPLE_MEAN
    size = sum(info.size_bytes for info in infos)
    return size / max(infos[-1].last_offset + 1 - min(offset, infos[0].base_offset), 1)


def plan(
    slices: Iterable[Slice], options: SourceOptions, sampler: Sampler, client: Client
) -> list[Task]:
    """The tasks that read these slices."""
    rows = [row for row in slices if row.end > row.start]
    weights = [sampler.weigh(client, row) for row in rows]
    total = sum(weights)
    count = max(options.min_partitions, _tasks(len(rows), total, options.split_bytes))
    pieces: list[tuple[float, Slice]] = []
    share = total / count if count else 0.0
    for row, weight in zip(rows, weights, strict=True):
        wanted = math.ceil(weight / share - EVEN_ENOUGH) if share else 1
        pieces += [
            (_share(weight, row, piece), piece)
            for piece in _cut(row, max(wanted, 1), options.task_offsets_max)
        ]
    if options.task_offsets_max is not None:
        return [Task((piece,)) for _weight, piece in pieces]
    return _pack(pieces, count)


def _tasks(slices: int, total: float, split_bytes: int) -> int:
    """How many tasks: as few as may be, and when each slice is cut, all into as many pieces."""
    large = math.ceil(total / split_bytes)
    if large <= slices:
        return max(large, min(slices, math.ceil(total / TASK_BYTES_LEAST)))
    return math.ceil(large / slices) * slices


def _share(weight: float, row: Slice, piece: Slice) -> float:
    if piece.cold is not None:
        return piece.cold.weight(piece.start, piece.end)
    return weight * (piece.end - piece.start) / (row.end - row.start)


def _cut(row: Slice, count: int, offsets_max: int | None) -> list[Slice]:
    size = row.end - row.start
    if offsets_max is not None:
        count = max(count, -(-size // offsets_max))
    elif row.cold is not None:
        return _cut_bytes(row, row.cold, count)
    count = min(count, size)
    bounds = [row.start + size * at // count for at in range(count + 1)]
    return [row.cut(a, b) for a, b in pairwise(bounds)]


def _cut_bytes(row: Slice, cold: InStore, count: int) -> list[Slice]:
    """Parts of a slice with the same number of bytes each: rows may be denser in one place."""
    share = cold.weight(row.start, row.end) / count
    bounds, had = [row.start], 0.0
    for one in cold.rows:
        first, last = max(one.base, row.start), min(one.end, row.end)
        weight = cold.weight(first, last)
        while weight and len(bounds) < count and had + weight >= share * len(bounds):
            part = (share * len(bounds) - had) / weight
            bounds.append(first + round((last - first) * part))
        had += weight
    whole = sorted({*bounds, row.end})
    return [row.cut(a, b) for a, b in pairwise(whole)]


def _pack(pieces: list[tuple[float, Slice]], count: int) -> list[Task]:
    """The largest first, each into the task that has least."""
    bins: list[tuple[float, int, list[Slice]]] = [(0.0, at, []) for at in range(max(count, 1))]
    for weight, piece in sorted(pieces, key=lambda row: -row[0]):
        had, at, found = heapq.heappop(bins)
        found.append(piece)
        heapq.heappush(bins, (had + weight, at, found))
    return [
        Task(tuple(sorted(found, key=lambda row: (row.topic, row.partition, row.start))))
        for _weight, _at, found in sorted(bins, key=lambda row: row[1])
        if found
    ]
