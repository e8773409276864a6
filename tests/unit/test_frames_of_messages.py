"""A plain message that comes alone takes no Python frame: publish, fan-out or hand-out, answers.

The compiled kernel does all of it (ADRs 37 and 40). What does not come with each message, as an
entry of the sparse index, may be Python.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench.report import ROOT
from onelog.kernel import COMPILED

CASES = {
    "MQTT QoS 0": ("mqtt", "0"),
    "MQTT QoS 1, acknowledged": ("mqtt", "1"),
    "AMQP, durable, confirmed and acknowledged": ("amqp", "1"),
}
OF_EACH = 0.5
"""Calls per message: as many or more would come with each message, or with every second one."""


@pytest.mark.skipif(not COMPILED, reason="only the compiled kernel has short ways")
@pytest.mark.parametrize("case", CASES)
def test_a_lone_message_takes_no_python_frame(case: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.frames", *CASES[case]],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert float(lines[-1]) < OF_EACH, done.stdout
