"""The example of the guide runs, and prints what the guide says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_embedded_example_reads_through_all_five_kinds_of_cursor(tmp_path: Path) -> None:
    for _start in ("first", "again, on the same data"):
        done = subprocess.run(
            [sys.executable, ROOT / "examples/embedded.py", tmp_path / "data"],
            env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "durable at main/" in done.stdout
        for word in ("report", "worker", "session", "table", "tail"):
            assert f"\n{word}" in done.stdout
