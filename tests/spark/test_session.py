"""Does the session have what the sources need, and does Java come from where it is said to?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import onelog.spark
from onelog.base.errors import ConfigError
from onelog.spark import Jars, iceberg_catalog, java_home
from onelog.spark.java import MISSING_MODULE
from onelog.spark.sessions import PACKAGES, SETTINGS, settings

JAVA_SAYS = """#!/bin/sh
echo 'openjdk version "{version}" 2026-01-01' >&2
"""


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA_SAYS.format(version=version))
    java.chmod(0o755)
    return home


def test_the_session_has_every_setting_and_the_python_of_the_driver(spark):
    assert {key: spark.conf.get(key) for key in SETTINGS} == SETTINGS
    python = spark.range(1).rdd.map(lambda _: __import__("sys").executable).first()
    assert python == sys.executable


def test_asking_again_gives_the_session_that_runs(spark):
    assert onelog.spark.session() is spark


def test_java_home_comes_first(tmp_path):
    named = fake_java(tmp_path / "named", "21.0.1")
    other = fake_java(tmp_path / "other", "17.0.1")
    found = java_home({"JAVA_HOME": str(named), "PATH": f"{other}/bin:/bin"})
    assert found == named


def test_then_the_java_of_the_path(tmp_path):
    other = fake_java(tmp_path / "other", "17.0.1")
    assert java_home({"PATH": f"{other}/bin:/bin"}) == other


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2"])
def test_a_java_home_that_is_too_old_is_refused_and_not_passed_over(tmp_path, version):
    named = fake_java(tmp_path / "old", version)
    with pytest.raises(ConfigError, match="needs 17 or newer"):
        java_home({"JAVA_HOME": str(named), "PATH": "/usr/bin:/bin"})


def test_a_java_home_without_java_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="correct JAVA_HOME, or unset it"):
        java_home({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})


def test_the_wheel_is_the_last_resort_and_bears_the_module_it_lacks(tmp_path):
    old = fake_java(tmp_path / "old", "11.0.2")
    environment = {"PATH": f"{old}/bin", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = java_home(environment)
    assert home.is_relative_to(tmp_path / "cache")
    assert java_home(environment) == home
    said = subprocess.run(
        [home / "bin" / "java", MISSING_MODULE, "-Dan.option=with a space", "-version"],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"]},
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert "OpenJDK" in said.stderr


def test_jars_by_name_bring_their_packages_and_extensions():
    wanted = settings("4.1.4", ["iceberg", Jars.DELTA, "org.example:thing:1.0", "kafka"])
    packages = wanted["spark.jars.packages"].split(",")
    assert packages[0].startswith("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:")
    assert "org.example:thing:1.0" in packages
    assert "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.4" in packages
    assert wanted["spark.sql.extensions"].count(",") == 1


@pytest.mark.parametrize("jars", [Jars.ICEBERG, Jars.DELTA])
def test_jars_that_a_line_of_spark_does_not_have_are_refused_with_the_line_that_has(jars):
    assert "4.3" not in PACKAGES[jars]
    with pytest.raises(ConfigError, match=r"no runtime for Spark 4\.3.*pyspark==4\.1"):
        settings("4.3.0", [jars])


def test_the_jars_of_s3_are_of_the_hadoop_that_spark_brings():
    jars = Path(pyspark.__file__).parent / "jars"
    hadoop = next(jars.glob("hadoop-client-api-*.jar")).stem.removeprefix("hadoop-client-api-")
    packages = settings(pyspark.__version__, ["s3"])["spark.jars.packages"].split(",")
    assert packages[0] == f"org.apache.hadoop:hadoop-aws:{hadoop}"


def test_an_unknown_name_of_jars_is_refused():
    with pytest.raises(ConfigError, match=r"neither one of iceberg, delta, kafka, s3"):
        settings("4.1.4", ["hudi"])


@pytest.mark.parametrize(
    ("catalog", "expected"),
    [
        ("https://lake.example/api", {"type": "rest", "uri": "https://lake.example/api"}),
        ("sqlite:////data/c.db", {"type": "jdbc", "uri": "jdbc:sqlite:/data/c.db"}),
        (
            "postgresql+psycopg2://me:s%40y@db:5432/lake",
            {
                "type": "jdbc",
                "uri": "jdbc:postgresql://db:5432/lake",
                "jdbc.user": "me",
                "jdbc.password": "s@y",
            },
        ),
    ],
)
def test_a_catalog_is_told_to_spark_sql_as_the_sink_is_told_it(catalog, expected):
    wanted = iceberg_catalog(catalog, "/data/lake")
    prefix = "spark.sql.catalog.onelog."
    told = {key.removeprefix(prefix): value for key, value in wanted.items() if prefix in key}
    told.pop("jdbc.schema-version", None)
    assert told == expected | {"warehouse": "file:///data/lake"}


def test_a_catalog_that_java_does_not_know_is_refused():
    with pytest.raises(ConfigError, match="mysql is unknown"):
        iceberg_catalog("mysql://db/lake", "/data/lake")


def test_without_jars_nothing_is_fetched():
    assert "spark.jars.packages" not in settings("4.3.0")
