"""`tools/console.py` builds when it is asked to, and only then."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "console.py"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [(["--help"], 0, "--if-possible"), (["--nonsense"], 2, "--nonsense")],
)
def test_help_and_words_that_mean_nothing_build_nothing(tmp_path, words, code, told):
    copy = tmp_path / "tools" / "console.py"  # its tree has no sources: a build would fail
    copy.parent.mkdir()
    shutil.copy(TOOL, copy)
    done = subprocess.run(
        [sys.executable, copy, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert told in done.stdout + done.stderr
    assert not (tmp_path / "build").exists()
