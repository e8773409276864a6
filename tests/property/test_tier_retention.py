"""Retention over places: total retention counts each offset once, the local window only the disk.

Kafka counted what lies in two places twice, and so deleted live records (KAFKA-15479, KAFKA-20732).
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onelog.base.ids import Offset, TimestampMs
from onelog.log.config import Retention
from onelog.log.retention import new_local_start, new_start
from onelog.log.tier_config import LocalWindow
from onelog.storage.engine import SegmentInfo

NOW_MS = 1_000_000
SIZES = st.integers(1, 1000)
BOUNDS = st.one_of(st.just(-1), st.integers(0, 5000))
AGES = st.one_of(st.just(-1), st.integers(0, 1000))


@st.composite
def logs(draw: st.DrawFn) -> list[SegmentInfo]:
    """Segments as a log with a tier names them: the oldest only in the store, then both places."""
    rows, offset, time_ms = [], draw(st.integers(0, 50)), NOW_MS - 2000
    counts = [draw(st.integers(0, 6)) for _ in range(3)]
    places = ["cold"] * counts[0] + ["both"] * counts[1] + ["local"] * (counts[2] + 1)
    for number, place in enumerate(places):
        end = offset + draw(st.integers(1, 20))
        time_ms += draw(st.integers(0, 300))
        is_last = number == len(places) - 1
        rows.append(
            SegmentInfo(
                Offset(offset),
                Offset(end),
                draw(SIZES),
                TimestampMs(time_ms),
                not is_last,
                TimestampMs(time_ms),
                place,
            )
        )
        offset = end
    return rows


@given(logs(), AGES, BOUNDS)
def test_total_retention_does_not_care_where_records_lie(
    rows: list[SegmentInfo], age_ms: int, size_bytes: int
) -> None:
    keep = Retention(age_ms=age_ms, bytes=size_bytes)
    mark = rows[-1].end_offset
    here = [row._replace(place="local") for row in rows]
    found, same = (
        new_start(one, keep, NOW_MS, high_watermark=mark, pin=None, durable_cursors=False)
        for one in (rows, here)
    )
    assert (found.start, found.bytes, found.reason) == (same.start, same.bytes, same.reason)


@given(logs(), BOUNDS)
def test_total_retention_by_bytes_keeps_the_bytes_it_is_to_keep(
    rows: list[SegmentInfo], size_bytes: int
) -> None:
    found = new_start(
        rows, Retention(age_ms=-1, bytes=size_bytes), NOW_MS,
        high_watermark=rows[-1].end_offset, pin=None, durable_cursors=False,
    )  # fmt: skip
    if size_bytes < 0:
        assert found.start is None
    elif found.start is not None:
        left = sum(row.size_bytes for row in rows if row.base_offset >= found.start)
        assert left >= size_bytes


@given(logs(), AGES, BOUNDS)
def test_local_bytes_go_only_if_the_store_has_them_and_the_window_is_full(
    rows: list[SegmentInfo], age_ms: int, size_bytes: int
) -> None:
    upto = new_local_start(rows, LocalWindow(age_ms=age_ms, bytes=size_bytes), NOW_MS)
    if age_ms < 0 and size_bytes < 0:
        assert upto is None
    if upto is None:
        return
    gone = [row for row in rows if row.end_offset <= upto and row.place != "cold"]
    assert gone and all(row.place == "both" for row in gone)
    left = sum(row.size_bytes for row in rows if row.base_offset >= upto)
    too_old = age_ms >= 0 and gone[-1].max_timestamp_ms < NOW_MS - age_ms
    assert too_old or (size_bytes >= 0 and left >= size_bytes)


@given(logs(), AGES, BOUNDS)
def test_what_is_only_in_the_store_does_not_push_out_local_bytes(
    rows: list[SegmentInfo], age_ms: int, size_bytes: int
) -> None:
    window = LocalWindow(age_ms=age_ms, bytes=size_bytes)
    here = [row for row in rows if row.place != "cold"]
    assert new_local_start(rows, window, NOW_MS) == new_local_start(here, window, NOW_MS)


@given(logs(), AGES, BOUNDS)
def test_a_second_look_finds_nothing_more(
    rows: list[SegmentInfo], age_ms: int, size_bytes: int
) -> None:
    window = LocalWindow(age_ms=age_ms, bytes=size_bytes)
    upto = new_local_start(rows, window, NOW_MS)
    if upto is not None:
        after = [row._replace(place="cold") if row.end_offset <= upto else row for row in rows]
        assert new_local_start(after, window, NOW_MS) is None
