"""Is the high watermark what the replicas that count have, whatever order they tell it in?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from onelog.base.clock import ManualClock
from onelog.base.ids import Offset, PartitionId
from onelog.log.partition import Durability, Partition
from onelog.log.progress import Role
from onelog.log.shared import Shared
from onelog.observe.troubles import Troubles
from tests.logs import memory_log, put, row

OTHERS: Final = ("b", "c")


class Ends(NamedTuple):
    """How far a replica is."""

    written: int = 0
    durable: int = 0


class ReplicaSet:
    """A leader's progress with replicas that the test moves: min of who counts, if enough do."""

    is_settled = True

    def __init__(self, durability: Durability, insync_min: int) -> None:
        self.at = int(durability is Durability.FSYNC)
        self.insync_min = insync_min
        self.ends = {"a": Ends(), **{name: Ends() for name in OTHERS}}
        self.insync = {"a", *OTHERS}
        self.high_watermark = 0

    def moved(self, written: Offset, durable: Offset) -> Offset:
        self.ends["a"] = Ends(written, durable)
        if len(self.insync) >= self.insync_min:
            lowest = min(self.ends[name][self.at] for name in self.insync)
            self.high_watermark = max(self.high_watermark, lowest)
        return Offset(self.high_watermark)


class Later:
    """A Syncer whose jobs end when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[..., None]]] = []
        self.chores = self

    def start(self, work: Callable[[], Any], done: Callable[..., None]) -> None:
        self.jobs.append((work, done))

    def ask(self, _file: object, _done: object) -> None:
        """No thread of the kernel is free: then the job is one of Python's."""

    def end_one(self) -> None:
        if self.jobs:
            work, done = self.jobs.pop(0)
            done(work(), None)


steps = st.lists(
    st.one_of(
        st.just(("append",)),
        st.just(("sync",)),
        st.tuples(st.just("ack"), st.sampled_from(OTHERS), st.integers(0, 30), st.integers(0, 30)),
        st.tuples(st.just("leave"), st.sampled_from(OTHERS)),
        st.tuples(st.just("join"), st.sampled_from(OTHERS)),
    ),
    max_size=40,
)


@given(steps=steps, durability=st.sampled_from(Durability), insync_min=st.integers(1, 3))
def test_the_high_watermark_is_the_lowest_end_of_who_counts_and_never_falls(
    steps: list[tuple[Any, ...]], durability: Durability, insync_min: int
) -> None:
    """And an answer comes exactly when it passes."""
    asyncio.run(drive(steps, durability, insync_min))


async def drive(steps: list[tuple[Any, ...]], durability: Durability, insync_min: int) -> None:
    clock, syncer = ManualClock(), Later()
    partition = Partition(
        "s",
        PartitionId(0),
        memory_log(clock),
        durability=durability,
        message_bytes_max=1 << 20,
        shared=Shared(syncer, clock, Troubles(clock)),  # type: ignore[arg-type]
    )
    replicas = ReplicaSet(durability, insync_min)
    partition.replica.become(Role.LEADER, 1, replicas)
    answered: list[int] = []
    fed: list[int] = []
    partition.follow(lambda data: fed.append(int.from_bytes(data[:8], "big")))
    highest = 0
    for step, *more in steps:
        if step == "append":
            base = put(partition, row(b"k", b"v")).base_offset
            partition.when_visible(base, lambda error, base=base: answered.append(base))
        elif step == "sync":
            syncer.end_one()
        elif step == "ack":
            name, written, durable = more
            was, end = replicas.ends[name], partition.end_offset
            written = min(max(was.written, written), end)
            replicas.ends[name] = Ends(written, min(max(was.durable, durable), written))
            partition.moved()
        elif step == "leave":
            replicas.insync.discard(more[0])
            partition.moved()
        elif replicas.ends[more[0]][replicas.at] >= partition.high_watermark:
            replicas.insync.add(more[0])
            partition.moved()
        seen = partition.high_watermark
        assert seen == replicas.high_watermark >= highest
        highest = seen
        assert answered == fed == list(range(seen))
        assert seen <= partition.end_offset
        if len(replicas.insync) >= insync_min:
            assert seen >= min(replicas.ends[name][replicas.at] for name in replicas.insync)
