"""A token bucket against its plain definition, and what it lets through over time."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.security.quotas.bucket import TokenBucket

STEPS = st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 10_000)), min_size=1, max_size=60)
"""Milliseconds since the step before, and the count of the step."""


def owed(rate: int, burst: Fraction, steps: list[tuple[Fraction, int]]) -> Fraction:
    """The plain definition: for each moment, what was taken since then may be at most a burst and
    what the rate gave since then. What is beyond the worst moment is owed."""
    now = steps[-1][0]
    level = min(
        burst + rate * (now - at) - sum(count for _at, count in steps[number:])
        for number, (at, _count) in enumerate(steps)
    )
    return max(Fraction(0), -level)


@given(rate=st.integers(1, 5_000), burst_ms=st.integers(10, 5_000), steps=STEPS)
def test_a_bucket_waits_as_long_as_the_plain_definition_says(
    rate: int, burst_ms: int, steps: list[tuple[int, int]]
) -> None:
    bucket = TokenBucket(rate, burst_ms / 1000, 0.0)
    now, seen = Fraction(0), []
    for pause_ms, count in steps:
        now += Fraction(pause_ms, 1000)
        seen.append((now, count))
        wait_s = bucket.debit(count, float(now))
        wanted = owed(rate, Fraction(burst_ms * rate, 1000), seen) / rate
        assert wait_s == pytest.approx(float(wanted), abs=1e-6)


@given(rate=st.integers(1, 5_000), reads=st.lists(st.integers(1, 20_000), min_size=2, max_size=50))
def test_one_who_waits_as_told_gets_the_rate_and_one_burst_and_one_read(
    rate: int, reads: list[int]
) -> None:
    bucket, now = TokenBucket(rate, 1.0, 0.0), 0.0
    for read in reads:
        now += bucket.debit(read, now)
    assert sum(reads[:-1]) <= rate * now + rate + max(reads) + 1e-6


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(10, 1.0, 100.0)
    assert bucket.debit(10, 100.0) == 0
    assert bucket.debit(5, 99.0) == pytest.approx(0.5)
    assert bucket.debit(0, 100.5) == 0


def test_a_token_is_taken_only_where_there_is_one() -> None:
    bucket = TokenBucket(2, 1.0, 0.0)
    assert [bucket.takes(0.0) for _ in range(3)] == [True, True, False]
    assert not bucket.takes(0.4)
    assert bucket.takes(0.5)
