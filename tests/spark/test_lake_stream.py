"""Do Spark's own streams and batches arrive in tables, once, through every kind of failure?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource

from onelog.lake.options import parse_options
from onelog.spark.lakehouse.sink import TableStreamWriter
from tests.spark.lakes import FORMATS, Lake

DDL = "id BIGINT, seq BIGINT, value STRING"
FILES, PER_FILE = 4, 25


@pytest.fixture(params=FORMATS)
def lake(request, tmp_path) -> Lake:
    return Lake(request.param, tmp_path)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """Files that a stream takes one by one, a batch each."""
    folder = tmp_path_factory.mktemp("inputs")
    for file in range(FILES):
        lines = [
            json.dumps({"id": n, "seq": file, "value": f"v{n}"})
            for n in range(file * PER_FILE, (file + 1) * PER_FILE)
        ]
        (folder / f"{file}.json").write_text("\n".join(lines))
    return folder


def run(spark, inputs: Path, lake: Lake, source: str = "onelog-table", **more: str) -> None:
    """Run the stream over what is there, to its end."""
    rows = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).json(str(inputs))
    query = (
        rows.writeStream.format(source)
        .options(**lake.options(**more))
        .option("checkpointLocation", str(lake.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)


def ids(lake: Lake) -> list[int]:
    return sorted(row["id"] for row in lake.rows())


def forget_last_commit(lake: Lake) -> None:
    """Make Spark run the last batch again, as after a driver that died before noting it."""
    commits = lake.folder / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    for path in commits.glob(f"*{last}*"):
        path.unlink()


def test_a_stream_arrives_once_also_when_its_last_batch_is_replayed(spark, lake, inputs):
    run(spark, inputs, lake)
    assert ids(lake) == list(range(FILES * PER_FILE))
    forget_last_commit(lake)
    run(spark, inputs, lake)
    assert ids(lake) == list(range(FILES * PER_FILE))


class BreakingWriter(TableStreamWriter):
    """Its commit of batch 1 fails before or after the effect, until a file says it did."""

    def __init__(self, options, schema, overwrite, when: str, flag: str) -> None:
        super().__init__(options, schema, overwrite)
        self._when, self._flag = when, flag

    def commit(self, messages, batchId):
        breaks = batchId == 1 and not Path(self._flag).exists()
        if breaks and self._when == "before":
            self._fail()
        super().commit(messages, batchId)
        if breaks:
            self._fail()

    def _fail(self) -> None:
        Path(self._flag).touch()
        raise OSError("the driver lost its answer")


class Breaking(DataSource):
    @classmethod
    def name(cls) -> str:
        return "breaking-table"

    def streamWriter(self, schema, overwrite):
        given = dict(self.options)
        when, flag = given.pop("breaks"), given.pop("flag")
        return BreakingWriter(parse_options(given), schema, overwrite, when, flag)


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.spark_slow), "after"])
def test_a_commit_that_fails_before_or_after_its_effect_loses_and_doubles_nothing(
    spark, lake, inputs, when
):
    spark.dataSource.register(Breaking)
    more = {"breaks": when, "flag": str(lake.folder / "broke")}
    with pytest.raises(PySparkException, match="lost its answer"):
        run(spark, inputs, lake, "breaking-table", **more)
    # Spark has called abort by now, also after the commit that took effect.
    there = ids(lake)
    assert len(there) == len(set(there)) == PER_FILE * (2 if when == "after" else 1)
    run(spark, inputs, lake, "breaking-table", **more)
    assert ids(lake) == list(range(FILES * PER_FILE))


def test_a_batch_is_appended_and_overwritten(spark, lake):
    rows = spark.createDataFrame([Row(id=n, seq=0, value=f"v{n}") for n in range(10)])
    writer = rows.write.format("onelog-table").options(**lake.options())
    writer.mode("append").save()
    writer.mode("append").save()
    assert ids(lake) == sorted([*range(10)] * 2)
    if lake.format == "parquet":
        with pytest.raises(PySparkException, match="plain Parquet cannot replace"):
            writer.mode("overwrite").save()
    else:
        writer.mode("overwrite").save()
        assert ids(lake) == list(range(10))


def test_a_batch_with_a_number_is_written_once(spark, lake):
    rows = spark.createDataFrame([Row(id=n, seq=0, value=f"v{n}") for n in range(5)])
    for _ in range(2):
        options = lake.options(queryId="nightly", batchId="7")
        rows.write.format("onelog-table").options(**options).mode("append").save()
    assert ids(lake) == list(range(5))


def test_a_wrong_option_is_told_before_anything_runs(spark, lake):
    rows = spark.createDataFrame([Row(id=1)])
    with pytest.raises(PySparkException, match="did you mean keys"):
        rows.write.format("onelog-table").options(**lake.options(kyes="id")).mode("append").save()
    assert not (lake.folder / "t").exists()


def test_a_bad_row_fails_the_batch_with_its_content_or_goes_apart(spark, lake):
    rows = spark.createDataFrame([(1, "a"), (2, None)], "id BIGINT, value STRING")
    writer = rows.write.format("onelog-table").mode("append")
    with pytest.raises(PySparkException, match="column value is null"):
        writer.options(**lake.options(required="value")).save()
    writer.options(**lake.options(required="value", deadLetterTable="dead")).save()
    assert ids(lake) == [1]
    assert [json.loads(one["_row"]) for one in lake.rows("dead")] == [{"id": 2, "value": None}]


@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_a_stream_of_changes_becomes_the_latest_by_key(spark, tmp_path, form):
    lake = Lake(form, tmp_path)
    inputs = tmp_path / "changes"
    inputs.mkdir()
    for file in range(3):
        lines = [
            json.dumps({"id": n, "seq": file, "value": f"{n}@{file}"}) for n in range(file, 10)
        ]
        (inputs / f"{file}.json").write_text("\n".join(lines))
    run(spark, inputs, lake, mode="upsert", keys="id", orderBy="seq")
    assert {row["id"]: row["value"] for row in lake.rows()} == {
        n: f"{n}@{min(n, 2)}" for n in range(10)
    }
