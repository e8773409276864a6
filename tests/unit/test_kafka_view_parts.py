"""The small parts of views: the filler and the cache."""

from __future__ import annotations

import pytest

from onelog.kernel import ATTR_CONTROL, ATTR_TRANSACTIONAL, scan_batches
from onelog.protocols.kafka.views.cache import RUN_BYTES_MAX, Finding, FindingCache
from onelog.protocols.kafka.views.filler import SPAN_MAX, build_filler
from onelog.record.batch import Marker, decode, read_marker


@pytest.mark.parametrize(("start", "end"), [(0, 1), (5, 100), (7, 10**6), (2**40, 2**40 + 70_000)])
def test_a_filler_is_the_marker_of_a_transaction_of_nobody(start, end):
    data = build_filler(start, end, 3)
    (info,) = scan_batches(data)
    assert (info.base_offset, info.last_offset, info.count) == (start, end - 1, 1)
    assert info.attributes == ATTR_CONTROL | ATTR_TRANSACTIONAL
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (-1, -1, -1)
    assert info.leader_epoch == 3
    assert read_marker(data, info) is Marker.COMMIT
    assert decode(data, info).offsets() == [end - 1], "some clients go on behind the last record"


def test_a_filler_spans_what_a_batch_can_span():
    (info,) = scan_batches(build_filler(0, 2**40, 0))
    assert info.last_offset == SPAN_MAX


def key(number):
    return ("s", 0, b"a/+", number)


def run(number, size=100):
    return Finding(((number, b"x" * size),), number + 1)


def test_the_cache_is_bounded_and_the_least_used_goes_first():
    cache = FindingCache(max_bytes=2000)
    for number in range(5):
        cache.put(key(number), run(number))
    assert cache.get(key(0)) == run(0)
    cache.put(key(5), run(5))
    assert cache.size_bytes <= 2000
    assert cache.get(key(0)) == run(0)
    assert cache.get(key(1)) is None
    assert (cache.hits, cache.misses) == (2, 1)


def test_a_find_that_is_put_again_counts_once():
    cache = FindingCache()
    for size in (100, 50):
        cache.put(key(0), run(0, size))
    assert cache.get(key(0)) == run(0, 50)
    assert cache.size_bytes == 350


def test_a_large_find_is_not_kept():
    cache = FindingCache()
    cache.put(key(0), run(0, RUN_BYTES_MAX + 1))
    assert cache.get(key(0)) is None
    assert cache.size_bytes == 0
