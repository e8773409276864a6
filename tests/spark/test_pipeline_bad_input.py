"""Is what a pipeline cannot do told in one line, with the key or the offsets, and nothing lost?"""

from __future__ import annotations

import json

import pyspark
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from onelog.pipelines.failures import PipelineFailed
from onelog.pipelines.options import target_options
from onelog.pipelines.runner import PipelineRun
from onelog.pipelines.spec import TableKeys
from tests.conformance.kafka_brokers import unique
from tests.cross.clients import Mqtt, Said
from tests.spark.pipelines import parsed, place, run, send, table_rows
from tests.spark.processes import Pipelines, done
from tests.spark.topics import make_topic, servers
from tests.support.kafka_txn_clients import read

pytestmark = pytest.mark.spark_slow

no_limits = pytest.mark.skipif(
    pyspark.__version__.startswith("4.1."), reason="PySpark 4.1 has no limits for sources"
)

READINGS = """
name = "@name@"
mode = "triggered"
[sources.readings]
topics = ["@in@"]
decode = "json"
schema = "device STRING, heat @type@"
[transforms.flat]
sql = "SELECT value.device AS device, value.heat AS heat FROM readings"
[targets.lake]
from = "flat"
delta = "heat"
"""


def told(caught: pytest.ExceptionInfo[PipelineFailed]) -> str:
    words = str(caught.value)
    assert "\n" not in words
    return words


@pytest.mark.parametrize("letters", ["none", "table", "topic"])
def test_values_that_do_not_fit_the_table_fail_the_run_or_go_apart(
    spark, broker, tmp_path, letters
):
    source, dead = make_topic(broker, unique("in")), unique("dead")
    where = place(broker, tmp_path)
    first = {"@name@": unique("p"), "@in@": source, "@type@": "DOUBLE"}
    send(broker, source, {"device": "a", "heat": 1.5})
    run(spark, parsed(READINGS, **first), where)

    text = (
        READINGS
        + {
            "none": "",
            "table": 'dead_letter_table = "bad"\n',
            "topic": f'dead_letter_topic = "{dead}"\n',
        }[letters]
    )
    later = parsed(text, **(first | {"@type@": "STRING"}))
    send(broker, source, {"device": "b", "heat": "2.5"}, {"device": "c", "heat": "hot"})
    options = target_options(later, "lake", where)[1]
    if letters == "none":
        for _ in range(2):  # it is no loop: each run says it anew
            with pytest.raises(PipelineFailed) as caught:
                run(spark, later, where)
            words = told(caught)
            assert words.startswith("targets.lake: ")
            assert "heat" in words
            assert "hot" in words
        assert [one["device"] for one in table_rows(options)] == ["a"]
        return
    run(spark, later, where)
    run(spark, later, where)
    rows = sorted((one["device"], one["heat"]) for one in table_rows(options))
    assert rows == [("a", 1.5), ("b", 2.5)]
    if letters == "table":
        (bad,) = table_rows(where.table(TableKeys(delta="bad")))
        assert json.loads(bad["_row"])["heat"] == "hot"
        assert "heat" in bad["_reason"]
    else:
        (text,) = read(broker.port, dead)
        assert json.loads(text)["row"]["heat"] == "hot"


@no_limits
def test_offsets_that_age_out_while_it_runs_end_it_and_it_goes_on_when_that_is_wanted(
    spark, broker, tmp_path
):
    source, sink = make_topic(broker, unique("in")), unique("out")
    where = place(broker, tmp_path)
    text = f"""
name = "{unique("aged")}"
[sources.rows]
topics = ["{source}"]
decode = "string"
rows_per_trigger = 10
[transforms.plain]
sql = "SELECT value FROM rows"
[targets.copy]
from = "plain"
topic = "{sink}"
"""
    send(broker, source, *(str(n) for n in range(1000)))
    gone = TopicPartition(source, 0, 990)
    admin = AdminClient({"bootstrap.servers": servers(broker)})

    def age(progress):
        if progress["copy"].rows >= 10:
            admin.delete_records([gone])[gone].result(30)

    with pytest.raises(PipelineFailed) as caught:
        PipelineRun(spark, parsed(text), where, age).run()
    words = told(caught)
    assert words.startswith("targets.copy: ")
    assert f"{source}-0: offsets " in words
    assert "to 989 are gone: the log now begins at 990" in words
    assert "failOnDataLoss" in words
    before = sorted(map(int, read(broker.port, sink)))
    assert before == list(range(len(before)))
    lenient = text.replace(
        "[transforms", "[sources.rows.options]\nfailOnDataLoss = false\n[transforms"
    )
    lenient = lenient.replace("[sources.rows]", 'mode = "triggered"\n[sources.rows]', 1)
    run(spark, parsed(lenient), where)
    assert sorted(map(int, read(broker.port, sink))) == [*before, *range(990, 1000)]


def test_a_topic_of_mqtt_as_target_is_told_with_what_to_do(spark, broker, tmp_path):
    source, sink = make_topic(broker, unique("in")), unique("doors/d")
    client = Mqtt(broker.ports["mqtt"], 5, sink)
    client.write(Said(b"x"), sink)
    client.close()
    send(broker, source, "row")
    text = f"""
name = "{unique("p")}"
mode = "triggered"
[sources.rows]
topics = ["{source}"]
[targets.doors]
from = "rows"
topic = "{sink}"
"""
    with pytest.raises(PipelineFailed) as caught:
        run(spark, parsed(text), place(broker, tmp_path))
    assert told(caught).startswith(
        f"targets.doors: topic {sink} shares its stream with other topics, as every topic that MQTT"
        " made does, and a transaction would hold back their readers: write to a topic that has a"
        " stream of its own."
    )


# -- the commands


def test_validate_with_plan_shows_the_columns_or_says_what_is_wrong(broker, tmp_path):
    source = make_topic(broker, unique("in"))
    file = tmp_path / "heat.toml"
    where = Pipelines(tmp_path, broker).where
    good = READINGS.replace("@name@", "heat").replace("@in@", source).replace("@type@", "DOUBLE")

    def validated(text: str):
        file.write_text(text)
        return done("pipeline", "validate", "--plan", str(file), *where)

    found = validated(good)
    assert found.returncode == 0, found.stderr
    assert "targets.lake: struct<device:string,heat:double>" in found.stdout
    assert "pipeline heat ok: 1 sources, 1 transforms, 1 targets" in found.stdout
    assert not (tmp_path / "data" / "pipelines" / "heat" / "status.json").exists()
    for old, new, words in (
        ("value.heat AS", "value.cold AS", "No such struct field `cold`"),
        ("SELECT value", "SELEKT value", "SELEKT"),
        ("FROM readings", "FROM elsewhere", "`elsewhere` cannot be found"),
    ):
        found = validated(good.replace(old, new))
        assert found.returncode == 1, new
        (line,) = found.stderr.strip().splitlines()
        assert line.startswith("onelog: targets.lake: "), line
        assert words in line
        assert found.stdout == ""
    found = validated(good.replace(source, "no-such-topic"))
    assert found.returncode == 2
    assert found.stderr.startswith("onelog: sources.readings: option subscribe: topic 'no-such-top")


def test_a_wrong_option_is_told_without_spark(broker, tmp_path):
    file = tmp_path / "heat.toml"
    text = READINGS.replace("@name@", "heat").replace("@in@", "x").replace("@type@", "DOUBLE")
    where = Pipelines(tmp_path, broker).where
    for more, words in (
        (
            "[targets.lake.options]\nevolv = true\n",
            "targets.lake: onelog-table has no option evolv",
        ),
        ("[sources.readings.options]\nstartingOfsets = 1\n", "did you mean startingOffsets"),
        ("[targets.lake2]\nfrom = 'flat'\ntopik = 'x'\n", "unknown key targets.lake2.topik"),
    ):
        file.write_text(text + more)
        for command in ("validate", "run"):
            found = done("pipeline", command, str(file), *where)
            assert found.returncode == 2
            assert words in found.stderr


def test_the_console_shows_rows_of_topics_and_of_tables(broker, tmp_path):
    source = make_topic(broker, unique("in"))
    send(broker, source, {"device": "kitchen", "heat": 21.5})
    file = tmp_path / "shown.toml"
    where = Pipelines(tmp_path, broker).where
    text = READINGS.replace("@name@", "shown").replace("@in@", source).replace("@type@", "DOUBLE")
    file.write_text(text + '[targets.screen]\nfrom = "flat"\nconsole = true\n')
    found = done("pipeline", "run", str(file), *where)
    assert found.returncode == 0, found.stderr
    assert "Batch: 0" in found.stdout
    assert "|kitchen|21.5|" in found.stdout
    table = """
name = "table"
[sources.heat]
delta = "heat"
[targets.screen]
from = "heat"
console = true
"""
    file.write_text(table)
    found = done("pipeline", "run", str(file), *where)
    assert found.returncode == 0, found.stderr
    assert "|kitchen|21.5|" in found.stdout
