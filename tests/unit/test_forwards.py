"""What does a node do with messages for a leader elsewhere: what waits, for how long, and what is
its publisher told? Histories by chance are in tests/property/test_forwards.py."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import Closed, NotLeader, OnelogError, StorageFull, Timeout, Unavailable
from onelog.base.ids import PartitionId
from onelog.base.limits import FORWARD_WINDOW_BYTES, FORWARDS_MAX
from onelog.cluster.forward_frames import ForwardBatch, Forwarded, ForwardOutcome
from onelog.cluster.forwards import FORWARD_S, GRACE_S, Forwarder
from onelog.observe.troubles import Troubles
from onelog.storage.engine import PartitionKey

HERE, THERE, OTHER = 1, 2, 3
MIB = 1024 * 1024


def key(number: int) -> PartitionKey:
    return PartitionKey("s1", PartitionId(number))


class Port:
    """Node 1; node 2 leads everything at first."""

    def __init__(self) -> None:
        self.leaders: dict[PartitionKey, tuple[int, int] | None] = {}
        self.links = {THERE: True, OTHER: True}
        self.sent: list[tuple[int, ForwardBatch]] = []
        self.time, self._timers, self._count = 0.0, [], 0
        self.troubles = Troubles(ManualClock(0))
        self.forwarder = Forwarder(HERE, self, self.troubles)
        self.told: dict[bytes, int | OnelogError] = {}
        self.order: list[bytes] = []

    def leader(self, key: PartitionKey) -> tuple[int, int] | None:
        return self.leaders.get(key, (THERE, 1))

    def accepts(self, node: int) -> bool | None:
        return self.links.get(node)

    def send(self, node: int, batch: ForwardBatch) -> bool:
        self.sent.append((node, batch))
        return True

    def call_at(self, when: float, call: Callable[..., object], *args: Any) -> Any:
        row = SimpleNamespace(is_off=False)
        row.cancel = lambda: setattr(row, "is_off", True)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, row, call, args))
        return row

    def now(self) -> float:
        return self.time

    # -- what a test does

    def put(self, data: bytes, number: int = 0, *, again: bool = False, name: bytes = b"") -> None:
        name = name or data

        def done(base: int, error: OnelogError | None) -> None:
            assert name not in self.told
            self.told[name] = base if error is None else error
            self.order.append(name)

        self.forwarder.put(key(number), data, done, lambda _error: again)

    def taken(self) -> list[bytes]:
        """What was sent since the last look."""
        self.last = self.sent
        self.sent = []
        return [bytes(batch.data) for _node, batch in self.last]

    def answer(self, at: int = 0, outcome: ForwardOutcome = ForwardOutcome.DONE) -> None:
        """Answer one of those that `taken` returned."""
        node, batch = self.last[at]
        self.forwarder.answered(node, Forwarded(batch.number, outcome, 1, 7))

    def wait(self, seconds: float) -> None:
        self.time += seconds
        while self._timers and self._timers[0][0] <= self.time:
            _when, _count, row, call, args = heapq.heappop(self._timers)
            if not row.is_off:
                call(*args)


@pytest.fixture
def port() -> Port:
    return Port()


def test_batches_go_out_at_once_and_partitions_do_not_wait_for_each_other(port: Port) -> None:
    for number, data in enumerate((b"a", b"b", b"c")):
        port.put(data, number % 2)
    assert port.taken() == [b"a", b"b", b"c"]
    port.answer(1)
    port.answer(2)
    port.answer(0)
    assert port.order == [b"b", b"c", b"a"]
    assert set(port.told.values()) == {7}
    assert not port.forwarder.is_busy(key(0))


def test_more_than_a_window_waits_for_answers_and_publishers_hear_of_room(port: Port) -> None:
    rooms, fulls = [], []
    port.forwarder.on_room.append(lambda: rooms.append(1))
    port.forwarder.on_full.append(lambda: fulls.append(1))
    for number in range(24):
        port.put(bytes(MIB), number % 3, name=b"%d" % number)
    assert len(port.taken()) == FORWARD_WINDOW_BYTES // MIB
    assert port.forwarder.is_full(key(0))
    assert fulls == [1]
    first = port.last
    for at in range(16):
        port.last = first
        port.answer(at)
    assert len(port.taken()) == 8
    for at in range(8):
        port.answer(at)
    assert rooms == [1]
    assert not port.forwarder.is_full(key(0))
    assert len(port.told) == 24


def test_very_many_small_batches_wait_too(port: Port) -> None:
    for number in range(FORWARDS_MAX + 10):
        port.put(b"x", name=b"%d" % number)
    assert len(port.taken()) == FORWARDS_MAX
    port.answer(0)
    assert port.taken() == [b"x"]


def test_one_leader_without_room_holds_nobody_else(port: Port) -> None:
    port.leaders[key(1)] = (OTHER, 1)
    for number in range(20):
        port.put(bytes(MIB), 0, name=b"%d" % number)
    assert port.forwarder.is_full(key(0))
    assert not port.forwarder.is_full(key(1))
    port.taken()
    port.put(b"b", 1)
    assert port.taken() == [b"b"]


def test_what_no_leader_takes_in_time_is_refused_and_later_ones_at_once(port: Port) -> None:
    port.leaders[key(0)] = None
    refusal = NotLeader("it is elsewhere")
    assert port.forwarder.takes(key(0), refusal)
    port.put(b"a")
    port.wait(FORWARD_S)
    assert isinstance(port.told[b"a"], NotLeader)
    assert "nothing was written" in str(port.told[b"a"])
    assert not port.forwarder.takes(key(0), refusal)
    port.leaders[key(0)] = (THERE, 2)
    port.forwarder.look()
    assert port.forwarder.takes(key(0), refusal)


def test_without_a_link_a_message_waits_for_one(port: Port) -> None:
    port.links[THERE] = None
    port.put(b"a")
    assert port.taken() == []
    port.links[THERE] = True
    port.forwarder.linked(THERE)
    assert port.taken() == [b"a"]
    port.links[THERE] = None
    port.put(b"b", 1)
    port.wait(FORWARD_S)
    assert isinstance(port.told[b"a"], Timeout)  # it was sent
    assert isinstance(port.told[b"b"], Unavailable)  # it was not


def test_a_late_answer_changes_nothing_and_lets_the_next_ones_go(port: Port) -> None:
    port.put(b"a")
    port.taken()
    port.wait(FORWARD_S)
    assert isinstance(port.told[b"a"], Timeout)
    port.answer(0)
    assert isinstance(port.told[b"a"], Timeout)
    port.put(b"b")
    assert port.taken() == [b"b"]
    port.answer(0)
    assert port.told[b"b"] == 7


def test_a_broken_link_leaves_it_open_or_sends_it_again(port: Port) -> None:
    port.put(b"a")
    port.put(b"b", again=True)
    port.put(b"c", again=True)
    assert port.taken() == [b"a", b"b", b"c"]
    first = port.last
    port.links[THERE] = None
    port.forwarder.unlinked(THERE)
    assert isinstance(port.told[b"a"], Timeout)
    port.put(b"d")
    assert port.taken() == []
    port.leaders[key(0)] = (OTHER, 2)
    port.forwarder.look()
    assert port.taken() == [b"b", b"c", b"d"]
    again, port.last = port.last, first
    port.answer(1)  # of the first try
    assert b"b" not in port.told
    port.last = again
    port.answer(0)
    assert port.told[b"b"] == 7


def test_what_was_open_once_is_never_refused(port: Port) -> None:
    port.put(b"a", again=True)
    port.taken()
    port.forwarder.linked(THERE)
    assert port.taken() == [b"a"]
    port.answer(0, ForwardOutcome.TOO_FEW)
    assert isinstance(port.told[b"a"], Timeout)


def test_a_former_leader_that_does_not_answer_holds_nothing_for_long(port: Port) -> None:
    port.put(b"a", again=True)
    port.taken()
    port.leaders[key(0)] = (OTHER, 2)
    port.forwarder.look()
    port.put(b"b")
    assert port.taken() == []
    port.wait(GRACE_S)
    assert port.taken() == [b"a", b"b"]
    assert [node for node, _batch in port.last] == [OTHER, OTHER]


def test_a_node_that_is_to_lead_and_says_no_is_asked_again_later(port: Port) -> None:
    port.put(b"a")
    tries = 0
    while port.time < 2:
        for _ in port.taken():
            tries += 1
            port.answer(0, ForwardOutcome.NOT_LEADER)
        port.wait(0.01)
    assert 5 < tries < 12
    port.leaders[key(0)] = (OTHER, 2)
    port.forwarder.look()
    assert port.taken() == [b"a"]


def test_a_full_disk_refuses_all_that_follows_until_its_publishers_try_again(port: Port) -> None:
    for data in (b"a", b"b"):
        port.put(data)
    port.taken()
    port.put(b"c")
    port.last += port.sent
    port.answer(0, ForwardOutcome.FULL)
    port.answer(1, ForwardOutcome.AFTER_REFUSED)
    port.answer(2, ForwardOutcome.AFTER_REFUSED)
    assert port.order == [b"a", b"b", b"c"]
    assert {type(error) for error in port.told.values()} == {StorageFull}


def test_an_older_release_that_leads_is_named(port: Port) -> None:
    port.links[THERE] = False
    assert not port.forwarder.takes(key(0), NotLeader("elsewhere"))
    port.links[THERE] = None
    port.put(b"a")
    port.links[THERE] = False
    port.forwarder.linked(THERE)
    assert isinstance(port.told[b"a"], Unavailable)
    assert "upgrade" in str(port.told[b"a"])


def test_what_this_node_refuses_as_the_leader_is_not_forwarded(port: Port) -> None:
    port.leaders[key(0)] = (HERE, 1)
    assert not port.forwarder.takes(key(0), Unavailable("too few replicas"))
    assert port.forwarder.takes(key(0), NotLeader("its role comes in a moment"))


def test_the_end_of_a_node_tells_everybody(port: Port) -> None:
    port.put(b"a")
    port.taken()
    port.links[THERE] = None
    port.put(b"b", 1)
    port.forwarder.close()
    assert isinstance(port.told[b"a"], Timeout)
    assert isinstance(port.told[b"b"], Closed)
    port.put(b"c")
    assert isinstance(port.told[b"c"], Closed)


def test_a_publisher_that_raises_or_publishes_when_it_is_told_breaks_nothing(port: Port) -> None:
    def raises(_base: int, _error: OnelogError | None) -> None:
        port.put(b"next")
        raise RuntimeError("a fault of a caller")

    port.forwarder.put(key(0), b"a", raises, lambda _error: False)
    port.put(b"b")
    port.taken()
    port.answer(0, ForwardOutcome.NOT_LEADER)
    port.answer(1, ForwardOutcome.AFTER_REFUSED)
    port.wait(0.02)
    assert port.taken() == [b"a", b"b"]
    port.answer(0)
    assert port.taken() == [b"next"]
    assert [one.kind for one in port.troubles.rows()] == ["forward-answer"]
