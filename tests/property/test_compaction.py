"""Compaction against a naive model: what a reader of the latest values sees never changes."""

import asyncio
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.base.clock import ManualClock
from onelog.log.compaction import compact, scope_of
from onelog.log.config import Compaction
from onelog.log.partition import Partition
from onelog.log.replay import replay_state
from onelog.log.syncer import Syncer
from onelog.record.batch import Marker, Row
from tests.logs import Held, held, make_partition, memory_log, put, row

DAY_MS = 24 * 3600 * 1000


class Write(NamedTuple):
    """One batch: who writes it, and what."""

    producer: int
    transactional: bool
    codec: int
    records: list[tuple[bytes | None, bytes | None]]


class End(NamedTuple):
    """The end of a producer's transaction."""

    producer: int
    marker: Marker


class Roll(NamedTuple):
    """Seal the active segment."""


class Compact(NamedTuple):
    """Let time pass, then clean."""

    days: float
    keys_max: int
    segment_bytes: int


keys = st.sampled_from([b"a", b"b", b"x" * 40, None])
values = st.none() | st.binary(min_size=1, max_size=3)
writes = st.builds(
    Write,
    st.sampled_from([-1, 1, 2]),
    st.booleans(),
    st.sampled_from([0, 0, 4]),
    st.lists(st.tuples(keys, values), min_size=1, max_size=3),
)
steps = st.one_of(
    writes,
    writes,
    st.builds(End, st.sampled_from([1, 2]), st.sampled_from(Marker)),
    st.builds(Roll),
    st.builds(
        Compact,
        st.sampled_from([0, 0.4, 1, 2]),
        st.sampled_from([1, 3, 100]),
        st.sampled_from([300, 1 << 20]),
    ),
)


class Model:
    """Every record that was ever written, and how its transaction ended."""

    def __init__(self, partition: Partition, clock: ManualClock) -> None:
        self.partition = partition
        self.clock = clock
        self.records: dict[int, Held] = {}
        self.aborted: set[int] = set()
        self.cleaned_ms: dict[int, int] = {}
        self._sequences: dict[int, int] = {}
        self._open: dict[int, list[int]] = {}

    def write(self, step: Write) -> None:
        now_ms = self.clock.now_ms()
        rows: list[Row] = [row(key, value, now_ms) for key, value in step.records]
        if step.producer < 0:
            placed = put(self.partition, *rows, codec=step.codec)
        else:
            sequence = self._sequences.get(step.producer, 0)
            self._sequences[step.producer] = sequence + len(rows)
            # A producer inside a transaction writes only transactional batches.
            transactional = step.transactional or step.producer in self._open
            placed = put(
                self.partition,
                *rows,
                codec=step.codec,
                producer=(step.producer, 0, sequence),
                transactional=transactional,
            )
            if transactional:
                self._open.setdefault(step.producer, []).extend(
                    range(placed.base_offset, placed.end_offset)
                )
        for offset, (key, value) in enumerate(step.records, placed.base_offset):
            self.records[offset] = Held(offset, key, value, now_ms)

    def end(self, step: End) -> None:
        self.partition.append_marker(step.marker, step.producer, 0)
        offsets = self._open.pop(step.producer, [])
        if step.marker is Marker.ABORT:
            self.aborted.update(offsets)

    def compact(self, step: Compact) -> None:
        self.clock.advance(step.days * DAY_MS / 1000)
        active = self.partition.log.segments()[-1].base_offset
        stable = self.partition.last_stable_offset
        before = held(self.partition.log)
        result = compact(
            self.partition.log,
            scope_of(self.partition),
            now_ms=self.clock.now_ms(),
            config=Compaction(tombstone_ms=DAY_MS),
            segment_bytes=step.segment_bytes,
            pace=lambda: None,
            keys_max=step.keys_max,
        )
        assert result.cleaned_upto <= min(active, stable)
        after = held(self.partition.log)
        untouchable = min(active, stable)
        assert [one for one in after if one.offset >= untouchable] == [
            one for one in before if one.offset >= untouchable
        ], "the active segment and undecided records are never touched"
        for offset in range(result.cleaned_upto):
            self.cleaned_ms.setdefault(offset, self.clock.now_ms())
        if result.complete:
            self.check_clean(after, result.cleaned_upto)
        self.check(after)

    def latest(self, found: list[Held], upto: int) -> dict[bytes, Held]:
        """The newest committed record of each key below `upto`."""
        return {
            one.key: one
            for one in found
            if one.key is not None and one.offset < upto and one.offset not in self.aborted
        }

    def check_clean(self, found: list[Held], upto: int) -> None:
        below = [one for one in found if one.offset < upto]
        assert not any(one.offset in self.aborted for one in below)
        named = [one.key for one in below if one.key is not None]
        assert len(named) == len(set(named)), "one record per key"

    def check(self, found: list[Held]) -> None:
        assert [one.offset for one in found] == sorted({one.offset for one in found})
        for one in found:
            assert one == self.records[one.offset], "what stays is what was written, where it was"
        there = {one.offset for one in found}
        stable = self.partition.last_stable_offset
        now = self.latest(found, stable)
        for key, wanted in self.latest(list(self.records.values()), stable).items():
            if wanted.value is not None or wanted.offset in there:
                assert now[key] == wanted
                continue
            assert key not in now, "an older record of a deleted key is never the newest"
            assert self.clock.now_ms() >= self.cleaned_ms[wanted.offset] + DAY_MS, "too early"
        for one in self.records.values():
            if one.key is None and one.offset not in self.aborted:
                assert one.offset in there

    def check_replay(self) -> None:
        """Sequences and transactions can be rebuilt from what is left."""
        live = self.partition.producers
        again, _ = replay_state(self.partition.log, self.clock.now_ms())
        assert again.first_open_offset == live.first_open_offset
        for entry in live.entries():
            found = again.entry(entry.producer_id)
            if entry.batches:
                assert found is not None
                assert found.epoch == entry.epoch
                assert found.batches[-1] == entry.batches[-1]


@settings(deadline=None, max_examples=300)
@given(st.lists(steps, min_size=5, max_size=40))
def test_compaction_keeps_the_latest_value_of_every_key(script: list[NamedTuple]) -> None:
    async def run() -> None:
        clock = ManualClock()
        log = memory_log(clock)
        model = Model(make_partition(log, Syncer(1), clock), clock)
        for step in [*script, Roll(), Compact(0, 100, 1 << 20), Compact(1, 100, 1 << 20)]:
            if isinstance(step, Write):
                model.write(step)
            elif isinstance(step, End):
                model.end(step)
            elif isinstance(step, Compact):
                model.compact(step)
            else:
                log.roll()
        model.check_replay()

    asyncio.run(run())
