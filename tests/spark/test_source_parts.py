"""The parts of the source by themselves: limits, tasks, options of the connection, bad answers."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StructField, StructType

from onelog.base.errors import ConfigError, OffsetOutOfRange, OnelogError, Unavailable
from onelog.kafka_client import Fetched, messages
from onelog.kafka_client.wire import Reader
from onelog.lake.arrow import MILLIS_MAX, constant_array, time_array
from onelog.objects.rows import Row
from onelog.objects.store import StoreSettings
from onelog.spark.options import CONNECTION, Given, access_of
from onelog.spark.source import loss
from onelog.spark.source.limits import Admission, share_out
from onelog.spark.source.offsets import from_spark, lag, to_spark
from onelog.spark.source.options import Limits, source_options
from onelog.spark.source.planning import InStore, Sampler, Slice, plan
from onelog.spark.source.reading import EMPTY_TRIES, Maker, read_fetched
from onelog.spark.source.stream import StreamReader

PARTS = [("t", number) for number in range(6)]
OPTIONS = {"servers": "h", "subscribe": "t"}


# -- limits


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=6), st.integers(1, 10**12))
def test_a_share_is_exact_and_nobody_gets_more_than_there_is(sizes, most) -> None:
    rows = dict(zip(PARTS, sizes, strict=False))
    found = share_out(rows, most)
    assert sum(found.values()) == min(most, sum(sizes))
    assert all(0 <= found[part] <= size for part, size in rows.items())


def test_few_offsets_wait_until_the_delay_is_over() -> None:
    now = [0.0]
    admission = Admission(Limits(offsets_min=10, delay_s=5.0), lambda: now[0])
    begins, part = {("t", 0): 100}, ("t", 0)

    def admit(end: int, *, at_once: bool = False) -> int:
        return admission.admit(begins, {part: end}, lambda *_: 0.0, at_once=at_once)[part]

    assert admit(105) == 100
    assert admit(110) == 110
    now[0] = 4.9
    assert admit(105) == 100
    assert admit(105, at_once=True) == 105
    now[0] = 10.0
    assert admit(105) == 105


def test_bytes_bound_a_batch_by_their_estimate() -> None:
    admission = Admission(Limits(bytes_max=1000))
    found = admission.admit(
        {("t", 0): 0, ("t", 1): 50},
        {("t", 0): 100, ("t", 1): 150},
        lambda _part, _begin, size: size * 10.0,
        at_once=True,
    )
    assert found == {("t", 0): 50, ("t", 1): 100}


@pytest.mark.skipif(not pyspark.__version__.startswith("4.1."), reason="PySpark has limits")
def test_limits_are_refused_where_spark_asks_for_none() -> None:
    schema = StructType([StructField("value", BinaryType())])
    options = source_options(OPTIONS | {"maxOffsetsPerTrigger": "5"}, streaming=True)
    with pytest.raises(ConfigError, match=r"need PySpark 4\.2 or newer"):
        StreamReader(schema, options)


# -- tasks


class Weights(Sampler):
    """A sampler that knows."""

    def weigh(self, client: Any, row: Slice) -> float:
        return (row.end - row.start) * 1000.0


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 2_000_000)), min_size=1, max_size=6),
    st.integers(1, 9),
    st.none() | st.integers(1000, 10**6),
)
@settings(max_examples=60)
def test_tasks_have_every_offset_once(ranges, least, most) -> None:
    more = {} if most is None else {"maxRecordsPerPartition": str(most)}
    options = source_options(OPTIONS | {"minPartitions": str(least)} | more, streaming=False)
    slices = [Slice("t", "t", at, start, start + size) for at, (start, size) in enumerate(ranges)]
    tasks = plan(slices, options, Weights(), None)  # type: ignore[arg-type]
    pieces = sorted(
        (piece.partition, piece.start, piece.end) for task in tasks for piece in task.slices
    )
    for row in slices:
        found = [piece for piece in pieces if piece[0] == row.partition]
        ends = [row.start, *(end for _part, _start, end in found)]
        assert [start for _part, start, _end in found] == ends[:-1]
        assert ends[-1] == row.end
    total = sum(size for _start, size in ranges)
    assert len(tasks) >= min(least, total)
    if most is not None:
        assert all(end - start <= most for _part, start, end in pieces)


# -- what is gone


@pytest.mark.parametrize(
    ("start", "end", "first", "last", "found"),
    [
        (5, 9, 0, 20, (5, 9)),
        (5, 9, 7, 20, (7, 9)),
        (5, 9, 12, 20, (12, 12)),
        (90, 3, 0, 10, (0, 3)),  # made anew, and only a part of it is due
        (90, 10, 2, 10, (2, 10)),
    ],
)
def test_a_slice_begins_where_the_log_has_something(start, end, first, last, found) -> None:
    row = Slice("t", "t", 0, start, end)
    kept = loss.check_start(row, first, last, fail=False)
    assert (kept.start, kept.end) == found
    if found != (start, end):
        with pytest.raises(OffsetOutOfRange, match="t-0: offset"):
            loss.check_start(row, first, last, fail=True)


# -- offsets and arrays


def test_offsets_are_always_the_same_text() -> None:
    offsets = {("b", 10): 1, ("b", 9): 2, ("a", 0): 3}
    assert list(to_spark(offsets).items()) == [("a", {"0": 3}), ("b", {"9": 2, "10": 1})]
    assert from_spark(to_spark(offsets)) == offsets
    with pytest.raises(OnelogError, match="did not write"):
        from_spark({"a": 5})


def test_lag_is_what_the_end_lacks() -> None:
    source = {"latestOffset": {"t": {"0": 10, "1": 5}}, "endOffset": {"t": {"0": 7}}}
    assert lag({"sources": [source, {"latestOffset": None, "endOffset": {}}]}) == 8


def test_a_time_that_microseconds_cannot_hold_is_null() -> None:
    times = (0, MILLIS_MAX, MILLIS_MAX + 1, -MILLIS_MAX - 1)
    array = time_array(b"".join(time.to_bytes(8, "little", signed=True) for time in times), 4)
    assert array.cast(pa.int64()).to_pylist() == [0, MILLIS_MAX * 1000, None, None]


def test_a_constant_column_grows_and_shrinks() -> None:
    for count in (3, 5000, 2):
        assert constant_array("t", count, pa.string()).to_pylist() == ["t"] * count


# -- the connection's options


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"user": "u", "password": "p"}, ("u", "p", "PLAIN", False)),
        (
            {
                "kafka.security.protocol": "SASL_SSL",
                "kafka.sasl.mechanism": "SCRAM-SHA-512",
                "kafka.sasl.jaas.config": 'x.ScramLoginModule required username="u" password="p";',
            },
            ("u", "p", "SCRAM-SHA-512", True),
        ),
        ({"tls.ca": "ca.pem"}, ("", "", "PLAIN", True)),
        ({"tls.ca": "ca.pem", "tls": "false"}, ("", "", "PLAIN", False)),
    ],
)
def test_the_connection_is_told_in_our_words_or_in_kafkas(options, found) -> None:
    access = access_of(Given({"servers": "h:1"} | options, CONNECTION))
    assert (access.user, access.password, access.mechanism, access.tls) == found


# -- bad answers

READERS = (
    messages.read_metadata, messages.read_list_offsets, messages.read_commit,
    messages.read_committed, messages.read_fetch, messages.read_init_producer,
    messages.read_add_partitions, messages.read_produce, messages.read_end, messages.read_names,
)  # fmt: skip


@given(st.binary(max_size=120) | st.binary(max_size=40).map(lambda data: bytes(12) + data))
@settings(max_examples=300)
def test_an_answer_of_any_bytes_is_read_or_refused(data) -> None:
    for read in READERS:
        with contextlib.suppress(OnelogError):
            read(Reader(data))


class Answers:
    """A broker that answers what it is told to."""

    def __init__(self, *ends: int, log_start: int = 0) -> None:
        self._ends = list(ends)
        self._log_start = log_start

    def fetch(self, _request: bytes, _wait_s: float) -> list[Fetched]:
        return [Fetched("t", 0, 0, self._ends.pop(0), self._log_start, [], memoryview(b""))]

    def fetch_ahead(self, _request: bytes) -> None:
        pass


def test_a_gap_at_the_end_of_the_log_is_the_end_and_records_to_come_are_waited_for() -> None:
    row = Slice("t", "t", 0, 50, 100)
    maker = Maker(source_options(OPTIONS, streaming=False), pa.schema([]), 0, None)
    assert list(read_fetched(Answers(100), [row], maker)) == []
    behind = Answers(*[99] * (EMPTY_TRIES + 1))
    with pytest.raises(Unavailable, match="offsets 50 to 99 do not"):
        list(read_fetched(behind, [row], maker))


def test_records_that_are_late_from_the_object_store_are_no_gap() -> None:
    row = Slice("t", "t", 0, 50, 100)
    maker = Maker(source_options(OPTIONS, streaming=False), pa.schema([]), 0, None)
    late = Answers(*[200] * (EMPTY_TRIES + 1), log_start=-1)
    with pytest.raises(Unavailable, match="offsets 50 to 99 do not"):
        list(read_fetched(late, [row], maker))


def cold_row(base: int, end: int, size: int) -> Row:
    return Row(
        base=base, end=end, log_bytes=size, records=end - base, min_timestamp_ms=0,
        max_timestamp_ms=0, created_ms=0, kind="log", object=f"t/{base}", position=0,
        piece_bytes=size + 128, index_bytes=128, index_crc=0, leader_epoch=0,
    )  # fmt: skip


def test_slices_in_a_store_are_cut_by_bytes_and_carry_only_their_rows() -> None:
    rows = tuple(
        cold_row(at * 1000, at * 1000 + 1000, 10_000 if at < 5 else 90_000) for at in range(10)
    )
    held = InStore(rows, StoreSettings(url="memory://cut"))
    whole = Slice("t", "t", 0, 500, 9_500, held)
    options = source_options(OPTIONS | {"splitBytes": "50000"}, streaming=False)
    tasks = plan([whole], options, Sampler(), None)  # type: ignore[arg-type]
    slices = sorted((one for task in tasks for one in task.slices), key=lambda one: one.start)
    assert [slices[0].start, slices[-1].end] == [500, 9_500]
    assert all(a.end == b.start for a, b in pairwise(slices))
    weights = [one.cold.weight(one.start, one.end) for one in slices if one.cold]
    assert max(weights) < 1.2 * min(weights)
    assert sum(weights) == pytest.approx(held.weight(500, 9_500)) == 450_000
    for one in slices:
        assert one.cold is not None
        assert [row for row in rows if row.base < one.end and row.end > one.start] == [
            *one.cold.rows
        ]
