"""The children of bench-lockstep, bench-lone and the access part of bench-operate still run.

They stand on the support of the tests and on the inside of connections, so a change there can stop
them, and a benchmark that hangs measures nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench.report import ROOT

CASES = {
    "mqtt": ("lockstep_child.py", "mqtt", "1", "1", "2"),
    "amqp": ("lockstep_child.py", "amqp", "1", "1", "2"),
    "kafka": ("lockstep_child.py", "kafka", "0", "1", "2"),
    "mqtt with access rules": ("lockstep_child.py", "mqtt", "0", "1", "2", "10"),
    "lone": ("lone_child.py", "{folder}", "os", "1", "2", "50"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_child_of_a_benchmark_prints_its_figures(case, tmp_path):
    script, *arguments = CASES[case]
    words = [word.format(folder=tmp_path / "data") for word in arguments]
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / script, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) > 0
