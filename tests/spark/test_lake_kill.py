"""Are the rows of a stream in the table once when its driver or a task of it is killed?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.lakes import FORMATS, Lake
from tests.spark.lines import ROOT

pytestmark = pytest.mark.spark_slow
FILES, PER_FILE = 3, 50
RUN_S = 600


def run(form: str, folder: Path, when: str) -> int:
    """One life of the driver, in a group of processes that dies with it."""
    with (folder / "stderr").open("ab") as errors:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.lake_child", form, str(folder), when],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
    try:
        return driver.wait(RUN_S)
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "inputs").mkdir()
    for file in range(FILES):
        lines = [json.dumps({"id": n}) for n in range(file * PER_FILE, (file + 1) * PER_FILE)]
        (tmp_path / "inputs" / f"{file}.json").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_that_is_killed_at_a_commit_loses_and_doubles_nothing(folder, form, when):
    lake = Lake(form, folder)
    assert run(form, folder, when) == -signal.SIGKILL, (folder / "stderr").read_text()
    assert len(lake.rows()) == PER_FILE * (2 if when == "after" else 1)
    assert run(form, folder, when) == 0, (folder / "stderr").read_text()
    assert sorted(row["id"] for row in lake.rows()) == list(range(FILES * PER_FILE))


@pytest.mark.parametrize("form", FORMATS)
def test_a_task_that_is_killed_is_run_again_and_its_rows_are_there_once(folder, form):
    lake = Lake(form, folder)
    assert run(form, folder, "task") == 0, (folder / "stderr").read_text()
    assert (folder / "died").exists()
    assert sorted(row["id"] for row in lake.rows()) == list(range(FILES * PER_FILE))
