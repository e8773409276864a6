"""Cold rows: reads over pieces in a store, through the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest

from onelog.base.errors import ColdDamaged, OffsetOutOfRange
from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import scan_batches, topic_hash
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.storage.cold import ColdRows, RunCache
from onelog.storage.engine import Cold, in_place
from tests.batches import make_batch
from tests.support.pieces import put_piece, small_cache

T = TypeVar("T")
NAMES = count()


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    url = f"memory://cold-{next(NAMES)}"
    if request.param == "folder":
        url = f"file://{tmp_path / 'store'}"
    return open_store(StoreSettings(url=url))


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[RunCache]:
    made = small_cache(tmp_path / "cache")
    yield made
    made.close()


def wait(rows: ColdRows, read: Callable[[], T]) -> T:
    return in_place(rows, read)


def read_at(rows: ColdRows, offset: int, max_bytes: int = 1 << 20, upto: int = 1 << 60) -> bytes:
    return bytes(wait(rows, partial(rows.read, Offset(offset), max_bytes, Offset(upto))))


def read_rest(rows: ColdRows, offset: int, max_bytes: int = 1 << 20) -> bytes:
    out = b""
    while data := read_at(rows, offset, max_bytes):
        out += data
        offset = scan_batches(data)[-1].last_offset + 1
    return out


def many(base: int, number: int, *, size: int = 1000, topic: bytes | None = None) -> list[bytes]:
    return [
        make_batch(base + 2 * at, 2, size=size, topic=topic, timestamp_ms=1_000 + base + 2 * at)
        for at in range(number)
    ]


def two_pieces(store: ObjectStore) -> tuple[list[Row], list[bytes]]:
    first, second = many(100, 100), many(300, 100)
    rows = [
        put_piece(store, "a", 100, 300, first),
        put_piece(store, "b", 300, 500, second, before=b"another piece"),
    ]
    return rows, first + second


def test_a_reader_gets_every_batch_of_all_rows_in_order(store, cache):
    rows, batches = two_pieces(store)
    cold = ColdRows("p", store, cache, rows)
    assert (cold.start_offset, cold.end_offset) == (100, 500)
    assert read_rest(cold, 100) == b"".join(batches)
    assert read_rest(cold, 100, 1) == b"".join(batches)
    assert read_rest(cold, 301) == b"".join(batches[100:])


def test_a_read_never_waits_and_says_that_the_bytes_are_in_a_store(store, cache):
    rows, batches = two_pieces(store)
    cold = ColdRows("p", store, cache, rows)
    gets = store.counts.get
    with pytest.raises(Cold) as raised:
        cold.read(Offset(100), 1, Offset(500))
    assert raised.value.remote
    assert store.counts.get == gets
    with cold.bring(raised.value):
        assert bytes(cold.read(Offset(100), 1, Offset(500))) == batches[0]


def test_a_read_ends_before_upto_and_has_at_least_one_batch(store, cache):
    rows, batches = two_pieces(store)
    cold = ColdRows("p", store, cache, rows)
    assert read_at(cold, 100, 1) == batches[0]
    assert read_at(cold, 100, upto=104) == b"".join(batches[:2])
    assert read_at(cold, 100, upto=103) == batches[0]
    assert read_at(cold, 100, upto=101) == b""
    assert read_at(cold, 500) == b""


@pytest.mark.parametrize("offset", [0, 99, 501])
def test_an_offset_outside_the_rows_is_out_of_range(store, cache, offset):
    rows, _ = two_pieces(store)
    cold = ColdRows("p", store, cache, rows)
    with pytest.raises(OffsetOutOfRange):
        cold.read(Offset(offset), 1, Offset(500))


def test_the_start_may_lie_inside_the_first_row(store, cache):
    rows, batches = two_pieces(store)
    cold = ColdRows("p", store, cache, rows, start=Offset(151))
    with pytest.raises(OffsetOutOfRange):
        cold.read(Offset(150), 1, Offset(500))
    assert read_at(cold, 151, 1) == batches[25]
    assert wait(cold, partial(cold.offset_for_time, TimestampMs(0))) == 151


def test_offsets_that_no_batch_has_lead_to_the_next_batch(store, cache):
    batches = [make_batch(offset, 1, size=900) for offset in (10, 50, 51, 90)]
    rows = [
        put_piece(store, "a", 5, 60, batches[:3]),
        put_piece(store, "empty", 60, 80, []),
        put_piece(store, "b", 85, 200, batches[3:]),
    ]
    cold = ColdRows("p", store, cache, rows)
    assert read_at(cold, 5, 1) == batches[0]
    assert read_at(cold, 11, 1) == batches[1]
    assert read_at(cold, 52, 1) == batches[3]
    assert read_at(cold, 83, 1) == batches[3]
    assert read_at(cold, 91) == b""


def test_a_time_leads_to_the_first_batch_that_reaches_it(store, cache):
    rows, batches = two_pieces(store)
    cold = ColdRows("p", store, cache, rows)
    for info in scan_batches(b"".join(batches)):
        found = wait(cold, partial(cold.offset_for_time, TimestampMs(info.max_timestamp_ms)))
        assert found == info.base_offset
    assert wait(cold, partial(cold.offset_for_time, TimestampMs(1 << 50))) is None


def test_a_topic_is_found_by_postings_and_costs_one_get_where_it_is_and_none_elsewhere(
    store, cache
):
    rows = []
    for number in range(8):
        base = number * 20
        batches = [
            make_batch(base + at, 1, topic=b"rare" if (number, at) == (3, 7) else b"often")
            for at in range(20)
        ]
        rows.append(put_piece(store, f"p{number}", base, base + 20, batches))
    cold = ColdRows("p", store, cache, rows)
    ask = partial(cold.offsets_of_topic, topic_hash(b"rare"), Offset(0), Offset(160), 10)
    assert wait(cold, ask) == [67]
    cache.ahead.close()
    before = store.counts.get
    again = partial(cold.offsets_of_topic, topic_hash(b"rare"), Offset(0), Offset(160), 10)
    assert wait(cold, again) == [67]
    assert store.counts.get == before
    often = partial(cold.offsets_of_topic, topic_hash(b"often"), Offset(5), Offset(160), 30)
    assert wait(cold, often) == list(range(5, 35))
    assert store.counts.get - before == 2
    absent = partial(cold.offsets_of_topic, topic_hash(b"absent"), Offset(0), Offset(160), 10)
    assert wait(cold, absent) == []
    assert store.counts.get - before == 2


def test_without_a_topic_index_there_is_no_answer(store, cache):
    row = put_piece(store, "a", 0, 2, many(0, 1), index_topics=False)
    cold = ColdRows("p", store, cache, [row])
    assert wait(cold, partial(cold.offsets_of_topic, 1, Offset(0), Offset(2), 1)) is None


def test_aborted_transactions_of_a_range_are_named_once(store, cache):
    spans = [AbortedSpan(1, 5, 25, 25), AbortedSpan(2, 30, 31, 31)]
    rows = [
        put_piece(store, "a", 0, 20, many(0, 10), aborted=spans[:1]),
        put_piece(store, "b", 20, 40, many(20, 10), aborted=spans),
    ]
    cold = ColdRows("p", store, cache, rows)
    assert wait(cold, partial(cold.aborted, Offset(0), Offset(40))) == spans
    assert wait(cold, partial(cold.aborted, Offset(0), Offset(5))) == []
    assert wait(cold, partial(cold.aborted, Offset(26), Offset(40))) == spans[1:]


def test_readers_go_on_when_rows_are_joined_and_the_old_objects_are_gone(store, cache):
    rows, batches = two_pieces(store)
    cold = ColdRows("p", store, cache, rows)
    with pytest.raises(Cold) as raised:
        cold.read(Offset(100), 1, Offset(500))
    joined = put_piece(store, "c", 100, 500, batches)
    cold.replace([joined])
    store.delete(["a", "b"])
    with cold.bring(raised.value):
        assert read_rest(cold, 100) == b"".join(batches)


def test_an_object_that_is_gone_is_damage_and_never_out_of_range(store, cache):
    rows, batches = two_pieces(store)
    cold = ColdRows("p", store, cache, rows)
    store.delete(["a"])
    with pytest.raises(ColdDamaged, match=r"object a is gone.*100 to 300"):
        read_at(cold, 100)
    assert read_rest(cold, 300) == b"".join(batches[100:])
