"""Do pipelines carry every row once, over restarts, through SQL and Python, into every target?"""

from __future__ import annotations

import base64
import json

import pytest

from onelog.base.errors import ConfigError
from onelog.kafka_client import Client
from onelog.pipelines.failures import PipelineFailed
from onelog.pipelines.options import target_options
from onelog.pipelines.runner import PipelineRun
from onelog.pipelines.spec import BrokerKeys, TableKeys
from onelog.pipelines.sql import Query
from onelog.pipelines.state import State
from onelog.pipelines.tables import get_row
from tests.conformance.kafka_brokers import unique
from tests.spark.pipelines import job, parsed, place, run, send, table_rows
from tests.spark.topics import access, make_topic
from tests.support.kafka_txn_clients import read

READINGS = '''
name = "@name@"
mode = "triggered"

[sources.readings]
topics = ["@in@"]
decode = "json"
schema = "device STRING, temperature DOUBLE"

[transforms.hot]
sql = """
SELECT value.device AS key, value.temperature AS t
FROM readings
WHERE value.temperature > 30
"""

[transforms.alerts]
python = "alerts.py:alerts"
from = ["hot"]

[targets.topic]
from = "alerts"
topic = "@out@"

[targets.table]
from = "hot"
delta = "hot"
'''
ALERTS = """
from pyspark.sql.functions import col, udf

@udf(returnType="string", useArrow=False)
def shout(text):
    return text.upper() + "!"

def alerts(hot):
    return hot.select("key", shout(col("key")).alias("value"))
"""


def test_topics_become_topics_and_tables_by_sql_and_python_each_row_once_over_restarts(
    spark, broker, tmp_path
):
    source, sink = make_topic(broker, unique("in")), unique("out")
    (tmp_path / "alerts.py").write_text(ALERTS)
    where = place(broker, tmp_path)
    name = unique("readings")
    pipeline = parsed(READINGS, **{"@name@": name, "@in@": source, "@out@": sink})

    send(broker, source, *({"device": f"d{n}", "temperature": 25 + n} for n in range(10)))
    seen = run(spark, pipeline, where)
    assert (seen["topic"].rows, seen["topic"].lag) == (10, 0)
    assert sorted(read(broker.port, sink)) == ["D6!", "D7!", "D8!", "D9!"]

    send(broker, source, {"device": "late", "temperature": 99})
    assert run(spark, pipeline, where)["table"].rows == 1
    assert sorted(read(broker.port, sink)) == ["D6!", "D7!", "D8!", "D9!", "LATE!"]
    rows = table_rows(target_options(pipeline, "table", where)[1])
    assert sorted(one["key"] for one in rows) == ["d6", "d7", "d8", "d9", "late"]
    assert [one["t"] for one in rows if one["key"] == "late"] == [99.0]
    with Client(access(broker)) as client:
        told = client.committed(f"pipeline-{name}-topic", [(source, 0)])
    assert told[source, 0] > 0  # lag shows where people look; it is told one batch late
    assert spark.catalog.listTables() == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"SELECT value.device AS key": "SELECT value.nothing AS key"},
            "No such struct field `nothing`",
        ),
        ({"FROM readings": "FROM elsewhere"}, "elsewhere"),
        ({'"@in@"': '"no/such/topic/of/anybody"'}, "no/such/topic/of/anybody"),
        ({"alerts.py:alerts": "alerts.py:nothing"}, "has no function nothing"),
    ],
    ids=["column", "name", "topic", "function"],
)
def test_what_is_wrong_is_told_in_one_line_with_its_target(spark, broker, tmp_path, change, told):
    (tmp_path / "alerts.py").write_text(ALERTS)
    source = make_topic(broker, unique("in"))
    text = READINGS
    for old, new in change.items():
        text = text.replace(old, new)
    text = text.replace("@in@", source).replace("@name@", unique("p")).replace("@out@", "never")
    with pytest.raises((PipelineFailed, ConfigError), match=rf"^targets\.\w+: .*{told}") as caught:
        run(spark, parsed(text), place(broker, tmp_path))
    assert "\n" not in str(caught.value)


def test_archive_keeps_every_record_and_replay_writes_it_once_per_run(spark, broker, tmp_path):
    source, back = make_topic(broker, unique("sensors/d").replace("/", ".")), unique("back")
    where = place(broker, tmp_path)
    named = source.replace(".", "/")
    send(broker, source, {"device": "a", "temperature": 1.5}, headers=((b"unit", b"C"),))
    send(broker, source, {"device": "b", "temperature": 2.5}, "no json", key=b"kb")
    archive = job("archive", unique("archive"), {'"sensors/#"': f'"{named}"'})
    run(spark, archive, where)
    run(spark, archive, where)
    options = target_options(archive, "archive", where)[1]
    rows = sorted(table_rows(options), key=lambda one: one["_offset"])
    assert [(one["device"], one["temperature"]) for one in rows] == [("a", 1.5), ("b", 2.5)]
    assert (rows[0]["_topic"], rows[0]["_partition"], rows[0]["_offset"]) == (named, 0, 0)
    assert rows[0]["_headers"] == [{"key": "unit", "value": b"C"}]
    assert rows[1]["_key"] == b"kb"
    bad = TableKeys(iceberg="archive.sensors_bad")
    (letter,) = table_rows(where.table(bad))
    kept = json.loads(letter["_row"])
    assert (kept["_topic"], kept["_offset"], kept["_key"]) == (named, 2, "a2I=")
    assert base64.b64decode(kept["_error"]) == b"no json"
    assert letter["_reason"] == "the value could not be decoded"

    changes = {"replayed/sensors": back, "2026-01-01": "1970-01-01"}
    replay = job("replay", unique("replay"), changes)
    run(spark, replay, where)
    assert [json.loads(one)["device"] for one in read(broker.port, back)] == ["a", "b"]
    # A run that broke after its effect is begun again under the same number, and writes nothing.
    state = State(where.state_dir(replay.name))
    done = state.folder / "jobs" / "replayed.json"
    done.write_text(done.read_text().replace('"done":true', '"done":false'))
    run(spark, replay, where)
    assert len(read(broker.port, back)) == 2
    # One that is new writes all of it once more.
    run(spark, replay, where)
    assert len(read(broker.port, back)) == 4


def test_table_has_the_latest_row_of_each_key_and_is_asked_by_key_and_by_sql(
    spark, broker, tmp_path
):
    source = make_topic(broker, unique("devices"))
    where = place(broker, tmp_path)
    changes = {'"devices/+/state"': f'"{source}"', "tables.devices": "devices", "iceberg": "delta"}
    table = job("table", unique("table"), changes)
    for key, value in (("a", 1), ("b", 2), ("a", 3)):
        send(broker, source, {"device": key, "temperature": value}, key=key.encode())
    run(spark, table, where)
    send(broker, source, None, key=b"b")
    send(broker, source, {"device": "c", "temperature": 4}, key=b"c")
    run(spark, table, where)
    found = get_row(table, where, ["a"])
    assert found is not None
    assert (found["temperature"], found["_offset"]) == (3.0, 2)
    assert get_row(table, where, ["b"]) is None
    with pytest.raises(ConfigError, match="give 1 values, not 2"):
        get_row(table, where, ["a", "b"])
    query = Query(spark, where, BrokerKeys())
    rows = query.ask("SELECT key, temperature FROM delta('devices') ORDER BY key").take(9)
    assert rows == [("a", 3.0), ("c", 4.0)]


def test_sql_asks_topics_as_text_and_as_json_with_what_is_in_it(spark, broker, tmp_path):
    one = make_topic(broker, unique("asked.x").replace("_", "."))
    send(broker, one, {"device": "a", "t": 1}, {"device": "b", "t": 2.5, "tags": ["x"]}, "no json")
    named = one.replace(".", "/")
    query = Query(spark, place(broker, tmp_path), BrokerKeys())
    text = f"SELECT topic, key, value FROM topic('{named}') WHERE value LIKE '%json%' -- topic('x')"
    (found,) = query.ask(text).take(9)
    assert found == (named, "k", "no json")
    text = f"""SELECT value.device AS d, value.t + 1 AS t, value.tags AS tags
        FROM topic('{named}', decode => 'json') WHERE corrupt IS NULL ORDER BY d"""
    lines = [json.loads(line) for line in query.ask(text).json_lines()]
    assert lines == [
        {"d": "a", "t": 2.0, "tags": None},
        {"d": "b", "t": 3.5, "tags": ["x"]},
    ]


def test_a_continuous_run_is_stopped_in_order_and_the_next_goes_on(spark, broker, tmp_path):
    source, sink = make_topic(broker, unique("in")), unique("out")
    where = place(broker, tmp_path)
    text = READINGS.replace('"triggered"', '"continuous"')
    text = text.partition("[transforms.alerts]")[0].replace(
        "value.temperature AS t", "to_json(value) AS value"
    )
    text += f'[targets.topic]\nfrom = "hot"\ntopic = "{sink}"\n'
    pipeline = parsed(text, **{"@name@": unique("on"), "@in@": source})
    for expected in (5, 10):
        send(broker, source, *({"device": "d", "temperature": 40} for _ in range(5)))
        runs: list[PipelineRun] = []

        def seen(progress, runs=runs):
            if progress["topic"].rows >= 5:
                runs[0].stop()

        runs.append(PipelineRun(spark, pipeline, where, seen))
        assert runs[0].run() == "stopped"
        assert len(read(broker.port, sink)) == expected
