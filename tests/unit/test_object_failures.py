"""A step of the object engine fails as a disk does: it is done again; nothing is lost or twice."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onelog.base import faults
from onelog.base.errors import ColdDamaged, ColdUnavailable, StorageError
from onelog.base.ids import PartitionId
from onelog.objects import names
from onelog.objects.store import ObjectStore
from onelog.objects.sweeping import sweep
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.object import ObjectEngine
from tests.batches import fill, make_batch, read_all, spans
from tests.support.object_engine import a_store, object_engine

KEY = PartitionKey("s-1", PartitionId(0))
SETTINGS = LogSettings(segment_bytes=3_000)
UPKEEP = ("settle.put", "settle.note", "chain.checkpoint", "doom.delete")
OPENING = ("open.epoch", "open.fence", "open.base")


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.disarm()


@pytest.fixture
def store() -> ObjectStore:
    return a_store(f"memory://{uuid.uuid4()}")


def engine_of(store: ObjectStore, tmp_path: Path) -> ObjectEngine:
    small = {"join_rows": 3, "own_object_bytes": 1500, "checkpoint_objects": 4}
    return object_engine(store, tmp_path, wait_ms=300, **small)


def failing(after: int) -> tuple[Callable[[], None], list[int]]:
    """An EIO at each pass from one on, and how many passes there were."""
    passes: list[int] = []

    def action() -> None:
        passes.append(len(passes))
        if len(passes) > after:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return action, passes


def write(engine: ObjectEngine, turns: int) -> None:
    """Write and keep up, whatever fails."""
    (log,) = engine._open.values()
    for _ in range(turns):
        fill(log, 4, size=200)
        for step in (log.sync, engine.upkeep.settle, engine.upkeep.work):
            with contextlib.suppress(StorageError, OSError):
                step()


def check_whole(engine: ObjectEngine, store: ObjectStore, end: int) -> None:
    """Every record once, and after a sweep no object that nothing names."""
    log = engine._open.get(KEY) or engine.open(KEY, SETTINGS)
    data = read_all(log)
    assert [first for first, _ in spans(data)] == list(range(end))
    assert all(make_batch(first, size=200) in data for first in range(end))
    engine.upkeep.settle()
    engine.upkeep.work()
    sweep(store, {names.DATA: engine.needed}, age_ms=-1000)
    rows = {row.object for held in engine.core.contents.values() for row in held.cold.rows}
    found = {row.name for row in store.list(names.DATA)}
    assert found == rows | set(engine.core.image.doomed)


@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("point", UPKEEP)
def test_upkeep_that_fails_anywhere_is_made_up_for(store, tmp_path, point, after) -> None:
    engine = engine_of(store, tmp_path)
    engine.open(KEY, SETTINGS)
    action, passes = failing(after)
    faults.arm(point, action)
    write(engine, 12)
    faults.disarm()
    assert len(passes) > after, "nothing failed"
    assert engine.core.chain.error is None, "messages are taken and answered all the time"
    write(engine, 2)
    check_whole(engine, store, 56)
    again = engine_of(store, tmp_path)
    check_whole(again, store, 56)
    again.close()
    engine.close()


def test_a_write_of_the_chain_that_fails_is_tried_until_it_is_in(store, tmp_path) -> None:
    engine = engine_of(store, tmp_path)
    log = engine.open(KEY, SETTINGS)
    action, passes = failing(2)
    faults.arm("chain.put", action)
    for _ in range(4):
        fill(log, 4, size=200)
        with contextlib.suppress(ColdUnavailable):
            engine.core.wait()  # for a bounded time
    assert len(passes) > 2, "nothing failed"
    assert log.durable_offset < log.end_offset == 16, "answered before the store had it"
    assert engine.core.chain.error is None
    faults.disarm()
    engine.core.chain.wait(30)
    assert log.durable_offset == 16
    check_whole(engine, store, 16)
    again = engine_of(store, tmp_path)
    check_whole(again, store, 16)
    again.close()
    engine.close()


@pytest.mark.parametrize("point", OPENING)
def test_a_start_that_fails_anywhere_is_followed_by_one_that_finds_everything(
    store, tmp_path, point
) -> None:
    engine = engine_of(store, tmp_path)
    engine.open(KEY, SETTINGS)
    write(engine, 3)
    for _ in range(2):
        faults.arm(point, faults.fail_with(errno.EIO))
        with pytest.raises(ColdUnavailable, match="could not be reached"):
            engine_of(store, tmp_path)
        faults.disarm()
    again = engine_of(store, tmp_path)
    check_whole(again, store, 12)
    again.close()
    engine.close()


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_a_data_object_that_is_harmed_at_rest_stops_its_range_and_nothing_else(
    store, tmp_path, harm
) -> None:
    engine = engine_of(store, tmp_path)
    log = engine.open(KEY, SETTINGS)
    for _ in range(3):
        fill(log, 2, size=400)
        engine.upkeep.settling.settle()  # rows that nobody joins
    rows = log.cold_rows(0, 6)
    assert [(row.base, row.end) for row in rows] == [(0, 2), (2, 4), (4, 6)]
    harmed = rows[1]
    if harm == "gone":
        store.delete([harmed.object])
    else:
        data = bytearray(store.get(harmed.object))
        data[harmed.position + harmed.log_bytes // 2] ^= 1
        store.put(harmed.object, [bytes(data)])
    with pytest.raises(ColdDamaged, match=harmed.object):
        read_all(log)
    assert spans(read_all(log, 4)) == [(4, 4), (5, 5)]
    fill(log, 1, size=400)
    assert log.sync() == 7, "writers go on"
    again = engine_of(store, tmp_path)
    log = again.open(KEY, SETTINGS)
    with pytest.raises(ColdDamaged, match=harmed.object):
        read_all(log, 2)
    log.trim(4)
    assert spans(read_all(log)) == [(4, 4), (5, 5), (6, 6)], "retention passes it"
    again.close()
    engine.close()
