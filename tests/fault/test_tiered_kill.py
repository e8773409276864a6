"""Does a process that dies while it moves a partition leave all of its records, each once? (I4)"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onelog.objects.sweeping import sweep
from onelog.storage.tiered import stored_partition
from tests.batches import fill, read_all, spans
from tests.fault.tiered_child import TRIMMED, engine_of
from tests.support.tiers import KEY, SMALL, move_all

ROOT = Path(__file__).resolve().parents[2]

POINTS = [
    *(f"store.put=exit:{after}" for after in (0, 1, 2, 5, 9)),
    *(f"store.put.after=exit:{after}" for after in (0, 1, 2, 6)),
    *(f"tier.manifest=exit:{after}" for after in (0, 2, 5)),
    *(f"tier.local=exit:{after}" for after in (0, 1, 4, 5, 6)),
    *(f"tier.trim=exit:{after}" for after in (0, 1)),
    *(f"doom.delete=exit:{after}" for after in (0,)),
    *(f"store.delete=exit:{after}" for after in (0, 2)),
    *(f"segment.swap=exit:{after}" for after in (0, 2)),
    *(f"segment.unlink=exit:{after}" for after in (0, 2)),
    "none=exit",
]


def run_child(root: Path, fault: str) -> list[str]:
    environment = {
        **os.environ,
        "ONELOG_FAULTS": fault,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    }
    child = subprocess.run(
        [sys.executable, "-m", "tests.fault.tiered_child", str(root)],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert child.returncode in (0, 137), child.stderr
    lines = child.stdout.split("\n")[:-1]
    assert (lines[-1:] == ["done"]) == (child.returncode == 0)
    return lines


@pytest.mark.parametrize("fault", POINTS)
def test_a_process_that_dies_at_a_fault_point_keeps_what_it_promised(tmp_path: Path, fault: str):
    lines = run_child(tmp_path, fault)
    engine = engine_of(tmp_path)
    log = engine.open(KEY, SMALL)
    synced = max([int(line.split()[1]) for line in lines if line.startswith("synced")], default=0)
    assert log.end_offset >= synced
    if "started" in lines:
        assert log.start_offset == TRIMMED
    else:
        assert log.start_offset in ((0, TRIMMED) if f"start {TRIMMED}" in lines else (0,))
    dense = [(offset, offset) for offset in range(log.start_offset, log.end_offset)]
    assert spans(read_all(log)) == dense, "once, in order"
    fill(log, 60)
    move_all(log)
    dense = [(offset, offset) for offset in range(log.start_offset, log.end_offset)]
    assert spans(read_all(log)) == dense
    for _ in range(2):
        log.tier.settle(int(time.time() * 1000) + 10_000, 0)
    sweep(engine.store, engine.keepers(), age_ms=-10_000)
    named = {row.object for row in log.cold_rows(0, log.end_offset)}
    assert {row.name for row in engine.store.list("t/")} == named, "no object lies there unnamed"
    assert {row.object for row in stored_partition(engine.store, KEY).manifest.rows} == named
    engine.close()
