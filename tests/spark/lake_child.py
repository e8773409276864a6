"""A driver that writes a stream into a table, and dies where it is told to.

Usage: python -m tests.spark.lake_child FORMAT FOLDER WHEN
WHEN: `never`, `before` and `after` the effect of a commit (the driver with all its processes is
killed), `task` (the Python process of a task is killed in the middle of its rows). It dies once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource

import onelog.spark
from onelog.lake.options import parse_options
from onelog.spark.lakehouse.sink import TableStreamWriter
from tests.spark.jvm import local_settings
from tests.spark.s3_lakes import lake_of

DIES_AT = 1


class DyingWriter(TableStreamWriter):
    def __init__(self, options, schema, overwrite, when: str, flag: str) -> None:
        super().__init__(options, schema, overwrite)
        self._when, self._flag = when, flag

    def write(self, iterator: Iterator[pa.RecordBatch]):
        return super().write(self._perhaps_dying(iterator))

    def _perhaps_dying(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in iterator:
            yield batch
            if self._when == "task" and self._once():
                os.kill(os.getpid(), signal.SIGKILL)

    def commit(self, messages, batchId):
        if batchId == DIES_AT and self._when == "before" and self._once():
            self._kill_all()
        super().commit(messages, batchId)
        if batchId == DIES_AT and self._when == "after" and self._once():
            self._kill_all()

    def _once(self) -> bool:
        if Path(self._flag).exists():
            return False
        Path(self._flag).touch()
        return True

    def _kill_all(self) -> None:
        """The driver and its JVM are one group of processes; this one is of another."""
        os.killpg(int(os.environ["LAKE_CHILD"]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


class Dying(DataSource):
    @classmethod
    def name(cls) -> str:
        return "dying-table"

    def streamWriter(self, schema, overwrite):
        given = dict(self.options)
        when, flag = given.pop("when"), given.pop("flag")
        return DyingWriter(parse_options(given), schema, overwrite, when, flag)


def main(form: str, folder: Path, when: str) -> None:
    os.environ["LAKE_CHILD"] = str(os.getpgid(0))
    lake = lake_of(form, folder)
    spark = onelog.spark.session(
        "local[2,3]",  # a task may fail three times
        config=local_settings(writes_archive=False),
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(Dying)
    rows = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1)
    query = (
        rows.json(str(folder / "inputs"))
        .repartition(2)
        .writeStream.format("dying-table")
        .options(**lake.options(), when=when, flag=str(folder / "died"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
