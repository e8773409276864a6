"""Does every view see every acknowledged message after kill -9, and go on where it was? (I2, I4)"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.conformance.mqtt_brokers import Onelog
from tests.support.mixed import SETTINGS, MixedRun


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(1, marks=pytest.mark.fault),
        pytest.param(8, marks=pytest.mark.fault_long),
    ],
)
def test_views_of_every_protocol_outlive_kill_9_in_the_middle_of_a_mixed_run(
    tmp_path: Path, kills: int
):
    server = Onelog(tmp_path, *SETTINGS).start()
    run = MixedRun(server)
    try:
        run.prepare()
        for _ in range(kills):
            run.begin(write=True)
            run.written(1000)
            time.sleep(random.random())  # the moment of the kill is the input
            run.kill()
        run.catch_up()
        assert not run.findings()
        assert server.stop() == 0
        assert not server.errors()
    finally:
        server.kill()
