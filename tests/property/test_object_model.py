"""The object engine against a plain list of batches: whatever is done to partitions, and whenever a
broker is replaced by another one without a word, the log is what the list says.

`ONELOG_OBJECT_HISTORIES` says how many histories run; a failure names its seed.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import StoreFenced
from onelog.base.ids import PartitionId
from onelog.kernel import scan_batches, topic_hash
from onelog.objects.memory import MemoryAccess
from onelog.objects.store import ObjectStore, StoreSettings
from onelog.storage.engine import LogSettings, PartitionKey, in_place
from onelog.storage.object import ObjectEngine
from tests.batches import append, make_batch, read_all
from tests.support.object_engine import object_engine

HISTORIES = int(os.environ.get("ONELOG_OBJECT_HISTORIES", "60"))
STEPS = 60
KEYS = [PartitionKey("s-1", PartitionId(0)), PartitionKey("s-1", PartitionId(1))]
SETTINGS = LogSettings(segment_bytes=1500)
TOPICS = (b"a", b"b/c")


class Expected:
    """One partition as it must be: (first, last, topic, bytes) of its batches."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self.batches: list[tuple[int, int, bytes, bytes]] = []
        self.state: tuple[int, bytes] | None = None

    def visible(self) -> list[tuple[int, int, bytes, bytes]]:
        return [row for row in self.batches if row[1] >= self.start]


class ObjectHistory:
    """What happens to two partitions, by a seed."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = random.Random(seed)
        self.directory = directory
        self.store = ObjectStore(StoreSettings(url=f"memory://{seed}"), MemoryAccess(str(seed)))
        self.clock = ManualClock()
        self.expected = {key: Expected() for key in KEYS}
        self.old: list[ObjectEngine] = []
        self.engine = self._engine()

    def _engine(self) -> ObjectEngine:
        engine = object_engine(
            self.store, self.directory, self.clock, join_rows=3, own_object_bytes=800,
            checkpoint_objects=self.rng.choice([1, 5, 1000]), batch_bytes=2000,
        )  # fmt: skip
        self.logs = {key: engine.open(key, SETTINGS) for key in KEYS}
        return engine

    def run(self) -> None:
        rng = self.rng
        steps = [
            self.append, self.append, self.append, self.append, self.settle, self.trim, self.cut,
            self.roll, self.rewrite, self.save, self.take_over, self.upkeep, self.drop, self.sync,
        ]  # fmt: skip
        weights = [1.0] * len(steps)
        weights[steps.index(self.drop)] = 0.1
        for _ in range(STEPS):
            rng.choices(steps, weights)[0](rng.choice(KEYS))
            self.clock.advance(rng.choice([0.001, 1, 100]))
            if rng.random() < 0.2:
                self.check()
        self.take_over(KEYS[0])
        self.check()
        for engine in (*self.old, self.engine):
            engine.close()

    # What happens.

    def append(self, key: PartitionKey) -> None:
        expected, log, rng = self.expected[key], self.logs[key], self.rng
        made = []
        for _ in range(rng.randrange(1, 4)):
            expected.end += rng.choice([0, 0, 0, 5])
            count, topic = rng.randrange(1, 4), rng.choice(TOPICS)
            data = make_batch(expected.end, count, size=rng.choice([5, 300]), topic=topic)
            expected.batches.append((expected.end, expected.end + count - 1, topic, data))
            expected.end += count
            made.append(data)
        append(log, *made)

    def settle(self, _key: PartitionKey) -> None:
        self.engine.upkeep.settle()

    def upkeep(self, _key: PartitionKey) -> None:
        self.engine.upkeep.work()

    def sync(self, key: PartitionKey) -> None:
        assert self.logs[key].sync() == self.expected[key].end

    def roll(self, key: PartitionKey) -> None:
        self.logs[key].roll()

    def save(self, key: PartitionKey) -> None:
        expected = self.expected[key]
        expected.state = (expected.end, b"state of %d" % expected.end)
        self.logs[key].save_state("s", *expected.state)

    def trim(self, key: PartitionKey) -> None:
        expected = self.expected[key]
        expected.start = self.rng.randint(expected.start, expected.end)
        self.logs[key].trim(expected.start)

    def cut(self, key: PartitionKey) -> None:
        expected, log = self.expected[key], self.logs[key]
        if self.rng.random() < 0.5:
            return
        end = self.rng.randint(expected.start, expected.end)
        log.truncate(end)
        if end < expected.end:
            expected.batches = [row for row in expected.batches if row[1] < end]
            last = expected.batches[-1][1] + 1 if expected.batches else 0
            assert last <= log.end_offset <= end
            expected.end = int(log.end_offset)
            expected.start = min(expected.start, expected.end)
            if expected.state is not None and expected.state[0] > expected.end:
                expected.state = None

    def rewrite(self, key: PartitionKey) -> None:
        expected, log, rng = self.expected[key], self.logs[key], self.rng
        rows = [row for row in log.segments() if row.sealed]
        if not rows:
            return
        first = rng.randrange(len(rows))
        last = rng.randrange(first, len(rows))
        start, end = rows[first].base_offset, rows[last].end_offset
        rewrite = log.rewrite(start, end)
        kept = []
        for row in expected.batches:
            if start <= row[0] < end and row[1] >= expected.start:
                if rng.random() < 0.6:
                    rewrite.append(row[3], scan_batches(row[3]))
                    kept.append(row)
            else:
                kept.append(row)
        if rng.random() < 0.2:
            rewrite.abort()
        else:
            rewrite.commit()
            expected.batches = kept

    def drop(self, key: PartitionKey) -> None:
        self.logs[key].close()
        self.engine.delete(key)
        self.expected[key] = Expected()
        self.logs[key] = self.engine.open(key, SETTINGS)

    def take_over(self, key: PartitionKey) -> None:
        """Another broker opens the chain; what the old one did not sync may be lost, so it does."""
        self.logs[key].sync()
        self.old.append(self.engine)
        old = self.logs
        self.engine = self._engine()
        with pytest.raises(StoreFenced):
            append(old[key], make_batch(int(old[key].end_offset)))
            old[key].sync()

    # What must hold.

    def check(self) -> None:
        for key, expected in self.expected.items():
            log = self.logs[key]
            rows = expected.visible()
            assert (log.start_offset, log.end_offset) == (expected.start, expected.end)
            assert read_all(log) == b"".join(row[3] for row in rows)
            state = log.load_state("s")
            if expected.state is not None:
                assert state == expected.state
            for topic in TOPICS:
                found = in_place(
                    log,
                    lambda log=log, topic=topic: log.offsets_of_topic(
                        topic_hash(topic), log.start_offset, log.end_offset, 10_000
                    ),
                )
                exact = [
                    offset
                    for first, last, of, _ in rows
                    if of == topic
                    for offset in range(max(first, expected.start), last + 1)
                ]
                assert found is not None
                assert [at for at in found if at in set(exact)] == exact
            infos = log.segments()
            assert sum(info.size_bytes for info in infos) == log.size_bytes
            assert infos[-1].end_offset == expected.end
            memory = sum(row.memory_bytes for row in self.engine.core.contents.values())
            assert memory == self.engine.core.unsettled_bytes


def test_the_log_is_what_was_written_whatever_happens_to_it(tmp_path):
    for seed in range(HISTORIES):
        history = ObjectHistory(seed, tmp_path)
        try:
            history.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
