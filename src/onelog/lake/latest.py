"""Latest by key: which of several rows with the same key stays.

Rules: the later row is the greater one in the order columns, compared one after the other; a null
is less than every value. Among equals the row that came last stays, so that writing the same row
again changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import pyarrow as pa
import pyarrow.compute as pc

_ROW, _OTHER = "onelog.row", "onelog.other"


def latest(rows: pa.Table, keys: Sequence[str], order: Sequence[str]) -> pa.Table:
    """One row of each key: the latest."""
    picked = latest_places(rows, keys, order)
    return rows if len(picked) == rows.num_rows else rows.take(picked)


def latest_places(rows: pa.Table, keys: Sequence[str], order: Sequence[str]) -> pa.Array:
    """Where the latest row of each key stands, ascending."""
    ranks = pc.sort_indices(  # stable: of equals the one that came last comes last
        rows.select([*order]), sort_keys=[(name, "ascending", "at_start") for name in order]
    )
    ranked = rows.select([*keys]).take(ranks).append_column(_OTHER, places(rows))
    last = ranked.group_by([*keys], use_threads=False).aggregate([(_OTHER, "max")])
    found = ranks.take(last.column(f"{_OTHER}_max").combine_chunks())
    return found.take(pc.array_sort_indices(found))


def replaced(
    rows: pa.Table, updates: pa.Table, keys: Sequence[str], order: Sequence[str]
) -> tuple[pa.Array, pa.Array]:
    """Where rows lose against an update of their key, and where updates lose against a row."""
    left = rows.select([*keys]).append_column(_ROW, places(rows))
    right = updates.select([*keys]).append_column(_OTHER, places(updates))
    pairs = left.join(right, keys=[*keys], join_type="inner").combine_chunks()
    row, other = pairs.column(_ROW), pairs.column(_OTHER)
    stays = _later(rows.select([*order]).take(row), updates.select([*order]).take(other), order)
    return row.filter(pc.invert(stays)), other.filter(stays)


def without(rows: pa.Table, lost: pa.Array | pa.ChunkedArray) -> pa.Table:
    """The rows that do not stand at the places of `lost`."""
    if not len(lost):
        return rows
    if isinstance(lost, pa.ChunkedArray):
        lost = lost.combine_chunks()
    return rows.filter(pc.invert(pc.is_in(places(rows), value_set=lost)))


def places(rows: pa.Table) -> pa.Array:
    """The numbers of the rows."""
    return pa.array(numpy.arange(rows.num_rows, dtype=numpy.int64))


def _later(rows: pa.Table, others: pa.Table, order: Sequence[str]) -> pa.ChunkedArray:
    """Whether each row is later than the one beside it."""
    later: pa.ChunkedArray = pa.scalar(False)
    same: pa.ChunkedArray = pa.scalar(True)
    for name in order:
        one, two = rows.column(name), others.column(name)
        more = pc.coalesce(pc.greater(one, two), pc.and_(pc.is_valid(one), pc.is_null(two)))
        equal = pc.coalesce(pc.equal(one, two), pc.and_(pc.is_null(one), pc.is_null(two)))
        later = pc.or_(later, pc.and_(same, more))
        same = pc.and_(same, equal)
    return later
