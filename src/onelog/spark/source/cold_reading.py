"""Reading a slice from the objects of a store: ranged gets, some ahead, the broker idle.

Rules:
- Exactly the records of the slice come out, in order, whatever happens on the way: each record is
  known by its offset, so reading goes on behind the last one that came out.
- An object that is gone (joined with others, or taken by retention) is asked for again: the broker
  names those that hold the offsets now. What no object holds is fetched from the broker, which
  reports loss as in every fetch.
- Unless `coldReads` is `store`, the broker also reads what a store refuses, or what is damaged
  there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from typing import Final

import pyarrow as pa

from onelog.base.errors import (
    ColdDamaged,
    ConfigError,
    CorruptBatch,
    InvalidRequest,
    NotFound,
    OnelogError,
    StorageError,
)
from onelog.kafka_client import Client
from onelog.kernel import ATTR_CONTROL, BatchInfo, TopicFilter, scan_valid
from onelog.objects.aborted_batches import AbortedBatches
from onelog.objects.rows import Row, find_row
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.spark.source.cold_files import file_batches
from onelog.spark.source.cold_runs import Run, RunsAhead
from onelog.spark.source.options import ColdReads
from onelog.spark.source.planning import InStore, Slice
from onelog.spark.source.reading import FETCH_BYTES, Maker, read_fetched

_log: Final = logging.getLogger("onelog.spark")
_stores: dict[str, ObjectStore] = {}
"""The stores of this worker: connections outlive a task."""


class _RowFailed(Exception):
    """A row could not be read from the store."""

    def __init__(self, row: Row, error: OnelogError) -> None:
        super().__init__(str(error))
        self.row = row
        self.error = error


def read_cold_slice(
    client: Client, row: Slice, maker: Maker, how: ColdReads
) -> Iterator[pa.RecordBatch]:
    """The records of a slice that lies in a store."""
    assert row.cold is not None
    at, cold = row.start, row.cold
    gone: set[str] = set()
    while at < row.end:
        rows = _neighbours(cold.rows, at, row.end)
        if not rows:
            gap = replace(row, start=at, end=_next_base(cold.rows, at, row.end), cold=None)
            yield from read_fetched(client, [gap], maker)
            at = gap.end
            continue
        before = at
        try:
            for reached, batches in _read_rows(replace(row, start=at), rows, cold, maker):
                yield from batches
                at = reached
            assert at > before, "rows that were read lead on"
        except _RowFailed as failed:
            cold = _without(client, replace(row, start=at), cold, failed, how, gone)


def _neighbours(rows: tuple[Row, ...], at: int, end: int) -> list[Row]:
    """The rows from an offset on, up to the first gap."""
    found: list[Row] = []
    for one in rows[find_row(rows, at) :]:
        if one.base > at or at >= end:
            break
        found.append(one)
        at = one.end
    return found


def _next_base(rows: tuple[Row, ...], at: int, end: int) -> int:
    """Where the first row behind a gap begins."""
    number = find_row(rows, at)
    return min(rows[number].base, end) if number < len(rows) else end


def _without(
    client: Client, left: Slice, cold: InStore, failed: _RowFailed, how: ColdReads, gone: set[str]
) -> InStore:
    """The objects to go on with, after one could not be read."""
    error, row = failed.error, failed.row
    named = f"{left.topic}-{left.partition} at offset {left.start}"
    if isinstance(error, NotFound):
        gone.add(row.object)
        part = client.cold(left.topic, left.partition, left.start, left.end)
        rows = () if part is None else part.rows
        _log.warning("%s: %s; reading what the broker names now", named, error)
        aborted = () if part is None else part.aborted
        kept = tuple(one for one in rows if one.object not in gone)
        return replace(cold, rows=kept, aborted=aborted)
    if how.mode == "store":
        raise _explained(named, error) from error
    _log.warning("%s: %s; the broker reads it", named, error)
    if isinstance(error, (ColdDamaged, CorruptBatch)):
        return replace(cold, rows=tuple(one for one in cold.rows if one != row))
    return replace(cold, rows=())


def _explained(named: str, error: OnelogError) -> OnelogError:
    words = (
        f"{named}: {error}. Tasks take keys from the options s3.*; with coldReads=auto or broker"
        " the broker reads it instead"
    )
    return StorageError(words) if isinstance(error, (StorageError, CorruptBatch)) else error


def _read_rows(
    left: Slice, rows: list[Row], cold: InStore, maker: Maker
) -> Iterator[tuple[int, Iterable[pa.RecordBatch]]]:
    """The records of neighbouring rows, and with each part of them the offset to go on from."""
    wanted = None if cold.filter is None else TopicFilter(cold.filter.encode())
    first = rows[0].kind
    same = list(takewhile(lambda one: one.kind == first, rows))
    if first == "parquet":
        for one in same:
            part = left.cut(max(left.start, one.base), min(left.end, one.end))
            with _concerning(one):
                yield from file_batches(part, one, cold.store, maker, wanted)
        return
    with _concerning(rows[0]):
        store = opened(cold.store)
    topic = wanted.filter if wanted is not None and wanted.exact else None
    aborted = AbortedBatches(cold.aborted)
    with RunsAhead(store, same, left.start, left.end, topic) as runs:
        for run in runs:
            with _concerning(run.row):
                yield run.reached, list(_run_batches(run, left, cold, aborted, maker, wanted))


@contextmanager
def _concerning(row: Row) -> Iterator[None]:
    """Errors of the store say which row they concern."""
    try:
        yield
    except (NotFound, StorageError, CorruptBatch, ConfigError, InvalidRequest) as error:
        raise _RowFailed(row, error) from error


def _run_batches(
    run: Run,
    left: Slice,
    cold: InStore,
    aborted: AbortedBatches,
    maker: Maker,
    wanted: TopicFilter | None,
) -> Iterator[pa.RecordBatch]:
    if run.fetched is None:
        return
    view = memoryview(run.fetched.result())
    infos, _end, reason = scan_valid(view, 0, False)
    if reason or not infos:
        raise ColdDamaged(
            f"{cold.store.url}: {run.row.object} has no batches where its index says so: {reason}"
        )
    seen = _committed(infos, AbortedBatches(run.aborted), aborted)
    yield from maker.batches(left, view, seen, wanted, FETCH_BYTES)


def opened(settings: StoreSettings) -> ObjectStore:
    """The store of this worker. Raises ConfigError, InvalidRequest."""
    key = repr((settings.url, sorted(settings.options.items())))
    if key not in _stores:
        _stores[key] = open_store(settings)
    return _stores[key]


def _committed(infos: Iterable[BatchInfo], *aborted: AbortedBatches) -> Iterator[BatchInfo]:
    """The batches that are neither markers nor of aborted transactions."""
    for info in infos:
        if not info.attributes & ATTR_CONTROL and not any(one.has(info) for one in aborted):
            yield info
