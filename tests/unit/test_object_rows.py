"""Do settled batches of the object engine have rows for readers, and stay while they are read?"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import OnelogError
from onelog.base.ids import PartitionId
from onelog.kernel import scan_batches
from onelog.objects import names
from onelog.objects.store import ObjectStore
from onelog.objects.sweeping import sweep
from onelog.storage.cold import DoomedHold, PlanHold
from onelog.storage.cold.plans import SLACK_MS
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.object import ObjectEngine
from tests.batches import fill
from tests.support.object_engine import a_store, object_engine

HOUR_MS = 3_600_000
KEYS = [PartitionKey("s-1", PartitionId(number)) for number in range(3)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store() -> ObjectStore:
    return a_store(f"memory://{uuid.uuid4()}")


@pytest.fixture
def engine(store, tmp_path, clock) -> Iterator[ObjectEngine]:
    made = object_engine(store, tmp_path, clock, join_rows=3, settle_ms=3_600_000)
    yield made
    made.close()


def stored(store: ObjectStore) -> set[str]:
    return {found.name for found in store.list("d/")}


def test_partitions_share_an_object_and_each_row_says_where_its_part_is(engine, store) -> None:
    logs = [engine.open(key, LogSettings()) for key in KEYS]
    for number, log in enumerate(logs):
        fill(log, 10 + number)
        assert list(log.cold_rows(0, 100)) == []  # batches in memory have no row
    engine.upkeep.settle()
    found = [list(log.cold_rows(0, 100)) for log in logs]
    assert [len(rows) for rows in found] == [1, 1, 1]
    assert len({rows[0].object for rows in found}) == 1
    assert len({rows[0].position for rows in found}) == 3
    for number, (row,) in enumerate(found):
        data = store.get_range(row.object, row.position, row.log_bytes)
        assert scan_batches(data)[-1].last_offset + 1 == 10 + number == row.end


def test_rows_are_those_of_the_offsets_that_are_asked_for(engine) -> None:
    log = engine.open(KEYS[0], LogSettings())
    for _ in range(2):
        fill(log, 10)
        engine.upkeep.settle()
    fill(log, 5)
    assert [(row.base, row.end) for row in log.cold_rows(0, 100)] == [(0, 10), (10, 20)]
    assert [row.base for row in log.cold_rows(10, 11)] == [10]
    assert list(log.cold_rows(20, 25)) == []
    log.trim(12)
    assert [row.base for row in log.cold_rows(0, 100)] == [10]


def test_an_object_that_was_joined_stays_until_its_readers_lease_ends(engine, store, clock) -> None:
    log = engine.open(KEYS[0], LogSettings())
    for _ in range(2):
        fill(log, 10)
        engine.upkeep.settle()
    log.hold_cold(clock.now_ms() + HOUR_MS)
    planned = {row.object for row in log.cold_rows(0, 100)}
    fill(log, 10)
    engine.upkeep.settle()  # and joins all three
    (row,) = log.cold_rows(0, 100)
    assert row.object not in planned
    engine.core.chain.wait()
    engine.upkeep.work()
    assert planned < stored(store)
    clock.advance(HOUR_MS / 1000 + 1)
    engine.upkeep.work()
    assert stored(store) == {row.object}


def test_a_lease_holds_objects_across_a_restart_in_the_same_directory(
    store, tmp_path, clock
) -> None:
    def begun() -> ObjectEngine:
        plans = PlanHold(tmp_path / "plans", clock.now_ms())
        return object_engine(store, tmp_path, clock, plans=plans, join_rows=3, settle_ms=3_600_000)

    first = begun()
    log = first.open(KEYS[0], LogSettings())
    for _ in range(2):
        fill(log, 10)
        first.upkeep.settle()
    log.hold_cold(clock.now_ms() + HOUR_MS)
    planned = {row.object for row in log.cold_rows(0, 100)}
    first.close()
    clock.advance(1.0)
    second = begun()
    log = second.open(KEYS[0], LogSettings())
    fill(log, 10)
    second.upkeep.settle()  # and joins all three
    (row,) = log.cold_rows(0, 100)
    second.core.chain.wait()
    second.upkeep.work()
    assert planned < stored(store), "a reader's objects went with the restart"
    clock.advance((HOUR_MS + SLACK_MS) / 1000 + 1)
    second.upkeep.work()
    assert stored(store) == {row.object}
    second.close()


def test_plans_that_follow_each_other_do_not_hold_an_object_for_ever() -> None:
    hold = DoomedHold()
    assert hold.due_ms(1000, 50) == 1050
    hold.until(900, 900 + HOUR_MS)
    assert hold.due_ms(1000, 50) == 900 + HOUR_MS
    for now in range(1000, 10 * HOUR_MS, HOUR_MS // 4):
        hold.until(now, now + HOUR_MS)
    assert hold.due_ms(1000, 50) == 1000 + HOUR_MS  # later plans do not name it
    assert hold.due_ms(1000, 2 * HOUR_MS) == 1000 + 2 * HOUR_MS


def test_a_sweep_takes_what_older_epochs_left_and_nothing_that_counts(engine, store, tmp_path):
    log = engine.open(KEYS[0], LogSettings())
    fill(log, 5)
    log.sync()
    new = object_engine(store, tmp_path)
    late = [  # of a writer that was fenced and has not noticed: some came after the deletion
        names.chain_wal("0", 1, 90),
        names.chain_checkpoint("0", 1, 80),
        names.chain_base("0", 1),
    ]
    new.upkeep.work()
    for name in late:
        store.put(name, [b"late"])
    others = [names.chain_wal("7", 1, 90), names.chain_wal("0", 9, 1), f"{names.CHAINS}0/else"]
    for name in others:
        store.put(name, [b"not ours to judge"])
    keepers = {names.CHAINS: new.needed_of_chain}
    before = {row.name for row in store.list(names.CHAINS)}
    swept = sweep(store, keepers, age_ms=-1000)
    assert set(swept.names) == set(late)
    assert {row.name for row in store.list(names.CHAINS)} == before - set(late)
    store.delete(others)
    last = object_engine(store, tmp_path)
    assert last.open(KEYS[0], LogSettings()).end_offset == 5
    for writer in (new, last):
        writer.close()
    with pytest.raises(OnelogError):
        sweep(store, keepers, age_ms=-1000)  # a broker that ended, or was fenced, cannot tell
