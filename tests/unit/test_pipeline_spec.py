"""Is a pipeline's file read strictly, and does what is wrong name its key?"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from onelog.base.errors import ConfigError
from onelog.pipelines import JOBS, Workspace, job_text, load_pipeline
from onelog.pipelines.load import parse_pipeline
from onelog.pipelines.options import check_options, source_options, starting, target_options

PLACE = Workspace(Path("data"), "127.0.0.1:9092")
GOOD = """
name = "p"
[sources.a]
topics = ["in"]
decode = "json"
schema = "x INT"
[transforms.b]
sql = "SELECT 1"
[targets.c]
from = "b"
topic = "out"
"""


def read(text: str):
    return parse_pipeline(tomllib.loads(text))


@pytest.mark.parametrize("job", JOBS)
def test_every_job_is_a_pipeline_that_the_connector_takes(job, tmp_path):
    file = tmp_path / f"{job}-1.toml"
    file.write_text(job_text(job, file.stem))
    pipeline = load_pipeline(file)
    assert pipeline.name == f"{job}-1"
    check_options(pipeline, Workspace(tmp_path, "127.0.0.1:9092"))


@pytest.mark.parametrize(
    ("change", "to", "told"),
    [
        ('topic = "out"', 'topik = "out"', "unknown key targets.c.topik (did you mean topic?)"),
        ('name = "p"', 'nam = "p"', "unknown key nam (did you mean name?)"),
        ('name = "p"', "", "name is missing"),
        ('name = "p"', 'name = "a b"', "name = 'a b': expected"),
        (
            'from = "b"',
            'from = "bb"',
            "targets.c.from: 'bb' is neither a source nor an earlier transform",
        ),
        ('from = "b"', "", "targets.c.from is missing"),
        ('topic = "out"', "", "targets.c: one of topic, iceberg"),
        ('topic = "out"', 'topic = "out"\ndelta = "d"', "topic and delta is given"),
        ('topic = "out"', 'topic = "out"\nkeys = ["k"]', "targets.c.keys is for tables"),
        ('topic = "out"', "topic = 3", "targets.c.topic = 3: expected"),
        ('schema = "x INT"', "", "sources.a.schema is missing"),
        ('decode = "json"', "", "sources.a.decode is missing"),
        ('decode = "json"', 'decode = "xml"', "sources.a.decode = 'xml'"),
        ('topics = ["in"]', "", "sources.a: one of topics, filter"),
        ('topics = ["in"]', 'topics = ["in"]\nwatermark = "1 moon"', "sources.a.watermark"),
        ('sql = "SELECT 1"', 'python = "f"\nfrom = ["a"]', "write it as file.py:function"),
        ('sql = "SELECT 1"', 'unique = ["k"]\nfrom = ["a"]', "transforms.b.within"),
        ('sql = "SELECT 1"', 'sql = "SELECT 1"\nfrom = ["a"]', "transforms.b.from"),
        ("[transforms.b]", "[transforms.a]", "a source has this name already"),
        ("[transforms.b]", '[transforms."b c"]', "transforms.b c: a name has letters"),
        ('name = "p"', 'name = "p"\nevery = "x"', "every: 'x' is not a duration"),
        ('name = "p"', 'name = "p"\nbroker = 3', "broker has to be a table of keys"),
    ],
)
def test_what_is_wrong_is_told_with_its_key(change, to, told):
    assert GOOD.count(change) == 1
    with pytest.raises(ConfigError) as caught:
        read(GOOD.replace(change, to))
    assert told in str(caught.value)


def test_what_the_connector_refuses_is_told_with_the_place_in_the_file():
    with pytest.raises(ConfigError, match=r"^sources\.a: option maxOffsetPerTrigger is not known"):
        text = GOOD.replace(
            "[transforms", "[sources.a.options]\nmaxOffsetPerTrigger = 3\n[transforms"
        )
        check_options(read(text), PLACE)
    with pytest.raises(ConfigError, match=r"^targets\.c: .*upsert needs keys"):
        text = GOOD.replace('topic = "out"', 'delta = "out"\nmode = "upsert"')
        check_options(read(text), PLACE)


def test_a_start_is_a_word_or_a_time():
    assert starting("latest", "k") == {"startingOffsets": "latest"}
    assert starting(5, "k")["startingTimestamp"] == "5"
    assert starting("1970-01-01T00:00:01Z", "k")["startingTimestamp"] == "1000"
    assert starting("1970-01-01T00:00:01", "k")["startingTimestamp"] == "1000"
    with pytest.raises(ConfigError, match=r"^sources\.a\.from = 'yesterday'"):
        starting("yesterday", "sources.a.from")


def test_tables_without_a_word_about_their_place_are_below_the_data_directory(tmp_path):
    place = Workspace(tmp_path, "h:1")
    text = GOOD.replace('topic = "out"', 'iceberg = "out"\npartition_by = ["x"]')
    kind, options = target_options(read(text), "c", place)
    assert kind == "onelog-table"
    assert options["table"] == "onelog.out"
    assert options["catalog"] == f"sqlite:///{tmp_path}/lakehouse/catalog.db"
    assert options["partitionBy"] == "x"
    text = GOOD.replace('topic = "out"', 'delta = "out"')
    text += 'dead_letter_table = "bad"'
    options = target_options(read(text), "c", place)[1]
    assert options["table"] == f"{tmp_path}/lakehouse/out"
    assert options["deadLetterTable"] == f"{tmp_path}/lakehouse/bad"


def test_the_broker_of_the_file_wins_and_its_password_is_in_a_file(tmp_path):
    (tmp_path / "secret").write_text("s3cret\n")
    text = GOOD + '[broker]\nservers = "x:1"\nuser = "u"\npassword_file = "secret"\n'
    place = Workspace(tmp_path, "127.0.0.1:9092", tmp_path)
    options = source_options(read(text), "a", "c", place)
    assert (options["servers"], options["user"], options["password"]) == ("x:1", "u", "s3cret")
    assert options["group.id"] == "pipeline-p-c"


def test_the_command_starts_without_spark_and_says_what_is_missing(tmp_path):
    """In a process where the extra cannot be imported, as where it is not installed."""
    program = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "pyarrow", "numpy", "pyiceberg", "deltalake"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import importlib.util as u
real = u.find_spec
u.find_spec = lambda n, *a: None if n in ("pyspark", "pyarrow", "numpy") else real(n, *a)
from onelog.__main__ import main
main()
"""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            check=False,
            text=True,
            cwd=tmp_path,
            timeout=60,
        )

    assert run("version").returncode == 0
    assert run("pipeline", "init", "p.toml").returncode == 0
    assert run("pipeline", "list").returncode == 0
    assert json.loads(run("pipeline", "list", "--json").stdout) == {"items": []}
    refused = run("pipeline", "run", "p.toml")
    assert refused.returncode == 2
    assert "pip install 'onelog[spark]'" in refused.stderr
