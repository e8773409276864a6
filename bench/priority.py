"""Processes that are measured come before everything else on the machine, where it allows that.

Rules: what is measured (a broker and its clients) has a real-time priority, before and during the
load alike. A load that would be on other machines in earnest shares two cores with them here: an
ordinary process that waits for the processor waits for whole slices of 3 to 4 ms, whoever has it,
and these would be the p99.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.report import say

_FIRST = ("chrt", "--fifo", "10")


@functools.cache
def is_allowed() -> bool:
    """Whether this process may give a real-time priority."""
    found = (
        shutil.which(_FIRST[0]) is not None
        and not subprocess.run([*_FIRST, "true"], check=False, capture_output=True).returncode
    )
    say(
        "the broker and its clients have a real-time priority"
        if found
        else "no real-time priority here: other processes count"
    )
    return found


def first(command: Sequence[str | Path]) -> list[str | Path]:
    """The command of a process that is measured."""
    return [*_FIRST, *command] if is_allowed() else list(command)
