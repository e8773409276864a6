"""Cold rows against a plain list: whatever is read, evicted, joined, dropped and read at once."""

from __future__ import annotations

import random
import tempfile
import threading
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.base.errors import OffsetOutOfRange
from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import BatchInfo, scan_batches, topic_hash
from onelog.objects import index_building
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.storage.cold import ColdRows, RunCache
from onelog.storage.engine import in_place
from tests.batches import make_batch
from tests.support.pieces import put_piece, small_cache

NAMES = count()
TOPICS = (b"a", b"b", b"c")


class Model:
    """A partition as a list of batches, and the same in a store."""

    def __init__(self, seed: int, store: ObjectStore, cache: RunCache) -> None:
        self.dice = random.Random(seed)
        self.store = store
        self.batches: list[tuple[BatchInfo, bytes, bytes]] = []
        offset = self.dice.choice((0, 1000))
        for _ in range(self.dice.randrange(1, 60)):
            offset += self.dice.choice((0, 0, 0, 3))
            topic = self.dice.choice(TOPICS)
            records = self.dice.randrange(1, 4)
            data = make_batch(
                offset,
                records,
                size=self.dice.choice((1, 300, 300, 3000)),
                topic=topic,
                timestamp_ms=self.dice.randrange(1000, 2000),
            )
            self.batches.append((scan_batches(data)[0], data, topic))
            offset += records
        self.rows = self.cut()
        self.start = self.rows[0].base
        self.cold = ColdRows("p", store, cache, self.rows)

    def put(self, base: int, end: int) -> Row:
        inside = [data for info, data, _ in self.batches if base <= info.base_offset < end]
        before = b"x" * self.dice.choice((0, 7))
        return put_piece(self.store, f"o{next(NAMES)}", base, end, inside, before=before)

    def cut(self) -> list[Row]:
        rows = []
        base = self.batches[0][0].base_offset
        last = len(self.batches) - 1
        for number, (info, _, _) in enumerate(self.batches):
            if number == last or self.dice.random() < 0.15:
                rows.append(self.put(base, info.last_offset + 1))
                base = info.last_offset + 1
        return rows

    def join(self) -> None:
        """Neighbours become one; the old objects go."""
        first = self.dice.randrange(len(self.rows))
        last = self.dice.randrange(first, len(self.rows)) + 1
        joined = self.put(self.rows[first].base, self.rows[last - 1].end)
        old = self.rows[first:last]
        self.rows[first:last] = [joined]
        self.cold.replace(self.cold.rows.spliced(first, last, [joined]), start=Offset(self.start))
        assert list(self.cold.rows) == self.rows
        self.store.delete([row.object for row in old])

    def drop(self) -> None:
        """Retention takes rows from the start."""
        gone = self.dice.randrange(len(self.rows))
        old, self.rows = self.rows[:gone], self.rows[gone:]
        self.start = max(self.start, self.rows[0].base)
        self.cold.replace(self.rows, start=Offset(self.start))
        self.store.delete([row.object for row in old])

    def seen(self) -> list[tuple[BatchInfo, bytes, bytes]]:
        return [row for row in self.batches if row[0].last_offset >= self.start]

    @property
    def end(self) -> int:
        return self.rows[-1].end

    def check_read(self, dice: random.Random, *, racing: bool = False) -> None:
        offset = dice.randrange(self.start, self.end + 1)
        upto = dice.choice((self.end, self.end + 5, dice.randrange(self.start, self.end + 1)))
        max_bytes = dice.choice((1, 700, 5000, 1 << 20))
        read = partial(self.cold.read, Offset(offset), max_bytes, Offset(upto))
        try:
            found = bytes(in_place(self.cold, read))
        except OffsetOutOfRange:
            assert racing
            return
        wanted = [row for row in self.batches if row[0].last_offset >= offset]
        infos = scan_batches(found)
        assert found == b"".join(data for _, data, _ in wanted[: len(infos)])
        assert all(info.last_offset < upto for info in infos)
        assert len(found) <= max_bytes or len(infos) == 1
        if not infos and not racing:
            assert not wanted or wanted[0][0].last_offset >= upto

    def check_all(self) -> None:
        offset, found = self.start, b""
        max_bytes = self.dice.choice((1, 2000))
        while data := bytes(
            in_place(self.cold, partial(self.cold.read, Offset(offset), max_bytes, Offset(1 << 60)))
        ):
            found += data
            offset = scan_batches(data)[-1].last_offset + 1
        assert found == b"".join(data for _, data, _ in self.seen())

    def check_time(self) -> None:
        time = self.dice.randrange(990, 2010)
        found = in_place(self.cold, partial(self.cold.offset_for_time, TimestampMs(time)))
        reached = (i.base_offset for i, _, _ in self.seen() if i.max_timestamp_ms >= time)
        first = next(reached, None)
        assert found == (None if first is None else max(first, self.start))

    def check_topic(self) -> None:
        topic = self.dice.choice((*TOPICS, b"absent"))
        start = self.dice.randrange(0, self.end + 1)
        upto = self.dice.choice((1 << 60, self.dice.randrange(0, self.end + 1)))
        limit = self.dice.choice((1, 5, 1000))
        ask = partial(
            self.cold.offsets_of_topic, topic_hash(topic), Offset(start), Offset(upto), limit
        )
        wanted = [
            offset
            for info, _, its in self.batches
            for offset in range(info.base_offset, info.last_offset + 1)
            if its == topic and max(start, self.start) <= offset < upto
        ]
        assert in_place(self.cold, ask) == wanted[:limit]


@pytest.fixture(autouse=True)
def dense_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_building, "INDEX_INTERVAL_BYTES", 600)


def tiny(directory: str) -> RunCache:
    """A few runs of large batches fill it."""
    return small_cache(
        Path(directory), cache_bytes=32 << 10, index_bytes=4096, run_bytes=(512, 1024, 2048)
    )


STEPS = ("read", "read", "read", "all", "time", "topic", "join", "drop")


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.lists(st.sampled_from(STEPS), max_size=25))
def test_cold_rows_read_as_a_plain_list_does(seed: int, steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        cache = tiny(directory)
        store = open_store(StoreSettings(url=f"memory://model-{next(NAMES)}"))
        model = Model(seed, store, cache)
        try:
            for step in (*steps, "all"):
                if step == "read":
                    model.check_read(model.dice)
                else:
                    getattr(model, step if step in ("join", "drop") else f"check_{step}")()
                assert cache.disk_bytes <= 32 << 10
        finally:
            cache.close()
        assert list(Path(directory).iterdir()) == []


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_threads_read_the_same_while_rows_are_joined_and_dropped(seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        cache = tiny(directory)
        store = open_store(StoreSettings(url=f"memory://model-{next(NAMES)}"))
        model = Model(seed, store, cache)
        failures: list[BaseException] = []

        def read_much(number: int) -> None:
            dice = random.Random(seed + number)
            try:
                for _ in range(60):
                    model.check_read(dice, racing=True)
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                failures.append(error)

        threads = [threading.Thread(target=read_much, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(6):
            model.dice.choice((model.join, model.drop))()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        if failures:
            raise failures[0]
        model.check_all()
        cache.close()
        assert list(Path(directory).iterdir()) == []
