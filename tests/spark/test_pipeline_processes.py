"""Do the commands do it as processes, killed and stopped?"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.conformance.kafka_brokers import unique
from tests.spark.pipelines import send
from tests.spark.processes import Pipelines, asked, done
from tests.spark.topics import make_topic
from tests.support.kafka_txn_clients import read

pytestmark = pytest.mark.spark_slow

COPY = """
name = "{name}"
[sources.rows]
topics = ["{source}"]
decode = "string"
rows_per_trigger = 50
[transforms.copied]
sql = "SELECT key, value FROM rows"
[targets.copy]
from = "copied"
topic = "{sink}"
"""


@pytest.fixture
def pipelines(tmp_path, broker) -> Iterator[Pipelines]:
    made = Pipelines(tmp_path, broker)
    yield made
    made.close()


def test_one_that_is_killed_goes_on_exactly_and_one_that_is_told_ends_in_order(
    broker, tmp_path, pipelines
):
    source, sink = make_topic(broker, unique("in")), unique("out")
    file = tmp_path / "copy.toml"
    file.write_text(COPY.format(name="copy", source=source, sink=sink))
    values = [f"v{n}" for n in range(2000)]
    send(broker, source, *values[:1000])
    killed = pipelines.run(file)
    killed.wait_for(50)
    killed.kill()
    name = ("copy", *pipelines.where)
    assert json.loads(asked("pipeline", "status", "--json", *name))["phase"] == "killed"
    send(broker, source, *values[1000:])
    asked("pipeline", "run", str(file), "--once", *pipelines.where)
    assert sorted(read(broker.port, sink)) == sorted(values)
    send(broker, source, "last")
    going = pipelines.run(file)
    going.wait_for(1)
    assert "running" in asked("pipeline", "list", *pipelines.where)
    refused = done("pipeline", "run", str(file), *pipelines.where)
    assert refused.returncode == 1
    assert "runs already" in refused.stderr
    assert "stopped" in asked("pipeline", "stop", *name)
    assert going.end() == 0
    assert "does not run" in asked("pipeline", "stop", *name)
    assert sorted(read(broker.port, sink)) == sorted([*values, "last"])


def test_sql_prints_json_and_writes_parquet(broker, tmp_path, pipelines):
    topic = make_topic(broker, unique("asked"))
    send(broker, topic, {"n": 1}, {"n": 2})
    query = f"SELECT value.n AS n FROM topic('{topic}', decode => 'json') ORDER BY n"
    assert asked("sql", query, "--output", "json", *pipelines.where) == '{"n":1}\n{"n":2}\n'
    made = tmp_path / "made"
    asked("sql", query, "--output", "parquet", "--file", str(made), *pipelines.where)
    assert list(made.glob("*.parquet"))
