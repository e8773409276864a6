"""Compaction judged by a process of its own: the same log, and no harm when the process is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import Closed, CorruptBatch
from onelog.log import judge_process
from onelog.log.compaction import CompactionResult, compact, scope_of
from onelog.log.config import Cleanup, Compaction, StreamConfig
from onelog.log.judge_process import HelperJudge, HelperLost, judge_for
from onelog.log.judging import FindJudge, JudgeJob
from onelog.log.maintenance import HELPER, Maintenance
from onelog.log.partition import Partition
from onelog.log.rewriting import Pace, Rewritten
from onelog.log.syncer import Syncer
from onelog.record.batch import Marker
from onelog.record.compression import ZSTD
from onelog.storage.engine import LogSettings
from onelog.storage.segment import SegmentEngine
from tests.logs import KEY, Node, batches, held, make_partition, put, row

NOW_MS = 1_700_000_000_000
SETTINGS = LogSettings(segment_bytes=2000, topic_index=False)
Made = Callable[[str], Partition]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Made]:
    """Makes partitions of the segment engine."""
    clock, syncer = ManualClock(), Syncer(1)
    engines = []

    def new(name: str) -> Partition:
        engines.append(SegmentEngine(tmp_path / name, clock))
        return make_partition(engines[-1].open(KEY, SETTINGS), syncer, clock)

    yield new
    await syncer.close()
    for engine in engines:
        engine.close()


def fill(partition: Partition) -> None:
    """Keys that come again, tombstones, records without key, codecs, transactions of both ends."""
    chance = random.Random(7)
    for number in range(120):
        rows = [
            row(
                chance.choice((None, b"k%d" % chance.randrange(30), b"long" * 20)),
                chance.choice((None, b"v%d" % number, b"v" * 50)),
            )
            for _ in range(chance.randrange(1, 5))
        ]
        kind = chance.randrange(4)
        if kind:
            put(partition, *rows, codec=chance.choice((0, ZSTD)))
            continue
        producer = 1000 + number
        put(partition, *rows, producer=(producer, 0, 0), transactional=True)
        partition.append_marker(chance.choice((Marker.ABORT, Marker.COMMIT)), producer, 0)
    partition.log.roll()
    put(partition, row(b"k0", b"active"))


def clean(partition: Partition, find_judge: FindJudge, keys_max: int = 1000) -> CompactionResult:
    return compact(
        partition.log,
        scope_of(partition),
        now_ms=NOW_MS,
        config=Compaction(tombstone_ms=1000),
        segment_bytes=SETTINGS.segment_bytes,
        pace=lambda: None,
        keys_max=keys_max,
        find_judge=find_judge,
    )


def stored(partition: Partition) -> list[bytes]:
    return [
        bytes(data[info.position : info.position + info.size_bytes])
        for data, info in batches(partition.log)
    ]


def with_helper(stop: threading.Event | None = None) -> FindJudge:
    return judge_for(1, stop or threading.Event())


@pytest.mark.parametrize("keys_max", [1000, 10])
async def test_a_helper_makes_the_same_log_as_a_thread(make: Made, keys_max: int) -> None:
    here, there = make("here"), make("there")
    fill(here)
    fill(there)
    for _ in range(3):
        assert clean(there, with_helper(), keys_max) == clean(
            here, judge_for(0, threading.Event()), keys_max
        )
        assert stored(there) == stored(here)


async def test_small_logs_are_judged_in_the_thread() -> None:
    job = JudgeJob((), {}, NOW_MS, 1000, 10)
    find = judge_for(100, threading.Event())
    assert not isinstance(find(job, lambda: None, 99), HelperJudge)
    judge = find(job, lambda: None, 100)
    assert isinstance(judge, HelperJudge)
    judge.close()


async def test_a_helper_that_is_killed_leaves_the_log_as_it_was(make: Made, tmp_path: Path) -> None:
    class Dying(HelperJudge):
        __slots__ = ()

        def clean(self, data: memoryview) -> Rewritten:
            os.kill(self.pid, signal.SIGKILL)
            return super().clean(data)

    def find(job: JudgeJob, _pace: Pace, _size_bytes: int) -> HelperJudge:
        return Dying(job, threading.Event())

    partition = make("it")
    fill(partition)
    before = held(partition.log)
    with pytest.raises(HelperLost):
        clean(partition, find)
    assert held(partition.log) == before
    assert not list(tmp_path.rglob("*.cleaned*"))
    assert clean(partition, with_helper()).records_dropped > 0


async def test_a_helper_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    def hang(file_descriptor: int) -> subprocess.Popen[bytes]:
        # It holds the socket open and reads nothing.
        code = "import time; time.sleep(60)"
        begun.append(subprocess.Popen([sys.executable, "-c", code], pass_fds=[file_descriptor]))
        return begun[0]

    monkeypatch.setattr(judge_process, "_spawn", hang)
    monkeypatch.setattr(judge_process, "ANSWER_S_MAX", 0.05)
    with pytest.raises(HelperLost, match="does not answer"):
        HelperJudge(JudgeJob((), {}, NOW_MS, 1000, 10), threading.Event())
    assert begun[0].returncode == -signal.SIGKILL


async def test_a_helper_ends_when_its_broker_is_gone() -> None:
    judge = HelperJudge(JudgeJob((), {}, NOW_MS, 1000, 10), threading.Event())
    judge._channel.close()
    assert judge._process.wait(30) == 0


async def test_a_helper_takes_no_module_from_the_folder_it_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    HelperJudge(JudgeJob((), {}, NOW_MS, 1000, 10), threading.Event()).close()


async def test_a_helper_tells_damage(make: Made, tmp_path: Path) -> None:
    """I9: a new CRC must never be written over bytes that nobody wrote."""
    partition = make("it")
    put(partition, row(b"a", b"first value"), row(b"a", b"second value"))
    partition.log.roll()
    partition.log.sync()
    put(partition, row(b"a", b"active"))
    (path,) = [path for path in tmp_path.rglob("*.log") if b"second" in path.read_bytes()]
    damaged = path.read_bytes().replace(b"second", b"sec0nd")
    with path.open("r+b") as file:
        file.write(damaged)
    with pytest.raises(CorruptBatch):
        clean(partition, with_helper())
    assert path.read_bytes() == damaged


async def test_a_pass_with_a_helper_stops_when_told_to(make: Made) -> None:
    partition, stop = make("it"), threading.Event()
    fill(partition)
    stop.set()
    with pytest.raises(Closed):
        clean(partition, with_helper(stop))


async def test_a_lost_helper_is_told_and_a_thread_makes_the_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_file_descriptor: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr(judge_process, "_spawn", die)
    node = Node(tmp_path)
    await node.start()
    config = StreamConfig(name="c", captures=("c",), cleanup=Cleanup.COMPACT)
    stream = await node.catalog.create(config)
    (partition,) = stream.partitions
    put(partition, row(b"k", b"old"), row(b"k", b"new"))
    partition.log.roll()
    last = put(partition, row(b"l", b"active"))
    await partition.wait_visible(last.base_offset)
    keeper = Maintenance(node.catalog, node.syncer, node.clock, lambda *_: None, helper_bytes_min=1)
    await keeper.compact_once()
    assert (keeper.counters.compactions, keeper.counters.errors) == (1, 0)
    assert [one.value for one in held(partition.log)] == [b"new", b"active"]
    assert node.troubles.count(HELPER) == 1
    await node.stop()
