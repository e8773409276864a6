"""Do sessions and pipelines run on a YARN, by the name of the master alone?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conformance.kafka_brokers import unique
from tests.spark.lines import ROOT
from tests.spark.pipelines import send
from tests.spark.processes import DEADLINE_S
from tests.spark.test_example import check_example, run_example
from tests.spark.test_example import devices as devices  # noqa: PLC0414 - a fixture
from tests.spark.topics import make_topic, servers
from tests.spark.yarn import Yarn, available, yarn

pytestmark = pytest.mark.spark_slow
SESSION = """
import json, os, sys
import onelog.spark

spark = onelog.spark.session("yarn", name="by-hand")
rows = spark.read.format("onelog").options(servers=sys.argv[1], subscribe=sys.argv[2]).load()
found = sorted(row.value.decode() for row in rows.select("value").collect())
parts = spark.range(4, numPartitions=4).rdd
containers = parts.map(lambda _: os.environ.get("CONTAINER_ID", "")).distinct().collect()
spark.stop()
print(json.dumps([found, containers]))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Yarn]:
    if not available():
        pytest.skip("YARN is missing: run 'make conformance-spark' where Maven is")
    with yarn(tmp_path_factory.mktemp("yarn")) as made:
        yield made


def test_a_session_reads_topics_in_containers(cluster, broker):
    topic = make_topic(broker, unique("rows"))
    send(broker, topic, *(f"v{n}" for n in range(20)))
    done = subprocess.run(
        [sys.executable, "-c", SESSION, servers(broker), topic],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=ROOT,
        env=os.environ | cluster.environment,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found, containers = json.loads(done.stdout.splitlines()[-1])
    assert found == sorted(f"v{n}" for n in range(20))
    assert all(one.startswith("container_") for one in containers)
    assert cluster.applications()["by-hand"] == "SUCCEEDED"


def test_the_example_runs_unchanged(cluster, devices, tmp_path, monkeypatch):
    for name, text in cluster.environment.items():
        monkeypatch.setenv(name, text)
    check_example(run_example(tmp_path, "yarn"), tmp_path, devices)
    assert cluster.applications()["iot"] == "SUCCEEDED"
