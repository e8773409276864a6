"""Does a process that dies at any fault point leave a log that opens with all it promised? (I4)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onelog.storage.segment import SegmentEngine
from tests.batches import fill, read_all, spans
from tests.fault.segment_child import KEY, SETTINGS

ROOT = Path(__file__).resolve().parents[2]

POINTS = [
    *(f"segment.write=exit:{after}" for after in (0, 1, 30, 55, 60)),
    *(f"segment.create=exit:{after}" for after in (0, 1, 3)),
    *(f"segment.allocate=exit:{after}" for after in (0, 2)),
    *(f"segment.roll=exit:{after}" for after in (0, 2)),
    *(f"segment.fsync=exit:{after}" for after in (0, 3, 6, 9)),
    *(f"segment.checkpoint=exit:{after}" for after in range(0, 14, 2)),
    *(f"segment.checkpoint.written=exit:{after}" for after in range(1, 14, 2)),
    "segment.state=exit",
    *(f"segment.unlink=exit:{after}" for after in (0, 1, 3)),
    *(f"segment.swap=exit:{after}" for after in range(12)),
    "segment.truncate=exit",
    "none=exit",
]


def run_child(root: Path, fault: str) -> list[str]:
    environment = {
        **os.environ,
        "ONELOG_FAULTS": fault,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    }
    child = subprocess.run(
        [sys.executable, "-m", "tests.fault.segment_child", str(root)],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert child.returncode in (0, 137), child.stderr
    lines = child.stdout.split("\n")[:-1]
    assert (lines[-1:] == ["done"]) == (child.returncode == 0)
    return lines


def check_promises(lines: list[str], root: Path) -> None:
    engine = SegmentEngine(root)
    log = engine.open(KEY, SETTINGS)
    promised = [int(line.split()[1]) for line in lines if line.startswith("synced")]
    synced = promised[-1] if promised else 0
    assert log.end_offset >= synced
    assert log.durable_offset == log.end_offset
    firsts = [first for first, _ in spans(read_all(log))]
    assert firsts == sorted(set(firsts)), "once, in order"
    start, end = log.start_offset, log.end_offset
    assert start in (0, 16) if "trim 16" in lines else start == 0
    dense = [offset for offset in range(start, end) if offset not in (55, 56, 57)]
    # The rewrite keeps the even offsets below 40 and nothing up to 58.
    thin = [offset for offset in dense if (offset < 40 and offset % 2 == 0) or offset >= 58]
    assert firsts in ((dense, thin) if "rewrite" in lines else (dense,))
    if "synced 67" in lines:
        assert firsts == thin
    if start == 16:
        assert len(log.read(16, 1, end))
    fill(log, 3)
    assert [first for first, _ in spans(read_all(log))][-3:] == [end, end + 1, end + 2]
    engine.close()
    engine = SegmentEngine(root)
    assert engine.was_clean
    log = engine.open(KEY, SETTINGS)
    assert log.recovery.clean
    assert log.end_offset == end + 3
    engine.close()
    leftovers = [path.name for path in root.rglob("*") if path.suffix == ".tmp"]
    leftovers += [path.name for path in root.rglob("*.cleaned.*")]
    assert not leftovers


@pytest.mark.fault
@pytest.mark.parametrize("fault", POINTS)
def test_a_kill_at_a_fault_point_loses_nothing_that_was_synced(tmp_path: Path, fault: str):
    """I4, I5: synced records are there, once, in order; the log goes on and closes cleanly."""
    lines = run_child(tmp_path / "data", fault)
    check_promises(lines, tmp_path / "data")


@pytest.mark.fault
def test_every_fault_point_of_the_script_is_passed(tmp_path: Path):
    """A point that the script never reaches would make its kill tests say nothing."""
    reached = set()
    for name in sorted({point.partition("=")[0] for point in POINTS} - {"none"}):
        lines = run_child(tmp_path / name, f"{name}=exit")
        if lines[-1:] != ["done"]:
            reached.add(name)
    assert reached == {point.partition("=")[0] for point in POINTS} - {"none"}
