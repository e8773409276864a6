"""Rows of a table that somebody else rewrote are taken over when every batch is proved."""

from __future__ import annotations

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from onelog.base.errors import ColdUnavailable, Conflict, InvalidRequest, StorageError
from onelog.base.ids import Offset
from onelog.storage.engine import PartitionKey
from tests.batches import append, make_batch, read_all
from tests.support.lakehouses import LakeSite, adopted, table_settings
from tests.support.tiers import KEY, Owner


@pytest.fixture(params=["iceberg", "delta"])
def site(request, tmp_path):
    made = LakeSite(tmp_path, request.param)
    yield made
    made.close()


def write(log, count, *, size=400):
    """Batches of ten records, sealed."""
    for _ in range(count):
        append(log, make_batch(log.end_offset, 10, size=size))
    log.roll()
    log.sync()


def copy(log):
    return log.tier.upload(log.end_offset, Owner())


def cold(log) -> list[bytes]:
    """Everything goes into the table and leaves the disk; what it was."""
    before = read_all(log)
    while copy(log) is not None:
        pass
    log.tier.trim_local(log.end_offset)
    return before


def halted(log) -> str:
    """A commit that finds the table changed."""
    write(log, 1)
    with pytest.raises(StorageError):
        copy(log)
    return log.tier.status().halted


def test_rewritten_rows_are_adopted_and_read_as_they_were(site):
    log = site.engine().open(KEY, table_settings(site.format))
    write(log, 12)
    before = cold(log)
    site.rewrite()
    assert "store adopt" in halted(log)
    site.vacuum()
    count = log.tier.status().rows
    assert adopted(log) == count
    assert log.tier.status().halted == ""
    assert read_all(log)[: len(before)] == before
    assert site.offsets() == list(range(120))
    assert copy(log).end == 130
    assert site.offsets() == list(range(130))
    assert adopted(log) == 0


def test_a_compaction_of_the_formats_own_library_is_adopted(site):
    if site.format != "delta":
        pytest.skip("pyiceberg compacts nothing")
    log = site.engine().open(KEY, table_settings(site.format))
    for _ in range(4):
        write(log, 3)
        copy(log)
    before = cold(log)
    site.table().optimize.compact()
    halted(log)
    adopted(log)
    assert read_all(log)[: len(before)] == before
    assert site.offsets() == list(range(120))


def test_files_that_nobody_touched_stay_as_they_are(site):
    log = site.engine().open(KEY, table_settings(site.format))
    write(log, 3)
    before = cold(log)
    write(log, 3)
    before += cold(log)[len(before) :]
    untouched = site.paths()
    if site.format == "delta":
        rows = site.rows()
        kept = rows.filter(pc.less(rows.column("offset"), 10))
        deltalake.write_deltalake(site.table(), kept, mode="overwrite", predicate="offset < 10")
    else:
        rows = site.rows()
        site.table().overwrite(
            rows.filter(pc.less(rows.column("offset"), 10)), overwrite_filter="offset < 10"
        )
    halted(log)
    adopted(log)
    assert site.paths() & untouched
    assert read_all(log)[: len(before)] == before
    assert site.offsets() == list(range(60))


def test_a_file_with_rows_of_several_partitions_is_adopted(site):
    engine, settings = site.engine(), table_settings(site.format)
    logs = [engine.open(PartitionKey("s-1", number), settings) for number in range(3)]
    for number, log in enumerate(logs):
        write(log, 3 + number)
    before = [cold(log) for log in logs]
    site.rewrite()
    halted(logs[0])
    adopted(*logs)
    for number, log in enumerate(logs):
        assert read_all(log)[: len(before[number])] == before[number]
        assert site.offsets(number) == list(range(30 + 10 * number))


def test_a_row_that_was_changed_is_refused_by_its_offsets_and_nothing_changes(site):
    log = site.engine().open(KEY, table_settings(site.format))
    write(log, 12)
    before = cold(log)

    def tamper(rows: pa.Table) -> pa.Table:
        values = rows.column("value").to_pylist()
        at = rows.column("offset").to_pylist().index(57)
        values[at] = values[at][:-1] + b"!"
        return rows.set_column(rows.schema.get_field_index("value"), "value", [values])

    site.rewrite(tamper)
    why = halted(log)
    listed = sorted(one.name for one in site.engine("other").store.list("f/"))
    names = site.paths()
    with pytest.raises(Conflict, match="offsets 50 to 59 of partition 0: its rows do not have"):
        adopted(log)
    assert log.tier.status().halted == why
    assert site.paths() == names
    assert sorted(one.name for one in site.engine("third").store.list("f/")) == listed
    assert read_all(log)[: len(before)] == before


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rows: rows.filter(pc.not_equal(rows.column("offset"), 33)),
         "offsets 30 to 39 of partition 0: the table has 9 of its 10 rows"),
        (lambda rows: pa.concat_tables([rows, rows.slice(3, 1)]), "the table has it twice"),
    ],
)  # fmt: skip
def test_rows_that_are_missing_or_double_are_refused(site, change, why):
    log = site.engine().open(KEY, table_settings(site.format))
    write(log, 12)
    cold(log)
    site.rewrite(change)
    halted(log)
    with pytest.raises(Conflict, match=why):
        adopted(log)


def test_a_row_that_nobody_wrote_is_refused(site):
    log = site.engine().open(KEY, table_settings(site.format))
    write(log, 3)
    cold(log)

    def invent(rows: pa.Table) -> pa.Table:
        one = rows.slice(0, 1)
        at = one.schema.get_field_index("offset")
        return pa.concat_tables([rows, one.set_column(at, one.schema.field(at), [[1000]])])

    site.rewrite(invent)
    halted(log)
    with pytest.raises(Conflict, match="offset 1000 of partition 0"):
        adopted(log)


def test_rows_that_the_log_let_go_stay_if_the_table_keeps_them(site):
    settings = table_settings(site.format, table_age_ms="-1")
    log = site.engine().open(KEY, settings)
    for _ in range(2):
        write(log, 3)
        copy(log)
    log.tier.trim_local(log.end_offset)
    log.trim(Offset(30))
    log.tier.settle(0, 0)
    before = read_all(log)
    site.rewrite()
    halted(log)
    adopted(log)
    assert site.offsets() == list(range(60))
    assert read_all(log)[: len(before)] == before


def test_rows_that_retention_took_do_not_come_back(site):
    log = site.engine().open(KEY, table_settings(site.format))
    for _ in range(2):
        write(log, 3)
        copy(log)
    log.tier.trim_local(log.end_offset)
    site.rewrite()
    log.trim(Offset(30))
    halted(log)
    adopted(log)
    assert site.offsets() == list(range(30, 60))


@pytest.mark.parametrize("point", ["lake.file", "lake.adopt", "lake.commit", "lake.commit.after"])
def test_a_lake_process_that_dies_at_any_step_of_it_leaves_each_record_once(site, point):
    log = site.engine().open(KEY, table_settings(site.format))
    write(log, 6)
    before = cold(log)
    site.rewrite()
    halted(log)
    site.close()
    log = site.engine(faults=f"{point}=exit").open(KEY, table_settings(site.format))
    with pytest.raises(ColdUnavailable):
        adopted(log)
    site.close()
    log = site.engine().open(KEY, table_settings(site.format))
    adopted(log)
    assert copy(log).end == 70
    assert site.offsets() == list(range(70))
    assert read_all(log)[: len(before)] == before


def test_a_tier_of_batches_has_nothing_to_adopt(tmp_path):
    site = LakeSite(tmp_path, "iceberg")
    try:
        log = site.engine().open(KEY, table_settings("log"))
        with pytest.raises(InvalidRequest, match="only a tier that is a table"):
            log.tier.adoption()
    finally:
        site.close()
