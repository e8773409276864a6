"""Do tables in a bucket keep every promise that tables on a disk keep? On a real S3 server."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from onelog.base.errors import NotAuthorized, NotFound, OnelogError, Unavailable
from onelog.lake import storage
from onelog.lake.upkeep import keep_up
from onelog.spark import read_table
from tests.conformance.kafka_brokers import unique
from tests.spark.lakes import FORMATS, WITH_UPSERT, stage, write
from tests.spark.lines import ROOT
from tests.spark.rest_catalog import available as rest_is_available
from tests.spark.rest_catalog import rest_catalog
from tests.spark.s3_lakes import TOLD, S3Lake, s3_lake
from tests.spark.test_lake_kill import FILES, PER_FILE
from tests.spark.test_lake_kill import run as run_driver
from tests.support.s3_server import SECRET_KEY, S3Server, available, s3_server

pytestmark = [
    pytest.mark.spark_slow,
    pytest.mark.skipif(not available(), reason="SeaweedFS is missing: run 'make setup'"),
]
DDL = "id BIGINT, seq BIGINT"
SCHEMA = pa.schema([("id", pa.int64()), ("seq", pa.int64())])
MERGE = {"mode": "upsert", "keys": "id", "orderBy": "seq"}
EVERY = [*FORMATS, "rest"]
"""Every format, and Iceberg by a REST catalog."""
CHANGED = ["iceberg", "delta", "rest"]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        running.bucket("lake")
        yield running


@pytest.fixture(scope="module")
def rest(server, tmp_path_factory) -> Iterator[str | None]:
    """A REST catalog that has its tables in the bucket, where Maven is."""
    if not rest_is_available():
        yield None
        return
    folder = tmp_path_factory.mktemp("rest")
    with rest_catalog(folder, f"s3://lake/{unique('rest')}", server.options) as address:
        yield address


@pytest.fixture
def lake_in(server, rest, tmp_path):
    """Makes a place for tables, by format."""

    def made(form: str, **access: str) -> S3Lake:
        at = server.options | {name.replace("__", "."): text for name, text in access.items()}
        lake = s3_lake(
            "iceberg" if form == "rest" else form, tmp_path, f"s3://lake/{unique(form)}", at
        )
        if form != "rest":
            return lake
        if rest is None:
            pytest.skip("the REST catalog is missing: run 'make conformance-spark' where Maven is")
        return S3Lake(lake.format, lake.folder, lake.root, lake.access, rest, unique("n"))

    return made


def rows(*numbers: int, seq: int = 0) -> list[dict[str, object]]:
    return [{"id": n, "seq": seq} for n in numbers]


def ids(lake: S3Lake, name: str = "t") -> list[object]:
    return sorted(row["id"] for row in lake.rows(name))


# -- what the sink promises, without Spark


@pytest.mark.parametrize("form", EVERY)
def test_a_batch_that_is_written_again_is_there_once(lake_in, form):
    lake = lake_in(form)
    sink = lake.sink(DDL, partitionBy="seq")
    assert write(sink, SCHEMA, "q", 0, rows(1, 2), rows(3, seq=1))
    assert not write(sink, SCHEMA, "q", 0, rows(1, 2), rows(3, seq=1))
    assert write(lake.sink(DDL), SCHEMA, "q", 1, rows(4))
    assert ids(lake) == [1, 2, 3, 4]


@pytest.mark.parametrize("form", CHANGED)
def test_the_latest_by_key_and_a_key_that_goes(lake_in, form):
    lake = lake_in(form)
    gone = SCHEMA.append(pa.field("gone", pa.bool_()))
    sink = lake.sink(f"{DDL}, gone BOOLEAN", deleteColumn="gone", **MERGE)
    write(sink, gone, "q", 0, [{"id": n, "seq": 1, "gone": False} for n in range(5)])
    changed = [{"id": 1, "seq": 2, "gone": False}, {"id": 2, "seq": 0, "gone": False}]
    write(sink, gone, "q", 1, changed, [{"id": 3, "seq": 2, "gone": True}])
    assert {row["id"]: row["seq"] for row in lake.rows()} == {0: 1, 1: 2, 2: 1, 4: 1}


@pytest.mark.parametrize("form", EVERY)
def test_bad_rows_go_to_their_own_table(lake_in, form):
    lake = lake_in(form)
    sink = lake.sink(DDL, required="seq", deadLetterTable="bad")
    for _ in range(2):
        write(sink, SCHEMA, "q", 0, [*rows(1), {"id": 2, "seq": None}])
    assert ids(lake) == [1]
    (letter,) = lake.rows("bad")
    assert letter["_reason"] == "column seq is null"


@pytest.mark.parametrize("form", CHANGED)
def test_upkeep_makes_few_files_and_sweeps_those_of_nobody(lake_in, form):
    lake = lake_in(form)
    sink = lake.sink(DDL)
    for batch in range(4):
        write(sink, SCHEMA, "q", batch, rows(batch))
    stage(sink, SCHEMA, "q", rows(99))  # a driver that died before its commit
    done = keep_up(lake.parsed(), snapshot_age=timedelta(0), orphan_age=timedelta(0))
    assert (done.files_before, done.files_after) == (4, 1)
    assert done.files_removed >= 1
    assert ids(lake) == [0, 1, 2, 3]
    files, root = lake.parsed().storage.open(lake.open().layout.directory)
    found = files.get_file_info(fs.FileSelector(root, recursive=True))
    assert sum(one.path.endswith(".parquet") for one in found) == 1


@pytest.mark.parametrize("form", CHANGED)
def test_two_drivers_that_commit_the_same_batch_at_once_write_it_once(lake_in, form):
    lake = lake_in(form)
    first, second = lake.sink(DDL), lake.sink(DDL)
    for batch in range(4):
        staged = [(one, stage(one, SCHEMA, "q", rows(batch))) for one in (first, second)]
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(lambda pair, n=batch: pair[0].commit(pair[1], "q", n), staged))
        assert sorted(done) == [False, True]
    assert ids(lake) == [0, 1, 2, 3]


@pytest.mark.parametrize("form", CHANGED)
def test_writers_of_other_queries_lose_no_row_to_each_other(lake_in, form):
    lake = lake_in(form)
    sinks = [lake.sink(DDL) for _ in range(3)]

    def work(number: int) -> None:
        for batch in range(4):
            assert write(sinks[number], SCHEMA, f"q{number}", batch, rows(number * 10 + batch))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    assert ids(lake) == sorted(number * 10 + batch for number in range(3) for batch in range(4))


def test_no_object_stands_for_a_folder(lake_in, server):
    for form in FORMATS:
        lake = lake_in(form)
        write(lake.sink(DDL, partitionBy="seq"), SCHEMA, "q", 0, rows(1))
        files, root = lake.parsed().storage.open(lake.root)
        found = files.get_file_info(fs.FileSelector(root, recursive=True))
        assert not [one for one in found if one.type == fs.FileType.File and not one.size]


# -- who may not, and what is not there


@pytest.fixture
def hasty(monkeypatch) -> None:
    monkeypatch.setattr(storage, "ATTEMPTS", 2)
    monkeypatch.setattr(storage, "PATIENCE_S", 1)


WRONG = [
    ({"s3__secret__access__key": "x"}, "lake", NotAuthorized, "does not let us into s3://"),
    ({"s3__access__key__id": "nobody"}, "lake", NotAuthorized, "check s3.access-key-id"),
    ({}, "elsewhere", NotFound, "has no bucket elsewhere: make it"),
    ({"s3__endpoint": "http://127.0.0.1:1"}, "lake", Unavailable, "http://127.0.0.1:1 did not"),
]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("access", "bucket", "kind", "says"), WRONG)
def test_what_a_store_refuses_is_one_line_without_a_secret(
    server, tmp_path, form, access, bucket, kind, says
):
    told = {name.replace("__", ".", 1).replace("__", "-"): text for name, text in access.items()}
    lake = s3_lake(form, tmp_path, f"s3://{bucket}/{unique(form)}", server.options | told)
    with pytest.raises(kind) as refused:
        write(lake.sink(DDL), SCHEMA, "q", 0, rows(1))
    line = str(refused.value)
    assert says in line
    assert "\n" not in line
    assert SECRET_KEY not in line


# -- by Spark


def wanted(frame: object) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.parametrize("form", EVERY)
def test_spark_writes_a_batch_once_and_reads_it_back_without_a_jar(spark, lake_in, form):
    lake = lake_in(form)
    made = spark.range(500).selectExpr(
        "id", "id % 3 AS part", "timestamp_seconds(id) AS at", "array(id) AS list",
        "named_struct('a', id, 'b', string(id)) AS inner", "map('k', id) AS pairs",
        "cast(string(id) AS binary) AS data", "cast(id AS decimal(12, 2)) AS money",
    )  # fmt: skip
    options = lake.options(partitionBy="part", queryId="job", batchId="1")
    for _ in range(2):
        made.write.format("onelog-table").options(**options).mode("append").save()
    found = read_table(spark, **lake.options())
    assert found.count() == 500
    back = found.selectExpr("id", "part", "at", "list", "inner", "data", "money", "pairs['k']")
    same = made.selectExpr("id", "part", "at", "list", "inner", "data", "money", "pairs['k']")
    assert wanted(back) == wanted(same)
    assert found.where("part = 1").count() == 167


@pytest.mark.parametrize("form", CHANGED)
def test_a_table_that_was_made_and_never_written_has_no_rows(spark, lake_in, form):
    lake = lake_in(form)
    lake.sink(DDL)
    found = read_table(spark, **lake.options())
    assert found.columns == ["id", "seq"]
    assert found.count() == 0


class Stream:
    """A query over files of JSON that come one by one."""

    def __init__(self, spark, lake: S3Lake, folder: Path, **options: str) -> None:
        self._inputs = folder / "inputs"
        self._inputs.mkdir(exist_ok=True)
        self._start = (
            spark.readStream.schema(DDL)
            .option("maxFilesPerTrigger", 1)
            .json(str(self._inputs))
            .repartition(2)
            .writeStream.format("onelog-table")
            .options(**lake.options(**options))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .start
        )

    def add(self, name: str, numbers: range, seq: int = 0) -> None:
        text = "\n".join(json.dumps(row) for row in rows(*numbers, seq=seq))
        (self._inputs / f".{name}").write_text(text)
        (self._inputs / f".{name}").rename(self._inputs / name)

    @contextmanager
    def running(self) -> Iterator:
        query = self._start()
        try:
            yield query
        finally:
            query.stop()


@pytest.mark.parametrize("form", EVERY)
def test_a_stream_goes_on_where_it_was(spark, lake_in, tmp_path, form):
    lake = lake_in(form)
    stream = Stream(spark, lake, tmp_path)
    for life in range(2):
        stream.add(f"{life}.json", range(life * 100, life * 100 + 100))
        with stream.running() as query:
            query.processAllAvailable()
    assert ids(lake) == list(range(200))


@pytest.mark.parametrize("form", WITH_UPSERT)
def test_a_stream_keeps_the_latest_by_key(spark, lake_in, tmp_path, form):
    lake = lake_in(form)
    stream = Stream(spark, lake, tmp_path, **MERGE)
    with stream.running() as query:
        for seq in range(3):
            stream.add(f"{seq}.json", range(seq, 10), seq)
            query.processAllAvailable()
    assert {row["id"]: row["seq"] for row in lake.rows()} == {n: min(n, 2) for n in range(10)}


@pytest.mark.parametrize("form", FORMATS)
def test_a_store_that_is_killed_and_started_again_is_waited_for(spark, tmp_path, form):
    with s3_server(tmp_path / "s3") as own:
        own.bucket("lake")
        lake = s3_lake(form, tmp_path, "s3://lake/w", own.options)
        stream = Stream(spark, lake, tmp_path)
        with stream.running() as query:
            stream.add("0.json", range(100))
            query.processAllAvailable()
            own.kill()
            stream.add("1.json", range(100, 200))
            again = threading.Timer(3.0, own.start)
            again.start()
            try:
                query.processAllAvailable()
            finally:
                again.join()
            stream.add("2.json", range(200, 300))
            query.processAllAvailable()
        assert ids(lake) == list(range(300))


@pytest.mark.parametrize("form", ["delta", "parquet"])  # by each library that waits
def test_a_store_that_stays_away_ends_the_query_in_one_line_and_the_next_start_goes_on(
    spark, tmp_path, form
):
    with s3_server(tmp_path / "s3") as own:
        own.bucket("lake")
        lake = s3_lake(form, tmp_path, "s3://lake/w", own.options)
        stream = Stream(spark, lake, tmp_path)
        stream.add("0.json", range(100))
        with stream.running() as query:
            query.processAllAvailable()
            own.kill()
            stream.add("1.json", range(100, 200))
            with pytest.raises(Exception, match="did not answer for s3://lake") as ended:
                query.processAllAvailable()
        assert SECRET_KEY not in str(ended.value)
        own.start()
        with stream.running() as query:
            query.processAllAvailable()
        assert ids(lake) == list(range(200))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_that_is_killed_at_a_commit_loses_and_doubles_nothing(
    lake_in, tmp_path, form, when
):
    lake = lake_in(form)
    (tmp_path / "inputs").mkdir()
    for file in range(FILES):
        lines = [json.dumps({"id": n}) for n in range(file * PER_FILE, (file + 1) * PER_FILE)]
        (tmp_path / "inputs" / f"{file}.json").write_text("\n".join(lines))
    (tmp_path / TOLD).write_text(json.dumps([lake.root, dict(lake.access)]))
    said = tmp_path / "stderr"
    assert run_driver(form, tmp_path, when) == -signal.SIGKILL, said.read_text()
    assert len(lake.rows()) == PER_FILE * (2 if when == "after" else 1)
    assert run_driver(form, tmp_path, when) == 0, said.read_text()
    assert ids(lake) == list(range(FILES * PER_FILE))
    assert SECRET_KEY not in said.read_text()


def test_the_example_of_the_page_runs(spark, server, tmp_path):
    page = (ROOT / "docs" / "reference" / "spark-tables.md").read_text()
    page = page.partition("## Tables in S3")[2]
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    keys = re.search(r"```ini\n(.*?)```", page, re.DOTALL)[1]
    (tmp_path / "lake.ini").write_text(keys.replace("= …", f"= {SECRET_KEY}"))
    table = f"s3://lake/{unique('page')}"
    changed = {
        "http://127.0.0.1:8333": server.endpoint,
        "/etc/onelog/lake.ini": str(tmp_path / "lake.ini"),
        "s3://lake/plant/readings": table,
        "/srv/checkpoints/readings": str(tmp_path / "checkpoint"),
    }
    for old, new in changed.items():
        assert old in example
        example = example.replace(old, new)
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "0.json").write_text('{"id": 1, "seq": 2}')
    readings = spark.readStream.schema(DDL).json(str(tmp_path / "inputs"))
    names: dict[str, Any] = {"readings": readings}
    exec(example, names)
    names["query"].processAllAvailable()
    names["query"].stop()
    found = read_table(spark, tableFormat="delta", table=table, **server.options)
    assert wanted(found) == [(1, 2)]


def test_every_refusal_is_an_error_of_ours():
    assert all(issubclass(failure.kind, OnelogError) for failure in storage.FAILURES)
