"""Whatever the bytes and the subscribers, the compiled MQTT path does as the interpreted one (I10).

Each script runs on both. Packets handed out, errors, staged batches, acknowledgements, windows and
the bytes of each subscriber must be equal; only how the bytes are cut into chunks may differ.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.base.errors import OnelogError
from onelog.kernel import pure

native = pytest.importorskip("onelog.kernel._native", exc_type=ImportError)

TOPICS = [b"a", b"a/b", b"a/b/c", b"b", b"$SYS/x", b"\xc3\xa9"]
LIMIT = 600


# -- bytes in


def remaining(size):
    return pure.encode_remaining_length(size)


@st.composite
def publishes(draw):
    """Mostly good PUBLISH packets, some wrong in one way."""
    topic = draw(st.sampled_from([*TOPICS, b"", b"full", b"unknown", b"bad", b"small"]))
    first = 0x30 | draw(st.sampled_from([0, 0, 0, 2, 2, 1, 3, 8, 10, 4, 6]))
    body = draw(st.sampled_from([len(topic)] * 9 + [60_000, len(topic) + 1])).to_bytes(2, "big")
    body += topic
    if first & 6:
        body += draw(st.sampled_from([1, 2, 65_535, 0])).to_bytes(2, "big")
    body += draw(st.sampled_from([b"", b"\0", b"\0", b"\x02\x01\x01"]))
    body += draw(st.binary(max_size=20) | st.integers(0, 300).map(bytes))
    return bytes([first]) + remaining(len(body)) + body


pubacks = st.integers(0, 6).map(lambda n: b"\x40\x02" + n.to_bytes(2, "big"))
others = st.tuples(st.integers(0, 255), st.binary(max_size=8)).map(
    lambda row: bytes([row[0]]) + remaining(len(row[1])) + row[1]
)
junk = st.binary(max_size=12) | st.just(b"\x30\xff\xff\xff\xff\x01") | st.just(b"\x30\xff\x7f")
streams = st.lists(st.one_of(publishes(), publishes(), publishes(), pubacks, others), max_size=25)


class Side:
    """One kernel with one connection."""

    def __init__(self, module, version, publisher):
        self.module = module
        self.dirty = []
        self.output = module.MqttOutput(None, max(version, 4), 4)
        for offset in range(3):
            self.output.take_id(7, offset, 1)
        self.output.take_id(-1, 3, 1)
        self.stages = [
            module.Stage(n, module.BatchBuilder(tag), self.dirty)
            for n, tag in enumerate((True, False))
        ]
        self.routes = {}
        self.failing = False
        self.input = module.MqttInput(self.output, self.routes, self.resolve, LIMIT)
        self.input.version = version
        self.input.publisher = publisher
        self.resolved = []

    def resolve(self, topic):
        self.resolved.append(topic)
        if topic == b"unknown":
            return None
        if topic == b"bad":
            self.failing = not self.failing
            if self.failing:
                raise OnelogError("no")
        limit = 5 if topic == b"small" else 1000
        name = b"rewritten" if topic == b"a/b" else topic
        route = self.module.MqttRoute(name, self.stages[len(topic) % 2], limit)
        if topic != b"b":
            self.routes[topic] = route
        return route

    def feed(self, data, now_ms):
        """All packets handed out, and the error that ended it."""
        rows = []
        try:
            while (packet := self.input.feed(data, now_ms)) is not None:
                rows.append(packet)
                data = b""
        except OnelogError as error:
            rows.append((type(error).__name__, str(error)))
        return rows

    def state(self):
        out = self.output
        return (
            self.input.staged,
            self.input.has_acks,
            self.input.take_acks(),
            out.in_flight(),
            out.room,
            [(stage.owner, stage.number) for stage in self.dirty],
            [
                (stage.builder.topics(), stage.builder.seal(5))
                for stage in self.stages
                if stage.builder.count
            ],
            self.resolved,
        )


@settings(max_examples=400, deadline=None)
@given(
    packets=streams,
    tail=junk,
    cuts=st.lists(st.integers(0, 400), max_size=12),
    version=st.sampled_from([0, 3, 4, 4, 5, 5]),
    publisher=st.sampled_from([b"", b"me", b"x" * 200]),
    clear=st.booleans(),
)
def test_any_stream_in_any_pieces_is_taken_the_same_way(
    packets, tail, cuts, version, publisher, clear
):
    data = b"".join(packets) + tail
    sides = [Side(module, version, publisher) for module in (pure, native)]
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(data[at : at + cut])
        at += cut
    for number, piece in enumerate([*pieces, data[at:], b"", b"\xc0\0"]):
        mine, theirs = (side.feed(piece, 1000 + number) for side in sides)
        assert mine == theirs
        if clear:
            for side in sides:
                side.routes.clear()
    mine, theirs = (side.state() for side in sides)
    assert mine == theirs


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60), st.lists(st.integers(1, 20), max_size=6), st.sampled_from([0, 4, 5]))
def test_noise_is_taken_the_same_way(data, cuts, version):
    sides = [Side(module, version, b"") for module in (pure, native)]
    for cut in [*cuts, len(data)]:
        mine, theirs = (side.feed(data[:cut], 1) for side in sides)
        assert mine == theirs
        data = data[cut:]
    assert sides[0].state() == sides[1].state()


# -- the window


moves = st.one_of(
    st.tuples(st.just("take_id"), st.integers(-2, 3), st.integers(0, 1 << 40), st.integers(1, 2)),
    st.tuples(st.sampled_from(["ack", "settle", "receive"]), st.integers(0, 40)),
    st.tuples(st.just("window"), st.integers(-1, 70)),
    st.tuples(st.just("reconnect"), st.sampled_from([1, 5, 65_530, 65_535])),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(moves, max_size=120), st.integers(0, 60))
def test_any_use_of_the_window_leaves_the_same_in_flight(script, window):
    outputs = [module.MqttOutput(None, 4, window) for module in (pure, native)]
    for name, *args in script:
        if name == "window":
            for output in outputs:
                output.window = args[0]
        elif name == "reconnect":
            for output in outputs:
                output.restore(output.in_flight(), args[0])
        else:
            mine, theirs = (getattr(output, name)(*args) for output in outputs)
            assert mine == theirs
        facts = [
            (output.room, output.pending, output.next_id, output.in_flight()) for output in outputs
        ]
        assert facts[0] == facts[1]


# -- records out


headers = st.lists(
    st.tuples(
        st.sampled_from([b"~q", b"~q", b"~r", b"~nl", b"~t", b"user", b"~ex", b"~qq"]),
        st.sampled_from([b"1", b"1", b"2", b"", b"9", b"me", b"a/b", None]),
    ),
    max_size=3,
)
records = st.tuples(
    st.sampled_from([*TOPICS, None, b"t" * 70_000]),
    st.none() | st.sampled_from([b"k", b"a"]) | st.just(b"same"),
    st.none() | st.binary(max_size=10) | st.integers(0, 3000).map(bytes),
    st.just([]) | st.just([(b"~q", b"1")]) | headers,
)
filters = st.sampled_from([b"#", b"a/#", b"+", b"a/+", b"a", b"a/b", b"b", b"$SYS/x", b"x"])
subscriptions = st.tuples(
    filters,
    st.integers(0, 5),
    st.sampled_from([0, 0, 1, 1, 2]),
    st.sampled_from([b"", b"", b"", b"me"]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([0, 0, 0, 1, 300]),
)
steps = st.one_of(
    st.tuples(st.just("deliver"), st.lists(records, min_size=1, max_size=12), st.integers(0, 15)),
    st.tuples(st.just("deliver"), st.lists(records, min_size=1, max_size=12), st.just(0)),
    st.tuples(st.just("record"), records, st.just(0)),
    st.tuples(st.just("subscribe"), subscriptions, st.just(0)),
    st.tuples(st.just("unsubscribe"), subscriptions, st.just(0)),
    st.tuples(st.just("take"), st.integers(0, 5), st.booleans()),
)


def properties(rows, now_ms):
    """Expired with `~ex` of 9, else something that shows what was given."""
    if (b"~ex", b"9") in rows:
        return None
    return b"P%d" % len(rows) + b"".join(name for name, _ in rows)


class Hub:
    """One kernel with six subscribers; what they were sent so far."""

    def __init__(self, module, versions, windows, limit, aliases=0):
        self.module = module
        self.fanout = module.MqttFanout(properties)
        self.outputs = [
            module.MqttOutput(n, version, windows[n % len(windows)])
            for n, version in enumerate(versions)
        ]
        self.outputs[0].packet_bytes_max = limit
        for output in self.outputs[:3]:
            output.alias_maximum = aliases if output.version == 5 else 0
        self.sent = [b""] * len(versions)
        self.next_offset = 0
        for output in self.outputs[:-1]:
            output.live = True

    def batch(self, rows, attributes=0):
        builder = self.module.BatchBuilder(True)
        for topic, key, value, pairs in rows:
            builder.add(topic, topic if key == b"same" else key, value, tuple(pairs), 1000)
        base, self.next_offset = self.next_offset, self.next_offset + len(rows)
        return builder.seal(base, attributes=attributes)

    def deliver(self, data, start, topic=None):
        return self._names(*self.fanout.deliver(data, 3, start, 1000, topic))

    def record(self, row):
        touched, fallen = [], []
        topic, _, value, pairs = row
        if topic is not None:
            self.fanout.deliver_record(
                topic, value or b"", tuple(pairs), (3, self.next_offset), 1000, touched, fallen
            )
        self.next_offset += 1
        return self._names(0, touched, fallen)

    def _names(self, following, touched, fallen):
        names = [output.owner for output in touched]
        assert len(names) == len(set(names))
        return (
            following,
            sorted(names),
            sorted((output.owner, offset) for output, offset in fallen),
        )

    def take(self, number, again):
        """Write what waits; with `again`, everything is acknowledged and it goes on live."""
        output = self.outputs[number]
        chunks = output.take()
        assert all(type(chunk) is bytes for chunk in chunks)
        self.sent[number] += b"".join(chunks)
        if again:
            for packet_id, *_ in output.in_flight():
                output.ack(packet_id)
            output.live = True

    def state(self):
        for number in range(len(self.outputs)):
            self.take(number, False)
        return self.sent, [
            (output.in_flight(), output.live, output.touched) for output in self.outputs
        ]


def run_step(hub, step):
    name, what, extra = step
    if name == "deliver":
        start = hub.next_offset
        cut = len(what) // 2 + 1
        data = hub.batch(what[:cut])
        if what[cut:]:
            data += hub.batch(what[cut:], attributes=16 if extra == 15 else 0)
        return hub.deliver(data, start + extra, b"a/b" if extra == 7 else None)
    if name == "record":
        return hub.record(what)
    if name == "take":
        return hub.take(what, extra)
    topic_filter, number, *wishes = what
    if name == "unsubscribe":
        return hub.fanout.unsubscribe(topic_filter, hub.outputs[number])
    return hub.fanout.subscribe(topic_filter, hub.outputs[number], *wishes)


@settings(max_examples=400, deadline=None)
@given(
    first=st.lists(subscriptions, min_size=1, max_size=6),
    script=st.lists(steps, max_size=12),
    versions=st.lists(st.sampled_from([3, 4, 5]), min_size=6, max_size=6),
    windows=st.lists(st.sampled_from([0, 1, 3, 1000]), min_size=1, max_size=6),
    limit=st.sampled_from([0, 0, 40]),
    aliases=st.sampled_from([0, 1, 5]),
)
def test_every_subscriber_gets_the_same_bytes(first, script, versions, windows, limit, aliases):
    """I5: and so in the order of the log."""
    hubs = [Hub(module, versions, windows, limit, aliases) for module in (pure, native)]
    for row in first:
        script = [("subscribe", row, 0), *script]
    for step in script:
        mine, theirs = (run_step(hub, step) for hub in hubs)
        assert mine == theirs
        assert len(hubs[0].fanout) == len(hubs[1].fanout)
    assert hubs[0].state() == hubs[1].state()


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(records, min_size=2, max_size=8),
    place=st.integers(0, 400),
    byte=st.integers(0, 255),
)
def test_a_damaged_byte_gives_the_same_answer(rows, place, byte):
    hubs = [Hub(module, [4, 4, 5, 5, 4, 5], [2, 1000], 0) for module in (pure, native)]
    answers = []
    for hub in hubs:
        for number, output in enumerate(hub.outputs):
            hub.fanout.subscribe(b"#", output, number % 3)
        data = bytearray(hub.batch(rows[:1]) + hub.batch(rows[1:]))
        data[place % len(data)] = byte
        try:
            answers.append(hub.deliver(bytes(data), 0))
        except OnelogError as error:
            answers.append((type(error).__name__, str(error)))
        answers.append(hub.state())
    assert answers[:2] == answers[2:]


@settings(max_examples=100, deadline=None)
@given(
    version=st.sampled_from([3, 4, 5]),
    topic=st.binary(max_size=20) | st.just(b"t" * 70_000),
    payload=st.binary(max_size=40) | st.integers(0, 20_000).map(bytes),
    flags=st.integers(0, 15),
    packet_id=st.integers(0, 65_535),
    wishes=st.binary(max_size=150),
)
def test_a_publish_is_encoded_the_same_way(version, topic, payload, flags, packet_id, wishes):
    answers = []
    for module in (pure, native):
        try:
            answers.append(
                module.encode_publish(
                    version, topic, memoryview(payload), flags, packet_id, wishes
                )
            )  # fmt: skip
        except OnelogError as error:
            answers.append((type(error).__name__, str(error)))
    assert answers[0] == answers[1]


@given(
    st.lists(st.tuples(st.integers(1, 65_535), st.integers(0, 5)), max_size=30),
    st.none() | st.dictionaries(st.integers(0, 5), st.integers(128, 160)),
)
def test_acks_are_encoded_the_same_way(rows, failed):
    acks = b"".join(a.to_bytes(2, "big") + b.to_bytes(2, "big") for a, b in rows)
    assert native.encode_acks(acks, failed) == pure.encode_acks(acks, failed)
