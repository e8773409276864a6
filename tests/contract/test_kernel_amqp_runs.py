"""AMQP's runs by both kernels: publishes of a known route, records for queues, many deliveries."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame

from onelog.base.errors import CorruptBatch
from onelog.kernel import _native
from onelog.kernel import pure as twin
from onelog.kernel.pure.amqp_input import STAGED
from onelog.kernel.pure.amqp_wire import ACK, BODY, FAULT, HEADER, METHOD, PUBLISH
from tests.contract.test_kernel_amqp import LIMIT, NO_PROPERTIES, publish

KERNELS: list[Any] = [twin, _native]
QUEUE = b"\x00\x01q\x00"
"""The names of a publish to the default exchange with key q and no flags."""
HEADERS = ((b"~q", b"1"), (b"empty", None))
NOW_MS = 1_700_000_000_000


def way_in(kernel: Any, *, most: int = 1000, channels: tuple[int, ...] = (1,)) -> Any:
    """An input that knows how publishes with key q go, and their stage."""
    stage = kernel.Stage(SimpleNamespace(), kernel.BatchBuilder(True), [])
    found = kernel.AmqpInput(LIMIT)
    for channel in channels:
        route = kernel.AmqpRoute(b"$q/q", stage, most, HEADERS)
        found.add_route(channel, QUEUE, NO_PROPERTIES, route)
    return found, stage


def records(kernel: Any, stage: Any) -> list[Any]:
    """What lies in a stage."""
    data = stage.builder.seal(0, 0)
    slices = kernel.decode_batch(data, 0, None)
    return [(slices.topic(at), *slices.record(at)) for at in range(len(slices))]


@pytest.mark.parametrize("kernel", KERNELS)
def test_publishes_of_a_route_are_staged_as_one_run(kernel) -> None:
    known, stage = way_in(kernel)
    data = b"".join(publish(1, "", "q", NO_PROPERTIES, b"%d" % n) for n in range(5))
    whole, events = known.take(data, NOW_MS)
    assert (whole, events) == (data, [(STAGED, 1, 5, stage, 0, len(data))])
    assert stage.dirty == [stage]
    assert records(kernel, stage) == [
        (b"$q/q", n, NOW_MS, b"$q/q", b"%d" % n, HEADERS) for n in range(5)
    ]


@pytest.mark.parametrize("kernel", KERNELS)
def test_behind_what_is_the_callers_to_do_nothing_is_staged(kernel) -> None:
    known, stage = way_in(kernel)
    plain = publish(1, "", "q", NO_PROPERTIES, b"x")
    ack = frame.marshal(commands.Basic.Ack(delivery_tag=7), 1)
    declare = frame.marshal(commands.Queue.Declare(queue="q"), 1)
    kinds = [row[0] for row in known.take(plain + ack + plain + declare + plain, NOW_MS)[1]]
    assert kinds == [STAGED, ACK, STAGED, METHOD, PUBLISH]
    other = publish(1, "", "other", NO_PROPERTIES, b"x")
    kinds = [row[0] for row in known.take(plain + other + plain, NOW_MS)[1]]
    assert kinds == [STAGED, PUBLISH, PUBLISH], "the order of a channel's publishes is kept"
    assert len(records(kernel, stage)) == 3
    known.forget()
    assert known.route_count == 0
    assert [row[0] for row in known.take(plain, NOW_MS)[1]] == [PUBLISH]


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_has_no_room_is_the_callers(kernel) -> None:
    known, stage = way_in(kernel, most=10)
    data = publish(1, "", "q", NO_PROPERTIES, b"x" * 11)
    assert [row[0] for row in known.take(data, NOW_MS)[1]] == [PUBLISH]
    known, stage = way_in(kernel, most=10_000)
    long = publish(1, "", "q", NO_PROPERTIES, b"x" * LIMIT)
    assert [row[0] for row in known.take(long, NOW_MS)[1]] == [PUBLISH], "two frames of body"
    stage.builder.add(b"t", b"t", b"x" * (4 * 1024 * 1024), (), NOW_MS)
    plain = publish(1, "", "q", NO_PROPERTIES, b"x")
    assert [row[0] for row in known.take(plain, NOW_MS)[1]] == [PUBLISH], "the stage is full"


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_publish_that_a_read_cut_in_two_is_waited_for(kernel) -> None:
    data = publish(1, "", "q", NO_PROPERTIES, b"x" * 100)
    for cut in range(1, len(data)):
        known, stage = way_in(kernel)
        assert known.take(data[:cut], NOW_MS)[1] == []
        assert [row[0] for row in known.take(data[cut:], NOW_MS)[1]] == [STAGED]
        assert records(kernel, stage)[0][4] == b"x" * 100
    large = publish(1, "", "q", NO_PROPERTIES, b"x" * 100_000)
    known, _stage = way_in(kernel)
    kinds = [row[0] for row in known.take(large[:-1], NOW_MS)[1]]
    assert kinds[:3] == [METHOD, HEADER, BODY], "a large one is told by its frames"


@pytest.mark.parametrize("kernel", KERNELS)
def test_bad_framing_is_the_last_event(kernel) -> None:
    known, stage = way_in(kernel)
    plain = publish(1, "", "q", NO_PROPERTIES, b"x")
    _whole, events = known.take(plain + b"\x07\x00\x01\x00\x00\x00\x00\xce" + plain, NOW_MS)
    assert [row[0] for row in events] == [STAGED, FAULT]
    assert len(records(kernel, stage)) == 1


pieces = st.lists(
    st.one_of(
        st.builds(
            publish,
            st.integers(1, 2),
            st.just(""),
            st.sampled_from(["q", "r"]),
            st.sampled_from([NO_PROPERTIES, b"\x10\x00\x02"]),
            st.binary(max_size=40),
        ),
        st.builds(
            lambda tag: frame.marshal(commands.Basic.Ack(delivery_tag=tag), 1),
            st.integers(0, 99),
        ),
        st.binary(max_size=9),
    ),
    max_size=8,
)


@given(pieces, st.lists(st.integers(1, 60), max_size=12), st.integers(0, 2**32))
def test_both_kernels_take_the_same(parts, sizes, seed) -> None:
    data = bytearray(b"".join(parts))
    rng = random.Random(seed)
    if data and rng.random() < 0.3:
        data[rng.randrange(len(data))] = rng.randrange(256)
    inputs = [way_in(kernel, channels=(1, 2)) for kernel in KERNELS]
    at = 0
    for size in (*sizes, len(data)):
        chunk = bytes(data[at : at + size])
        at += size
        rows = [known.take(chunk, NOW_MS) for known, _stage in inputs]
        shown = [
            (whole, [tuple(row[:3] + row[4:] if row[0] == STAGED else row) for row in events])
            for whole, events in rows
        ]
        assert shown[0] == shown[1]
        if any(row[0] == FAULT for row in rows[0][1]):
            break
    (_known, first), (_same, second) = inputs
    assert first.builder.count == second.builder.count
    if first.builder.count:
        assert first.builder.seal(0, 0) == second.builder.seal(0, 0)


# -- records for queues

TOPICS = (b"a", b"b", b"c")
HEADER_SETS: tuple[tuple[tuple[bytes, bytes | None], ...], ...] = (
    (),
    ((b"~q", b"1"),),
    ((b"~ex", b"12345"),),
    ((b"x", None), (b"~bc", b"[]")),
    ((b"~nq", b"[]"), (b"~ex", b"1")),
)
messages = st.lists(
    st.tuples(st.sampled_from(TOPICS), st.sampled_from(HEADER_SETS), st.booleans()), max_size=12
)


def batch(rows: list[Any], base: int) -> bytes:
    """A batch of messages: topic, headers, whether the key is another than the topic."""
    builder = twin.BatchBuilder(True)
    for topic, headers, is_keyed in rows:
        key = b"k" if is_keyed else topic
        builder.add(topic, key, b"v" * len(rows), headers, NOW_MS)
    return builder.seal(base, 0)


@given(st.lists(messages.filter(len), min_size=1, max_size=3), st.booleans())
def test_runs_are_the_same_by_both_kernels_and_hold_every_record(batches, is_fixed) -> None:
    data, base, expected = b"", 10, []
    queues = {b"a": ("to a",), b"b": False, b"c": None}
    for rows in batches:
        data += batch(rows, base)
        for at, (topic, headers, _keyed) in enumerate(rows):
            target = queues[b"a" if is_fixed else topic]
            more = any(name in (b"~bc", b"~nq") for name, _value in headers)
            if target is not False or more:
                expected.append(base + at)
        base += len(rows)
    answers = []
    for kernel in KERNELS:
        known: dict[bytes, Any] = {}

        def resolve(topic: bytes, known: dict[bytes, Any] = known) -> Any:
            known[topic] = queues[topic]
            return queues[topic]

        answers.append(kernel.topic_runs(data, b"a" if is_fixed else None, known, resolve))
    assert answers[0] == answers[1]
    rows, end = answers[0]
    assert end == base
    assert [first + at for _t, _topic, first, count, _m in rows for at in range(count)] == expected
    assert all(count == 1 for target, _topic, _first, count, marks in rows if marks or not target)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_batch_that_is_not_plain_ends_the_runs(kernel) -> None:
    plain = batch([(b"a", (), False)], 5)
    builder = twin.BatchBuilder(True)
    builder.add(b"a", b"a", b"v", (), NOW_MS)
    special = bytearray(builder.seal(6, 0))
    special[22] |= 16  # transactional
    rows, end = kernel.topic_runs(plain + special, None, {b"a": "q"}, None)
    assert (rows, end) == ([("q", b"a", 5, 1, 0)], 6)


@given(st.lists(st.tuples(st.integers(0, 19), st.booleans(), st.integers(0, 3)), max_size=80))
def test_more_topics_than_are_looked_at_side_by_side_keep_their_targets(rows) -> None:
    builder = twin.BatchBuilder(True)
    for number, is_key, headers in rows:
        topic = b"t/%d" % number
        marks = ((b"~q", b"1"), (b"x", None), (b"~ex", b"9"))[:headers]
        builder.add(topic, topic if is_key else b"key", b"v", marks, NOW_MS)
    data = builder.seal(0, 0) if rows else b""
    answers = [
        kernel.topic_runs(data, None, {b"t/%d" % n: n % 3 and n for n in range(10)}, bool)
        for kernel in KERNELS
    ]
    assert answers[0] == answers[1]


@given(messages.filter(len), st.integers(0, 2**32))
def test_damaged_batches_are_refused_by_both_kernels(rows, seed) -> None:
    data = bytearray(batch(rows, 0))
    data[random.Random(seed).randrange(len(data))] ^= 1 << random.Random(seed + 1).randrange(8)
    answers: list[Any] = []
    for kernel in KERNELS:
        try:
            answers.append(kernel.topic_runs(data, None, {}, lambda topic: topic))
        except CorruptBatch:
            answers.append("damaged")
    assert (answers[0] == "damaged") >= (answers[1] == "damaged")


# -- deliveries


def envelopes(kernel: Any) -> Any:
    """What is known of two topics, with and without a header."""
    found = kernel.AmqpEnvelopes(100_000)
    for topic in TOPICS[:2]:
        for headers in HEADER_SETS[:2]:
            names = b"\x01x" + bytes((len(topic),)) + topic
            found.add(topic, headers, names, b"\x10\x00" + bytes((len(headers),)))
    return found


@pytest.mark.parametrize("kernel", KERNELS)
def test_envelopes_are_bounded_in_bytes_whatever_the_topics_are(kernel) -> None:
    found = kernel.AmqpEnvelopes(1_000_000)
    for number in range(300):
        topic = b"%05d" % number + bytes(65_000 if number % 2 else 10)
        found.add(topic, (), b"\x01x\x01y", b"\x00\x00")
        assert found.held_bytes <= 1_000_000
        assert 0 < len(found) <= 1_000_000 // 256
    again = found.held_bytes
    for _ in range(10):
        found.add(topic, (), b"\x01x\x01y", b"\x00\x00")
        assert found.held_bytes <= again, "what is added again counts once"
    count = len(found)
    found.add(bytes(2_000_000), (), b"", b"")
    assert found.held_bytes <= 1_000_000
    assert len(found) < count + 1


@given(
    st.lists(messages.filter(len), min_size=1, max_size=3),
    st.integers(0, 40),
    st.integers(0, 40),
    st.sampled_from([0, 4096, 16]),
    st.integers(1, 400),
)
def test_deliveries_are_the_same_by_both_kernels(batches, first, count, limit, most) -> None:
    data, base = b"", 10
    for rows in batches:
        data += batch(rows, base)
        base += len(rows)
    answers = [
        kernel.encode_deliveries(
            data, first + 8, count, 3, b"tag", 100, limit, envelopes(kernel), most
        )
        for kernel in KERNELS
    ]
    assert answers[0] == answers[1]
    frames, sent = answers[0]
    tags, used = [], 0
    while used < len(frames):
        size, channel, found = frame.unmarshal(frames[used:])
        assert channel == 3
        used += size
        if isinstance(found, commands.Basic.Deliver):
            tags.append(found.delivery_tag)
    assert tags == list(range(100, 100 + sent))


@given(messages.filter(len), st.integers(0, 2**32))
def test_deliveries_from_damaged_batches_end_and_do_no_harm(rows, seed) -> None:
    data = bytearray(batch(rows, 0))
    rng = random.Random(seed)
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    frames, sent = _native.encode_deliveries(
        data, 0, 50, 3, b"tag", 1, 4096, envelopes(_native), 10_000
    )
    assert sent <= len(rows)
    assert bool(frames) == bool(sent)


@pytest.mark.parametrize("kernel", KERNELS, ids=["twin", "native"])
def test_a_feed_gives_every_run_to_its_queues_in_order_and_then_lets_them_hand_out(kernel) -> None:
    rows = [(b"a", (), False), (b"a", (), False), (b"b", (), False), (b"nobody", (), False)]
    targets = {name: SimpleNamespace(lone=None, name=name) for name in (b"a", b"b")}
    said: list[Any] = []
    feed = kernel.QueueFeed(
        {},
        lambda topic: targets.get(topic, False),
        None,
        lambda source, data, fixed: said.append("open") or ("batches", source.number, fixed),
        lambda batches, run, gone: said.append((batches, run[0].name, *run[2:], gone)),
        lambda batches, end: said.append((batches, end)),
    )
    source = SimpleNamespace(number=7)
    assert feed.deliver(source, batch(rows, 10), None) == 14
    opened = ("batches", 7, None)
    runs = [(opened, b"a", 10, 2, 0, 0), (opened, b"b", 12, 1, 0, 0)]
    assert said == ["open", *runs, (opened, 14)]
    assert feed.deliver(source, batch(rows[3:], 14), None) == 15
    assert len(said) == 4, "nothing is opened for records that no queue takes"
