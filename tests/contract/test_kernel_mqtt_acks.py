"""What both kernels promise about PUBACKs: for whom they wait, and in which order they go out."""

import gc
import weakref

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import InvalidRequest
from tests.contract.test_kernel_mqtt import Connection, publish


@pytest.fixture(params=["pure", "_native"])
def kernel(request):
    """The kernel, interpreted and compiled; skipped where it was not built."""
    return pytest.importorskip(f"onelog.kernel.{request.param}", exc_type=ImportError)


class Pass:
    """Connections that share a pass, and stages a, b, c by topic."""

    def __init__(self, kernel, count):
        self.kernel = kernel
        self.dirty = []
        self.turn = kernel.MqttPass(
            self.dirty, ManualClock(1000), lambda: None, 1 << 20, reason_of=int
        )
        self.stages = {
            topic: kernel.Stage(topic, kernel.BatchBuilder(True), self.dirty)
            for topic in (b"a", b"b", b"c")
        }
        self.written = []
        self.peers = [self._join(number) for number in range(count)]

    def _join(self, number):
        peer = Connection(self.kernel)
        for topic, stage in self.stages.items():
            peer.routes[topic] = self.kernel.MqttRoute(topic, stage, 100)
        peer.output.live = True
        peer.output.writer = lambda data: self.written.append((number, data))
        peer.input.join(Peer(number, self.written), self.turn)
        return peer

    def publish(self, number, *publishes):
        """Publishes as (topic, packet id) in one read."""
        data = b"".join(publish(self.kernel, *row[:1], b"", 2, row[1]) for row in publishes)
        self.peers[number].input.receive(data)

    def end(self):
        """End the pass; what waits for each topic's stage."""
        topics = [stage.owner for stage in self.dirty]
        waiting = self.turn.take_acks()
        for stage in self.dirty:
            stage.take()
        self.dirty.clear()
        return dict(zip(topics, waiting, strict=True))

    def settle(self, waiting, reason=None):
        assert waiting.results is None
        waiting.finish(1, reason)


class Peer:
    """Answers what failed."""

    def __init__(self, number, written):
        self.number = number
        self.written = written

    def acknowledge_some(self, acks, reasons):
        self.written.append((self.number, acks, reasons))


def puback(*packet_ids):
    return b"".join(b"\x40\x02" + packet_id.to_bytes(2, "big") for packet_id in packet_ids)


def test_acks_of_a_pass_go_to_whoever_is_still_there(kernel):
    shared = Pass(kernel, 3)
    for number in range(3):
        shared.publish(number, (b"a", 7 + number))
    assert shared.turn.acking == [peer.input for peer in shared.peers]
    waiting = shared.end()
    assert list(waiting) == [b"a"]
    assert shared.turn.acking == []
    assert shared.turn.take_acks() == []
    shared.peers[1].output.writer = None
    shared.settle(waiting[b"a"])
    assert shared.written == [(0, puback(7)), (2, puback(9))]
    assert [peer.input.unanswered for peer in shared.peers] == [0, 0, 0]
    shared.publish(0, (b"a", 70))
    assert shared.turn.acking == [shared.peers[0].input]


def test_acks_wait_for_the_stages_of_their_own_connection_only(kernel):
    shared = Pass(kernel, 3)
    shared.publish(0, (b"a", 1), (b"a", 2))
    shared.publish(1, (b"b", 3))
    shared.publish(2, (b"b", 4), (b"a", 5), (b"b", 6))
    waiting = shared.end()
    shared.settle(waiting[b"a"])
    assert shared.written == [(0, puback(1, 2))]
    shared.settle(waiting[b"b"])
    assert shared.written[1:] == [(1, puback(3)), (2, puback(4, 5, 6))]
    assert [peer.input.unanswered for peer in shared.peers] == [0, 0, 0]


def test_a_stage_that_holds_no_publish_of_qos_1_has_nobody_waiting(kernel):
    shared = Pass(kernel, 1)
    shared.stages[b"c"].touch()
    shared.publish(0, (b"a", 1))
    assert shared.end()[b"c"] is None


def test_acks_of_a_connection_go_out_in_the_order_of_its_publishes(kernel):
    """MQTT5 4.6.0-2, whichever stage is ready first."""
    shared = Pass(kernel, 2)
    passes = []
    for number in range(1, 4):
        shared.publish(0, (b"b" if number == 1 else b"a", number))
        shared.publish(1, (b"a", number))
        passes.append(shared.end())
    for waiting in passes:
        shared.settle(waiting[b"a"])
    assert shared.written == [(1, puback(1)), (1, puback(2)), (1, puback(3))]
    shared.peers[0].input.answer_next(lambda: shared.written.append("refused"))
    shared.settle(passes[0][b"b"])
    assert shared.written[3:] == [(0, puback(1)), (0, puback(2)), (0, puback(3)), "refused"]
    shared.peers[0].input.answer_next(lambda: shared.written.append("at once"))
    assert shared.written[-1] == "at once"


def test_many_acks_that_wait_behind_one_go_out_in_order(kernel):
    shared = Pass(kernel, 1)
    shared.publish(0, (b"b", 1))
    first = shared.end()
    rows = []
    for number in range(2, 400):
        shared.publish(0, (b"a", number))
        rows.append(shared.end())
    for waiting in rows[:-5]:
        shared.settle(waiting[b"a"])
    assert shared.written == []
    shared.settle(first[b"b"])
    for waiting in rows[-5:]:
        shared.settle(waiting[b"a"])
    assert b"".join(data for _number, data in shared.written) == puback(*range(1, 400))


def test_a_publish_that_the_caller_staged_is_acknowledged_in_its_turn(kernel):
    shared = Pass(kernel, 1)
    row = shared.peers[0].input
    shared.publish(0, (b"b", 1))
    shared.stages[b"a"].touch()
    row.await_ack(2, shared.stages[b"a"])
    shared.publish(0, (b"b", 3))
    assert row.has_acks
    waiting = shared.end()
    shared.settle(waiting[b"a"])
    assert shared.written == []
    shared.settle(waiting[b"b"])
    assert shared.written == [(0, puback(1, 2, 3))]
    with pytest.raises(InvalidRequest):
        row.await_ack(4, shared.stages[b"a"])


def test_the_owner_answers_when_some_of_a_connection_s_stages_failed(kernel):
    shared = Pass(kernel, 2)
    shared.publish(0, (b"a", 1), (b"b", 2))
    shared.publish(1, (b"b", 3))
    waiting = shared.end()
    shared.settle(waiting[b"a"], 0x97)
    shared.settle(waiting[b"b"])
    assert shared.written == [(0, b"\0\x01\0\0\0\x02\0\x01", {0: 0x97}), (1, puback(3))]
    shared.peers[0].input.owner = None
    shared.publish(0, (b"a", 4))
    shared.settle(shared.end()[b"a"], 0x97)
    assert len(shared.written) == 2


def test_acks_outlive_their_connection(kernel):
    """Only what waits holds on to it then, and lets go of it in the middle of the answer."""
    shared = Pass(kernel, 300)
    for number in range(300):
        shared.publish(number, (b"a", 7))
    waiting = shared.end()
    gone = weakref.ref(shared.peers[0])
    for peer in shared.peers:
        peer.input.resolve = None  # which knows the connection
    shared.peers.clear()
    gc.collect()
    assert gone() is None
    shared.settle(waiting[b"a"])
    assert shared.written == [(number, puback(7)) for number in range(300)]


def test_a_connection_that_raises_keeps_no_other_from_its_acks(kernel):
    shared = Pass(kernel, 3)

    def broken(_data):
        raise RuntimeError("its transport")

    shared.peers[1].output.writer = broken
    for number in range(3):
        shared.publish(number, (b"a", 1))
    with pytest.raises(RuntimeError, match="its transport"):
        shared.settle(shared.end()[b"a"])
    assert shared.written == [(0, puback(1)), (2, puback(1))]
