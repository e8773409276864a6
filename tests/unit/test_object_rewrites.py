"""Settling and joining of the object engine against rewrites and deletions that run meanwhile.

The store calls back while an object is written: what another thread would do happens there, each
time at the same place. Every record that no rewrite took is there afterwards, also for a broker
that opens the chain anew.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from onelog.base.errors import Conflict
from onelog.base.ids import Offset, PartitionId
from onelog.kernel import scan_batches
from onelog.objects.memory import MemoryAccess
from onelog.objects.store import ObjectStore, StoreSettings
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.object import ObjectEngine
from tests.batches import append, fill, make_batch, read_all, spans
from tests.support.object_engine import object_engine

KEY = PartitionKey("s-1", PartitionId(0))
ROWS = 4
EACH = 3
"""Batches of a segment."""


class Watched(MemoryAccess):
    """A store that lets something happen before it takes a data object."""

    meanwhile: Callable[[], None] | None = None

    def put(self, name, parts, size_bytes, *, is_new=False):
        if self.meanwhile is not None and name.startswith("d/"):
            act, self.meanwhile = self.meanwhile, None
            act()
        return super().put(name, parts, size_bytes, is_new=is_new)


@pytest.fixture
def access() -> Watched:
    return Watched(str(uuid.uuid4()))


@pytest.fixture
def store(access: Watched) -> ObjectStore:
    return ObjectStore(StoreSettings(url="memory://watched"), access)


def made(store: ObjectStore, tmp_path, **settings) -> ObjectEngine:
    return object_engine(store, tmp_path, settle_ms=3_600_000, **settings)


def filled(engine: ObjectEngine, *, settled: bool):
    """A log of sealed segments of a few batches each, as rows or in memory."""
    log = engine.open(KEY, LogSettings())
    for _ in range(ROWS):
        fill(log, EACH)
        log.roll()
        if settled:
            log.sync()
            engine.upkeep.settling.settle()
    log.sync()
    return log


def check_there(log, wanted: list[int]) -> None:
    assert [first for first, _ in spans(read_all(log))] == wanted


def check_gone(engine: ObjectEngine) -> None:
    """Nothing names the partition or its objects any more."""
    engine.core.chain.wait()
    assert engine.partitions() == []
    assert engine.core.image.partitions == {}
    assert not engine.core.image.uses


def reopened(engine: ObjectEngine, store: ObjectStore, tmp_path):
    engine.close()
    again = made(store, tmp_path)
    return again, again.open(KEY, LogSettings())


@pytest.mark.parametrize("commits_inside", [False, True], ids=["afterwards", "meanwhile"])
def test_batches_that_settle_while_their_middle_is_rewritten_are_all_there(
    access, store, tmp_path, commits_inside
):
    engine = made(store, tmp_path)
    log = filled(engine, settled=False)
    kept = make_batch(EACH)
    wanted = [at for at in range(ROWS * EACH) if at not in (EACH + 1, EACH + 2)]
    begun = []

    def compact() -> None:
        rewrite = log.rewrite(Offset(EACH), Offset(2 * EACH))
        begun.append(rewrite)
        rewrite.append(kept, scan_batches(kept))
        if commits_inside:
            rewrite.commit()

    access.meanwhile = compact
    engine.upkeep.settling.settle()
    assert begun, "nothing was settled"
    if not commits_inside:
        begun[0].commit()
    check_there(log, wanted)
    engine.upkeep.settling.settle()
    check_there(log, wanted)
    again, log = reopened(engine, store, tmp_path)
    check_there(log, wanted)
    again.close()


@pytest.mark.parametrize("commits_inside", [False, True], ids=["afterwards", "meanwhile"])
def test_rows_that_are_joined_while_one_of_them_is_rewritten_are_all_there(
    access, store, tmp_path, commits_inside
):
    engine = made(store, tmp_path, join_rows=3)
    log = filled(engine, settled=True)
    wanted = [at for at in range(ROWS * EACH) if not EACH <= at < 2 * EACH]
    begun = []

    def compact() -> None:
        begun.append(log.rewrite(Offset(EACH), Offset(2 * EACH)))
        if commits_inside:
            begun[0].commit()

    access.meanwhile = compact
    engine.upkeep.settling.join()
    assert begun, "nothing was joined"
    if not commits_inside:
        begun[0].commit()
    check_there(log, wanted)
    again, log = reopened(engine, store, tmp_path)
    check_there(log, wanted)
    again.close()


def test_a_rewrite_whose_bounds_lie_in_a_row_by_now_is_refused(store, tmp_path):
    engine = made(store, tmp_path)
    log = filled(engine, settled=True)
    rewrite = log.rewrite(Offset(EACH), Offset(2 * EACH))
    content = engine.core.contents[KEY]
    content.boundaries.clear()  # what a join that does not look would do
    engine.core.settings = engine.core.settings.__class__(join_rows=3)
    engine.upkeep.settling.join()
    assert len(content.cold.rows) == 1
    with pytest.raises(Conflict, match="joined during a rewrite"):
        rewrite.commit()
    check_there(log, list(range(ROWS * EACH)))
    engine.close()


def test_a_partition_that_is_deleted_while_its_rows_are_joined_stays_deleted(
    access, store, tmp_path
):
    engine = made(store, tmp_path, join_rows=3)
    log = filled(engine, settled=True)
    happened = []

    def delete() -> None:
        log.close()
        engine.delete(KEY)
        happened.append(True)

    access.meanwhile = delete
    engine.upkeep.settling.join()
    assert happened
    check_gone(engine)
    again, log = reopened(engine, store, tmp_path)
    assert log.end_offset == 0
    again.close()


def test_a_rewrite_of_a_partition_that_was_deleted_is_refused(store, tmp_path):
    engine = made(store, tmp_path)
    log = filled(engine, settled=True)
    rewrite = log.rewrite(Offset(0), Offset(EACH))
    log.close()
    engine.delete(KEY)
    with pytest.raises(Conflict, match="was deleted"):
        rewrite.commit()
    check_gone(engine)
    again, log = reopened(engine, store, tmp_path)
    assert log.end_offset == 0
    append(log, make_batch(0))
    log.sync()
    check_there(log, [0])
    again.close()
