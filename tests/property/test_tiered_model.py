"""Do random histories of a tiered partition, with crashes at every step, keep every record once?

The model is the list of batches that were appended, and where the log begins and ends. A crash is
an exception that nothing catches, at a fault point; then the engine is left as it is, and another
one is opened on the same folder. What the broken step was to do is done, or not done.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.base import faults
from onelog.base.clock import ManualClock
from onelog.base.errors import StorageError
from onelog.base.ids import Offset
from onelog.kernel import scan_batches, topic_hash
from onelog.objects.sweeping import sweep
from onelog.storage.engine import in_place
from onelog.storage.tiered import TieredEngine, TieredLog, stored_partition
from tests.batches import append, make_batch, read_all
from tests.support.tiers import KEY, SMALL, Owner, memory_store, tiered

POINTS = (
    "store.put", "store.put.after", "store.get", "store.delete", "tier.manifest", "tier.local",
    "tier.trim", "doom.delete", "segment.checkpoint", "segment.checkpoint.written", "segment.swap",
    "segment.unlink", "segment.truncate",
)  # fmt: skip
STEPS = (
    "append", "append", "append", "roll", "upload", "upload", "trim", "trim_local", "settle",
    "restart", "bring_back", "delete_cold", "truncate", "sweep",
)  # fmt: skip
steps = st.lists(
    st.tuples(
        st.sampled_from(STEPS),
        st.integers(0, 10**6),
        st.one_of(st.none(), st.tuples(st.sampled_from(POINTS), st.integers(0, 3))),
    ),
    max_size=30,
)


class Crash(BaseException):
    """The process ends here."""


def crash_after(count: int) -> Callable[[], None]:
    left = count

    def action() -> None:
        nonlocal left
        if left == 0:
            raise Crash
        left -= 1

    return action


class World:
    """A partition, its store, and what it must hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.store = memory_store()
        self.batches: dict[int, bytes] = {}
        self.start = self.end = 0
        self.engine: TieredEngine
        self.log: TieredLog
        self.open()

    def open(self) -> None:
        self.engine = tiered(self.folder, self.store, self.clock)
        before = self.asked
        self.log = self.engine.open(KEY, SMALL)
        assert self.asked == before, "a start asks the store nothing"

    @property
    def asked(self) -> int:
        counts = self.store.counts
        return counts.put + counts.get + counts.list + counts.delete

    def step(self, name: str, number: int) -> None:
        log, clock = self.log, self.clock
        span = max(1, self.end - self.start + 1)
        somewhere = Offset(self.start + number % span)
        match name:
            case "append":
                for count in range(1, 4 + number % 12):
                    offset = log.end_offset
                    size = 1 + (number + count) % 5
                    batch = make_batch(offset, size, size=number % 60, topic=b"t/%d" % (offset % 3))
                    self.batches[offset] = batch
                    append(log, batch)
                    self.end = offset + size
            case "roll":
                log.roll()
                log.sync()
            case "upload":
                log.sync()
                log.tier.upload(somewhere if number % 3 else log.end_offset, Owner())
            case "trim":
                self.start = max(self.start, somewhere)
                log.sync()
                log.trim(somewhere)
            case "trim_local":
                log.tier.trim_local(somewhere if number % 2 else log.end_offset)
            case "settle":
                clock.advance(number % 10)
                log.tier.settle(clock.now_ms(), 5_000)
            case "restart":
                self.engine.close()
                self.open()
            case "bring_back":
                log.tier.bring_back()
            case "delete_cold":
                self.start = log.local_start_offset
                log.tier.delete_cold()
            case "truncate":
                self.end = somewhere
                log.truncate(somewhere)
            case "sweep":
                sweep(self.store, self.engine.keepers(), age_ms=-10_000)

    def run(self, name: str, number: int, crash: tuple[str, int] | None) -> None:
        before = (self.start, self.end)
        if crash is not None:
            faults.arm(crash[0], crash_after(crash[1]))
        try:
            self.step(name, number)
        except Crash:
            faults.disarm()
            self.open()
            if name == "delete_cold":
                self.log.tier.keep([])  # what is in the store counts from the first contact on
        finally:
            faults.disarm()
        self.settle_model(before, name)
        self.check()

    def settle_model(self, before: tuple[int, int], name: str) -> None:
        """A broken step was done or not: both are right."""
        log = self.log
        if name in ("trim", "delete_cold", "truncate"):
            assert before[0] <= log.start_offset <= max(self.start, before[0]) or name == "truncate"
            self.start = log.start_offset
        if name == "truncate":
            assert log.end_offset <= before[1]
            assert log.start_offset in (before[0], min(before[0], log.end_offset))
            self.end = log.end_offset
            self.batches = {
                base: data for base, data in self.batches.items() if last_of(data) < self.end
            }
        if name == "append":
            self.end = log.end_offset

    def check(self) -> None:
        log = self.log
        assert (log.start_offset, log.end_offset) == (self.start, self.end)
        held = [
            data for base, data in sorted(self.batches.items())
            if last_of(data) >= self.start and last_of(data) < self.end
        ]  # fmt: skip
        assert read_all(log, max_bytes=600) == b"".join(held)
        self.check_places()
        for at in range(3):
            topic = topic_hash(b"t/%d" % at)
            wanted = [
                offset
                for base, data in sorted(self.batches.items())
                if base % 3 == at
                for offset in range(base, last_of(data) + 1)
                if self.start <= offset < self.end
            ]
            found = in_place(
                log, lambda topic=topic: log.offsets_of_topic(topic, self.start, self.end, 10**6)
            )
            assert found == wanted

    def check_places(self) -> None:
        log = self.log
        rows = log.segments()
        for row, after in pairwise(rows):
            assert row.base_offset < row.end_offset == after.base_offset
        assert rows[0].base_offset <= max(self.start, log.local_start_offset)
        assert rows[-1].end_offset == self.end
        cold = [row for row in rows if row.place == "cold"]
        assert all(row.end_offset <= log.local_start_offset for row in cold)
        order = {"cold": 0, "both": 1, "local": 2}
        kinds = [order[row.place] for row in rows]
        assert kinds == sorted(kinds)
        names = {row.name for row in self.store.list("t/")}
        assert {row.object for row in log.cold_rows(self.start, self.end)} <= names

    def finish(self) -> None:
        """Whatever happened: everything is moved, nothing lies in the store for nothing."""
        log, clock = self.log, self.clock
        log.roll()
        log.sync()
        while log.tier.upload(log.end_offset, Owner()) is not None:
            pass
        log.tier.trim_local(log.end_offset)
        self.check()
        log.tier.settle(clock.now_ms(), 0)
        log.tier.settle(clock.now_ms(), 0)
        sweep(self.store, self.engine.keepers(), age_ms=-10_000)
        names = {row.name for row in self.store.list("t/")}
        known = log.cold_rows(Offset(0), log.end_offset)
        assert names == {row.object for row in known}
        if known:
            assert list(stored_partition(self.store, KEY).manifest.rows) == list(known)
        self.engine.close()


def last_of(data: bytes) -> int:
    return scan_batches(data)[-1].last_offset


@settings(max_examples=60, deadline=None)
@given(steps)
def test_any_history_with_crashes_keeps_every_record_once_and_leaves_no_object_unnamed(history):
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "data")
        for name, number, crash in history:
            world.run(name, number, crash)
        world.finish()


@settings(max_examples=40, deadline=None)
@given(steps)
def test_any_history_of_failing_steps_goes_on_in_the_same_process(history):
    """Errors instead of crashes: the same engine goes on."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "data")
        for name, number, failure in history:
            before = (world.start, world.end)
            if failure is not None and not failure[0].startswith("segment."):
                faults.arm(failure[0], faults.fail_with(5, failure[1]))
            try:
                world.step(name, number)
            except StorageError:
                pass
            finally:
                faults.disarm()
            world.settle_model(before, name)
            world.check()
        world.finish()
