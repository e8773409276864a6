"""History of the engine `object` that becomes a table: nothing that is needed lies on a disk, and a
broker that was replaced moves nothing any more."""

from __future__ import annotations

import threading
import time

import pytest

from onelog.base import faults
from onelog.base.errors import ColdUnavailable, Fenced, InvalidRequest
from onelog.base.ids import Offset, PartitionId
from onelog.objects import names
from onelog.storage.engine import PartitionKey
from tests.batches import append, make_batch, read_all, spans
from tests.support.lakehouses import LakeSite, table_settings
from tests.support.tiers import KEY, Owner

BOUND_S = 20.0
OTHER = PartitionKey("s-2", PartitionId(0))


@pytest.fixture(params=["iceberg", "delta"])
def site(request, tmp_path):
    made = LakeSite(tmp_path, request.param, has_disk=False)
    yield made
    faults.disarm()
    made.close()


def write(log, count):
    """Batches of ten records, sealed."""
    for _ in range(count):
        append(log, make_batch(log.end_offset, 10, size=400))
    log.roll()
    log.sync()


def upload(log):
    return log.tier.upload(log.end_offset, Owner())


def listed(engine, folder: str) -> list[str]:
    return [found.name for found in engine.store.list(folder)]


def test_a_broker_with_an_empty_directory_knows_the_table_without_asking_the_store(site):
    log = site.engine("a").open(KEY, table_settings(site.format))
    write(log, 6)
    before = read_all(log)
    upload(log)
    log.tier.trim_local(Offset(60))
    write(log, 1)
    before += read_all(log)[len(before) :]
    site.close()
    engine = site.engine("b")
    asked = engine.store.counts.get
    log = engine.open(KEY, table_settings(site.format))
    assert (log.start_offset, log.local_start_offset, log.end_offset) == (0, 60, 70)
    assert log.tier.status().rows
    assert engine.store.counts.get == asked
    assert read_all(log) == before
    log.roll()  # recovery does not know which segment was sealed last
    assert upload(log).end == 70
    assert site.offsets() == list(range(70))


def test_the_table_is_the_only_copy(site):
    engine = site.engine()
    log = engine.open(KEY, table_settings(site.format))
    write(log, 6)
    stored = engine._inner
    stored.upkeep.settle()
    assert listed(engine, names.DATA)
    before = read_all(log)
    upload(log)
    assert listed(engine, names.DATA)  # the local window holds them
    log.tier.trim_local(Offset(60))
    stored.upkeep.checkpoint()
    stored.upkeep.work()
    assert listed(engine, names.DATA) == []
    assert read_all(log) == before


def test_rows_of_the_table_and_rows_of_data_objects_follow_each_other(site):
    engine = site.engine()
    log = engine.open(KEY, table_settings(site.format))
    write(log, 3)
    upload(log)
    write(log, 3)
    engine._inner.upkeep.settle()
    for trimmed in (False, True):
        rows = log.cold_rows(Offset(0), log.end_offset)
        assert {row.kind for row in rows} == {"parquet", "log"}
        assert [row.base for row in rows[1:]] == [row.end for row in rows[:-1]]
        assert (rows[0].base, rows[-1].end) == (0, 60)
        if not trimmed:
            log.tier.trim_local(Offset(30))


def test_a_broker_that_was_replaced_commits_nothing(site, monkeypatch):
    first = site.engine("a").open(KEY, table_settings(site.format))
    write(first, 3)
    lake = site.opened()[0]
    convert, found = lake.convert, []

    def replaced(wanted):
        row = convert(wanted)
        if not found:
            found.append(site.engine("b").open(KEY, table_settings(site.format)))
        return row

    monkeypatch.setattr(lake, "convert", replaced)
    with pytest.raises(Fenced, match="took over"):
        upload(first)
    (second,) = found
    second.roll()
    assert upload(second).end == 30
    assert site.offsets() == list(range(30))
    assert not second.tier.status().halted
    second.tier.trim_local(Offset(30))
    assert len(spans(read_all(second))) == 3


def test_nothing_comes_back_where_there_is_no_disk(site):
    log = site.engine().open(KEY, table_settings(site.format))
    write(log, 3)
    before = read_all(log)
    upload(log)
    log.tier.trim_local(Offset(30))
    with pytest.raises(InvalidRequest, match="no disk to bring history back to"):
        log.tier.bring_back()
    assert read_all(log) == before


def test_what_retention_takes_is_gone_after_a_restart_elsewhere(site):
    log = site.engine("a").open(KEY, table_settings(site.format))
    write(log, 6)
    upload(log)
    log.tier.trim_local(Offset(60))
    log.trim(Offset(25))
    site.close()
    log = site.engine("b").open(KEY, table_settings(site.format))
    assert log.start_offset == 25
    log.tier.settle(site.clock.now_ms(), 0)
    assert min(site.offsets()) <= 25


def test_numbers_are_told_while_a_change_waits_for_the_store(site):
    log = site.engine().open(KEY, table_settings(site.format))
    write(log, 3)
    upload(log)
    log.tier.trim_local(Offset(30))
    store = site.folder / "store"
    store.rename(site.folder / "away")
    outcome: list[BaseException | None] = []

    def trim() -> None:
        try:
            log.trim(Offset(15))
        except ColdUnavailable as error:
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=trim)
    thread.start()
    try:
        began = time.monotonic()
        for _ in range(50):
            log.segments()
            log.tier.status()
            time.sleep(0.01)
        assert time.monotonic() - began < 5
        assert not outcome
    finally:
        (site.folder / "away").rename(store)
        thread.join(BOUND_S)
    assert outcome == [None]
    assert log.start_offset == 15


def delete(engine) -> None:
    """Let a partition go whose rows are in the table."""
    log = engine.open(KEY, table_settings("delta"))
    write(log, 3)
    upload(log)
    log.tier.trim_local(Offset(30))
    log.close()
    engine.delete(KEY)


@pytest.mark.parametrize("site", ["delta"], indirect=True)
def test_a_deletion_is_finished_by_a_broker_with_an_empty_directory(site):
    delete(site.engine("a"))
    site.close()
    engine = site.engine("b")
    assert engine.deleted.keys() == [KEY]
    assert engine.partitions() == []
    assert engine.deleted.bury(site.clock.now_ms(), 60_000) == 0, "its objects have a grace time"
    append(engine.open(OTHER, table_settings("delta")), make_batch(0, 10, size=400))
    engine._inner.upkeep.settle()
    engine._inner.upkeep.checkpoint()
    site.close()
    site.clock.advance(61)
    engine = site.engine("c")
    assert listed(engine, names.FRAMES)
    assert engine.deleted.bury(site.clock.now_ms(), 60_000) > 0
    assert listed(engine, names.FRAMES) == listed(engine, names.MANIFESTS) == []
    site.close()
    assert site.engine("d").deleted.keys() == []
    assert site.offsets() == list(range(30)), "the table is left to those who ask it"


@pytest.mark.parametrize("site", ["delta"], indirect=True)
def test_a_crash_between_the_note_of_a_deletion_and_the_deletion_leaves_nothing_unnamed(
    site, monkeypatch
):
    engine = site.engine("a")

    def crash(_key):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._inner, "delete", crash)
    with pytest.raises(KeyboardInterrupt):
        delete(engine)
    site.close()
    engine = site.engine("b")
    assert engine.deleted.keys() == engine.partitions() == [KEY]
    engine.delete(KEY)  # as a start does with a stream that the metadata no longer has
    assert engine.deleted.bury(site.clock.now_ms() + 10, 0) > 0
    assert listed(engine, names.FRAMES) == listed(engine, names.MANIFESTS) == []
    assert engine.deleted.keys() == engine.partitions() == []
