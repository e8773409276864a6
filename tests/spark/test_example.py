"""Does `examples/iot-pipeline` do what it says, by one command and unchanged on a cluster?"""

from __future__ import annotations

import importlib
import os
import random
import re
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from matplotlib.image import imread
from pyiceberg.catalog.sql import SqlCatalog

from tests.spark.lines import ROOT
from tests.spark.processes import DEADLINE_S

pytestmark = pytest.mark.spark_slow

EXAMPLE = ROOT / "examples" / "iot-pipeline"
WINDOW_S = 10
ALERTS = """\
  14:14:00 kitchen: spike, 40.43 °C
  14:15:00 roof: hot, 28.07 °C
  14:15:10 roof: hot, 30.69 °C
"""
RED = (0xC9, 0x2A, 0x2A)


@pytest.fixture
def devices(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("devices")


def run_example(folder: Path, master: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "run.py"), str(folder), "--master", master],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expected(devices: ModuleType) -> dict[tuple[str, datetime], tuple[Any, ...]]:
    """The windows, counted without Spark from what the devices send."""
    noise = random.Random(7)
    seen: dict[tuple[str, int], list[float]] = defaultdict(list)
    for second in range(devices.SECONDS):
        for device in devices.DEVICES:
            time = devices.BEGAN + second
            value = devices.temperature(device, second, noise)
            seen[device, time - time % WINDOW_S].append(value)
    found = {}
    for (device, began), values in seen.items():
        mean, high = sum(values) / len(values), max(values)
        odd = "spike" if high - mean > 8 else "hot" if mean > 26 else None
        moment = datetime.fromtimestamp(began, UTC)
        found[device, moment] = (
            len(values),
            pytest.approx(mean, abs=0.006),
            min(values),
            high,
            odd,
        )
    return found


def check_example(said: str, folder: Path, devices: ModuleType) -> None:
    assert "devices sent 605 readings" in said
    assert re.search(r"has 60 windows, 3 of them not normal", said)
    for protocol in ("MQTT", "AMQP"):
        assert f"{protocol} read 3 alerts\n{ALERTS}" in said
    catalog = SqlCatalog("onelog", uri=f"sqlite:///{folder}/data/lakehouse/catalog.db")
    rows = catalog.load_table("iot.windows").scan().to_arrow().to_pylist()
    catalog.close()
    assert len(rows) == 60
    assert {
        (row["device"], row["began"]): (
            row["readings"], row["mean"], row["low"], row["high"], row["anomaly"],
        )
        for row in rows
    } == expected(devices)  # fmt: skip
    picture = (imread(folder / "windows.png")[:, :, :3] * 255).round().astype(int)
    assert picture.shape[:2] == (720, 1440)
    colors = {tuple(color) for color in picture.reshape(-1, 3).tolist()}
    assert len(colors) > 1000, "lines that fade, bands and letters have many colors"
    assert RED in colors, "alerts are marked"
    assert (folder / "windows.svg").read_text().count("roof: hot") == 2


def test_the_example_runs_by_one_command(devices, tmp_path):
    check_example(run_example(tmp_path, "local[2]"), tmp_path, devices)


def test_the_example_runs_unchanged_on_a_cluster_of_two_workers(cluster, devices, tmp_path):
    folder = tmp_path / "iot"
    check_example(run_example(folder, cluster.master), folder, devices)
    used = {file.parts[-3] for file in tmp_path.glob("worker*/app-*/*")}
    assert used == {"worker0", "worker1"}
