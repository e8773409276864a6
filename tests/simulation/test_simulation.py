"""Five thousand lives of brokers whose disk forgets what was not synced (I1, I3, I4, I5).

A failure names its world and seed; `ONELOG_SEED=Life:12 pytest tests/simulation -k one_seed` runs
that one again. Most seeds go to the world of plain use; each other world has what its cost allows.
"""

from __future__ import annotations

import os
import random

import pytest

from onelog.base.clock import ManualClock
from onelog.broker import LOCAL, Message
from onelog.log.partition import Partition
from onelog.storage.engine import LogSettings
from onelog.storage.segment import SegmentEngine
from tests.logs import KEY, make_partition, put, row
from tests.simulation.compacting import Compacting
from tests.simulation.disk import Disk
from tests.simulation.following import Following
from tests.simulation.life import Life
from tests.simulation.rocks import CompactingOnRocks, LifeOnRocks
from tests.simulation.seeds import run_seed, run_seeds
from tests.simulation.thinning import Thinning
from tests.simulation.transactions import Transactions
from tests.simulation.world import World

SHARES: dict[type[World], int] = {
    Life: 2_600,
    Transactions: 500,
    Compacting: 1_000,
    Thinning: 400,
    Following: 350,
    LifeOnRocks: 90,
    CompactingOnRocks: 60,
}
"""How the five thousand seeds are shared out."""
EACH = 200
"""Seeds of one test, so that cores can share them."""
LONG_FACTOR = 10
"""`make fault` runs so many times as many, other ones each time."""
PARTS = [
    (world, first, min(first + EACH, count))
    for world, count in SHARES.items()
    for first in range(0, count, EACH)
]
WORLDS = {world.__name__: world for world in SHARES}


@pytest.mark.parametrize(
    ("world", "first", "end"), PARTS, ids=[f"{row[0].__name__}-{row[1]}" for row in PARTS]
)
def test_no_crash_takes_back_what_anybody_was_told(world, first, end):
    run_seeds(world, range(first, end))


@pytest.mark.fault_long
@pytest.mark.parametrize("world", SHARES, ids=WORLDS)
def test_no_crash_of_many_takes_back_what_anybody_was_told(world):
    first = random.randrange(SHARES[Life], 1 << 40)
    run_seeds(world, range(first, first + LONG_FACTOR * SHARES[world]))


def named_seeds() -> list[tuple[type[World], int]]:
    """What `ONELOG_SEED` names, or one of each world."""
    asked = os.environ.get("ONELOG_SEED")
    if not asked:
        return [(world, 4) for world in SHARES]
    name, _, seed = asked.rpartition(":")
    return [(WORLDS[name or Life.__name__], int(seed))]


@pytest.mark.parametrize(("world", "seed"), named_seeds())
def test_one_seed_runs_the_same_every_time(world, seed):
    one, two = run_seed(world, seed), run_seed(world, seed)
    assert one.count, "nobody did anything"
    assert one.clock.monotonic() == two.clock.monotonic()
    for name in ("acknowledged", "known", "settled", "seen", "attempted", "txns", "count"):
        assert getattr(one, name, None) == getattr(two, name, None), name


REACHED: dict[type[World], tuple[str, ...]] = {
    Life: ("acknowledged", "seen", "committed", "trimmed", "made", "gone"),
    Transactions: ("acknowledged", "seen", "sequence", "txns"),
    Compacting: ("known", "firm", "altered", "compacted", "may_compact", "deleting"),
    Thinning: ("acknowledged", "settled", "thinned", "trimmed"),
    Following: ("fed", "stumbles", "gaps", "tailed", "moved"),
    LifeOnRocks: ("acknowledged", "seen", "committed", "trimmed", "made"),
    CompactingOnRocks: ("known", "firm", "altered", "compacted"),
}


@pytest.mark.parametrize("world", REACHED, ids=WORLDS)
def test_the_seeds_reach_what_they_are_for(world):
    missing = set(REACHED[world])
    for seed in range(150):
        life = run_seed(world, seed)
        missing -= {name for name in missing if getattr(life, name)}
        if not missing:
            return
    raise AssertionError(f"no life has {sorted(missing)}")


def test_the_seeds_settle_in_queues_and_sessions():
    missing = {"queue", "session"}
    for seed in range(40):
        settled = run_seed(Life, seed).settled
        missing -= {name for name in missing if settled[name]}
        if not missing:
            return
    raise AssertionError(f"nothing is settled in a {sorted(missing)}")


def test_the_seeds_end_transactions_in_every_way():
    missing = {("commit", True, True), ("commit", True, False), ("abort", True, True)}
    missing |= {("", False, True), ("", False, False)}
    for seed in range(60):
        txns = run_seed(Transactions, seed).txns
        missing -= {(txn.wish, txn.told, txn.has_offsets) for txn in txns}
        if not missing:
            return
    raise AssertionError(f"no transaction ends so: {sorted(missing)}")


@pytest.mark.parametrize("names", [True, False], ids=["names", "bytes"])
def test_a_disk_that_lies_about_its_syncs_is_found_out(monkeypatch, names):
    """The simulation is able to fail: the same broker on a disk that syncs nothing loses."""
    honest = Disk._fsync

    def lie(disk: Disk, fd: int) -> None:
        if isinstance(disk._open.get(fd), str) is not names:
            honest(disk, fd)

    monkeypatch.setattr(Disk, "_fsync", lie)
    monkeypatch.setattr(Disk, "_fdatasync", lie)
    with pytest.raises(AssertionError, match="ONELOG_SEED"):
        run_seeds(Life, range(60))


class Worst(random.Random):
    """A power cut that leaves nothing but what was synced."""

    def randint(self, a: int, b: int) -> int:
        del b
        return a

    def randrange(self, *_bounds: int) -> int:
        return 0


class Refused(Life):
    """A commit is refused; in the next life one that goes less far is answered."""

    async def run(self) -> None:
        self.disk._chance = Worst()
        await self.start()
        await self.send()
        self.sick, self.disk.fails_next = True, 1
        with self.refusals():
            await self.read()
        assert (self.committed, self.commit_asked) == (0, 1), "the commit was not refused"
        await self.lose_power()
        self.sick, self.disk.fails_next = True, 1
        with self.refusals():
            await self.send()
        main = self.broker.streams.get("main").partitions[0]
        assert main.stopped is not None, "the reader reads on where it was refused"
        await self.read()
        await self.lose_power()
        await self.broker.close()

    async def send(self) -> None:
        value = self.next_value()
        self.attempted[value] = "keep/1"
        await self.broker.publish_many([Message("keep/1", value)], principal=LOCAL)

    async def lose_power(self) -> None:
        self.doom = "power"
        await self.die()
        await self.start()


def test_a_refused_commit_does_not_count_as_answered_with_the_next_one():
    """The reader of a stopped partition commits the rest: nothing is lost. Found by a seed."""
    assert run_seed(Refused, 0).committed == 0


@pytest.mark.parametrize("has_records", [False, True])
def test_a_directory_that_outlived_a_kill_is_made_durable_with_its_next_records(
    tmp_path, has_records
):
    """I4: that it is there does not say that it is durable. Found by a seed."""
    disk, clock = Disk(tmp_path, Worst()), ManualClock()

    def open_log() -> Partition:
        log = SegmentEngine(tmp_path, clock).open(KEY, LogSettings(topic_index=False))
        return make_partition(log, None, clock)  # type: ignore[arg-type]

    with disk.attached():
        first = open_log()  # its process is killed before a sync
        if has_records:
            put(first, row(b"k", b"1"))
        second = open_log()
        put(second, row(b"k", b"2"))
        second.log.sync()
        end = second.log.end_offset
        disk.cut_power()
        assert open_log().log.end_offset == end
