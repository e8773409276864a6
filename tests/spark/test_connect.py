"""Do pipelines, SQL and programs run on a Spark that runs already, and leave it as it was?"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import __file__ as pyspark_file

from onelog.pipelines.spec import TableKeys
from onelog.spark import java_home
from tests.conformance.kafka_brokers import KafkaOnelog, unique
from tests.spark.jvm import local_settings
from tests.spark.pipelines import place, send, table_rows
from tests.spark.processes import DEADLINE_S, Pipelines, asked, done, drain, onelog
from tests.spark.topics import make_topic, servers
from tests.support.kafka_txn_clients import read

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
COPY = """
name = "copy"
[sources.rows]
topics = ["{source}"]
decode = "json"
schema = "n BIGINT"
[transforms.named]
python = "named.py:named"
from = ["rows"]
[transforms.even]
sql = "SELECT value FROM named WHERE get_json_object(value, '$.n') % 2 = 0"
[targets.topic]
from = "even"
topic = "{sink}"
[targets.table]
from = "named"
iceberg = "copied"
"""
NAMED = """
from pyspark.sql import functions as f

def named(rows):
    return rows.select(f.to_json("value").alias("value"))
"""
FLOW = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_sink("out", "onelog", {{"topic": "{sink}"}})

@dp.append_flow(target="out")
def copied():
    rows = spark.readStream.format("onelog").option("subscribe", "{source}")
    return rows.option("startingOffsets", "earliest").load().select("value")
"""
PROGRAM = """
import sys
import onelog.spark
from onelog.base.errors import ConfigError

address, topic, servers = sys.argv[1:]
for refused in ({"config": {"spark.driver.memory": "2g"}}, {"jars": ["kafka"]}):
    try:
        onelog.spark.session(address, **refused)
    except ConfigError as error:
        print(error)
spark = onelog.spark.session(address, config={"spark.sql.shuffle.partitions": "3"})
print(spark.conf.get("spark.sql.shuffle.partitions"), spark.conf.get("spark.sql.session.timeZone"))
rows = spark.read.format("onelog").option("servers", servers).option("subscribe", topic).load()
print(rows.count())
spark.stop()
"""


class WheelServer:
    """A Spark Connect server, as PySpark's wheel brings it; nothing of OneLog is told to it."""

    def __init__(self, broker: KafkaOnelog) -> None:
        settings = local_settings(writes_archive=False) | {
            "spark.connect.grpc.binding.port": "0",
            "spark.connect.grpc.binding.address": "127.0.0.1",
        }
        told = [part for key, text in settings.items() for part in ("--conf", f"{key}={text}")]
        submit = str(Path(pyspark_file).parent / "bin" / "spark-submit")
        self._process = subprocess.Popen(
            [submit, "--master", "local[2]", "--class", SERVER, *told, "spark-internal"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ
            | {
                "JAVA_HOME": str(java_home()),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "ONELOG_SERVERS": servers(broker),
            },
            start_new_session=True,
        )
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            found = re.search(r"Spark Connect server started at: \S+?:(\d+)$", line.strip())
            if found is not None:
                self.address = f"sc://127.0.0.1:{found[1]}"
                break
        else:
            raise AssertionError("".join(said))
        self._rest = threading.Thread(target=drain, args=(self._process.stderr,))
        self._rest.start()

    def runs(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(60)
        self._rest.join(60)


@pytest.fixture(scope="module")
def server(broker) -> Iterator[WheelServer]:
    made = WheelServer(broker)
    try:
        yield made
        assert made.runs()  # whatever came and went
    finally:
        made.stop()


@pytest.fixture
def pipelines(tmp_path, broker) -> Iterator[Pipelines]:
    made = Pipelines(tmp_path, broker)
    yield made
    made.close()


@pytest.mark.spark_slow
def test_a_program_is_told_what_only_the_start_of_spark_takes_and_its_end_ends_nothing(
    broker, server
):
    topic = make_topic(broker, unique("in"))
    send(broker, topic, "a", "b", "c")
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.address, topic, servers(broker)],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert said.returncode == 0, said.stderr
    memory, jars, settings, count = said.stdout.splitlines()
    assert memory.startswith("spark.driver.memory counts only when Spark starts")
    assert jars.startswith("jars: a Spark that runs already cannot load them")
    assert settings == "3 UTC"
    assert count == "3"
    assert server.runs()


@pytest.mark.spark_slow
def test_sql_is_answered_by_a_spark_that_runs(broker, server, pipelines):
    topic = make_topic(broker, unique("asked"))
    send(broker, topic, {"n": 1}, {"n": 2})
    query = f"SELECT value.n AS n FROM topic('{topic}', decode => 'json') ORDER BY n"
    where = (*pipelines.where, "--master", server.address)
    assert asked("sql", query, "--output", "json", *where) == '{"n":1}\n{"n":2}\n'
    assert re.search(r"^n +\n1 +\n2 +\n", asked("sql", query, *where))
    wrong = done("sql", "SELECT gone", *where)
    assert wrong.returncode == 1
    assert "`gone` cannot be resolved" in wrong.stderr
    assert "Traceback" not in wrong.stderr


@pytest.mark.spark_slow
def test_a_pipeline_on_a_spark_that_runs_goes_on_exactly_where_it_was(
    broker, server, tmp_path, pipelines
):
    source, sink = make_topic(broker, unique("in")), unique("out")
    file = tmp_path / "copy.toml"
    file.write_text(COPY.format(source=source, sink=sink))
    (tmp_path / "named.py").write_text(NAMED)
    on = ("--master", server.address)
    values = [{"n": n} for n in range(30)]
    send(broker, source, *values[:10])
    going = pipelines.run(file, *on)
    going.wait_for(10)
    going.stop()  # and with it its queries at the server: they hold the checkpoints
    send(broker, source, *values[10:20])
    killed = pipelines.run(file, *on)
    killed.wait_for(10)
    killed.kill()
    send(broker, source, *values[20:])
    # What was killed could not say so: the server still runs its queries, and ends them when the
    # next run takes their checkpoints.
    asked("pipeline", "run", str(file), "--once", *pipelines.where, *on)
    wanted = sorted(json.dumps(one).replace(" ", "") for one in values)
    assert sorted(read(broker.port, sink)) == [
        one for one in wanted if json.loads(one)["n"] % 2 == 0
    ]
    table = table_rows(place(broker, tmp_path).table(TableKeys(iceberg="copied")))
    assert sorted(one["value"] for one in table) == wanted


@pytest.mark.spark_slow
def test_a_declarative_pipeline_runs_on_a_spark_that_runs(broker, server, tmp_path, pipelines):
    source, sink = make_topic(broker, unique("in")), unique("out")
    file = tmp_path / "flow.yml"
    file.write_text("name: flow\nlibraries:\n  - glob:\n      include: flow.py\n")
    (tmp_path / "flow.py").write_text(FLOW.format(source=source, sink=sink))
    for first in ("a", "b"):
        send(broker, source, first, first * 2)
        asked("pipeline", "run", str(file), *pipelines.where, "--master", server.address)
    assert sorted(read(broker.port, sink)) == ["a", "aa", "b", "bb"]
    where = (*pipelines.where, "--master", server.address)
    refused = done("pipeline", "run", str(file), "--refresh", "gone", *where)
    assert refused.returncode == 1
    assert "the definitions have no table or view gone" in refused.stderr


@pytest.mark.spark_slow
def test_spark_that_onelog_serves_answers_who_has_its_token_and_ends_when_told(
    broker, tmp_path, pipelines
):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"sc://localhost:{port}"
    process = subprocess.Popen(
        onelog("spark", "serve", "--port", str(port), *pipelines.where),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert f"Spark listens at {address}" in process.stdout.readline()
        mine = asked("sql", "SELECT 1 AS n", "-o", "json", *pipelines.where, "--master", address)
        assert mine == '{"n":1}\n'
        other = done("sql", "SELECT 1", "--data", str(tmp_path / "other"), "--master", address)
        assert other.returncode == 1
        assert other.stderr.count("\n") == 1, other.stderr
        secret = pipelines.data / "spark" / str(port) / "address"
        assert secret.stat().st_mode & 0o077 == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert not secret.exists()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.spark_slow
def test_what_listens_and_is_no_spark_connect_is_told_within_a_minute(broker, pipelines):
    refused = done("sql", "SELECT 1", *pipelines.where, "--master", f"sc://{servers(broker)}")
    assert refused.returncode == 1
    assert "it is no Spark Connect server" in refused.stderr


@pytest.mark.parametrize(
    ("master", "code", "told"),
    [
        ("spark://nowhere.invalid:1", 1, "nobody answers there"),
        ("k8s://https://127.0.0.1:1", 1, "nobody answers there"),
        ("sc://127.0.0.1:1", 1, "nobody answers there"),
        ("nonsense", 2, "master 'nonsense' is not a master"),
    ],
)
def test_a_master_that_is_not_there_ends_a_run_with_one_line(tmp_path, master, code, told):
    file = tmp_path / "p.toml"
    asked("pipeline", "init", str(file))
    where = ("--data", str(tmp_path / "data"), "--master", master)
    for command in (("pipeline", "run", str(file)), ("sql", "SELECT 1")):
        ended = done(*command, *where)
        assert ended.returncode == code
        assert told in ended.stderr.splitlines()[-1]
        assert "Traceback" not in ended.stderr
