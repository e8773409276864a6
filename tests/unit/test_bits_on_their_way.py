"""A bit of an answer of the store flips, once: at the start, in joining, and in reading back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from onelog.base.errors import ColdDamaged
from onelog.base.ids import PartitionId
from onelog.objects import names
from onelog.objects.access import Buffer, NameTaken
from onelog.objects.memory import MemoryAccess
from onelog.objects.store import ObjectStore, StoreSettings, Taken
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.object.building import piece_of_rows
from tests.batches import append, fill, make_batch, read_all
from tests.support.object_engine import object_engine

KEY = PartitionKey("s-1", PartitionId(0))
SETTINGS = LogSettings(segment_bytes=3_000)
PLACES = 40
"""Bytes of an answer that are tried."""


class Spoiling(MemoryAccess):
    """A store in memory that flips a bit in one of its answers."""

    def __init__(self, held: dict[str, tuple[bytes, int]] | None = None) -> None:
        super().__init__("spoiling")
        self._objects = dict(held or {})
        self.spoiled: tuple[int, float] | None = None
        """The number of the answer, and where in it."""
        self.answers = 0
        self.lost = 0
        """Writes to come that are done and answered as if they were not."""

    def put(
        self, name: str, parts: Sequence[Buffer], size_bytes: int, *, is_new: bool = False
    ) -> int:
        super().put(name, parts, size_bytes, is_new=is_new)
        if self.lost:
            self.lost -= 1
            raise NameTaken(name)  # the second try, which is made inside, finds the first
        return 1

    def get(self, name: str) -> bytes:
        return self._passed(super().get(name))

    def get_range(self, name: str, start: int, length: int) -> bytes:
        return self._passed(super().get(name)[start : start + length])

    def _passed(self, data: bytes) -> bytes:
        number, self.answers = self.answers, self.answers + 1
        if self.spoiled is None or self.spoiled[0] != number or not data:
            return data
        at = int(self.spoiled[1] * len(data))
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def opened(access: Spoiling) -> ObjectStore:
    return ObjectStore(StoreSettings(url="memory://spoiling"), access)


def held(access: Spoiling) -> dict[str, tuple[bytes, int]]:
    return dict(access._objects)


@pytest.fixture
def written(tmp_path: Path) -> tuple[dict[str, tuple[bytes, int]], bytes]:
    """The objects of an engine that ended as kill -9 ends one, and what they hold."""
    access = Spoiling()
    engine = object_engine(opened(access), tmp_path, checkpoint_objects=3)
    log = engine.open(KEY, SETTINGS)
    for turn in range(6):
        fill(log, 2, size=100)
        log.sync()
        if turn == 2:
            engine.upkeep.settle()
    found, whole = held(access), read_all(log)
    engine.close()
    return found, whole


def test_a_start_reads_again_what_went_bad_on_its_way(written, tmp_path) -> None:
    objects, whole = written
    counted = Spoiling(objects)
    object_engine(opened(counted), tmp_path).close()
    assert any("/c/" in name for name in objects), "there is no checkpoint to read"
    asked = counted.answers
    assert asked > 4
    for number in range(asked):
        access = Spoiling(objects)
        access.spoiled = (number, 0.5)
        engine = object_engine(opened(access), tmp_path)
        assert read_all(engine.open(KEY, SETTINGS)) == whole, number
        engine.close()


def test_an_object_that_stays_bad_is_read_three_times_and_then_named(written, tmp_path) -> None:
    objects, _whole = written
    name = max(one for one in objects if "/w/" in one)
    data, age = objects[name]
    objects[name] = (data[:-1] + bytes([data[-1] ^ 1]), age)
    access = Spoiling(objects)
    read: list[str] = []
    get = access.get
    access.get = lambda one: (read.append(one), get(one))[1]  # type: ignore[method-assign]
    with pytest.raises(ColdDamaged, match=name):
        object_engine(opened(access), tmp_path)
    assert read.count(name) == 3


def test_rows_are_joined_by_what_they_hold_and_not_by_what_came(tmp_path) -> None:
    access = Spoiling()
    store = opened(access)
    engine = object_engine(store, tmp_path, join_rows=100)
    log = engine.open(KEY, LogSettings(topic_index=True))
    for topic in (b"plant/a", b"plant/b"):
        for _ in range(3):
            append(log, make_batch(log.end_offset, 2, topic=topic), topics=None)
        log.sync()
        engine.upkeep.settle()
    rows = list(log.cold_rows(0, log.end_offset))
    engine.close()
    assert len(rows) == 2
    access.answers = 0
    wanted = joined(store, rows)
    for number in range(access.answers):
        for place in range(PLACES):
            access.answers, access.spoiled = 0, (number, place / PLACES)
            assert joined(store, rows) == wanted, (number, place)


def joined(store: ObjectStore, rows: Sequence) -> bytes:
    made = piece_of_rows(store, rows)
    assert made is not None
    return b"".join(made[0].parts)


def test_an_object_of_our_own_is_not_anothers_because_a_bit_flipped_in_reading_it_back() -> None:
    access = Spoiling()
    store = opened(access)
    access.lost, access.spoiled = 1, (0, 0.5)
    name = names.chain_wal("0", 1, 1)
    store.create(name, [b"our", b" own"])
    assert access.answers == 2
    access.spoiled = None
    with pytest.raises(Taken) as taken:
        store.create(name, [b"of another"])
    assert taken.value.found == b"our own"
