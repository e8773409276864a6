"""Fetches runs, index parts and postings from the store, and checks every byte of them.

Rules: what the CRCs do not confirm is fetched once more, because bytes also go bad on their way.
Then it is ColdDamaged, with the object and the offsets. Batches are checked in stretches, without
the interpreter's lock, and a stretch is written while it is still in the processor's cache.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, TypeVar

from onelog.base.errors import ColdDamaged, NotFound
from onelog.base.ids import Offset
from onelog.kernel import mark_batches
from onelog.objects.piece import IndexPart
from onelog.objects.postings import TopicSpan, read_posting
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore
from onelog.storage.cold.bringing import Bringing
from onelog.storage.cold.cache import FetchedRun, Span
from onelog.storage.cold.runs import Marks
from onelog.storage.cold.shelf import RunPlace

T = TypeVar("T")

_STRETCH_BYTES: Final = 1024 * 1024
"""Bytes that are checked, then written, at once: small writes cost more."""
_MARK_BYTES: Final = 16 * 1024
"""A batch that begins so far behind the last mark gets a mark."""


def fetch_index(store: ObjectStore, row: Row) -> IndexPart:
    """The index part of a piece. Raises NotFound, ColdDamaged, ColdUnavailable."""
    start = row.position + row.piece_bytes - row.index_bytes

    def fetch() -> IndexPart:
        data = bytes(store.get_range(row.object, start, row.index_bytes))
        return IndexPart(data, row.object, row)

    return _twice(row, row.base, row.end, fetch)


def fetch_posting(
    store: ObjectStore, row: Row, index: IndexPart, span: TopicSpan, topic_hash: int
) -> array[int]:
    """Offsets - base of the records of one topic. Raises as `fetch_index`."""
    start = row.position + index.footer.postings.position + span.position

    def fetch() -> array[int]:
        data = bytes(store.get_range(row.object, start, span.size_bytes))
        return array("I", read_posting(data, span, topic_hash, row.end - row.base))

    return _twice(row, row.base, row.end, fetch)


def fetch_run(
    store: ObjectStore, row: Row, index: IndexPart, span: Span, place: RunPlace
) -> FetchedRun:
    """Batches that lie in the store as they are. Raises as `fetch_index`."""
    start, stop = log_range(row, index, span)

    def fetch() -> FetchedRun:
        data = store.get_range(row.object, row.position + start, stop - start)
        place.restart()
        marks = check_batches(memoryview(data), span.first, span.end, place.write)
        return FetchedRun(span.first, span.end, marks, len(data), data)

    return _twice(row, span.first, span.end, fetch)


def log_range(row: Row, index: IndexPart, span: Span) -> tuple[int, int]:
    """Where the batches of a span begin and end in the log of a piece."""
    start = index.position_of(span.first)
    return start, row.log_bytes if span.end >= row.end else index.position_of(span.end)


def bring_run(bringing: Bringing, row: Row, offset: int, span: Span, place: RunPlace) -> FetchedRun:
    """Batches that another process rebuilds. Raises as `fetch_index`."""

    def fetch() -> FetchedRun:
        with place.lent() as (path, bytes_of):
            got = bringing(row, Offset(offset), span.size_bytes, path)
            data = bytes_of(got.size_bytes)
        if not row.base <= got.first <= offset < got.end <= row.end:
            raise ColdDamaged(f"offsets {got.first} to {got.end} came instead of {offset}")
        marks = check_batches(data, got.first, got.end, None)
        kept = data if place.in_memory else None
        return FetchedRun(got.first, got.end, marks, got.size_bytes, kept)

    return _twice(row, span.first, span.end, fetch)


def check_batches(
    data: memoryview, first: int, end: int, write: Callable[[memoryview], None] | None
) -> Marks:
    """Check that `data` is whole batches that ascend and overlap [first, end), and the CRC of each.

    Bytes are written when they were checked. Raises ColdDamaged.
    """
    marks = Marks()
    position, expected = 0, -1
    while position < len(data):
        begun = position
        offsets, positions, first_last, expected, position, why = mark_batches(
            data, begun, _STRETCH_BYTES, _MARK_BYTES, expected
        )
        if why:
            raise ColdDamaged(f"the batch at byte {position} is damaged: {why}")
        marks.extend(offsets, positions)
        base = marks.offsets[0]
        if begun == 0 and not (base < end and first_last >= first):
            raise ColdDamaged(f"it holds batch {base}, which is not of this run")
        if write is not None:
            write(data[begun:position])
    if expected > end:
        raise ColdDamaged(f"its batches reach offset {expected}")
    return marks


def _twice(row: Row, first: int, end: int, fetch: Callable[[], T]) -> T:
    try:
        return fetch()
    except ColdDamaged:
        pass
    try:
        return fetch()
    except ColdDamaged as error:
        raise ColdDamaged(
            f"object {row.object}, offsets {first} to {end} (bytes {row.position} to"
            f" {row.position + row.piece_bytes}): {error}; these offsets cannot be read until the"
            " object is restored from a copy of the bucket, or until retention has passed them"
        ) from error


def gone(row: Row, error: NotFound) -> ColdDamaged:
    """The error of an object that a row names and the store does not have."""
    return ColdDamaged(
        f"object {row.object} is gone, and with it offsets {row.base} to {row.end} ({error});"
        " restore it from a copy of the bucket, or let retention pass these offsets"
    )
