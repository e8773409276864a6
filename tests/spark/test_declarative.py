"""Is a spec of Spark Declarative Pipelines a pipeline as others: checked, run, exactly once?"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from onelog.base.errors import ConfigError
from onelog.pipelines import State, Status, needs
from onelog.pipelines.declarative import is_declarative, load_declarative, write_project
from onelog.pipelines.declarative.run import Refresh
from onelog.pipelines.spec import TableKeys
from tests.conformance.kafka_brokers import unique
from tests.spark.lines import environment, has_line
from tests.spark.pipelines import place, send, table_rows
from tests.spark.processes import DEADLINE_S, LOOK_S, Pipelines, asked, done, onelog
from tests.spark.topics import make_topic, servers
from tests.support.kafka_txn_clients import read

SPEC = """
name: p
libraries:
  - glob:
      include: flows.py
"""
HEAD = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
spark = SparkSession.active()
dp.create_sink("out", "onelog", {"topic": "out"})
def topic(name):
    return spark.readStream.format("onelog").option("subscribe", name).load()
"""
KEPT = """
CREATE STREAMING TABLE kept AS SELECT device FROM STREAM readings;
CREATE MATERIALIZED VIEW totals AS SELECT count(*) AS rows, count(DISTINCT device) AS devices
FROM kept;
"""


def spec(folder: Path, text: str = SPEC, definitions: str = HEAD) -> Path:
    file = folder / "p.yml"
    file.write_text(text)
    (folder / "flows.py").write_text(definitions)
    return file


# -- the spec


def test_a_file_is_a_spec_by_its_name():
    names = {"a.yml": True, "a.yaml": True, "spark-pipeline.YML": True, "a.toml": False}
    assert {name: is_declarative(Path(name)) for name in names} == names


def test_what_init_writes_is_a_spec_with_the_name_of_its_file(tmp_path):
    written = write_project(tmp_path / "hot.yml")
    assert written == [tmp_path / "hot.yml", tmp_path / "transformations" / "readings.py"]
    assert load_declarative(tmp_path / "hot.yml").name == "hot"
    with pytest.raises(ConfigError, match=r"hot\.yml exists already"):
        write_project(tmp_path / "hot.yml")


def test_a_spec_that_is_named_as_spark_wants_has_the_name_of_its_directory(tmp_path):
    folder = tmp_path / "fleet"
    folder.mkdir()
    write_project(folder / "spark-pipeline.yml")
    assert load_declarative(folder / "spark-pipeline.yml").name == "fleet"


def test_storage_is_below_the_data_directory_unless_the_spec_says_it(tmp_path):
    tree = load_declarative(spec(tmp_path)).tree("file:///here")
    assert tree == {
        "name": "p",
        "storage": "file:///here",
        "configuration": {},
        "libraries": [{"glob": {"include": "flows.py"}}],
    }
    said = load_declarative(spec(tmp_path, SPEC + "storage: s3a://there\n"))
    assert said.tree("file:///here")["storage"] == "s3a://there"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("name: p", "nam: p", r"p\.yml: unknown key nam \(did you mean name\?\)"),
        ("name: p", "name: a/b", "name = 'a/b'"),
        ("name: p", "storage: s", "name is missing"),
        ("flows.py", "gone.py", r"libraries: there is no file at .*gone\.py"),
        ("flows.py", "no/**", r"libraries: there is no file at .*no/\*\*"),
        ("flows.py", "f*.py", r"neither a file nor folder/\*\*"),
        ("flows.py", "p.yml", r"p\.yml is neither Python"),
        ("glob:", "blob:", "libraries = "),
        ("name: p", "name: p\nconfiguration: {a: 1}", "configuration = .*expected `str`"),
        ("name: p", "name: [", "not valid YAML"),
        (SPEC, "- a", "has to be a table of keys"),
        (SPEC, "name: p", "libraries is missing"),
        (SPEC, "name: p\nlibraries: []", "libraries = "),
    ],
)
def test_what_is_wrong_in_a_spec_is_told_with_its_key(tmp_path, old, new, told):
    with pytest.raises(ConfigError, match=told):
        load_declarative(spec(tmp_path, SPEC.replace(old, new)))


def test_definitions_that_are_no_python_are_told_with_their_line(tmp_path):
    with pytest.raises(ConfigError, match=r"flows\.py:2: not valid Python: .*never closed"):
        load_declarative(spec(tmp_path, SPEC, "a = 1\nb = (2\n"))


def test_a_spec_that_is_not_there_is_told_with_the_command_that_writes_one(tmp_path):
    with pytest.raises(ConfigError, match=r"`onelog pipeline init .*gone\.yml` writes one"):
        load_declarative(tmp_path / "gone.yml")


def test_without_the_libraries_of_connect_the_extra_is_named(tmp_path, monkeypatch):
    found = needs.find_spec
    monkeypatch.setattr(needs, "find_spec", lambda name: None if name == "grpc" else found(name))
    with pytest.raises(ConfigError, match=r"grpc is not installed.*onelog\[spark-connect\]"):
        load_declarative(spec(tmp_path))
    needs.need_spark()  # other pipelines do without


def test_everything_anew_and_something_alone_are_not_asked_for_together():
    assert not Refresh()
    with pytest.raises(ConfigError, match="--full-refresh-all refreshes everything"):
        Refresh(only=("a",), full_all=True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("init", "p.yml", "--job", "archive"), "--job archive is written as TOML"),
        (("run", "p.toml", "--refresh", "a"), "for declarative pipelines"),
    ],
)
def test_what_belongs_to_the_other_kind_of_file_is_refused(tmp_path, arguments, told):
    toml = tmp_path / "p.toml"
    asked("pipeline", "init", str(toml))
    name, file, *more = arguments
    refused = done("pipeline", name, str(tmp_path / file), *more)
    assert refused.returncode == 2
    assert told in refused.stderr


# -- runs


@pytest.fixture
def pipelines(tmp_path, broker) -> Iterator[Pipelines]:
    made = Pipelines(tmp_path, broker)
    yield made
    made.close()


def wait_until(folder: Path, pid: int, holds: Callable[[Status], bool]) -> None:
    """Until a run says of itself that something holds."""
    deadline = time.monotonic() + DEADLINE_S
    state = State(folder)
    while time.monotonic() < deadline:
        if (folder / "status.json").exists():
            status = state.status()
            if status.pid == pid:
                if holds(status):
                    return
                assert status.phase not in ("killed", "failed"), state.log.read_text()[-3000:]
        time.sleep(LOOK_S)
    raise AssertionError(state.log.read_text()[-3000:])


def project(folder: Path, source: str, sink: str, limit: str = "") -> Path:
    """What init writes, with the topics of a test."""
    file = folder / "hot.yml"
    asked("pipeline", "init", str(file))
    definitions = folder / "transformations" / "readings.py"
    text = definitions.read_text()
    for old, new in (
        ("sensors/+/telemetry", source),
        ('"topic": "alerts"', f'"topic": "{sink}"'),
        (".load()", f"{limit}.load()"),
    ):
        assert old in text, old
        text = text.replace(old, new)
    definitions.write_text(text)
    return file


def readings(first: int, count: int) -> list[dict]:
    return [{"device": f"d{n}", "temperature": 31.0} for n in range(first, first + count)]


def devices(values: list[dict]) -> list[str]:
    return sorted(one["device"] for one in values)


@pytest.mark.spark_slow
def test_each_row_is_once_in_topic_table_and_view_over_a_kill_a_stop_and_new_rows(
    broker, tmp_path, pipelines
):
    source, sink = make_topic(broker, unique("in")), unique("out")
    file = project(tmp_path, source, sink, '.option("maxOffsetsPerTrigger", "25")')
    (tmp_path / "transformations" / "kept.sql").write_text(KEPT)
    send(broker, source, *readings(0, 200))
    state, name = pipelines.data / "pipelines" / "hot", ("hot", *pipelines.where)

    killed = pipelines.run(file)
    wait_until(state, killed.process.pid, lambda now: any(one.rows for one in now.targets.values()))
    killed.kill()
    assert json.loads(asked("pipeline", "status", "--json", *name))["phase"] == "killed"

    stopped = pipelines.run(file)
    wait_until(state, stopped.process.pid, lambda now: bool(now.targets))
    refused = done("pipeline", "run", str(file), *pipelines.where)
    assert refused.returncode == 1
    assert "runs already" in refused.stderr
    assert "stopped" in asked("pipeline", "stop", *name)
    assert stopped.end() == 0
    assert "hot: stopped" in asked("pipeline", "status", *name)

    send(broker, source, *readings(200, 50))
    assert asked("pipeline", "run", str(file), *pipelines.where) == "pipeline hot: done\n"

    wanted = devices(readings(0, 250))
    assert devices([json.loads(value) for value in read(broker.port, sink)]) == wanted
    lake = place(broker, tmp_path).table(TableKeys(iceberg="readings"))
    assert devices(table_rows(lake)) == wanted
    [totals] = pq.read_table(state / "tables" / "totals").to_pylist()
    assert totals == {"rows": 250, "devices": 250}
    status = json.loads(asked("pipeline", "status", "--json", *name))
    assert {flow: one["state"] for flow, one in status["targets"].items()} == dict.fromkeys(
        ("hot", "keep", "kept", "totals"), "completed"
    )


BAD = {
    "undefined()": r"flows.py:9: NameError: name 'undefined' is not defined",
    "@dp.append_flow(target='out')\ndef f(): return topic('{gone}').select('value')": (
        "flow f: option subscribe: topic '{gone}'"
    ),
    "@dp.append_flow(target='out')\ndef f(): return topic('{source}').select('valu')": (
        "name `valu` cannot be resolved"
    ),
}


@pytest.mark.spark_slow
@pytest.mark.parametrize("definitions", BAD)
def test_what_definitions_do_wrong_is_one_line(broker, tmp_path, pipelines, definitions):
    names = {"source": make_topic(broker, unique("in")), "gone": unique("gone")}
    file = spec(tmp_path, SPEC, HEAD + "\n" + definitions.format(**names))
    failed = done("pipeline", "run", str(file), *pipelines.where)
    assert failed.returncode == 1
    assert BAD[definitions].format(**names) in failed.stderr.splitlines()[-1]
    assert "Traceback" not in failed.stderr
    assert "failed" in asked("pipeline", "list", *pipelines.where)


@pytest.mark.spark_slow
def test_a_plan_finds_what_spark_finds_without_a_run(broker, tmp_path, pipelines):
    source = make_topic(broker, unique("in"))
    good = "@dp.append_flow(target='out')\ndef f(): return topic('{}').select('{}')"
    file = spec(tmp_path, SPEC, HEAD + good.format(source, "value"))
    assert "pipeline p ok" in asked("pipeline", "validate", str(file), "--plan", *pipelines.where)
    assert "no pipeline has run here" in asked("pipeline", "list", *pipelines.where)
    spec(tmp_path, SPEC, HEAD + good.format(source, "valu"))
    refused = done("pipeline", "validate", str(file), "--plan", *pipelines.where)
    assert refused.returncode == 1
    assert "`valu` cannot be resolved" in refused.stderr


@pytest.mark.spark_slow
def test_a_broker_that_is_not_there_is_one_line(tmp_path):
    flow = "@dp.append_flow(target='out')\ndef f(): return topic('t').select('value')"
    head = HEAD.replace(".load()", '.option("timeoutMs", "1000").load()')
    quick = SPEC + 'configuration:\n  spark.sql.pipelines.maxFlowRetryAttempts: "0"\n'
    file = spec(tmp_path, quick, head + flow)
    failed = done(
        "pipeline", "run", str(file), "--data", str(tmp_path / "data"), "--servers", "127.0.0.1:1"
    )
    assert failed.returncode == 1
    assert "nothing answers at 127.0.0.1:1" in failed.stderr.splitlines()[-1]


@pytest.mark.spark_slow
@pytest.mark.skipif(not has_line("4.1"), reason="PySpark 4.1 is not fetched")
def test_the_older_spark_runs_it_too(broker, tmp_path):
    source, sink = make_topic(broker, unique("in")), unique("out")
    file = project(tmp_path, source, sink)
    for first in (0, 10):
        send(broker, source, *readings(first, 10))
        ran = subprocess.run(
            onelog("pipeline", "run", str(file), "--data", str(tmp_path / "data")),
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
            env=environment("4.1") | {"ONELOG_SERVERS": servers(broker)},
        )
        assert ran.returncode == 0, ran.stderr
    assert devices([json.loads(value) for value in read(broker.port, sink)]) == devices(
        readings(0, 20)
    )
