"""Does a segment log behave like a list of batches, whatever is done to it in whatever order?"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from onelog.base.clock import ManualClock
from onelog.kernel import BatchInfo, scan_batches, topic_hash
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.segment import SegmentEngine, SegmentLog
from tests.batches import make_batch, read_all

KEY = PartitionKey("s", 0)


class LogMachine(RuleBasedStateMachine):
    """The log beside a model: a list of batches, a start, an end and what is durable."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.clock = ManualClock()
        self.batches: list[tuple[BatchInfo, bytes, bytes]] = []
        self.start = self.end = 0

    @initialize(
        segment_bytes=st.sampled_from([300, 1_000, 100_000]),
        interval=st.sampled_from([1, 200, 4096]),
    )
    def open(self, segment_bytes: int, interval: int) -> None:
        self.settings = LogSettings(segment_bytes=segment_bytes, index_interval_bytes=interval)
        self.engine = SegmentEngine(self.root / "0", self.clock, open_files_max=16)
        self.log: SegmentLog = self.engine.open(KEY, self.settings)
        self.copies = 0

    @rule(
        counts=st.lists(st.integers(1, 4), min_size=1, max_size=4),
        gap=st.sampled_from([0, 0, 0, 3, 1 << 32]),
        size=st.integers(0, 120),
        codec=st.sampled_from([0, 0, 4]),
        topic=st.sampled_from([b"a", b"b", b"c"]),
    )
    def append(self, counts: list[int], gap: int, size: int, codec: int, topic: bytes) -> None:
        made, offset = [], self.end + gap
        for count in counts:
            stamp = self.clock.now_ms()
            made.append(
                make_batch(offset, count, size=size, topic=topic, timestamp_ms=stamp, codec=codec)
            )
            offset += count
        data = b"".join(made)
        infos = scan_batches(data)
        self.log.append(data, infos)
        self.batches += [(info, held, topic) for info, held in zip(infos, made, strict=True)]
        self.end = offset

    @rule(seconds=st.integers(0, 100))
    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def sync(self) -> None:
        assert self.log.sync() == self.end

    @rule(part=st.floats(0, 1))
    def trim(self, part: float) -> None:
        start = self.start + round((self.end - self.start) * part)
        self.log.trim(start)
        self.start = max(self.start, start)
        self.batches = [held for held in self.batches if held[0].last_offset >= self.start]

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        end = self.start + round((self.end - self.start) * part)
        self.log.truncate(end)
        if end < self.end:
            self.batches = [held for held in self.batches if held[0].last_offset < end]
            last = self.batches[-1][0].last_offset + 1 if self.batches else self.start
            assert last <= self.log.end_offset <= end
            self.end = self.log.end_offset

    @rule(keep=st.integers(1, 3), abort=st.booleans())
    def rewrite(self, keep: int, abort: bool) -> None:
        rows = [row for row in self.log.segments() if row.sealed]
        if not rows:
            return
        start, end = rows[0].base_offset, rows[-1].end_offset
        inside = [held for held in self.batches if start <= held[0].base_offset < end]
        kept = inside[::keep]
        rewrite = self.log.rewrite(start, end)
        for _, data, _ in kept:
            rewrite.append(data, scan_batches(data))
        if abort:
            rewrite.abort()
            return
        rewrite.commit()
        self.batches = kept + [held for held in self.batches if held[0].base_offset >= end]

    @rule()
    def reopen(self) -> None:
        self.engine.close()
        self.engine = SegmentEngine(self.root / str(self.copies), self.clock, open_files_max=16)
        assert self.engine.was_clean
        self.log = self.engine.open(KEY, self.settings)
        assert self.log.recovery.clean

    @rule()
    def crash(self) -> None:
        """As kill -9 does: all that was written is there, nothing was closed."""
        self.copies += 1
        old = self.engine
        shutil.copytree(self.root / str(self.copies - 1), self.root / str(self.copies))
        old.close()
        self.engine = SegmentEngine(self.root / str(self.copies), self.clock, open_files_max=16)
        self.log = self.engine.open(KEY, self.settings)
        assert self.log.durable_offset == self.log.end_offset

    @precondition(lambda self: self.batches)
    @rule(part=st.floats(0, 1), max_bytes=st.integers(0, 600))
    def read(self, part: float, max_bytes: int) -> None:
        offset = self.start + round((self.end - self.start) * part)
        upto = self.end
        got = self.log.read(offset, max_bytes, upto)
        rest = [held for held in self.batches if held[0].last_offset >= offset]
        assert bool(len(got)) == bool(rest)
        wanted = b"".join(data for _, data, _ in rest)
        assert wanted.startswith(bytes(got))
        if rest:
            assert len(got) <= max(max_bytes, len(rest[0][1]))

    @rule(topic=st.sampled_from([b"a", b"b", b"nobody"]))
    def find_topic(self, topic: bytes) -> None:
        found = self.log.offsets_of_topic(topic_hash(topic), self.start, self.end, 10_000)
        assert found == [
            offset
            for info, _, held in self.batches
            if held == topic
            for offset in range(max(info.base_offset, self.start), info.last_offset + 1)
        ]

    @rule(back_s=st.integers(-10, 300))
    def find_time(self, back_s: int) -> None:
        wanted = self.clock.now_ms() - back_s * 1000
        expected = next(
            (info.base_offset for info, *_ in self.batches if info.max_timestamp_ms >= wanted), None
        )
        assert self.log.offset_for_time(wanted) == expected

    @invariant()
    def same(self) -> None:
        log = self.log
        assert (log.start_offset, log.end_offset) == (self.start, self.end)
        assert log.durable_offset <= log.end_offset
        assert read_all(log) == b"".join(data for _, data, _ in self.batches)
        assert sum(row.size_bytes for row in log.segments()) == log.size_bytes

    def teardown(self) -> None:
        with contextlib.suppress(AttributeError):
            self.engine.close()
        shutil.rmtree(self.root)


LogMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLogMachine = LogMachine.TestCase
