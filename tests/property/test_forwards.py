"""Does whatever happens to leaders and links keep forwarded messages in order, answered truly and,
where that was asked for, written once?

One node forwards to a partition that it and two others lead in turn. The machines are real; the
log, the links, the rows and the time are a model, and chance decides what comes next.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import (
    MessageTooLarge,
    NotLeader,
    OnelogError,
    StorageFull,
    Timeout,
    Unavailable,
    again,
)
from onelog.base.ids import PartitionId
from onelog.cluster.forward_desk import ForwardDesk
from onelog.cluster.forward_frames import ForwardBatch, Forwarded
from onelog.cluster.forwards import FORWARD_S, Forwarder
from onelog.cluster.link.hello import Sender
from onelog.kernel import BatchBuilder, place_batches
from onelog.log.producers import Producers
from onelog.log.promises import Appended
from onelog.observe.troubles import Troubles
from onelog.record.batch import iterate_batches
from onelog.storage.engine import PartitionKey

KEY = PartitionKey("s1", PartitionId(0))
FRONT, NODES = 0, (0, 1, 2)
STEPS = 250


def batch_of(value: int, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    builder = BatchBuilder(False)
    builder.add(None, None, b"%d" % value, (), 1)
    return builder.seal(0, 0, 0, *producer)


class ModelPartition:
    """A replica that may lead; `log` is what it has, `high_watermark` what all have."""

    stream, id, message_bytes_max = "s", 0, 1 << 20

    def __init__(self) -> None:
        self.leader_epoch = 0
        self.refusal: OnelogError | None = NotLeader("it follows")
        self.log: list[tuple[int, tuple[int, int] | None]] = []
        """Value, and (producer, sequence)."""
        self.high_watermark = 0
        self.waiters: list[tuple[int, Callable[[OnelogError | None], None]]] = []

    def _producers(self) -> Producers:
        found = Producers()
        for offset, (value, who) in enumerate(self.log):
            if who is not None:
                data = bytearray(batch_of(value, (who[0], 0, who[1])))
                found.note_batch(place_batches(data, offset, 0)[0], 0)
        return found

    def check_batch(self, info) -> Appended | None:
        if self.refusal is not None:
            raise again(self.refusal)
        if info.size_bytes > self.message_bytes_max:
            raise MessageTooLarge("too large")
        if info.producer_id < 0:
            return None
        known = self._producers().check(info)
        return None if known is None else Appended(known.base_offset, known.last_offset + 1)

    def append_checked(self, data):
        if self.refusal is not None:
            raise again(self.refusal)
        placed = place_batches(data, len(self.log), self.leader_epoch)
        for info, slices in iterate_batches(data):
            who = None if info.producer_id < 0 else (info.producer_id, info.base_sequence)
            self.log += [(int(slices.record(at)[3]), who) for at in range(len(slices))]
        return placed

    def when_visible(self, offset, callback):
        self.waiters.append((offset, callback))

    def commit(self, upto: int) -> None:
        self.high_watermark = upto
        due = [row for row in self.waiters if row[0] < upto]
        self.waiters = [row for row in self.waiters if row[0] >= upto]
        for _offset, callback in due:
            callback(None)

    def follow(self, log, epoch: int, mark: int) -> None:
        self.refusal = NotLeader("it follows")
        self.log, self.leader_epoch, self.high_watermark = list(log), epoch, mark
        lost, self.waiters = self.waiters, []
        for _offset, callback in lost:
            callback(Timeout("led elsewhere"))


class World:
    """The nodes, their links, the row and the time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.time, self.timers, self._timer = 0.0, [], 0
        self.troubles = Troubles(ManualClock(0))
        self.row = (1, 1)
        self.views: dict[int, tuple[int, int] | None] = dict.fromkeys(NODES, self.row)
        self.partitions = {node: ModelPartition() for node in NODES}
        self.partitions[1].refusal, self.partitions[1].leader_epoch = None, 1
        self.committed: list[int] = []
        self.up = {1: True, 2: True}
        self.out: dict[int, deque[ForwardBatch]] = {node: deque() for node in NODES}
        self.back: dict[int, deque[Forwarded]] = {node: deque() for node in NODES}
        self.soon: deque[Callable[[], object]] = deque()
        self.desks = {node: ForwardDesk(_Host(self, node), self.soon.append, self.troubles)
                      for node in NODES}  # fmt: skip
        self.forwarder = Forwarder(FRONT, self, self.troubles)
        self.results: dict[int, OnelogError | int] = {}
        self.wanted: dict[int, str] = {}
        self.sequence = 0

    # -- ForwardPort

    def leader(self, _key):
        return self.views[FRONT]

    def accepts(self, node):
        return True if self.up[node] else None

    def send(self, node, batch):
        if node != FRONT and not self.up[node]:
            return False
        self.out[node].append(batch)
        return True

    def call_at(self, when, call, *args) -> Any:
        self._timer += 1
        row = SimpleNamespace(is_off=False)
        row.cancel = lambda: setattr(row, "is_off", True)
        heapq.heappush(self.timers, (when, self._timer, row, call, args))
        return row

    def now(self):
        return self.time

    # -- what happens

    def put(self, value: int) -> None:
        kind = self.chance.choice(("once", "again", "exact"))
        self.wanted[value] = kind
        data = batch_of(value)
        if kind == "exact":
            data = batch_of(value, (value + 1, 0, 0))

        def done(base, error):
            assert value not in self.results, "it was answered twice"
            self.results[value] = base if error is None else error

        self.forwarder.put(KEY, data, done, lambda _error: kind != "once")

    def deliver(self, node: int) -> None:
        """One frame comes over, in either direction."""
        if self.out[node] and self.chance.random() < 0.6:
            for _ in range(self.chance.randint(1, len(self.out[node]))):
                self.desks[node].take(Sender(FRONT, 1), self.out[node].popleft())
            self.flush()
        elif self.back[node]:
            self.forwarder.answered(node, self.back[node].popleft())

    def flush(self) -> None:
        while self.soon:
            self.soon.popleft()()

    def elect(self) -> None:
        """Another replica leads; it has what was committed, and some of what was not."""
        old = self.partitions[self.row[0]]
        node = self.chance.choice([n for n in NODES if n != self.row[0]])
        kept = self.chance.randint(len(self.committed), len(old.log))
        was, self.row = self.row, (node, self.row[1] + 1)
        fresh = self.partitions[node]
        fresh.follow(old.log[:kept], self.row[1], len(self.committed))
        fresh.refusal = None
        self.views[node] = self.row
        if self.chance.random() < 0.5:
            self.learn(was[0])

    def learn(self, node: int) -> None:
        """A node sees the row."""
        if self.views[node] == self.row:
            return
        self.views[node] = self.row
        if node != self.row[0]:
            self.partitions[node].follow(self.committed_rows(), self.row[1], len(self.committed))
        if node == FRONT:
            self.forwarder.look()

    def committed_rows(self):
        return self.partitions[self.row[0]].log[: len(self.committed)]

    def commit(self) -> None:
        leader = self.partitions[self.row[0]]
        upto = self.chance.randint(len(self.committed), len(leader.log))
        self.committed = [value for value, _who in leader.log[:upto]]
        leader.commit(upto)

    def cut(self, node: int) -> None:
        """The link to a node breaks: what is under way is lost."""
        if self.up[node]:
            self.up[node] = False
            for _ in range(self.chance.randint(0, len(self.out[node]))):
                self.desks[node].take(Sender(FRONT, 1), self.out[node].popleft())
            self.flush()
            self.out[node].clear()
            self.back[node].clear()
            self.desks[node].forget(FRONT)
            self.forwarder.unlinked(node)

    def heal(self, node: int) -> None:
        if not self.up[node]:
            self.up[node] = True
            self.forwarder.linked(node)

    def refuse(self, error: OnelogError | None) -> None:
        """The leader takes nothing, or goes on."""
        if not isinstance(self.partitions[self.row[0]].refusal, NotLeader):
            self.partitions[self.row[0]].refusal = error

    def wait(self, seconds: float) -> None:
        self.time += seconds
        while self.timers and self.timers[0][0] <= self.time:
            _when, _order, row, call, args = heapq.heappop(self.timers)
            if not row.is_off:
                call(*args)

    def step(self, value: int) -> bool:
        """One event by chance. Returns whether a message was published."""
        chance = self.chance
        what = chance.random()
        if what < 0.25:
            self.put(value)
            return True
        if what < 0.65:
            self.deliver(chance.choice(NODES))
        elif what < 0.78:
            self.commit()
        elif what < 0.82:
            self.elect()
        elif what < 0.88:
            self.learn(chance.choice(NODES))
        elif what < 0.90:
            self.cut(chance.choice((1, 2)))
        elif what < 0.94:
            self.heal(chance.choice((1, 2)))
        elif what < 0.96:
            self.refuse(chance.choice((Unavailable("too few"), StorageFull("full"), None, None)))
        else:
            self.wait(chance.choice((0.01, 0.1, 1.0, 3.0)))
        return False

    def calm(self) -> None:
        """Everything is whole again, for as long as it takes."""
        for node in (1, 2):
            self.heal(node)
        self.refuse(None)
        for node in NODES:
            self.learn(node)
        for _ in range(2000):
            for node in NODES:
                self.deliver(node)
            self.commit()
            self.wait(0.05 if self.timers else 0)
        self.committed = [value for value, _who in self.partitions[self.row[0]].log]


class _Host:
    def __init__(self, world: World, node: int) -> None:
        self.world, self.node = world, node

    def led(self, _key):
        view = self.world.views[self.node]
        return self.world.partitions[self.node] if view and view[0] == self.node else None

    def is_registered(self, _sender):
        return True

    def answer(self, _sender, answer):
        if self.node == FRONT or self.world.up[self.node]:
            self.world.back[self.node].append(answer)


@pytest.mark.parametrize("part", range(20))
def test_a_history_of_forwards_is_true(part: int) -> None:
    kinds = set()
    for seed in range(part * 30, part * 30 + 30):
        world = World(seed)
        value = 0
        for _ in range(STEPS):
            value += world.step(value)
        world.calm()
        world.wait(FORWARD_S)
        assert not world.troubles.rows(), (seed, world.troubles.rows())
        kinds |= check(world, seed)
    assert kinds == {"ok", "refused", "open"}


def check(world: World, seed: int) -> set[str]:
    log = world.committed
    assert world.results.keys() == world.wanted.keys(), f"seed {seed}: somebody has no answer"
    kinds = set()
    for value, result in world.results.items():
        times, where = log.count(value), f"seed {seed}, message {value}"
        if isinstance(result, Timeout):
            kinds.add("open")
        elif isinstance(result, OnelogError):
            kinds.add("refused")
            assert times == 0, f"{where} was refused, and is there: {result}"
        else:
            kinds.add("ok")
            assert log[result] == value, f"{where} is not where its answer says"
        if world.wanted[value] != "again":
            assert times <= 1, f"{where} is there {times} times"
    firsts = list(dict.fromkeys(log))
    assert firsts == sorted(firsts), f"seed {seed}: {firsts}"
    return kinds
