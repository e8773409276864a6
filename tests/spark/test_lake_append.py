"""Is each batch in the table once, whoever dies when, and in the right files?"""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onelog.base import faults
from onelog.base.errors import Conflict, InvalidRequest
from onelog.spark.lakehouse import sink as sink_module
from tests.spark.lakes import FORMATS, WITH_UPSERT, Lake, stage, write

DDL = "id BIGINT, name STRING, at TIMESTAMP"
SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", tz="UTC"))]
)
NOON = datetime.datetime(2026, 11, 15, 12, tzinfo=datetime.UTC)


def rows(*numbers: int) -> list[dict[str, object]]:
    return [
        {"id": n, "name": f"n{n % 3}", "at": NOON + datetime.timedelta(hours=n)} for n in numbers
    ]


@pytest.fixture(params=FORMATS)
def lake(request, tmp_path) -> Lake:
    return Lake(request.param, tmp_path)


def ids(lake: Lake, name: str = "t") -> list[int]:
    return sorted(row["id"] for row in lake.rows(name))


def test_a_batch_of_several_tasks_is_there_after_its_commit_and_not_before(lake):
    sink = lake.sink(DDL)
    staged = stage(sink, SCHEMA, "q", rows(1, 2, 3), rows(4, 5))
    assert lake.rows() == []
    assert sink.commit(staged, "q", 0)
    assert sorted(lake.rows(), key=lambda row: row["id"]) == rows(1, 2, 3, 4, 5)


def test_a_batch_that_is_replayed_is_dropped(lake):
    sink = lake.sink(DDL)
    write(sink, SCHEMA, "q", 0, rows(1))
    assert write(sink, SCHEMA, "q", 1, rows(2, 3))
    # The same rows, divided otherwise, as after a restart with other tasks.
    assert not write(lake.sink(DDL), SCHEMA, "q", 1, rows(2), rows(3))
    assert not write(lake.sink(DDL), SCHEMA, "q", 0, rows(1))
    assert ids(lake) == [1, 2, 3]
    assert lake.open().mark("q") == 1


def test_another_query_has_marks_of_its_own(lake):
    sink = lake.sink(DDL)
    write(sink, SCHEMA, "one", 5, rows(1))
    assert write(sink, SCHEMA, "two", 0, rows(2))
    assert ids(lake) == [1, 2]


def test_two_drivers_that_commit_the_same_batch_at_once_write_it_once(lake):
    lake.sink(DDL)
    for batch in range(3):
        staged = [
            (one, stage(one, SCHEMA, "q", rows(batch))) for one in (lake.sink(DDL), lake.sink(DDL))
        ]
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(lambda pair, n=batch: pair[0].commit(pair[1], "q", n), staged))
        assert sorted(done) == [False, True]
    assert ids(lake) == [0, 1, 2]


def test_a_race_with_another_query_loses_nothing(lake):
    def many(query: str) -> None:
        sink = lake.sink(DDL)
        for batch in range(4):
            assert write(sink, SCHEMA, query, batch, rows(batch))

    lake.sink(DDL)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(many, ["one", "two"]))
    assert ids(lake) == sorted([*range(4)] * 2)


def test_a_commit_that_failed_after_its_effect_is_seen_by_the_replay(lake, monkeypatch):
    sink = lake.sink(DDL)
    staged = stage(sink, SCHEMA, "q", rows(1, 2))
    kind = type(lake.open())
    real = kind.commit

    def lost_answer(self, change):
        real(self, change)
        raise OSError("the answer was lost")

    monkeypatch.setattr(kind, "commit", lost_answer)
    with pytest.raises(OSError, match="lost"):
        sink.commit(staged, "q", 0)
    monkeypatch.undo()
    assert not write(lake.sink(DDL), SCHEMA, "q", 0, rows(1, 2))
    assert ids(lake) == [1, 2]


def test_a_commit_that_never_wins_says_so(lake, monkeypatch):
    monkeypatch.setattr(sink_module, "COMMIT_PAUSE_S", 0.0)
    sink = lake.sink(DDL)

    def always(self, change):
        raise Conflict("changed")

    monkeypatch.setattr(type(lake.open()), "commit", always)
    with pytest.raises(Conflict, match="fewer writers"):
        write(sink, SCHEMA, "q", 0, rows(1))


def test_a_task_that_fails_leaves_no_file(lake, tmp_path):
    sink = lake.sink(DDL)
    before = set(tmp_path.rglob("*.parquet"))

    def broken():
        yield from [pa.RecordBatch.from_pylist(rows(1), schema=SCHEMA)]
        raise OSError("the executor lost its source")

    with pytest.raises(OSError, match="lost"):
        sink.stage(broken(), "q", 0)
    assert set(tmp_path.rglob("*.parquet")) == before


def test_a_driver_that_dies_between_record_and_moves_is_finished_by_the_next(tmp_path):
    lake = Lake("parquet", tmp_path)
    sink = lake.sink(DDL)
    staged = stage(sink, SCHEMA, "q", rows(1, 2), rows(3))

    def dies():
        raise KeyboardInterrupt

    faults.arm("lakehouse.parquet.recorded", dies)
    try:
        with pytest.raises(KeyboardInterrupt):
            sink.commit(staged, "q", 0)
    finally:
        faults.disarm()
    assert ids(lake) == []
    assert not write(lake.sink(DDL), SCHEMA, "q", 0, rows(1, 2, 3))
    assert ids(lake) == [1, 2, 3]


def test_an_empty_batch_changes_nothing(lake):
    sink = lake.sink(DDL)
    assert not write(sink, SCHEMA, "q", 0, [])
    assert lake.rows() == []


@pytest.mark.parametrize("form", WITH_UPSERT)
def test_overwrite_replaces_everything_in_one_commit(form, tmp_path):
    lake = Lake(form, tmp_path)
    write(lake.sink(DDL), SCHEMA, "q", 0, rows(1, 2), rows(3))
    write(lake.sink(DDL, overwrite=True), SCHEMA, "other", 0, rows(9))
    assert ids(lake) == [9]


def test_rows_are_divided_by_a_column(lake):
    sink = lake.sink(DDL, partitionBy="name")
    write(sink, SCHEMA, "q", 0, rows(*range(9)), rows(*range(9, 12)))
    write(sink, SCHEMA, "q", 1, [{"id": 99, "name": None, "at": NOON}])
    assert ids(lake) == [*range(12), 99]
    found = sorted(lake.rows(), key=lambda row: row["id"])
    assert found[:12] == rows(*range(12))
    assert found[12]["name"] is None
    table = lake.open()
    for file in table.files():
        assert len({row["name"] for row in table.read(file).to_pylist()}) == 1


def test_iceberg_divides_by_transforms_and_prunes_by_them(tmp_path):
    lake = Lake("iceberg", tmp_path)
    sink = lake.sink(DDL, partitionBy="day(at), bucket(4, id), truncate(1, name)")
    write(sink, SCHEMA, "q", 0, rows(*range(48)))
    assert ids(lake) == [*range(48)]
    table = lake.open().inner
    midnight = "2026-11-16T00:00:00+00:00"
    planned = list(table.scan(row_filter=f"at >= '{midnight}'").plan_files())
    assert 0 < len(planned) < len(list(table.scan().plan_files()))
    found = table.scan(row_filter=f"at >= '{midnight}'").to_arrow()
    assert sorted(found["id"].to_pylist()) == list(range(12, 48))


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_transform_that_only_iceberg_has_is_refused(form, tmp_path):
    with pytest.raises(Exception, match="day\\(at\\) is Iceberg's"):
        Lake(form, tmp_path).sink(DDL, partitionBy="day(at)")


def test_another_partitioning_than_the_tables_is_refused(lake):
    lake.sink(DDL, partitionBy="name")
    with pytest.raises(InvalidRequest, match="partitioned by name already"):
        lake.sink(DDL, partitionBy="id")


def test_more_partitions_than_open_files_are_all_written(lake, monkeypatch):
    monkeypatch.setattr("onelog.lake.writing.OPEN_FILES_MAX", 3)
    sink = lake.sink(DDL, partitionBy="id")
    write(sink, SCHEMA, "q", 0, rows(*range(20)))
    assert ids(lake) == [*range(20)]


def test_small_batches_become_one_row_group(lake, tmp_path):
    sink = lake.sink(DDL)
    many = (pa.RecordBatch.from_pylist(rows(n), schema=SCHEMA) for n in range(50))
    sink.commit([sink.stage(many, "q", 0)], "q", 0)
    (file,) = [path for path in tmp_path.rglob("*.parquet") if "checkpoint" not in path.name]
    assert pq.ParquetFile(file).metadata.num_row_groups == 1


def test_files_are_cut_at_their_size(lake, monkeypatch):
    monkeypatch.setattr("onelog.lake.writing.GROUP_BYTES", 1)
    sink = lake.sink(DDL, fileBytes=str(1 << 20), compression="none")
    big = [{"id": n, "name": str(n) * 200_000, "at": NOON} for n in range(10, 22)]
    write(sink, SCHEMA, "q", 0, big)
    assert len(lake.open().files()) > 1
    assert ids(lake) == list(range(10, 22))


def test_the_mark_of_every_query_stays_however_many_there_are(tmp_path):
    lake = Lake("iceberg", tmp_path)
    sink = lake.sink(DDL)
    write(sink, SCHEMA, "quiet", 7, rows(0))
    with lake.open().inner.transaction() as transaction:
        transaction.set_properties({f"onelog.mark.q{number}": "0@9" for number in range(200)})
    for number in range(3):
        write(sink, SCHEMA, f"busy{number}", 0, rows(number))
    table = lake.open()
    assert table.mark("quiet") == 7
    assert all(table.mark(f"q{number}") == 0 for number in range(200))


def test_a_query_too_many_is_refused_and_those_that_are_known_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr("onelog.lake.iceberg.MARKS_MAX", 3)
    lake = Lake("iceberg", tmp_path)
    sink = lake.sink(DDL)
    for number in range(3):
        write(sink, SCHEMA, f"q{number}", 0, rows(number))
    with pytest.raises(InvalidRequest, match=r"marks of 3 queries .* remove the properties"):
        write(sink, SCHEMA, "q3", 0, rows(3))
    write(sink, SCHEMA, "q0", 1, rows(4))
    write(sink, SCHEMA, "job-1", 0, rows(5))
    assert [lake.open().mark(f"q{number}") for number in range(3)] == [1, 0, 0]


def test_of_single_writes_the_last_marks_stay(tmp_path, monkeypatch):
    """A stream that writes once a day would otherwise take its last batch for new."""
    monkeypatch.setattr("onelog.lake.iceberg.JOB_MARKS_MAX", 3)
    lake = Lake("iceberg", tmp_path)
    sink = lake.sink(DDL)
    write(sink, SCHEMA, "stream", 7, rows(0))
    for number in range(5):
        write(sink, SCHEMA, f"job-{number}", 0, rows(number))
    table = lake.open()
    assert table.mark("stream") == 7
    assert [table.mark(f"job-{number}") for number in range(5)] == [None, None, 0, 0, 0]


def test_a_folder_of_the_catalog_that_is_not_there_is_told_in_one_line(tmp_path):
    lake = Lake("iceberg", tmp_path / "missing")
    with pytest.raises(InvalidRequest, match=r"the folder '.*missing' of the catalog .* make it"):
        lake.open()


def test_delta_readers_are_told_what_to_skip(tmp_path):
    lake = Lake("delta", tmp_path)
    write(lake.sink(DDL), SCHEMA, "q", 0, rows(3, 7))
    (told,) = pa.table(lake.open().inner.get_add_actions(flatten=True)).to_pylist()
    assert (told["num_records"], told["min.id"], told["max.id"], told["null_count.id"]) == (
        2,
        3,
        7,
        0,
    )


def test_files_of_a_parquet_directory_are_seen_by_other_readers(tmp_path):
    lake = Lake("parquet", tmp_path)
    write(lake.sink(DDL, partitionBy="name"), SCHEMA, "q", 0, rows(*range(6)))
    found = pq.read_table(Path(lake.table("t")))
    assert sorted(found["id"].to_pylist()) == list(range(6))
