"""Are the tables of the sink the same tables for Iceberg's and Delta's own engines?"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from tests.spark.lines import ROOT, environment, has_line

LINE = "4.1"
"""The newest line of Spark for which both have jars."""
pytestmark = pytest.mark.spark_slow


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> dict[str, dict[str, list[list[object]]]]:
    if not has_line(LINE):
        pytest.skip(f"PySpark {LINE} is missing: run 'make conformance-spark'")
    if shutil.which("mvn") is None:
        pytest.skip("Maven is missing, and with it the jars: run 'apt-get install maven' as root")
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.jars_child", str(tmp_path_factory.mktemp("jars"))],
        cwd=ROOT,
        env=environment(LINE),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found: dict[str, dict[str, list[list[object]]]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_spark_sql_and_the_sink_read_and_write_the_same_table(seen, form):
    first = [[n, f"v{n}"] for n in range(3)]
    later = [[n, f"v{n}"] for n in range(20, 23)]
    assert seen[form] == {
        "sql reads what the sink wrote": first,
        "the sink reads what sql wrote": [*first, [10, "v10"]],
        "sql reads what the sink added a column to": [
            *([n, None] for n in (0, 1, 2, 10)),
            *([n, n * 2] for n in range(20, 23)),
        ],
        "without the jar": [*first, [10, "v10"], *later],
    }
