"""Do the jobs that keep state, and the one that keeps tables up, do what their files say?"""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from onelog.pipelines import Workspace
from onelog.pipelines.launch import run_pipeline
from tests.conformance.kafka_brokers import unique
from tests.spark.lakes import Lake, write
from tests.spark.pipelines import job, place, run, send
from tests.spark.topics import append, make_topic, row
from tests.support.kafka_txn_clients import read

MINUTE_MS = 60_000


def test_compact_makes_one_file_of_many_and_the_rows_stay(tmp_path):
    lake = Lake("delta", tmp_path / "data" / "lakehouse")
    schema = pa.schema([("id", pa.int64())])
    for batch in range(4):
        write(
            lake.sink("id BIGINT", "sensors"), schema, "q", batch, [{"id": batch}, {"id": -batch}]
        )
    before = len(lake.open("sensors").files())
    rows = sorted(one["id"] for one in lake.rows("sensors"))
    pipeline = job("compact", "compact", {'iceberg = "archive.sensors"': 'delta = "sensors"'})
    seen = {}
    where = Workspace(tmp_path / "data", "127.0.0.1:1", tmp_path)
    ending = run_pipeline(pipeline, where, file=tmp_path / "compact.toml", on_progress=seen.update)
    assert ending == "done"
    assert len(lake.open("sensors").files()) == 1 < before
    assert seen["upkeep.sensors"].rows == before - 1
    assert sorted(one["id"] for one in lake.rows("sensors")) == rows


@pytest.mark.spark_slow
def test_dedupe_passes_each_record_once_over_runs(spark, broker, tmp_path):
    source, sink = make_topic(broker, unique("raw")), unique("once")
    changes = {"orders/raw": source, "orders/once": sink}
    pipeline = job("dedupe", unique("dedupe"), changes)
    where = place(broker, tmp_path)
    append(broker, source, 0, [row("a"), row("b"), row("a"), row("a", key=b"other")])
    run(spark, pipeline, where)
    append(broker, source, 0, [row("b"), row("c")])
    run(spark, pipeline, where)
    assert sorted(read(broker.port, sink)) == ["a", "a", "b", "c"]


@pytest.mark.spark_slow
def test_sessionise_makes_one_row_of_a_visit(spark, broker, tmp_path):
    source, sink = make_topic(broker, unique("clicks")), unique("visits")
    changes = {'"clicks/+"': f'"{source}"', 'topic = "visits"': f'topic = "{sink}"'}
    pipeline = job("sessionise", unique("visits"), changes)
    for minute, user, page in ((0, "u", "/"), (3, "u", "/a"), (5, "w", "/"), (40, "u", "/b")):
        send(broker, source, {"user": user, "page": page}, time_ms=minute * MINUTE_MS)
    send(broker, source, {"user": "later", "page": "/"}, time_ms=200 * MINUTE_MS)
    run(spark, pipeline, place(broker, tmp_path))
    visits = [json.loads(text) for text in read(broker.port, sink)]
    assert sorted((one["user"], one["clicks"]) for one in visits) == [("u", 1), ("u", 2), ("w", 1)]
    (long,) = [one for one in visits if one["clicks"] == 2]
    assert sorted(long["pages"]) == ["/", "/a"]
