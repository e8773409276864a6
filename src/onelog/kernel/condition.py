"""The condition of this process's kernel: compiled from the sources beside it, or not.

Rules: a kernel in the wrong condition works, but is reported wherever a person looks: at the start
of `onelog serve`, in its log, in `onelog status` and `onelog version`.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

from onelog import kernel
from onelog.kernel import origin

SLOWER: Final = "whose hot loops take 40 to 200 times as long"
"""Building and decoding a batch of 5,000 records of 100 bytes, measured."""
_HERE: Final = Path(__file__).parent / "_native"
_COMPILE: Final = (
    "compile it: `make run` in a checkout, elsewhere `pip install --no-cache-dir --force-reinstall"
    " --no-deps onelog`, where a C compiler and Python's headers are; then restart"
)


@cache
def kernel_warning() -> str:
    """What is wrong with the kernel that this process loaded, and what to do; empty: nothing."""
    if os.environ.get("ONELOG_PURE") == "1":
        return f"the interpreted kernel runs, {SLOWER}: ONELOG_PURE=1 asks for it"
    if not kernel.COMPILED:
        return missing(kernel.WHY_INTERPRETED)
    return stale(origin.stale_modules(_HERE))


def missing(reason: str) -> str:
    """The warning when the compiled kernel could not be loaded."""
    return (
        f"the compiled kernel is missing ({reason}): the interpreted one runs, {SLOWER}; {_COMPILE}"
    )


def stale(modules: list[str]) -> str:
    """The warning when modules were compiled from other sources; empty: there are none."""
    if not modules:
        return ""
    names = ", ".join(modules[:5]) + (", …" if len(modules) > 5 else "")
    return (
        f"the compiled kernel is stale ({len(modules)} of its modules were compiled from other"
        f" sources than those beside them: {names}): it may behave as an older version did;"
        f" {_COMPILE}"
    )
