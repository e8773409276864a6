"""Does the environment say what options do not, and never what they do?"""

from __future__ import annotations

import pytest

from onelog.base.errors import ConfigError
from onelog.pipelines import Workspace
from onelog.spark.lakehouse.home import LAKEHOUSE, at_home
from onelog.spark.options import CONNECTION, SERVERS, Given, access_of

HERE = {LAKEHOUSE: "/lake"}


def servers_of(**options: str) -> tuple[tuple[str, int], ...]:
    return access_of(Given(options, CONNECTION)).servers


def test_the_broker_is_that_of_the_environment_unless_an_option_names_one(monkeypatch):
    monkeypatch.setenv(SERVERS, "broker:1")
    assert servers_of() == (("broker", 1),)
    assert servers_of(servers="other:2") == (("other", 2),)
    monkeypatch.setenv(SERVERS, "broker:no")
    with pytest.raises(ConfigError, match="ONELOG_SERVERS: 'broker:no' is not host:port"):
        servers_of()
    monkeypatch.delenv(SERVERS)
    with pytest.raises(ConfigError, match=r"servers is missing: .* or ONELOG_SERVERS"):
        servers_of()


def test_an_iceberg_table_without_a_catalog_is_in_that_of_the_lakehouse():
    assert at_home({"tableFormat": "iceberg", "table": "t"}, HERE) == {
        "tableformat": "iceberg",
        "table": "onelog.t",
        "catalog": "sqlite:////lake/catalog.db",
        "warehouse": "/lake/tables",
    }
    said = {"tableformat": "iceberg", "table": "a.t", "catalog": "http://c"}
    assert at_home(said, HERE) == said


@pytest.mark.parametrize(
    ("table", "found"),
    [("hot", "/lake/hot"), ("/else/hot", "/else/hot"), ("s3://b/hot", "s3://b/hot")],
)
def test_a_directory_that_is_relative_is_below_the_lakehouse(table, found):
    options = {"tableFormat": "delta", "table": table, "deadLetterTable": "bad"}
    assert at_home(options, HERE) == {
        "tableformat": "delta",
        "table": found,
        "deadlettertable": "/lake/bad",
    }


def test_bad_rows_go_to_the_broker_of_the_environment():
    options = {"tableformat": "delta", "table": "/t", "deadlettertopic": "bad"}
    assert at_home(options, {SERVERS: "a:1"}) == options | {"dead.servers": "a:1"}
    said = options | {"dead.servers": "b:2"}
    assert at_home(said, {SERVERS: "a:1"}) == said


def test_without_the_environment_nothing_is_added():
    assert at_home({"tableFormat": "iceberg", "table": "t"}, {}) == {
        "tableformat": "iceberg",
        "table": "t",
    }


def test_a_spark_of_this_data_directory_is_reached_with_its_token_and_no_other(tmp_path):
    place = Workspace(tmp_path, "broker:1")
    file = place.token_file(15002)
    file.parent.mkdir(parents=True)
    file.write_text("sc://localhost:15002/;token=secret")
    for own in ("sc://localhost", "sc://localhost:15002", "sc://localhost:15002/"):
        assert place.spark(own) == "sc://localhost:15002/;token=secret"
    others = "local[*]", "sc://localhost:15003", "sc://host:15002", "sc://localhost:15002/;token=x"
    assert [place.spark(other) for other in others] == list(others)


def test_what_a_spark_is_started_with_is_what_sources_and_tables_look_for(tmp_path):
    assert Workspace(tmp_path, "broker:1").environment() == {
        SERVERS: "broker:1",
        LAKEHOUSE: str(tmp_path / "lakehouse"),
    }
