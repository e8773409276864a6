"""Do replicas that lead in turns, copy and are cut agree on everything that was ever shown?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from hypothesis import example, given
from hypothesis import strategies as st

from onelog.base.clock import ManualClock
from onelog.base.ids import Offset, PartitionId
from onelog.log.partition import Durability, Partition
from onelog.log.progress import Role
from onelog.log.shared import Shared
from onelog.observe.troubles import Troubles
from tests.batches import spans
from tests.logs import memory_log, pairs, put, row

NODES: Final = 3


class AtOnce:
    """A pool whose jobs are done when they are started."""

    def __init__(self) -> None:
        self.chores = self

    def start(self, work: Callable[[], Any], done: Callable[..., None]) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - as the threads do
            done(None, error)
        else:
            done(result, None)


class All:
    """A leader's progress: everybody counts, and nobody is known before it acks."""

    is_settled = True

    def __init__(self, others: list[int]) -> None:
        self.ends = dict.fromkeys(others, 0)

    def moved(self, written: Offset, durable: Offset) -> Offset:
        return Offset(min(written, *self.ends.values()))


class World:
    """Three replicas of one partition."""

    def __init__(self) -> None:
        clock = ManualClock()
        shared = Shared(AtOnce(), clock, Troubles(clock))  # type: ignore[arg-type]
        self.nodes = [
            Partition(
                "s", PartitionId(0), memory_log(clock), durability=Durability.OS,
                message_bytes_max=1 << 20, shared=shared, replicated=True,
            )
            for _ in range(NODES)
        ]  # fmt: skip
        self.fed: list[list[int]] = [[] for _ in self.nodes]
        for node, fed in zip(self.nodes, self.fed, strict=True):
            node.follow(lambda data, fed=fed: fed.extend(at for at, _ in spans(bytes(data))))
        self.epoch = 0
        self.appended = 0
        self.shown: list[object] = []
        """Every record that was ever visible anywhere, by its offset."""

    async def elect(self, number: int) -> None:
        """Let a replica lead; the others find where their logs part, and are cut there."""
        self.epoch += 1
        self.leader = number
        others = [at for at in range(NODES) if at != number]
        self.progress = All(others)
        leader = self.nodes[number]
        for at in others:
            self.nodes[at].replica.become(Role.FOLLOWER, self.epoch)
        leader.replica.become(Role.LEADER, self.epoch, self.progress)
        for at in others:
            await self.part(self.nodes[at], leader)

    async def part(self, follower: Partition, leader: Partition) -> None:
        while follower.end_offset:
            epoch, end = leader.epochs.end_of(follower.epochs.latest, leader.end_offset)
            _, own = follower.epochs.end_of(epoch, follower.end_offset)
            if min(end, own) >= follower.end_offset:
                return
            await follower.replica.truncate(Offset(max(0, min(end, own))))

    def append(self) -> None:
        self.appended += 1
        put(self.nodes[self.leader], row(b"k", b"%d" % self.appended))

    def copy(self, number: int, max_bytes: int) -> None:
        leader, follower = self.nodes[self.leader], self.nodes[number]
        if follower is leader:
            return
        data = bytes(leader.log.read(follower.end_offset, max_bytes, leader.end_offset))
        end = follower.replica.append_copy(data, self.epoch, leader.high_watermark)
        self.progress.ends[number] = end
        leader.moved()

    def check(self, marks: list[int]) -> list[int]:
        """What was shown stays; the marks only grow."""
        for node, fed, before in zip(self.nodes, self.fed, marks, strict=True):
            mark = node.high_watermark
            assert node.stopped is None
            assert before <= mark <= node.end_offset == node.log.end_offset
            seen = pairs(node.log)[:mark]
            shared = min(len(self.shown), mark)
            assert seen[:shared] == self.shown[:shared]
            self.shown += seen[shared:]
            assert fed == list(range(mark))
        return [int(node.high_watermark) for node in self.nodes]


steps = st.lists(
    st.one_of(
        st.just(("append",)),
        st.tuples(st.just("copy"), st.integers(0, NODES - 1), st.sampled_from([1, 10_000])),
        st.tuples(st.just("elect"), st.integers(0, NODES - 1)),
    ),
    max_size=60,
)


@given(steps=steps)
@example(  # a cut through a run that waits to be fed
    [("append",), ("copy", 2, 9999), ("append",), ("copy", 1, 9999), ("elect", 2), ("append",),
     ("copy", 1, 9999), ("copy", 0, 9999), ("copy", 1, 150)]
)  # fmt: skip
def test_what_was_shown_anywhere_is_never_taken_back(steps: list[tuple[Any, ...]]) -> None:
    async def run() -> None:
        world = World()
        await world.elect(0)
        marks = [0] * NODES
        for step, *more in steps:
            if step == "append":
                world.append()
            elif step == "copy":
                world.copy(*more)
            else:
                await world.elect(*more)
            marks = world.check(marks)
        for _ in range(2):
            for number in range(NODES):
                world.copy(number, 1 << 20)
        world.check(marks)
        assert len({tuple(pairs(node.log)) for node in world.nodes}) == 1
        epochs = {tuple(node.epochs.rows()) for node in world.nodes}
        end = world.nodes[0].end_offset
        assert len({tuple(one for one in rows if one[1] < end) for rows in epochs}) == 1

    asyncio.run(run())
