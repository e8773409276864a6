"""A driver of its own: copies one topic into another with the sink that may fail, then ends.

python -m tests.spark.sink_job MASTER SERVERS SOURCE TARGET FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import onelog.spark
from tests.spark.jvm import SHORT_LIVED, local_settings
from tests.spark.sink_faults import FaultySource

DEADLINE_S = 240


def main(master: str, servers: str, source: str, target: str, folder: str) -> int:
    spark = onelog.spark.session(
        master,
        name="sink job",
        config={
            **local_settings(writes_archive=False),
            "spark.executor.extraJavaOptions": " ".join(SHORT_LIVED),
            "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(FaultySource)
    reading = spark.readStream.format("onelog").options(
        servers=servers, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="200"
    )
    query = (
        reading.load()
        .select("key", "value")
        .writeStream.format("onelog-faulty")
        .options(servers=servers, topic=target, faults=str(Path(folder) / "faults"))
        .option("batchBytes", "1024")
        .option("checkpointLocation", str(Path(folder) / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    return 0 if query.awaitTermination(DEADLINE_S) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
