"""Does a pipeline with all it keeps in a bucket go on exactly, killed or on another machine?"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.conformance.kafka_brokers import KafkaOnelog, unique
from tests.spark.lines import ROOT
from tests.spark.pipelines import send
from tests.spark.topics import make_topic, servers
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, available, s3_server

pytestmark = [
    pytest.mark.spark_slow,
    pytest.mark.skipif(not available(), reason="SeaweedFS is missing: run 'make setup'"),
]
DEADLINE_S = 400
TABLE = """
name = "latest"
{head}

[spark]
{spark}

[sources.rows]
topics = ["{topic}"]
decode = "json"
schema = "device STRING, at BIGINT"
rows_per_trigger = 20

{transforms}

[targets.states]
from = "states"
{format} = "{table}"
{warehouse}
mode = "upsert"
keys = ["device"]
order_by = ["at"]
options = {{ "s3.endpoint" = "{endpoint}", "s3.credentials-file" = "{file}" }}
"""
PLAIN = """
[transforms.states]
sql = "SELECT value.device AS device, value.at AS at FROM rows"
"""
WITH_STATE = """
[transforms.named]
sql = "SELECT value.device AS device, value.at AS at, timestamp FROM rows"

[transforms.states]
unique = ["device", "at"]
within = "1h"
from = ["named"]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        running.bucket("lake")
        yield running


class Machine:
    """The command, as a user has it who keeps credentials in a file."""

    def __init__(self, folder: Path, broker: KafkaOnelog) -> None:
        self.folder = folder
        self.where = ["--data", str(folder / "data"), "--servers", servers(broker)]
        home = ROOT / "build" / "spark" / "home"
        home.mkdir(parents=True, exist_ok=True)
        self._environment = os.environ | {"SPARK_SUBMIT_OPTS": f"-Duser.home={home}"}

    def keys(self, secret: str = SECRET_KEY) -> Path:
        file = self.folder / "lake.ini"
        file.write_text(
            f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret}\n"
        )
        return file

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "onelog", *arguments, *self.where],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment | more,
            start_new_session=True,
        )

    def ask(self, *arguments: str, code: int = 0, env: Mapping[str, str] | None = None) -> str:
        """What it says, when it ends as it should: of a failure the one line."""
        process = self.start(*arguments, **(env or {}))
        out, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code, errors
        assert "Traceback" not in errors
        assert SECRET_KEY not in out + errors
        if not code:
            return out
        (line,) = [one for one in errors.splitlines() if one.startswith("onelog: ")]
        return line

    def log(self) -> str:
        return "".join(file.read_text() for file in self.folder.rglob("spark.log"))


def text(server: S3Server, machine: Machine, topic: str, form: str, **more: str) -> str:
    root = f"s3://lake/{unique(form)}"
    given = {
        "head": "",
        "spark": "",
        "transforms": PLAIN,
        "topic": topic,
        "format": form,
        "table": "lake.latest" if form == "iceberg" else f"{root}/latest",
        "warehouse": f'warehouse = "{root}"' if form == "iceberg" else "",
        "endpoint": server.endpoint,
        "file": str(machine.keys()),
    }
    return TABLE.format(**given | more)


def command_lines() -> str:
    """What every user of the machine may read of every process."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it ended
            continue
    return "\n".join(found)


@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_a_table_in_a_bucket_is_kept_asked_and_refused_in_one_line(server, broker, tmp_path, form):
    machine = Machine(tmp_path, broker)
    topic = make_topic(broker, unique("states"))
    send(broker, topic, *({"device": f"d{n % 7}", "at": n} for n in range(50)))
    file = tmp_path / "latest.toml"
    file.write_text(text(server, machine, topic, form))
    machine.ask("pipeline", "run", str(file), "--once")
    row = machine.ask("table", "get", str(file), "d3", "--json")
    assert json.loads(row) == {"device": "d3", "at": 45}
    if form == "delta":
        table = re.search(r'delta = "(\S+)"', file.read_text())[1]
        query = f"select count(*) as n, max(at) as last from delta('{table}')"
        said = machine.ask("sql", query, "--output", "json", env=server.environment)
        assert json.loads(said) == {"n": 7, "last": 49}
    machine.keys("wrong")
    send(broker, topic, {"device": "d3", "at": 60})
    assert "does not let us into s3://lake" in machine.ask("table", "get", str(file), "d3", code=1)
    said = machine.ask("pipeline", "run", str(file), "--once", code=1)
    assert "does not let us into s3://lake" in said
    machine.keys()
    machine.ask("pipeline", "run", str(file), "--once")
    row = machine.ask("table", "get", str(file), "d3", "--json")
    assert json.loads(row) == {"device": "d3", "at": 60}
    assert SECRET_KEY not in machine.log()


def test_checkpoint_state_and_table_in_a_bucket_go_on_from_a_cluster(
    server, broker, cluster, tmp_path
):
    if shutil.which("mvn") is None:
        pytest.skip("Maven is missing, and with it the jars: run 'apt-get install maven' as root")
    topic = make_topic(broker, unique("states"), partitions=1)
    first = Machine(tmp_path / "first", broker)
    first.folder.mkdir()
    spark = f'"s3.endpoint" = "{server.endpoint}"\n"s3.credentials-file" = "{first.keys()}"'
    head = f'jars = ["s3"]\ncheckpoint = "s3a://lake/{unique("checkpoints")}"'
    file = tmp_path / "latest.toml"
    file.write_text(
        text(server, first, topic, "delta", head=head, spark=spark, transforms=WITH_STATE)
    )
    send(broker, topic, *({"device": f"d{n}", "at": n} for n in range(100)))
    running = first.start("pipeline", "run", str(file))
    assert running.stderr is not None
    said = []
    for line in running.stderr:
        said.append(line)
        if re.match(r"states: batch [1-9]\d*, [1-9]\d* rows", line):
            break
    else:
        raise AssertionError("".join(said))
    assert SECRET_KEY not in command_lines()
    os.killpg(running.pid, 9)
    running.communicate()
    # Some come again that the first machine has seen: the state knows them.
    send(broker, topic, *({"device": f"d{n}", "at": n} for n in range(50, 150)))
    second = Machine(tmp_path / "second", broker)
    second.folder.mkdir()
    second.ask("pipeline", "run", str(file), "--once", "--master", cluster.master)
    told = json.loads(second.ask("pipeline", "status", "latest", "--json"))
    assert told["targets"]["states"]["batch"] >= 2, "it began anew"
    table = re.search(r'delta = "(\S+)"', file.read_text())[1]
    query = (
        f"select count(*) as n, count(distinct device) as d, max(at) as last from delta('{table}')"
    )
    asked = second.ask("sql", query, "--output", "json", env=server.environment)
    assert json.loads(asked) == {"n": 150, "d": 150, "last": 149}
    second.ask("pipeline", "run", str(file), "--once")
    told = json.loads(second.ask("pipeline", "status", "latest", "--json"))
    assert told["targets"]["states"]["rows"] == 0, "nothing was left to do"
    assert SECRET_KEY not in first.log() + second.log()
