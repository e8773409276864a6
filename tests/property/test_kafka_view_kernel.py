"""Whatever the bytes, both kernels show the same of them through a view (I10)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.base.errors import OnelogError
from onelog.kernel import ATTR_TRANSACTIONAL, pure, scan_batches
from onelog.record.batch import build_batch, compress_batch, inflated_records

native = pytest.importorskip("onelog.kernel._native", exc_type=ImportError)

small = st.binary(max_size=30)
topics = st.sampled_from([b"a", b"a/b", b"a/b/c", b"$SYS/x", b"x/y"])
headers = st.lists(st.tuples(small | st.just(b"~t"), st.none() | small), max_size=3).map(tuple)
messages = st.lists(
    st.tuples(topics, st.none() | small | topics, st.none() | small, headers, st.integers(0, 5000)),
    min_size=1,
    max_size=8,
)
filters = st.sampled_from([b"a", b"a/b", b"a/#", b"+/b", b"#", b"+/+"])
aborted = st.lists(st.tuples(st.integers(7, 8), st.integers(0, 10), st.integers(0, 30)), max_size=3)


def both(name, *args):
    answers = []
    for module in (native, pure):
        given_args = [module.TopicFilter(arg.filter) if isinstance(arg, pure.TopicFilter) else arg
                      for arg in args]  # fmt: skip
        try:
            answers.append(getattr(module, name)(*given_args))
        except OnelogError as error:
            answers.append((type(error).__name__, str(error)))
    assert answers[0] == answers[1]
    return answers[1]


@st.composite
def runs(draw):
    data, base = b"", draw(st.integers(0, 5))
    for rows in draw(st.lists(messages, min_size=1, max_size=4)):
        options = {"producer": (7, 0, 0), "attributes": draw(st.sampled_from([0, 8]))}
        options["attributes"] |= draw(st.sampled_from([0, ATTR_TRANSACTIONAL]))
        batch = build_batch(rows, base_offset=base, tag_topics=True, **options)
        keep = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
        data += pure.keep_records(batch, 0, keep) if draw(st.booleans()) else batch
        base += len(rows) + draw(st.integers(0, 2))
    return data


@given(
    runs(), filters, st.integers(0, 30), aborted, st.none() | topics,
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=2),
)  # fmt: skip
def test_both_show_the_same_of_good_and_of_damaged_batches(
    data, text, start, gone, default, damage
):
    spoilt = bytearray(data)
    for at, byte in damage:
        spoilt[at % len(spoilt)] = byte
    both("view_batches", bytes(spoilt), 0, pure.TopicFilter(text), start, gone, default)


@given(messages, filters, st.integers(0, 8), st.integers(0, 60), st.integers(0, 255))
def test_both_show_the_same_of_inflated_records(rows, text, start, at, byte):
    packed = compress_batch(build_batch(rows, tag_topics=True), 1)
    records = bytearray(inflated_records(packed, scan_batches(packed)[0]) or b"")
    wanted = pure.TopicFilter(text)
    both("view_batches", packed, 0, wanted, start, (), None, bytes(records))
    records[at % len(records)] = byte
    both("view_batches", packed, 0, wanted, start, (), None, bytes(records))
    both("view_batches", packed, 0, wanted, start, (), b"a/b", bytes(records))
    both("tag_batch", packed, b"a/b", 5, bytes(records))


@given(messages, topics)
def test_both_tag_alike(rows, topic):
    plain = [(None, *row[1:]) for row in rows]
    both("tag_batch", build_batch(plain, producer=(7, 1, 2)), topic, 5)
