"""A tier whose history is a table: each record is a row once, and a batch again for readers."""

from __future__ import annotations

import errno
import socket
import threading

import msgspec
import pytest

from onelog.base import faults
from onelog.base.errors import ColdUnavailable, StorageError
from onelog.base.ids import Offset
from onelog.objects.manifest import Manifest
from onelog.storage.engine import PartitionKey
from tests.batches import append, make_batch, read_all
from tests.support.lakehouses import LakeSite, table_settings
from tests.support.tiers import KEY, Owner


@pytest.fixture(params=["iceberg", "delta", "iceberg-object", "delta-object"])
def site(request, tmp_path):
    table_format, _, engine = request.param.partition("-")
    made = LakeSite(tmp_path, table_format, has_disk=not engine)
    yield made
    faults.disarm()
    made.close()


def write(log, count, *, size=400):
    """Batches of ten records, sealed."""
    for _ in range(count):
        append(log, make_batch(log.end_offset, 10, size=size))
    log.roll()
    log.sync()


def copy(log):
    return log.tier.upload(log.end_offset, Owner())


def test_segments_become_rows_and_are_read_as_they_were(site):
    log = site.engine().open(KEY, table_settings(site.format))
    write(log, 12)
    before = read_all(log)
    row = copy(log)
    assert row.kind == "parquet"
    assert row.end == 120
    assert log.tier.trim_local(Offset(120)) == 120
    assert site.offsets() == list(range(120))
    assert read_all(log) == before
    assert copy(log) is None


def test_a_table_gets_rows_once_in_a_while(site):
    log = site.engine().open(KEY, table_settings(site.format, commit_ms="300000"))
    write(log, 3)
    assert copy(log).end == 30
    write(log, 3)
    assert copy(log) is None
    site.clock.advance(301)
    assert copy(log).end == 60
    assert site.offsets() == list(range(60))


def test_a_manifest_that_was_not_written_is_made_good_from_the_table(site):
    engine = site.engine()
    log = engine.open(KEY, table_settings(site.format))
    write(log, 3)
    faults.arm("tier.manifest", faults.fail_with(errno.EIO))
    with pytest.raises(ColdUnavailable):
        copy(log)
    faults.disarm()
    assert site.offsets() == list(range(30))
    assert log.tier.status().rows == 0
    site.close()
    log = site.engine().open(KEY, table_settings(site.format))
    before = read_all(log)
    write(log, 1)
    assert copy(log).end == 40
    assert log.tier.status().cold_end_offset == 40
    assert site.offsets() == list(range(40))
    log.tier.trim_local(Offset(30))
    assert read_all(log, 0)[: len(before)] == before


@pytest.mark.parametrize("point", ["lake.file", "lake.commit", "lake.commit.after"])
def test_a_lake_process_that_dies_at_any_step_leaves_each_record_once(site, point):
    log = site.engine(faults=f"{point}=exit").open(KEY, table_settings(site.format))
    write(log, 3)
    with pytest.raises(ColdUnavailable):
        copy(log)
    site.close()
    log = site.engine().open(KEY, table_settings(site.format))
    write(log, 1)
    while copy(log) is not None:
        pass
    assert log.tier.status().cold_end_offset == 40
    assert site.offsets() == list(range(40))


def test_partitions_that_are_ready_together_go_into_one_commit(site):
    engine = site.engine()
    settings = table_settings(site.format)
    logs = [engine.open(PartitionKey("s-1", number), settings) for number in range(3)]
    for log in logs:
        write(log, 2)
    together = threading.Barrier(3)

    def run(log):
        together.wait()
        copy(log)

    threads = [threading.Thread(target=run, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [site.offsets(number) for number in range(3)] == [list(range(20))] * 3
    assert site.commits() < 3


def test_what_retention_takes_leaves_the_table_too(site):
    log = site.engine().open(KEY, table_settings(site.format))
    for _ in range(2):
        write(log, 3)
        copy(log)
    log.tier.trim_local(log.end_offset)
    log.trim(Offset(30))
    log.tier.settle(0, 0)
    assert site.offsets() == list(range(30, 60))


def test_a_table_may_keep_rows_that_the_log_let_go(site):
    log = site.engine().open(KEY, table_settings(site.format, table_age_ms="-1"))
    write(log, 3)
    copy(log)
    log.tier.trim_local(log.end_offset)
    log.trim(Offset(30))
    log.tier.settle(0, 0)
    assert site.offsets() == list(range(30))


def test_small_files_are_joined(site):
    settings = msgspec.structs.replace(table_settings(site.format), segment_bytes=1 << 20)
    log = site.engine().open(KEY, settings)
    for _ in range(5):
        write(log, 3)
        copy(log)
    before = read_all(log)
    site.clock.advance(4000)
    log.tier.settle(0, 0)
    assert log.tier.status().rows == 1
    log.tier.trim_local(log.end_offset)
    assert read_all(log) == before
    assert site.offsets() == list(range(150))
    write(log, 1)
    assert copy(log).end == 160


def test_a_join_that_the_manifest_missed_is_made_good(site):
    settings = msgspec.structs.replace(table_settings(site.format), segment_bytes=1 << 20)
    log = site.engine().open(KEY, settings)
    for _ in range(5):
        write(log, 3)
        copy(log)
    before = read_all(log)
    site.clock.advance(4000)
    faults.arm("tier.manifest", faults.fail_with(errno.EIO))
    with pytest.raises(ColdUnavailable):
        log.tier.settle(0, 0)
    faults.disarm()
    write(log, 1)
    assert copy(log).end == 160
    assert log.tier.status().rows == 2
    log.tier.trim_local(log.end_offset)
    assert read_all(log)[: len(before)] == before


def test_a_table_that_somebody_changed_stops_the_tier_and_not_its_readers(site):
    log = site.engine().open(KEY, table_settings(site.format))
    write(log, 3)
    before = read_all(log)
    copy(log)
    log.tier.trim_local(log.end_offset)
    site.table().delete("offset < 5")
    write(log, 1)
    with pytest.raises(StorageError, match="somebody rewrote or deleted rows"):
        copy(log)
    assert "somebody rewrote" in log.tier.status().halted
    assert read_all(log)[: len(before)] == before
    log.reconfigure(table_settings(site.format, table="fresh"))
    assert log.tier.status().halted == ""
    assert copy(log).end == 40
    assert read_all(log)[: len(before)] == before


def test_the_manifest_says_which_table_it_is(site):
    engine = site.engine()
    log = engine.open(KEY, table_settings(site.format))
    write(log, 3)
    copy(log)
    found = next(iter(engine.store.list("m/")))
    marks = Manifest.decode(bytes(engine.store.get(found.name))).marks
    assert (marks["format"], marks["table"], marks["end"]) == (site.format, "orders", "30")


def test_a_catalog_that_is_away_delays_commits_and_nothing_else(tmp_path):
    site = LakeSite(tmp_path, "iceberg")
    there = site.defaults
    try:
        log = site.engine().open(KEY, table_settings("iceberg"))
        write(log, 3)
        assert copy(log).end == 30
        log.tier.trim_local(Offset(30))
        write(log, 3)
        before = read_all(log)
        site.close()
        with socket.socket() as nobody:  # bound, and it listens to no one
            nobody.bind(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
            site.defaults = msgspec.structs.replace(there, catalog=address)
            log = site.engine().open(KEY, table_settings("iceberg"))
            for _ in range(2):
                with pytest.raises(ColdUnavailable, match=address):
                    copy(log)
            assert log.tier.status().halted == ""
            assert log.tier.waiting(log.end_offset)
            assert read_all(log) == before  # rows of a table are read without its catalog
            site.close()
        site.defaults = there
        log = site.engine().open(KEY, table_settings("iceberg"))
        assert copy(log).end == 60
        assert site.offsets() == list(range(60))
    finally:
        site.close()
