"""What both kernels promise about subscribers that are behind: some places of a batch go to all."""

import pytest

from onelog.base.errors import CorruptBatch
from onelog.kernel import HEADER_BYTES
from tests.contract.test_kernel_mqtt import Q1, Hub, sent


@pytest.fixture(params=["pure", "_native"])
def kernel(request):
    """The kernel, interpreted and compiled; skipped where it was not built."""
    return pytest.importorskip(f"onelog.kernel.{request.param}", exc_type=ImportError)


def places(hub, data, *offsets):
    return hub.kernel.deliver_places(hub.fanout, data, list(offsets), 7, 5000)


def test_the_records_at_the_places_go_to_their_subscribers_and_no_others(kernel):
    hub = Hub(kernel)
    first, second = hub.subscriber(b"a", 1), hub.subscriber(b"a", 1, version=5)
    other = hub.subscriber(b"b")
    asleep = hub.subscriber(b"a", 1)
    asleep.live = False
    rows = [(topic, b"%d" % n, Q1) for n in range(3) for topic in (b"a", b"b")]
    failed, touched, fallen = places(hub, hub.batch(*rows, base=10), 10, 13, 14)
    assert failed is None
    assert fallen == []
    assert {id(output) for output in touched} == {id(first), id(second), id(other)}
    for output, version in ((first, 4), (second, 5)):
        assert sent(output) == kernel.encode_publish(version, b"a", b"0", 2, 1) + (
            kernel.encode_publish(version, b"a", b"2", 2, 2)
        )
        assert [row[1:3] for row in output.in_flight()] == [(7, 10), (7, 14)]
    assert sent(other) == kernel.encode_publish(4, b"b", b"1", 0)
    assert sent(asleep) == b""
    assert hub.fanout.delivered == 5


def test_places_without_a_record_are_left_out(kernel):
    hub = Hub(kernel)
    output = hub.subscriber(b"a")
    data = hub.batch(*[(b"a", b"%d" % n) for n in range(5)], base=10)
    places(hub, data, 3, 9, 11, 15, 99)
    assert sent(output) == kernel.encode_publish(4, b"a", b"1", 0)
    thinned = kernel.keep_records(data, 0, [True, False, False, True, True])
    places(hub, thinned, 10, 11, 14)
    assert sent(output) == kernel.encode_publish(4, b"a", b"0", 0) + kernel.encode_publish(
        4, b"a", b"4", 0
    )


def test_nothing_is_written(kernel):
    hub = Hub(kernel)
    output, written = hub.subscriber(b"a"), []
    output.writer = written.append
    places(hub, hub.batch((b"a", b"x")), 0)
    assert written == []
    assert sent(output) == kernel.encode_publish(4, b"a", b"x", 0)


def test_a_full_window_falls_behind_at_its_place(kernel):
    hub = Hub(kernel)
    small, large = hub.subscriber(b"a", 1, window=1), hub.subscriber(b"a", 1)
    data = hub.batch(*[(b"a", b"%d" % n, Q1) for n in range(6)])
    _failed, _touched, fallen = places(hub, data, 1, 3, 5)
    assert fallen == [(small, 3)]
    assert not small.live
    assert small.pending == 1
    assert large.pending == 3


def test_a_record_that_cannot_be_delivered_ends_the_call_and_earlier_ones_stay(kernel):
    hub = Hub(kernel)

    def properties(headers, _now_ms):
        raise ValueError(headers)

    hub.fanout = kernel.MqttFanout(properties)
    output = hub.subscriber(b"a")
    data = hub.batch((b"a", b"0"), (b"a", b"1", (b"odd", b"")), (b"a", b"2"))
    failed, touched, _fallen = places(hub, data, 0, 1, 2)
    assert failed == 1
    assert touched == [output]
    assert sent(output) == kernel.encode_publish(4, b"a", b"0", 0)


def test_a_damaged_batch_delivers_nothing(kernel):
    hub = Hub(kernel)
    output = hub.subscriber(b"a")
    data = bytearray(hub.batch((b"a", b"0"), (b"a", b"1")))
    data[-4] ^= 0xFF
    with pytest.raises(CorruptBatch):
        places(hub, data[:-1], 0, 1)
    assert sent(output) == b""


@pytest.mark.parametrize("kept", [None, [True, True, False, True, True, False, True]])
def test_every_choice_of_places_brings_the_records_that_are_there(kernel, kept):
    """Of a batch with gaps and of one without; places outside of it, too."""
    hub = Hub(kernel)
    output = hub.subscriber(b"a")
    data = hub.batch(*[(b"a", b"%d" % n * (1 + n * 30)) for n in range(7)], base=20)
    if kept is not None:
        data = kernel.keep_records(data, 0, kept)
    for choice in range(1 << 9):
        offsets = [19 + n for n in range(9) if choice >> n & 1]
        there = [n - 20 for n in offsets if 20 <= n < 27 and (kept is None or kept[n - 20])]
        places(hub, data, *offsets)
        whole = [kernel.encode_publish(4, b"a", b"%d" % n * (1 + n * 30), 0) for n in there]
        assert sent(output) == b"".join(whole)


def test_damage_that_no_place_meets_stops_nobody(kernel):
    """Inside a record that nobody asked for, and behind the last one that somebody did.

    The checksum was checked when the batch was read: what is wrong here came so, and whoever asks
    for that record learns it.
    """
    hub = Hub(kernel)
    output = hub.subscriber(b"a")
    whole = hub.batch(*[(b"a", b"0123456789")] * 5, base=20)
    each = (len(whole) - HEADER_BYTES) // 5
    inside, behind = bytearray(whole), bytearray(whole)
    at = HEADER_BYTES + 4 * each + each - 12  # the value's length: its bytes and a count follow
    assert inside[at] == 20
    inside[at] ^= 0x40
    behind[HEADER_BYTES + 4 * each] -= 2  # the last record ends before the batch does
    for data in (inside, behind):
        assert places(hub, data, 21)[0] is None
        assert sent(output) == kernel.encode_publish(4, b"a", b"0123456789", 0)
        with pytest.raises(CorruptBatch):
            places(hub, data, 21, 24)
        assert sent(output) == b""
    damaged = bytearray(kernel.keep_records(whole, 0, [True, True, False, True, True]))
    damaged[len(damaged) - 12] ^= 0x40
    with pytest.raises(CorruptBatch):  # a batch that lost records is walked through
        places(hub, damaged, 21)
    assert sent(output) == b""


@pytest.mark.parametrize("damaged, byte", [(1, 0), (2, 0), (2, 3), (2, 4)])
def test_of_a_damaged_record_nothing_goes_out_and_nothing_before_it(kernel, damaged, byte):
    """Its length, its place, the length of its key; also the length of one that is passed over."""
    hub = Hub(kernel)
    output = hub.subscriber(b"a")
    data = bytearray(hub.batch(*[(b"a", b"0123456789")] * 4))
    data[HEADER_BYTES + damaged * ((len(data) - HEADER_BYTES) // 4) + byte] ^= 0x40
    with pytest.raises(CorruptBatch):
        places(hub, data, 0, 2)
    assert sent(output) == b""
