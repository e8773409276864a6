"""The tables of `make bench-spark`: our sinks beside Spark's own Parquet sink, and upserts.

Rules: every sink gets the same rows from the same files through the same kind of stream, a batch
per file. Each writes as it does when nobody sets anything. A table is counted afterwards: a fast
sink that lost a row is an error and not a result.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from bench.report import Row, median, row, say, seconds
from onelog.lake.formats import open_table
from onelog.lake.options import parse_options

ROUNDS = 3
FILES, FILE_ROWS, VALUE_BYTES = 4, 100_000, 1024
WRITE_BAR = 0.95
KEYS, CHANGED = 1_000_000, 100_000
UPSERT_BAR = 3.0
UPSERT_ROUNDS = 3
RECORDS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
)
STATES = "id STRING, seq BIGINT, reading DOUBLE, text STRING"
ALPHABET = numpy.frombuffer(
    b'abcdefghijklmnopqrstuvwxyz0123456789{}:," .-ABCDEFGHIJKLMNOPQRSTU', "u1"
)
FORMATS = ("iceberg", "delta")


def run(spark: SparkSession, folder: Path) -> list[Row]:
    """Measure writing and upserting."""
    return [*writes(spark, folder), *upserts(spark, folder)]


def writes(spark: SparkSession, folder: Path) -> list[Row]:
    """Throughput of each sink as a ratio to Spark's Parquet."""
    inputs = records(folder / "records")
    total_mb = FILES * FILE_ROWS * VALUE_BYTES / 1e6
    sinks: dict[str, Callable[[Path], None]] = {
        "Spark's Parquet": lambda place: plain(spark, inputs, place),
        **{one: tables(spark, inputs, RECORDS, one) for one in (*FORMATS, "parquet")},
    }
    taken: dict[str, list[float]] = {name: [] for name in sinks}
    for number in range(ROUNDS + 1):
        for name, sink in sinks.items():
            place = folder / "written"
            took = seconds(partial(sink, place))
            if number:  # the first round warms up
                taken[name].append(took)
            shutil.rmtree(place)
    for name, times in taken.items():
        say(
            f"{name}: {total_mb / median(times):,.0f} MB/s ({', '.join(f'{t:.1f}' for t in times)})"
        )
    peer = median(taken.pop("Spark's Parquet"))
    return [
        row(
            f"stream of 1 KB records to {name}, no jar",
            peer / median(times),
            "ratio",
            WRITE_BAR if name in FORMATS else None,
            peer=("Spark's Parquet sink, MB/s", total_mb / peer),
        )
        for name, times in taken.items()
    ]


def upserts(spark: SparkSession, folder: Path) -> list[Row]:
    """A million keys, then changes of a tenth of them."""
    keys, changes = states(folder)
    rows: list[Row] = []
    for form in FORMATS:
        taken = [upsert_round(spark, folder, keys, changes, form) for _ in range(UPSERT_ROUNDS + 1)]
        load, change, append = ([*times] for times in zip(*taken[1:], strict=True))
        say(
            f"{form}: load {median(load):.1f} s, changes {median(change):.1f} s, "
            f"append of the same {median(append):.1f} s"
        )
        both = median([one + two for one, two in zip(load, change, strict=True)])
        rows.append(
            row(
                f"upsert of {KEYS:,} keys and {CHANGED:,} changes to {form}",
                both / median(append), "ratio", UPSERT_BAR, low=True,
                peer=("append of the same rows, s", median(append)),
            )
        )  # fmt: skip
        rows.append(
            row(f"{form}: the changes alone", median(change), "s", peer=("load, s", median(load)))
        )
    return rows


def upsert_round(
    spark: SparkSession, folder: Path, keys: Path, changes: Path, form: str
) -> tuple[float, float, float]:
    """How long the load, the changes, and appending both take."""
    place = folder / "upserted"
    merge = {"mode": "upsert", "keys": "id", "orderBy": "seq"}
    load = seconds(partial(tables(spark, keys, STATES, form, **merge), place))
    change = seconds(partial(tables(spark, changes, STATES, form, **merge), place))
    check(form, place)
    shutil.rmtree(place)
    append = seconds(partial(append_both, spark, keys, changes, form, place))
    shutil.rmtree(place)
    return load, change, append


def append_both(spark: SparkSession, keys: Path, changes: Path, form: str, place: Path) -> None:
    """The same rows, appended."""
    tables(spark, keys, STATES, form)(place)
    tables(spark, changes, STATES, form)(place)


def check(form: str, place: Path) -> None:
    """Every key once, and every change in."""
    table = open_table(parse_options(options(form, place)))
    found = pa.concat_tables([table.read(file, ["id", "seq"]) for file in table.files()])
    assert found.num_rows == KEYS, found.num_rows
    assert len(found.column("id").unique()) == KEYS
    assert pa.compute.sum(found.column("seq")).as_py() == CHANGED


def plain(spark: SparkSession, inputs: Path, place: Path) -> None:
    """Spark's own sink."""
    stream = spark.readStream.schema(RECORDS).option("maxFilesPerTrigger", 1).parquet(str(inputs))
    writer = stream.writeStream.format("parquet").option("path", str(place / "table"))
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    written = spark.read.parquet(str(place / "table")).count()
    assert written == FILES * FILE_ROWS, written


def tables(
    spark: SparkSession, inputs: Path, schema: str, form: str, **more: str
) -> Callable[[Path], None]:
    """One of our sinks."""

    def write(place: Path) -> None:
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        writer = stream.parquet(str(inputs)).writeStream.format("onelog-table")
        writer = writer.options(**options(form, place), **more)
        writer = writer.option("checkpointLocation", str(place / f"checkpoint-{inputs.name}"))
        writer.trigger(availableNow=True).start().awaitTermination()
        if not more and inputs.name == "records":
            table = open_table(parse_options(options(form, place)))
            counted = sum(table.read(file, ["offset"]).num_rows for file in table.files())
            assert counted == FILES * FILE_ROWS, counted

    return write


def options(form: str, place: Path) -> dict[str, str]:
    """A table in a folder of its own."""
    place.mkdir(exist_ok=True)
    if form != "iceberg":
        return {"tableFormat": form, "table": str(place / "table")}
    catalog = f"sqlite:///{place}/catalog.db"
    lake = str(place / "lake")
    return {"tableFormat": form, "table": "db.t", "catalog": catalog, "warehouse": lake}


def records(folder: Path) -> Path:
    """Rows as the source gives them: text of a kilobyte that compresses by a third."""
    folder.mkdir()
    chance = numpy.random.default_rng(1)
    for number in range(FILES):
        letters = ALPHABET[chance.integers(0, 64, FILE_ROWS * VALUE_BYTES, dtype="u1")]
        ends = numpy.arange(FILE_ROWS + 1, dtype="i4") * VALUE_BYTES
        value = pa.BinaryArray.from_buffers(
            pa.binary(), FILE_ROWS, [None, pa.py_buffer(ends), pa.py_buffer(letters)]
        )
        first = number * FILE_ROWS
        offsets = numpy.arange(first, first + FILE_ROWS)
        key = pa.array([b"device-%d" % (one % 1000) for one in range(FILE_ROWS)])
        table = pa.table(
            {
                "key": key,
                "value": value,
                "topic": pa.array(["sensors/telemetry"] * FILE_ROWS),
                "partition": pa.array(numpy.full(FILE_ROWS, number, "i4")),
                "offset": offsets,
                "timestamp": pa.array(offsets * 1000, pa.timestamp("us", tz="UTC")),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=FILE_ROWS // 2)
    return folder


def states(folder: Path) -> tuple[Path, Path]:
    """All keys in one file, and the later rows of a tenth of them, spread over all."""
    chance = numpy.random.default_rng(2)
    chosen = chance.permutation(KEYS)[:CHANGED]
    for name, numbers, seq in (("keys", numpy.arange(KEYS), 0), ("changes", chosen, 1)):
        (folder / name).mkdir()
        table = pa.table(
            {
                "id": pa.array([f"device-{number:08d}" for number in numbers]),
                "seq": pa.array(numpy.full(len(numbers), seq)),
                "reading": chance.random(len(numbers)),
                "text": pa.array([f"state {seq} of {number * 7919}" for number in numbers]),
            }
        )
        pq.write_table(table, folder / name / "0.parquet", row_group_size=len(numbers) // 2)
    return folder / "keys", folder / "changes"
