"""What both kernels promise about MQTT's hot path: packets to records, records to packets."""

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import (
    CorruptBatch,
    InvalidRequest,
    LimitExceeded,
    MessageTooLarge,
    ProtocolViolation,
)


@pytest.fixture(params=["pure", "_native"])
def kernel(request):
    """The kernel, interpreted and compiled; skipped where it was not built."""
    return pytest.importorskip(f"onelog.kernel.{request.param}", exc_type=ImportError)


class Connection:
    """A connection whose topics all go to one stage, and what `resolve` was asked."""

    def __init__(self, kernel, version=4, limit=1 << 20, value_bytes_max=1 << 20):
        self.kernel = kernel
        self.dirty = []
        self.builder = kernel.BatchBuilder(True)
        self.stage = kernel.Stage("owner", self.builder, self.dirty)
        self.output = kernel.MqttOutput("peer", version, 10)
        self.routes = {}
        self.asked = []
        self.value_bytes_max = value_bytes_max
        self.input = kernel.MqttInput(self.output, self.routes, self.resolve, limit)
        self.input.version = version

    def resolve(self, topic):
        self.asked.append(topic)
        route = self.kernel.MqttRoute(topic, self.stage, self.value_bytes_max)
        self.routes[topic] = route
        return route

    def feed(self, data):
        return self.input.feed(data, 1000)

    def records(self):
        """(key, value, headers) of what was staged."""
        slices = self.kernel.decode_batch(self.builder.seal(0))
        return [record[2:] for record in slices.records()]


def publish(kernel, topic, value, flags=0, packet_id=0, version=4):
    return kernel.encode_publish(version, topic, value, flags, packet_id)


# -- bytes in


def test_a_read_of_plain_publishes_is_staged_in_one_call(kernel):
    peer = Connection(kernel)
    data = b"".join(publish(kernel, b"a/b", b"%d" % n) for n in range(50))
    assert peer.feed(data) is None
    assert peer.input.staged == 50
    assert peer.dirty == [peer.stage]
    assert peer.stage.number == 0
    assert peer.asked == [b"a/b"]
    assert peer.records() == [(b"a/b", b"%d" % n, ()) for n in range(50)]
    assert not peer.input.has_acks


@pytest.mark.parametrize("version", [3, 4, 5])
def test_qos_retain_and_publisher_become_headers_in_that_order(kernel, version):
    peer = Connection(kernel, version)
    peer.input.publisher = b"me"
    flags = [0, 1, 2, 3]
    for number, flag in enumerate(flags):
        assert peer.feed(publish(kernel, b"t", b"v", flag, number + 1, version)) is None
    q, r, nl = (b"~q", b"1"), (b"~r", b"1"), (b"~nl", b"me")
    assert [row[2] for row in peer.records()] == [(nl,), (r, nl), (q, nl), (q, r, nl)]
    peer.input.publisher = b""
    for number, flag in enumerate(flags):
        peer.feed(publish(kernel, b"t", b"v", flag, number + 1, version))
    assert [row[2] for row in peer.records()] == [(), (r,), (q,), (q, r)]


def test_a_stream_cut_anywhere_gives_the_same_records(kernel):
    data = b"".join(publish(kernel, b"t", b"x" * n, 2, n + 1) for n in (0, 1, 130, 5))
    for cut in range(len(data) + 1):
        peer = Connection(kernel)
        assert peer.feed(data[:cut]) is None
        assert peer.feed(data[cut:]) is None
        assert [row[1] for row in peer.records()] == [b"x" * n for n in (0, 1, 130, 5)]
    peer = Connection(kernel)
    for at in range(len(data)):
        assert peer.feed(data[at : at + 1]) is None
    assert peer.input.staged == 4


def test_any_other_packet_is_handed_out_and_nothing_overtakes_it(kernel):
    peer = Connection(kernel)
    ping, plain = b"\xc0\0", publish(kernel, b"t", b"v")
    assert peer.feed(plain + ping + plain + ping) == (0xC0, b"")
    assert peer.input.staged == 1
    assert peer.feed(b"") == (0xC0, b"")
    assert peer.input.staged == 2
    assert peer.feed(b"") is None


def test_bytes_that_come_before_all_was_drained_queue_up_behind(kernel):
    peer = Connection(kernel)
    assert peer.feed(b"\xc0\0\xe0\0") == (0xC0, b"")
    assert peer.feed(b"\xd0") == (0xE0, b"")
    assert peer.feed(b"\0") == (0xD0, b"")
    assert peer.feed(b"") is None


def test_before_connect_every_packet_is_the_callers(kernel):
    peer = Connection(kernel)
    peer.input.version = 0
    plain = publish(kernel, b"t", b"v")
    assert peer.feed(plain) == (0x30, plain[2:])
    assert peer.feed(b"\x40\x02\0\x01") == (0x40, b"\0\x01")
    assert peer.input.staged == 0


@pytest.mark.parametrize(
    ("version", "packet"),
    [
        (4, b"\x34\x06\0\x01t\0\x01v"),  # QoS 2
        (4, b"\x36\x06\0\x01t\0\x01v"),  # QoS 3
        (4, b"\x38\x04\0\x01tv"),  # DUP with QoS 0
        (4, b"\x30\x01\0"),  # no topic length
        (4, b"\x30\x02\0\0"),  # empty topic
        (4, b"\x30\x04\0\x05tv"),  # the topic runs past the packet
        (4, b"\x32\x04\0\x01t\0"),  # packet id cut
        (4, b"\x32\x05\0\x01t\0\0"),  # packet id 0
        (5, b"\x30\x03\0\x01t"),  # no property length
        (5, b"\x30\x06\0\x01t\x02\x01\x01"),  # properties
        (4, b"\x40\x02\0\0"),  # PUBACK of 0
        (5, b"\x40\x03\0\x01\x10"),  # PUBACK with a reason
        (4, b"\x42\x02\0\x01"),  # PUBACK with flags
    ],
)
def test_what_is_not_plain_is_handed_out_as_it_came(kernel, version, packet):
    peer = Connection(kernel, version)
    assert peer.feed(packet) == (packet[0], packet[2:])
    assert peer.input.staged == 0


def test_a_topic_without_a_route_is_handed_out_each_time(kernel):
    peer = Connection(kernel)
    peer.input = kernel.MqttInput(peer.output, {}, peer.asked.append, 1000)
    peer.input.version = 4
    plain = publish(kernel, b"t", b"v")
    assert peer.feed(plain + plain) == (0x30, plain[2:])
    assert peer.feed(b"") == (0x30, plain[2:])
    assert peer.asked == [b"t", b"t"]


def test_a_value_larger_than_the_route_takes_is_handed_out(kernel):
    peer = Connection(kernel, value_bytes_max=5)
    assert peer.feed(publish(kernel, b"t", b"12345")) is None
    assert peer.feed(publish(kernel, b"t", b"123456"))[0] == 0x30


def test_routes_that_change_between_two_reads_are_seen(kernel):
    peer = Connection(kernel)
    peer.feed(publish(kernel, b"t", b"1"))
    peer.routes[b"t"] = kernel.MqttRoute(b"moved", peer.stage, 100)
    peer.feed(publish(kernel, b"t", b"2"))
    assert [row[0] for row in peer.records()] == [b"t", b"moved"]


def test_a_packet_comes_again_when_resolve_raises(kernel):
    peer = Connection(kernel)
    fine = peer.resolve

    def broken(topic):
        raise LimitExceeded("not now")

    peer.input.resolve = broken
    data = publish(kernel, b"t", b"v", 2, 9)
    for piece in (data, data[:3]):
        with pytest.raises(LimitExceeded):
            peer.feed(piece)
    with pytest.raises(LimitExceeded):
        peer.feed(data[3:])
    peer.input.resolve = fine
    assert peer.feed(b"") is None
    assert peer.input.staged == 2
    assert peer.input.take_acks() == b"\0\x09\0\0" * 2


def test_resolve_may_not_feed_its_connection(kernel):
    peer = Connection(kernel)
    peer.input.resolve = lambda _topic: peer.feed(b"\xc0\0")
    with pytest.raises(InvalidRequest, match="being fed"):
        peer.feed(publish(kernel, b"t", b"v"))


def test_what_a_full_builder_refuses_is_handed_out_and_not_lost(kernel):
    peer = Connection(kernel, limit=1 << 28, value_bytes_max=1 << 28)
    peer.builder.add(b"big", b"big", bytes((64 << 20) - 300), (), 1)
    big = publish(kernel, b"t", bytes(400), 2, 1)
    assert peer.feed(big) == (0x32, big[3:])
    assert not peer.input.has_acks
    assert peer.feed(publish(kernel, b"t", b"v")) is None


def test_a_claimed_size_above_the_limit_is_refused_before_it_comes(kernel):
    """I8: the peer cannot make the broker wait for, or hold, more than a packet's limit."""
    peer = Connection(kernel, limit=200)
    assert peer.feed(b"\x30" + kernel.encode_remaining_length(197)) is None
    peer = Connection(kernel, limit=200)
    for piece in (b"\x30\xff\xff", b"\x7f", b""):
        if piece == b"\x30\xff\xff":
            assert peer.feed(piece) is None
            continue
        with pytest.raises(MessageTooLarge, match="a packet of 2097155 bytes is larger than 200"):
            peer.feed(piece)


def test_a_length_of_five_bytes_is_malformed(kernel):
    peer = Connection(kernel)
    for piece in (b"\x30\xff\xff\xff", b"\xff", b""):
        if piece == b"\x30\xff\xff\xff":
            assert peer.feed(piece) is None
            continue
        with pytest.raises(ProtocolViolation, match="more than four bytes"):
            peer.feed(piece)


def test_pubacks_free_the_window(kernel):
    peer = Connection(kernel)
    assert [peer.output.take_id(0, n, 1) for n in range(4)] == [1, 2, 3, 4]
    assert peer.feed(b"\x40\x02\0\x02\x40\x02\0\x09\x40\x02\0\x01") is None
    assert [row[0] for row in peer.output.in_flight()] == [3, 4]


def test_the_puback_of_what_the_caller_settles_is_handed_out(kernel):
    peer = Connection(kernel)
    assert peer.output.take_id(-1, 77, 1) == 1
    assert peer.feed(b"\x40\x02\0\x01") == (0x40, b"\0\x01")
    assert peer.output.pending == 1
    assert peer.output.ack(1)


def test_acks_name_their_stage_and_failed_stages_get_their_reason(kernel):
    peer = Connection(kernel)
    other = kernel.Stage(None, kernel.BatchBuilder(True), peer.dirty)
    peer.routes[b"u"] = kernel.MqttRoute(b"u", other, 100)
    peer.feed(publish(kernel, b"t", b"", 2, 5) + publish(kernel, b"u", b"", 2, 65_535))
    assert peer.input.has_acks
    acks = peer.input.take_acks()
    assert not peer.input.has_acks
    assert peer.input.take_acks() == b""
    assert kernel.encode_acks(acks) == b"\x40\x02\0\x05\x40\x02\xff\xff"
    assert kernel.encode_acks(acks, {1: 0x97}) == b"\x40\x02\0\x05\x40\x03\xff\xff\x97"
    assert kernel.encode_acks(b"", {1: 0x97}) == b""


def test_a_publish_too_many_that_waits_for_its_answer_is_handed_out(kernel):
    """MQTT5 4.9: whoever has the last word counts the others in."""
    peer = Connection(kernel)
    peer.input.receive_maximum = 3
    peer.input.unanswered = 1
    data = [publish(kernel, b"t", b"v", 2, number) for number in (1, 2, 3)]
    assert peer.feed(b"".join(data)) == (0x32, data[2][2:])
    assert (peer.input.staged, peer.input.unanswered) == (2, 3)
    assert peer.feed(publish(kernel, b"t", b"v")) is None
    acks = peer.input.take_acks()
    assert peer.input.unanswered == 3
    assert peer.input.answer(acks, {0: 0x97}) == b"\x40\x03\0\x01\x97\x40\x03\0\x02\x97"
    assert peer.input.unanswered == 1
    assert peer.feed(data[2]) is None
    assert peer.input.answer(peer.input.take_acks()) == b"\x40\x02\0\x03"


def test_the_list_of_dirty_stages_holds_a_stage_once(kernel):
    dirty = []
    stages = [kernel.Stage(n, kernel.BatchBuilder(True), dirty) for n in range(2)]
    for stage in (stages[1], stages[0], stages[1]):
        stage.touch()
    assert [(stage.owner, stage.number) for stage in dirty] == [(1, 0), (0, 1)]


# -- the window


def test_packet_ids_wrap_and_skip_what_is_in_flight(kernel):
    output = kernel.MqttOutput(None, 4, 70_000)
    output.restore([(65_535, 0, 1, 1, 0), (1, 0, 2, 1, 0)], 65_534)
    assert [output.take_id(0, n, 1) for n in range(3)] == [65_534, 2, 3]
    assert output.room == 65_535 - 5
    assert output.next_id == 4
    assert [row[0] for row in output.in_flight()] == [65_535, 1, 65_534, 2, 3]


def test_all_packet_ids_can_be_in_flight_at_once(kernel):
    output = kernel.MqttOutput(None, 4, 1 << 40)
    assert {output.take_id(0, n, 1) for n in range(65_535)} == set(range(1, 65_536))
    assert output.take_id(0, 1, 1) == 0
    assert output.room == 0
    assert output.ack(40_000)
    assert output.take_id(0, 99, 1) == 40_000
    assert output.in_flight()[-1] == (40_000, 0, 99, 1, 0)
    for packet_id in range(65_535, 0, -1):
        assert output.ack(packet_id)
    assert output.pending == 0


def test_qos_2_is_received_before_it_is_done(kernel):
    output = kernel.MqttOutput(None, 4, 10)
    output.take_id(3, 100, 2)
    output.take_id(3, 101, 1)
    assert output.receive(1)
    assert output.receive(1)
    assert not output.receive(2)
    assert not output.receive(9)
    assert output.in_flight() == [(1, 3, 100, 2, 1), (2, 3, 101, 1, 0)]
    assert output.ack(1)
    assert not output.ack(1)


@pytest.mark.parametrize(("rows", "next_id"), [([(0, 0, 0, 1, 0)], 1), ([], 0), ([], 65_536)])
def test_only_packet_ids_are_restored(kernel, rows, next_id):
    output = kernel.MqttOutput(None, 4, 10)
    output.take_id(0, 0, 1)
    with pytest.raises(InvalidRequest, match="is no packet id"):
        output.restore(rows, next_id)
    assert output.pending == 1


# -- records out


class Hub:
    """A fan-out and its subscribers."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.calls = []
        self.fanout = kernel.MqttFanout(self.properties)

    def properties(self, headers, now_ms):
        self.calls.append((headers, now_ms))
        return None if headers[0][1] == b"expired" else b"\x02" + headers[0][1]

    def subscriber(self, topic_filter, qos=0, version=4, window=100, **wishes):
        output = self.kernel.MqttOutput(None, version, window)
        output.live = True
        output.packet_bytes_max = wishes.pop("packet_bytes_max", 0)
        output.alias_maximum = wishes.pop("alias_maximum", 0)
        assert self.fanout.subscribe(topic_filter, output, qos, **wishes)
        return output

    def batch(self, *rows, base=0, attributes=0):
        builder = self.kernel.BatchBuilder(True)
        for topic, value, *headers in rows:
            builder.add(topic, topic, value, tuple(headers), 1000)
        return builder.seal(base, attributes=attributes)

    def deliver(self, data, start=0, topic=None):
        return self.fanout.deliver(data, 7, start, 5000, topic)


Q1, Q2, RETAIN = (b"~q", b"1"), (b"~q", b"2"), (b"~r", b"1")


def sent(output):
    return b"".join(output.take())


def test_qos_0_packets_are_one_object_for_all_plain_subscribers(kernel):
    hub = Hub(kernel)
    old = [hub.subscriber(b"a/#", version=version) for version in (3, 4, 4)]
    new = [hub.subscriber(b"#", version=5, qos=qos) for qos in (0, 1)]
    data = hub.batch(*[(b"a/b", b"x" * 300) for _ in range(10)])
    following, touched, fallen = hub.deliver(data)
    assert following == 10
    assert fallen == []
    assert {id(output) for output in touched} == {id(output) for output in old + new}
    chunks = [output.take() for output in old]
    assert b"".join(chunks[0]) == 10 * kernel.encode_publish(4, b"a/b", b"x" * 300, 0)
    assert chunks[0] == chunks[1] == chunks[2]
    assert [sent(output) for output in new] == [
        10 * kernel.encode_publish(5, b"a/b", b"x" * 300, 0)
    ] * 2


def test_the_compiled_kernel_shares_the_object_itself():
    native = pytest.importorskip("onelog.kernel._native", exc_type=ImportError)
    hub = Hub(native)
    outputs = [hub.subscriber(b"a/#") for _ in range(3)]
    hub.deliver(hub.batch((b"a/b", bytes(5000)), (b"a/c", bytes(5000))))
    (first,), (second,), (third,) = (output.take() for output in outputs)
    assert first is second is third


def test_the_order_is_that_of_the_log_whatever_the_qos_of_each_record(kernel):
    """I5."""
    hub = Hub(kernel)
    outputs = [hub.subscriber(b"#", qos) for qos in (0, 1, 1, 2, 2)]
    rows = [(b"t", b"%d" % n, *((), (Q1,), (Q2,), ())[n % 4]) for n in range(40)]
    hub.deliver(hub.batch(*rows))
    for most, output in zip((0, 1, 1, 2, 2), outputs, strict=True):
        packet_id, expected = 0, b""
        for n in range(40):
            qos = min(most, (0, 1, 2, 0)[n % 4])
            packet_id += qos > 0
            expected += kernel.encode_publish(4, b"t", b"%d" % n, qos << 1, packet_id)
        assert sent(output) == expected
        assert output.pending == packet_id


def test_a_full_window_falls_behind_at_the_first_record_that_does_not_fit(kernel):
    hub = Hub(kernel)
    outputs = [hub.subscriber(b"t", 1, window=window) for window in (0, 2, 3, 100)]
    data = hub.batch(*[(b"t", b"%d" % n, Q1) for n in range(3)], base=50)
    following, touched, fallen = hub.deliver(data, 50)
    assert following == 53
    assert sorted(offset for _, offset in fallen) == [50, 52]
    assert {id(output) for output, _ in fallen} == {id(output) for output in outputs[:2]}
    assert {id(output) for output in touched} == {id(output) for output in outputs[1:]}
    assert [output.live for output in outputs] == [False, False, True, True]
    assert [output.pending for output in outputs] == [0, 2, 3, 3]
    assert outputs[1].in_flight() == [(1, 7, 50, 1, 0), (2, 7, 51, 1, 0)]
    assert sent(outputs[1]) == b"".join(
        kernel.encode_publish(4, b"t", b"%d" % n, 2, n + 1) for n in range(2)
    )
    outputs[1].ack(1)
    hub.deliver(hub.batch((b"t", b"later"), base=53), 53)
    assert outputs[1].take() == []


def test_a_subscriber_that_keeps_its_state_falls_behind_at_qos_2(kernel):
    hub = Hub(kernel)
    outputs = [hub.subscriber(b"t", 2) for _ in range(2)]
    outputs[0].kept = True
    rows = [(b"t", b"0"), (b"t", b"1", Q1), (b"t", b"2", Q2), (b"t", b"3", Q1)]
    _following, _touched, fallen = hub.deliver(hub.batch(*rows, base=50), 50)
    assert fallen == [(outputs[0], 52)]
    assert [output.live for output in outputs] == [False, True]
    assert outputs[0].in_flight() == [(1, 7, 51, 1, 0)]
    assert outputs[1].pending == 3


def test_every_message_that_a_subscriber_gets_is_counted(kernel):
    hub = Hub(kernel)
    for version in (4, 5):
        for qos in (0, 0, 1, 1, 2):
            hub.subscriber(b"t", qos, version=version)
    hub.subscriber(b"t", 1, window=1)
    hub.subscriber(b"t", 1, version=5, identifier=7)
    written = []
    single = hub.subscriber(b"only", 0)
    single.writer = written.append
    hub.deliver(hub.batch((b"t", b"0"), (b"t", b"1", Q1), (b"t", b"2", Q2), (b"only", b"3")))
    assert hub.fanout.delivered == 12 + 12 + 11 + 1
    assert hub.fanout.sent_bytes == sum(map(len, written)) > 0


def test_overlapping_subscriptions_deliver_once_with_every_identifier(kernel):
    hub = Hub(kernel)
    output = hub.subscriber(b"a/#", 0, version=5, identifier=200)
    hub.fanout.subscribe(b"a/+", output, 2, identifier=3)
    hub.fanout.subscribe(b"+/b", output, 1)
    assert len(hub.fanout) == 3
    hub.deliver(hub.batch((b"a/b", b"v", Q2)))
    wishes = b"\x0b\x03\x0b\xc8\x01"
    assert sent(output) == kernel.encode_publish(5, b"a/b", b"v", 4, 1, wishes)


def test_no_local_keeps_a_publishers_own_messages_from_it(kernel):
    hub = Hub(kernel)
    own = hub.subscriber(b"#", version=5, no_local=b"me")
    both = hub.subscriber(b"#", version=5, no_local=b"me")
    hub.fanout.subscribe(b"t", both, 0)
    hub.deliver(hub.batch((b"t", b"1", (b"~nl", b"me")), (b"t", b"2", (b"~nl", b"you"))))
    packets = [kernel.encode_publish(5, b"t", value, 0) for value in (b"1", b"2")]
    assert sent(own) == packets[1]
    assert sent(both) == packets[0] + packets[1]


def test_retain_is_shown_only_to_those_who_asked(kernel):
    hub = Hub(kernel)
    asked = hub.subscriber(b"t", 1, version=5, retain_as_published=True)
    plain = hub.subscriber(b"t", 1, version=5)
    hub.deliver(hub.batch((b"t", b"v", Q1, RETAIN)))
    assert sent(asked)[0] == 0x33
    assert sent(plain)[0] == 0x32


def test_an_owner_that_may_not_have_a_topic_does_not_get_it(kernel):
    """Asked once per topic; the others go on as if it had not subscribed."""
    asked, refused = [], {("b", b"t/2")}

    def allows(owner, topic):
        asked.append((owner, topic))
        return (owner, topic) not in refused

    hub = Hub(kernel)
    hub.fanout = kernel.MqttFanout(hub.properties, allows)
    first, second = hub.subscriber(b"t/+"), hub.subscriber(b"t/#")
    first.owner, second.owner = "a", "b"
    rows = [(b"t/1", b"1"), (b"t/2", b"2"), (b"t/2", b"3"), (b"t/1", b"4")]

    def packets(*rows):
        return b"".join(kernel.encode_publish(4, topic, value, 0) for topic, value in rows)

    hub.deliver(hub.batch(*rows))
    assert sent(first) == packets(*rows)
    assert sent(second) == packets(rows[0], rows[3])
    assert sorted(asked) == [("a", b"t/1"), ("a", b"t/2"), ("b", b"t/1"), ("b", b"t/2")]
    refused.clear()
    hub.deliver(hub.batch(rows[1], base=4), 4)
    assert sent(second) == b""
    hub.fanout.forget_plans()
    hub.deliver(hub.batch(rows[1], base=5), 5)
    assert sent(second) == packets(rows[1])
    assert sent(first) == 2 * packets(rows[1])


def test_properties_are_made_once_per_record_and_none_is_expired(kernel):
    hub = Hub(kernel)
    new = [hub.subscriber(b"t", 1, version=5) for _ in range(3)]
    old = hub.subscriber(b"t")
    rows = [(b"t", b"1", (b"x", b"p"), Q1), (b"t", b"2", (b"x", b"expired")), (b"t", b"3")]
    hub.deliver(hub.batch(*rows))
    assert hub.calls == [(((b"x", b"p"), Q1), 5000), (((b"x", b"expired"),), 5000)]
    expected = kernel.encode_publish(5, b"t", b"1", 2, 1, b"\x02p")
    expected += kernel.encode_publish(5, b"t", b"3", 0)
    assert [sent(output) for output in new] == [expected] * 3
    assert sent(old) == b"".join(kernel.encode_publish(4, b"t", v, 0) for v in (b"1", b"3"))


def test_subscribing_from_within_properties_takes_effect_with_the_next_record(kernel):
    hub = Hub(kernel)
    first, late = hub.subscriber(b"t"), kernel.MqttOutput(None, 4, 10)
    late.live = True

    def properties(_headers, _now_ms):
        hub.fanout.subscribe(b"t", late, 0)
        hub.fanout.unsubscribe(b"t", first)
        return b""

    hub.fanout = kernel.MqttFanout(properties)
    hub.fanout.subscribe(b"t", first, 0)
    hub.deliver(hub.batch((b"t", b"1"), (b"t", b"2", (b"x", b"")), (b"t", b"3")))
    assert sent(first) == b"".join(kernel.encode_publish(4, b"t", v, 0) for v in (b"1", b"2"))
    assert sent(late) == kernel.encode_publish(4, b"t", b"3", 0)


def test_a_packet_above_the_peers_limit_is_dropped_and_takes_no_id(kernel):
    """MQTT-3.1.2-24, MQTT-3.1.2-25."""
    hub = Hub(kernel)
    size = len(kernel.encode_publish(5, b"t", b"12345", 2, 1))
    output = hub.subscriber(b"t", 1, version=5, packet_bytes_max=size)
    hub.deliver(hub.batch((b"t", b"123456", Q1), (b"t", b"12345", Q1)))
    assert sent(output) == kernel.encode_publish(5, b"t", b"12345", 2, 1)
    assert output.live


def alias(number):
    return b"\x23" + number.to_bytes(2, "big")


def test_a_subscriber_with_aliases_gets_each_topic_once_and_then_its_alias(kernel):
    """MQTT5 3.3.2.3.4: the first topics have them; others, and other subscribers, have none."""
    hub = Hub(kernel)
    named = hub.subscriber(b"#", 1, version=5, alias_maximum=2)
    plain = hub.subscriber(b"#", 1, version=5)
    rows = [(b"long/a", b"0"), (b"long/a", b"1", Q1), (b"long/b", b"2"), (b"long/c", b"3", Q1)]
    hub.deliver(hub.batch(*rows, (b"long/b", b"4"), (b"long/c", b"5")))
    encode = kernel.encode_publish
    assert sent(named) == b"".join(
        (
            encode(5, b"long/a", b"0", 0, 0, alias(1)),
            encode(5, b"", b"1", 2, 1, alias(1)),
            encode(5, b"long/b", b"2", 0, 0, alias(2)),
            encode(5, b"long/c", b"3", 2, 2),
            encode(5, b"", b"4", 0, 0, alias(2)),
            encode(5, b"long/c", b"5", 0),
        )
    )
    assert sent(plain) == b"".join(
        encode(5, topic, value, bool(qos) << 1, packet_id)
        for topic, value, qos, packet_id in (
            (b"long/a", b"0", 0, 0), (b"long/a", b"1", 1, 1), (b"long/b", b"2", 0, 0),
            (b"long/c", b"3", 1, 2), (b"long/b", b"4", 0, 0), (b"long/c", b"5", 0, 0),
        )
    )  # fmt: skip
    assert [named.alias_of(topic) for topic in (b"long/a", b"long/b", b"long/c")] == [1, 2, 0]
    assert named.next_alias(b"long/c") == 0


def test_an_alias_that_was_not_sent_is_not_known(kernel):
    """A record that fell behind or was too large has told the subscriber nothing."""
    hub = Hub(kernel)
    full = hub.subscriber(b"#", 1, version=5, window=0, alias_maximum=5)
    small = hub.subscriber(b"#", version=5, packet_bytes_max=20, alias_maximum=5)
    # 2 + 2 + 6 + 1 and the value: 19 bytes, and 22 with an alias.
    hub.deliver(hub.batch((b"long/a", bytes(30), Q1), (b"long/a", b"12345678"), (b"abc", b"x")))
    assert (full.alias_of(b"long/a"), small.alias_of(b"long/a")) == (0, 0)
    assert sent(full) == b""
    assert sent(small) == kernel.encode_publish(5, b"long/a", b"12345678", 0) + (
        kernel.encode_publish(5, b"abc", b"x", 0)  # too short to gain
    )
    hub.deliver(hub.batch((b"long/a", b"1"), (b"long/a", b"12345678"), base=3), 3)
    assert sent(small) == kernel.encode_publish(5, b"long/a", b"1", 0, 0, alias(1)) + (
        kernel.encode_publish(5, b"", b"12345678", 0, 0, alias(1))
    )


def test_an_alias_stands_beside_the_other_properties(kernel):
    hub = Hub(kernel)
    named = hub.subscriber(b"#", version=5, identifier=7, alias_maximum=5)
    rows = [(b"long/a", b"v", (b"x", b"1234"))] * 2
    hub.deliver(hub.batch(*rows))
    properties = alias(1) + b"\x0b\x07" + b"\x021234"
    assert sent(named) == kernel.encode_publish(5, b"long/a", b"v", 0, 0, properties) + (
        kernel.encode_publish(5, b"", b"v", 0, 0, properties)
    )


def test_a_replaced_subscription_counts_and_a_removed_one_does_not(kernel):
    hub = Hub(kernel)
    output, other = hub.subscriber(b"t", 0), hub.subscriber(b"t/#", 0)
    data = hub.batch((b"t", b"v", Q1))
    hub.deliver(data)
    assert sent(output)[0] == 0x30
    assert not hub.fanout.subscribe(b"t", output, 1)
    hub.deliver(data)
    assert sent(output)[0] == 0x32
    assert hub.fanout.unsubscribe(b"t", output)
    assert not hub.fanout.unsubscribe(b"t", output)
    assert not hub.fanout.unsubscribe(b"t/#", output)
    other.take()
    assert hub.deliver(data)[1] == [other]
    assert len(hub.fanout) == 1
    with pytest.raises(InvalidRequest):
        hub.fanout.subscribe(b"a/#/b", output, 0)
    assert len(hub.fanout) == 1


def test_batches_that_are_not_plain_are_the_callers(kernel):
    hub = Hub(kernel)
    output = hub.subscriber(b"#")
    for attributes in (1, 16, 32):
        data = hub.batch((b"t", b"1")) + hub.batch((b"t", b"2"), base=5, attributes=attributes)
        assert hub.deliver(data)[0] == 5
        assert hub.deliver(data, 2)[:2] == (5, [])
        assert sent(output) == kernel.encode_publish(4, b"t", b"1", 0)


def test_delivery_begins_at_the_offset_asked_for(kernel):
    hub = Hub(kernel)
    output = hub.subscriber(b"#")
    data = hub.batch((b"t", b"0"), (b"t", b"1")) + hub.batch((b"t", b"2"), base=2)
    for start in range(4):
        following, touched, _ = hub.deliver(data, start)
        assert following == 3
        assert bool(touched) is (start < 3)
        assert sent(output) == b"".join(
            kernel.encode_publish(4, b"t", b"%d" % n, 0) for n in range(start, 3)
        )


def test_a_stream_of_one_topic_names_it_for_all_records(kernel):
    hub = Hub(kernel)
    output = hub.subscriber(b"orders")
    hub.deliver(hub.batch((b"key", b"v")), topic=b"orders")
    assert sent(output) == kernel.encode_publish(4, b"orders", b"v", 0)


def test_damage_raises_first_and_ends_the_answer_later(kernel):
    hub = Hub(kernel)
    output = hub.subscriber(b"#")
    good, bad = hub.batch((b"t", b"v")), bytearray(hub.batch((b"t", b"w"), base=1))
    bad[61] = 3  # the record's length
    assert hub.deliver(good + bad) == (1, [output], [])
    assert sent(output) == kernel.encode_publish(4, b"t", b"v", 0)
    with pytest.raises(CorruptBatch):
        hub.deliver(good + bad, 1)
    with pytest.raises(CorruptBatch):
        hub.deliver(good + good[:-1])
    assert output.take() == []


def test_foreign_reserved_headers_break_nobody(kernel):
    hub = Hub(kernel)
    output = hub.subscriber(b"#", 2)
    rows = [(b"t", b"v", (b"~q", value)) for value in (b"", None, b"x", b"3", b"11")]
    hub.deliver(hub.batch(*rows, (b"k" * 70_000, b"v")))
    assert sent(output) == 5 * kernel.encode_publish(4, b"t", b"v", 0)


def test_one_record_is_delivered_as_a_batch_would_be(kernel):
    hub = Hub(kernel)
    outputs = [hub.subscriber(b"t", 1, window=1) for _ in range(2)]
    touched, fallen = [], []
    for offset in (8, 9):
        hub.fanout.deliver_record(b"t", b"v", (Q1,), (7, offset), 5000, touched, fallen)
    assert {id(output) for output in touched} == {id(output) for output in outputs}
    assert len(touched) == 2
    assert [offset for _, offset in fallen] == [9, 9]
    assert sent(outputs[0]) == kernel.encode_publish(4, b"t", b"v", 2, 1)
    assert outputs[0].in_flight() == [(1, 7, 8, 1, 0)]


def test_bytes_leave_in_the_order_in_which_they_were_queued(kernel):
    hub = Hub(kernel)
    outputs = [hub.subscriber(b"t") for _ in range(2)]
    expected = b""
    for size in (10, 3000, 1024, 1025, 1):
        hub.deliver(hub.batch((b"t", bytes(size))))
        outputs[0].push(b"between")
        expected += kernel.encode_publish(4, b"t", bytes(size), 0) + b"between"
    assert outputs[0].touched
    assert sent(outputs[0]) == expected
    assert not outputs[0].touched
    assert outputs[0].take() == []


def test_a_publish_that_does_not_fit_a_packet_is_refused(kernel):
    with pytest.raises(LimitExceeded, match="70000 bytes does not fit a u16"):
        kernel.encode_publish(4, b"t" * 70_000, b"", 0)
    with pytest.raises(MessageTooLarge, match="do not fit an MQTT packet"):
        kernel.encode_publish(4, b"t", memoryview(bytes(268_435_453)), 0)


class Owner:
    """A connection of the loop that has nothing to do."""

    def catch_up(self):
        pass

    def take_packets(self, event):
        raise AssertionError(event)


def test_a_pass_counts_what_all_connections_sent_and_were_answered(kernel):
    ticks, packet = [], publish(kernel, b"t", b"v", 2, 1)
    peers = [Connection(kernel) for _ in range(2)]
    turn = kernel.MqttPass(peers[0].dirty, ManualClock(1000), lambda: ticks.append(1), 1 << 20)
    for peer in peers:
        peer.input.join(Owner(), turn)
        peer.input.receive(packet + packet[:3])
        peer.input.receive(packet[3:] + publish(kernel, b"t", b"v"))
    assert turn.received_messages == 6
    assert turn.received_bytes == 4 * len(packet) + 2 * len(publish(kernel, b"t", b"v"))
    assert len(turn.acking) == 2
    for peer in peers:
        peer.input.answer(peer.input.take_acks())
    assert turn.answered_bytes == 16
    assert ticks


def test_a_puback_settles_only_what_waits_for_one(kernel):
    """MQTT5 4.3.2-3, 4.3.3-3: the rest is the caller's to judge."""
    output = kernel.MqttOutput(None, 5, 10)
    one, two = output.take_id(0, 1, 1), output.take_id(0, 2, 2)
    assert [output.awaits(packet_id) for packet_id in (one, two, 99)] == [4, 5, 0]
    assert not output.settle(two)
    assert output.receive(two)
    assert output.awaits(two) == 7
    assert not output.settle(two)
    assert output.settle(one)
    assert output.settle(99)
    assert [row[0] for row in output.in_flight()] == [two]


def test_what_a_stage_gave_away_is_apart_from_what_is_staged_after(kernel):
    dirty = []
    stage = kernel.Stage(None, kernel.BatchBuilder(True), dirty)
    stage.builder.add(b"t", b"t", b"1", (), 1)
    stage.touch()
    full = stage.take()
    dirty.clear()
    assert (full.count, stage.builder.count, stage.number) == (1, 0, -1)
    stage.builder.add(b"t", b"t", b"2", (), 1)
    stage.touch()
    again = stage.take()
    assert (full.count, again.count, stage.builder.count) == (1, 1, 0)
    assert full.topics() == again.topics(), "both tag topics"
    full.seal(0, 0)
    stage.give_back(full)
    assert stage.builder is full
