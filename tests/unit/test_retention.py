"""Retention decides: age, bytes, consumed, and what durable cursors may hold back (I3)."""

import pytest

from onelog.base.clock import ManualClock
from onelog.base.ids import Offset, TimestampMs
from onelog.log.config import Retention
from onelog.log.retention import Decision, Reason, apply_retention, new_start, roll_due
from onelog.log.syncer import Syncer
from onelog.storage.engine import SegmentInfo
from tests.logs import make_partition, memory_log, put, row

NOW_MS = 1_700_000_000_000
NEVER = Retention(age_ms=-1)


def segment(number: int, *, age_ms: int = 0, size: int = 100, sealed: bool = True) -> SegmentInfo:
    """Ten offsets per segment."""
    return SegmentInfo(
        Offset(10 * number),
        Offset(10 * number + 10),
        size,
        TimestampMs(NOW_MS - age_ms),
        sealed,
        TimestampMs(NOW_MS - age_ms),
    )


def log_of(*ages_ms: int) -> list[SegmentInfo]:
    """Sealed segments of these ages and a young active one."""
    rows = [segment(number, age_ms=age) for number, age in enumerate(ages_ms)]
    return [*rows, segment(len(ages_ms), sealed=False)]


def decide(
    segments: list[SegmentInfo],
    retention: Retention,
    *,
    now_ms: int = NOW_MS,
    high_watermark: int = 10**9,
    pin: int | None = None,
) -> Decision:
    return new_start(
        segments,
        retention,
        now_ms,
        high_watermark=high_watermark,
        pin=pin,
        durable_cursors=pin is not None,
    )


def test_segments_older_than_the_age_go_and_the_log_begins_after_them() -> None:
    decision = decide(log_of(500, 400, 300, 200), Retention(age_ms=350))
    assert decision.start == 20
    assert (decision.reason, decision.segments, decision.bytes) == (Reason.AGE, 2, 200)


def test_a_segment_exactly_as_old_as_the_age_stays() -> None:
    assert decide(log_of(350), Retention(age_ms=350)).start is None
    assert decide(log_of(351), Retention(age_ms=350)).start == 10


def test_an_old_segment_behind_a_young_one_waits_for_it() -> None:
    """Only a prefix can go: offsets have no holes at the start."""
    assert decide(log_of(10, 500, 500), Retention(age_ms=350)).start is None


def test_a_segment_without_timestamps_has_the_age_of_its_file() -> None:
    rows = log_of(500)
    rows[0] = rows[0]._replace(max_timestamp_ms=TimestampMs(-1))
    assert decide(rows, Retention(age_ms=350)).start == 10
    assert decide(rows, Retention(age_ms=600)).start is None


def test_bytes_keep_at_least_what_they_say() -> None:
    rows = log_of(0, 0, 0, 0)  # 500 bytes
    assert decide(rows, Retention(age_ms=-1, bytes=300)).start == 20
    assert decide(rows, Retention(age_ms=-1, bytes=301)).start == 10
    assert decide(rows, Retention(age_ms=-1, bytes=500)).start is None
    assert decide(rows, Retention(age_ms=-1, bytes=0)).start == 40
    assert decide(rows, Retention(age_ms=-1, bytes=300)).reason is Reason.BYTES


def test_the_stronger_of_age_and_bytes_decides() -> None:
    rows = log_of(500, 0, 0, 0)
    assert decide(rows, Retention(age_ms=100, bytes=300)).reason is Reason.BYTES
    assert decide(rows, Retention(age_ms=100, bytes=450)).reason is Reason.AGE


def test_minus_one_means_never() -> None:
    decision = decide(log_of(10**12), NEVER)
    assert decision == Decision(None, Reason.NONE, 0, 0, 0, False, [])


def test_the_active_segment_never_goes() -> None:
    rows = [segment(0, age_ms=500), segment(1, age_ms=500, sealed=False)]
    assert decide(rows, Retention(age_ms=1, bytes=0)).start == 10
    assert decide([segment(0, age_ms=500, sealed=False)], Retention(age_ms=1)).start is None
    assert decide([segment(0, age_ms=500)], Retention(age_ms=1)).start is None  # it is the last
    assert decide([], Retention(age_ms=1)).start is None


def test_nothing_past_the_high_watermark_goes() -> None:
    rows = log_of(500, 500, 500)
    assert decide(rows, Retention(age_ms=1), high_watermark=25).start == 20
    assert decide(rows, Retention(age_ms=1), high_watermark=9).start is None


def test_a_wall_clock_that_jumps_backwards_deletes_nothing() -> None:
    rows = log_of(500, 400)
    assert decide(rows, Retention(age_ms=350), now_ms=NOW_MS - 10**10).start is None
    assert decide(rows, Retention(age_ms=350), now_ms=0).start is None


# -- pins


def test_a_pin_holds_back_age_and_bytes_from_its_segment_on() -> None:
    rows = log_of(500, 500, 500, 500)
    for retention in (Retention(age_ms=1), Retention(age_ms=-1, bytes=0)):
        decision = decide(rows, retention, pin=25)
        assert decision.start == 20
        assert decision.pinned_bytes == 200
        assert not decision.quota_exceeded


def test_a_pin_at_a_boundary_needs_only_what_follows() -> None:
    assert decide(log_of(500, 500), Retention(age_ms=1), pin=10).start == 10
    assert decide(log_of(500, 500), Retention(age_ms=1), pin=9).start is None
    assert decide(log_of(500, 500), Retention(age_ms=1), pin=20).start == 20


def test_past_the_quota_the_oldest_go_as_far_as_needed_and_the_decision_says_so() -> None:
    rows = log_of(500, 500, 500, 500)
    decision = decide(rows, Retention(age_ms=1, pin_bytes_max=250), pin=0)
    assert decision.start == 20
    assert decision.quota_exceeded
    assert decision.reason is Reason.PIN_QUOTA
    assert decision.pinned_bytes == 200
    exact = decide(rows, Retention(age_ms=1, pin_bytes_max=400), pin=0)
    assert (exact.start, exact.quota_exceeded) == (None, False)
    none = decide(rows, Retention(age_ms=1, pin_bytes_max=0), pin=0)
    assert (none.start, none.pinned_bytes) == (40, 0)


def test_what_no_retention_wants_gone_does_not_count_against_the_quota() -> None:
    decision = decide(log_of(0, 0, 0), Retention(age_ms=100, pin_bytes_max=0), pin=0)
    assert decision == Decision(None, Reason.NONE, 0, 0, 0, False, [])


def test_consumed_segments_go_at_once_and_others_stay() -> None:
    decision = decide(log_of(0, 0, 0), Retention(age_ms=-1, consumed=True), pin=25)
    assert decision.start == 20
    assert decision.reason is Reason.CONSUMED
    assert decide(log_of(0, 0, 0), Retention(age_ms=-1), pin=25).start is None


def test_without_a_durable_cursor_nothing_is_consumed() -> None:
    assert decide(log_of(0, 0), Retention(age_ms=-1, consumed=True)).start is None
    alone = new_start(
        log_of(0, 0),
        Retention(age_ms=-1, consumed=True),
        NOW_MS,
        high_watermark=100,
        pin=20,
        durable_cursors=False,
    )
    assert alone.start is None


def test_age_may_reach_further_than_consumed() -> None:
    retention = Retention(age_ms=1, consumed=True, pin_bytes_max=0)
    decision = decide(log_of(500, 500, 0), retention, pin=10)
    assert (decision.start, decision.reason) == (20, Reason.PIN_QUOTA)


# -- rolling and applying


@pytest.mark.parametrize(
    ("age_ms", "segment_age_ms", "retention_age_ms", "due"),
    [
        (99, 100, -1, False),
        (100, 100, -1, True),
        (50, 100, 49, True),
        (50, 100, 50, False),
        (-1000, 100, 50, False),  # the clock went backwards
    ],
)
def test_an_idle_active_segment_is_rolled_when_its_age_or_retention_passed(
    age_ms: int, segment_age_ms: int, retention_age_ms: int, due: bool
) -> None:
    active = segment(0, age_ms=age_ms, sealed=False)
    answer = roll_due(
        active, now_ms=NOW_MS, segment_age_ms=segment_age_ms, retention_age_ms=retention_age_ms
    )
    assert answer is due


def test_an_empty_segment_is_never_rolled() -> None:
    empty = segment(0, age_ms=10**9, sealed=False)._replace(end_offset=Offset(0))
    assert not roll_due(empty, now_ms=NOW_MS, segment_age_ms=1, retention_age_ms=1)


def test_what_a_pin_holds_back_is_named() -> None:
    rows = log_of(500, 400, 300, 200)
    decision = decide(rows, Retention(age_ms=350), pin=15)
    assert (decision.start, decision.held) == (10, rows[1:2])
    consumed = decide(rows, Retention(age_ms=-1, consumed=True), pin=15)
    assert (consumed.start, consumed.held) == (10, rows[1:-1])
    assert decide(rows, Retention(age_ms=-1), pin=15).held == []


async def test_applying_a_decision_moves_the_start_and_never_back() -> None:
    clock = ManualClock(NOW_MS)
    syncer = Syncer(1)
    partition = make_partition(memory_log(clock), syncer, clock)
    for _ in range(3):
        put(partition, row(b"k", b"v"))
        partition.log.roll()
    nothing = Decision(None, Reason.NONE, 0, 0, 0, False, [])
    await apply_retention(partition, nothing)
    assert partition.start_offset == 0
    await apply_retention(partition, nothing._replace(start=Offset(2)))
    assert partition.start_offset == 2
    await apply_retention(partition, nothing._replace(start=Offset(1)))
    assert partition.start_offset == 2
    await syncer.close()
